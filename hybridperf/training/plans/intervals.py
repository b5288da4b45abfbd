"""90 % intervals of layouts: of a step's seconds as a row of a table of steps has them, and of the
days and the money of a run, which are so many steps.

Money goes with the seconds: rent is paid by the hour, and electricity for the mean power of the
layout.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.training.plans.ranked import RankedLayouts
from hybridperf.training.steps import adapt, cross_node
from hybridperf.training.steps.features import unmeasured_of
from hybridperf.training.steps.plausibility import lower_bounds_s
from hybridperf.workloads.transformer.config import Configs

_WITH_STEPS = ("usd", "days", "total_usd")


def step_intervals(
    plan: RankedLayouts, chosen: np.ndarray, stalls: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Low and high seconds of layouts [n, 2] (case, place among its priced ones), [n] each.

    `stalls`: whether high seconds reach to those of a run that stalls, where that is likely.
    """
    low, high = np.empty(len(chosen)), np.empty(len(chosen))
    adapted, device = plan.setup.adapted, plan.setup.device
    for number, case in enumerate(plan.cases):
        here = np.flatnonzero(chosen[:, 0] == number)
        if not len(here):
            continue
        at, columns, setup = chosen[here, 1], case.columns, case.setup
        configs = [setup.config(case.space.layout(row)) for row in case.rows[at].tolist()]
        widths = np.stack([unmeasured_of(one, setup.prices).widths for one in configs], -1)
        f = dataclasses.replace(columns.features(at), unmeasured_widths=widths)
        if not stalls:
            f = dataclasses.replace(f, stall_chance=np.zeros(len(at)))
        found = adapt.predict(adapted, f, columns.cells[columns.cell[at]])
        step_s, spread = case.parts.step_s[at], NINE_OF_TEN * found.deviation
        least_s = np.minimum(
            lower_bounds_s(Configs.of_rows(configs), [device] * len(configs)), step_s
        )
        low[here] = np.maximum(step_s * np.exp(-np.hypot(spread, found.beyond[0])), least_s)
        up = np.hypot(np.hypot(spread, found.beyond[1]), plan.setup.unnamed)
        high[here] = step_s * np.exp(up)
    return low, high


def stalled_steps(plan: RankedLayouts, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(how many runs of layouts [n, 2] stall, as a share; seconds of a step of one that does) [n];
    0 and a usual step's where fewer than one in twenty would.
    """
    chance, stalled_s = np.zeros(len(chosen)), np.empty(len(chosen))
    for at, (number, place) in enumerate(chosen.tolist()):
        case = plan.cases[number]
        f, step_s = case.columns.features(np.array([place])), case.parts.step_s[[place]]
        longer = cross_node.beyond_by_stalls(f, plan.setup.adapted.effects, step_s)
        stalled_s[at] = (step_s * np.exp(longer)).item()
        chance[at] = np.asarray(f.stall_chance).item() * (longer.item() > 0)
    return chance, stalled_s


def with_intervals(plan: RankedLayouts, chosen: np.ndarray, frame: pd.DataFrame) -> pd.DataFrame:
    """A table of layouts with low and high columns behind their seconds, days and money."""
    low_s, high_s = step_intervals(plan, chosen)
    frame = frame.copy()
    for name in ("time_s", *(name for name in _WITH_STEPS if name in frame)):
        at = frame.columns.get_loc(name)
        names = ("low_s", "high_s") if name == "time_s" else (f"{name}_low", f"{name}_high")
        ends = (frame[name] * end_s / frame["time_s"] for end_s in (low_s, high_s))
        for behind, (end, values) in enumerate(zip(names, ends, strict=True), 1):
            frame.insert(at + behind, end, values)
    return frame
