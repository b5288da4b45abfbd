"""Time and memory of every layout of a space: the closed composition of a step and the counts of
memory, chunk by chunk on a few threads.

Both are columns of NumPy, whose loops let go of Python's lock: two threads keep two cores busy.
Axes: N layouts, B base layouts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hybridperf.training.plans.columns import Columns, chunks
from hybridperf.training.plans.progress import Progress
from hybridperf.training.plans.setting import Setting
from hybridperf.training.plans.space import Space
from hybridperf.training.steps.compose import Parts, step_seconds
from hybridperf.training.steps.knobs import Knobs
from hybridperf.workloads.memory import memory
from hybridperf.workloads.transformer.layout import Layouts

_ROWS = 16_384  # at a time: what one piece needs stays in a core's cache
THREADS = 2


@dataclasses.dataclass(frozen=True)
class Priced:
    """A space with what each of its layouts takes. Times are known of the M rows that fit."""

    setting: Setting
    columns: Columns
    parts: Parts  # [M] each
    memory_bytes: np.ndarray  # [B] of the fullest rank

    @property
    def space(self) -> Space:
        return self.columns.space

    @property
    def rows(self) -> np.ndarray:
        """Places of the priced layouts in the space [M]."""
        return self.columns.rows

    @property
    def row_memory_bytes(self) -> np.ndarray:
        """Of the priced layouts [M]."""
        return self.memory_bytes[self.space.base_of[self.rows]]


def priced(
    setting: Setting,
    space: Space,
    memory_bytes: np.ndarray | None = None,
    threads: int = THREADS,
    progress: Progress | None = None,
) -> Priced:
    """Price the layouts of a space that fit; there must be one."""
    if memory_bytes is None:
        memory_bytes = memory_of(setting, space, threads)
    rows = np.flatnonzero((memory_bytes <= setting.capacity_bytes)[space.base_of])
    columns = columns_of(setting, space, rows)
    return Priced(
        setting, columns, times(columns, setting, threads=threads, progress=progress), memory_bytes
    )


def columns_of(setting: Setting, space: Space, rows: np.ndarray) -> Columns:
    """Some rows of a space [M], their representatives priced on the setting's machine."""
    return Columns.of(
        space,
        rows,
        lambda row: setting.config(space.layout(row)),
        setting.machine,
        setting.framework,
        setting.prices,
    )


def times(
    columns: Columns, setting: Setting, knobs: Knobs | None = None, at: np.ndarray | None = None,
    threads: int = THREADS, progress: Progress | None = None,
) -> Parts:  # fmt: skip
    """What the steps of all priced layouts, or of some [n], are made of; `knobs` in place of the
    setting's.
    """
    adapted = setting.adapted
    knobs = knobs or adapted.knobs
    corrected = bool(len(adapted.cells))
    corrections = np.stack(adapted.logs(columns.cells))  # [3, R]
    count = len(columns) if at is None else len(at)
    out = Parts(*(np.empty(count) for _ in Parts._fields))

    def one(piece: slice) -> None:
        chosen = piece if at is None else at[piece]
        cell = columns.cell[chosen]
        logs = corrections[:, cell] if corrected else ()
        for into, values in zip(
            out, step_seconds(columns.features(chosen), knobs, *logs), strict=True
        ):
            into[piece] = values

    _each(one, chunks(count, _ROWS), threads, "times of layouts", progress)
    return out


def memory_of(
    setting: Setting, space: Space, threads: int = THREADS, progress: Progress | None = None
) -> np.ndarray:
    """Bytes on the fullest rank of each base layout [B]."""
    c = setting.template
    out = np.empty(len(space.base.tp))

    def one(piece: slice) -> None:
        layouts = Layouts(*(column[piece] for column in space.base))
        out[piece] = memory(
            c.shape, layouts, dtype=c.dtype, grad_bytes=c.gradient_bytes, optimizer=c.optimizer,
            attention=c.attention, dropout=c.dropout, split=c.stage_split,
            knobs=setting.memory_knobs,
        ).peak_bytes  # fmt: skip

    _each(
        one,
        chunks(len(out), _ROWS),
        threads,
        "memory of layouts, whatever their order on nodes",
        progress,
    )
    return out


def _each(
    work: Callable[[slice], None],
    pieces: Sequence[slice],
    threads: int,
    what: str,
    progress: Progress | None = None,
) -> None:
    progress = progress or Progress()
    with ThreadPoolExecutor(threads) as pool:
        for piece, _ in zip(
            pieces,
            (map if threads == 1 or len(pieces) < 2 else pool.map)(work, pieces),
            strict=True,
        ):
            progress(what, piece.stop, pieces[-1].stop)
