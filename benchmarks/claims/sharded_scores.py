"""What predicted step times of sharded models are worth: errors, where the seconds go, and whether
the placement predicted best is a good one.

Success is as in Lin et al.: the placement chosen is the fastest measured or within 10 % of it. Only
models count whose placements differ: the slowest takes 1.3 times the fastest. A rule (greedy,
random) is scored by the placement that it names.

A phase is a scope of the step's source (lookup, all_to_all, mlp, backward, ...), kept with each
rank's program by instruction. A profile holds the least that each instruction took in some calls. A
collective's instruction lasts until the last rank has come, so of the ranks the one that waited
least counts; of all other phases the mean over the ranks does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction

LIN_GEOMEAN = 0.0521  # of 20 tasks x 4 batch sizes, two platforms (TPDS 2025)
LIN_SUCCESS = 0.85  # 17 of 20
WITHIN = 1.10
DIFFER = 1.3  # slowest over fastest placement of a model that counts
OTHER = "other"
_NO_EVENTS = ("call", "fresh memory")  # what a call costs besides its instructions


def errors(predicted_s: Sequence[float], measured_s: Sequence[float]) -> dict[str, float]:
    """`mean` and `geomean` of |predicted / measured - 1|, `signed` mean, `worst`."""
    error = np.asarray(predicted_s, float) / np.asarray(measured_s, float) - 1
    size = np.abs(error)
    return {
        "mean": float(size.mean()),
        "geomean": float(np.exp(np.log(np.maximum(size, 1e-6)).mean())),
        "signed": float(error.mean()),
        "worst": float(error[size.argmax()]),
    }


def judge(placements: pd.DataFrame, ways: Sequence[str]) -> dict[str, Any]:
    """Success and loss of every way and rule over the models that count. `placements`: `task`,
    `names` (of the rules that chose it, numbered where there are several), `measured_s` and a
    column of seconds for each way to predict.
    """
    measured_s = placements.groupby("task", sort=False)["measured_s"]
    spreads = measured_s.max() / measured_s.min()
    loss = placements["measured_s"] / measured_s.transform("min") - 1
    named = placements.assign(loss=loss, rule=placements["names"]).explode("rule")
    named["rule"] = named["rule"].str.split().str[0]
    counted = named[named["task"].map(spreads) >= DIFFER]
    every = counted[~counted.index.duplicated()]
    return {
        "models": len(spreads),
        "counted": int((spreads >= DIFFER).sum()),
        "ways": {
            way: _score(every.sort_values(way, kind="stable").drop_duplicates("task").sort_index())
            for way in ways
        },
        # a rule is worth what it does on average in a model, so that one that names several
        # placements there counts once
        "rules": {
            rule: _score(counted[counted["rule"] == rule]) for rule in named["rule"].unique()
        },
        "any": _score(every),
    }


def _score(losses: pd.DataFrame) -> dict[str, float | int | None]:
    """`success` share, `mean_loss`, `worst_loss` over `models`; means over a model's placements."""
    some = [of_model.to_numpy() for _, of_model in losses.groupby("task", sort=False)["loss"]]
    if not some:
        return {"models": 0, "success": None, "mean_loss": None, "worst_loss": None}
    good = [float((of_model <= WITHIN - 1 + 1e-12).mean()) for of_model in some]
    return {
        "models": len(some),
        "success": float(np.mean(good)),
        "mean_loss": float(np.mean([of_model.mean() for of_model in some])),
        "worst_loss": float(max(of_model.max() for of_model in some)),
    }


def phases(
    prediction: Prediction, contents: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> pd.DataFrame:
    """`phase, predicted_s, measured_s` of one step; `measured` is its row of `steps.csv`."""
    graph, ranks = prediction.workload.graph, len(contents)
    row_s = np.concatenate([[0.0], prediction.op_s])
    found: dict[str, list[float]] = {}
    met = set()
    for label, rank, group, row in zip(
        graph.labels, graph.rank, graph.collective, graph.row, strict=True
    ):
        # a collective goes by the name that rank 0 has for it
        known = contents[0 if group >= 0 else rank].get("phases", {})
        phase = known.get(label, label if label in _NO_EVENTS else OTHER)
        found.setdefault(phase, [0.0] * ranks)[rank] += float(row_s[max(row, 0)])
        met |= {known.get(label)} if group >= 0 else set()
    rows = []
    for phase, of_ranks in found.items():
        columns = [f"{phase}_s_rank{rank}" for rank in range(ranks)]
        profiled = [float(measured.get(column, np.nan)) for column in columns]
        measured_s = min(profiled) if phase in met else np.mean(profiled)
        rows.append((phase, np.mean(of_ranks), measured_s))
    return pd.DataFrame(rows, columns=["phase", "predicted_s", "measured_s"])


def phase_shares(of_steps: Sequence[pd.DataFrame], step_s: Sequence[float]) -> pd.DataFrame:
    """Mean shares of the measured steps: `phase, predicted, measured, error, size` (absolute)."""
    frame = pd.concat([one.assign(step_s=s) for one, s in zip(of_steps, step_s, strict=True)])
    apart_s = frame["predicted_s"] - frame["measured_s"]
    shares = {
        "predicted": frame["predicted_s"] / frame["step_s"],
        "measured": frame["measured_s"] / frame["step_s"],
        "error": apart_s / frame["step_s"],
        "size": apart_s.abs() / frame["step_s"],
    }
    out = frame.assign(**shares).groupby("phase")[[*shares]].mean()
    return out.sort_values("predicted", ascending=False).reset_index()
