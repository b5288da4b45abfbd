"""Ops that differ in their sizes alone, as one op whose sizes are columns: what is asked of each is
then asked of all at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.ops.base import Op, OpCall, name_of
from hybridperf.ops.roofline import Work
from hybridperf.ops.table import OpRows


def stacked(calls: Sequence[OpCall], device: DeviceSpec) -> list[OpRows]:
    """Calls as the rows of a table, with the reuse distances that their data has in a program."""
    parts = []
    for at, op, name in alike([call.op for call in calls]):
        work = _in_place(op.work(), [calls[one] for one in at])
        group = np.broadcast_to(np.asarray(op.group_index(), np.int32), at.shape)
        parts.append(OpRows(at, op, work, group, device.peak(op.peak_dtype, op.unit), name=name))
    return parts


def alike(ops: Sequence[Op]) -> Iterator[tuple[np.ndarray, Op, str]]:
    """(places, the op whose `dimensions` are columns, its name in tables or "") of each stack."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    words: dict[type[Op], list[str]] = {}
    dimensions: dict[type[Op], tuple[str, ...]] = {}
    for at, op in enumerate(ops):
        kind = type(op)
        if kind not in words:
            names, sized = [field.name for field in dataclasses.fields(kind)], kind.dimensions()
            dimensions[kind] = tuple(sized)
            words[kind] = [name for name in names if name not in sized]
        same = (kind, name_of(op), *(getattr(op, name) for name in words[kind]))
        groups.setdefault(same, []).append(at)
    for (kind, name, *_), places in groups.items():
        sizes: dict[str, Any] = {
            size: np.array([float(getattr(ops[at], size)) for at in places])
            for size in dimensions[kind]
        }
        yield np.array(places), dataclasses.replace(ops[places[0]], **sizes), name


def calls_of(part: OpRows, at: np.ndarray) -> tuple[list[OpCall], np.ndarray]:
    """(calls that differ among the rows `at` [n] of a part, which of them each row is [n])."""
    rows = len(part.rows)
    sizes = list(part.op.dimensions())
    columns = [*(getattr(part.op, name) for name in sizes), part.work.reuse_bytes]
    values = np.stack([np.broadcast_to(np.asarray(one, float), (rows,))[at] for one in columns], 1)
    different, which = np.unique(values, axis=0, return_inverse=True)
    calls = [
        OpCall(
            dataclasses.replace(part.op, **dict(zip(sizes, own, strict=True))), reuse_bytes=reuse
        )
        for *own, reuse in different.tolist()
    ]
    return calls, np.ravel(which)


def _in_place(work: Work, calls: Sequence[OpCall]) -> Work:
    """The work of ops alike [n], with the reuse distances of their data in a program."""
    if all(call.reuse_bytes is None for call in calls):
        return work
    own = np.broadcast_to(np.asarray(work.reuse_bytes, float), (len(calls),))
    distances = [
        mine if call.reuse_bytes is None else call.reuse_bytes
        for mine, call in zip(own, calls, strict=True)
    ]
    return dataclasses.replace(work, reuse_bytes=np.array(distances))
