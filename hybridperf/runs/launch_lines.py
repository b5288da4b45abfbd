"""A deployment as the command that starts it in vLLM, SGLang or TensorRT-LLM.

One engine of those a deployment has; its replicas and its engines of prompts are started likewise,
and the router before them is the user's. Options change between versions: compare with `--help`.

Read in: docs.vllm.ai (engine arguments; vLLM's data-parallel ranks are attention ranks, and
`--max-num-seqs` is of each); docs.sglang.io (server arguments) and sgl-project/sglang's
`server_args.py`, which divides `--chunked-prefill-size`, as its scheduler does
`--max-running-requests`, by the attention ranks; NVIDIA/TensorRT-LLM's
`tensorrt_llm/commands/serve.py` (commit 00209af) and the settings files of its deployment guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VLLM_KV = {"bf16": "auto"}
_SGLANG_KV = {"bf16": "auto", "fp8": "fp8_e4m3"}
# pieces of a command, each with the column that it needs to be above 1; of `row`, `ranks` of
# attention and `all_gpus` of an engine
_LINES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("", "vllm serve {model} --tensor-parallel-size {row[tp]}"),
        ("pp", "--pipeline-parallel-size {row[pp]}"),
        ("attention_dp", "--data-parallel-size {ranks}"),
        ("expert_ep", "--enable-expert-parallel"),
        ("", "--max-num-seqs {row[sequences]} --max-num-batched-tokens {row[chunk]}"
         " --kv-cache-dtype {vllm_kv}"),
    ),
    "sglang": (
        ("", "python -m sglang.launch_server --model-path {model} --tp-size {all_gpus}"),
        ("pp", "--pp-size {row[pp]}"),
        ("attention_dp", "--dp-size {ranks} --enable-dp-attention"),
        ("expert_ep", "--ep-size {row[expert_ep]}"),
        ("", "--max-running-requests {all_sequences} --chunked-prefill-size {all_tokens}"
         " --kv-cache-dtype {sglang_kv}"),
    ),
    "trtllm": (
        ("", "trtllm-serve {model} --tp_size {all_gpus} --pp_size {row[pp]}"),
        ("expert_ep", "--ep_size {row[expert_ep]}"),
        ("", "--max_batch_size {row[sequences]} --max_num_tokens {row[chunk]}"
         " --config <(printf '{trtllm_options}')"),
    ),
}  # fmt: skip


def launch_lines(row: Mapping[str, Any], model: str) -> dict[str, str]:
    """Commands by framework, for an engine that decodes (or does all) of a row of `deployments`."""
    ranks, kv = row["attention_dp"], row["kv_dtype"]
    options = ["enable_chunked_prefill: true"]
    options += ["enable_attention_dp: true"] if ranks > 1 else []
    options += [f"kv_cache_config: {{dtype: {kv}}}"] if kv != "bf16" else []
    words = {
        "model": model, "row": row, "ranks": ranks, "all_gpus": row["tp"] * ranks,
        "all_sequences": row["sequences"] * ranks, "all_tokens": row["chunk"] * ranks,
        "vllm_kv": _VLLM_KV.get(kv, kv), "sglang_kv": _SGLANG_KV.get(kv, kv),
        "trtllm_options": "".join(f"{option}\\n" for option in options),
    }  # fmt: skip
    return {
        name: " ".join(part.format(**words) for at, part in parts if not at or row[at] > 1)
        for name, parts in _LINES.items()
    }


def prefill_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The engine of a disaggregated row that computes prompts, as a row of its own."""
    own = {"tp": "prefill_tp", "pp": "prefill_pp", "attention_dp": "prefill_dp",
           "expert_ep": "prefill_ep"}  # fmt: skip
    return {**row, **{name: int(row[theirs]) for name, theirs in own.items()}}
