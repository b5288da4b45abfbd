"""Searches: optima that are known in closed form, whole numbers, what holds an optimum back, steps
as targets, files and picture.
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.explore.searches.run import search
from hybridperf.explore.sweeps.smooth import soft_maximum
from hybridperf.explore.sweeps.steps import StepTarget
from hybridperf.hardware import load_device
from hybridperf.io import InputError, write_json
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION, compile_program

CLOSE = 1e-3  # a tenth of a percent: what is promised of optima
STEP = {
    "kind": "step",
    "model": "a100_sxm4_40g",
    "ops": [
        {"name": "left", "op": "gemm", "dtype": "fp32", "m": "size", "n": 4096, "k": 4096},
        {
            "name": "copy",
            "op": "relu",
            "dtype": "fp32",
            "rows": "size",
            "cols": 65536,
            "stream": "other",
            "times": 3,
        },
        {
            "name": "last",
            "op": "relu",
            "dtype": "fp32",
            "rows": 1024,
            "cols": 4096,
            "after": ["copy"],
        },
    ],
}


def knobs(result):
    return {one.name: one.value for one in result.knobs}


def test_the_cheapest_machine_under_a_roofline_stands_in_the_corner():
    """min 2 bw + 3 fl where max(8 / bw, 27 / fl) <= 1: both at once, bw = 8 and fl = 27."""
    result = search({
        "knobs": {"bw": {"min": 1, "max": 1000}, "fl": {"min": 1, "max": 1000}},
        "derived": {"t": "max(8 / bw, 27 / fl)"},
        "constraints": {"fast": "t <= 1"},
        "objective": {"minimise": "2 * bw + 3 * fl"},
    })  # fmt: skip
    assert knobs(result) == pytest.approx({"bw": 8, "fl": 27}, rel=CLOSE)
    assert result.objective == pytest.approx(97, rel=CLOSE)
    assert result.columns["t"] <= 1  # a limit is kept, not nearly kept
    (fast,) = result.active
    assert fast.multiplier == pytest.approx(-1, rel=CLOSE)  # all of the cost goes with 1 / limit
    assert fast.objective_then == pytest.approx(97 / 1.01, rel=CLOSE)
    assert [one.elasticity for one in result.knobs] == pytest.approx([16 / 97, 81 / 97], rel=CLOSE)
    assert all(one.at == "" for one in result.knobs)


@pytest.mark.parametrize("integer", [False, True])
def test_the_best_batch_under_a_latency_limit(integer):
    """Throughput n / (a + b n) rises with n: the largest with a + b n <= limit, 304.5 or the whole
    number below.
    """
    result = search({
        "knobs": {"n": {"min": 1, "max": 1000, "integer": integer}},
        "constants": {"alpha_s": 1e-3, "beta_s": 1e-5, "limit_s": 4.045e-3},
        "derived": {"t": "alpha_s + beta_s * n"},
        "constraints": {"latency": "t <= limit_s", "room": "n <= 900"},
        "objective": {"maximise": "n / t"},
    })  # fmt: skip
    n = 304 if integer else 304.5
    assert knobs(result)["n"] == pytest.approx(n, rel=1e-9 if integer else CLOSE)
    assert result.objective == pytest.approx(n / (1e-3 + 1e-5 * n), rel=1e-9 if integer else CLOSE)
    assert (result.relaxed_objective is not None) == integer
    if integer:  # the limit has room left and no multiplier: what it forbids is 305
        (stop,) = result.stops
        assert (stop.name, stop.knob, stop.value, stop.more) == ("latency", "n", 305, 4.045e-3)
        assert stop.less == pytest.approx(4.05e-3)
        assert stop.objective == pytest.approx(305 / 4.05e-3)
        assert "no constraint is active" not in hp.search_report(result)
    else:
        assert result.stops == ()
    if not integer:  # d log(n / t) / d log limit = d log n / d log limit - 1
        assert result.active[0].multiplier == pytest.approx(4.045 / 3.045 - 1, rel=CLOSE)
        assert result.knobs[0].elasticity == pytest.approx(1 / 4.045, rel=CLOSE)


def test_a_budget_over_three_rates_is_split_as_lagrange_says():
    """min sum w_i / x_i with sum c_i x_i <= B: x_i = B sqrt(w_i / c_i) / S, objective S^2 / B, S =
    sum sqrt(w_i c_i).
    """
    work, cost, budget = np.array([1, 4, 9]), np.array([1, 2, 3]), 10
    total = np.sqrt(work * cost).sum()
    result = search({
        "knobs": {f"x{i}": {"min": 0.01, "max": 100} for i in range(3)},
        "constraints": {"budget": "10 >= x0 + 2 * x1 + 3 * x2"},
        "objective": {"minimise": "1 / x0 + 4 / x1 + 9 / x2"},
    })  # fmt: skip
    assert result.objective == pytest.approx(total**2 / budget, rel=CLOSE)
    assert list(knobs(result).values()) == pytest.approx(
        list(budget * np.sqrt(work / cost) / total), rel=CLOSE
    )
    assert result.active[0].multiplier == pytest.approx(-1, rel=CLOSE)
    assert list(result.active[0].knobs_then.values()) == pytest.approx(
        list(1.01 * budget * np.sqrt(work / cost) / total), rel=CLOSE
    )


def test_an_equality_and_a_bound():
    """min x + y with x y = 100, x <= 4: x = 4 and y = 25; more of the product costs y alone."""
    result = search({
        "knobs": {"x": {"min": 1, "max": 4}, "y": {"min": 1, "max": 1000}},
        "constraints": {"area": "x * y == 100"},
        "objective": {"minimise": "x + y"},
    })  # fmt: skip
    assert knobs(result) == pytest.approx({"x": 4, "y": 25}, rel=CLOSE)
    assert [one.at for one in result.knobs] == ["max", ""]
    assert result.active[0].multiplier == pytest.approx(25 / 29, rel=CLOSE)


def test_an_objective_that_can_be_below_zero():
    """max 10 log2(x) - x over [0.1, 100]: x = 10 / log(2)."""
    result = search(
        {"knobs": {"x": {"min": 0.1, "max": 100}}, "objective": {"maximise": "10 * log2(x) - x"}}
    )
    assert knobs(result)["x"] == pytest.approx(10 / np.log(2), rel=CLOSE)
    assert result.active == ()


def test_the_better_of_two_valleys_is_found():
    """Both ends of [1, 100] are least nearby; the far one is deeper."""
    result = search(
        {"knobs": {"x": {"min": 1, "max": 100}}, "objective": {"minimise": "min(x, 60 / x)"}}
    )
    assert knobs(result)["x"] == pytest.approx(100, rel=CLOSE)


def test_whole_numbers_are_the_best_of_all_of_them():
    """Waves: a batch a little above a multiple of 96 is a bad one; all 300 x 40 points tried out
    say which is best.
    """
    spec = {
        "knobs": {
            "n": {"min": 1, "max": 300, "integer": True},
            "p": {"min": 1, "max": 40, "integer": True},
        },
        "derived": {"t": "2 + ceil(n / 96) * (3 + 60 / p) + 0.8 * p"},
        "constraints": {"latency": "t <= 40"},
        "objective": {"maximise": "n / t / (20 + p)"},
    }
    n, p = np.meshgrid(np.arange(1, 301), np.arange(1, 41))
    t = 2 + np.ceil(n / 96) * (3 + 60 / p) + 0.8 * p
    best = np.where(t <= 40, n / t / (20 + p), 0)
    result = search(spec)
    assert result.objective == pytest.approx(best.max(), rel=1e-9)
    assert knobs(result) == {"n": n.flat[best.argmax()], "p": p.flat[best.argmax()]}


def test_seeds_differ_in_the_way_and_not_in_the_optimum():
    spec = {
        "knobs": {"a": {"min": 0.1, "max": 10}, "b": {"min": 0.1, "max": 10}},
        "constraints": {"enough": "a * b ** 2 >= 2"},
        "objective": {"minimise": "max(a, 1 / b) + b"},
    }  # fmt: skip
    one, other, again = (
        search(spec, seed=1, starts=4),
        search(spec, seed=2, starts=9),
        search(spec, seed=1, starts=4),
    )
    assert one.objective == pytest.approx(other.objective, rel=1e-5)
    assert one.evaluations != other.evaluations
    assert one.objective == again.objective
    assert one.convergence.equals(again.convergence)


def test_convergence_never_gets_worse_and_ends_at_the_optimum():
    result = search({
        "knobs": {"x": {"min": 0.1, "max": 50}, "y": {"min": 0.1, "max": 50}},
        "constraints": {"enough": "x * y >= 7"},
        "objective": {"minimise": "3 * x + y"},
    })  # fmt: skip
    path = result.convergence["objective"].dropna()
    assert (path.diff().dropna() <= 0).all()
    assert path.iloc[-1] == pytest.approx(result.objective, rel=1e-5)
    assert result.objective == pytest.approx(2 * np.sqrt(21), rel=CLOSE)
    assert result.convergence["evaluations"].is_monotonic_increasing
    assert result.convergence["evaluations"].iloc[-1] <= result.evaluations


@pytest.fixture(scope="module")
def step():
    return StepTarget.read(StepTarget.Given(**STEP), Path(), {})


def test_a_step_is_its_ops_on_their_streams(step):
    """By hand from the same prices: the copy three times on its own stream,
    the last op after both.
    """
    rows = pd.DataFrame([
        {"op": "gemm", "dtype": "fp32", "m": 512, "n": 4096, "k": 4096},
        {"op": "relu", "dtype": "fp32", "rows": 512, "cols": 65536},
        {"op": "relu", "dtype": "fp32", "rows": 1024, "cols": 4096},
    ])  # fmt: skip
    sheet = PerfModel.datasheet(load_device("a100_sxm4_40g"))
    left, copy, last = sheet.predict_ops(rows)["predicted_s"]
    got = step.evaluate({"size": np.array([512.0, 512.0])})["time_s"]
    assert got == pytest.approx([max(left, 3 * copy) + last] * 2, rel=1e-5)


def test_a_step_traced_is_the_step_evaluated_and_its_slopes_are_differences(step):
    columns = {
        "size": np.array([100.0, 700.0, 3000.0]),
        "memory_bytes_per_s": np.array([5e11, 9e11, 2e12]),
    }
    expected = step.evaluate(columns)["time_s"]
    with jax.enable_x64(True):
        traced = jax.jit(lambda values: step.traced([*columns])(values)["time_s"])
        slope = jax.grad(traced)
        for at in range(3):
            point = {name: float(value[at]) for name, value in columns.items()}
            assert float(traced(point)) == pytest.approx(expected[at], rel=1e-9)
            up, down = (
                {**point, "memory_bytes_per_s": point["memory_bytes_per_s"] * f}
                for f in (1 + 1e-4, 1 - 1e-4)
            )
            difference = (float(traced(up)) - float(traced(down))) / (
                2e-4 * point["memory_bytes_per_s"]
            )
            assert float(slope(point)["memory_bytes_per_s"]) == pytest.approx(
                difference, rel=1e-3, abs=1e-20
            )


def test_smoothing_is_above_the_exact_step_and_goes_to_it(step):
    point = {"size": 512.0}
    with jax.enable_x64(True):
        exact = float(step.traced(["size"])(point)["time_s"])
        soft = [
            float(step.softened(["size"])(point, temperature)["time_s"])
            for temperature in (0.5, 0.1, 1e-4)
        ]
        assert soft[0] > soft[1] > exact * (1 - 1e-12)
        assert soft[2] == pytest.approx(exact, rel=1e-3)
        assert float(soft_maximum(3.0, 3.0, 0.1)) == pytest.approx(3 * 2**0.1)


@pytest.mark.parametrize("smoothing", [{}, {"smoothing": 0.2}])
def test_a_step_is_searched(smoothing):
    """The memory bandwidth at which a step of one copy takes as long as allowed: bytes over
    seconds, from the datasheet.
    """
    bandwidth = model_or_datasheet("a100_sxm4_40g").device.memory_bytes_per_s
    ops = [{"op": "relu", "dtype": "fp32", "rows": 8192, "cols": 8192}]
    spec = {
        "target": {"kind": "step", "model": "a100_sxm4_40g", "ops": ops},
        "knobs": {"memory_bytes_per_s": {"min": bandwidth / 30, "max": 30 * bandwidth}},
        "constants": {"limit_s": 1e-3},
        "constraints": {"fast": "time_s <= limit_s"},
        "objective": {"minimise": "memory_bytes_per_s"},
        "method": {"starts": 4, **smoothing},
    }  # fmt: skip
    result = search(spec)
    assert result.columns["time_s"] == pytest.approx(1e-3, rel=CLOSE)
    target = StepTarget.read(StepTarget.Given(**STEP | {"ops": ops}), Path(), {})
    slower = target.evaluate({"memory_bytes_per_s": np.array([result.objective * (1 - CLOSE)])})[
        "time_s"
    ]
    assert slower[0] > 1e-3


def test_a_program_is_searched(tmp_path):
    """The bandwidth and peak that a saved step needs for a time: what the sweep's target says of
    them is that time.
    """
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    write_json(
        tmp_path / "step.json",
        "program",
        PROGRAM_SCHEMA_VERSION,
        compile_program(lambda x: jnp.tanh(x @ x), shape),
    )
    facts = load_device("here").model_dump() | {
        "id": "a_cpu",
        "clock_hz": 3e9,
        "multiprocessors": 2,
        "memory_bytes_per_s": 2e10,
    }
    model = PerfModel.datasheet(type(load_device("v100"))(**facts))
    dataclasses.replace(model, provenance={"made_by": "a test"}).save(tmp_path / "model")
    spec = {
        "target": {
            "kind": "program",
            "program": str(tmp_path / "step.json"),
            "model": str(tmp_path / "model"),
        },
        "knobs": {
            "memory_bytes_per_s": {"min": 1e9, "max": 1e12},
            "peak_flops_scale": {"min": 0.01, "max": 100},
        },
        "constraints": {"fast": "time_s <= 0.001"},
        "objective": {"minimise": "memory_bytes_per_s / 2e10 + 3 * peak_flops_scale"},
        "method": {"starts": 4},
    }
    result = search(spec)
    assert result.columns["time_s"] == pytest.approx(1e-3, rel=CLOSE)
    with pytest.raises(InputError, match="cannot be smoothed"):
        search({**spec, "method": {"smoothing": 0.1}})


def test_a_step_is_swept(tmp_path):
    spec = {
        "target": STEP,
        "parameters": {"size": [64, 512], "peak_flops_scale": {"log": [0.5, 2], "count": 3}},
    }
    done = hp.sweep(spec, tmp_path / "steps.parquet", quiet=True)
    frame = pd.read_parquet(done.out)
    assert len(frame) == 6
    assert (
        frame.groupby("size")["time_s"].diff().dropna() <= 1e-12
    ).all()  # a higher peak is never slower
    assert (
        frame[frame["size"] == 512]["time_s"].to_numpy()
        > frame[frame["size"] == 64]["time_s"].to_numpy()
    ).all()


def test_the_command_says_it_all(run, tmp_path):
    (tmp_path / "spec.toml").write_text(
        'schema = "hybridperf/search"\nschema_version = 1\n[knobs]\nx = { min = 1, max = 9'
        ' }\n[constraints]\nenough = "x * gpu_w >= 1400"\n[prices]\nfile ='
        ' "mine.toml"\n[objective]\nminimise = "x"\n'
    )
    (tmp_path / "mine.toml").write_text(
        'schema = "hybridperf/prices"\nschema_version = 1\n[gpu_w]\nvalue = 350\nunit = "W"\ndate ='
        ' "2026-11"\nsource = "our meter"\n'
    )
    status, out, _ = run(
        "search", tmp_path / "spec.toml", "--folder", tmp_path / "found", "--starts", 3
    )
    assert status == 0
    assert "least x: 4" in out
    assert "our meter" in out
    assert "x * gpu_w" in out
    saved = json.loads((tmp_path / "found" / "search.json").read_text())
    assert saved["schema"] == "hybridperf/search-result"
    assert saved["schema_version"] == 1
    assert saved["knobs"]["x"]["value"] == pytest.approx(4, rel=CLOSE)
    assert (tmp_path / "found" / "convergence.png").read_bytes()[:4] == b"\x89PNG"
