"""Ops that a price is asked of, a batch for each kind: alike in all but their sizes.

A row of a table and a call of a graph become the same: an op whose dimensions are columns, its
work, and where it stands. Within a batch everything that decides *how* an op is priced is one
value (what it computes, number format, group, kernel, framework); only sizes, distances and how
often it runs differ. So a stage of the price (`stages/`) decides once and calculates for all, in
NumPy or, where sizes are traced, in JAX.

Axes: R ops of a batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io.namespace import Array, array_module, column, floats
from hybridperf.model.families import family_of
from hybridperf.ops import GROUPS, Op, OpCall, run_on
from hybridperf.ops.roofline import Work
from hybridperf.ops.table import OpRows, alike, in_place


@dataclasses.dataclass(frozen=True)
class Batch:
    """Ops of one kind on one device."""

    part: OpRows  # places [R] among all that were asked, the op, its work and labels
    kernel: str = ""  # as `OpCall` has these: another than was measured,
    framework: str = ""  # whose kernels run,
    variant: str = ""  # and how
    inlined: bool = False
    issued_apart: bool = False

    def __len__(self) -> int:
        return len(self.part.rows)

    @property
    def op(self) -> Op:
        return self.part.op

    @property
    def work(self) -> Work:
        return self.part.work

    @functools.cached_property
    def group(self) -> str:
        """Name of the group of ops whose knobs price the batch."""
        return GROUPS[int(self.part.group[0])]

    @functools.cached_property
    def family(self) -> str:
        """Whose prior may know them; empty where none does."""
        return family_of(self.group, self.op.dtype)

    def whole(self, value: Array) -> Array:
        """A size of the op as a column [R]; of a single op it is a number."""
        return column(value, len(self))

    def size(self, name: str, otherwise: float = 0.0) -> Array:
        """A dimension of the op [R]; `otherwise` where it has none of that name."""
        return self.whole(getattr(self.op, name, otherwise))

    def on(self, device: DeviceSpec) -> Batch:
        """The same ops on another device."""
        peak = device.peak(self.op.peak_dtype, self.op.unit)
        return dataclasses.replace(self, part=dataclasses.replace(self.part, peak_flops_per_s=peak))

    def of(self, op: Op, device: DeviceSpec) -> Batch:
        """Other ops of as many rows, which stand where these stand; of the same kind, in another
        number format say, their data is as far apart.
        """
        work, peak = _columns(op.work(), len(self)), device.peak(op.peak_dtype, op.unit)
        if type(op) is type(self.op):
            again = {name: getattr(self.work, name) for name in ("reuse_bytes", "reuse_spread")}
            work = dataclasses.replace(work, **again)
            part = dataclasses.replace(self.part, op=op, work=work, peak_flops_per_s=peak)
        else:
            part = OpRows(self.part.rows, op, work, _groups(op, len(self)), peak)
        return dataclasses.replace(self, part=part)

    @property
    def xp(self) -> Any:
        """JAX where sizes are traced, else NumPy."""
        return array_module(*vars(self.work).values())

    @property
    def by_itself(self) -> Batch:
        """The same ops as tables time them."""
        return dataclasses.replace(self, kernel="", issued_apart=False)

    @property
    def plain(self) -> Batch:
        """The same ops by the kernel that was measured."""
        return dataclasses.replace(self, kernel="") if self.kernel else self


def batches_of(part: OpRows, **stands: Any) -> Iterator[Batch]:
    """Rows of one op as batches, one for each group; `stands`: where its ops stand."""
    found = np.unique(part.group)
    for group in found.tolist():
        yield Batch(part if len(found) == 1 else _some(part, part.group == group), **stands)


def stacked(calls: Sequence[OpCall], device: DeviceSpec) -> list[Batch]:
    """Calls as batches, with the reuse distances that their data has in a program; in the number
    formats that the device's libraries run.
    """
    names = ("kernel", "framework", "variant", "inlined", "issued_apart")
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for at, call in enumerate(calls):
        kinds.setdefault(tuple(getattr(call, name) for name in names), []).append(at)
    batches = list[Batch]()
    for stands, places in kinds.items():
        for some, op, name in alike([run_on(calls[at].op, device) for at in places]):
            at = np.array(places)[some]
            work = in_place(_columns(op.work(), len(at)), [calls[one] for one in at])
            peak = device.peak(op.peak_dtype, op.unit)
            part = OpRows(at, op, work, _groups(op, len(at)), peak, name=name)
            batches += batches_of(part, **dict(zip(names, stands, strict=True)))
    return batches


def traced(part: OpRows, op: Op) -> list[Batch]:
    """One op whose sizes are traced, as a batch for each group that they may choose.

    `part`: a row of such an op, for what is not traced.
    """
    work = jax.tree.map(lambda count: array_module(count).reshape(floats(count), (1,)), op.work())
    which = op.group_index()
    fixed = array_module(which) is np
    groups = [int(which)] if fixed else [GROUPS.index(name) for name in op.knob_groups()]
    return [
        Batch(dataclasses.replace(part, op=op, work=work, group=np.array([group], np.int32)))
        for group in groups
    ]


def different(batch: Batch, keep: np.ndarray) -> tuple[Batch, np.ndarray]:
    """(the different ops among rows `keep` [k] of a batch, which of them each is, int [k])."""
    part = batch.part
    columns = [batch.size(name) for name in batch.op.dimensions()]
    columns += [np.broadcast_to(one, (len(batch),)) for one in vars(batch.work).values()]
    for words in part.labels.values():
        columns.append(np.unique(words.astype(str), return_inverse=True)[1])
    _, first, which = np.unique(
        np.stack(columns, 1)[keep], axis=0, return_index=True, return_inverse=True
    )
    chosen = np.zeros(len(batch), bool)
    chosen[keep[first]] = True
    order = np.argsort(np.argsort(keep[first]))  # `_some` keeps the batch's order
    return dataclasses.replace(batch, part=_some(part, chosen)), order[np.ravel(which)]


def _columns(work: Work, rows: int) -> Work:
    counts: Mapping[str, Any] = vars(work)
    return Work(**{
        name: column(count, rows)
        for name, count in counts.items()
    })  # fmt: skip


def _groups(op: Op, rows: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(op.group_index(), np.int32), (rows,))


def _some(part: OpRows, keep: np.ndarray) -> OpRows:
    """Rows `keep` (a mask [R]) of a part."""
    rows = len(part.rows)

    def kept(column: Any) -> Any:
        return np.broadcast_to(np.asarray(column), (rows,))[keep]

    op = part.op
    sizes = {name: kept(getattr(op, name)) for name in op.dimensions()}
    return dataclasses.replace(
        part, rows=part.rows[keep], op=dataclasses.replace(op, **sizes),
        work=jax.tree.map(kept, part.work), group=part.group[keep],
        labels={name: words[keep] for name, words in part.labels.items()},
    )  # fmt: skip
