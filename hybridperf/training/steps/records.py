"""What rows of training steps say, in the columns that are read: unique records of text, and how
their cells are taken as numbers and as yes or no.

Tables of sweeps repeat almost everything: each combination of cells is a record once, whatever
stands in other columns. A table may have any other columns. But a header in capitals, cells between
semicolons or "microbatch" would be passed over without a word and each row refused, or worse,
predicted by assumptions: `misspelt` finds columns that look like one that is read but for their
spelling, or go by another name. Those that are read: `read_columns.py`. Axes: R rows, U records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.io.errors import plain as plain_word
from hybridperf.training.steps import names
from hybridperf.training.steps.names import plain
from hybridperf.training.steps.read_columns import READ

_YES, _NO = ("1", "1.0", "true", "yes", "on"), ("0", "0.0", "false", "no", "off", "none")
_SIZES = ("hidden", "heads", "layers", "seq", "vocab")
_ALIKE = 0.85  # of difflib's ratio: "microbatch" and "micro_batches", not "sequence"


class Refused(Exception):
    """Why a row cannot be predicted."""


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Without Python's search for cycles among many small objects: a fifth of a plan's time, a
    third of that of a table of steps.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclasses.dataclass
class Record:
    """One record with typed values. `notes` fills as things are assumed."""

    said: Mapping[str, str]  # by column; nothing of an empty cell
    notes: list[str] = dataclasses.field(default_factory=list)
    assumed: set[str] = dataclasses.field(default_factory=set)  # columns

    def text(self, field: str) -> str:
        """What stands there, "" for nothing."""
        return self.said.get(field, "")

    def count(self, field: str) -> int | None:
        """A whole number of 1 or more, None for nothing."""
        text = self.said.get(field)
        return None if text is None else _whole(field, text)

    def yes(self, field: str) -> bool | None:
        """Yes or no, None for nothing."""
        text = self.text(field).lower()
        if text in ("", "unknown", "recipe"):
            return None
        if text not in (*_YES, *_NO):
            raise Refused(f"expected yes or no in {field}, got {self.text(field)!r}")
        return text in _YES

    def assume(self, field: str, value: Any) -> Any:
        """`value`, which the row does not give."""
        self.notes.append(f"{field} {value} assumed")
        self.assumed.add(field)
        return value


@functools.lru_cache(65536)
def _whole(field: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 1 or value != int(value):
        given = repr(text) if math.isnan(value) else text.removesuffix(".0")
        raise Refused(f"expected a whole number of 1 or more in {field}, got {given}")
    return int(value)


def unique_records(
    frame: pd.DataFrame, columns: Sequence[str]
) -> tuple[list[dict[str, str]], np.ndarray]:
    """(what rows say in some columns, each combination once [U]; which of it each row says [R])."""
    cells = [(name, *_cells(frame[name])) for name in columns if name in frame]
    of = np.zeros(len(frame), np.int64)
    for _, codes, texts in cells:
        if len(texts):
            of = pd.factorize(of * (len(texts) + 1) + codes + 1)[0]
    _, first = np.unique(of, return_index=True)
    found: list[dict[str, str]] = [{} for _ in first]
    for name, codes, texts in cells:
        for record, code in zip(found, codes[first].tolist(), strict=True):
            if code >= 0 and texts[code]:
                record[name] = texts[code]
    return found, of


def row_names(frame: pd.DataFrame) -> list[str]:
    """How a message calls each row [R]: its place, counted from 1, and its id."""
    if "id" not in frame:
        return [f"row {at}" for at in range(1, len(frame) + 1)]
    codes, texts = _cells(frame["id"])
    shown = [*(f" ({text})" if text else "" for text in texts), ""]
    return [f"row {at}{shown[code]}" for at, code in enumerate(codes.tolist(), 1)]


def positive_numbers(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Numbers above zero of a column [R]; NaN for anything else, and without the column."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    values = pd.to_numeric(frame[name], "coerce").to_numpy(float, na_value=np.nan)
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _cells(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """(which text each row has, -1 for an empty cell [R]; the texts)."""
    if column.dtype == object:  # of equal values, 1 and True, each is what it is written as
        column = pd.Series([None if _empty(one) else str(one) for one in column], dtype=object)
    codes, values = pd.factorize(column)
    return codes, [str(one).strip() for one in values.tolist()]


def _empty(value: Any) -> bool:
    return value is None or value is pd.NA or value != value  # NaN differs from itself


def misspelt(columns: Iterable[str]) -> dict[str, str]:
    """Columns that are not read, with the column that each is taken for a misspelling of."""
    named = [str(name) for name in columns]
    absent = [name for name in READ if name not in named]
    found = {}
    for name in named:
        if name not in READ:
            called = str(names.aliases()["columns"].get(plain(name), ""))
            near = difflib.get_close_matches(plain_word(name), absent, 1, _ALIKE)
            if called in absent or near:
                found[name] = called if called in absent else near[0]
    return found


def check_columns(columns: Iterable[str]) -> None:
    """`InputError` for a table no row of which can name its model, or that says a thing twice."""
    named = [str(name) for name in columns]
    if twice := [name for name in READ if named.count(name) > 1]:
        raise InputError(f"expected each column once, got two of {twice[0]!r}; rename one of them")
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
