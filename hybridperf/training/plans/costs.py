"""Time and memory of every layout of a space: the closed composition of a step and the counts of
memory, chunk by chunk on a few threads.

Both are columns of NumPy, whose loops let go of Python's lock: two threads keep two cores busy.
Axes: N layouts, B base layouts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hybridperf.engine.closed import step_seconds
from hybridperf.engine.step_features import StepParts
from hybridperf.model.step_effects import StepEffects
from hybridperf.training.plans.columns import SpaceColumns
from hybridperf.training.plans.progress import Progress
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.plans.space import LayoutSpace
from hybridperf.workloads.memory import memory_of as step_memory
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layouts

_ROWS = 16_384  # at a time: what one piece needs stays in a core's cache
THREADS = 2


@dataclasses.dataclass(frozen=True)
class PricedSpace:
    """A space with what each of its layouts takes. Times are known of the M rows that fit."""

    setup: TrainingSetup
    columns: SpaceColumns
    parts: StepParts  # [M] each
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
    threads: int = THREADS, progress: Progress | None = None,
) -> PricedSpace:  # fmt: skip
    """Price the layouts of a space that fit; there must be one."""
    if memory_bytes is None:
        memory_bytes = memory_of(setup, space, threads)
    rows = np.flatnonzero((memory_bytes <= setup.capacity_bytes)[space.base_of])
    columns = columns_of(setup, space, rows, progress)
    parts = times(columns, setup, threads=threads, progress=progress)
    return PricedSpace(setup, columns, parts, memory_bytes)


def columns_of(
    setup: TrainingSetup, space: LayoutSpace, rows: np.ndarray, progress: Progress | None = None
) -> SpaceColumns:
    """Some rows of a space [M], their representatives priced on the setup's machine."""

    def config(row: int) -> TransformerConfig:
        return setup.config(space.layout(row))

    return SpaceColumns.of(space, rows, config, setup.prices, progress)


def times(
    columns: SpaceColumns, setup: TrainingSetup, effects: StepEffects | None = None,
    at: np.ndarray | None = None, threads: int = THREADS, progress: Progress | None = None,
) -> StepParts:  # fmt: skip
    """Parts of the steps of all priced layouts, or of some [n]; `effects` replace the setup's."""
    adapted = setup.adapted
    effects = effects or adapted.effects
    corrected = bool(len(adapted.cells))
    corrections = np.stack(adapted.logs(columns.cells))  # [3, R]
    at = np.arange(len(columns)) if at is None else at
    out = StepParts(*(np.empty(len(at)) for _ in StepParts._fields))
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


def memory_of(
    setup: TrainingSetup, space: LayoutSpace, threads: int = THREADS,
    progress: Progress | None = None,
) -> np.ndarray:  # fmt: skip
    """Bytes on the fullest rank of each base layout [B]."""
    return bytes_of(setup, space.base, threads, progress)


def bytes_of(
    setup: TrainingSetup, base: Layouts, threads: int = THREADS, progress: Progress | None = None
) -> np.ndarray:
    """Bytes on the fullest rank of each layout [B]."""
    out = np.empty(len(base.tp))

    def one(piece: slice) -> None:
        layouts = Layouts(*(column[piece] for column in base))
        out[piece] = step_memory(setup.template, layouts, setup.memory_knobs).peak_bytes

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
