"""Steps of the second delivery (`DIR/added`), which no fit has seen, by source and by what trains.

Nothing is fitted on any row. Beside ours stands the constant share of the peak, at 16 bits, that
the other sources reach in the median: what one would take who knows no layout. Stalled runs and
rows that cannot be predicted are left out. The costs of experts, of frameworks that are not known
and the clock of B300s were chosen with rows of these sources in sight; their values hold with a
model, a kind of GPU or a source left out (`docs/accuracy/details.md`).
"""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Columns, Found, ResultLine
from benchmarks.claims.scores import Scores
from benchmarks.claims.step_splits import baseline_rows
from hybridperf.io import read_table
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve

FILES = ("train_steps.csv.gz", "published_tables.csv.gz")
_CONSTANT = "constant MFU of other sources"
_LEAST_ROWS = 4  # of a group that is judged by itself


def tables(data: Path) -> list[Path]:
    """The files of the second delivery that there are under a folder of measured data."""
    paths = (data / "added" / "training_steps" / name for name in FILES)
    return [path for path in paths if path.is_file()]


def judge(data: Path, rows: int | None = None) -> Found:
    """Every source, dense models and mixtures of experts apart, and the means over sources.

    Args:
        data: folder of measured data.
        rows: at most so many of a source; None: all.
    """
    frame = pd.concat([read_table(path) for path in tables(data)], ignore_index=True)
    frame = frame.reindex(columns=[*dict.fromkeys((*frame.columns, "stalled"))])
    stalled = pd.to_numeric(frame["stalled"], errors="coerce").eq(1)
    frame = frame[pd.to_numeric(frame["step_time_s"], errors="coerce").gt(0) & ~stalled]
    if rows is not None:
        frame = frame.groupby("source", sort=False).head(rows)
    frame = frame.reset_index(drop=True)
    understood = list(resolve(frame))
    good = np.array([row.config is not None for row in understood])
    known = [row for row, fine in zip(understood, good, strict=True) if fine]
    kept = frame[good].reset_index(drop=True)
    experts = [row.config is not None and row.config.shape.experts > 0 for row in known]
    judged = predict_steps(kept).frame.assign(
        measured_s=kept["step_time_s"].to_numpy(float),
        trains=np.where(experts, "experts", "dense"),
        ideal_s=baseline_rows(known).ideal_s,
    )
    judged["constant_s"] = _constants(judged) * judged["ideal_s"]
    lines, groups = [], []
    for trains, of_kind in judged.groupby("trains", sort=False):
        by_source = {
            str(source): _scores(part)
            for source, part in of_kind.groupby("source", sort=False)
            if len(part) >= _LEAST_ROWS
        }
        lines.append(ResultLine.of(f"strangers, {trains}, all rows", _scores(of_kind)))
        for source, found in by_source.items():
            lines.append(ResultLine.of(f"strangers, {trains}, {source}", found))
            groups.append({"trains": trains, "source": source, **vars(found)})
    for gpu, part in judged.groupby("gpu", sort=False):
        if len(part) >= 2 * _LEAST_ROWS:
            lines.append(ResultLine.of(f"strangers, {gpu}", _scores(part)))
    too_large = int(judged["fits"].eq(False).sum())
    said = (
        f"{len(judged)} of {len(frame)} rows predicted; {too_large} that ran are called too large"
    )
    return Found(said, {"stranger_steps": judged, "stranger_sources": pd.DataFrame(groups)}, lines)


def _constants(judged: pd.DataFrame) -> np.ndarray:
    """Of each row the median of measured / ideal over the rows of all other sources."""
    ratio = judged["measured_s"] / judged["ideal_s"]
    of_others = {
        source: float(ratio[judged["source"] != source].median())
        for source in judged["source"].unique()
    }
    return judged["source"].map(of_others).to_numpy(float)


def _scores(part: pd.DataFrame) -> Scores:
    columns = Columns(
        "measured_s", interval=("low_s", "high_s"), baselines={_CONSTANT: "constant_s"}
    )
    return columns.scores(part)
