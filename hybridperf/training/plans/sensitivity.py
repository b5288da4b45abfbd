"""What would move the optimum: more arithmetic, memory bandwidth, links, memory, or cheaper
launches.

    elasticity    d log T / d log lever of the best layout's time: -0.6 means that 1 % more makes it
                  0.6 % faster
    at twice      which layout would be best with twice as much, and how fast

The candidates, the best layouts of the winner's case, are priced again on the changed machine
through the same op model and links, so a product may turn memory-bound. More memory
admits layouts that do not fit today: the best within `REACH` is searched for (`bounds.py`).

How near the winner is to the memory there is: `workloads/memory/chance_fits`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.model.step_effects import StepEffects
from hybridperf.training.plans.bounds import REACH, Search
from hybridperf.training.plans.costs import PricedSpace, SpaceColumns, bytes_of, times
from hybridperf.training.plans.ranked import Choice, RankedLayouts
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.steps.cells import Prices
from hybridperf.workloads.memory import chance_fits
from hybridperf.workloads.transformer import Layout

LEVERS = (
    "arithmetic", "memory bandwidth", "links inside nodes", "links between nodes", "link latency",
    "launches", "memory",
)  # fmt: skip
_LINKS = {
    "links inside nodes": ("intra_bytes_per_s",),
    "links between nodes": ("nic_bytes_per_s", "node_bytes_per_s"),
}
_CANDIDATES = 400
_LITTLE, _TWICE = 1.1, 2.0
SURE = 0.95
_NEAR = 1.1  # times the memory that may be used


@dataclasses.dataclass(frozen=True)
class LeverEffect:
    """What more of one machine number would change: seconds, best layout."""

    lever: str
    elasticity: float
    factor: float  # of the larger change
    best: Layout  # with it
    best_s: float
    same: bool  # the winner stays


def lever_effects(plan: RankedLayouts) -> list[LeverEffect]:
    """Effects of all levers, for the winner's number of devices and batch."""
    first = plan.choice(0)
    case, at = plan.cases[first.case], plan.ranked_in(first.case)[:_CANDIDATES]
    now_s = case.parts.step_s[at[0]]
    found = []
    for lever in LEVERS:
        if lever == "memory":
            found.append(_more_memory(plan, first, float(now_s)))
            continue
        little, _ = _best(case, at, lever, _LITTLE)
        most, place = _best(case, at, lever, _TWICE)
        elasticity = float(np.log(little / now_s) / np.log(_LITTLE))
        best, same = case.space.layout(int(case.rows[at[place]])), int(at[place]) == first.at
        found.append(LeverEffect(lever, elasticity, _TWICE, best, most, same))
    return found


def changed(setup: TrainingSetup, lever: str, factor: float) -> tuple[TrainingSetup, StepEffects]:
    """The setup with `factor` times as much of something, and its step effects."""
    model, effects = setup.prices.model, setup.adapted.effects
    links, new = setup.prices.links, model.device
    system = links.system
    arithmetic = factor if lever == "arithmetic" else 1.0
    bandwidth = factor if lever == "memory bandwidth" else 1.0
    if lever in ("arithmetic", "memory bandwidth"):
        new = _faster(new, arithmetic, new.memory_bytes_per_s * bandwidth)
    elif lever in _LINKS:
        rates = {name: getattr(system, name) * factor for name in _LINKS[lever]}
        system = system.model_copy(update=rates)
    elif lever == "link latency":
        system = system.model_copy(update={"latency_s": system.latency_s / factor})
    elif lever == "launches":
        launch_s, collective_s = effects.launch_s / factor, effects.collective_launch_s / factor
        effects = dataclasses.replace(effects, launch_s=launch_s, collective_launch_s=collective_s)
    stand_in = model.stand_in
    if stand_in is not None:  # it gets as much more
        bandwidth = new.memory_bytes_per_s / model.device.memory_bytes_per_s
        rate = stand_in.device.memory_bytes_per_s * bandwidth
        stand_in = dataclasses.replace(stand_in, device=_faster(stand_in.device, arithmetic, rate))
    links = links.on(system)
    priced = Prices(dataclasses.replace(model, device=new, collectives=links, stand_in=stand_in))
    capacity = setup.capacity_bytes * (factor if lever == "memory" else 1.0)
    return dataclasses.replace(setup, prices=priced, device=new, capacity_bytes=capacity), effects


def _faster(device: DeviceSpec, arithmetic: float, memory_bytes_per_s: float) -> DeviceSpec:
    """A device with other rates; `arithmetic` times as many FLOP/s."""
    peaks = {name: rate * arithmetic for name, rate in device.peak_flops_per_s.items()}
    rates = {"peak_flops_per_s": peaks, "memory_bytes_per_s": memory_bytes_per_s}
    return device.model_copy(update=rates)


def _best(case: PricedSpace, at: np.ndarray, lever: str, factor: float) -> tuple[float, int]:
    """(seconds of the best candidate on a changed machine, its place among them)."""
    setup, effects = changed(case.setup, lever, factor)
    if lever == "launches":
        parts = times(case.columns, setup, effects, at, threads=1)
    else:
        parts = times(SpaceColumns.of(setup, case.space, case.rows[at]), setup, effects, threads=1)
    place = int(np.argmin(parts.step_s))
    return float(parts.step_s[place]), place


def _more_memory(plan: RankedLayouts, first: Choice, now_s: float) -> LeverEffect:
    """With more memory: elasticity from what a little admits, and the best within reach."""
    little, best = (_too_large(plan, first.case, factor) for factor in (_LITTLE, REACH))
    little_s, best_s = (one.step_s if one else now_s for one in (little, best))
    elasticity = float(np.log(little_s / now_s) / np.log(_LITTLE))
    layout = best.layout if best else plan.layout(first)
    return LeverEffect("memory", elasticity, REACH, layout, best_s, best is None)


class _TooLarge(NamedTuple):
    step_s: float
    layout: Layout
    bytes: float


def _too_large(plan: RankedLayouts, case: int, factor: float) -> _TooLarge | None:
    """The fastest layout that does not fit, but would in `factor` times the memory; None where
    none is faster than the best of the case that fits.
    """
    bounded, now_s = plan.bounded[case], plan.cases[case].parts.step_s[plan.ranked_in(case)[0]]
    capacity = bounded.setup.capacity_bytes
    wanted = Search(bounded, "time", plan.economy, 1, factor * capacity, capacity, float(now_s))
    found = [one for one in wanted.best() if len(one.score)]
    if not found:
        return None
    best = min(found, key=lambda one: float(one.score.min()))
    row = int(np.argmin(best.score))
    if best.score[row] >= now_s:
        return None
    needed = bytes_of(bounded.setup, best.space.base)[best.space.base_of[row]]
    return _TooLarge(float(best.score[row]), best.space.layout(row), float(needed))


@dataclasses.dataclass(frozen=True)
class MemoryHeadroom:
    """How much of the usable memory the winner takes, and what is near the limit."""

    share: float  # of the usable memory, that the winner takes
    chance: float  # that it fits
    # the fastest that fits with a chance of SURE; None: no layout does, or the winner itself
    surer: Choice | None
    missed: Layout | None  # faster than the winner, a little too large; None: there is none
    missed_s: float
    missed_bytes: float


def memory_headroom(plan: RankedLayouts) -> MemoryHeadroom:
    """How near the winner is to the memory there is."""
    first = plan.choice(0)
    case = plan.cases[first.case]
    # memory of each layout [N] over what may be used
    shares = (case.memory_bytes / case.setup.capacity_bytes)[case.space.base_of]
    share = float(shares[case.rows[first.at]])
    surely = next(share for share in np.arange(1.0, 0.5, -0.005) if chance_fits(share) >= SURE)
    at = plan.ranked_in(first.case)
    sure = np.flatnonzero(shares[case.rows[at]] <= surely)
    surer = Choice(first.case, int(at[sure[0]])) if len(sure) and sure[0] else None
    missed = _too_large(plan, first.case, _NEAR)
    beyond = (missed.layout, missed.step_s, missed.bytes) if missed else (None, math.nan, math.nan)
    return MemoryHeadroom(share, chance_fits(share), surer, *beyond)
