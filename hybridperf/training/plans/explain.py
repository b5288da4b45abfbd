"""Why a layout wins and how sure that is.

The winner is compared with the runner-up, the best layout that divides the ranks in another way,
and the naive one (`NAIVE`).

How sure: step effects and corrections of blocks have a joint distribution (`steps/adapt.py`). What
two layouts share, a slow product or a slow link, moves both, so the chance that the winner is the
faster of two is much surer than their intervals, whose overlap is given, too.

Does the closed form choose what the full graph of a step would? The winner and its neighbours are
evaluated both ways (`confirm`): a neighbour differs from the winner in one field, or in two that
only go together (schedule and chunks; micro-batch and accumulation always). Both go by one price,
so that their seconds differ by a fraction of a percent for most layouts (claim `agreement`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.engine.elasticities import elasticities
from hybridperf.engine.prediction import predict
from hybridperf.model import PerfModel, adapted_steps
from hybridperf.training.plans.layout_text import field_words
from hybridperf.training.plans.ranked import Choice, RankedLayouts, step_intervals
from hybridperf.training.plans.space import by_rule_of_thumb
from hybridperf.training.steps import adapt
from hybridperf.training.steps.features import unmeasured_of
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layout, Layouts
from hybridperf.workloads.transformer.step import transformer

NAIVE = (
    "tensor parallelism over a node, as few pipeline stages as fit, data parallelism for the rest,"
    " one sample at a time, everything recomputed; ZeRO-1 or no recomputation only where nothing"
    " fits otherwise"
)
_DIVISION = ("tp", "cp", "dp", "pp", "ep", "expert_tp")
_DIVIDED = ("tp", "cp", "pp", "ep")
_OTHER = ("vp", "zero", "micro_batch", "recompute", "sequence_parallel")


@dataclasses.dataclass(frozen=True)
class ComparedLayout:
    """One layout next to the winner."""

    what: str
    choice: Choice
    low_s: float
    high_s: float
    chance: float  # that the winner is the faster of the two
    overlap: float  # share of the narrower interval that both cover


def compared(plan: RankedLayouts) -> list[ComparedLayout]:
    """The winner first, then what it is compared with."""
    named = [("winner", plan.choice(0))]
    if len(first := plan.distinct(2)) > 1:
        named.append(("runner-up", plan.choice(first[1])))
    for what, found in (("different parallelism", other_division(plan)), ("naive", naive(plan))):
        if found is not None and found not in [choice for _, choice in named]:
            named.append((what, found))
    return with_chances(plan, named)


def with_chances(plan: RankedLayouts, named: list[tuple[str, Choice]]) -> list[ComparedLayout]:
    """Intervals of layouts, and how each compares with the first."""
    choices = [choice for _, choice in named]
    log_s, covariance = _joint(plan, choices)
    low, high = step_intervals(plan, np.array([dataclasses.astuple(one) for one in choices]))
    found = []
    for at, (what, choice) in enumerate(named):
        apart = max(covariance[0, 0] + covariance[at, at] - 2 * covariance[0, at], 1e-18)
        faster = 0.5 * (1 + math.erf((log_s[at] - log_s[0]) / math.sqrt(2 * apart)))
        both = max(0.0, min(high[0], high[at]) - max(low[0], low[at]))
        both = both / min(high[0] - low[0], high[at] - low[at])
        chance = 1.0 if at == 0 else faster
        interval = (float(low[at]), float(high[at]))
        found.append(ComparedLayout(what, choice, *interval, chance, float(both)))
    return found


def other_division(plan: RankedLayouts) -> Choice | None:
    """The best layout that divides ranks differently from the winner."""
    number = plan.choice(0).case
    at = plan.ranked_in(number)
    differs = np.any([_differs(plan, name) for name in _DIVISION], 0)
    return Choice(number, int(at[np.argmax(differs)])) if differs.any() else None


def _differs(plan: RankedLayouts, name: str) -> np.ndarray:
    """Which ranked layouts of the winner's case have another value of a field [k]."""
    first = plan.choice(0)
    case, at = plan.cases[first.case], plan.ranked_in(first.case)
    column = case.space.column(name)
    return np.asarray(column[case.rows[at]] != column[case.rows[first.at]])


def naive(plan: RankedLayouts) -> Choice | None:
    """The rule of thumb (`NAIVE`); the nearest that fits, None where nothing comes close."""
    number = plan.choice(0).case
    case = plan.cases[number]
    at = np.argsort(case.parts.step_s, kind="stable")  # those beyond the limit, too
    of = case.space.base_of[case.rows[at]]
    x = Layouts(*(column[of] for column in case.space.base))
    first = by_rule_of_thumb(x, case.setup.gpus_per_node)
    return Choice(number, int(at[first[0]])) if len(first) else None


def differences(a: Layout, b: Layout) -> str:
    """The fields in which the second layout is not the first's."""
    names = [field.name for field in dataclasses.fields(a)]
    named = [name for name in names if getattr(a, name) != getattr(b, name)]
    words = [field_words(b, name) for name in named if name != "order"]
    if "order" in named and not words:
        words = ["another order on the nodes"]
    return ", ".join(words) or "nothing"


def _joint(plan: RankedLayouts, choices: list[Choice]) -> tuple[np.ndarray, np.ndarray]:
    """Of n layouts: log seconds [n], their covariance [n, n]; the same machine for all."""
    adapted = plan.setup.adapted
    at = np.array([dataclasses.astuple(one) for one in choices])
    found, places = [], []
    for number, case in enumerate(plan.cases):
        if not len(here := np.flatnonzero(at[:, 0] == number)):
            continue
        columns, rows = case.columns, at[here, 1]
        cells, f = columns.cells[columns.cell[rows]], columns.features(rows)
        configs = [plan.config(choices[one]) for one in here]
        widths = np.stack([unmeasured_of(one, case.setup.prices).widths for one in configs], -1)
        log_s, by_theta, by_block = adapt.slopes(f, adapted.theta, adapted.of_cells(cells)[0])
        known = adapted.slopes_of_known(by_theta, by_block, cells)[0]
        found.append((log_s, known, cells, by_block.T, adapted.unmeasured(by_theta, widths).T))
        places.append(here)
    order = np.argsort(np.concatenate(places))
    log_s, a, x, b, s = (np.concatenate(each)[order] for each in zip(*found, strict=True))
    covariance = a @ adapted.covariance @ a.T + s @ s.T
    for block, spread in enumerate(adapted.open_spread):
        left = adapted_steps.alike_left(adapted, x, block)
        covariance = covariance + spread**2 * np.outer(b[:, block], b[:, block]) * left
    return log_s, covariance + adapted.noise**2 * np.eye(len(a))


@dataclasses.dataclass(frozen=True)
class Confirmed:
    """A layout's seconds by the plan's closed form and by the full graph."""

    choice: Choice
    plan_s: float
    graph_s: float


def neighbours(plan: RankedLayouts, count: int) -> list[Choice]:
    """The best layouts that differ from the winner in one field; dp and ranks count as one."""
    first = plan.choice(0)
    case, at = plan.cases[first.case], plan.ranked_in(first.case)
    changes = sum(_differs(plan, name).astype(int) for name in (*_DIVIDED, *_OTHER))
    place_of = case.space.place_of
    placed = place_of[case.rows[at]] != place_of[case.rows[first.at]]
    near = (changes == 1) | ((changes == 0) & placed & ~_differs(plan, "shard_ranks"))
    return [Choice(first.case, int(one)) for one in at[np.flatnonzero(near)[:count]]]


def confirm(plan: RankedLayouts, choices: Sequence[Choice]) -> list[Confirmed]:
    """The winner first, then each choice by the seconds of its graph."""
    found = []
    for choice in (plan.choice(0), *choices):
        prices = plan.cases[choice.case].setup.prices
        graph_s = full_s(prices.model, plan.config(choice))
        found.append(Confirmed(choice, plan.step_s(choice), graph_s))
    return [found[0], *sorted(found[1:], key=lambda one: one.graph_s)]


def full_s(model: PerfModel, config: TransformerConfig) -> float:
    """Seconds of a step by its whole graph."""
    return float(predict(model, transformer(config)).time_s)


def drives(plan: RankedLayouts, row: int = 1) -> pd.DataFrame:
    """How strongly each number of the machine drives the step of a row, counted from 1, by its
    graph: the table of `hp.elasticities`.

    Raises:
        InputError: the plan has no such row.
    """
    choice = plan.choice(plan.place(row))
    workload = transformer(plan.config(choice))
    return elasticities(predict(plan.cases[choice.case].setup.prices.model, workload))
