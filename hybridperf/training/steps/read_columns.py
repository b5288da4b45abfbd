"""Columns that rows of training steps are read from, as `hybridperf steps --help` lists them.

A column that is read is added in two files: here, and its reader in `record.py` or `rows.py`.
Light to import: the command line shows this before it loads anything.
"""

from __future__ import annotations

import re
import textwrap

# columns: meaning; further columns stand in it between backticks
_MEANING = {
    "model": "name of a published one; else `family` (gpt, llama, bert, t5, vit, moe), `hidden`,"
    " `heads`, `layers`, `seq`, `vocab` and, where they differ, `ffn`, `kv_heads`, `head_dim`;"
    " `experts` and `topk` of a moe, `decoder_layers` of a t5, `image` and `patch` of a vit",
    "gpu, n_gpus": "accelerator and how many; `gpus_per_node`; `system`: nodes and links by a"
    " name that hybridperf systems lists",
    "tp, pp, dp": "degrees of parallelism; `cp`, `ep`; `vp` (chunks of a stage), `seq_parallel`"
    " (yes, no), `expert_tp` (ranks that share an expert's matrices), `order` (tp cp ep dp pp:"
    " which ranks are neighbours, fastest first)",
    "micro_batch": "samples; `grad_accum` (micro-batches of a step), `global_batch` (samples of"
    " all)",
    "sharding": "none, zero1, zero2, zero3, fsdp, hsdp; `shard_ranks`: over so many data ranks",
    "recompute": "none, selective, full",
    "schedule": "1f1b, gpipe, interleaved, chimera, zero_bubble, zb_v, dualpipe, dualpipe_v",
    "precision": "bf16, fp16, fp32, tf32, fp8, mxfp8, nvfp4",
    "framework": "megatron_core, megatron_core_26_06, megatron_core_graphs, megatron,"
    " megatron_2022, megatron_deepspeed, gpt_neox, nanotron, llm_foundry, torchtitan,"
    " torchtitan_eager, torchtitan_async_tp, eager_pytorch, llm_c, flash_attention,"
    " flash_attention_1, mlperf_bert, mlperf_bert_few",
    "attention": "fused, unfused, or the kernel's generation: flash1, flash2",
    "overlap_gradients": "beside the last backward pass (yes, no); `overlap_weights`: gathered"
    " beside the next forward pass; `overlap_shards`: of ZeRO-3; `overlap_sends`: of a pipeline",
    "gradient_bytes": "2 or 4, of a number that is reduced; `dropout` (yes, no); `optimizer` (adam,"
    " lamb, sgd); `expert_messages` (copies, nodes); `context_messages` (gather, ring); `routing`"
    " (balanced, power_law_1.2); `fused_loss`, `grouped_experts`, `fp8_param_gather` (yes, no: of"
    " products in 8 bits, weights travel so); `checkpoints` (blocks, ops)",
    "adapters": "rank of low-rank adapters beside attention, which alone are trained (LoRA)",
    "release": "year and month of the framework's release, as 26.06, else by `section`",
    "note": "of torchtitan: the words eager, or async TP; of megatron_core: GPT-NeoX, CUDA graphs",
    "id, source, system_detail": "where the row is from; what they say of network and framework",
    "offload, status": "only no, and ok to be fitted on",
    "step_time_s": "measured, for --fit-on",
}
READ = tuple(
    name
    for names, meaning in _MEANING.items()
    for name in (*names.split(", "), *re.findall(r"`(\w+)`", meaning))
)
_INDENT, _NAMES, _GAP, _LINE = 2, 16, 2, 96  # characters


def read_columns_help() -> str:
    """The columns and their meanings as lines of help."""
    lines = []
    for names, meaning in _MEANING.items():
        start = " " * _INDENT + names.ljust(_NAMES) + " " * _GAP
        said = meaning.replace("`", "")
        lines += textwrap.wrap(
            said, _LINE, initial_indent=start, subsequent_indent=" " * len(start),
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)
