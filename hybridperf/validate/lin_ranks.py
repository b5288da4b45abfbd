"""The 8-V100 step of `param_dlrm_8xv100`: every rank's step and waits, predicted from the other
seven ranks' host.

Given are what each rank issues and on which stream (its trace), when it begins and when its batch
is there (the first of its host times: data loading is an input), and the wire time of each
collective. Predicted are

    host        each launch and wait by its op and kernel: the mean of what the *other* ranks' hosts
                took (one rank never sees itself)
    kernels     the minimum that one takes on a V100 (a batch of 16: nothing here is bound by bytes
                or products)

and from these, by the evaluator, who waits how long for whom. The baseline: the mean step of the
other ranks. What tells ranks apart is mostly given: when they begin decides how long they
wait at the first collective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.traces.events import NONE
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import Replay, replay
from hybridperf.traces.replay_graph import DEVICE, HOST
from hybridperf.validate.lin_kernels import KERNEL_S

TRACES = "traces/param_dlrm_8xV100_kineto.tar.gz"


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The predicted step next to the measured one."""

    # rank, measured_s, predicted_s, error, null_error (mean step of the others), replay_error (its
    # own durations)
    steps: pd.DataFrame
    waits: pd.DataFrame  # collective, rank, measured_s, predicted_s


def ranks(data: Path) -> Ranks:
    """Judge the 8-V100 step."""
    made = replay(read_traces(Path(data) / TRACES))
    predicted = made.with_seconds(predicted_seconds(made))
    measured_s = made.measured_s
    others_s = (measured_s.sum() - measured_s) / (len(measured_s) - 1)
    steps = pd.DataFrame({
        "rank": np.arange(len(measured_s)), "measured_s": measured_s,
        "predicted_s": predicted.replayed_s, "error": predicted.error,
        "null_error": others_s / measured_s - 1, "replay_error": made.error,
    })  # fmt: skip
    waits = [
        pd.DataFrame(
            {"collective": str(one), "rank": one.rank, "measured_s": measured, "predicted_s": found}
        )
        for one, measured, found in predicted.waits_s()
    ]
    return Ranks(steps, pd.concat(waits, ignore_index=True))


def predicted_seconds(made: Replay) -> np.ndarray:
    """Seconds of each row [U]: hosts by the other ranks', kernels by their minimum."""
    rows, seconds = made.rows, made.seconds.copy()
    device = rows.kind == DEVICE
    seconds[device] = KERNEL_S + rows.fixed_s[device]
    host = np.flatnonzero(rows.kind == HOST)
    first = {int(rows.trace[row]): int(row) for row in host[::-1]}  # until its batch is there
    keys: dict[int, tuple[Hashable, ...]] = {
        int(row): _keys(made, int(row)) for row in host if first[int(rows.trace[row])] != row
    }
    by_key: dict[Hashable, dict[int, list[float]]] = {}
    for row, names in keys.items():
        for name in names:
            of_traces = by_key.setdefault(name, {})
            of_traces.setdefault(int(rows.trace[row]), []).append(float(made.seconds[row]))
    for row, names in keys.items():
        for name in names:
            of_others = [by for trace, by in by_key[name].items() if trace != rows.trace[row]]
            if of_others:
                seconds[row] = np.mean([value for values in of_others for value in values])
                break
    return seconds


def _keys(made: Replay, row: int) -> tuple[Hashable, ...]:
    """What a host's seconds go by, the closest first: op, kernel and call; op; anything."""
    trace = made.traces[made.rows.trace[row]]
    event, call = int(made.rows.event[row]), int(made.rows.call[row])
    op = trace.op_of_call(call) if call != NONE else NONE
    name = trace.host_name(op) if op != NONE else ""
    kernel = trace.device_name(event) if event != NONE else "rest"
    return (name, kernel, trace.host_name(call) if call != NONE else ""), (name,), ()
