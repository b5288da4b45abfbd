"""An engine that serves a model as pure functions of its machine's, its framework's and its load's
numbers, for JAX: seconds of a step, and the operating point that such steps lead to.

    deployment = hp.Deployment(hp.load_shape("llama3-8b"), tp=2, framework="vllm")
    step = hp.served_step_function(model, deployment, sequences=64, keys=1024)
    point = hp.serving_function(model, deployment, clients=64, prompt=1024, output=256)
    jax.grad(lambda k: point(k)["tokens_per_s"])(point.knobs)["memory_bytes_per_s"]

Knobs of the machine are those of `hp.step_function`. `effects` are what the framework adds
(`model/serving_effects.py`), at what is believed of it. `load` is continuous: steps are composed at
doubling sizes (`workloads/serving/times.py`), between which seconds are interpolated in logs. Held
is what makes other calls: the deployment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hybridperf.collectives.rows import DEFAULT_IMPLEMENTATION
from hybridperf.engine.elasticities import elasticities
from hybridperf.engine.knobs import KnobFunction, Knobs
from hybridperf.engine.step_function import PreparedStep, platform_at
from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError, unknown
from hybridperf.io.namespace import Array, array_module
from hybridperf.model import PerfModel
from hybridperf.model.serving_effects import ServingEffects, believed
from hybridperf.ops.frameworks import serving_framework, serving_frameworks
from hybridperf.serving.admission import NO_LIMIT
from hybridperf.serving.deployment_latency import LARGEST_CHUNK, Question
from hybridperf.serving.deployments import engine_of
from hybridperf.serving.engine import Engine
from hybridperf.serving.engine_load import FirstTokens, stages_in_turn, under_load
from hybridperf.serving.machines import known_names
from hybridperf.serving.rows import ADMISSION, admission_by
from hybridperf.workloads.serving import Deployment, prompt_launches, steps_as_rows
from hybridperf.workloads.serving.deployment import serving_memory

if TYPE_CHECKING:
    import pandas

_NONE = 1e-3  # of a sequence or token: zero comes as a billionth of today's number
_OF_STEP = ("kernels", "gap_s", "step_s", "sequence_s", "launch_s")  # effects that a step has


def served_step_function(
    model: PerfModel, deployment: Deployment, *, sequences: float, keys: float, chunk: float = 0.0,
    chunk_keys: float | None = None, all_reduce: str | None = None,
) -> KnobFunction:  # fmt: skip
    """Seconds of one step of an engine that serves, as a pure JAX function.

    Args:
        model: the machine, with collectives where the deployment spans several GPUs.
        deployment: the engine.
        sequences: that decode, of each attention rank, one token each; 0: a step of prompts alone.
        keys: that each of them looks at, in the mean.
        chunk: tokens of prompts; 0: sequences decode alone.
        chunk_keys: that each of those looks at, in the mean; None: half of the chunk.
        all_reduce: the library whose all-reduce runs, as tables of collectives name it; None: the
            one that `hp.predict_serving` takes.

    Returns:
        A function of knobs, `f(knobs) -> seconds`: those of the machine (`hp.step_function`),
        `load` (the four numbers above) and `effects` of the framework.

    Raises:
        InputError: when the machine cannot price the steps, or the step holds nothing.
    """
    sizes = {"sequences": sequences, "keys": keys, "chunk": chunk,
             "chunk_keys": chunk / 2.0 if chunk_keys is None else chunk_keys}  # fmt: skip
    _check(sizes, ("sequences", "chunk"))
    steps = _Steps.of(model, deployment, all_reduce)

    def seconds(times: StepTimes, knobs: Knobs) -> Array:
        load = knobs["load"]
        xp = array_module(*load.values())
        sequences, chunk = (
            xp.where(load[name] > _NONE, load[name], 0.0) for name in ("sequences", "chunk")
        )
        return times.seconds(sequences, load["keys"], chunk, load["chunk_keys"])

    what = f"seconds of a step that serves {deployment.shape.name}"
    return steps.function(what, steps.knobs(sizes, _OF_STEP), seconds)


def serving_function(
    model: PerfModel, deployment: Deployment, *, clients: float, prompt: float, output: float,
    cached: float | None = None, slots: float | None = None, chunk: float = LARGEST_CHUNK,
    admission: Mapping[str, float] | None = None, all_reduce: str | None = None,
) -> KnobFunction:  # fmt: skip
    """The operating point of an engine under a closed loop of clients, as a pure JAX function.

    Args:
        model: the machine, with collectives where the deployment spans several GPUs.
        deployment: the engine.
        clients: of each attention rank; each sends its next request when the last has ended.
        prompt: tokens in the mean.
        output: tokens in the mean, 2 or more.
        cached: tokens of a prompt that the prefix cache holds; None: the deployment's share.
        slots: sequences at once, of each rank; None: as many as its cache and settings let in.
        chunk: tokens of a step, at most.
        admission: settings of when prompts are taken, as columns of `hp.predict_serving` name them
            (`dict(scheduler_recv_interval=30)`); None: as they come.
        all_reduce: the library whose all-reduce runs, as tables of collectives name it; None: the
            one that `hp.predict_serving` takes.

    Returns:
        A function of knobs, `f(knobs) -> results`: a dict of `ttft_s`, `tpot_s`, `requests_per_s`
        and `tokens_per_s` (of output) of the whole engine. Its `knobs` are those of the machine
        (`hp.step_function`), `load` (the numbers above) and `effects` of the framework.

    Raises:
        InputError: when the machine cannot price the steps, or no request is there.
    """
    if slots is None:
        device, of = model.device, serving_memory(deployment).with_steps_of(chunk)
        if not device.memory_bytes:
            raise InputError(f"expected slots: the memory of {device.id} is not known; give them")
        reserved = serving_framework(deployment.framework).reserved
        held = float(of.sequences(device.memory_bytes, prompt + reserved * output))
        if held < 1:
            raise InputError(
                f"{deployment.shape.name} with a request does not fit into {device.id}; give a"
                " deployment over more GPUs"
            )
        slots = min(held, float(deployment.max_sequences))
    cached = prompt * deployment.cached_share if cached is None else cached
    sizes = {"clients": clients, "prompt": prompt, "output": output, "cached": cached,
             "slots": slots, "chunk": chunk}  # fmt: skip
    _check(sizes, ("clients",))
    if output < 2:
        raise InputError(f"expected an output of 2 tokens or more, got {output}; mend it")
    for name in admission or ():
        if name not in ADMISSION:
            known = f"known are {', '.join(ADMISSION)}"
            raise unknown("setting of admission", name, ADMISSION, known)
    whole = admission_by(admission or {}, deployment, 1.0)  # shares of a step's tokens
    steps = _Steps.of(model, deployment, all_reduce)
    piece = serving_framework(deployment.framework).piece_of_prompt

    def results(times: StepTimes, knobs: Knobs) -> dict[str, Array]:
        load, effects = knobs["load"], steps.effects(knobs)
        taken = whole._replace(tokens=whole.tokens * load["chunk"])
        engine = Engine(
            times, slots=load["slots"], budget=load["chunk"],
            kv_tokens=NO_LIMIT,  # slots are what fits
            drafted=deployment.drafted, acceptance=deployment.acceptance, admission=taken,
        )  # fmt: skip
        stages = stages_in_turn(float(deployment.pp), load["prompt"], piece)
        added = FirstTokens(effects.prefill * stages, effects.waited_steps, effects.first_token_s)
        found = under_load(
            engine, load["clients"], load["prompt"], load["output"], load["cached"], added
        )
        rate = found.rate * deployment.attention_dp
        return {
            "ttft_s": found.ttft_s, "tpot_s": found.tpot_s, "requests_per_s": rate,
            "tokens_per_s": rate * load["output"],
        }  # fmt: skip

    every = tuple(one.name for one in dataclasses.fields(ServingEffects) if one.name != "burst")
    what = f"operating point of an engine that serves {deployment.shape.name}"
    return steps.function(what, steps.knobs(sizes, every), results)


def deployment_elasticities(
    asked: Question, found: pandas.DataFrame
) -> tuple[int, dict[str, pandas.DataFrame]]:
    """How strongly each number drives the best deployment whose engines do all.

    Args:
        asked: what is to be served on what.
        found: its deployments, the best first (`deployments`).

    Returns:
        (its place among these, tables of `hp.elasticities` by result of `serving_function`).

    Raises:
        InputError: where prompts are computed apart in all of them.
    """
    whole = found.index[found["mode"] == "aggregated"]
    if not len(whole):
        raise InputError("expected a deployment whose engines do all, got none of them")
    place = int(whole[0])
    row = found.loc[place]
    engine = engine_of(asked, row)
    point = serving_function(
        asked.model, engine, clients=row["sequences"], prompt=asked.prompt, output=asked.output,
        slots=row["sequences"], chunk=row["chunk"], all_reduce=asked.all_reduce,
    )  # fmt: skip
    return place, {name: elasticities(point, name) for name in ("tokens_per_s", "ttft_s", "tpot_s")}


@dataclasses.dataclass(frozen=True, eq=False)
class _Steps:
    """Steps of a deployment on a machine, prepared."""

    deployment: Deployment
    prepared: PreparedStep
    tables: Any  # StepTimes by the seconds of its rows
    launches: float  # kernels of a step that is no CUDA graph
    believed: ServingEffects  # of its framework

    @staticmethod
    def of(model: PerfModel, deployment: Deployment, all_reduce: str | None) -> _Steps:
        if deployment.framework and deployment.framework not in serving_frameworks():
            names = serving_frameworks()
            raise unknown("framework", deployment.framework, names, f"known are {', '.join(names)}")
        usual = str(known_names()["reduce"])
        met = () if model.collectives is None else model.collectives.libraries
        libraries = met or (DEFAULT_IMPLEMENTATION, usual)
        all_reduce = usual if all_reduce is None else all_reduce
        if all_reduce not in ("", *libraries, usual):  # "": none in particular
            words = f"known are {', '.join(libraries)}"
            raise unknown("library of all_reduce", all_reduce, libraries, words)
        rows, tables = steps_as_rows(model, deployment, all_reduce)
        eager = deployment.launches == "eager"
        known = believed(deployment.framework, eager=eager, host=model.host, device=model.device)
        launches = prompt_launches(deployment, model.device)
        return _Steps(deployment, PreparedStep.of(model, rows), tables, launches, known)

    def knobs(self, load: Knobs, effects: tuple[str, ...]) -> dict[str, Any]:
        """Today's values of the machine's, the load's and the framework's knobs."""
        return self.prepared.knobs | {
            "load": {name: float(value) for name, value in load.items()},
            "effects": {name: float(getattr(self.believed, name)) for name in effects},
        }

    def function(
        self, what: str, usual: Knobs, results: Callable[[StepTimes, Knobs], Any]
    ) -> KnobFunction:
        """Of knobs what follows from the seconds of steps, written once for NumPy and JAX."""
        return KnobFunction(
            what, usual, lambda arrays, knobs: results(self.times(arrays, knobs), knobs),
            self.prepared.in_precision, self.settled,
            lambda knobs: results(self.known_times(knobs), knobs),
        )  # fmt: skip

    def settled(self, arrays: Any, knobs: Knobs, with_slopes: bool) -> Any:
        """`arrays` at knobs, as `PreparedStep.settled`."""
        rows, today = arrays
        return self.prepared.settled(rows, knobs, with_slopes), today

    def times(self, arrays: Any, knobs: Knobs) -> StepTimes:
        """Seconds of steps as the framework runs them."""
        rows, today = arrays
        machine = platform_at(today, self.prepared.groups, _of_machine(knobs))
        return self._as_run(self.tables(rows.durations(machine)), knobs)

    def known_times(self, knobs: Knobs) -> StepTimes:
        """The same by NumPy, of known knobs [B] of which the first are on the real axis."""
        machine, first = _of_machine(knobs), jax.tree.map(lambda one: one[0].real, knobs)
        slopes = any(map(np.iscomplexobj, jax.tree.leaves(knobs)))
        numbers = np.array(jax.tree.leaves(machine))
        # of those that vary what is asked for or a framework's effects the machine is the first's
        other = (numbers != numbers[:, :1]).any(0)
        different = np.concatenate([[0], np.flatnonzero(other)])
        which = np.where(other, np.cumsum(other), 0)
        machines = jax.tree.map(lambda one: one[different], machine)
        platform = platform_at(self.prepared.platform, self.prepared.groups, machines)
        seconds = self.prepared.known(first, slopes).durations(platform, xp=np)
        return self._as_run(StepTimes.stacked([*map(self.tables, seconds)]).of(which), knobs)

    def _as_run(self, alone: StepTimes, knobs: Knobs) -> StepTimes:
        eager, made = self.deployment.launches == "eager", self.deployment.tokens_per_pass
        return alone.as_run(self.effects(knobs), self.launches, float(eager), made)

    def effects(self, knobs: Knobs) -> ServingEffects:
        """Effects of the framework at these knobs."""
        return dataclasses.replace(self.believed, **knobs["effects"])


def _of_machine(knobs: Knobs) -> dict[str, Any]:
    return {name: value for name, value in knobs.items() if name not in ("load", "effects")}


def _check(sizes: dict[str, float], needed: tuple[str, ...]) -> None:
    """`InputError` for a load that is none."""
    for name, value in sizes.items():
        if not (np.isfinite(value) and value >= 0):
            raise InputError(f"expected {name} of 0 or more, got {value}; mend it")
    if not any(sizes[name] > 0 for name in needed):
        raise InputError(f"expected {' or '.join(needed)} above 0, got none; give one")
