"""Does a plan choose well? On measured sweeps: the layout that is predicted to be fastest, and how much slower it was than the fastest.

A case is one model on one number of devices whose layouts were measured, ten or more. Efficiencies are fitted to measured steps of other
cases, never to the judged one's: of the same model on other numbers of devices, or of other models alone. A step that may stall is ranked by
its expected time. Beside it stands the best constant rule: of all rules in a list, the one that does best over all cases in hindsight,
which no rule stated in advance can beat.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from hybridperf.steps import adapt
from hybridperf.steps.adaptation import chosen
from hybridperf.steps.batch import Bank, Batch
from hybridperf.steps.compose import step_seconds
from hybridperf.steps.cross_node import stall_chance, stalled_s
from hybridperf.steps.features import picked
from hybridperf.steps.knobs import knobs_of

SOURCE = "ultrascale_playbook"
LEAST_ROWS = 10
CLOSE = 1.10  # of the best measured
FITS = ("beliefs", "other cases", "other models")

# Rules of thumb: sort measured layouts by these, least first
RULES = {
    "least tp, then least pp, then largest micro-batch": ("tp", "pp", "-micro_batch"),
    "least pp, then least tp, then largest micro-batch": ("pp", "tp", "-micro_batch"),
    "least tp x pp, then least pp, then largest micro-batch": ("model", "pp", "-micro_batch"),
    "least tp x pp, then least tp, then largest micro-batch": ("model", "tp", "-micro_batch"),
    "no pipeline, largest micro-batch, then least tp": ("pp", "-micro_batch", "tp"),
    "tp inside a node and no pipeline, largest micro-batch": ("-node", "pp", "-micro_batch"),
    "largest micro-batch, then least tp x pp": ("-micro_batch", "model"),
    "tp 8, least pp, largest micro-batch": ("not8", "pp", "-micro_batch"),
    "tp 2, least pp, largest micro-batch": ("not2", "pp", "-micro_batch"),
    "tp 4, least pp, largest micro-batch": ("not4", "pp", "-micro_batch"),
    "least pp, then micro-batch 2 or more, then least tp": ("pp", "small", "tp", "-micro_batch"),
}


@dataclasses.dataclass(frozen=True)
class Judged:
    """One way of choosing over all cases: how much slower its choice was than the best measured."""

    way: str
    slower: pd.Series  # by case

    @property
    def close(self) -> float:
        """Share of cases within `CLOSE`."""
        return float((self.slower <= CLOSE).mean())


def judge(frame: pd.DataFrame, bank: Bank | None = None, fits: tuple[str, ...] = FITS) -> list[Judged]:
    """Each way of fitting, then every rule, best first; `frame`: measured steps in the columns of the data."""
    rows = frame[frame["source"].eq(SOURCE) & frame["status"].eq("ok")].reset_index(drop=True)
    batch = (bank or Bank()).understand(rows)
    flagged = np.array([bool(row.flags) for row in batch.rows])
    batch = chosen(batch, ~flagged)  # micro-batch x accumulation x dp is not the batch that was timed
    rows = rows.iloc[batch.at].reset_index(drop=True)
    case = (rows["model"] + " on " + rows["n_gpus"].astype(str)).to_numpy()
    names = [name for name in dict.fromkeys(case.tolist()) if (case == name).sum() >= LEAST_ROWS]
    measured_s = rows["step_time_s"].to_numpy(float)
    found = []
    for fit in fits:
        slower = {}
        for name in names:
            here = case == name
            others = ~here if fit == "other cases" else rows["model"].to_numpy() != rows["model"][np.argmax(here)]
            slower[name] = _slower(measured_s[here], _expected_s(batch, here, others if fit != "beliefs" else None, measured_s))
        found.append(Judged(f"plan, {fit}", pd.Series(slower)))
    for rule, keys in RULES.items():
        order = {name: _place(rows[case == name], keys) for name in names}
        found.append(Judged(rule, pd.Series({name: _slower(measured_s[case == name], order[name]) for name in names})))
    share = {name: (measured_s[case == name] <= CLOSE * measured_s[case == name].min()).mean() for name in names}
    rules = sorted(found[len(fits) :], key=lambda one: (-one.close, one.slower.median()))
    return [*found[: len(fits)], *rules, Judged("any layout at random: chance of one within 10 %", pd.Series(share))]


def _expected_s(batch: Batch, here: np.ndarray, fit_on: np.ndarray | None, measured_s: np.ndarray) -> np.ndarray:
    """Expected seconds of the judged rows, efficiencies from some others."""
    assert batch.features is not None
    adapted = adapt.Adapted.before()
    if fit_on is not None:
        adapted = adapt.fit(picked(batch.features, fit_on), batch.cells[fit_on], measured_s[fit_on])
    f, rows = picked(batch.features, here), [row for row, mine in zip(batch.rows, here, strict=True) if mine]
    corrections, _, _ = adapted.of_cells(batch.cells[here])
    knobs = knobs_of(adapted.theta)
    return np.asarray(step_seconds(f, knobs, *corrections).step_s + stall_chance(rows) * stalled_s(f, knobs, rows))


def _slower(measured_s: np.ndarray, score: np.ndarray) -> float:
    """Measured time of the layout with the least score over the best measured; of equal ones the mean."""
    first = score <= score.min() * (1 + 1e-12)
    return float(measured_s[first].mean() / measured_s.min())


def _place(rows: pd.DataFrame, keys: tuple[str, ...]) -> np.ndarray:
    """Places of rows by a rule; equal ones share theirs."""
    columns = {
        **{name: rows[name].to_numpy(float) for name in ("tp", "pp", "micro_batch")},
        "model": (rows["tp"] * rows["pp"]).to_numpy(float), "node": (rows["tp"] == 8).to_numpy(float), "small": (rows["micro_batch"] < 2).to_numpy(float),
        **{f"not{n}": (rows["tp"] != n).to_numpy(float) for n in (2, 4, 8)},
    }  # fmt: skip
    table = np.stack([-columns[key[1:]] if key.startswith("-") else columns[key] for key in keys], 1)
    return 1.0 + np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
