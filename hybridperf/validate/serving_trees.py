"""Boosted trees on sizes of model, machine and deployment: the baseline of operating points."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from hybridperf.runs.served import Served


def trees(
    features: np.ndarray, seconds: np.ndarray, given: np.ndarray, judged: np.ndarray
) -> np.ndarray:
    """Seconds of the judged rows, by trees fitted to the logs of those given; NaN without any.

    Args:
        features: [N, F]
        seconds: measured [N].
        given: bool [N].
        judged: bool [N].
    """
    if not given.any():
        return np.full(int(judged.sum()), np.nan)
    fitted = HistGradientBoostingRegressor(random_state=0)
    with threadpool_limits(1):  # on a busy machine several threads wait for each other
        fitted.fit(features[given], np.log(seconds[given]))
    return np.asarray(np.exp(fitted.predict(features[judged])))


def features_of(found: Served) -> np.ndarray:
    """What trees see of each row: sizes, machine, framework as numbers."""
    out = []
    for row in found.rows:
        engine, machine = row.engine, row.machine
        assert engine is not None
        assert machine is not None
        shape, device = engine.shape, machine.load().device
        names = (row.framework == "vllm", row.framework == "sglang", row.prefill is not None)
        out.append([
            np.log(shape.parameters), np.log(shape.active_parameters), shape.layers, shape.hidden,
            shape.experts, np.log(device.memory_bytes_per_s), np.log(device.peak("bf16", "matrix")),
            engine.tp, engine.attention_dp, engine.expert_ep, row.gpus, row.workers,
            np.log(row.clients), np.log(row.prompt), np.log(row.output),
            "fp4" in engine.of_experts(), engine.quant == "bfloat16", *names,
        ])  # fmt: skip
    return np.array(out, float)
