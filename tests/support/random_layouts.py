"""Training steps drawn at random, whole: every column that matters is named, so that no default
decides what two questions that differ in one word compare.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from hybridperf.hardware import load_device
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer import load_shape

_DENSE = ("gpt2-xl", "llama2-7b", "llama3-8b", "llama2-70b", "gpt3-175b", "qwen2.5-7b")
_EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")
_GPUS = (
    "a100_sxm4_80g", "a100_sxm4_40g", "h100_sxm", "h200_sxm", "h800_sxm", "b200_sxm", "gb200",
    "b300_sxm",
)  # fmt: skip
_FRAMEWORKS = (
    "megatron_core", "megatron_2022", "megatron", "megatron_deepspeed", "gpt_neox", "nanotron",
    "torchtitan", "torchtitan_eager", "llm_foundry", "eager_pytorch",
)  # fmt: skip
_MOST_GPUS = 4096


def random_layouts(number: int, seed: int) -> pd.DataFrame:
    """Rows of `hybridperf steps`, all of them legal [R]."""
    rows = _rows(np.random.default_rng(seed))
    drawn: list[dict] = []
    while len(drawn) < number:
        some = [row for row, _ in zip(rows, range(number), strict=False)]
        read = zip(some, resolve(pd.DataFrame(some)), strict=True)
        drawn += [row for row, one in read if one.config]
    return pd.DataFrame(drawn[:number])


def _rows(random: np.random.Generator) -> Iterator[dict]:
    def pick(*values):
        return values[random.integers(len(values))]

    while True:
        model = pick(*_DENSE, *_EXPERTS)
        shape, gpu = load_shape(model), pick(*_GPUS)
        tp, pp, dp = pick(1, 1, 2, 4, 8), pick(1, 1, 2, 4, 8), pick(1, 2, 4, 8, 16, 64)
        cp = pick(1, 1, 1, 2, 4)
        ep = pick(1, 2, 4, 8) if shape.experts else 1
        gpus = tp * pp * dp * cp
        whole = gpus <= 8 or gpus % 8 == 0
        if gpus > _MOST_GPUS or not whole or (dp * cp) % ep or shape.key_heads % tp:
            continue
        schedule = pick("1f1b", "1f1b", "interleaved", "gpipe") if pp > 1 else "1f1b"
        narrow = "fp8" in load_device(gpu).peak_flops_per_s
        yield {
            "model": model, "gpu": gpu, "n_gpus": gpus, "gpus_per_node": 8, "tp": tp, "pp": pp,
            "dp": dp, "cp": cp, "ep": ep, "vp": 2 if schedule == "interleaved" else 1,
            "expert_tp": 1 if ep > 1 else tp, "seq": pick(1024, 2048, 4096, 8192, 16384),
            "micro_batch": pick(1, 1, 2, 4), "grad_accum": pp * pick(1, 2, 4),
            "schedule": schedule, "sharding": pick("none", "zero1", "zero1", "zero2", "fsdp"),
            "recompute": pick("none", "selective", "full"),
            "precision": pick("bf16", "fp16", *["fp8"] * narrow), "framework": pick(*_FRAMEWORKS),
            "attention": pick("fused", "unfused", "flash1", "flash2"),
            "seq_parallel": pick("yes", "no") if tp > 1 else "no", "optimizer": "adam",
            "gradient_bytes": pick(2, 4), "dropout": pick("yes", "no"),
            "overlap_gradients": pick("yes", "no"), "overlap_weights": pick("yes", "no"),
            "overlap_shards": pick("yes", "no"), "overlap_sends": pick("yes", "no"),
            "context_messages": pick("ring", "gather"),
            "expert_messages": pick("copies", "nodes"), "grouped_experts": pick("yes", "no"),
            "fused_loss": pick("yes", "no"), "fp8_param_gather": "no", "routing": "balanced",
            "checkpoints": pick("blocks", "ops"),
        }  # fmt: skip
