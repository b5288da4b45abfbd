"""Columns of tables of training steps: which are read, and which look like one that is read but for
their spelling, or go by another name.

A table may have any other columns. But a header in capitals, cells between semicolons or
"microbatch" would be passed over without a word and each row refused, or worse, predicted by what
is assumed where nothing is said.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hybridperf.io import InputError
from hybridperf.io.errors import plain
from hybridperf.training.steps.names import column_called

READ = (
    "id", "source", "framework", "model", "family", "hidden", "heads", "layers", "ffn", "vocab",
    "seq", "kv_heads", "head_dim", "experts", "topk", "decoder_layers", "image", "patch", "gpu",
    "n_gpus", "gpus_per_node", "section", "system_detail", "tp", "pp", "vp", "dp", "cp", "ep",
    "seq_parallel", "sharding", "micro_batch", "grad_accum", "global_batch", "precision",
    "recompute", "schedule", "offload", "step_time_s", "status",
)  # fmt: skip
_SIZES = ("hidden", "heads", "layers", "seq", "vocab")
_ALIKE = 0.85  # of difflib's ratio: "microbatch" and "micro_batches", not "sequence"


def misspelt(columns: Iterable[str]) -> dict[str, str]:
    """Columns that are not read, by their name, with the column that each is taken for a
    misspelling of.
    """
    named = [str(name) for name in columns]
    absent = [name for name in READ if name not in named]
    found = {}
    for name in named:
        if name in READ:
            continue
        called = column_called(name)
        near = (
            [called]
            if called in absent
            else difflib.get_close_matches(plain(name), absent, 1, _ALIKE)
        )
        if near:
            found[name] = near[0]
    return found


def check_columns(columns: Iterable[str]) -> None:
    """`InputError` for a table no row of which can say its model."""
    named = [str(name) for name in columns]
    if "model" in named or set(_SIZES) - (
        {"seq"} if {"image", "patch"} <= set(named) else set()
    ) <= set(named):
        return
    near = "".join(
        f", {wrong!r} for {right!r}"
        for wrong, right in misspelt(named).items()
        if right in ("model", *_SIZES)
    )
    separator = next(
        (
            word
            for sign, word in ((";", "semicolons"), ("\t", "tabs"))
            if len(named) == 1 and sign in named[0]
        ),
        "",
    )
    mend = (
        f"separate cells by commas, not {separator}"
        if separator
        else f"rename{near[1:]}"
        if near
        else "name columns so"
    )
    have = ", ".join(map(repr, named[:8])) + (", ..." if len(named) > 8 else "")
    raise InputError(
        f"expected a column model, or {', '.join(_SIZES)}, in a table of training steps, got"
        f" {have}; {mend}"
    )
