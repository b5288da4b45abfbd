"""Rows of one family of ops as the prior sees them: counts, what the datasheet states, and what a
network may know.

A family is a set of op kinds whose times err alike (GEMMs, decode attention, ...); each
implementation inside it (a serving framework with a number format) has knobs of its own. Which op
is of which family and implementation is decided elsewhere: here are numbers.

Networks and process look at x: the op's place on its device's fitted closed form (how far compute,
memory, waves and the floor lie apart) and what the op tells of itself (sizes, how they fill tiles
and waves, flags), in units of their spread over devices, and clipped. Nothing in x names a device,
so a new one has all of it.

Axes: N rows, f inputs of ops, d of networks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np

from hybridperf.io.namespace import array_module, floats
from hybridperf.learning.inputs import Box, Inputs
from hybridperf.learning.inputs import concatenate as concatenate_inputs
from hybridperf.learning.prior.form import LAWS, WAVE_ROOFLINE, ClosedForm, ClosedFormValues

# inputs that tell one sparse matrix from another
MATRIX = ("log2_rows", "log2_degree", "longest", "cv_degree", "aspect")
NOTHING = 1e-30  # seconds, waves or bytes: stands for zero where a log is taken
CLIP = 4.0  # standard deviations


class PriorRows(Protocol):
    """Measurements of one family on one device (or system), as fits and networks see them."""

    @property
    def form(self) -> ClosedForm:
        """The closed form that prices them."""

    @property
    def implementation(self) -> np.ndarray:
        """object [N]: the implementation."""

    @property
    def inputs(self) -> Inputs:
        """[N, f] what a network may know of a row besides its place on the form."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """Inputs that are log2 of a continuous size: they measure distance from what was seen."""

    def __len__(self) -> int: ...

    def work(self) -> Any:
        """[N, W] what the form reads."""

    def rows(self, keep: np.ndarray) -> Self:
        """Some of the rows: a mask, positions or a slice."""

    def matrix(self) -> np.ndarray | None:
        """int [N], from 0: rows of one sparse matrix have one number; None: they have none."""


@dataclasses.dataclass(frozen=True)
class FamilyRows:
    """Some ops of one family on one device, or on several."""

    flops: Any  # [N] counted from the shape
    bytes: Any  # [N]
    blocks: Any  # [N] thread blocks started; zero: no wave term
    peak_flops_per_s: np.ndarray  # [N] or one number: datasheet peak of the row's dtype
    memory_bytes_per_s: np.ndarray | float  # datasheet
    sm_count: np.ndarray | float
    implementation: np.ndarray  # object [N]: implementation, e.g. "trtllm|bf16"
    inputs: Inputs  # [N, f] what a network may know of the op besides its place on the roofline
    # inputs that are log2 of a continuous size: distance from what was seen is counted in these
    sizes: tuple[str, ...]
    # what the form reads, of forms that have work of their own: [N, W - 1] besides arithmetic, what
    # ops gather, or move row by row; [N, W] of attention by scores; None: the roofline with waves
    own_work: Any = None
    # [N] that the busiest multiprocessor takes one after the other; zero: no term of steps
    steps: Any = 0.0
    form: ClosedForm = WAVE_ROOFLINE
    # [N] seconds over the datasheet's, without the floor, that no kernel exceeds which was not
    # measured so; infinite: no bound is known
    most: Any = np.inf
    library_sd: Any = 0.0  # [N] of the log of seconds, where no library is told

    def __len__(self) -> int:
        return len(self.implementation)

    def work(self) -> Any:
        """[N, 4]: logs of arithmetic and traffic seconds at datasheet rates, of waves and steps; of
        ops that gather, as `gather_form.WORK` names it; that go row by row, as `form` says.
        """
        return self._logs(self.own_work)

    def _logs(self, own_work: Any = None) -> Any:
        amounts = (
            floats(self.flops) / self.peak_flops_per_s,
            floats(self.bytes) / self.memory_bytes_per_s,
            floats(self.blocks) / self.sm_count,
            floats(self.steps),
        )
        module = array_module(*amounts)
        columns = [module.broadcast_to(amount, (len(self),)) for amount in amounts]
        logs = module.stack([module.log(module.maximum(one, NOTHING)) for one in columns], 1)
        if own_work is None or own_work.shape[1] == logs.shape[1]:
            return logs if own_work is None else own_work
        return module.concatenate([logs[:, :1], own_work], 1)

    def in_waves(self) -> FamilyRows:
        """By the roofline with waves, where a form of their own would price them by cycles."""
        if self.form.name not in LAWS:
            return self
        return dataclasses.replace(self, form=WAVE_ROOFLINE, own_work=None)

    def log_roofline_s(self) -> Any:
        """[N] log of the datasheet's seconds: max(F / P, B / BW)."""
        return self._logs()[:, :2].max(1)

    def matrix(self) -> np.ndarray | None:
        """Known by its sizes and degrees, which tables repeat for each kernel and width."""
        if self.form.name != "gathers":
            return None
        at = [self.inputs.names.index(name) for name in MATRIX if name in self.inputs.names]
        found = np.unique(np.round(self.inputs.values[:, at], 6), axis=0, return_inverse=True)
        return np.asarray(found[1]).reshape(-1)

    def rows(self, keep: np.ndarray) -> FamilyRows:
        """Some of the rows: a mask, positions or a slice."""

        numbers = {name: np.asarray(getattr(self, name), np.float64) for name in _NUMBERS}
        return dataclasses.replace(
            self, implementation=self.implementation[keep], inputs=self.inputs.rows(keep),
            own_work=None if self.own_work is None else self.own_work[keep],
            **{name: np.broadcast_to(one, len(self))[keep] for name, one in numbers.items()},
        )  # fmt: skip


# of each row, or one for all
_NUMBERS = (
    "flops", "bytes", "blocks", "peak_flops_per_s", "memory_bytes_per_s", "sm_count", "steps",
    "most", "library_sd",
)  # fmt: skip


def concatenate(parts: Sequence[FamilyRows]) -> FamilyRows:
    """Rows of several ops or devices below each other; inputs that one lacks are zero."""
    # work of their own have all of a family, or none
    names = _NUMBERS if parts[0].own_work is None else (*_NUMBERS, "own_work")
    columns: Any = {name: [getattr(part, name) for part in parts] for name in names}
    module = array_module(*(one for column in columns.values() for one in column))
    for name in _NUMBERS:
        each = zip(columns[name], parts, strict=True)
        columns[name] = [module.broadcast_to(one, len(part)) for one, part in each]
    own = {name: module.concatenate(column) for name, column in columns.items()}
    own["implementation"] = np.concatenate([part.implementation for part in parts])
    sizes = tuple(dict.fromkeys(name for part in parts for name in part.sizes))
    inputs = concatenate_inputs([part.inputs for part in parts])
    return FamilyRows(**own, inputs=inputs, sizes=sizes, form=parts[0].form)


@dataclasses.dataclass(frozen=True)
class Standardiser:
    """Which inputs networks look at, and in what units."""

    names: tuple[str, ...]  # of the row's own inputs; its place on the form stands before them
    centre: np.ndarray  # [d]
    scale: np.ndarray  # [d]
    # rows of one device alone: beyond the ends of an input it says what it says there
    ends: Box | None = None
    clip: float = CLIP

    def inputs(self, rows: PriorRows, on: ClosedFormValues) -> Any:
        """x [N, d] in the precision of the rows."""
        parts = self.parts(rows, on)
        return array_module(*parts).concatenate(parts, 1)

    def parts(self, rows: PriorRows, on: ClosedFormValues) -> list[Any]:
        """The columns of x that a varied machine moves, and those of the op alone."""
        seen = rows.inputs.select(self.names)
        if self.ends is not None:
            seen = seen.clip(self.ends.low, self.ends.high)
        at = on.position.shape[1]
        return [
            ((part - centre) / scale).clip(-self.clip, self.clip)
            for part, centre, scale in (
                (on.position, self.centre[:at], self.scale[:at]),
                (seen.astype(on.position.dtype), self.centre[at:], self.scale[at:]),
            )
        ]


def standard(devices: Sequence[tuple[PriorRows, ClosedFormValues]]) -> Standardiser:
    """From prior devices, each counting the same; inputs that never vary are left out."""
    names = tuple(dict.fromkeys(name for rows, _ in devices for name in rows.inputs.names))
    places = devices[0][1].position.shape[1]
    each = [np.concatenate([on.position, rows.inputs.select(names)], 1) for rows, on in devices]
    centre = np.mean([x.mean(0) for x in each], 0)
    scale = np.sqrt(np.mean([((x - centre) ** 2).mean(0) for x in each], 0))
    seen = np.flatnonzero((np.arange(len(scale)) < places) | (scale > 1e-6))
    varying = tuple(names[at - places] for at in seen if at >= places)
    return Standardiser(varying, centre[seen], np.maximum(scale[seen], 1e-6))
