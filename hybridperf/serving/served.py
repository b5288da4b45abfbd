"""Operating points of a table, priced: every row's engines and clients as columns.

Axes: N rows that can be predicted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.serving_effects import NAMES, ServingEffects, believed
from hybridperf.serving.admission import Admission
from hybridperf.serving.loads import Engines, Latency, Loads, sent_seconds
from hybridperf.serving.machines import Machine
from hybridperf.serving.rows import ServedRow
from hybridperf.workloads.serving import Deployment, prompt_launches, step_times
from hybridperf.workloads.serving.deployment import ServingMemory, serving_memory

_Engine = tuple[Machine, Deployment]
_MOST_ENGINES = 8192  # that are kept, about 10 kB each


@dataclasses.dataclass(frozen=True)
class Served:
    """Rows with what their engines take."""

    rows: tuple[ServedRow, ...]  # [N]
    at: np.ndarray  # their places in the table [N]
    loads: Loads
    memory: tuple[ServingMemory, ...]
    capacity: np.ndarray  # bytes of a GPU [N]
    problems: dict[int, str]  # of the other rows, by place
    unmeasured: np.ndarray  # of each row's GPU no op is measured, bool [N]

    def part(self, chosen: np.ndarray) -> Served:
        """Some of the rows, bool [N]."""
        at = np.flatnonzero(chosen)
        memory = tuple(self.memory[one] for one in at)
        rows = tuple(self.rows[one] for one in at)
        return Served(
            rows, self.at[at], self.loads.part(at), memory, self.capacity[at], {},
            self.unmeasured[at],
        )  # fmt: skip

    def latency(self, effects: ServingEffects) -> Latency:
        """[N]; effects [N] or the same for all."""
        return self.loads.latency(effects)


def believed_effects(rows: Sequence[ServedRow]) -> ServingEffects:
    """Of each row's framework [N]; a client's own number of requests tells its burst."""
    place: dict[tuple, int] = {}  # of kinds of rows, told apart by what they hold, not by its value
    kinds: list[ServingEffects] = []
    of = np.empty(len(rows), int)
    for at, row in enumerate(rows):
        told = row.framework, row.prefill is not None, row.eager, row.release, row.view == "engine"
        kind = (*told, id(row.launch_host), id(row.machine))
        if kind not in place:
            spec = row.machine.spec if row.machine else None
            place[kind] = len(kinds)
            kinds.append(believed(*told[:3], row.launch_host, *told[3:], spec))
        of[at] = place[kind]
    found = {name: np.array([getattr(one, name) for one in kinds])[of] for name in NAMES}
    told_requests = np.array([row.requests for row in rows])
    burst = 1.0 / np.maximum(told_requests, 1.0)
    found["burst"] = np.where(told_requests > 0, burst, found["burst"])
    return ServingEffects(**found)


def served(
    rows: Sequence[ServedRow], load: Callable[[Machine], PerfModel] = Machine.load
) -> Served:
    """Rows of a table, those that can be priced, each machine by what `load` gives of it."""
    problems = {at: row.refused for at, row in enumerate(rows) if row.refused}
    times = _times(rows, problems, load)
    good = [at for at in range(len(rows)) if at not in problems]
    models = {key[0]: load(key[0]) for key in times}
    mine = [rows[at].having(launch_host=models[rows[at].machine].host) for at in good]  # type: ignore[index]
    memory = {key: serving_memory(key[1]) for key in times}
    place: dict[Any, int] = {key: at for at, key in enumerate(times)}
    of = [(row.machine, row.engine) for row in mine]
    decode = np.array([place[key] for key in of], int)
    first = np.array([place[row.machine, row.prefill] if row.prefill else -1 for row in mine], int)
    kept = tuple(
        memory[key].with_steps_of(row.chunk)  # type: ignore[index]
        for key, row in zip(of, mine, strict=True)
    )
    capacity = np.array([row.memory_bytes for row in mine], float)
    most = [row.engine.max_sequences for row in mine if row.engine]
    held = [
        one.sequences(size, row.held)
        for one, size, row in zip(kept, capacity.tolist(), mine, strict=True)
    ]

    def each(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in mine], float)

    engines = Engines.of(
        [key[1] for key in times], [*times.values()],
        [prompt_launches(key[1], key[0].spec) for key in times],
    ) if times else None  # fmt: skip
    loads = Loads(
        engines, decode, first, each("clients"), each("prompt"), each("output"),  # type: ignore[arg-type]
        np.clip(held, 1.0, most), each("chunk"), each("workers"), each("prefill_workers"),
        each("at_once") > 0, _sent_s(mine, memory, models),
        Admission(*np.array([row.admission for row in mine], float).reshape(-1, 3).T),
    )  # fmt: skip
    bare: dict[Any, bool] = {
        machine: not any(one.rows for one in model.measured.families.values())
        for machine, model in models.items()
    }
    unmeasured = np.array([bare[row.machine] for row in mine], bool)
    return Served(tuple(mine), np.array(good, int), loads, kept, capacity, problems, unmeasured)


def _sent_s(
    rows: Sequence[ServedRow], memory: dict[_Engine, ServingMemory],
    models: dict[Machine, PerfModel],
) -> np.ndarray:  # fmt: skip
    """Of each row's prompt to the engine that decodes [N]; 0 where that one computed it."""
    out = np.zeros(len(rows))
    groups: dict[tuple[Machine, int], list[int]] = {}
    for at, row in enumerate(rows):
        if row.prefill is not None and row.machine is not None:
            groups.setdefault((row.machine, int(row.gpus)), []).append(at)
    for (machine, gpus), some in groups.items():
        sizes = [memory[machine, rows[at].prefill].sent(rows[at].prompt) for at in some]  # type: ignore[index]
        out[some] = sent_seconds(models[machine], sizes, gpus)
    return out


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
