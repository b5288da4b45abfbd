"""A table in pieces that are placed like tables: by rows or by columns.

row      k pieces of rows / k each, dealt out as in `embedding/pieces.py`: each row keeps its
         lookups, the first piece has the hottest rows and so the most lookups; every piece makes
         partial sums of all columns, so k times the bytes go all-to-all
column   k pieces of dim / k each, all lookups in each: indices are read k times, bytes of pooled
         rows stay what they were

Columns of a piece are read by all lookups again, rows of a piece make partial sums that travel:
which of them pays, if any, where one table holds a placement up, depends on the table, the links
and the device. Splits are tried, not guessed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hybridperf.explore.sharding import greedy, local
from hybridperf.explore.sharding.cost import PlacementCost
from hybridperf.explore.sharding.fused import KernelPricer
from hybridperf.io import InputError, unknown
from hybridperf.ops.embedding import Table, row_pieces, table_bytes

KINDS = ("row", "column")
_FINER = (2, 4)  # times as many pieces as now
_MOST_PIECES = 4096  # each is priced and placed; more than any rank holds
_WORTHWHILE = 0.98  # of the step as it is


def pieces(table: Table, kind: str, count: int) -> list[Table]:
    """`count` pieces of a table by one of `KINDS`; columns are dealt out as evenly as possible."""
    if kind not in KINDS:
        raise unknown(f"split of table {table.name}", kind, KINDS, f"known are {', '.join(KINDS)}")
    have = int(table.rows if kind == "row" else table.dim)
    most = min(have, _MOST_PIECES)
    if not 1 <= count <= most:
        expected = f"expected 1 to {most} pieces of it by {kind}, got {count}"
        raise InputError(f"table {table.name} has {have} {kind}s, {expected}")
    names = [f"{table.name}/{kind}{at + 1}of{count}" for at in range(count)]
    if kind == "row":
        parts = zip(names, row_pieces(table, count), strict=True)
        return [dataclasses.replace(piece, name=name) for name, piece in parts]
    widths = [float(most // count + (at < most % count)) for at in range(count)]
    columns = zip(names, widths, strict=True)
    return [dataclasses.replace(table, name=name, dim=width) for name, width in columns]


def least_pieces(table: Table, limit_bytes: float, optimizer: str) -> int:
    """Into how many a table must be split for one to fill at most half of a rank."""
    return max(2, math.ceil(table_bytes(table, optimizer) / (limit_bytes / 2)))


def split(
    tables: Sequence[Table], splits: Mapping[str, str], limit_bytes: float, optimizer: str
) -> tuple[list[Table], list[str]]:
    """(pieces and whole tables, the table each is of); `splits` by table: `row` or `row:4`."""
    names = [table.name for table in tables]
    for name in splits:
        if name not in names:
            more = ", ..." if len(names) > 8 else ""
            raise unknown("table", name, names, f"there are {', '.join(names[:8])}{more}")
    out, owners = [], []
    for table in tables:
        made = [table]
        if table.name in splits:
            how = splits[table.name]
            kind, _, number = how.partition(":")
            if number and not number.isdecimal():
                expected = "expected a split such as row:4"
                raise InputError(f"table {table.name}: {expected}, got {how!r}")
            count = int(number) if number else least_pieces(table, limit_bytes, optimizer)
            made = pieces(table, kind, count)
        out += made
        owners += [table.name] * len(made)
    for name, owner in zip((table.name for table in out), owners, strict=True):
        if name != owner and name in names:
            raise InputError(f"table {name} has the name of a piece of table {owner}; rename it")
    return out, owners


class SplitTables(NamedTuple):
    """Tables in pieces, and what placements of them cost."""

    pieces: Sequence[Table]
    owners: Sequence[str]
    cost: PlacementCost
    fused: KernelPricer


class SplitAdvice(NamedTuple):
    """A split that makes the step shorter, as `--split` takes it."""

    how: str
    step_s: float


def better_split(
    cut: Callable[[Mapping[str, str]], SplitTables],
    splits: Mapping[str, str],
    owner: str,
    pieces: int,
    batch: float,
    step_s: float,
) -> SplitAdvice | None:
    """The best finer split of a table now in `pieces`; None where none helps noticeably."""
    found = []
    for kind in KINDS:
        for finer in _FINER:
            how = f"{kind}:{finer * pieces}"
            try:
                step = _step_s(cut({**splits, owner: how}), batch)
            except InputError:  # more pieces than it has rows or columns
                continue
            if step is not None and step < _WORTHWHILE * step_s:
                found.append(SplitAdvice(f"{owner}={how}", step))
    return min(found, key=lambda one: one.step_s, default=None)


def _step_s(made: SplitTables, batch: float) -> float | None:
    """Seconds of the best greedy placement, polished; None where none has room."""
    ruled = (greedy.by_rule(rule, made.cost, made.pieces, batch) for rule in greedy.GREEDY)
    starts = [one for one in ruled if one is not None]
    if not starts:
        return None
    best = local.polish(made.cost, min(starts, key=made.cost.step_s))
    return None if best.over_bytes else float(made.fused.parts(best.placement).step_s)
