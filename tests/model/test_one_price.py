"""Rows of a table, calls of a graph and traced functions have one price: every kind of op on every
device of `devices.toml`.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from support.part_calls import calls_of
from support.sizes import CASES, TEXT

import hybridperf as hp
from hybridperf.hardware import device_names, load_device
from hybridperf.io.namespace import QUICKLY_COMPILED
from hybridperf.model import is_shipped, model_or_datasheet
from hybridperf.model.batch import batches_of
from hybridperf.model.price import price
from hybridperf.model.pricing import OpPricer
from hybridperf.model.stages import Machine, as_measured, price_batch, who
from hybridperf.ops import OpCall, op_by_name
from hybridperf.ops.table import OpRows, parse_ops

EXACT = 1e-9
SCALES = (0.25, 1.0, 4.0)
DTYPES = ("fp32", "fp16", "bf16", "fp8")
traced_before: set[Any] = set()  # a way to a price is traced on one device; all by `-m slow`


def devices() -> list[Any]:
    """In the quick run each with rows of its own, and of the others one of each kind of datasheet:
    by vendor, what peaks it has and what it does not say.
    """
    kinds, every = set(), []
    for name in device_names():
        sheet = load_device(name)
        unsaid = tuple(key for key, value in sheet if value is None)
        kind = sheet.vendor, sheet.kind, *sorted(sheet.peak_flops_per_s), unsaid
        alike = kind in kinds and not is_shipped(name)
        kinds.add(kind)
        every.append(pytest.param(name, marks=[pytest.mark.slow] if alike else []))
    return every


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@functools.cache
def parts_of(device: str) -> list[tuple[str, pd.DataFrame, OpRows]]:
    """Rows of every op in every number format that a device has: (format, as a table has them, as
    read).
    """
    model = model_or_datasheet(device)
    frame = pd.DataFrame([
        {"op": name, "dtype": dtype, **TEXT.get(name, {})}
        | {key: size * scale if size > 8 else size for key, size in sizes.items()}
        for name, sizes in CASES.items() for dtype in DTYPES for scale in SCALES
    ])  # fmt: skip
    told, parts = model.predict_ops(frame), parse_ops(frame, model.device).parts
    return [(frame["dtype"].iloc[part.rows[0]], told.iloc[part.rows], part) for part in parts]


@pytest.mark.parametrize("device", devices())
def test_rows_and_calls_have_one_price(device: str) -> None:
    """All calls are asked about at once, as a graph's are."""
    parts = parts_of(device)
    called = price(
        model_or_datasheet(device), [call for *_, part in parts for call in calls_of(part)]
    )
    at = 0
    for dtype, told, part in parts:
        own = slice(at, at := at + len(part.rows))
        for name in ("seconds", "roofline_s"):
            said = told["predicted_s" if name == "seconds" else name]
            np.testing.assert_allclose(
                getattr(called, name)[own], said, EXACT, err_msg=f"{part.name} {dtype}"
            )
        assert (called.in_range[own] == told["in_range"]).all(), (part.name, dtype)
    assert {part.name for *_, part in parts} == {*CASES}


@pytest.mark.parametrize("device", devices())
def test_traced_functions_have_it_too(device: str, request: pytest.FixtureRequest) -> None:
    """Every op; a way to a price (who says it, whose rows) that was traced on a device before is
    left to the slow run, which traces all.
    """
    check_traced(device, again=False)


@pytest.mark.slow
@pytest.mark.parametrize("device", device_names())
def test_traced_functions_have_it_on_every_device(device: str) -> None:
    assert check_traced(device, again=True) >= len(CASES)


def check_traced(device: str, again: bool) -> int:
    model, compared = model_or_datasheet(device), 0
    for dtype, told, part in parts_of(device):
        if op_by_name(part.name)[0].unit == "vector" and dtype != "fp32":
            continue
        batch = as_measured(model, next(iter(batches_of(part))))
        source = price_batch(batch, Machine.of(model)).owner.sources()[0]
        # of one number format each, in the quick run
        way = part.name, dtype if again else "", who(batch, model), source.code
        if way in traced_before and not again:
            continue
        traced_before.add(way)
        columns = {
            key: np.broadcast_to(getattr(part.op, key), (len(part.rows),))
            for key in part.op.dimensions()
        }
        # one after the other: JAX traces many at once in twice the time
        traced = jax.jit(functools.partial(seconds, model, part), compiler_options=QUICKLY_COMPILED)
        found = [
            traced({key: sizes[at] for key, sizes in columns.items()})
            for at in range(len(part.rows))
        ]
        np.testing.assert_allclose(
            found, told["predicted_s"], EXACT, err_msg=f"{part.name} {dtype}"
        )
        compared += 1
    return compared


def seconds(model: hp.PerfModel, part: OpRows, sizes: dict[str, Any]) -> Any:
    one = dataclasses.replace(part, rows=part.rows[:1], labels={
        name: words[:1] for name, words in part.labels.items()
    })  # fmt: skip
    return OpPricer(model, one, tuple(sizes), ())._seconds(model.platform(), sizes)


@pytest.mark.parametrize("device", ["h100_sxm", "l40s", "mi300x"])
def test_a_step_s_ops_together_cost_what_each_costs_alone(device: str) -> None:
    """The roofline is calculated, and a family asked, once for all of them: products, fused loops,
    norms issued apart.
    """
    config = hp.TransformerConfig.run_by("megatron_core", hp.load_shape("gpt2"))
    model, calls = model_or_datasheet(device), hp.transformer(config).calls
    ops = [call for call in calls if isinstance(call, OpCall)]
    together, each = price(model, ops), [price(model, [one]) for one in ops]
    assert len({one.op.group for one in ops}) > 4
    np.testing.assert_allclose(together.seconds, [one.seconds[0] for one in each], 1e-12)
    np.testing.assert_allclose(together.spread, [one.spread[0] for one in each], 1e-9)
    assert (together.outside == [one.outside[0] for one in each]).all()


def test_a_call_s_steps_multiply_to_its_price() -> None:
    model = hp.load_model("h100_sxm")
    (name, sizes), *_ = CASES.items()
    cls, fixed = op_by_name(name)
    call = OpCall(cls("bf16", **{key: one for key, one in sizes.items() if key not in fixed}))
    told = model.explain(call)
    product = told.roofline_s * np.prod([factor for _, factor, _ in told.stages])
    assert product == pytest.approx(told.seconds, rel=1e-12)
    assert told.seconds == pytest.approx(price(model, [call]).seconds[0], rel=1e-12)
    assert "rows of h100_sxm" in str(told)
    assert told.frame()["seconds"].iloc[-1] == pytest.approx(told.seconds, rel=1e-12)
