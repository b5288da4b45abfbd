"""Training steps that papers tell of in TFLOP/s of a GPU (`paper_steps.toml`), judged as such.

    step_time_s = FLOPs of a batch / (GPUs x FLOP/s of a GPU)

Megatron's FLOPs of a sample are 96 s l h^2 (1 + s / 6h + V / 16lh), eq. 3 of arXiv 2104.04473;
those of a ViT are so many times 24 s l h^2 + 4 s^2 l h. Nothing is fitted. Beside ours stand the
constant rate that errs least on the judged rows themselves, and what the paper predicts.
"""

from typing import Any

import pandas as pd

from hybridperf.training.steps.predict import predict_steps
from hybridperf.validate.harness import Columns, Found, ResultLine, facts
from hybridperf.validate.scores import best_factor

_FILE, _GIVEN = "paper_steps.toml", ("rows", "passes")
_CONSTANT, _THEIRS = "constant TFLOP/s, best", "the paper's own"
_MEASURE = "MAPE of TFLOP/s"


def paper_steps() -> pd.DataFrame:
    """Rows of all tables, `source` a table's name, with `step_time_s`."""
    tables = facts(_FILE)
    frame = pd.DataFrame(
        {**_shared(table), **row, "passes": passes, "source": name, "id": f"{name} {number + 1}"}
        for name, table in tables.items()
        for passes in table.get("passes", [4])
        for number, row in enumerate(table["rows"])
    ).assign(status="ok")
    s, h, vocab = frame["seq"], frame["hidden"], frame["vocab"]
    matrices = 24 * s * frame["layers"] * h**2
    gpt = matrices * (1 + s / (6 * h) + vocab / (16 * frame["layers"] * h))
    forward = gpt.where(frame["family"] == "gpt", matrices * (1 + s / (6 * h)))
    flops = frame["passes"] * forward * frame["global_batch"] / frame["n_gpus"]
    return frame.assign(step_time_s=flops / (1e12 * frame["tflops_gpu"]))


def _shared(table: dict[str, Any]) -> dict[str, Any]:
    """What all rows of a table have alike."""
    named = {"sharding": "", **table}
    return {key: value for key, value in named.items() if key not in _GIVEN} | {
        "ffn": 4 * table["hidden"] if "hidden" in table else None
    }


def judge() -> Found:
    """Every table, and each way of sharding in it, by beliefs alone."""
    frame = paper_steps()
    predicted_s = predict_steps(frame).frame["predicted_s"]
    rates = frame["tflops_gpu"] * frame["step_time_s"] / predicted_s
    frame = frame.assign(predicted_s=predicted_s, predicted_tflops_gpu=rates)
    lines = []
    for (source, passes), table in frame.groupby(["source", "passes"], sort=False):
        recalled = ", recalled, not read" if (table["verified"] == "recalled").all() else ""
        name = f"{source}, {passes} passes counted{recalled}"
        ways = [(str(way or "no sharding"), rows) for way, rows in table.groupby("sharding")]
        parts = [(name, table), *((f"{name}, {way}", rows) for way, rows in ways if len(ways) > 1)]
        lines += [_line(name, rows) for name, rows in parts]
    return Found("steps of papers, nothing fitted", {"papers": frame}, lines)


def _line(name: str, rows: pd.DataFrame) -> ResultLine:
    rows = rows.assign(constant=best_factor(rows["tflops_gpu"].to_numpy(float)))
    baselines = {_CONSTANT: "constant"}
    if rows["theirs_tflops_gpu"].notna().all():
        baselines[_THEIRS] = "theirs_tflops_gpu"
    columns = Columns("tflops_gpu", "predicted_tflops_gpu", None, baselines)
    return columns.line(name, rows, measure=_MEASURE)
