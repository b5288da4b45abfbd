"""Operating points of a table, priced: every row's closed loop before and after effects.

Axes: N rows that can be predicted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.serving_effects import NAMES, ServingEffects, believed
from hybridperf.runs.admission import Admission
from hybridperf.runs.closed_loop import Latency, Loop, settled
from hybridperf.runs.serving_machines import Machine
from hybridperf.runs.serving_rows import ServedRow
from hybridperf.workloads.serving import Deployment, prompt_launches, step_times
from hybridperf.workloads.serving.deployment import ServingMemory, serving_memory

_Engine = tuple[Machine, Deployment]
_MOST_ENGINES = 8192  # that are kept, about 10 kB each


@dataclasses.dataclass(frozen=True)
class Served:
    """Rows with what their engines take."""

    rows: tuple[ServedRow, ...]  # [N]
    at: np.ndarray  # their places in the table [N]
    loops: Loop  # [N] each
    memory: tuple[ServingMemory, ...]
    capacity: np.ndarray  # bytes of a GPU [N]
    problems: dict[int, str]  # of the other rows, by place
    unmeasured: np.ndarray  # of each row's GPU no op is measured, bool [N]

    def part(self, chosen: np.ndarray) -> Served:
        """Some of the rows, bool [N]."""
        at = np.flatnonzero(chosen)
        loops = Loop(*(np.asarray(one)[at] for one in self.loops))
        memory = tuple(self.memory[one] for one in at)
        rows = tuple(self.rows[one] for one in at)
        return Served(
            rows, self.at[at], loops, memory, self.capacity[at], {}, self.unmeasured[at]
        )  # fmt: skip

    def latency(self, effects: ServingEffects) -> Latency:
        """[N]; effects [N] or the same for all."""
        return self.loops.latency(effects)


def believed_effects(rows: Sequence[ServedRow]) -> ServingEffects:
    """Of each row's framework [N]; a client's own number of requests tells its burst."""
    each = [believed(row.framework, row.prefill is not None) for row in rows]
    found = {name: np.array([getattr(one, name) for one in each]) for name in NAMES}
    told = np.array([row.requests for row in rows])
    found["burst"] = np.where(told > 0, 1.0 / np.maximum(told, 1.0), found["burst"])
    return ServingEffects(**found)


def served(
    rows: Sequence[ServedRow], load: Callable[[Machine], PerfModel] = Machine.load
) -> Served:
    """Rows of a table, those that can be priced, each machine by what `load` gives of it."""
    problems = {at: row.refused for at, row in enumerate(rows) if row.refused}
    times = _times(rows, problems, load)
    good = [at for at in range(len(rows)) if at not in problems]
    mine = [rows[at] for at in good]
    memory = {key: serving_memory(key[1]) for key in times}
    groups: dict[tuple[_Engine, _Engine | None], list[int]] = {}
    for place, row in enumerate(mine):
        assert row.machine is not None
        assert row.engine is not None
        first = (row.machine, row.prefill) if row.prefill else None
        groups.setdefault(((row.machine, row.engine), first), []).append(place)
    effects = believed_effects(mine)
    fields = {name: np.ones(len(mine)) for name in Loop._fields}
    capacity = np.zeros(len(mine))
    for (key, first), places in groups.items():
        at, engine = np.array(places), key[1]
        some = [mine[place] for place in places]
        clients, prompt, output, workers, prefillers = (
            np.array([getattr(row, name) for row in some])
            for name in ("clients", "prompt", "output", "workers", "prefill_workers")
        )
        capacity[at] = some[0].memory_bytes
        tokens = np.array([row.held for row in some])
        held = memory[key].sequences(some[0].memory_bytes, tokens)  # type: ignore[arg-type]
        ranks = workers * engine.attention_dp
        slots = ranks * np.clip(held, 1.0, engine.max_sequences)
        own = ServingEffects(**{name: getattr(effects, name)[at] for name in NAMES})
        apart = None
        if first is not None:
            apart = times[first], prefillers * first[1].attention_dp
        chunk = np.array([row.chunk for row in some])
        launches = prompt_launches(first[1] if first else engine, key[0].spec)
        admission = Admission(*np.array([row.admission for row in some]).T)
        loop = settled(
            times[key], clients, prompt, output / engine.tokens_per_pass, slots, own, chunk, ranks,
            apart, admission, launches, prompt * engine.cached_share,
            float(engine.launches == "eager"), engine.tokens_per_pass,
        )  # fmt: skip
        for name, value in loop._asdict().items():
            fields[name][at] = value
    kept = tuple(memory[(row.machine, row.engine)] for row in mine)  # type: ignore[index]
    bare = {
        machine: not load(machine).measured.families
        for row in mine if (machine := row.machine) is not None
    }  # fmt: skip
    unmeasured = np.array([row.machine is not None and bare[row.machine] for row in mine], bool)
    return Served(
        tuple(mine), np.array(good, int), Loop(**fields), kept, capacity, problems, unmeasured
    )  # fmt: skip


@functools.cache
def _kept() -> dict[tuple[int, str, Deployment], tuple[PerfModel, StepTimes]]:
    """Steps of engines by machine: parts of a table, and chunks of a sweep, ask the same ones."""
    return {}


def _priced(model: PerfModel, engines: Sequence[Deployment], all_reduce: str) -> list[StepTimes]:
    """Steps of engines of a machine, those that are new priced together."""
    keys, kept = [(id(model), all_reduce, one) for one in engines], _kept()
    if len(kept) + len(keys) > _MOST_ENGINES:
        kept.clear()
    new = [one for one, key in zip(engines, keys, strict=True) if key not in kept]
    found = step_times(model, new, all_reduce) if new else []
    for one, times in zip(new, found, strict=True):
        kept[id(model), all_reduce, one] = model, times  # the model stays, so no other has its id
    return [kept[key][1] for key in keys]


def _times(
    rows: Sequence[ServedRow], problems: dict[int, str], load: Callable[[Machine], PerfModel]
) -> dict[_Engine, StepTimes]:
    """Steps of all engines, priced together by machine; what cannot be is a problem of its rows."""
    by_machine: dict[Machine, dict[Deployment, None]] = {}
    for row in rows:
        for engine in (row.engine, row.prefill):
            if engine is not None and row.machine is not None:
                by_machine.setdefault(row.machine, {})[engine] = None
    found: dict[_Engine, StepTimes] = {}
    failed: dict[_Engine, str] = {}
    for machine, engines in by_machine.items():
        model = load(machine)
        try:
            some = _priced(model, [*engines], machine.all_reduce)
            found |= {(machine, one): times for one, times in zip(engines, some, strict=True)}
        except InputError:  # of one of them: each by itself
            for one in engines:
                try:
                    found[(machine, one)] = step_times(model, [one], machine.all_reduce)[0]
                except InputError as error:
                    failed[(machine, one)] = str(error)
    for at, row in enumerate(rows):
        for engine in (row.engine, row.prefill):
            if engine is not None and row.machine is not None and (row.machine, engine) in failed:
                problems.setdefault(at, failed[(row.machine, engine)])
    return found
