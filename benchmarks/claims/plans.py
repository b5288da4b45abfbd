"""Does a plan choose well? On measured sweeps: the layout that is predicted to be fastest, and how
much slower it was than the fastest.

A case is one model on one number of devices whose layouts were measured, ten or more. Efficiencies
are fitted to measured steps of other cases, never to the judged one's: of the same model on other
numbers of devices, or of other models alone. Layouts are ranked by their predicted time, as a plan
ranks them; the chance of a stall is no part of it, and ranking by the time expected with it stands
next to it for comparison, as does the plan among runs that did not stall. So does the best constant
rule: of the rules in a list, the one that does
best over all cases in hindsight.

Where nothing is measured: does the closed composition choose what the whole graph of a step would?
Every layout of mid-size cases is evaluated by its graph, and the layout that the plan ranks first
is judged by the graph's seconds over their minimum: 1.0 is the same choice.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.claims import harness
from benchmarks.claims.harness import Found, ResultLine
from benchmarks.claims.published_rows import with_told
from hybridperf.engine.closed import step_seconds
from hybridperf.io import InputError, read_table
from hybridperf.model import adapted_steps
from hybridperf.model.step_effects import effects_of
from hybridperf.training.plans.explain import full_s
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.run import plan
from hybridperf.training.steps import adapt
from hybridperf.training.steps.adaptation import chosen
from hybridperf.training.steps.batch import Batch, PriceCache
from hybridperf.training.steps.cross_node import as_stalled, stalled, stalled_s
from hybridperf.workloads.transformer import load_shape

SOURCE = "ultrascale_playbook"
FILE = "training_steps/train_steps_dev.csv.gz"
TASKS = ("choice", "graph")
LEAST_ROWS = 10
CLOSE = 1.10  # of the best measured
GOAL = 0.8  # share of cases that are to be close
FITS = ("beliefs", "other cases", "other models")
RANDOM = "any layout at random: chance of one within 10 %"

_ASKED = harness.facts("plans.toml")
RULES: dict[str, list[str]] = _ASKED["rules"]

WITHIN = 1.05
SEQ = 2048


class Case(NamedTuple):
    """A model cut to some layers, on some devices."""

    model: str
    layers: int
    system: str
    gpus: int
    batch: int

    def __str__(self) -> str:
        of = f"{self.gpus} GPUs of {self.system}"
        return f"{self.model}, {self.layers} layers, {of}, batch {self.batch}"


CASES = tuple(Case(**case) for case in _ASKED["cases"])


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way of choosing over all cases: how much slower its choice was than the best measured."""

    way: str
    slower: pd.Series  # by case

    @property
    def close(self) -> float:
        """Share of cases within `CLOSE`."""
        return float((self.slower <= CLOSE).mean())


@harness.claim("plans", TASKS)
def run(data: Path | None, wanted: Sequence[str], quick: bool) -> Iterator[Found]:
    """The tables of `wanted` tasks: choice (measured sweeps), graph (brute force)."""
    if "choice" in wanted:
        if data is None or not (data / FILE).exists():
            raise InputError(
                f"expected --data FOLDER with {FILE}, got {data}; `--tasks graph` needs no measured"
                " data"
            )
        judged = judge(with_told(read_table(data / FILE)), fits=FITS[1:2] if quick else FITS)
        frame = pd.DataFrame({one.way: one.slower for one in judged})
        cases = frame.rename_axis("case").reset_index()
        tables = {"choice_cases": cases, "choice": choice_table(judged)}
        rules = {one.way: 1 - one.close for one in judged if one.way in RULES}
        measure = f"cases beyond {100 * (CLOSE - 1):.0f} % of the best"
        results = [
            ResultLine(one.way, 1 - one.close, len(one.slower), 1 - GOAL, rules, measure)
            for one in judged
            if one.way.startswith(("plan", "time expected"))
        ]
        yield Found("", tables, results, "cases")
    if "graph" in wanted:
        found, layouts = lines(CASES[:1] if quick else CASES)
        tables = {"graph": found, "graph_layouts": layouts}
        goal, measure = WITHIN - 1, "slower than the best by the graph"
        results = [
            ResultLine(
                one["case"], one["slower"] - 1, one["layouts"], goal,
                {"median layout": one["median_slower"] - 1}, measure,
            )
            for one in found.to_dict("records")
        ]  # fmt: skip
        yield Found("every layout by its whole graph", tables, results, "layouts")


def choice_table(judged: Sequence[Choice]) -> pd.DataFrame:
    """Ways of choosing, a row each: the share of cases in which the choice was close to the best
    (`RANDOM`: is at random), and what it lost in the median, in 9 of 10 and at worst.
    """
    return pd.DataFrame([
        {"way": one.way, "close_share": one.slower.mean()}
        if one.way == RANDOM
        else {
            "way": one.way, "close_share": one.close, "median": one.slower.median() - 1,
            "nine_of_ten_share": one.slower.quantile(0.9) - 1, "worst_share": one.slower.max() - 1,
        }
        for one in judged
    ])  # fmt: skip


def judge(
    frame: pd.DataFrame, bank: PriceCache | None = None, fits: tuple[str, ...] = FITS
) -> list[Choice]:
    """Each way of fitting, then every rule, best first; `frame`: published steps."""
    rows = frame[frame["source"].eq(SOURCE) & frame["status"].eq("ok")].reset_index(drop=True)
    batch = (bank or PriceCache()).understand(rows)
    flagged = np.array([bool(row.flags) for row in batch.rows])
    # flagged: micro-batch x accumulation x dp is not the batch that was timed
    batch = chosen(batch, ~flagged)
    rows = rows.iloc[batch.at].reset_index(drop=True)
    case = (rows["model"] + " on " + rows["n_gpus"].astype(str)).to_numpy()
    names = [name for name in dict.fromkeys(case.tolist()) if (case == name).sum() >= LEAST_ROWS]
    measured_s = rows["step_time_s"].to_numpy(float)
    model, found = rows["model"].to_numpy(), []
    ran = ~stalled(batch.configs, measured_s)
    for fit in fits:
        ways: dict[str, dict[str, float]] = {"plan": {}, "time expected with stalls": {}}
        steady: dict[str, float] = {}
        for name in names:
            here = case == name
            others = ~here if fit == "other cases" else model != model[np.argmax(here)]
            given = others if fit != "beliefs" else None
            seconds = _predicted_s(batch, here, given, measured_s)
            for of_way, one_s in zip(ways.values(), seconds, strict=True):
                of_way[name] = _slower(measured_s[here], one_s)
            steady[name] = _slower(measured_s[here & ran], seconds[0][ran[here]])
        ways["plan without stalled runs"] = steady
        found += [Choice(f"{way}, {fit}", pd.Series(slower)) for way, slower in ways.items()]
    of_case = {name: (rows[case == name], measured_s[case == name]) for name in names}
    rules = []
    for rule, keys in RULES.items():
        slower = {name: _slower(took_s, _place(at, keys)) for name, (at, took_s) in of_case.items()}
        rules.append(Choice(rule, pd.Series(slower)))
    share = {name: (one <= CLOSE * one.min()).mean() for name, (_, one) in of_case.items()}
    rules = sorted(rules, key=lambda one: (-one.close, one.slower.median()))
    return [*found, *rules, Choice(RANDOM, pd.Series(share))]


def _predicted_s(
    batch: Batch, here: np.ndarray, fit_on: np.ndarray | None, measured_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(seconds of the judged rows, seconds expected with stalls), fitted on some other rows."""
    assert batch.features is not None
    group = batch.groups[0]  # all rows are of one framework on one architecture
    adapted = adapted_steps.Adapted.before(group=group)
    if fit_on is not None:
        marks = stalled([batch.configs[at] for at in np.flatnonzero(fit_on)], measured_s[fit_on])
        known = as_stalled(batch.features.picked(fit_on), marks)
        limits = adapt.FitLimits(group=group)
        adapted = adapt.fit(known, batch.cells[fit_on], measured_s[fit_on], limits=limits)
    f = batch.features.picked(here)
    rows = [row for row, mine in zip(batch.rows, here, strict=True) if mine]
    corrections = adapted.logs(batch.cells[here])
    knobs = effects_of(adapted.theta)
    step_s = np.asarray(step_seconds(f, knobs, *corrections).step_s)
    return step_s, step_s + f.stall_chance * stalled_s(f, knobs, rows)


def _slower(measured_s: np.ndarray, score: np.ndarray) -> float:
    """Measured time of the choice over the best measured; the mean of equally good choices."""
    first = score <= score.min() * (1 + 1e-12)
    return float(measured_s[first].mean() / measured_s.min())


def _place(rows: pd.DataFrame, keys: Sequence[str]) -> np.ndarray:
    """Places of rows by a rule; equal ones share theirs."""
    columns = {
        **{name: rows[name].to_numpy(float) for name in ("tp", "pp", "micro_batch")},
        "model": (rows["tp"] * rows["pp"]).to_numpy(float),
        "node": (rows["tp"] == 8).to_numpy(float),
        "small": (rows["micro_batch"] < 2).to_numpy(float),
        **{f"not{n}": (rows["tp"] != n).to_numpy(float) for n in (2, 4, 8)},
    }  # fmt: skip
    signed = [-columns[key[1:]] if key.startswith("-") else columns[key] for key in keys]
    return 1.0 + np.unique(np.stack(signed, 1), axis=0, return_inverse=True)[1].reshape(-1)


def by_graph(case: Case) -> pd.DataFrame:
    """Every layout of a case, as the plan ranks them: `rank, layout, plan_s, graph_s`."""
    shape = dataclasses.replace(load_shape(case.model), layers=case.layers, seq=SEQ)
    found = plan(shape, case.system, case.gpus, batch=case.batch, only=_ASKED["only"])
    rows: list[dict[str, Any]] = []
    for rank in range(len(found)):
        choice = found.choice(rank)
        graph_s = full_s(found.setup.prices.model, found.config(choice))
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
            "case": str(case), "layouts": len(one), "slower": slower(one),
            "median_slower": float(one["graph_s"].median() / one["graph_s"].min()),
            "chosen": one["layout"].iloc[0],
            "best_by_graph": one.loc[one["graph_s"].idxmin(), "layout"],
        }
        for case, one in zip(cases, every, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(of_cases), pd.concat(every, ignore_index=True)
