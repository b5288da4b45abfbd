"""Schedules by name: their orders, the seconds of a step whose stages are all alike, and what each
asks of its sizes.

The closed forms equal the graph of each schedule's order; with stages that differ they do not
(`pace.py` tells what then).
"""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from hybridperf.io import InputError, closest, unknown
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.workloads.schedules.chimera import CHIMERA
from hybridperf.workloads.schedules.dualpipe import DUALPIPE, DUALPIPE_V
from hybridperf.workloads.schedules.one_way import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from hybridperf.workloads.schedules.order import Schedule, ScheduleKind, StageSeconds
from hybridperf.workloads.schedules.zb_v import ZB_V

# a schedule's place is its code in columns of layouts (`transformer/columns.py`): append new ones
_IN_ORDER = (
    ONE_F_ONE_B, GPIPE, INTERLEAVED, CHIMERA, ZERO_BUBBLE, ZB_V, DUALPIPE, DUALPIPE_V,
)  # fmt: skip
KINDS = {kind.name: kind for kind in _IN_ORDER}
NAMES = tuple(KINDS)
_NOT_BUILT = ("gems", "pipedream", "pipedream_2bw", "v_half", "v_min", "zb_h2")


def schedule(name: str, workers: int, micro_batches: int, chunks: int | None = None) -> Schedule:
    """The order of tasks of a schedule; `chunks` per worker, None: 1, or 2 in one folded like a V.

    Raises:
        InputError: there is no such schedule, or none of these sizes.
    """
    kind = known_kind(name)
    chunks = 1 + kind.folded if chunks is None else chunks
    sizes = {"workers": workers, "micro-batches": micro_batches, "chunks": chunks}
    for what, size in sizes.items():
        if _whole(size) < 1:
            raise InputError(
                f"expected 1 or more {what} in schedule {name!r}, got {size}; give a whole number"
            )
    if chunks != 1 + kind.folded and not kind.has_chunks:
        expected = "2 chunks" if kind.folded else "1 chunk"
        raise InputError(
            f"expected {expected} per worker in schedule {name!r}, got {chunks}; 'interleaved' is"
            " the one with any number"
        )
    _check_needs(kind, workers, micro_batches)
    return kind.order(workers, micro_batches, chunks)


def closed_form_s(
    name: str, workers: Array, micro_batches: Array, forward_s: Array, backward_s: Array, *,
    chunks: Array = 1, weight_s: Array = 0.0, send_s: Array = 0.0, joint_s: Array | None = None,
) -> Array:  # fmt: skip
    """Seconds of a step whose stages are all alike, transfers overlapped; arrays broadcast.

    Args:
        name: of the schedule.
        workers, micro_batches: sizes of the pipeline.
        forward_s, backward_s: one micro-batch on one worker, all its chunks, the whole backward.
        chunks: stages per worker.
        weight_s: the part of the backward that makes the weights' gradients, used where a schedule
            puts it off.
        send_s: one transfer to the next worker, no longer than what either computes meanwhile;
            known for GPipe and 1F1B alone.
        joint_s: a forward and a backward pass of one worker beside each other, which some schedules
            have; None: as long as one after the other.

    Raises:
        InputError: no such schedule or none of these sizes, or transfers that it has no form for.
    """
    kind = known_kind(name)
    _check_needs(kind, workers, micro_batches)
    if not kind.prices_sends and (array_module(send_s) is not np or np.any(send_s)):
        raise InputError(
            f"schedule {name!r} has no closed form with transfers; use its graph, or add send_s to"
            " the stages' seconds"
        )
    joint_s = forward_s + backward_s if joint_s is None else joint_s
    seconds = StageSeconds(floats(forward_s), backward_s, weight_s, send_s, joint_s)
    return kind.step_s(floats(workers), floats(micro_batches), chunks, seconds)


def known_kind(name: str) -> ScheduleKind:
    """The schedule of a name; else `InputError`."""
    plain = str(name).lower().replace("-", "_")
    if name not in NAMES and plain in _NOT_BUILT:
        raise InputError(
            f"schedule {name!r} is not built; there are {', '.join(NAMES)}{closest(name, NAMES)}"
        )
    if name not in NAMES:
        raise unknown("schedule", name, NAMES, f"there are {', '.join(NAMES)}")
    return KINDS[name]


def _check_needs(kind: ScheduleKind, workers: Array, micro_batches: Array) -> None:
    """`InputError` for sizes that a schedule cannot have; what JAX traces is not looked at."""
    if array_module(workers, micro_batches) is not np:
        return
    p, m = map(np.ravel, np.broadcast_arrays(workers, micro_batches))
    for need in kind.needs:
        for at in np.flatnonzero(~need.holds(p, m))[:1]:
            words = need.words.format(p=p[at], m=m[at])
            raise InputError(f"schedule {kind.name!r} needs {words}")


def _whole(size: Any) -> int:
    """A size as an integer; 0, which no size may be, where it is none."""
    try:
        return index(size)
    except TypeError:
        return 0
