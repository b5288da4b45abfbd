"""Whether the deployment that predictions choose is nearly the best of those measured.

A group is one model on one GPU under one pair of lengths, whose measured rows are the candidates:
layouts, formats, frameworks and clients. Under a limit of TPOT the rule takes the row with most
predicted tokens/s and GPU among those predicted within it; that row's measured tokens/s/GPU over
the best of all rows measured within the limit is what counts, zero where its own measured TPOT is
beyond the limit by more than repeats differ. Predictions are of fits that saw no row of the group's
model (or system). Beside ours: boosted trees given the same rows, the row of most clients on the
engine with most GPUs that is measured within the limit (it knows the measurement), a row at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from hybridperf.validate.harness import ResultLine

LIMITS_S = (0.01, 0.02, 0.05)  # of TPOT: 100, 50, 20 tokens/s of a user
REACHED = 0.9  # of the best
REPEATS = 0.05  # by which measured repeats of one deployment differ
GOAL = 0.8  # of the groups
_GROUP = ["model", "system", "isl", "osl"]
_RULES = ("ours", "trees", "largest tp", "random")


class Choice(NamedTuple):
    """Of a group under a limit: the share of the best that each rule's row reaches."""

    group: tuple
    limit_s: float
    candidates: int
    reached: dict[str, float]


def choices(table: pd.DataFrame) -> Iterator[Choice]:
    """All groups of judged rows with two layouts or more whose GPUs are known."""
    known = table[table["gpus_known"]]
    for group, rows in known.groupby(_GROUP):
        for limit_s in LIMITS_S:
            found = _chosen(rows, limit_s)
            if found is not None:
                yield Choice(tuple(group), limit_s, len(rows), found)


def _chosen(rows: pd.DataFrame, limit_s: float) -> dict[str, float] | None:
    measured, within = _speed(rows, ""), rows["tpot_s"].to_numpy() <= limit_s
    if rows.loc[within, "layout"].nunique() < 2 or within.all():
        return None  # nothing to choose between
    best = measured[within].max()
    allowed = rows["tpot_s"].to_numpy() <= (1.0 + REPEATS) * limit_s
    share = np.where(allowed, measured / best, 0.0)
    out = {}
    for rule, kind in (("ours", "predicted_"), ("trees", "trees_")):
        fits = rows[f"{kind}tpot_s"].to_numpy() <= limit_s
        at = int(np.argmax(np.where(fits, _speed(rows, kind), -np.inf))) if fits.any() else -1
        out[rule] = float(share[at]) if at >= 0 else 0.0
    widest = within & (rows["gpus"] == rows.loc[within, "gpus"].max()).to_numpy()
    out["largest tp"] = float(share[np.argmax(np.where(widest, rows["clients"], -1.0))])
    out["random"] = float((share >= REACHED).mean())
    return out


def _speed(rows: pd.DataFrame, kind: str) -> np.ndarray:
    """Output tokens a second and GPU of a closed loop, by measured or predicted latencies."""
    request_s = rows[f"{kind}ttft_s"] + rows["osl"] * rows[f"{kind}tpot_s"]
    return (rows["clients"] * rows["osl"] / request_s / rows["gpus"]).to_numpy(float)


def choice_lines(task: str, table: pd.DataFrame) -> tuple[list[ResultLine], pd.DataFrame]:
    """The share of groups in which each rule reaches `REACHED`; errors are the shares that miss."""
    found = [*choices(table)]
    frame = pd.DataFrame(
        [{**dict(zip(_GROUP, one.group, strict=True)), "limit_s": one.limit_s,
          "candidates": one.candidates, **one.reached} for one in found],
    )  # fmt: skip
    if frame.empty:
        return [], frame
    missed = {
        rule: float(
            1.0 - frame[rule].mean() if rule == "random" else (frame[rule] < REACHED).mean()
        )
        for rule in _RULES
    }
    ours = missed.pop("ours")
    line = ResultLine(
        f"chosen, {task} left out", ours, len(frame), 1.0 - GOAL, dict(missed),
        f"share of groups below {REACHED:.0%} of the best",
    )  # fmt: skip
    return [line], frame
