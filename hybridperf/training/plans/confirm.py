"""The winner and its neighbours, evaluated with the full graph of a step: does the closed form
choose what the graph would?

A neighbour differs from the winner in one field, or in two that only go together (schedule and
chunks; micro-batch and accumulation always). The graph prices each kernel by the op model and knows
no knob of a step, so its seconds are not the plan's: what is compared is the order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.prediction import predict
from hybridperf.model import PerfModel
from hybridperf.training.plans.ranked import Choice, RankedLayouts
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.step import transformer

_DIVIDED = ("tp", "cp", "pp", "ep")
_OTHER = ("vp", "zero", "micro_batch", "recompute", "sequence_parallel")


@dataclasses.dataclass(frozen=True)
class Confirmed:
    """One layout by both ways."""

    choice: Choice
    plan_s: float
    graph_s: float


def neighbours(plan: RankedLayouts, count: int) -> list[Choice]:
    """The best layouts that differ from the winner in one field; dp and ranks count as one."""
    first = plan.choice(0)
    case, at = plan.cases[first.case], plan.ranked_in(first.case)
    space, rows, winner = case.space, case.rows[at], case.rows[first.at]

    def differs(name: str) -> np.ndarray:
        column = space.column(name)
        return np.asarray(column[rows] != column[winner])

    changes = sum(differs(name).astype(int) for name in (*_DIVIDED, *_OTHER))
    placed = space.place_of[rows] != space.place_of[winner]
    near = (changes == 1) | ((changes == 0) & placed & ~differs("shard_ranks"))
    return [Choice(first.case, int(one)) for one in at[np.flatnonzero(near)[:count]]]


def confirm(plan: RankedLayouts, choices: Sequence[Choice]) -> list[Confirmed]:
    """The winner first, then each choice by the seconds of its graph."""
    found = []
    for choice in (plan.choice(0), *choices):
        prices = plan.cases[choice.case].setup.prices
        graph_s = full_s(prices.model, prices.links, plan.config(choice))
        found.append(Confirmed(choice, plan.step_s(choice), graph_s))
    return [found[0], *sorted(found[1:], key=lambda one: one.graph_s)]


def full_s(model: PerfModel, links: CollectiveModel, config: TransformerConfig) -> float:
    """Seconds of a step by its whole graph."""
    return float(predict(model.with_collectives(links), transformer(config, host=None)).time_s)
