"""Rows of a table, calls of a graph and traced functions have one price: every kind of op on every
device of `devices.toml`.
"""

import functools
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.hardware import names_of_devices
from hybridperf.io import InputError
from hybridperf.model.batch import stacked
from hybridperf.model.price import price
from hybridperf.model.stages import traced_seconds
from hybridperf.ops import OpCall, op_by_name
from hybridperf.ops.table import parse_ops
from support.part_calls import calls_of
from support.sizes import CASES, TEXT

EXACT = 1e-9


@pytest.mark.parametrize("device", names_of_devices())
def test_rows_calls_and_traced_functions_agree(device: str) -> None:
    model, compared = model_of(device), 0
    for name, sizes in CASES.items():
        cls, _ = op_by_name(name)
        for dtype in ("fp32", "fp16", "bf16"):
            frame = pd.DataFrame([{"op": name, "dtype": dtype, **TEXT.get(name, {}), **sizes}])
            try:
                row = model.predict_ops(frame)
            except InputError:  # no such number format there
                continue
            (part,) = parse_ops(frame, model.device).parts
            (call,) = calls_of(part)
            called = price(model, [call])
            assert called.seconds[0] == pytest.approx(row["predicted_s"][0], rel=EXACT), name
            assert called.roofline_s[0] == pytest.approx(row["roofline_s"][0], rel=EXACT), name
            if cls.unit == "matrix" or dtype == "fp32":
                with jax.enable_x64(True):
                    traced_s = traced(model, part)
                assert traced_s == pytest.approx(row["predicted_s"][0], rel=EXACT), name
                compared += 1
    assert compared > len(CASES) * 0.9


def traced(model: hp.PerfModel, part: Any) -> float:
    """Seconds of the one row of a part whose sizes JAX traces."""
    import dataclasses

    sizes = {name: float(np.ravel(getattr(part.op, name))[0]) for name in part.op.dimensions()}

    def seconds(sizes: dict[str, Any]) -> Any:
        op = dataclasses.replace(part.op, **sizes)
        return traced_seconds(part, op, model, model.platform())

    found, _ = jax.jvp(seconds, (sizes,), (sizes,))
    return float(found)


@functools.cache
def model_of(device: str) -> hp.PerfModel:
    return hp.model.model_or_datasheet(device)
