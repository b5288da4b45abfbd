"""Which measured steps are given and which are judged. Nothing is fitted on a row that is judged.

vTrain        nothing given; 30 one-node rows given, drawn forty times; rows of many nodes judged
              with one-node rows given
ultra-scale   a whole model left out; fewer than 256 GPUs given and 256 judged; a fifth of all cells
              left out, five times
MosaicML      a model size left out; the H100s given and the A100s judged, another generation: a
              harder task than another memory

A cell is a layout with its model and GPU count; runs of it that differ in the ZeRO stage stay
together.

What any model of training steps must beat: a constant share of the peak, and trees that know no
physics.

    constant MFU, median   time = model FLOPs / (MFU x GPUs x peak) with the median MFU of the rows
                           that were given
    constant MFU, best     the same with the constant that errs least on them in the mean of
                           |predicted / measured - 1|
    trees                  gradient-boosted trees on log MFU, of the model's sizes and the layout

The first two differ by up to a factor of two where MFU spans orders of magnitude: both are quoted.
Axes: N rows.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Split, facts
from benchmarks.claims.scores import best_factor, boosted_trees
from hybridperf.io import InputError
from hybridperf.training.steps.rows import ResolvedRow

CELL = ("model", "n_gpus", "tp", "pp", "dp", "micro_batch")
# One draw of 30 rows differs from the next by 0.7 points of 3: ten of them leave the mean unsure by
# 0.25, forty by 0.1
DRAWS, DRAWN_ROWS, FOLDS = 40, 30, 5

STEP_GOALS: dict[str, float] = facts("steps.toml")["goals"]
MEDIAN_GOALS: dict[str, float] = facts("steps.toml")["median_goals"]  # of runs that do not stall
_NONE = np.zeros(0, int)


def splits(frame: pd.DataFrame, draws: int = DRAWS, folds: int = FOLDS) -> Iterator[Split]:
    """All tasks that a table of predictable, measured rows allows, in the order of `STEP_GOALS`."""
    yield from _vtrain(frame, draws)
    yield from _ultra_scale(frame, folds)
    yield from _mosaicml(frame)


def _vtrain(frame: pd.DataFrame, draws: int) -> Iterator[Split]:
    one, many = (_at(frame["source"] == f"vtrain_{nodes}_node") for nodes in ("single", "multi"))
    if len(one):
        yield Split("vTrain one node, no rows", "all", _NONE, one)
        for draw in range(draws if len(one) > 2 * DRAWN_ROWS else 0):
            given = np.random.default_rng(draw).permutation(one)[:DRAWN_ROWS]
            yield Split("vTrain one node, 30 rows", f"draw {draw}", given, np.setdiff1d(one, given))
    if len(many):
        yield Split("vTrain many nodes, no rows", "all", _NONE, many)
        if len(one):
            yield Split("vTrain many nodes, one-node rows", "all", one, many)


def _ultra_scale(frame: pd.DataFrame, folds: int) -> Iterator[Split]:
    ultra = (frame["source"] == "ultrascale_playbook").to_numpy()
    if not ultra.any():
        return
    yield from by_model("ultra-scale, unseen model", frame, ultra)
    gpus = pd.to_numeric(frame["n_gpus"]).to_numpy()
    fewer, most = _at(ultra & (gpus < 256)), _at(ultra & (gpus == 256))
    yield Split("ultra-scale, unseen GPU count", "256", fewer, most)
    yield from by_cell("ultra-scale, unseen cells", frame, ultra, folds)


def by_model(task: str, frame: pd.DataFrame, rows: np.ndarray) -> Iterator[Split]:
    """Each model of some rows [N] left out."""
    for model in sorted(frame.loc[rows, "model"].unique()):
        out = (frame["model"] == model).to_numpy()
        yield Split(task, model, _at(rows & ~out), _at(rows & out))


def by_cell(task: str, frame: pd.DataFrame, rows: np.ndarray, folds: int) -> Iterator[Split]:
    """So many folds of the cells of some rows [N] left out; one fold: of two."""
    places = _at(rows)
    cell = frame.iloc[places].groupby(list(CELL), sort=True).ngroup().to_numpy()
    fold = np.random.default_rng(0).permutation(cell.max() + 1)[cell] % max(folds, 2)
    for one in range(folds):
        yield Split(task, f"fold {one}", places[fold != one], places[fold == one])


def _mosaicml(frame: pd.DataFrame) -> Iterator[Split]:
    fp8 = frame["precision"].astype(str).str.contains("fp8").to_numpy()
    mosaic = (frame["source"] == "mosaicml_llmfoundry").to_numpy() & ~fp8
    if not mosaic.any():
        return
    yield from by_model("MosaicML, unseen size", frame, mosaic)
    h100 = frame["gpu"].astype(str).str.contains("h100").to_numpy()
    yield Split("MosaicML, unseen GPU", "a100_80gb", _at(mosaic & h100), _at(mosaic & ~h100))


def _at(mask: np.ndarray | pd.Series) -> np.ndarray:
    return np.flatnonzero(np.asarray(mask))


NAMES = ("constant MFU, median", "constant MFU, best", "trees")
_LEAVES = 15
_LEAST_TREE_ROWS = 20


@dataclasses.dataclass(frozen=True)
class BaselineRows:
    """What baselines see of N rows."""

    ideal_s: np.ndarray  # [N] model FLOPs at the peak of all GPUs
    layout: np.ndarray  # [N, F] logs of sizes and layout

    def __getitem__(self, at: Any) -> Self:
        return type(self)(self.ideal_s[at], self.layout[at])


def baseline_rows(rows: list[ResolvedRow]) -> BaselineRows:
    """Of rows that have a config."""
    ideal, layout = [], []
    for row in rows:
        if row.config is None or row.machine is None:
            refused = row.refused
            raise InputError(f"expected rows with a config, got one that was refused: {refused}")
        config, plan, shape = row.config, row.config.layout, row.config.shape
        dtype = "bf16" if config.dtype in ("fp8", "fp4") else config.dtype
        peak = row.machine.spec.peak(dtype, "matrix")
        ideal.append(shape.model_flops(plan.global_batch * shape.seq) / (plan.ranks * peak))
        layout.append([
            shape.hidden, shape.layers, shape.ffn, shape.seq, plan.tp, plan.pp, plan.dp,
            plan.micro_batch, plan.accumulation, plan.ranks, 1 + plan.zero,
            1 + ("none", "selective", "full").index(plan.recompute),
        ])  # fmt: skip
    logs = np.log(np.array(layout, float)).reshape(len(ideal), -1)
    return BaselineRows(np.array(ideal, float), logs)


def constant(ideal_s: np.ndarray, measured_s: np.ndarray, best: bool) -> float:
    """1 / MFU: the median of measured / ideal, or the factor that errs least in the mean."""
    ratio = measured_s / ideal_s
    return best_factor(ratio) if best else float(np.median(ratio))


def fit(
    name: str, rows: BaselineRows, measured_s: np.ndarray
) -> Callable[[BaselineRows], np.ndarray] | None:
    """Seconds of other rows by a baseline fitted on these; None where they are too few for it."""
    if name not in NAMES:
        raise InputError(f"expected a baseline of {', '.join(NAMES)}, got {name!r}")
    if name != "trees":
        factor = constant(rows.ideal_s, measured_s, best=name.endswith("best"))
        return lambda other: factor * other.ideal_s
    if len(measured_s) < _LEAST_TREE_ROWS:
        return None
    boosting = boosted_trees(_LEAVES)
    boosting.fit(rows.layout, np.log(measured_s / rows.ideal_s))
    return lambda other: other.ideal_s * np.exp(boosting.predict(other.layout))


def failure_trees(seen: np.ndarray, failed: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Which layouts will fail, by trees on the layouts of other runs and whether these failed."""
    if failed.all() or not failed.any():
        return np.full(len(asked), bool(failed.all()))
    boosting = boosted_trees(_LEAVES, outcome=True)
    return np.asarray(boosting.fit(seen, failed).predict(asked), bool)
