"""The ops of one step, predicted next to measured: which of them make the step's error.

A measured step may come with the seconds of each instruction of its program; a prediction labels
its ops by the same instructions. An instruction that became several ops is one line, its
predictions added. The step's call and its fresh memory have no instruction: they stand against what
the step takes besides its instructions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.io import InputError
from hybridperf.report import text
from hybridperf.validate.measured_steps import MeasuredStep

WORST = 10
_SIZES = 5  # of an op in a line; the table has all
_OUTSIDE = "without an event"
_NO_LABEL = "not matched"


@dataclasses.dataclass(frozen=True)
class StepOps:
    """Ops of one step. L labels: instructions that were priced."""

    name: str
    step_s: float  # measured, the whole step
    # [L] `label, group, predicted_s, measured_s` (empty: no event under this label) and the op's
    # dimensions
    ops: pd.DataFrame
    not_matched_s: dict[str, float]  # instructions that ran and were not priced

    @property
    def events_s(self) -> float:
        """Seconds of all instructions that ran."""
        return float(self.ops["measured_s"].sum()) + sum(self.not_matched_s.values())

    @property
    def without_event(self) -> list[str]:
        """Labels that nothing in the trace goes by."""
        return self.ops.loc[self.ops["measured_s"].isna(), "label"].tolist()


def compare_ops(step: MeasuredStep, prediction: Prediction) -> StepOps:
    """Ops of a profiled step, most seconds of error first; `InputError` if it was not profiled."""
    if step.op_s is None:
        raise InputError(f"{step.name} was measured without its ops; measure it with profile=True")
    nodes = prediction.ops().drop(columns=["start_s", "critical", "roofline_s"])
    longest = nodes.sort_values("seconds", ascending=False, kind="stable")
    by_label = longest.groupby("label", sort=False)
    ops = by_label.first().reset_index()  # group and dimensions of the label's largest op
    ops["predicted_s"] = by_label["seconds"].sum().to_numpy()
    ops["measured_s"] = ops["label"].map(dict(step.op_s)).astype(np.float64)
    leading = ["label", "group", "predicted_s", "measured_s"]
    ops = ops[[*leading, *(c for c in ops.columns if c not in (*leading, "seconds"))]]
    known = set(ops["label"])
    return StepOps(
        name=step.name,
        step_s=step.time_s,
        ops=_worst_first(ops).reset_index(drop=True),  # without an event: last
        not_matched_s={label: s for label, s in step.op_s.items() if label not in known},
    )


def by_group(step: StepOps) -> pd.DataFrame:
    """Seconds by group of ops, worst first: `group, ops, predicted_s, measured_s, error` (a share
    of the step's time).

    The last lines close the sum: events without a label, and labels without an event against what
    the step takes besides its events (less than nothing where tracing, or the machine in that
    moment, made the events slower than they were in the timed calls).
    """
    seconds = {name: (name, "sum") for name in ("predicted_s", "measured_s")}
    matched = step.ops.dropna(subset=["measured_s"]).groupby("group")
    groups = _worst_first(matched.agg(ops=("label", "size"), **seconds).reset_index())
    outside = step.ops[step.ops["measured_s"].isna()]
    closing = pd.DataFrame({
        "group": [_NO_LABEL, _OUTSIDE],
        "ops": [len(step.not_matched_s), len(outside)],
        "predicted_s": [0.0, float(outside["predicted_s"].sum())],
        "measured_s": [sum(step.not_matched_s.values()), step.step_s - step.events_s],
    })  # fmt: skip
    out = pd.concat([groups, closing], ignore_index=True)
    out["error"] = (out["predicted_s"] - out["measured_s"]) / step.step_s
    return out


def _worst_first(rows: pd.DataFrame) -> pd.DataFrame:
    size = (rows["predicted_s"] - rows["measured_s"]).abs()
    return rows.loc[size.sort_values(ascending=False, kind="stable").index]


def step_text(step: StepOps) -> str:
    """Groups of one step, its worst ops, and what has no counterpart."""
    worst = step.ops.dropna(subset=["measured_s"]).head(WORST)
    missing = step.without_event
    share = text.percent(step.events_s / step.step_s)
    lines = [
        f"{step.name}: {text.seconds(step.step_s)}, events add up to {share} of it",
        text.frame_table(by_group(step)),
        "",
        text.frame_table(pd.DataFrame([_worst(op) for _, op in worst.iterrows()])),
    ]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        lines.append(f"without an event ({len(missing)}): {', '.join(missing[:5])}{more}")
    if step.not_matched_s:
        largest = sorted(step.not_matched_s, key=lambda label: -step.not_matched_s[label])
        total = text.seconds(sum(step.not_matched_s.values()))
        names = ", ".join(largest[:5])
        lines.append(f"events that match no label ({len(largest)}, {total}): {names}")
    return "\n".join(lines)


def _worst(op: pd.Series) -> dict[str, Any]:
    known = {name: at for name, at in op.iloc[4:].items() if isinstance(at, int | float)}
    sizes = [f"{name}={value:.7g}" for name, value in known.items() if value > 0]
    leading = op[["label", "group", "predicted_s", "measured_s"]].to_dict()
    apart_s = op["predicted_s"] - op["measured_s"]
    return {**leading, "off_by_s": apart_s, "sizes": " ".join(sizes[:_SIZES])}


def all_steps_text(steps: Sequence[StepOps]) -> str:
    """Errors of each group over all steps, worst first: as shares of each step's time, averaged."""
    frame = pd.concat([by_group(step) for step in steps], ignore_index=True)
    errors = frame.groupby("group")["error"]
    worst = frame.loc[errors.apply(lambda e: e.abs().idxmax())].set_index("group")["error"]
    # a step without ops of a group has no error there
    mean = pd.DataFrame({
        "mean error": errors.apply(lambda e: e.abs().sum() / len(steps)),
        "signed error": errors.sum() / len(steps), "worst error": worst,
    })  # fmt: skip
    shown = mean.sort_values("mean error", ascending=False).reset_index()
    return f"all {len(steps)} steps, errors as shares of the step\n{text.frame_table(shown)}"
