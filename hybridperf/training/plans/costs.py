"""Time and memory of all layouts of a space: what is unique is priced once and put together by
index, then the closed composition of a step and the counts of memory, chunk by chunk on a few
threads.

Some things make up a row's features, each with a key of small whole numbers, and one representative
layout for each key:

    cell      a layer, embedding and head: tp, cp, ep, sequence parallelism, micro-batch, recompute,
              and on how many nodes its groups lie; put together of pieces that many cells share
    shards    gathers of sharded weights: ZeRO stage, tp, ep, and where the shards lie; of one
              number of GPUs this tells pp, too
    once      once a step: reductions, optimizer, stages
    message   from stage to stage: micro-batch, and whether stages lie on several nodes

`steps.features` prices the representatives, all of them together. Columns are NumPy's, whose loops
let go of Python's lock: two threads keep two cores busy. Axes: C cells, N layouts of a space, B
base layouts, M layouts that are priced, n of a chunk of these, P passes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hybridperf.engine import step_features
from hybridperf.engine.closed import step_seconds
from hybridperf.model.step_effects import StepEffects
from hybridperf.training.plans.progress import Progress
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.plans.space import LayoutSpace, Place, unique_rows
from hybridperf.training.steps.cells import (
    Cells,
    PieceTerms,
    piece_numbers,
    pieces_alike,
    slots,
)
from hybridperf.training.steps.features import Sums, row_columns
from hybridperf.workloads.memory import memory_of
from hybridperf.workloads.schedules.pace import pace
from hybridperf.workloads.transformer.columns import (
    BY_FILL,
    FOLDED,
    FORWARDS_FIRST,
    IN_PAIRS,
    SCHEDULES,
    TWO_PIPES,
)
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layouts

# by schedule, whether it is so: 1 or 0
_FORWARDS_FIRST, _FOLDED, _SCHEDULED, _IN_PAIRS = (
    np.isin(np.arange(len(SCHEDULES)), codes).astype(float)
    for codes in (FORWARDS_FIRST, FOLDED, TWO_PIPES + BY_FILL, IN_PAIRS)
)
PLACED = ("tp", "cp", "ep")  # groups whose nodes tell cells apart
_ROWS = 16_384  # at a time: what one piece needs stays in a core's cache
THREADS = 2


@dataclasses.dataclass(frozen=True)
class SpaceColumns:
    """Rows of a space whose unique things are priced. Indices are int32 [M]."""

    space: LayoutSpace
    rows: np.ndarray  # [M] places in the space
    cells: np.ndarray  # [C, X] inputs of corrections
    sums: Sums  # of cells, of shards, of what happens once, of messages
    columns: Mapping[str, np.ndarray]  # `row_columns` of what happens once
    tp_nodes: np.ndarray  # of cells
    cell: np.ndarray
    shards: np.ndarray
    once: np.ndarray
    message: np.ndarray

    @staticmethod
    def of(
        setup: TrainingSetup, space: LayoutSpace, rows: np.ndarray, progress: Progress | None = None
    ) -> SpaceColumns:
        """Price the unique things of rows of a space [M] on the setup's machine."""
        config = functools.partial(_config, setup, space)
        by_chunk = config(int(rows[0])).stage_split != "even"  # deals out chunks unevenly
        found, index = zip(*map(_unique, _keys(space, rows, by_chunk)), strict=True)
        cells, inputs, tp_nodes = cells_of(setup, space, rows[found[0]], progress)
        shards, once, messages = (
            [config(row) for row in rows[first].tolist()] for first in found[1:]
        )
        # `explain.py` asks for what was not measured of the layouts that it shows
        sums = Sums.of(cells, shards, once, messages, setup.prices)
        columns = row_columns(once) | sums.of_update
        return SpaceColumns(space, rows, inputs, sums, columns, tp_nodes, *index)

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def gathers(self) -> np.ndarray:
        """Whether weights of each row are sharded and gathered [M]."""
        some = np.asarray(self.sums.shards.any((0, 1, 2)))
        return some[self.sums.shard_of[self.shards]]

    def features(self, at: np.ndarray) -> step_features.StepFeatures:
        """Features of some of the M [n]."""
        once, base = self.once[at], self.space.base_of[self.rows[at]]
        x = self.space.base
        vp, schedule = x.vp[base].astype(float), x.schedule[base]
        hides = _IN_PAIRS[schedule] * (x.ep[base] > 1) * (x.cp[base] == 1)
        cell, shards = self.cell[at], self.sums.shard_of[self.shards[at]]
        own = {
            "tp_nodes": self.tp_nodes[cell], "chunks": vp, "exchange_hidden": hides,
            "forwards_first": _FORWARDS_FIRST[schedule], "folded": _FOLDED[schedule],
            "micro_batches": x.accumulation[base].astype(float),
            "schedule": schedule if _SCHEDULED[schedule].any() else None,
        }  # fmt: skip
        # the rest is known of what happens once a step
        known: dict[str, Any] = own | {
            name: values[once] for name, values in self.columns.items() if name not in own
        }
        gathers = self.gathers[at]
        alike = step_features.Alike.of_keys(
            cell, shards * gathers, *(known[name] for name in step_features.SHARED)
        )
        blocks = self.sums.cells.take(cell[alike.first], -1)
        if gathers.any():
            blocks += self.sums.shards.take(shards[alike.first], -1)
        layer, embedding, head = (step_features.BlockPrices(*fields) for fields in blocks)
        return step_features.StepFeatures(
            layer, embedding, head, **known, alike=alike, pace=pace,
            sends_s=self.sums.sends_s[self.message[at]],
        )  # fmt: skip


def _keys(space: LayoutSpace, rows: np.ndarray, by_chunk: bool) -> tuple[np.ndarray, ...]:
    """Whole numbers of rows [M] that tell cells, shards, once-a-step work, messages apart."""
    base, of, place_of = space.base, space.base_of[rows], space.place_of[rows]
    micro = np.unique(base.micro_batch, return_inverse=True)[1].reshape(-1)

    def of_places(facts: Callable[[Place], tuple[Any, ...]]) -> np.ndarray:
        numbers: dict[tuple[Any, ...], int] = {}
        return np.array(
            [numbers.setdefault(facts(place), len(numbers)) for place in space.places], np.int64
        )[place_of]

    def of_base(*columns: np.ndarray) -> np.ndarray:
        key = np.zeros(len(base.tp), np.int64)
        for column in columns:
            key = key * (int(column.max()) + 1) + column
        return key

    def both(place: np.ndarray, key: np.ndarray) -> np.ndarray:
        return place * (int(key.max()) + 1) + key[of]

    def spans(place: Place, *names: str) -> tuple[Any, ...]:
        return tuple(place.spans.get(name) for name in names)

    def divided(p: Place, *names: str) -> tuple[Any, ...]:
        return tuple(getattr(p.division, name) for name in names)

    def nodes(p: Place, *names: str) -> tuple[Any, ...]:
        return tuple(p.spans[name].nodes for name in names)

    ranks = ("tp", "cp", "ep", "expert_tp")
    cell = of_places(lambda p: (*divided(p, *ranks), *nodes(p, *PLACED)))
    experts, shared = ("ep", "expert_tp"), ("shard", "replica", "expert_data")
    shards = of_places(
        lambda p: (p.division.pp > 1, *divided(p, "tp", *experts), *spans(p, *shared))
    )
    once = of_places(
        lambda p: (*divided(p, "tp", "pp", *experts), *spans(p, "tp", "data", *shared, "pp"))
    )
    message = of_places(
        lambda p: (p.division.tp, p.division.cp, p.division.pp > 1, p.spans["pp"].nodes > 1)
    )
    zero, accumulated = base.zero, np.minimum(base.accumulation, 2)
    twice = np.isin(base.schedule, FOLDED) + 2 * np.isin(base.schedule, TWO_PIPES)
    of_layer = of_base(base.sequence_parallel, micro, accumulated, base.recompute)
    return (
        both(cell, of_layer),
        np.where(zero[of] < 2, 0, both(shards, of_base(zero))),
        both(once, of_base(zero, base.vp if by_chunk else 0 * zero, twice)),
        both(message, of_base(base.sequence_parallel, micro)),
    )


def _config(setup: TrainingSetup, space: LayoutSpace, row: int) -> TransformerConfig:
    return setup.config(space.layout(row))


def cells_of(
    setup: TrainingSetup, space: LayoutSpace, rows: np.ndarray, progress: Progress | None = None
) -> tuple[Cells, np.ndarray, np.ndarray]:
    """Cells of rows of a space [C], inputs of their corrections [C, X], nodes of tp groups [C]."""
    config, prices = functools.partial(_config, setup, space), setup.prices
    progress = progress or Progress()
    base = space.base_of[rows]
    x = Layouts(*(column[base] for column in space.base))
    nodes = space.nodes(PLACED, rows)
    one = config(int(rows[0]))
    mine, terms = slots(one.shape, one.checkpoints), list[PieceTerms]()
    of = np.empty((len(mine), len(rows)), np.int32)
    # kernels of a row are those of its tp (`TrainingSetup.config`)
    each_tp = dict(zip(*np.unique(x.tp, return_index=True), strict=True))
    configs = {tp: config(int(rows[at])) for tp, at in each_tp.items()}
    for at, slot in enumerate(mine):
        numbers = [np.broadcast_to(n, len(rows)) for n in piece_numbers(slot, one, x, nodes[2])]
        first, which = unique_rows(*numbers)
        of[at] = len(terms) + which
        alike = {tp: pieces_alike(slot, one, prices) for tp, one in configs.items()}
        each = zip(*(column[first].tolist() for column in (x.tp, rows, *numbers)), strict=True)
        for built, (tp, row, *own) in enumerate(each, 1):
            terms.append(alike[tp].terms(tuple(own), functools.partial(config, row)))
            progress(f"{slot.piece} on a rank", built, len(first))
    shares = np.array([[slot.share] for slot in mine])
    blocks = [slot.block for slot in mine]
    seq, tokens = one.shape.seq, x.micro_batch * one.shape.seq / x.cp
    sizes = np.broadcast_arrays(float(one.shape.hidden), x.tp, tokens, float(seq))
    cells = Cells(blocks, terms, of, shares, x.recompute, nodes, prices)
    return cells, np.log2(np.array(sizes, float)).T, nodes[0].astype(float)


def _unique(key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a row of each key, which key each row has): np.unique without sorting, for small keys."""
    size = int(key.max()) + 1
    row = np.full(size, -1, np.int64)
    row[key] = np.arange(len(key))
    present = np.flatnonzero(row >= 0)
    number = np.empty(size, np.int32)
    number[present] = np.arange(len(present))
    return row[present], number[key]


@dataclasses.dataclass(frozen=True)
class PricedSpace:
    """A space with what each of its layouts takes. Times are known of the M rows that fit."""

    setup: TrainingSetup
    columns: SpaceColumns
    parts: step_features.StepParts  # [M] each
    memory_bytes: np.ndarray  # [B] of the fullest rank

    @property
    def space(self) -> LayoutSpace:
        return self.columns.space

    @property
    def rows(self) -> np.ndarray:
        """Places of the priced layouts in the space [M]."""
        return self.columns.rows

    @property
    def row_memory_bytes(self) -> np.ndarray:
        """Of the priced layouts [M]."""
        return self.memory_bytes[self.space.base_of[self.rows]]


def price_space(
    setup: TrainingSetup, space: LayoutSpace, memory_bytes: np.ndarray | None = None,
    progress: Progress | None = None,
) -> PricedSpace:  # fmt: skip
    """Price the layouts of a space that fit; there must be one."""
    if memory_bytes is None:
        memory_bytes = bytes_of(setup, space.base)
    rows = np.flatnonzero((memory_bytes <= setup.capacity_bytes)[space.base_of])
    columns = SpaceColumns.of(setup, space, rows, progress)
    parts = times(columns, setup, progress=progress)
    return PricedSpace(setup, columns, parts, memory_bytes)


def times(
    columns: SpaceColumns, setup: TrainingSetup, effects: StepEffects | None = None,
    at: np.ndarray | None = None, threads: int = THREADS, progress: Progress | None = None,
) -> step_features.StepParts:  # fmt: skip
    """Parts of the steps of all priced layouts, or of some [n]; `effects` replace the setup's."""
    adapted = setup.adapted
    effects = effects or adapted.effects
    corrected = bool(len(adapted.cells))
    corrections = np.stack(adapted.logs(columns.cells))  # [3, R]
    at = np.arange(len(columns)) if at is None else at
    out = step_features.StepParts(*(np.empty(len(at)) for _ in step_features.StepParts._fields))
    # together those that gather weights beside their computation, which takes twice as many terms
    order = np.argsort(columns.gathers[at], kind="stable")

    def one(piece: slice) -> None:
        into = order[piece]
        chosen = at[into]
        logs = corrections.take(columns.cell[chosen], -1) if corrected else ()
        steps = step_seconds(columns.features(chosen), effects, *logs)
        for part, values in zip(out, steps, strict=True):
            part[into] = values

    in_pieces(one, len(at), threads, "times of layouts", progress)
    return out


def bytes_of(
    setup: TrainingSetup, base: Layouts, threads: int = THREADS, progress: Progress | None = None
) -> np.ndarray:
    """Bytes on the fullest rank of each layout [B]."""
    out = np.empty(len(base.tp))

    def one(piece: slice) -> None:
        layouts = Layouts(*(column[piece] for column in base))
        out[piece] = memory_of(setup.template, layouts, setup.memory_knobs).peak_bytes

    what = "memory of layouts, whatever their order on nodes"
    in_pieces(one, len(out), threads, what, progress)
    return out


def in_pieces(
    work: Callable[[slice], None], count: int, threads: int, what: str,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Do some work on so many rows, piece by piece."""
    progress = progress or Progress()
    pieces = [slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]
    with ThreadPoolExecutor(threads) as pool:
        mapped = map if threads == 1 or len(pieces) < 2 else pool.map
        for piece, _ in zip(pieces, mapped(work, pieces), strict=True):
            progress(what, piece.stop, pieces[-1].stop)
