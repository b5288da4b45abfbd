"""Famous training runs as their papers tell them (`published_runs_dev.csv`), by regime, and after
fitting on half of the sources.

Rows of known layout are judged; those typed from memory are never fitted on. Beside ours stands the
constant share of the peak that errs least on the judged rows themselves.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.io import read_table
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.validate.harness import Found, ResultLine
from hybridperf.validate.scores import Scores, best_factor, mean_of, scores
from hybridperf.validate.step_baselines import baseline_rows

FILE = "training_steps/published_runs_dev.csv"
DRAWS = 4  # of halves of the sources
_CONSTANT = "constant MFU, best"
_SHOWN = ["source", "rows", "mape", "median", "bias", "coverage"]
_COMPUTE_BOUND, _EXPOSED = 0.06, 0.15  # of a step: communication and bubble below; above
_BILL = "GPU hours"  # what `published_as` says of an average over a whole run, restarts and all
_SIZES = ((8, "one node"), (128, "up to 128 GPUs"), (1024, "up to 1,024"), (np.inf, "more"))


def judge(data: Path, draws: int = DRAWS) -> Found:
    """Every regime by beliefs alone, and the sources that were left out of a fit."""
    cache = PriceCache()
    given = read_table(data / FILE)
    given = given[given["layout_known"] == "yes"].reset_index(drop=True)
    measured_s = given["published_s"].to_numpy(float)
    frame = predict_steps(given, cache=cache).frame.assign(measured_s=measured_s)
    frame["ideal_s"] = baseline_rows(list(resolve(given))).ideal_s
    found = {
        f"published runs, {name}": _scores(frame[chosen.to_numpy()])
        for name, chosen in _regimes(frame)
    }
    halves = list(_halves(given.assign(step_time_s=measured_s), draws, cache))
    for at, name in enumerate(("nothing fitted", "other sources fitted")):
        drawn = [_scores(half[at].assign(measured_s=half[at]["step_time_s"])) for half in halves]
        found[f"left-out half of the sources, {name}"] = mean_of(drawn)
    too_large = frame["fits"].eq(False).sum()
    by_source = [{"source": source, **dataclasses.asdict(_scores(part))}
                 for source, part in frame.groupby("source", sort=False)]  # fmt: skip
    tables = {"published": frame, "published_sources": pd.DataFrame(by_source)[_SHOWN]}
    lines = [ResultLine.of(name, one) for name, one in found.items()]
    said = f"{too_large} of {len(frame)} runs that ran are called too large"
    return Found(said, tables, lines)


def _regimes(frame: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    """Names of sets of rows, and which rows are in each."""
    comm, bubble = (frame[name] / frame["predicted_s"] for name in ("exposed_comm_s", "bubble_s"))
    yield "all", comm >= 0
    computing = (comm < _COMPUTE_BOUND) & (bubble < _COMPUTE_BOUND)
    billed = frame["published_as"].str.contains(_BILL)
    yield "compute-bound", computing
    yield "compute-bound, no bills of GPU hours", computing & ~billed
    yield "bills of GPU hours", billed
    yield f"communication over {100 * _EXPOSED:.0f} % exposed", comm > _EXPOSED
    least = 0.0
    for most, name in _SIZES:
        yield name, frame["n_gpus"].between(least, most, inclusive="right")
        least = most


def _halves(
    frame: pd.DataFrame, draws: int, cache: PriceCache
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Half of the sources predicted: by beliefs alone, and with the other half's rows given."""
    sources = frame["source"].unique()
    for seed in range(draws):
        known = set(np.random.default_rng(seed).permutation(sources)[: len(sources) // 2])
        taught = frame["source"].isin(known)
        asked = frame[~taught].reset_index(drop=True)
        rows = frame[taught & (frame["verified"] != "recalled")]
        yield (
            predict_steps(asked, cache=cache).frame,
            predict_steps(asked, fit_on=rows, cache=cache).frame,
        )


def _scores(rows: pd.DataFrame) -> Scores:
    measured_s, others = rows["measured_s"], {}
    if "ideal_s" in rows and len(rows):
        factor = best_factor((measured_s / rows["ideal_s"]).to_numpy(float))
        others = {_CONSTANT: factor * rows["ideal_s"]}
    return scores(measured_s, rows["predicted_s"], rows["low_s"], rows["high_s"], others)
