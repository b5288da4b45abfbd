"""Chimera's choice (Li and Hoefler, SC21): of P GPUs, how many replicas W of a pipeline of how many
stages D, and which micro-batch B? Two pipelines run through the same GPUs in opposite directions,
so each GPU holds two stages and waits less; every layout is priced as a row of `steps`.
"""

import pandas as pd

import hybridperf as hp

SCHEDULES = ("chimera", "1f1b")


def layouts(model: str, system: str, gpus: int, batch: int, **asked: object) -> pd.DataFrame:
    """Every even D that divides the GPUs, both schedules, each micro-batch B that deals the batch
    out: W D = gpus, N = batch / (W B) micro-batches, which Chimera deals out in pairs and, beyond D,
    in multiples of D.

    Returns:
        A row each with `predicted_s`, `memory_bytes`, `fits`; those without a prediction are left
            out.
    """
    rows = [
        {
            "model": model, "system": system, "n_gpus": gpus, "tp": 1, "pp": stages,
            "dp": gpus // stages, "micro_batch": size, "grad_accum": count,
            "schedule": schedule, "sharding": "none", "recompute": recompute, **asked,
        }
        for stages in range(2, min(gpus, hp.load_shape(model).depth) + 1, 2)
        if gpus % stages == 0
        for size in range(1, batch * stages // gpus + 1)
        if batch * stages % (gpus * size) == 0
        for count in [batch * stages // (gpus * size)]
        for schedule in SCHEDULES
        if schedule == "1f1b" or (count % 2 == 0 and (count <= stages or count % stages == 0))
        for recompute in ("none", "full")
    ]  # fmt: skip
    return hp.predict_steps(pd.DataFrame(rows)).dropna(subset="predicted_s")


def chosen(found: pd.DataFrame) -> pd.DataFrame:
    """The quickest that fits of each schedule and number of stages."""
    fitting = found[found["fits"].fillna(False).astype(bool)].sort_values("predicted_s")
    best = fitting.groupby(["schedule", "pp"], as_index=False).first()
    columns = ["schedule", "pp", "dp", "micro_batch", "grad_accum", "recompute", "predicted_s"]
    return best[columns].sort_values("predicted_s", ignore_index=True)
