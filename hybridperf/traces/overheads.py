"""The host's overheads, learned from traces: what it costs to issue work, apart from the work.

An outermost framework op, on the thread that runs it:

    ... op | between_ops | op: before_launch [launch_call] between_launches [launch_call]
    after_launch | between_ops | next op ...

in Lin et al. (HiPC 2022) T1; T2, T4, T5, T3. An op that launches nothing costs its whole time
(`without_launch`, there also T5).

* Writing a record down costs the host time as well: `profiler_s` is taken off for each record
  within an interval, down to zero.
* Time in calls that wait for the device is the device's, not the host's: it is taken off, and a
  launch that waits is left out.
* Gaps between ops count from 2 us on and below 200 us: shorter ones are the clock, longer ones are
  the user's own code.
* What lies more than 1.5 interquartile ranges outside the quartiles is dropped: the first call of a
  kernel, the garbage collector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.io import InputError
from hybridperf.traces.events import CALL, NONE, OP, RankTrace
from hybridperf.traces.idle import device_waits
from hybridperf.traces.steps import RecordedStep

PROFILER_S = 2e-6  # of each record, as Lin et al. take it
BETWEEN_OPS_S = (2e-6, 200e-6)  # what counts as the gap between two ops
OUTSIDE = 1.5  # interquartile ranges
_LEAST_FOR_QUARTILES = 4
# of clocks that count whole microseconds: what is that near to the quartiles is no outlier
_TICK_S = 1e-6
_CLOCK_TICK_S = 1e-9  # the finest that traces are written in
_BACKWARD = "autograd::engine::evaluate_function: "

Samples = defaultdict[str, list[float]]  # seconds by kind of op or call


def fit_host(
    traces: Sequence[RankTrace],
    steps: Sequence[Sequence[RecordedStep]],
    profiler_s: float = PROFILER_S,
) -> Host:
    """Overheads of the host that made the traces; `steps` are the steps of each trace.

    Raises: InputError: the host launches nothing.
    """
    between: list[np.ndarray] = []
    kinds = ("before", "after", "call", "launches", "without")
    samples = {name: Samples(list) for name in kinds}
    for trace, of_trace in zip(traces, steps, strict=True):
        top, waits = outermost_op(trace), device_waits(trace)
        launches = np.zeros(len(trace.host), bool)
        launches[trace.device_events.call[trace.device_events.call != NONE]] = True
        for step in of_trace:
            between.append(_between_ops(trace, step, top))
            _add_ops(samples, trace, step, top, launches, waits, profiler_s)
    if not samples["call"]:
        expected = "expected traces in which the host launches work for a device"
        raise InputError(f"{expected}, got none that does; record them with CUDA activity on")
    return Host(
        source=", ".join(trace.source for trace in traces),
        profiler_s=profiler_s,
        between_ops_s=_spread(np.concatenate(between)),
        before_launch_s=_overhead(samples["before"]),
        after_launch_s=_overhead(samples["after"]),
        launch_call_s=_overhead(samples["call"]),
        between_launches_s=_overhead(samples["launches"]),
        without_launch_s=_overhead(samples["without"]),
    )


def op_kind(name: str) -> str:
    """Name that an op's overheads are kept under: of a backward node, what it computes."""
    return name.removeprefix(_BACKWARD)


def outermost_op(trace: RankTrace) -> np.ndarray:
    """The outermost framework op around each host event, itself if so; NONE outside ops [H]."""
    is_op, parent = np.append(trace.host.kind == OP, False), np.append(trace.host.parent, NONE)
    found, here = np.full(len(trace.host), NONE), np.arange(len(trace.host))
    while (here != NONE).any():  # of NONE the last
        found = np.where(is_op[here], here, found)
        here = parent[here]
    return found


def _between_ops(trace: RankTrace, step: RecordedStep, outermost: np.ndarray) -> np.ndarray:
    """Gaps between an outermost op and the next of its thread."""
    host = trace.host
    top = step.host[outermost[step.host] == step.host]
    top = top[np.lexsort((host.start_s[top], host.thread[top]))]
    gap_s = host.start_s[top[1:]] - host.end_s[top[:-1]]
    same = host.thread[top[1:]] == host.thread[top[:-1]]
    # whole ones, so that rounding of seconds decides nothing at the edges
    ticks = np.rint(gap_s / _CLOCK_TICK_S)
    least, most = (round(edge_s / _CLOCK_TICK_S) for edge_s in BETWEEN_OPS_S)
    return gap_s[same & (ticks >= least) & (ticks < most)]


def _add_ops(
    samples: dict[str, Samples], trace: RankTrace, step: RecordedStep, outermost: np.ndarray,
    launches: np.ndarray, waits: np.ndarray, profiler_s: float,
) -> None:  # fmt: skip
    """Add what each op of a step shows."""
    host = trace.host
    event = step.host[np.isin(outermost[step.host], step.host)]  # in an op of this step
    # by op: itself, then what is in it
    order = np.lexsort((host.start_s[event], event != outermost[event], outermost[event]))
    event = event[order]
    top = outermost[event]
    waited_s = np.where((waits & ~launches)[event], host.end_s[event] - host.start_s[event], 0.0)
    # what to take off for the records before each
    before = np.concatenate([[0.0], np.cumsum(profiler_s + waited_s)])

    def add(
        name: str, which: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, first: np.ndarray,
        last: np.ndarray,
    ) -> None:  # fmt: skip
        """Add seconds between two times, without those of the records `first` up to `last`."""
        own_s = np.maximum(end_s - start_s - (before[last] - before[first]), 0.0)
        for at, seconds in zip(which.tolist(), own_s.tolist(), strict=True):
            samples[name][kinds[at]].append(seconds)

    begin = np.flatnonzero(event == top)
    until = np.append(begin[1:], len(event))
    launch = np.flatnonzero(launches[event] & (host.kind[event] == CALL))
    first = np.searchsorted(launch, begin)
    count = np.searchsorted(launch, until) - first
    with_launch, op = count > 0, event[begin]
    kinds = [op_kind(trace.host_name(one)) for one in op]
    one, last = launch[first[with_launch]], launch[(first + count - 1)[with_launch]]
    of = np.flatnonzero(with_launch)
    add("before", of, host.start_s[op[of]], host.start_s[event[one]], begin[of] + 1, one)
    add("after", of, host.end_s[event[last]], host.end_s[op[of]], last + 1, until[of])
    none = np.flatnonzero(~with_launch)
    add("without", none, host.start_s[op[none]], host.end_s[op[none]], begin[none] + 1, until[none])
    pair = np.flatnonzero(top[launch[1:]] == top[launch[:-1]]) if len(launch) else launch
    a, b = launch[:-1][pair], launch[1:][pair]
    of_pair = np.searchsorted(begin, a, side="right") - 1
    add("launches", of_pair, host.end_s[event[a]], host.start_s[event[b]], a + 1, b)
    call = event[launch[~waits[event[launch]]]]
    call_s = np.maximum(host.end_s[call] - host.start_s[call] - profiler_s, 0.0)
    for at, seconds in zip(call, call_s.tolist(), strict=True):
        samples["call"][trace.host_name(at)].append(seconds)


def _overhead(samples: Samples) -> Overhead:
    pooled = {kind: np.array(seconds) for kind, seconds in sorted(samples.items())}
    spreads = {kind: _spread(seconds) for kind, seconds in pooled.items()}
    by_kind = {kind: spread for kind, spread in spreads.items() if spread is not None}
    shared = _spread(np.concatenate([*pooled.values(), np.zeros(0)]))
    return Overhead(shared=shared, by_kind=by_kind)


def _spread(seconds: np.ndarray) -> Spread | None:
    """Of what lies within 1.5 interquartile ranges of the quartiles; None of nothing."""
    if len(seconds) >= _LEAST_FOR_QUARTILES:
        low, high = np.quantile(seconds, [0.25, 0.75])
        # what lies at the edge is within, however it was rounded
        reach = max(OUTSIDE * (high - low), _TICK_S) + _CLOCK_TICK_S / 2
        seconds = seconds[(seconds >= low - reach) & (seconds <= high + reach)]
    if not len(seconds):
        return None
    mean_s, std_s, median_s = map(float, (seconds.mean(), seconds.std(), np.median(seconds)))
    return Spread(mean_s=mean_s, std_s=std_s, median_s=median_s, count=len(seconds))
