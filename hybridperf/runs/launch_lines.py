"""A deployment as the command that starts it in vLLM, SGLang or TensorRT-LLM.

One engine of those a deployment has; its replicas are started likewise, on GPUs and ports of their
own, and the router before them is the user's. Options change between versions: compare with
`--help`. The model's name is ours unless the user gave a checkpoint's.

Read in: docs.vllm.ai (engine arguments; vLLM's data-parallel ranks are attention ranks, and
`--max-num-seqs` is of each); docs.sglang.io (server arguments) and sgl-project/sglang's
`server_args.py`, which divides `--chunked-prefill-size`, as its scheduler does
`--max-running-requests`, by the attention ranks; NVIDIA/TensorRT-LLM's
`tensorrt_llm/commands/serve.py` (commit 00209af) and the settings files of its deployment guide.
Of prompts computed apart: vLLM's `docs/features/nixl_connector_usage.md`, SGLang's
`docs/advanced_features/pd_disaggregation.md`, TensorRT-LLM's
`docs/source/features/disagg-serving.md` (engines of prompts do without its overlap scheduler).
Weights that are narrowed while they are loaded: docs.vllm.ai, quantization/fp8. Drafts by the
model's own further head: vLLM's `docs/features/speculative_decoding/mtp.md`, SGLang's
`docs/advanced_features/speculative_decoding.md`, TensorRT-LLM's `MTPDecodingConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VLLM_KV = {"bf16": "auto"}
_SGLANG_KV = {"bf16": "auto", "fp8": "fp8_e4m3"}
_CONNECTOR = """ --kv-transfer-config '{{"kv_connector":"NixlConnector","kv_role":"{}"}}'"""
_VLLM_KEYS = {"": "", "prefill": _CONNECTOR.format("kv_producer"),
               "decode": _CONNECTOR.format("kv_consumer")}  # fmt: skip
# pieces of a command, each with the column that it needs to be above 1; of `row`, `ranks` of
# attention and `all_gpus` of an engine
_LINES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("", "vllm serve {model} --tensor-parallel-size {row[tp]}"),
        ("pp", "--pipeline-parallel-size {row[pp]}"),
        ("attention_dp", "--data-parallel-size {ranks}"),
        ("expert_ep", "--enable-expert-parallel"),
        ("", "--max-num-seqs {row[sequences]} --max-num-batched-tokens {row[chunk]}"
         " --kv-cache-dtype {vllm_kv}{vllm_role}"),
        ("drafts", """--speculative-config '{{"method":"mtp","num_speculative_tokens":"""
         """{row[drafted]}}}'"""),
    ),
    "sglang": (
        ("", "python -m sglang.launch_server --model-path {model} --tp-size {all_gpus}"),
        ("pp", "--pp-size {row[pp]}"),
        ("attention_dp", "--dp-size {ranks} --enable-dp-attention"),
        ("expert_ep", "--ep-size {row[expert_ep]}"),
        ("", "--max-running-requests {all_sequences} --chunked-prefill-size {all_tokens}"
         " --kv-cache-dtype {sglang_kv}{sglang_role}"),
        ("drafts", "--speculative-algorithm EAGLE --speculative-num-steps {row[drafted]}"
         " --speculative-eagle-topk 1 --speculative-num-draft-tokens {drafts}"),
    ),
    "trtllm": (
        ("", "trtllm-serve {model} --tp_size {all_gpus} --pp_size {row[pp]}"),
        ("expert_ep", "--ep_size {row[expert_ep]}"),
        ("", "--max_batch_size {row[sequences]} --max_num_tokens {row[chunk]}"
         " --config <(printf '{trtllm_options}')"),
    ),
}  # fmt: skip


def launch_lines(row: Mapping[str, Any], model: str, role: str = "") -> dict[str, str]:
    """Commands by framework for an engine of a row of `deployments`.

    Args:
        row: of the engine; `prefill_row` gives that which computes prompts.
        model: name or path of a checkpoint.
        role: prefill or decode, where engines of both kinds send keys to each other.
    """
    ranks, kv = row["attention_dp"], row["kv_dtype"]
    options = ["enable_chunked_prefill: true"]
    options += ["disable_overlap_scheduler: true"] if role == "prefill" else []
    options += ["cache_transceiver_config: {backend: NIXL}"] if role else []
    options += ["enable_attention_dp: true"] if ranks > 1 else []
    options += [f"kv_cache_config: {{dtype: {kv}}}"] if kv != "bf16" else []
    drafted, drafts = row["drafted"], row["drafted"] + 1  # a step checks a token more
    speculation = f"speculative_config: {{decoding_type: MTP, num_nextn_predict_layers: {drafted}}}"
    options += [speculation] if drafted else []
    row = {**row, "drafts": drafts}
    words = {
        "model": model, "row": row, "drafts": drafts, "ranks": ranks, "all_gpus": row["tp"] * ranks,
        "all_sequences": row["sequences"] * ranks, "all_tokens": row["chunk"] * ranks,
        "vllm_kv": _VLLM_KV.get(kv, kv), "sglang_kv": _SGLANG_KV.get(kv, kv),
        "vllm_role": _VLLM_KEYS[role],
        "sglang_role": f" --disaggregation-mode {role}" if role else "",
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


def checkpoint_words(row: Mapping[str, Any], model: str) -> str:
    """What the model's name in the commands stands for."""
    kept = row["expert_quant"] if row["quant"] == "bfloat16" else row["quant"]
    said = f"{model}: name or path of a checkpoint"
    if kept in ("bfloat16", "float16"):
        return f"{said} of 16 bits"
    said += f" with {kept} weights"
    return said + ", or of 16 bits with --quantization fp8 (vllm)" * (kept == "fp8")
