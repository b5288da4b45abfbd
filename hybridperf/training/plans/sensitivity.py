"""What would move the optimum: more arithmetic, memory bandwidth, links, memory, or cheaper
launches.

    elasticity    d log T / d log lever of the best layout's time: -0.6 means that 1 % more makes it
                  0.6 % faster
    at twice      which layout would be best with twice as much, and how fast

The candidates, the best layouts of the winner's case, are priced again on the changed machine
through the same op model and links, so a product that turns memory-bound is seen to. More memory
admits layouts that do not fit today: those within `REACH` are priced.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hybridperf.training.plans.costs import PricedSpace, columns_of, times
from hybridperf.training.plans.ranked import RankedLayouts
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.steps.step_effects import StepEffects
from hybridperf.workloads.transformer import Layout

LEVERS = (
    "arithmetic",
    "memory bandwidth",
    "links inside nodes",
    "links between nodes",
    "quick links",
    "launches",
    "memory",
)
_CANDIDATES = 400
_LITTLE, _TWICE = 1.1, 2.0
REACH = 1.5  # times the memory there is


@dataclasses.dataclass(frozen=True)
class LeverEffect:
    """What one lever does."""

    lever: str
    elasticity: float
    factor: float  # of the larger change
    best: Layout  # with it
    best_s: float
    same: bool  # the winner stays


def lever_effects(plan: RankedLayouts) -> list[LeverEffect]:
    """All levers, for the winner's number of devices and batch."""
    first = plan.choice(0)
    case = plan.cases[first.case]
    at = plan.ranked[plan.ranked[:, 0] == first.case, 1][:_CANDIDATES]
    now_s = case.parts.step_s[at[0]]
    found = []
    for lever in LEVERS:
        if lever == "memory":
            found.append(_more_memory(case, int(first.at), float(now_s)))
            continue
        little, _ = _best(case, at, lever, _LITTLE)
        most, place = _best(case, at, lever, _TWICE)
        elasticity = float(np.log(little / now_s) / np.log(_LITTLE))
        best = case.space.layout(int(case.rows[at[place]]))
        found.append(LeverEffect(lever, elasticity, _TWICE, best, most, int(at[place]) == first.at))
    return found


def changed(setup: TrainingSetup, lever: str, factor: float) -> tuple[TrainingSetup, StepEffects]:
    """The setup with `factor` times as much of something, and its knobs."""
    prices, knobs = setup.prices, setup.adapted.effects
    device, system = prices.device, prices.links.system
    if lever == "arithmetic":
        device = device.model_copy(
            update={
                "peak_flops_per_s": {
                    name: rate * factor for name, rate in device.peak_flops_per_s.items()
                }
            }
        )
    elif lever == "memory bandwidth":
        device = device.model_copy(
            update={"memory_bytes_per_s": device.memory_bytes_per_s * factor}
        )
    elif lever == "links inside nodes":
        system = system.model_copy(update={"intra_bytes_per_s": system.intra_bytes_per_s * factor})
    elif lever == "links between nodes":
        more = {
            name: getattr(system, name) * factor for name in ("nic_bytes_per_s", "node_bytes_per_s")
        }
        system = system.model_copy(update=more)
    elif lever == "quick links":
        system = system.model_copy(update={"latency_s": system.latency_s / factor})
    elif lever == "launches":
        knobs = dataclasses.replace(
            knobs,
            launch_s=knobs.launch_s / factor,
            collective_launch_s=knobs.collective_launch_s / factor,
        )
    capacity = setup.capacity_bytes * (factor if lever == "memory" else 1.0)
    priced_by = device
    if prices.model.device.id != device.id:  # the model is of a neighbour: it gets as much more
        own = prices.model.device
        priced_by = own.model_copy(
            update={
                "memory_bytes_per_s": own.memory_bytes_per_s
                * device.memory_bytes_per_s
                / prices.device.memory_bytes_per_s,
                "peak_flops_per_s": {
                    name: rate * (factor if lever == "arithmetic" else 1.0)
                    for name, rate in own.peak_flops_per_s.items()
                },
            }
        )
    new = prices.on(
        prices.links.on(system), device, dataclasses.replace(prices.model, device=priced_by)
    )
    return dataclasses.replace(setup, prices=new, device=device, capacity_bytes=capacity), knobs


def _best(case: PricedSpace, at: np.ndarray, lever: str, factor: float) -> tuple[float, int]:
    """(seconds of the best candidate on a changed machine, its place among them)."""
    setup, knobs = changed(case.setup, lever, factor)
    if lever == "launches":
        step_s = times(case.columns, setup, knobs, at, threads=1).step_s
    else:
        step_s = times(columns_of(setup, case.space, case.rows[at]), setup, knobs, threads=1).step_s
    place = int(np.argmin(step_s))
    return float(step_s[place]), place


def _more_memory(case: PricedSpace, winner: int, now_s: float) -> LeverEffect:
    """With more memory: elasticity from what a little admits, and the best within reach."""
    setup, space = case.setup, case.space
    over = case.memory_bytes / setup.capacity_bytes
    rows = np.flatnonzero(((over > 1) & (over <= REACH))[space.base_of])
    best_s, little_s, row = now_s, now_s, int(case.rows[winner])
    if len(rows):
        step_s = times(columns_of(setup, space, rows), setup).step_s
        little_s = min(
            now_s, float(step_s[over[space.base_of[rows]] <= _LITTLE].min(initial=np.inf))
        )
        at = int(np.argmin(step_s))
        if step_s[at] < now_s:
            best_s, row = float(step_s[at]), int(rows[at])
    elasticity = float(np.log(little_s / now_s) / np.log(_LITTLE))
    return LeverEffect(
        "memory", elasticity, REACH, space.layout(row), best_s, row == int(case.rows[winner])
    )
