"""A deployment as the command that starts it in each framework that has one.

One engine of those a deployment has; its replicas are started likewise, on GPUs and ports of their
own, and the router before them is the user's. Options change between versions: compare with
`--help`. The model's name is ours unless the user gave a checkpoint's.

Pieces of a command stand in a framework's file (`ops/frameworks/`), each with the condition that it
is there for:

    pp, ep, ranks     stages, ranks of experts, attention ranks of the engine are several
    drafted           it drafts
    role              engines of both kinds send keys to each other; `prefill`, `decode`: this one's
    narrow_kv         the cache is kept in other numbers than 16 bits

and words in braces: these numbers, `model, tp, all_gpus, sequences, chunk` of an attention rank,
`all_sequences, all_tokens` of the engine, `drafts` that a step checks, `kv` as the framework calls
it, and `settings`, lines of a file, told in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hybridperf.ops.frameworks import Launch, serving_frameworks


def launch_lines(row: Mapping[str, Any], model: str, role: str = "") -> dict[str, str]:
    """Commands by framework for an engine of a row of `deployments`.

    Args:
        row: of the engine; `prefill_row` gives that which computes prompts.
        model: name or path of a checkpoint.
        role: prefill or decode, where engines of both kinds send keys to each other.
    """
    ranks, drafted = row["attention_dp"], row["drafted"]
    words = {
        "model": model, "role": role, "tp": row["tp"], "pp": row["pp"], "ep": row["expert_ep"],
        "ranks": ranks, "all_gpus": row["tp"] * ranks, "sequences": row["sequences"],
        "all_sequences": row["sequences"] * ranks, "chunk": row["chunk"],
        "all_tokens": row["chunk"] * ranks, "drafted": drafted, "drafts": drafted + 1,
    }  # fmt: skip
    holds = {
        "": True, "pp": row["pp"] > 1, "ep": row["expert_ep"] > 1, "ranks": ranks > 1,
        "drafted": drafted > 0, "role": bool(role), "prefill": role == "prefill",
        "decode": role == "decode", "narrow_kv": row["kv_dtype"] != "bf16",
    }  # fmt: skip
    return {
        name: _command(framework.launch, words, holds, row["kv_dtype"])
        for name, framework in serving_frameworks().items()
        if framework.launch is not None
    }


def _command(launch: Launch, words: Mapping[str, Any], holds: Mapping[str, bool], kv: str) -> str:
    def said(pieces: Iterable[tuple[str, str]], **more: str) -> list[str]:
        own = {**words, "kv": launch.kv.get(kv, kv), **more}
        return [text.format(**own) for condition, text in pieces if holds[condition]]

    settings = "".join(f"{line}\\n" for line in said(launch.settings))
    return " ".join(said(launch.command, settings=settings))


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
    options = "".join(
        f", or of 16 bits with {option} ({name})"
        for name, framework in serving_frameworks().items()
        if framework.launch and (option := framework.launch.narrowed.get(kept))
    )
    return f"{said} with {kept} weights{options}"
