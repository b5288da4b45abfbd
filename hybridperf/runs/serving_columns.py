"""Columns that rows of operating points are read from, as `hybridperf serve --help` lists them.

Light to import: the command line shows this before it loads anything. Readers: `serving_rows.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

READ: Mapping[str, str] = {
    "model_path": "model, as on the Hugging Face hub, one of ours, or a config.json (or `model`)",
    "system": "GPU and its nodes: h100_sxm, b200, gb200, ...",
    "backend": "vllm, sglang, trtllm (or `framework`)",
    "backend_version": "of the framework",
    "precision": "fp4, fp8, int4, bf16: where the two below are not given; if empty, by the"
    " model's name",
    "gemm_quant_mode, moe_quant_mode": "schemes of products and of experts",
    "kv_dtype": "number format of the cache; by the framework's habit if not given",
    "mode": "agg: one engine does all; disagg: prefill and decode workers apart",
    "isl, osl": "tokens of prompts and of answers",
    "silicon_concurrency, concurrency": "clients; also as `silicon_concurrency=N` in a text column",
    "batch_size": "clients, where no concurrency is given",
    "tp_size, pp_size, attention_dp_size, moe_tp_size, moe_ep_size": "of an engine; `prefill_` and"
    " `decode_` before it: of the workers of each kind, and `_num_workers`",
    "max_num_seqs, max_num_batched_tokens": "limits of an engine's step",
    "scheduler_recv_interval": "SGLang: steps from one look at new requests to the next",
    "attention_dp_timeout_iters": "TensorRT-LLM: the same, where attention ranks wait for each"
    " other",
    "batch_wait_timeout_iters, batch_wait_max_tokens_ratio": "TensorRT-LLM: steps that a prompt"
    " waits for others, up to a share of a step's tokens",
    "moe_backend": "TensorRT-LLM: of its moe_config, as deepgemm",
    "measured": "when, as 2026-01-14; also as `measured=DATE` in a text column",
    "requests_per_client": "of a run in which all clients begin at once; such a run is assumed of"
    " published rows (silicon_concurrency, measured), of other rows a steady load",
    "drafted, acceptance": "tokens that a draft proposes, and the chance that each is taken",
    "cached_share": "of a prompt's tokens, found in the cache of prefixes",
    "lora_rank": "of an adapter of each layer's matrices before attention, not merged into them",
    "enforce_eager": "1: steps of decoding are launched kernel by kernel, no CUDA graphs",
}
