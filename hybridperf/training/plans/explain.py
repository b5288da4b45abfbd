"""Why a layout wins and how sure that is.

The winner stands beside the runner-up, the best layout that divides the ranks in another way, and
the naive one (`NAIVE`).

How sure: knobs and corrections of blocks have a joint distribution (`steps/adapt.py`). What two
layouts share, a slow product or a slow link, moves both, so the chance that the winner is the
faster of two is much surer than their intervals, whose overlap is said, too.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd

from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.training.plans import table
from hybridperf.training.plans.layout_text import field_words
from hybridperf.training.plans.ranked import Choice, RankedLayouts
from hybridperf.training.steps import adapt
from hybridperf.training.steps.features import unmeasured_of
from hybridperf.training.steps.lower_bound import lower_bound_s
from hybridperf.workloads.transformer.codes import FULL, NONE
from hybridperf.workloads.transformer.layout import Layout

NAIVE = (
    "tensor parallelism over a node, as few pipeline stages as fit, data parallelism for the rest,"
    " one sample at a time, everything recomputed; ZeRO-1 or no recomputation only where nothing"
    " fits otherwise"
)
_DIVISION = ("tp", "cp", "dp", "pp", "ep", "expert_tp")


@dataclasses.dataclass(frozen=True)
class ComparedLayout:
    """One layout beside the winner."""

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
    for what, found in (("other division", other_division(plan)), ("naive", naive(plan))):
        if found is not None and found not in [choice for _, choice in named]:
            named.append((what, found))
    return with_chances(plan, named)


def compared_table(plan: RankedLayouts) -> pd.DataFrame:
    """The same as a table: columns of `Plan.top`, `low_s, high_s`, `chance`, `overlap` and
    `differs`, indexed by what each is.
    """
    beside = compared(plan)
    rows = []
    for one in beside:
        case = plan.cases[one.choice.case]
        rows.append(table.rows_of(plan, case, np.array([one.choice.at])))
    frame = pd.concat(rows).set_index(pd.Index([one.what for one in beside]))
    said = {
        name: [getattr(one, name) for one in beside]
        for name in ("low_s", "high_s", "chance", "overlap")
    }
    return frame.assign(
        **said, differs=[differences(plan.best, plan.layout(one.choice)) for one in beside]
    )


def with_chances(plan: RankedLayouts, named: list[tuple[str, Choice]]) -> list[ComparedLayout]:
    """Intervals of layouts, and how each compares with the first."""
    log_s, covariance, doubted = _joint(plan, [choice for _, choice in named])
    down, up = np.sqrt(NINE_OF_TEN**2 * np.diag(covariance) + (doubted**2).sum(1))
    least = np.array([lower_bound_s(plan.config(choice), plan.setup.device) for _, choice in named])
    low, high = (
        np.maximum(np.exp(log_s - down), np.minimum(least, np.exp(log_s))),
        np.exp(log_s + np.hypot(up, plan.setup.unnamed)),
    )
    of_doubts = doubted[1] / NINE_OF_TEN
    covariance = covariance + of_doubts.T @ of_doubts
    found = []
    for at, (what, choice) in enumerate(named):
        apart = max(covariance[0, 0] + covariance[at, at] - 2 * covariance[0, at], 1e-18)
        chance = (
            1.0 if at == 0 else 0.5 * (1 + math.erf((log_s[at] - log_s[0]) / math.sqrt(2 * apart)))
        )
        both = max(0.0, min(high[0], high[at]) - max(low[0], low[at])) / min(
            high[0] - low[0], high[at] - low[at]
        )
        found.append(
            ComparedLayout(what, choice, float(low[at]), float(high[at]), chance, float(both))
        )
    return found


def other_division(plan: RankedLayouts) -> Choice | None:
    """The best layout that divides ranks differently from the winner."""
    first = plan.choice(0)
    case = plan.cases[first.case]
    base = case.space.base
    mine = [int(getattr(base, name)[case.space.base_of[case.rows[first.at]]]) for name in _DIVISION]
    for number, one in enumerate(plan.cases):
        at = plan.ranked[plan.ranked[:, 0] == number, 1]
        of = one.space.base_of[one.rows[at]]
        differs = np.any(
            [
                getattr(one.space.base, name)[of] != value
                for name, value in zip(_DIVISION, mine, strict=True)
            ],
            0,
        )
        if number == first.case and differs.any():
            return Choice(number, int(at[np.argmax(differs)]))
    return None


def naive(plan: RankedLayouts) -> Choice | None:
    """The rule of thumb; the nearest that fits, None where nothing comes close."""
    number = plan.choice(0).case
    case = plan.cases[number]
    at = plan.ranked[plan.ranked[:, 0] == number, 1]
    x = {
        name: column[case.space.base_of[case.rows[at]]]
        for name, column in case.space.base._asdict().items()
    }
    plain = (
        (x["cp"] == 1)
        & (x["ep"] == 1)
        & (x["vp"] == 1)
        & (x["sequence_parallel"] == 0)
        & (x["micro_batch"] == 1)
        & (x["schedule"] == 0)
    )
    for mode, zero in ((FULL, 0), (FULL, 1), (NONE, 0), (NONE, 1)):
        here = np.flatnonzero(plain & (x["recompute"] == mode) & (x["zero"] == zero))
        if len(here):
            inside = np.where(
                x["tp"][here] <= case.setup.gpus_per_node, x["tp"][here], -x["tp"][here]
            )
            best = here[np.lexsort((np.arange(len(here)), x["pp"][here], -inside))[0]]
            return Choice(number, int(at[best]))
    return None


def differences(a: Layout, b: Layout) -> str:
    """The fields in which the second layout is not the first's."""
    named = [
        field.name
        for field in dataclasses.fields(a)
        if getattr(a, field.name) != getattr(b, field.name)
    ]
    said = [field_words(b, name) for name in named if name != "order"]
    return (
        ", ".join(said + (["another order on the nodes"] if "order" in named and not said else []))
        or "nothing"
    )


def _joint(plan: RankedLayouts, choices: list[Choice]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(logs of the seconds of some layouts [n], their joint covariance [n, n], what unmeasured of the
    machine do to them [2, 2, n]).
    """
    adapted = plan.setup.adapted
    log_s, slopes, cells, by_block, doubted = [], [], [], [], []
    for choice in choices:
        columns = plan.cases[choice.case].columns
        at = np.array([choice.at])
        cell = columns.cells[columns.cell[at]]
        corrections, weights, _ = adapted.of_cells(cell)
        f = columns.features(at)
        f = dataclasses.replace(
            f,
            unmeasured_widths=unmeasured_of(
                plan.config(choice), plan.cases[choice.case].setup.prices
            ).widths[:, None],
        )
        value, by_theta, by_blocks = adapt.slopes(f, adapted.theta, corrections)
        log_s.append(value[0])
        slopes.append(np.concatenate([by_theta[0], *(by_blocks[:, 0, None] * weights[:, 0])]))
        cells.append(cell[0])
        by_block.append(by_blocks[:, 0])
        doubted.append(adapt.doubted(adapted, f, value, corrections)[..., 0])
    a, x, b = np.array(slopes), np.array(cells), np.array(by_block)
    covariance = a @ adapted.covariance @ a.T
    for block, spread in enumerate(adapt.SPREAD):
        covariance = covariance + spread**2 * np.outer(b[:, block], b[:, block]) * adapt.alike_left(
            adapted, x, block
        )
    return (
        np.array(log_s),
        covariance + adapted.noise**2 * np.eye(len(a)),
        np.moveaxis(np.array(doubted), 0, -1),
    )
