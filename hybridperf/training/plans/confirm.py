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

_FREE = (
    "tp",
    "cp",
    "dp",
    "pp",
    "ep",
    "expert_tp",
    "vp",
    "zero",
    "shard_ranks",
    "micro_batch",
    "recompute",
    "sequence_parallel",
)


@dataclasses.dataclass(frozen=True)
class Confirmed:
    """One layout by both ways."""

    choice: Choice
    plan_s: float
    graph_s: float


def neighbours(plan: RankedLayouts, count: int) -> list[Choice]:
    """The best layouts that differ from the winner in one field; dp and a divisor of ranks that it
    gives way to count as one.
    """
    first = plan.choice(0)
    case = plan.cases[first.case]
    base = case.space.base
    at = plan.ranked[plan.ranked[:, 0] == first.case, 1]
    of = case.space.base_of[case.rows[at]]
    mine = case.space.base_of[case.rows[first.at]]
    differs = {
        name: np.asarray(getattr(base, name))[of] != getattr(base, name)[mine] for name in _FREE
    }
    divided = differs["tp"].astype(int) + differs["cp"] + differs["pp"] + differs["ep"]
    free = (
        differs["vp"].astype(int)
        + differs["zero"]
        + differs["micro_batch"]
        + differs["recompute"]
        + differs["sequence_parallel"]
    )
    placed = case.space.place_of[case.rows[at]] != case.space.place_of[case.rows[first.at]]
    near = (divided + free == 1) | ((divided + free == 0) & placed & ~differs["shard_ranks"])
    return [Choice(first.case, int(one)) for one in at[np.flatnonzero(near)[:count]]]


def confirm(plan: RankedLayouts, choices: Sequence[Choice]) -> list[Confirmed]:
    """The winner first, then each choice, by the plan and by the graph: those that the graph finds
    faster before the others.
    """
    found = []
    for choice in (plan.choice(0), *choices):
        setup = plan.cases[choice.case].setup
        graph_s = full_s(setup.prices.model, setup.prices.links, plan.config(choice))
        found.append(
            Confirmed(choice, float(plan.cases[choice.case].parts.step_s[choice.at]), graph_s)
        )
    return [found[0], *sorted(found[1:], key=lambda one: one.graph_s)]


def full_s(model: PerfModel, links: CollectiveModel, config: TransformerConfig) -> float:
    """Seconds of a step by its whole graph."""
    return float(predict(model.with_collectives(links), transformer(config, host=None)).time_s)
