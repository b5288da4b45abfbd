"""The ranked layouts of a plan: what was priced, and the order by an objective.

Intervals are those of 90 %: of seconds as a row of a table of steps has them, of the days and the
money of a run, which are so many steps. Money goes with the seconds: rent is paid by the hour, and
electricity for the mean power of the layout.

Objectives: `time` (seconds of a step), `tokens_per_s`, `cost` (money per token), `energy` (joules
per token); for one number of devices and one batch the first three agree. Axes: M priced layouts of
a case, K of all cases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.engine.economy import Economy, score
from hybridperf.engine.pareto import undominated
from hybridperf.io import InputError, unknown
from hybridperf.model.variance import beyond_by_stalls, ends
from hybridperf.training.plans.bounds import BoundedLayouts
from hybridperf.training.plans.costs import PricedSpace
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.setup import TrainingSetup
from hybridperf.training.steps import adapt
from hybridperf.training.steps.cross_node import chanced_s
from hybridperf.training.steps.features import unmeasured_of
from hybridperf.training.steps.plausibility import lower_bounds_s
from hybridperf.workloads.transformer.config import Configs, TransformerConfig
from hybridperf.workloads.transformer.layout import Layout

OBJECTIVES = ("time", "tokens_per_s", "cost", "energy")
_DISTINCT = (
    "tp", "cp", "pp", "vp", "ep", "expert_tp", "sequence_parallel", "zero", "shard_ranks",
    "micro_batch",
)  # fmt: skip
_WITH_STEPS = ("usd", "days", "total_usd")
_NAMES = ("time", "memory", "energy", "cost")
PAIRS = (("time", "memory"), ("time", "energy"), ("time", "cost"))


@dataclasses.dataclass(frozen=True)
class Choice:
    """A layout of a plan, by its case and its place there."""

    case: int
    at: int  # of the case's priced rows


@dataclasses.dataclass(frozen=True, repr=False)
class RankedLayouts:
    """Priced layouts of several numbers of devices and batches, ranked together."""

    setup: TrainingSetup
    economy: Economy
    objective: str
    tokens: float | None  # to be trained on in all
    cases: tuple[PricedSpace, ...]  # one per number of devices and batch
    bounded: tuple[BoundedLayouts, ...]  # of each case
    ranked: np.ndarray  # int [K, 2] the layouts that are kept as [case, at], best first
    limit: int | None  # how many are kept at most
    # where all are priced each place on the nodes counts, else they count whatever their order
    legal: int
    slower: int  # of these, ruled out by their bounds
    orders: int  # legal layouts, if orders that mean the same are counted apart
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def all_kept(self) -> bool:
        """Whether every legal layout is kept, those that do not fit, too."""
        return self.limit is None or self.legal <= self.limit

    def __len__(self) -> int:
        return len(self.ranked)

    def __repr__(self) -> str:
        space, device = self.cases[self.choice(0).case].space, self.setup.device.id
        where = f"{self.setup.shape.name} on {space.gpus} x {device}, batch {space.global_batch}"
        winner = f"{layout_words(self.best)}, {self.step_s(self.choice(0)):.4g} s"
        how = "fit" if self.all_kept else "kept"
        return f"<Plan: {where}: {winner}; {len(self):,} of {self.legal:,} {how}>"

    @property
    def prices(self) -> tuple[str, ...]:
        """Rates that money and energy were counted with, each with its unit, source and date."""
        return self.economy.notes

    def distinct(self, count: int) -> list[int]:
        """Ranks of the best layouts, without copies of better ones: the same but for what is
        computed again, the schedule or the places, in no less memory.
        """
        found: dict[tuple[float, ...], int] = {}
        for rank in range(len(self)):
            case = self.cases[self.ranked[rank, 0]]
            base = case.space.base_of[case.rows[self.ranked[rank, 1]]]
            same = (float(getattr(case.space.base, name)[base]) for name in _DISTINCT)
            key = (float(self.ranked[rank, 0]), float(case.memory_bytes[base]), *same)
            found.setdefault(key, rank)
            if len(found) == count:
                break
        return list(found.values())

    def place(self, row: int) -> int:
        """The rank, from 0, of a row, counted from 1; `InputError` where there is none."""
        if isinstance(row, bool) or not isinstance(row, int) or not 1 <= row <= len(self):
            rows = f"the layouts of this plan, best first, are 1 to {len(self):,}"
            raise InputError(f"expected a row of a plan, got {row!r}; {rows}")
        return row - 1

    def choice(self, rank: int) -> Choice:
        """The layout of a rank, from 0."""
        case, at = self.ranked[rank]
        return Choice(int(case), int(at))

    def layout(self, choice: Choice) -> Layout:
        case = self.cases[choice.case]
        return case.space.layout(int(case.rows[choice.at]))

    def config(self, choice: Choice) -> TransformerConfig:
        return self.cases[choice.case].setup.config(self.layout(choice))

    def ranked_in(self, case: int) -> np.ndarray:
        """Priced rows of one case, best first [k]."""
        return self.ranked[self.ranked[:, 0] == case, 1]

    @property
    def best(self) -> Layout:
        return self.layout(self.choice(0))

    def step_s(self, choice: Choice) -> float:
        """Predicted seconds of a step."""
        return float(self.cases[choice.case].parts.step_s[choice.at])


def scores(case: PricedSpace, objective: str, rates: Economy) -> np.ndarray:
    """The objective of a case's priced layouts [M]; less is better."""
    return score(objective, rates, case.parts, case.space.gpus, tokens_of(case))


def tokens_of(case: PricedSpace) -> float:
    return float(case.space.global_batch * case.setup.shape.seq)


def ranking(cases: Sequence[PricedSpace], objective: str, rates: Economy) -> np.ndarray:
    """[K, 2] of all priced layouts, best first; of equal ones that with less memory."""
    of = np.repeat(np.arange(len(cases)), [len(case.rows) for case in cases])
    at = np.concatenate([np.arange(len(case.rows)) for case in cases])
    score = np.concatenate([scores(case, objective, rates) for case in cases])
    memory = np.concatenate([case.row_memory_bytes for case in cases])
    return np.stack([of, at], 1)[np.lexsort((memory, score))]


def plan_front(plan: RankedLayouts, one: str, other: str) -> np.ndarray:
    """Ranks of the layouts on the front of two of time (per token), memory, energy and cost."""
    for name in (one, other):
        if name not in _NAMES:
            raise unknown("column of a front", name, _NAMES, f"known are {', '.join(_NAMES)}")
    if "cost" in (one, other) and plan.economy.usd_per_hour is None:
        raise InputError(
            f"expected a price for a front of cost, got none of {plan.setup.device.id};"
            f" {plan.economy.unknown}"
        )
    columns = np.empty((len(plan), 2))
    for number, case in enumerate(plan.cases):
        here, at = plan.ranked[:, 0] == number, plan.ranked_in(number)
        for column, name in enumerate((one, other)):
            objective = "tokens_per_s" if name == "time" else name
            memory = name == "memory"
            values = case.row_memory_bytes if memory else scores(case, objective, plan.economy)
            columns[here, column] = values[at]
    return undominated(columns)


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
        step_s = case.parts.step_s[at]
        longer = beyond_by_stalls(
            f.stall_chance, chanced_s(f, adapted.effects), step_s, found.deviation
        )
        least_s = lower_bounds_s(Configs.of_rows(configs), [device] * len(configs))
        low[here], high[here] = ends(step_s, found.deviation, longer, least_s)
    return low, high


def stalled_steps(plan: RankedLayouts, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(how many runs of layouts [n, 2] stall, as a share; seconds of a step of one that does) [n];
    0 and a usual step's where fewer than one in twenty would.
    """
    chance, stalled_s = np.zeros(len(chosen)), np.empty(len(chosen))
    for at, (number, place) in enumerate(chosen.tolist()):
        case = plan.cases[number]
        f, step_s = case.columns.features(np.array([place])), case.parts.step_s[[place]]
        extra_s = chanced_s(f, plan.setup.adapted.effects)
        longer = beyond_by_stalls(f.stall_chance, extra_s, step_s)
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
