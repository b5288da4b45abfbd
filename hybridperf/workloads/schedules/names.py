"""Schedules by name, and what each asks of its sizes."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from hybridperf.io import InputError, closest, unknown
from hybridperf.io.namespace import array_module
from hybridperf.workloads.schedules.chimera import chimera
from hybridperf.workloads.schedules.one_way import (
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)
from hybridperf.workloads.schedules.order import Schedule

NAMES = ("gpipe", "1f1b", "interleaved", "chimera", "zero_bubble")
NOT_BUILT = (
    "dualpipe",
    "dualpipev",
    "gems",
    "pipedream",
    "pipedream_2bw",
    "v_half",
    "v_min",
    "v_zb",
    "zb_h2",
)


def schedule(name: str, workers: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The order of tasks of a schedule by name; `InputError` where it is not known or the sizes do
    not suit it.
    """
    check_sizes(name, workers, micro_batches, chunks)
    if name == "gpipe":
        return gpipe(workers, micro_batches)
    if name == "1f1b":
        return one_forward_one_backward(workers, micro_batches)
    if name == "interleaved":
        return interleaved(workers, micro_batches, chunks)
    return (
        chimera(workers, micro_batches)
        if name == "chimera"
        else zero_bubble(workers, micro_batches)
    )


def check_sizes(name: str, workers: int, micro_batches: int, chunks: int = 1) -> None:
    """`InputError` in one sentence unless a schedule of this name exists for these sizes."""
    known_name(name)
    for what, size in (("workers", workers), ("micro-batches", micro_batches), ("chunks", chunks)):
        if _whole(size) < 1:
            raise InputError(
                f"expected 1 or more {what} in schedule {name!r}, got {size}; give a whole number"
            )
    if name == "interleaved":
        if micro_batches % workers:
            raise InputError(
                f"expected micro-batches as a multiple of {workers} workers in schedule"
                f" 'interleaved', got {micro_batches}"
            )
    elif chunks != 1:
        raise InputError(
            f"expected 1 chunk per worker in schedule {name!r}, got {chunks}; 'interleaved' is the"
            " one with several"
        )
    if name == "chimera":
        for what, size in (("workers", workers), ("micro-batches", micro_batches)):
            if size % 2:
                raise InputError(
                    f"expected an even number of {what} in schedule 'chimera', half for each way,"
                    f" got {size}"
                )
        if micro_batches > workers and micro_batches % workers:
            raise InputError(
                f"expected up to {workers} micro-batches in schedule 'chimera', or a multiple of"
                f" {workers}, got {micro_batches}"
            )


def check_columns(name: str, workers: Any, micro_batches: Any) -> None:
    """The same for arrays of sizes that broadcast; what JAX traces is not looked at."""
    if (
        known_name(name) not in ("interleaved", "chimera")
        or array_module(workers, micro_batches) is not np
    ):
        return
    p, m = np.broadcast_arrays(workers, micro_batches)
    wrong = m % p != 0
    if name == "chimera":
        wrong = (p % 2 != 0) | (m % 2 != 0) | (wrong & (m > p))
    if wrong.any():
        at = np.unravel_index(int(wrong.argmax()), wrong.shape)
        check_sizes(name, int(p[at]), int(m[at]))


def known_name(name: str) -> str:
    """The name, if it is one of a schedule; else `InputError`."""
    plain = str(name).lower().replace("-", "_")
    if name not in NAMES and plain in NOT_BUILT:
        raise InputError(
            f"schedule {name!r} is not built; there are {', '.join(NAMES)}{closest(name, NAMES)}"
        )
    if name not in NAMES:
        raise unknown("schedule", name, NAMES, f"there are {', '.join(NAMES)}")
    return name


def _whole(size: Any) -> int:
    """A size as an integer; 0, which no size may be, where it is none."""
    try:
        return index(size)
    except TypeError:
        return 0
