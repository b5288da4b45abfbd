"""Goodput: the share of a run's time that moves training forward, in closed form.

A job runs until something fails, is found out, starts again from its last checkpoint and does again
what it had done since. Failures come without memory at a rate r while the job runs or restarts (not
while it lies). Between checkpoints lie `interval_s` of useful work; with evaluations and the
checkpoint they take w seconds, longer by a chance of stalls. The exponent of a segment

    x = r w + stalls (1 - e^(-r stall_s))        e^-x: nothing fails on the way

makes the seconds that the job runs for a block of n segments that ends in storage, where a share
`survived` of failures finds a copy in the memory of other nodes (Wang et al., Gemini, SOSP 2023):

    running = ((1 + t (e^x - 1))^n - 1) / (r t) / (q + (1 - q) e^(-r t lag_s))

    t: chance that a failure falls back on storage    q: that a planned stop waits for the write

For n = 1 and t = 1 it is (e^(r w) - 1) / r, Daly's (2006). A checkpoint that is written behind
training counts `lag_s` after its snapshot; a failure before falls back on the one before,
which is the last divisor. Each failure costs detection, waiting for a node, and a restart during
which the next may come. Planned interruptions wait for a checkpoint: nothing is done again.

Young (CACM 1974) gives the best interval as sqrt(2 checkpoint / rate); `best_interval` climbs the
gradient of the whole of it. All are functions of NumPy or JAX numbers.

Spare nodes: how long a job that needs all of its nodes waits for one that works.

A job runs on n nodes and has s spare ones. Nodes that fail are repaired, each on its own, and come
back as spares. While s + 1 are away the job lies and nothing more fails: that is Erlang's loss
system with s + 1 places and a load a = failures of nodes x repair (Erlang 1917), insensitive to how
repair times are distributed. A failure finds no spare with chance B(s, a) and waits then for the
first of s + 1 repairs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from scipy.optimize import minimize

from hybridperf.engine.queues import erlang_b_between
from hybridperf.io.namespace import Array, array_module, floats

_NEVER_PER_S = 1e-18  # a rate of zero: one failure in thirty thousand million years
# failures expected in what none may interrupt: never done, whatever the number; in float64, and in
# float32, where squares of their powers of e are divided by
_HOPELESS = {8: 40.0, 4: 18.0}
_LEAST_WAY = 1e-9  # chance that a failure falls back on storage, where all survive in memory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FailureCycle:
    """What decides goodput: numbers, or arrays of one shape; seconds, and rates per second.

    Attributes:
        failures_per_s: of the whole job, while it runs or restarts.
        interval_s: useful work between checkpoints.
        checkpoint_s: for which training stands still at each checkpoint.
        detection_s: from a failure until the job is known to be dead and a node is there.
        restart_s: until training goes on from storage: processes, loading, first step.
        lag_s: from the snapshot until a checkpoint counts, training going on.
        survived: share of failures that find a copy in memory.
        memory_restart_s: until training goes on from that copy.
        checkpoints_per_write: of these in memory, how many for one that goes to storage, too.
        write_s: for which training stands still besides when one goes to storage.
        planned_per_s: planned interruptions per second of running.
        planned_s: of one, from its checkpoint, which is written meanwhile, until training goes on.
        evaluation_share: seconds of evaluation per useful second.
        stalls_per_s: stalls per useful second: a slow node, until it is found.
        stall_s: that one stall costs.
    """

    failures_per_s: Array
    interval_s: Array
    checkpoint_s: Array
    detection_s: Array = 0.0
    restart_s: Array = 0.0
    lag_s: Array = 0.0
    survived: Array = 0.0
    memory_restart_s: Array = 0.0
    checkpoints_per_write: Array = 1.0
    write_s: Array = 0.0
    planned_per_s: Array = 0.0
    planned_s: Array = 0.0
    evaluation_share: Array = 0.0
    stalls_per_s: Array = 0.0
    stall_s: Array = 0.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Goodput:
    """Shares of the time of a run, together 1; failures per second of it."""

    useful: Array
    checkpoints: Array  # training stands still for them
    redone: Array  # work (and its checkpoints) that a failure took away
    detection: Array
    restart: Array
    planned: Array
    evaluation: Array
    stalls: Array
    failures_per_s: Array

    def shares(self) -> dict[str, Array]:
        """All but the rate, by name."""
        return {name: getattr(self, name) for name in SHARES}


SHARES = tuple(one.name for one in dataclasses.fields(Goodput) if one.name != "failures_per_s")


def goodput(cycle: FailureCycle) -> Goodput:
    """Where the time of a run goes, in the mean of a long one; see the head of this file."""
    given = [floats(getattr(cycle, one.name)) for one in dataclasses.fields(cycle)]
    module = array_module(*given)
    c = FailureCycle(*given)
    rate = module.maximum(c.failures_per_s, _NEVER_PER_S)
    n, hopeless = c.checkpoints_per_write, _HOPELESS[module.result_type(*given).itemsize]
    useful_s, stalls = c.interval_s, c.stalls_per_s * c.interval_s
    evaluation_s = c.evaluation_share * useful_s
    pause_s = c.checkpoint_s + c.write_s / n
    exponent = rate * (useful_s + evaluation_s + pause_s) - stalls * module.expm1(-rate * c.stall_s)
    exponent = module.minimum(exponent, hopeless)
    # recovery: lie for detection, then try to restart until nothing fails meanwhile
    hurry = module.minimum(rate * c.restart_s, hopeless)
    storage_tries, storage_tries_s = module.exp(hurry), module.expm1(hurry) / rate
    lost = -module.expm1(-rate * c.memory_restart_s)  # chance that a restart from memory fails
    again = 1.0 - lost * c.survived
    memory_tries = (1.0 + lost * (1.0 - c.survived) * storage_tries) / again
    memory_tries_s = (lost / rate + lost * (1.0 - c.survived) * storage_tries_s) / again
    stays = (1.0 - lost) / again  # the copy in memory outlasts the restart
    way = module.maximum(1.0 - c.survived * stays, _LEAST_WAY)
    grown = module.expm1(module.minimum(n * module.log1p(way * module.expm1(exponent)), hopeless))
    running_s = grown / (rate * way)
    stopped = -module.expm1(-c.planned_per_s * running_s)
    late = module.minimum(rate * way * c.lag_s, hopeless)
    running_s = running_s / (stopped + (1.0 - stopped) * module.exp(-late))
    fails = rate * running_s  # while training, of a block
    tries = c.survived * memory_tries + (1.0 - c.survived) * storage_tries
    tries_s = c.survived * memory_tries_s + (1.0 - c.survived) * storage_tries_s
    spent = {
        "useful": n * useful_s, "checkpoints": n * pause_s, "evaluation": n * evaluation_s,
        "stalls": n * stalls * c.stall_s,
    }  # fmt: skip
    spent["redone"] = running_s - sum(spent.values())
    spent["detection"] = fails * tries * c.detection_s
    spent["restart"] = fails * tries_s
    spent["planned"] = running_s * c.planned_per_s * c.planned_s
    total_s = sum(spent.values())
    return Goodput(
        **{name: seconds / total_s for name, seconds in spent.items()},
        failures_per_s=fails * tries / total_s,
    )


def young_interval_s(failures_per_s: Array, checkpoint_s: Array) -> Array:
    """sqrt(2 checkpoint x mean time between failures): Young 1974."""
    return array_module(failures_per_s, checkpoint_s).sqrt(2.0 * checkpoint_s / failures_per_s)


def best(
    value: Callable[[Any, dict[str, Array]], Array], given: Any, start: dict[str, float],
    bounds: dict[str, tuple[float, float]],
) -> dict[str, float]:  # fmt: skip
    """Where a differentiable value of positive numbers is largest: L-BFGS by JAX's gradient, over
    their logs.

    Args:
        value: of what is given and the numbers by name; compiled once for each function.
        given: a tree of what stays as it is.
        start: one of each number.
        bounds: the least and the most of each, above 0.
    """
    names = tuple(start)
    with jax.enable_x64(True):

        def at(logs: np.ndarray) -> tuple[float, np.ndarray]:
            found, slope = _loss(value, names, given, logs)
            return float(found), np.asarray(slope, np.float64)

        found = minimize(
            at, np.log([start[name] for name in names]), jac=True, method="L-BFGS-B",
            bounds=[tuple(np.log(bounds[name])) for name in names],
            options={"ftol": 1e-14, "gtol": 1e-9},
        )  # fmt: skip
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _loss(
    value: Callable[[Any, dict[str, Array]], Array], names: tuple[str, ...], given: Any, logs: Array
) -> tuple[Array, Array]:
    """What is to be least, and its slope, at logs of the numbers."""

    def loss(logs: Array) -> Array:
        return -value(given, {name: jax.numpy.exp(logs[at]) for at, name in enumerate(names)})

    return jax.value_and_grad(loss)(logs)


def _useful(cycle: FailureCycle, chosen: dict[str, Array]) -> Array:
    return goodput(dataclasses.replace(cycle, **chosen)).useful


def best_interval(
    cycle: FailureCycle, also: Sequence[str] = (),
    bounds: dict[str, tuple[float, float]] | None = None, step_s: float = 0.0,
) -> FailureCycle:  # fmt: skip
    """The cycle with the interval between checkpoints at which goodput is largest, by gradient.

    Args:
        cycle: of numbers; its own interval does not count.
        also: other fields that are free, such as `checkpoints_per_write`.
        bounds: least and most of a field that is free; of the interval a thousandth of the mean
            time between failures, or the lag of a checkpoint, to ten times it.
        step_s: of a step, at whose end checkpoints are: no interval is shorter.
    """
    rate = max(float(cycle.failures_per_s), _NEVER_PER_S)
    pause_s = float(cycle.checkpoint_s) + float(cycle.write_s) / float(cycle.checkpoints_per_write)
    least_s = max(float(cycle.lag_s), 1e-3 * min(1.0 / rate, 1e9), step_s, 1e-6)
    limits = {"interval_s": (least_s, max(10.0 / rate, 2.0 * least_s)), **(bounds or {})}
    low, high = limits["interval_s"]
    start: dict[str, float] = {
        "interval_s": float(np.clip(young_interval_s(rate, max(pause_s, 1e-6)), low, high)),
        **{name: float(np.clip(getattr(cycle, name), *limits[name])) for name in also},
    }
    return dataclasses.replace(cycle, **best(_useful, cycle, start, limits))


_MOST_SHARE = 0.5  # of a job's nodes that are looked at as spares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Spares:
    """Spare nodes of a job.

    Attributes:
        count: of them; need not be whole.
        repair_s: from the failure of a node until it can be used again, in the mean.
        broken: share of the job's failures that take a node away.
    """

    count: Array
    repair_s: Array
    broken: Array = 1.0


def wait_s(failures_per_s: Array, spares: Spares) -> Array:
    """Mean seconds that a failure waits for a node.

    Args:
        failures_per_s: of all kinds, per second of a run that never waits.
        spares: of the job.
    """
    load = failures_per_s * spares.broken * spares.repair_s
    nobody = erlang_b_between(spares.count, load)
    return spares.broken * nobody * spares.repair_s / (spares.count + 1.0)


def with_spares(cycle: FailureCycle, spares: Spares) -> tuple[Goodput, Array]:
    """(goodput, mean wait for a node in seconds) of a job that waits where no spare is left."""
    waits_s = wait_s(goodput(cycle).failures_per_s, spares)
    return goodput(dataclasses.replace(cycle, detection_s=cycle.detection_s + waits_s)), waits_s


def best_spares(cycle: FailureCycle, spares: Spares, nodes: int) -> int:
    """How many spares make the useful hour of the job cheapest, paying for spares like for nodes.

    The relaxed count is found by gradient, its two whole neighbours are compared.

    Args:
        cycle: of the job.
        spares: its repairs; its own count is not looked at.
        nodes: of the job, without spares.
    """
    load = float(cycle.failures_per_s) * float(spares.broken) * float(spares.repair_s)
    most = max(_MOST_SHARE * nodes, 1.0)
    start = min(max(load + np.sqrt(load), 0.5), most)
    given = (cycle, spares, float(nodes))
    relaxed = best(_of_a_node, given, {"count": start}, {"count": (1e-2, most)})
    low = int(np.floor(relaxed["count"]))
    return max((low, low + 1), key=lambda many: float(_of_a_node(given, {"count": float(many)})))


def _of_a_node(given: tuple[FailureCycle, Spares, Array], free: dict[str, Array]) -> Array:
    """Useful share of the time, over what is paid for in nodes of the job."""
    cycle, spares, nodes = given
    found, _ = with_spares(cycle, dataclasses.replace(spares, count=free["count"]))
    return found.useful / (nodes + free["count"]) * nodes
