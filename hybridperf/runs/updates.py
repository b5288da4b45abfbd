"""How often workers that differ update a model, and which share of the work each should have.

Seconds of a worker's iteration come from the engine (`hp.predict`, `hp.unlike`); what follows is
how iterations interlock. Axes: n workers, I iterations; c_i seconds of a worker's iteration.

    synchronous     all wait for the slowest: a round takes max c_i
    bounded stale   a worker may be s iterations ahead of the slowest (Ho et al., NIPS 2013): its
                    k-th, from 0, ends at max((k + 1) c_i, (k - s) max c + c_i)
    asynchronous    none waits: sum 1 / c_i updates a second
    tiers           synchronous within a tier, asynchronous among tiers (Chai et al., FedAT, SC
                    2021): sum over tiers of 1 / max c_i
    shares          b_i samples take a_i + b_i s_i: the least maximum is where all that take part
                    end together, T = (B + sum a_i / s_i) / sum 1 / s_i over those with a_i < T
    accumulation    k micro-batches a step take k t + max(0, r - h): an all-reduce of r, of which h
                    hides (Lin et al., 2020, multi-node BERT)

`iterations` is the same as a graph of the engine: what the closed forms are tested against, and
what answers where seconds vary from iteration to iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from hybridperf.engine.evaluate import Timeline, timeline
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.lower import lower
from hybridperf.io import InputError


def iterations(seconds: ArrayLike, staleness: int | None = 0) -> np.ndarray:
    """When each iteration of each worker ends [n, I], by the engine's graph.

    Args:
        seconds: of each iteration [n, I].
        staleness: iterations that a worker may be ahead of the slowest: 0 is synchronous; None: any
            number, which is asynchronous.
    """
    table = np.asarray(seconds, float)
    if table.ndim != 2 or not table.size or not (np.isfinite(table) & (table >= 0)).all():
        raise InputError("expected seconds of iterations as numbers of zero or more [workers, I]")
    if staleness is not None and staleness < 0:
        raise InputError(f"expected a staleness of 0 or more, got {staleness}")
    workers, count = table.shape
    builder, nodes, done = GraphBuilder(), np.empty(table.shape, int), list[int]()
    for at in range(count):
        before = at - 1 - staleness if staleness is not None else -1
        after = done[before : before + 1] if before >= 0 else []
        for worker in range(workers):
            nodes[worker, at] = builder.op(1 + worker * count + at, rank=worker, after=after)
        # reached when all have ended this iteration
        done.append(builder.op(0, rank=workers, stream=f"end {at}", after=nodes[:, at].tolist()))
    found: Timeline = timeline(lower(builder.build()), table.ravel())
    return found.end_s[nodes]


def updates_per_s(iteration_s: ArrayLike, tiers: Sequence[int] | None = None) -> float:
    """Updates a second of steady workers: asynchronous, or by tiers.

    Args:
        iteration_s: of each worker, computation and messages [n].
        tiers: which tier each worker is in [n]; None: each is its own.
    """
    each_s = _positive(iteration_s, "seconds of iterations")
    if tiers is None:
        return float((1 / each_s).sum())
    if len(tiers) != len(each_s):
        raise InputError(f"expected a tier for each of {len(each_s)} workers, got {len(tiers)}")
    of = np.asarray(tiers)
    return float(sum(1 / each_s[of == tier].max() for tier in np.unique(of)))


def best_shares(
    per_sample_s: ArrayLike, batch: float, fixed_s: ArrayLike = 0.0, *, whole: bool = True
) -> tuple[np.ndarray, float]:
    """The share of a batch for each worker that ends a step soonest, and when that is.

    Args:
        per_sample_s: of each worker [n].
        batch: samples of all workers.
        fixed_s: of each worker's step, whatever its share [n].
        whole: only whole samples; exact then, too: the next one goes to who ends it first.

    Returns:
        Samples of each worker [n] and seconds.
    """
    slope = _positive(per_sample_s, "seconds a sample")
    fixed = np.broadcast_to(np.asarray(fixed_s, float), slope.shape)
    if not (np.isfinite(fixed) & (fixed >= 0)).all():
        raise InputError("expected fixed seconds of zero or more")
    if not (np.isfinite(batch) and batch > 0) or (whole and batch != int(batch)):
        raise InputError(f"expected a batch of {'whole ' * whole}samples above zero, got {batch!r}")
    order = np.argsort(fixed)
    end_s = (batch + np.cumsum((fixed / slope)[order])) / np.cumsum((1 / slope)[order])
    # the last that begins before those ahead of it have ended
    last = int(np.flatnonzero(fixed[order] < end_s)[-1])
    share = np.maximum((end_s[last] - fixed) / slope, 0.0)
    if not whole:
        return share, float(end_s[last])
    share = np.floor(share * (1 + 1e-12))
    for _ in range(int(batch - share.sum())):
        share[np.argmin(fixed + (share + 1) * slope)] += 1
    return share, float((fixed + share * slope)[share > 0].max())


def accumulation(
    micro_batch_s: float, reduce_s: float, hidden_s: float = 0.0, share: float = 0.1
) -> int:
    """Least micro-batches a step of which the exposed all-reduce takes at most a share.

    Args:
        micro_batch_s: forward and backward of one.
        reduce_s: of the gradients' all-reduce.
        hidden_s: of it beside the last backward pass.
        share: of the step, above 0 and below 1.
    """
    if not (micro_batch_s > 0 and reduce_s >= 0 and hidden_s >= 0 and 0 < share < 1):
        raise InputError(
            "expected seconds of zero or more, of a micro-batch above zero, and a share between 0"
            f" and 1; got {micro_batch_s:g}, {reduce_s:g}, {hidden_s:g}, {share:g}"
        )
    exposed_s = max(reduce_s - hidden_s, 0.0)
    return max(1, math.ceil(exposed_s * (1 / share - 1) / micro_batch_s * (1 - 1e-12)))


def _positive(values: ArrayLike, what: str) -> np.ndarray:
    found = np.atleast_1d(np.asarray(values, float))
    if found.ndim != 1 or not (np.isfinite(found) & (found > 0)).all():
        raise InputError(f"expected {what} above zero, a number for each worker")
    return found
