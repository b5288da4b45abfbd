"""The best layouts of a space too large to price: branch and bound over partial layouts.

A partial layout (`space.py`) says what a layer does, so that its completions, by schedule, chunks,
ZeRO stage and order, share a lower bound:

    stage    (depth / p) layer, of a stage that is alone with embedding and head: one of p stages
             has so many layers, and m micro-batches go through it one after the other
    sum      depth layer + embedding and head: all stages
    seconds  >= m stage
             >= sum + (m - 1) floor(depth / p) layer    1F1B, GPipe: the last stage ends last
             >= m stage + (sum - stage) / v             interleaved, of v chunks at most; where the
                                                        backward pass is split as if of endless ones

`layer` is the least over the nodes that its groups can lie on, with gathers of sharded weights,
reductions and the optimizer left out (`compose.least_seconds`). Completions are priced in
the order of their bounds, piece by piece, until the next bound is above the worst layout that is
kept: what is left out is proved to be no better. So the layouts that are found do not hang on who
prices which piece, or when.

Axes: G partial layouts that may fit, C cells, B base layouts, N layouts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hybridperf.engine.closed import least_seconds
from hybridperf.engine.economy import Economy, score
from hybridperf.engine.step_features import BlockPrices, StepFeatures, StepParts
from hybridperf.io import workers as workers_of_dask
from hybridperf.model.step_effects import slowest_of
from hybridperf.training.plans import costs
from hybridperf.training.plans.progress import Progress
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.plans.space import (
    LayoutSpace,
    PartialLayouts,
    bounding_chunks,
    by_rule_of_thumb,
    joined,
    laid_out,
    unique_rows,
)
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.layout import Layouts

REACH = 1.5  # times the memory there is: layouts that more of it would admit are bounded, too
_FIRST, _PIECE = 2**11, 2**16  # base layouts that are priced together: of the first piece, at most
_ROUNDING = 1e-9  # of a bound: the same terms are added in another order


@dataclasses.dataclass(frozen=True)
class BoundedLayouts:
    """Partial layouts that may fit into `REACH` times the memory, with their bounds."""

    setup: TrainingSetup
    partial: PartialLayouts
    progress: Progress = dataclasses.field(default_factory=Progress)

    @functools.cached_property
    def at(self) -> np.ndarray:
        """Their places in `partial`, int [G]."""
        least_bytes = _least_bytes(self.setup, self.partial, self.progress)
        return np.flatnonzero(least_bytes <= REACH * self.setup.capacity_bytes)

    @functools.cached_property
    def least(self) -> StepParts:
        """Bounds of a step and of computing [G]; the other parts are zero."""
        x = Layouts(*(column[self.at] for column in self.partial.columns))
        if not len(self.at):
            return StepParts(*[np.zeros(0)] * len(StepParts._fields))
        # with all nodes that groups of their layers can lie on, in rows
        space = laid_out(self.partial, x, self.progress, costs.PLACED)
        begin = np.flatnonzero(np.diff(space.base_of, prepend=-1))
        found = least_parts(self.setup, space, self.partial.most_chunks[self.at], self.progress)
        return StepParts(*(np.minimum.reduceat(one, begin) for one in found))


def least_parts(
    setup: TrainingSetup, space: LayoutSpace, chunks: np.ndarray, progress: Progress | None = None,
    threads: int = costs.THREADS,
) -> StepParts:  # fmt: skip
    """Bounds of all layouts of a space [N], with so many chunks of a stage at most [B]."""
    of, depth = space.base_of, space.shape.depth
    layer_s, outer_s, work_s = _block_seconds(setup, space, progress or Progress(), threads)
    p, m, v = space.base.pp[of], space.base.accumulation[of], chunks[of]
    # in pairs of passes messages of experts may hide
    hides = np.isinf(v) & (space.base.ep[of] > 1) & (space.base.cp[of] == 1)
    layer_s = np.where(hides, work_s, layer_s)
    even = setup.template.stage_split == "even"
    layers = depth // p if even else np.where(p == 1, depth, 0)  # of any stage, at least
    stage_s = depth / p * layer_s + np.where(p == 1, outer_s, 0.0)
    sum_s = depth * layer_s + outer_s
    plain_s = sum_s + (m - 1) * layers * layer_s
    filled_s = m * stage_s + (sum_s - stage_s) / v
    step_s = np.maximum(m * stage_s, np.minimum(plain_s, filled_s)) * (1 - _ROUNDING)
    step_s, work_s = step_s + setup.adapted.effects.fixed_s, m * layers * work_s * (1 - _ROUNDING)
    return StepParts(step_s, work_s, *[0.0 * step_s] * (len(StepParts._fields) - 2))


def _least_bytes(setup: TrainingSetup, partial: PartialLayouts, progress: Progress) -> np.ndarray:
    """Memory that no completion of a partial layout takes less of.

    1F1B without chunks keeps the fewest micro-batches; each ZeRO stage shards more than the one
    before, and only the last keeps whole layers besides.
    """
    x, found = partial.columns, np.full(len(partial), np.inf)
    for zero in sorted(partial.allowed.get("zero", range(4)))[-2:]:
        one = x._replace(zero=np.full(len(partial), zero))
        found = np.minimum(found, costs.bytes_of(setup, one, progress=progress))
    return found


def _block_seconds(
    setup: TrainingSetup, space: LayoutSpace, progress: Progress, threads: int
) -> tuple[np.ndarray, ...]:
    """`compose.LeastSeconds` of all rows of a space [N]."""
    x, rows = space.base, space.base_of
    of_layer = (x.tp, x.cp, x.ep, x.expert_tp, x.sequence_parallel, x.micro_batch, x.recompute)
    first, of = unique_rows(
        *(column[rows] for column in of_layer),
        np.minimum(x.accumulation, 2)[rows],
        *space.nodes(costs.PLACED),
    )
    cells, inputs, tp_nodes = costs.cells_of(setup, space, first, progress)
    setup.prices.seconds(cells.calls)
    pieces, adapted = cells.pieces(setup.prices), setup.adapted
    names = {field.name for field in dataclasses.fields(StepFeatures)} - {"pace"}
    tp = x.tp[rows[first]].astype(float)
    waiting = float(does(setup.framework, "ring_waits"))
    slowest = np.array([slowest_of(space.gpus)])
    found = np.empty((3, len(cells)))

    def one(piece: slice) -> None:
        blocks = [BlockPrices(*fields) for fields in cells.sums(pieces, piece)]
        known: dict[str, Any] = dict.fromkeys(names, np.zeros(1))
        known |= dict(zip(("layer", "embedding", "head"), blocks, strict=True))
        known |= {"tp": tp[piece], "tp_nodes": tp_nodes[piece], "waiting": waiting + 0 * tp[piece]}
        known["slowest"] = slowest
        logs = adapted.logs(inputs[piece]) if len(adapted.cells) else ()
        found[:, piece] = least_seconds(StepFeatures(**known), adapted.effects, *logs)

    costs.in_pieces(one, len(cells), threads, "seconds of layers", progress)
    return tuple(one[of] for one in found)


class Kept(NamedTuple):
    """Layouts of a piece that may be among the best."""

    space: LayoutSpace
    score: np.ndarray  # [N]


@dataclasses.dataclass(frozen=True)
class Search:
    """Which layouts are searched for: the best by an objective, in some memory."""

    bounded: BoundedLayouts
    objective: str
    rates: Economy
    count: int
    most_bytes: float  # that they take
    least_bytes: float = 0.0  # and more than these
    most: float = np.inf  # of the objective

    @functools.cached_property
    def bounds(self) -> np.ndarray:
        """What no completion is better than [G]."""
        return self._scores(self.bounded.least)

    @functools.cached_property
    def pieces(self) -> list[np.ndarray]:
        """Partial layouts by rising bound, cut so that their completions are priced together.

        The first piece is small, each other twice the one before: what is found soon rules out
        most of the others.
        """
        order = np.argsort(self.bounds, kind="stable")
        ends = np.cumsum(self.bounded.partial.completions[self.bounded.at[order]])
        doublings = math.ceil(math.log2(max(_PIECE / _FIRST, 1)))
        count = doublings + 1 + int(ends.max(initial=0)) // _PIECE
        limits = np.cumsum(np.minimum(_FIRST * 2.0 ** np.arange(count), _PIECE))
        piece = np.searchsorted(limits, ends, side="right")
        return np.split(order, np.flatnonzero(np.diff(piece)) + 1)

    def _scores(self, parts: StepParts) -> np.ndarray:
        one = self.bounded.partial
        tokens = float(one.global_batch * one.shape.seq)
        return score(self.objective, self.rates, parts, one.gpus, tokens)

    def priced(self, piece: int, most: float, threads: int = costs.THREADS) -> Kept:
        """The layouts of a piece whose score is at most so much."""
        partial, order = self.bounded.partial, self.pieces[piece]
        near = order[self.bounds[order] <= most]
        return self._kept(partial.bases(self.bounded.at[near]), most, threads)

    def _kept(self, base: Layouts, most: float, threads: int = costs.THREADS) -> Kept:
        setup, partial = self.bounded.setup, self.bounded.partial
        needed = costs.bytes_of(setup, base, threads)
        some = (needed > self.least_bytes) & (needed <= self.most_bytes)
        space = laid_out(partial, Layouts(*(column[some] for column in base)))
        if not len(space):
            return Kept(space, np.zeros(0))
        rows = np.arange(len(space))
        if most < np.inf:
            chunks = bounding_chunks(space.base.vp, space.base.schedule)
            least = self._scores(least_parts(setup, space, chunks, threads=threads))
            rows = np.flatnonzero(least <= most)
        if not len(rows):
            return Kept(joined([(space, rows)]), np.zeros(0))
        found = self._scores(
            costs.times(costs.SpaceColumns.of(setup, space, rows), setup, threads=threads)
        )
        near = found <= most
        return Kept(joined([(space, rows[near])]), found[near])

    def best(self, workers: int | None = None, scheduler: str | None = None) -> list[Kept]:
        """The best layouts by piece, ties of the last one among them."""
        found, most = dict[int, Kept](), self.most
        pieces, progress = self.pieces, self.bounded.progress  # workers get what is known of both

        def tasks() -> Iterator[tuple[int, float]]:
            for piece, members in enumerate(pieces):
                if not len(members) or self.bounds[members[0]] > most:
                    return
                yield piece, most

        def results() -> Iterator[tuple[int, Kept]]:
            waiting = tasks()
            for piece, limit in waiting:
                yield piece, self.priced(piece, limit)
                if most < np.inf and (workers is not None or scheduler is not None):
                    break  # workers begin once something rules layouts out
            if (first := next(waiting, None)) is not None:
                left = itertools.chain([first], waiting)
                yield from workers_of_dask.each(
                    _on_worker, (self,), left, "plan", workers, scheduler, large=True
                )

        for piece, kept in results():
            found[piece] = kept
            every = np.concatenate([one.score for one in found.values()])
            if len(every) > self.count:
                most = min(most, float(np.partition(every, self.count - 1)[self.count - 1]))
                found = {at: _where(one, one.score <= most) for at, one in found.items()}
            progress("pieces of layouts that may be among the best", len(found), len(pieces))
        return [found[piece] for piece in sorted(found)]

    def priced_best(
        self, workers: int | None = None, scheduler: str | None = None
    ) -> tuple[costs.PricedSpace | None, int]:
        """(the best layouts, and those by the rule of thumb, priced; base layouts ruled out)."""
        kept = self.best(workers, scheduler)
        scored = np.concatenate([np.zeros(0), *(one.score for one in kept)])
        most = float(scored.max()) if len(scored) >= self.count else np.inf
        setup, partial = self.bounded.setup, self.bounded.partial
        found = [*kept, self.naive(most)]
        space = joined([(one.space, np.arange(len(one.space))) for one in found])
        ruled_out = int(partial.completions[self.bounded.at[self.bounds > most]].sum())
        if not len(space):
            return None, ruled_out
        return costs.price_space(setup, space, progress=self.bounded.progress), ruled_out

    def naive(self, most: float) -> Kept:
        """Layouts nearest to the rule of thumb, where they are worse than all that were kept."""
        partial, setup = self.bounded.partial, self.bounded.setup
        x = partial.columns
        base = partial.bases(np.flatnonzero((x.cp == 1) & (x.ep == 1) & (x.micro_batch == 1)))
        fits = costs.bytes_of(setup, base) <= self.most_bytes
        base = Layouts(*(column[fits] for column in base))
        first = by_rule_of_thumb(base, partial.gpus_per_node)
        kept = self._kept(Layouts(*(column[first] for column in base)), np.inf)
        return _where(kept, kept.score > most)


def _where(kept: Kept, some: np.ndarray) -> Kept:
    if some.all():
        return kept
    rows = np.flatnonzero(some)
    return Kept(joined([(kept.space, rows)]), kept.score[rows])


def _on_worker(search: Search, piece: int, most: float, cores: list[int] | None) -> Kept:
    workers_of_dask.pin(cores)
    return search.priced(piece, most, threads=1)
