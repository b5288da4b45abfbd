"""What each instruction of a compiled step takes while the step runs, from XLA's own trace.

The trace has an event for every instruction that runs, under its name in the optimized program,
which is also the label of its op in a prediction. The event of a loop spans those of its body, so
an instruction's time is its event less the events inside it; executions of the same instruction
within a call add up. Of several calls each instruction keeps what is usual, as an op that is
measured alone.

An event costs a fraction of a microsecond itself, and on several cores an instruction that hands
work to other threads may end before its work does: on one core the times add up to the step's.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from hybridperf_calibration.microbench.timer import usual

NS = 1e-9

Event = tuple[float, float, str, str]  # start and end in ns, instruction, which call


def profile(call: Callable[[], object], calls: int) -> dict[str, float]:
    """Seconds per call of each instruction that `call` runs: as usual in `calls` calls."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own events would make calls slow
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(calls):
                call()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        traces = [jax.profiler.ProfileData.from_file(str(path)) for path in files]
    taken: dict[str, dict[str, float]] = {}
    for trace in traces:
        for plane in trace.planes:
            for line in plane.lines:  # a thread, or a stream of a GPU
                for run, instruction, nanoseconds in own_times(_events(line)):
                    of_call = taken.setdefault(run, defaultdict(float))
                    of_call[instruction] += nanoseconds * NS
    names = {name for of_call in taken.values() for name in of_call}
    return {
        name: usual([of_call[name] for of_call in taken.values() if name in of_call])
        for name in sorted(names)
    }


def own_times(events: Iterable[Event]) -> list[tuple[str, str, float]]:
    """(call, instruction, nanoseconds not spent in events within) of each event of one thread."""
    found: list[list] = []  # run, name, own nanoseconds
    open_events: list[tuple[float, int]] = []  # end, place in `found`; the innermost last
    for start, end, name, run in sorted(events, key=lambda e: (e[0], -e[1])):
        while open_events and open_events[-1][0] <= start:
            open_events.pop()
        if open_events:
            found[open_events[-1][1]][2] -= end - start
        open_events.append((end, len(found)))
        found.append([run, name, end - start])
    return [(run, name, max(own, 0.0)) for run, name, own in found]


def _events(line: object) -> list[Event]:
    events = []
    for event in line.events:  # type: ignore[attr-defined]
        facts = dict(event.stats)
        if "hlo_op" in facts:  # the others are the runtime's own
            end_ns = event.start_ns + event.duration_ns
            instruction, run = str(facts["hlo_op"]), str(facts.get("run_id", ""))
            events.append((event.start_ns, end_ns, instruction, run))
    return events
