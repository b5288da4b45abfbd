"""Which measured steps are given and which are judged. Nothing is fitted on a row that is judged.

vTrain        nothing given; 30 one-node rows given, drawn forty times; rows of many nodes judged
              with one-node rows given
ultra-scale   a whole model left out; fewer than 256 GPUs given and 256 judged; a fifth of all cells
              left out, five times
MosaicML      a model size left out; the H100s given and the A100s judged, another generation: a
              harder task than another memory

A cell is a layout with its model and GPU count; runs of it that differ in the ZeRO stage stay
together.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from hybridperf.validate.harness import Split, facts

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
