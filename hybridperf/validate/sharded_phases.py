"""Where the seconds of a sharded step go, phase by phase: predicted next to profiled.

A phase is a scope of the step's source (lookup, all_to_all, mlp, backward, ...), kept with each
rank's program by instruction. A profile holds the least that each instruction took in some calls. A
collective's instruction lasts until the last rank has come, so of the ranks the one that waited
least counts; of all other phases the mean over the ranks does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.report import text

OTHER = "other"
_CALL = "call"  # what a call costs besides its instructions: no event of a profile


def phases(
    prediction: Prediction, contents: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> pd.DataFrame:
    """`phase, predicted_s, measured_s` of one step; `measured` is its row of `steps.csv`."""
    graph = prediction.workload.graph
    seconds = np.zeros(len(graph))
    some = graph.row > 0
    seconds[some] = prediction.op_s[graph.row[some] - 1]
    found: dict[str, list[float]] = {}
    for label, rank, group, took_s in zip(
        graph.labels, graph.rank, graph.collective, seconds, strict=True
    ):
        # a collective goes by the name that rank 0 has for it
        known = contents[0 if group >= 0 else rank].get("phases", {})
        phase = known.get(label, label if label in (_CALL, "fresh memory") else OTHER)
        found.setdefault(phase, [0.0] * len(contents))[rank] += float(took_s)
    met = {
        contents[0].get("phases", {}).get(label)
        for label, group in zip(graph.labels, graph.collective, strict=True)
        if group >= 0
    }
    rows = []
    for phase, of_ranks in found.items():
        columns = [f"{phase}_s_rank{rank}" for rank in range(len(contents))]
        profiled = [float(measured.get(column, np.nan)) for column in columns]
        measured_s = min(profiled) if phase in met else np.mean(profiled)
        rows.append((phase, np.mean(of_ranks), measured_s))
    return pd.DataFrame(rows, columns=["phase", "predicted_s", "measured_s"])


def summary(of_steps: Sequence[pd.DataFrame], step_s: Sequence[float]) -> pd.DataFrame:
    """Mean shares of the measured steps: `phase, predicted, measured, error, size` (absolute)."""
    frames = [
        frame.assign(
            predicted=frame["predicted_s"] / s,
            measured=frame["measured_s"] / s,
            error=(frame["predicted_s"] - frame["measured_s"]) / s,
            size=(frame["predicted_s"] - frame["measured_s"]).abs() / s,
        )
        for frame, s in zip(of_steps, step_s, strict=True)
    ]
    out = pd.concat(frames).groupby("phase")[["predicted", "measured", "error", "size"]].mean()
    return out.sort_values("predicted", ascending=False).reset_index()


def summary_text(found: pd.DataFrame) -> str:
    """As a table for people."""
    columns = ("predicted", "measured", "error", "size")
    rows = [
        [row["phase"], *(text.percent(row[name]) for name in columns)]
        for row in found.to_dict("records")
    ]
    headers = ["shares of the step", "predicted", "profiled", "difference", "its size"]
    return text.table(headers, rows)
