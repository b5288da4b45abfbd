"""Operating points of servers: whole models, whole systems left out, and 30 rows of a new model.

One measurement that is listed under several names, or in two spellings of its layout, counts once;
names of one model are merged before any split. Beside ours stand boosted trees on sizes of model,
machine and deployment, given the same rows, and the law without a single fitted effect.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.io import read_table
from hybridperf.model.serving_effects import ServingEffects
from hybridperf.runs.served import Served, served
from hybridperf.runs.serving_fit import TARGETS, ServingFit, fitted
from hybridperf.runs.serving_rows import ServedRow, understood
from hybridperf.runs.serving_table import filled, measured_as
from hybridperf.validate.harness import Columns, Found, ResultLine, Split, claim, lines_table
from hybridperf.validate.serving_choice import choice_lines, choices
from hybridperf.validate.serving_gpus import GPUS, composed, gpu_lines, measured
from hybridperf.validate.serving_trees import features_of, trees

FILE = "training_steps/inference_serving_dev.csv.gz"
SPLITS = ("models", "systems", "few")
TASKS = ("beliefs", *SPLITS, "gpus", "chosen")
FEW, DRAWS = 30, 3
_TREES, _BARE = "trees", "no effects"
_GOALS = {
    ("models", "tpot_s"): 0.12, ("systems", "tpot_s"): 0.11, ("few", "tpot_s"): 0.07,
    ("models", "ttft_s"): 0.22,
}  # fmt: skip
_NOTHING = ServingEffects(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.1)


@dataclasses.dataclass(frozen=True)
class Points:
    """Distinct measurements that can be priced [N]."""

    served: Served
    seconds: dict[str, np.ndarray]
    features: np.ndarray  # [N, F] of the trees


@claim("serving", TASKS)
def run(data: Path, tasks: Sequence[str], quick: bool) -> Iterator[Found]:
    """Each task; `quick`: one draw of few rows."""
    points = points_of(read_table(Path(data) / FILE))
    found = functools.cache(lambda task: judged(points, task, 1 if quick else DRAWS))
    for task in tasks:
        if task == "gpus":
            yield left_out_gpus(points, 1 if quick else DRAWS)
        elif task == "chosen":
            yield chosen({split: found(split).tables[split] for split in SPLITS})
        else:
            yield found(task)


def left_out_gpus(points: Points, draws: int) -> Found:
    """Steps of GPUs as if nobody had measured them."""
    whole = np.array([row.prefill is None for row in points.served.rows])
    rows = [row for row, good in zip(points.served.rows, whole, strict=True) if good]
    seconds = {name: values[whole] for name, values in points.seconds.items()}
    known = {row.system for row in rows}
    frames = [
        measured(rows, seconds, points.features[whole], gpu, draws) for gpu in GPUS if gpu in known
    ]
    steps, judged_rows = composed(), pd.concat(frames, ignore_index=True)
    lines = [*gpu_lines(steps, judged_rows)]
    return Found(lines_table(lines), {"gpus_composed": steps, "gpus": judged_rows}, lines)


def chosen(tables: Mapping[str, pd.DataFrame]) -> Found:
    """Whether predictions choose deployments that are nearly the best."""
    found = {split: choices(table) for split, table in tables.items()}
    lines = [line for split, frame in found.items() for line in choice_lines(split, frame)]
    whole = pd.concat([frame.assign(split=split) for split, frame in found.items()])
    return Found(lines_table(lines, "groups"), {"chosen": whole}, lines)


def points_of(frame: pd.DataFrame) -> Points:
    """A table's rows, once each."""
    rows = understood(frame)
    seconds = {name: frame[name].to_numpy(float) for name in TARGETS}
    keys = [
        (measured_as(row), *(values[at] for values in seconds.values()))
        for at, row in enumerate(rows)
    ]
    once = np.flatnonzero(~pd.Series(keys, dtype=object).duplicated().to_numpy())
    found = served([rows[at] for at in once])
    at = once[found.at]
    kept = {name: values[at] for name, values in seconds.items()}
    return Points(found, kept, features_of(found))


def splits(points: Points, task: str, draws: int) -> Iterator[Split]:
    """What is given and what is judged; rows without counts of workers are never given."""
    rows = points.served.rows
    if task == "beliefs":
        yield Split(task, "nothing given", np.zeros(0, int), np.arange(len(rows)))
        return
    label = np.array([row.system if task == "systems" else row.model for row in rows])
    usable = np.array([row.fitted_on for row in rows])
    for name in np.unique(label):
        mine = label == name
        if task != "few":
            yield Split(task, str(name), np.flatnonzero(~mine & usable), np.flatnonzero(mine))
            continue
        framework = np.array([row.framework for row in rows])
        for one in np.unique(framework[mine]):
            own = np.flatnonzero(mine & usable & (framework == one))
            for seed in range(draws):
                if len(own) > 2 * FEW:
                    drawn = np.random.default_rng(seed).permutation(own)
                    given = np.concatenate([np.flatnonzero(~mine & usable), drawn[:FEW]])
                    yield Split(task, f"{name} {one} {seed}", given, drawn[FEW:])


def judged(points: Points, task: str, draws: int) -> Found:
    """Errors of one task, by target and regime."""
    parts = []
    for split in splits(points, task, draws):
        given, mine = (np.isin(np.arange(len(points.features)), one) for one in
                       (split.given, split.judged))  # fmt: skip
        known = {name: values[given] for name, values in points.seconds.items()}
        fit = fitted(points.served.part(given), known) if given.any() else ServingFit({})
        part = points.served.part(mine)
        ours, bare = filled(part, fit), part.latency(_NOTHING)
        frame = pd.DataFrame({
            "left_out": split.part, "model": [row.model for row in part.rows],
            "system": [row.system for row in part.rows],
            "framework": [row.framework for row in part.rows],
            "regime": [_regime(row) for row in part.rows],
            "kind": ["MoE" if row.engine and row.engine.shape.experts else "dense"
                     for row in part.rows],
            "clients": [row.clients for row in part.rows], "isl": [row.prompt for row in part.rows],
            "osl": [row.output for row in part.rows], "gpus": [row.gpus for row in part.rows],
            "gpus_known": [row.workers_told for row in part.rows],
            "layout": [_layout(row) for row in part.rows],
        })  # fmt: skip
        for target, short in zip(TARGETS, ("tpot", "ttft"), strict=True):
            frame[target] = points.seconds[target][mine]
            frame[f"predicted_{target}"] = ours[f"predicted_{short}_s"]
            frame[f"low_{target}"] = ours[f"{short}_low_s"]
            frame[f"high_{target}"] = ours[f"{short}_high_s"]
            frame[f"trees_{target}"] = trees(points.features, points.seconds[target], given, mine)
            frame[f"bare_{target}"] = getattr(bare, target)
        parts.append(frame)
    table = pd.concat(parts, ignore_index=True)
    lines = [*_lines(task, table)]
    return Found(lines_table(lines), {task: table}, lines)


def _regime(row: ServedRow) -> str:
    if row.prefill is None:
        return "aggregated"
    return "disaggregated" if row.workers_told else "disaggregated, workers not told"


def _lines(task: str, table: pd.DataFrame) -> Iterator[ResultLine]:
    for target in TARGETS:
        for name, rows in _cut(table):
            columns = Columns(
                target, f"predicted_{target}", (f"low_{target}", f"high_{target}"),
                {_TREES: f"trees_{target}", _BARE: f"bare_{target}"},
            )  # fmt: skip
            goal = _GOALS.get((task, target)) if name == "aggregated" else None
            what = f"{task}, {target.removesuffix('_s').upper()}, {name}"
            yield columns.line(what, rows, goal, "median")


def _cut(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for regime, rows in table.groupby("regime"):
        yield str(regime), rows
        if regime == "aggregated":
            for name in ("kind", "framework"):
                for value, some in rows.groupby(name):
                    yield f"{regime}, {value}", some


def _layout(row: ServedRow) -> str:
    """A row's engines, whoever sends how much to them."""
    sizes = [
        (one.tp, one.pp, one.attention_dp, one.expert_ep, one.quant, one.of_experts())
        for one in (row.engine, row.prefill)
        if one is not None
    ]
    return f"{row.framework} {sizes} {row.workers} {row.prefill_workers}"
