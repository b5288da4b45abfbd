"""Does the closed composition choose what the whole graph of a step would? Every layout of mid-size
cases, each by its graph.

    slower     the graph's seconds of the layout that the plan ranks first, over its minimum of all
               layouts: 1.0 is the same choice

The graph prices each kernel by the op model and knows no knob of a step, so its seconds are not the
plan's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from hybridperf.training.plans.explain import full_s
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.run import plan
from hybridperf.workloads.transformer import load_shape

WITHIN = 1.05
# What the graph builds in a second or two each: some hundred layouts of every kind, in place of
# some thousand
ONLY: dict[str, list[Any]] = {
    "cp": [1],
    "zero": [0, 1],
    "recompute": ["none"],
    "micro_batch": [1, 2],
    "schedule": ["1f1b", "interleaved"],
    "vp": [1, 2],
}
SEQ = 2048


class Case(NamedTuple):
    """A model cut to some layers, on some devices."""

    model: str
    layers: int
    system: str
    gpus: int
    batch: int

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.layers} layers, {self.gpus} GPUs of {self.system}, batch"
            f" {self.batch}"
        )


CASES = (
    Case("gpt3-6.7b", 8, "aic_a100_sxm", 8, 16),
    Case("gpt3-13b", 12, "aic_a100_sxm", 16, 32),
    Case("llama2-7b", 8, "aic_h100_sxm", 16, 32),
    Case("llama3-8b", 8, "aic_h100_sxm", 16, 16),
)


def by_graph(case: Case) -> pd.DataFrame:
    """Every layout of a case, as the plan ranks them: `rank, layout, plan_s, graph_s`."""
    shape = dataclasses.replace(load_shape(case.model), layers=case.layers, seq=SEQ)
    found = plan(shape, case.system, case.gpus, batch=case.batch, only=ONLY)
    rows: list[dict[str, Any]] = []
    for rank in range(len(found)):
        choice = found.choice(rank)
        graph_s = full_s(found.setup.prices.model, found.setup.prices.links, found.config(choice))
        about = {"case": str(case), "rank": rank + 1, "layout": layout_words(found.layout(choice))}
        rows.append({**about, "plan_s": found.step_s(choice), "graph_s": graph_s})
    return pd.DataFrame(rows)


def slower(layouts: pd.DataFrame) -> float:
    """Of the layout ranked first."""
    return float(layouts["graph_s"].iloc[0] / layouts["graph_s"].min())


def lines(cases: Sequence[Case] = CASES) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(a line per case, all layouts of all cases)."""
    every = [by_graph(case) for case in cases]
    of_cases = [
        {
            "case": str(case),
            "layouts": len(one),
            "slower": slower(one),
            "median_slower": float(one["graph_s"].median() / one["graph_s"].min()),
            "chosen": one["layout"].iloc[0],
            "best_by_graph": one.loc[one["graph_s"].idxmin(), "layout"],
        }
        for case, one in zip(cases, every, strict=True)
    ]
    return pd.DataFrame(of_cases), pd.concat(every, ignore_index=True)
