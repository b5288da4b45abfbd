"""Rows of one family of ops as the prior sees them: counts, what the datasheet states, and what a
network may know.

A family is a set of op kinds whose times err alike (GEMMs, decode attention, ...); each
implementation inside it (a serving framework with a number format) has knobs of its own. Which op
is of which family and implementation is decided elsewhere: here are numbers.

Axes: N rows, f inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np

from hybridperf.io.namespace import array_module, floats
from hybridperf.learning.inputs import Inputs
from hybridperf.learning.inputs import concatenate as concatenate_inputs
from hybridperf.learning.prior.form import WAVE_ROOFLINE, ClosedForm
from hybridperf.learning.prior.gather_form import GATHER_ROOFLINE

# inputs that tell one sparse matrix from another
MATRIX = ("log2_rows", "log2_degree", "longest", "cv_degree", "aspect")
NOTHING = 1e-30  # seconds, waves or bytes: stands for zero where a log is taken


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
    # [N, len(gather_form.WORK) - 1] what ops gather, for their form; None: they gather nothing
    gathers: Any = None
    # [N] that the busiest multiprocessor takes one after the other; zero: no term of steps
    steps: Any = 0.0

    def __len__(self) -> int:
        return len(self.implementation)

    @property
    def form(self) -> ClosedForm:
        return WAVE_ROOFLINE if self.gathers is None else GATHER_ROOFLINE

    def work(self) -> Any:
        """[N, 4]: logs of arithmetic and traffic seconds at datasheet rates, of waves and steps; of
        ops that gather, as `gather_form.WORK` names it.
        """
        amounts = (
            floats(self.flops) / self.peak_flops_per_s,
            floats(self.bytes) / self.memory_bytes_per_s,
            floats(self.blocks) / self.sm_count,
            floats(self.steps),
        )
        module = array_module(*amounts)
        columns = [module.broadcast_to(amount, (len(self),)) for amount in amounts]
        logs = module.stack([module.log(module.maximum(one, NOTHING)) for one in columns], 1)
        return logs if self.gathers is None else module.concatenate([logs[:, :1], self.gathers], 1)

    def log_roofline_s(self) -> np.ndarray:
        """[N] log of the datasheet's seconds: max(F / P, B / BW)."""
        seconds = np.maximum(
            floats(self.flops) / self.peak_flops_per_s, floats(self.bytes) / self.memory_bytes_per_s
        )
        return np.broadcast_to(np.log(np.maximum(seconds, NOTHING)), (len(self),))

    def matrix(self) -> np.ndarray | None:
        """Known by its sizes and degrees, which tables repeat for each kernel and width."""
        if self.gathers is None:
            return None
        at = [self.inputs.names.index(name) for name in MATRIX if name in self.inputs.names]
        found = np.unique(np.round(self.inputs.values[:, at], 6), axis=0, return_inverse=True)
        return np.asarray(found[1]).reshape(-1)

    def rows(self, keep: np.ndarray) -> FamilyRows:
        """Some of the rows: a mask, positions or a slice."""

        def some(values: np.ndarray | float) -> np.ndarray:
            return np.broadcast_to(np.asarray(values, np.float64), (len(self),))[keep]

        return FamilyRows(
            some(self.flops), some(self.bytes), some(self.blocks), some(self.peak_flops_per_s),
            some(self.memory_bytes_per_s), some(self.sm_count), self.implementation[keep],
            self.inputs.rows(keep), self.sizes,
            None if self.gathers is None else self.gathers[keep],
            some(self.steps),
        )  # fmt: skip


def concatenate(parts: Sequence[FamilyRows]) -> FamilyRows:
    """Rows of several ops or devices below each other; inputs that one lacks are zero."""
    whole = [part.rows(np.arange(len(part))) for part in parts]
    fields = (field.name for field in dataclasses.fields(FamilyRows))
    names = [name for name in fields if name not in ("inputs", "sizes", "gathers")]
    if whole[0].gathers is not None:  # all of a family do, or none
        names.append("gathers")
    own: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in whole]) for name in names
    }
    sizes = tuple(dict.fromkeys(name for part in whole for name in part.sizes))
    inputs = concatenate_inputs([part.inputs for part in whole])
    return FamilyRows(**own, inputs=inputs, sizes=sizes)
