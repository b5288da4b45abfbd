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

from collections.abc import Callable, Mapping
from typing import Any

_VLLM_KV = {"bf16": "auto", "fp8": "fp8"}
_SGLANG_KV = {"bf16": "auto", "fp8": "fp8_e4m3"}


def launch_lines(row: Mapping[str, Any], model: str) -> dict[str, str]:
    """Commands by framework, for an engine that decodes (or does all) of a row of `deployments`."""
    return {name: " ".join(line(row, model)) for name, line in _LINES.items()}


def prefill_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The engine of a disaggregated row that computes prompts, as a row of its own."""
    own = {"tp": "prefill_tp", "pp": "prefill_pp", "attention_dp": "prefill_dp",
           "expert_ep": "prefill_ep"}  # fmt: skip
    return {**row, **{name: int(row[theirs]) for name, theirs in own.items()}}


def _vllm(row: Mapping[str, Any], model: str) -> list[str]:
    line = [f"vllm serve {model}", f"--tensor-parallel-size {row['tp']}"]
    if row["pp"] > 1:
        line.append(f"--pipeline-parallel-size {row['pp']}")
    if row["attention_dp"] > 1:
        line.append(f"--data-parallel-size {row['attention_dp']}")
    if row["expert_ep"] > 1:
        line.append("--enable-expert-parallel")
    return [*line, f"--max-num-seqs {row['sequences']}", f"--max-num-batched-tokens {row['chunk']}",
            f"--kv-cache-dtype {_VLLM_KV.get(row['kv_dtype'], row['kv_dtype'])}"]  # fmt: skip


def _sglang(row: Mapping[str, Any], model: str) -> list[str]:
    ranks = row["attention_dp"]
    line = [
        f"python -m sglang.launch_server --model-path {model}",
        f"--tp-size {row['tp'] * ranks}",
    ]
    if row["pp"] > 1:
        line.append(f"--pp-size {row['pp']}")
    if ranks > 1:
        line.append(f"--dp-size {ranks} --enable-dp-attention")
    if row["expert_ep"] > 1:
        line.append(f"--ep-size {row['expert_ep']}")
    return [*line, f"--max-running-requests {row['sequences'] * ranks}",
            f"--chunked-prefill-size {row['chunk'] * ranks}",
            f"--kv-cache-dtype {_SGLANG_KV.get(row['kv_dtype'], row['kv_dtype'])}"]  # fmt: skip


def _trtllm(row: Mapping[str, Any], model: str) -> list[str]:
    ranks = row["attention_dp"]
    line = [f"trtllm-serve {model}", f"--tp_size {row['tp'] * ranks}", f"--pp_size {row['pp']}"]
    if row["expert_ep"] > 1:
        line.append(f"--ep_size {row['expert_ep']}")
    line += [f"--max_batch_size {row['sequences']}", f"--max_num_tokens {row['chunk']}"]
    options = ["enable_chunked_prefill: true"]
    if ranks > 1:
        options.append("enable_attention_dp: true")
    if row["kv_dtype"] != "bf16":
        options.append(f"kv_cache_config: {{dtype: {row['kv_dtype']}}}")
    written = "".join(f"{option}\\n" for option in options)
    return [*line, f"--config <(printf '{written}')"]


_LINES: Mapping[str, Callable[[Mapping[str, Any], str], list[str]]] = {
    "vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm,
}  # fmt: skip
