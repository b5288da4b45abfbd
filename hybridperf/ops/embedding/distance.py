"""How many different rows lookups touch, how many others before a row is looked up again, and so
which cache still holds it.

Lookups are independent draws from classes of `count` rows of probability `p`, so that a table of
millions of rows is a sum over some hundred classes. T lookups touch D(T) different rows on average,
and a cache that holds C rows (the least recently used gives way) keeps a row for the T_C lookups
that touch C others, D(T_C) = C: Che's approximation. A lookup finds its row if that was looked up
at most T_C lookups ago:

    hit(T) = sum over rows of p (1 - (1 - p)^T)        D(T) = sum over rows of 1 - (1 - p)^T = sum
                                                       of 1 - hit(t) over t below T

Within a batch of n lookups that starts on an empty cache the first T_C lookups have less behind
them, which gives in closed form

    hits = hit(T_C) + (T_C (1 - hit(T_C)) - D(T_C)) / n        and 1 - D(n) / n where the batch's
                                                               rows all fit.

Over endless batches the distance to the last lookup of the same row spreads over orders of
magnitude. `distances` gives the mean of its log and the spread around it, which is what the
roofline's memory levels take. Several tables are looked up one after the other in every batch, so a
row that was last touched b batches ago has b times all that the other tables touch in between.

NumPy columns and JAX tracers pass through alike. Axes: K classes, G grid of elapsed lookups, H
cache sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io.namespace import array_module, root

# elapsed times from one lookup to forty times what the rarest row waits: 1.4 to 2 a step
_GRID = 96
_WAITS = 40.0
_NEWTON_STEPS = 4


@dataclasses.dataclass(frozen=True)
class LookupStream:
    """Lookups of one table in every batch."""

    count: Any  # [K] rows of each class
    p: Any  # [K] probability of each of its rows
    lookups: Any  # [] a batch
    row_bytes: Any  # []
    # [] different rows of a batch where they are known; None: as the classes draw them
    unique: Any = None
    # equal tables that it stands for, looked up one after the other; below one: a part of a table
    alike: float = 1.0


def uniform_unique_rows(lookups: Any, rows: Any) -> Any:
    """Expected different rows among `lookups` uniform draws from `rows` rows."""
    module = array_module(lookups, rows)
    return rows * -module.expm1(lookups * module.log1p(-1.0 / module.maximum(rows, 1.0 + 1e-6)))


def distinct(count: Any, p: Any, lookups: Any) -> Any:
    """D: expected different rows among lookups [...]; `count` rows of probability `p` each [K]."""
    module = array_module(count, p, lookups)
    return module.sum(-count * module.expm1(_log_missed(p, lookups)), -1)


def found(count: Any, p: Any, elapsed: Any) -> Any:
    """Share of lookups of an endless stream whose row came at most `elapsed` [...] lookups ago."""
    module = array_module(count, p, elapsed)
    return module.sum(-count * p * module.expm1(_log_missed(p, elapsed)), -1)


def met(count: Any, p: Any, lookups: float) -> tuple[Any, Any]:
    """Classes of the rows that were met, as a loop over recorded batches draws from them."""
    seen = -array_module(count, p).expm1(_log_missed(p, lookups))
    return count * seen, p / seen


def _log_missed(p: Any, lookups: Any = 1.0) -> Any:
    """Log probability [..., K] that lookups [...] are of other rows; finite for a table's only
    row.
    """
    module = array_module(p, lookups)
    p = module.asarray(p)
    missed = module.log1p(-module.minimum(p, 1 - module.finfo(p.dtype).eps))
    return missed * module.asarray(lookups)[..., None]


def hits(count: Any, p: Any, lookups: Any, held_rows: Any) -> Any:
    """Share of a batch's lookups [H] found in a cache of `held_rows` [H] rows, empty at first."""
    module = array_module(count, p, lookups, held_rows)
    held = module.asarray(held_rows)
    touched = distinct(count, p, lookups)
    at = _elapsed(count, p, module.clip(held, 1.0, None))
    hit = found(count, p, at)
    some = hit + (at * (1.0 - hit) - distinct(count, p, at)) / lookups
    share = module.where(held >= touched, 1.0 - touched / lookups, module.clip(some, 0.0, 1.0))
    return module.where(held < 1, 0.0, share)


def _elapsed(count: Any, p: Any, held: Any) -> Any:
    """T_C: lookups that touch `held` [H] different rows."""
    module = array_module(count, p, held)
    grid = module.exp(module.linspace(0.0, 1.0, _GRID) * module.log(_WAITS / module.min(p)))
    log_t = module.interp(module.log(held), module.log(distinct(count, p, grid)), module.log(grid))
    # D is concave in T: from below Newton does not overshoot, from just above it comes back below
    for _ in range(_NEWTON_STEPS):
        t = module.exp(log_t)
        missed = module.exp(_log_missed(p, t))
        slope = module.maximum(module.sum(-count * _log_missed(p) * missed, -1), 1e-30)
        step = (held - distinct(count, p, t)) / (slope * t)
        log_t = log_t + module.clip(step, -1.0, 1.0)
    return module.exp(module.clip(log_t, 0.0, module.log(grid[-1])))


def recorded_hits(times: np.ndarray, count: np.ndarray, fraction: float, held_rows: Any) -> Any:
    """Share of a batch's lookups [...] found in a cache of `held_rows` [...] rows that is empty at
    first, of rows that were counted.

    `count` [K] rows were looked up `times` [K] in a record; the batch keeps each lookup with
    probability `fraction` = f, in random order. A share x of the batch touches D(x) = sum of 1 - (1
    - f x)^times rows, and a row comes back within it

        times f (1 - (1 - x) (1 - f x)^(times - 1)) - 1 + (1 - f x)^times        times on average,

    exact for positions that are independent; the cache keeps a row for the share that touches as
    many rows as it holds.
    """
    module = array_module(held_rows)
    held = module.asarray(held_rows)

    def left(x: Any, powers: Any) -> Any:
        return (1.0 - fraction * module.asarray(x)[..., None]) ** powers

    def touched(x: Any) -> Any:
        return module.sum(count * (1.0 - left(x, times)), -1)

    lookups = fraction * float(times @ count)
    grid = np.geomspace(min(0.5 / lookups, 0.5), 1.0, _GRID)
    log_held = module.log(module.maximum(held, 1e-9))
    x = module.exp(module.interp(log_held, module.log(touched(grid)), np.log(grid)))
    for _ in range(_NEWTON_STEPS):
        slope = module.sum(count * times * fraction * left(x, times - 1), -1)
        x = module.clip(x + (held - touched(x)) / module.maximum(slope, 1e-30), 0.0, 1.0)
    alone = (1.0 - x[..., None]) * left(x, times - 1)
    back = times * fraction * (1.0 - alone) - 1.0 + left(x, times)
    return module.where(held < 1, 0.0, module.sum(count * back, -1) / lookups)


def distances(
    streams: Sequence[LookupStream], own: int | None = None, again: bool = False
) -> tuple[Any, Any]:
    """(geometric mean of the bytes touched between two lookups of a row, standard deviation of
    their log), over endless batches.

    Of the lookups of the first `own` streams alone (None: all), among those of the others. `again`:
    the batch's rows were all touched once before, as by the look-up whose gradients they now take:
    no more than a batch's rows lie between.
    """
    arrays = [value for s in streams for value in (s.count, s.p, s.lookups, s.row_bytes)]
    module = array_module(*arrays)
    # elapsed batches [G], geometric: from one lookup to long after the rarest row's turn
    first = module.min(module.stack([1.0 / module.asarray(s.lookups * 1.0) for s in streams]))
    waits = [_WAITS / (module.min(module.asarray(s.p)) * s.lookups) for s in streams]
    last = module.max(module.stack(waits))
    batches = first * module.exp(module.linspace(0.0, 1.0, _GRID) * module.log(last / first))
    touched = [
        distinct(s.count, s.p, batches * s.lookups) * s.row_bytes * min(s.alike, 1.0)
        for s in streams
    ]
    together = sum(t * max(s.alike, 1.0) for t, s in zip(touched, streams, strict=True))
    most = np.inf
    if again:
        drawn = [
            distinct(s.count, s.p, s.lookups) if s.unique is None else s.unique for s in streams
        ]
        of_each = zip(drawn, streams, strict=True)
        most = module.log(sum(rows * s.row_bytes * s.alike for rows, s in of_each))
    # a row that was touched less than a batch ago was so, as likely, in this one
    apart = module.minimum(batches, 1.0)
    weight, mean, square = 0.0, 0.0, 0.0
    for stream, alone in zip(streams[:own], touched[:own], strict=True):
        log_bytes = module.log(module.maximum(alone + apart * (together - alone), stream.row_bytes))
        log_bytes = module.minimum(log_bytes, most)
        held = found(stream.count, stream.p, batches * stream.lookups)
        # what comes later, or never, counts as the last
        ends = module.concatenate([module.zeros(1), held, module.ones(1)])
        share = stream.alike * stream.lookups * (ends[1:] - ends[:-1])
        middle = (log_bytes[1:] + log_bytes[:-1]) / 2
        middle = module.concatenate([log_bytes[:1], middle, log_bytes[-1:]])
        weight = weight + module.sum(share)
        mean = mean + module.sum(share * middle)
        square = square + module.sum(share * middle**2)
    mean, square = mean / weight, square / weight
    return module.exp(mean), root(module.maximum(square - mean**2, 0.0))
