"""A table whose rows are dealt out in pieces: who holds which rows, and what share of the lookups
goes there.

Rows are dealt out in the order of how often they are looked up: piece j of k (from 1) holds the
rows of rank j, j + k, j + 2k, ... Each row keeps its lookups, so all pieces together meet as many
different rows as the whole table, and the first piece, with the hottest row, has the most lookups.

Zipf         (j + i k + shift)^-s for i = 0, 1, ... is k^-s (1 + i + shift_j)^-s with shift_j = (j +
             shift) / k - 1: Zipf-Mandelbrot again; a piece's share of the lookups is its share of
             the sum of these weights
Indices      the lookups of the rows that are dealt to it
Histogram    rows are not told apart: the same histogram, 1 / k of the lookups
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from hybridperf.io.errors import InputError
from hybridperf.ops.embedding.access import Access, Histogram, Indices, Zipf
from hybridperf.ops.embedding.table import Table
from hybridperf.ops.embedding.unique import zipf_weight

_LEAST_SHARE = 1e-12  # a piece that nobody looks into is a table all the same


def row_pieces(table: Table, count: int) -> list[Table]:
    """`count` tables with a table's rows between them, the first with the hottest."""
    if not 1 <= count <= table.rows:
        expected = f"expected 1 to {table.rows:g} pieces of it by row, got {count}"
        raise InputError(f"table {table.name} has {table.rows:g} rows, {expected}")
    if count == 1:
        return [table]
    whole = float(table.rows)
    rows = [whole // count + float(at < whole % count) for at in range(count)]
    shares = [n / whole for n in rows]
    made: list[tuple[Any, Access]]  # share of the lookups, how they fall
    match table.access:
        case Zipf(exponent, shift):
            shifts = [(at + 1 + shift) / count - 1 for at in range(count)]
            pairs = list(zip(rows, shifts, strict=True))
            weights = [zipf_weight(n, exponent, one, shifts[0]) for n, one in pairs]
            total = sum(weights)
            parts = [weight / total + _LEAST_SHARE for weight in weights]
            made = [(part, Zipf(exponent, one)) for part, one in zip(parts, shifts, strict=True)]
        case Indices(values):
            made = _recorded(table, np.asarray(values).ravel(), count)
        case Histogram(histogram, mean_reuse, lookups):
            counted = [None if lookups is None else lookups * n / whole for n in rows]
            accesses = [Histogram(histogram, mean_reuse, one) for one in counted]
            made = list(zip(shares, accesses, strict=True))
        case access:
            made = [(share, access) for share in shares]
    return [
        dataclasses.replace(table, rows=n, pooling=table.pooling * share, access=access)
        for n, (share, access) in zip(rows, made, strict=True)
    ]


def _recorded(table: Table, values: np.ndarray, count: int) -> list[tuple[Any, Access]]:
    """The recorded lookups of each piece, its rows numbered again from zero."""
    met, place, times = np.unique(values, return_inverse=True, return_counts=True)
    if len(met) < count:
        few = f"its recorded lookups are of {len(met)} rows, too few for {count} pieces by row"
        raise InputError(f"table {table.name}: {few}; split it in fewer")
    rank = np.empty(len(met), np.int64)
    rank[np.argsort(-times, kind="stable")] = np.arange(len(met))
    of = rank[place.ravel()]
    masks = [of % count == at for at in range(count)]
    return [(mine.mean(), Indices(of[mine] // count)) for mine in masks]
