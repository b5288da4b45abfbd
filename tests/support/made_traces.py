"""Traces made by hand for tests, in microseconds."""

import numpy as np

from hybridperf.traces.events import (
    CALL,
    KERNEL,
    MARK,
    NONE,
    OP,
    DeviceEvents,
    HostEvents,
    RankTrace,
    nesting_order,
    parents,
)

REDUCE = "ncclKernel_AllReduce"
KINDS = {"op": OP, "call": CALL, "mark": MARK}


def made_trace(host, device, rank=0, world=1, shapes=("",), origin_us=0.0) -> RankTrace:
    """`host`: (kind, name, start, end[, thread]); `device`: (name, stream, start, end, name of its
    call or None[, kind]).

    Calls are told apart by name: the n-th device event of a call's name is launched by the n-th
    call of that name. Kernels whose name has `nccl` in it communicate.
    """
    names = tuple(dict.fromkeys([*(event[1] for event in host), *(event[0] for event in device)]))
    start_s, end_s = (np.array([event[at] for event in host], float) * 1e-6 for at in (2, 3))
    kind = np.array([KINDS[event[0]] for event in host], np.int8)
    thread = np.array([event[4] if len(event) > 4 else 0 for event in host], np.int32)
    order = nesting_order(start_s, end_s, kind)
    columns = [column[order] for column in (thread, start_s, end_s, kind)]
    events = HostEvents(
        np.array([names.index(host[at][1]) for at in order], np.int32), columns[3], columns[0],
        columns[1], columns[2], parents(*columns), np.full(len(host), NONE, np.int32),
    )  # fmt: skip
    device = sorted(device, key=lambda event: event[2])
    of_name = {name: np.flatnonzero(events.name == at).tolist() for at, name in enumerate(names)}
    calls = [NONE if event[4] is None else of_name[event[4]].pop(0) for event in device]
    return RankTrace(
        f"made by hand, rank {rank}",
        rank,
        world,
        "made-up GPU",
        origin_us,
        names,
        tuple(map(str, np.unique(thread))),
        shapes,
        events,
        DeviceEvents(
            np.array([names.index(event[0]) for event in device], np.int32),
            np.array([event[5] if len(event) > 5 else KERNEL for event in device], np.int8),
            np.array([event[1] for event in device], np.int64),
            np.array([event[2] for event in device], float) * 1e-6,
            np.array([event[3] for event in device], float) * 1e-6,
            np.array(calls, np.int32),
            np.full(len(device), np.nan),
            np.array(["nccl" in event[0] for event in device], bool),
        ),
    )


def two_ranks():
    """Two ranks that meet once; the second comes last."""
    ranks = []
    for number, came in ((0, 100), (1, 300)):
        host = [
            ("mark", "ProfilerStep#1", 0, 420),
            ("op", "aten::mm", came - 60, came - 40),
            ("call", "k", came - 55, came - 50),
        ]
        host += [
            ("call", "r", came - 30, came - 25),
            ("call", "cudaStreamWaitEvent", 320, 321),
            ("call", "z", 330, 335),
        ]
        device = [
            ("gemm", 7, came - 48, came - 2, "k"),
            (REDUCE, 20, came, 400, "r"),
            ("after", 7, 402, 500, "z"),
        ]
        ranks.append(made_trace(host, device, rank=number, world=2, origin_us=1e15))
    return ranks
