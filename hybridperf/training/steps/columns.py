"""Columns of tables of training steps: which are read, and which look like one that is read but for
their spelling, or go by another name.

A table may have any other columns. But a header in capitals, cells between semicolons or
"microbatch" would be passed over without a word and each row refused, or worse, predicted by
assumptions. Those that are read: `read_columns.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hybridperf.io import InputError
from hybridperf.io.errors import plain
from hybridperf.training.steps.names import column_called
from hybridperf.training.steps.read_columns import READ

_SIZES = ("hidden", "heads", "layers", "seq", "vocab")
_ALIKE = 0.85  # of difflib's ratio: "microbatch" and "micro_batches", not "sequence"


def misspelt(columns: Iterable[str]) -> dict[str, str]:
    """Columns that are not read, with the column that each is taken for a misspelling of."""
    named = [str(name) for name in columns]
    absent = [name for name in READ if name not in named]
    found = {}
    for name in named:
        if name not in READ:
            called = column_called(name)
            near = difflib.get_close_matches(plain(name), absent, 1, _ALIKE)
            if called in absent or near:
                found[name] = called if called in absent else near[0]
    return found


def check_columns(columns: Iterable[str]) -> None:
    """`InputError` for a table no row of which can name its model."""
    named = [str(name) for name in columns]
    derived = {"seq"} if {"image", "patch"} <= set(named) else set()
    if "model" in named or set(_SIZES) - derived <= set(named):
        return
    pairs = misspelt(named).items()
    near = [f"{wrong!r} for {right!r}" for wrong, right in pairs if right in ("model", *_SIZES)]
    mend = f"rename {', '.join(near)}" if near else "name columns so"
    for sign, what in ((";", "semicolons"), ("\t", "tabs")):
        if len(named) == 1 and sign in named[0]:
            mend = f"separate cells by commas, not {what}"
    have = ", ".join(map(repr, named[:8])) + (", ..." if len(named) > 8 else "")
    raise InputError(
        f"expected a column model, or {', '.join(_SIZES)}, in a table of training steps, got"
        f" {have}; {mend}"
    )
