"""Published steps of reinforcement learning (GRPO), whole: rollouts, training, what lies between.

Nothing is fitted on the rows. What their framework adds to our seconds of engines and trainers was
chosen on the breakdown that its makers published of an earlier release (`runs/rl/frameworks/`), and
how uneven routers are, and the further factor of experts, with these rows in sight. Beside ours
stands the constant number of tokens a second and GPU that rows of all other models reach in the
mean (geometric): a model is left out whole.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims.harness import Columns, Found, claim
from hybridperf.io import InputError, read_table
from hybridperf.runs.rl.frames import predict_rl

FILE = "added/training_steps/rl_steps.csv"
_GOAL = 0.12
_BASELINE = "constant tokens/s/GPU of other models"


@claim("rl", ("rows",), by_data=True)
def run(data: Path | None, tasks: Sequence[str], quick: bool) -> Iterator[Found]:
    """All rows; they take seconds, `quick` or not."""
    del tasks, quick
    path = Path(data or "") / FILE
    if not path.is_file():
        raise InputError(f"expected published steps in {path}, found none")
    yield judged(read_table(path))


def judged(rows: pd.DataFrame) -> Found:
    """All rows, each model, on-policy and off, and what a step off gains over on-policy."""
    # what a row measured is nothing that it is predicted by
    asked = rows.drop(columns=["tokens_per_s_gpu", "step_time_s"], errors="ignore")
    found, untold = (
        predict_rl(one).assign(measured_s=rows["step_time_s"].to_numpy(float))
        for one in (asked.assign(framework="nemo_rl"), asked)
    )
    found["constant_s"] = untold["constant_s"] = _constant(found)
    columns = Columns(baselines={_BASELINE: "constant_s"})
    known = found[found["predicted_s"].notna()]
    lines = [columns.line("all steps", known, _GOAL, "median")]
    some = untold[untold["predicted_s"].notna()]
    lines.append(columns.line("all, their framework untold", some, _GOAL, "median"))
    for name in ("model", "policy"):
        for value, part in known.groupby(name, sort=False):
            lines.append(columns.line(str(value), part, _GOAL, "median"))
    gains = _gains(known)
    said = f"{len(known)} of {len(found)} rows predicted"
    tables = {"steps": found, "gains": gains}
    return Found(said, tables, lines)


def _constant(rows: pd.DataFrame) -> np.ndarray:
    """Seconds of each row at the tokens a second and GPU that other models reach."""
    tokens = rows["rollouts_per_step"] * rows["generated_avg_total_seq"] / rows["n_gpus"]
    rate = np.log(tokens / rows["measured_s"])
    others = [rate[rows["model"] != model].mean() for model in rows["model"]]
    return np.asarray(tokens / np.exp(others))


def _gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a step on-policy over those of one off, by GPU, measured and ours."""
    found = []
    for (release, model), part in rows.groupby(["release", "model"], sort=False):
        same = part[part["precision_generate"] == part["precision_generate"].iloc[0]]
        on, off = (same[same["policy"].eq("on") == one] for one in (True, False))
        if len(on) and len(off):
            spent = {
                name: [float((one[name] * one["n_gpus"]).iloc[0]) for one in (on, off)]
                for name in ("measured_s", "predicted_s")
            }
            gains = {
                f"gain_{name.removesuffix('_s')}": first / second - 1.0
                for name, (first, second) in spent.items()
            }
            found.append({"release": release, "model": model, **gains})
    return pd.DataFrame(found)
