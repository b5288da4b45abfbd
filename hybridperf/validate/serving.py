"""Operating points of servers: whole models, whole systems left out, and 30 rows of a new model.

One measurement that is listed under several names, or in two spellings of its layout, counts once;
names of one model are merged before any split. Beside ours stand boosted trees on sizes of model,
machine and deployment, given the same rows, and the law without a single fitted effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from hybridperf.io import read_table
from hybridperf.model.serving_effects import ServingEffects
from hybridperf.report import text
from hybridperf.runs.served import Served, served
from hybridperf.runs.serving_fit import TARGETS, fitted
from hybridperf.runs.serving_rows import ServedRow, understood
from hybridperf.runs.serving_table import filled, measured_as
from hybridperf.validate.harness import Found, ResultLine, Split, claim

FILE = "training_steps/inference_serving_dev.csv.gz"
TASKS = ("models", "systems", "few")
FEW, DRAWS = 30, 3
_TREES, _BARE = "trees", "no effects"
_GOALS = {
    ("models", "tpot_s"): 0.12, ("systems", "tpot_s"): 0.11, ("few", "tpot_s"): 0.07,
    ("models", "ttft_s"): 0.22,
}  # fmt: skip
_NOTHING = ServingEffects(1.0, 0.0, 1.0, 1.0, 0.0, 0.1)


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
    for task in tasks:
        yield judged(points, task, 1 if quick else DRAWS)


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
    return Points(found, kept, _features(found))


def splits(points: Points, task: str, draws: int) -> Iterator[Split]:
    """What is given and what is judged; rows without counts of workers are never given."""
    rows = points.served.rows
    label = np.array([row.system if task == "systems" else row.model for row in rows])
    usable = np.array([row.workers_known for row in rows])
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
        fit = fitted(points.served.part(given), known)
        part = points.served.part(mine)
        ours, bare = filled(part, fit), part.latency(_NOTHING)
        frame = pd.DataFrame({
            "left_out": split.part, "model": [row.model for row in part.rows],
            "system": [row.system for row in part.rows],
            "framework": [row.framework for row in part.rows],
            "regime": [_regime(row.prefill is not None, row.workers_known) for row in part.rows],
            "kind": ["MoE" if row.engine and row.engine.shape.experts else "dense"
                     for row in part.rows],
            "clients": [row.clients for row in part.rows], "isl": [row.prompt for row in part.rows],
            "osl": [row.output for row in part.rows], "gpus": [row.gpus for row in part.rows],
            "gpus_known": [row.workers_known for row in part.rows],
            "layout": [_layout(row) for row in part.rows],
        })  # fmt: skip
        for target, short in zip(TARGETS, ("tpot", "ttft"), strict=True):
            trees = HistGradientBoostingRegressor(random_state=0)
            with threadpool_limits(1):  # several wait for each other for hours on a busy machine
                trees.fit(points.features[given], np.log(known[target]))
            frame[target] = points.seconds[target][mine]
            frame[f"predicted_{target}"] = ours[f"predicted_{short}_s"]
            frame[f"low_{target}"] = ours[f"{short}_low_s"]
            frame[f"high_{target}"] = ours[f"{short}_high_s"]
            frame[f"trees_{target}"] = np.exp(trees.predict(points.features[mine]))
            frame[f"bare_{target}"] = getattr(bare, target)
        parts.append(frame)
    table = pd.concat(parts, ignore_index=True)
    lines = [*_lines(task, table)]
    head = ["", "rows", "median", "trees", "no effects", "in interval"]
    cells = [
        [one.name, str(one.n), *(text.percent(share) for share in (
            one.ours, one.baselines[_TREES], one.baselines[_BARE], one.coverage))]
        for one in lines
    ]  # fmt: skip
    return Found(text.table(head, cells), {task: table}, lines)


def _regime(apart: bool, known: bool) -> str:
    if not apart:
        return "aggregated"
    return "disaggregated" if known else "disaggregated, workers not told"


def _lines(task: str, table: pd.DataFrame) -> Iterator[ResultLine]:
    for target in TARGETS:
        for name, rows in _cut(table):
            measured = rows[target].to_numpy(float)
            inside = rows[target].between(rows[f"low_{target}"], rows[f"high_{target}"]).mean()
            errors = {
                kind: float(np.median(np.abs(rows[f"{kind}_{target}"] / measured - 1.0)))
                for kind in ("predicted", "trees", "bare")
            }
            whole = name == "aggregated"
            yield ResultLine(
                f"{task}, {target.removesuffix('_s').upper()}, {name}", errors["predicted"],
                len(rows), _GOALS.get((task, target)) if whole else None,
                {_TREES: errors["trees"], _BARE: errors["bare"]}, "median",
                coverage=float(inside),
            )  # fmt: skip


def _cut(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for regime, rows in table.groupby("regime"):
        yield str(regime), rows
        if regime == "aggregated":
            for name in ("kind", "framework"):
                for value, some in rows.groupby(name):
                    yield f"{regime}, {value}", some


def _features(found: Served) -> np.ndarray:
    """What trees see of each row: sizes, machine, framework as numbers."""
    out = []
    for row in found.rows:
        engine, machine = row.engine, row.machine
        assert engine is not None
        assert machine is not None
        shape, device = engine.shape, machine.load().device
        names = (row.framework == "vllm", row.framework == "sglang", row.prefill is not None)
        out.append([
            np.log(shape.parameters), np.log(shape.active_parameters), shape.layers, shape.hidden,
            shape.experts, np.log(device.memory_bytes_per_s), np.log(device.peak("bf16", "matrix")),
            engine.tp, engine.attention_dp, engine.expert_ep, row.gpus, row.workers,
            np.log(row.clients), np.log(row.prompt), np.log(row.output),
            "fp4" in engine.of_experts(), engine.quant == "bfloat16", *names,
        ])  # fmt: skip
    return np.array(out, float)


def _layout(row: ServedRow) -> str:
    """A row's engines, whoever sends how much to them."""
    sizes = [
        (one.tp, one.pp, one.attention_dp, one.expert_ep, one.quant, one.of_experts())
        for one in (row.engine, row.prefill)
        if one is not None
    ]
    return f"{row.framework} {sizes} {row.workers} {row.prefill_workers}"
