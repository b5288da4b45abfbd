"""Searches of Python functions: optima in closed form, shadow prices of limits and bounds, whole
numbers, choices, and functions of knobs.
"""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import hybridperf as hp
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.model import PerfModel

CLOSE = 1e-3


def test_the_cheapest_machine_under_a_roofline(tmp_path):
    """min 2 bw + 3 fl where max(8 / bw, 27 / fl) <= 1: both at once."""

    def machine(knobs):
        bw, fl = knobs["rates"]["bw"], knobs["rates"]["fl"]
        return {"time_s": jnp.maximum(8 / bw, 27 / fl), "usd": 2 * bw + 3 * fl}

    bounds = {"rates": {"bw": (1, 1000), "fl": (1, 1000)}}
    found = hp.search(machine, bounds, {"fast": "time_s <= 1"}, minimise="usd", starts=4)
    assert found.point["rates"] == pytest.approx({"bw": 8, "fl": 27}, rel=CLOSE)
    assert machine(found.point)["usd"] == pytest.approx(found.objective)
    assert found.columns["time_s"] <= 1
    (fast,) = found.active
    assert (fast.name, fast.limit) == ("fast", "1")
    assert fast.multiplier == pytest.approx(-1, rel=CLOSE)
    assert fast.objective_then == pytest.approx(97 / 1.01, rel=CLOSE)
    assert all(one.bound_multiplier == 0 for one in found.knobs)
    assert [one.elasticity for one in found.knobs] == pytest.approx([16 / 97, 81 / 97], rel=CLOSE)
    assert "rates.bw" in hp.search_report(found)
    assert json.loads(found.save(tmp_path).read_text())["knobs"]["rates.fl"]["at"] == ""


@pytest.mark.parametrize("sense", ["minimise", "maximise"])
def test_a_bound_has_a_shadow_price(sense):
    """2 x + 3 y least where x y >= 16, x <= 2: 2 b + 48 / b at a bound of b."""
    sign = 1 if sense == "minimise" else -1

    def cost(knobs):
        return {"cost": (2 * knobs["x"] + 3 * knobs["y"]) ** sign, "area": knobs["x"] * knobs["y"]}

    bounds = {"x": (0.1, 2.0), "y": (0.1, 100.0)}
    found = hp.search(cost, bounds, ["area >= 16"], **{sense: "cost"}, starts=4)
    x, y = found.knobs
    assert (x.value, y.value) == pytest.approx((2, 8), rel=CLOSE)
    assert x.at == "max"
    assert x.bound_multiplier == pytest.approx(sign * (4 - 24) / 28, rel=CLOSE)
    assert y.bound_multiplier == 0


def test_a_lower_bound_has_one_too():
    found = hp.search(
        lambda knobs: knobs["x"] ** 2 * knobs["y"], {"x": (3, 9), "y": (2, 4)}, starts=2
    )
    assert found.point == pytest.approx({"x": 3, "y": 2})
    assert [one.bound_multiplier for one in found.knobs] == pytest.approx([2, 1], rel=CLOSE)


def test_whole_numbers_and_choices():
    """(n - k)^2 + k / 3 + 1 over whole n for k of a list; a choice is not traced."""
    seen = []

    def cost(knobs):
        seen.append(knobs["which"])
        assert isinstance(knobs["which"], str)
        k = {"two": 2.4, "nine": 9.2, "forty": 40.0}[knobs["which"]]
        return (knobs["n"] - k) ** 2 + k / 3 + 1

    found = hp.search(cost, {"n": range(1, 101), "which": ["nine", "two", "forty"]}, starts=2)
    assert {*seen} == {"two", "nine", "forty"}
    assert found.point == {"n": 2.0, "which": "two"}
    assert found.objective == pytest.approx(0.16 + 0.8 + 1)


def test_choices_need_not_be_hashable_and_some_may_be_impossible():
    def cost(knobs):
        first, second = knobs["pair"]
        if first == 3:
            raise InputError("expected no 3, got it; take another")
        return {"usd": first * second * 1.0, "s": 6.0 / first}

    asked = {"pair": [[3, 1], [2, 5], [1, 4], [6, 2]]}
    found = hp.search(cost, asked, ["s <= 4"], minimise="usd")
    assert found.point == {"pair": [2, 5]}
    with pytest.raises(InputError, match="none of 4 combinations of choices can be"):
        hp.search(cost, asked, ["s <= 0.5"], minimise="usd")


def test_many_choices_are_searched_around_the_best():
    def cost(knobs):
        return {"miss": abs(knobs["a"] - 7) + abs(knobs["b"] - 3) + abs(knobs["c"] - 5) + 1.0,
                "sum": float(knobs["a"] + knobs["b"])}  # fmt: skip

    ten = [*range(10)]
    found = hp.search(cost, {"a": ten, "b": ten, "c": ten}, ["sum <= 9"], minimise="miss")
    assert found.objective == 2.0
    assert found.point["c"] == 5
    assert "of 1,000 combinations" in found.notes[-1]


def test_rates_of_a_machine_under_a_budget():
    """A step's own function: no machine of the same money near the optimum is faster."""
    model = PerfModel.datasheet(load_device("h100_sxm"))
    f = hp.step_function(model, hp.gnn(hp.GnnConfig(hp.GraphShape(1e5, 1e7, 1.0), (128, 64))))
    rate = float(f.knobs["memory_bytes_per_s"])

    def machine(knobs):
        usd = 4e3 + 2e3 * knobs["memory_bytes_per_s"] / 1e12 + 1e4 * knobs["peak_flops_scale"]
        return {"time_s": f(knobs), "usd": usd}

    bounds = {"memory_bytes_per_s": (rate / 8, rate * 8), "peak_flops_scale": (0.01, 8)}
    found = hp.search(machine, bounds, ["usd <= 12000"], minimise="time_s", starts=4)
    (budget,) = found.active
    assert budget.multiplier < -0.1
    best = found.point
    with jax.enable_x64(True):
        assert float(f(best)) == pytest.approx(found.objective, rel=1e-9)
        for more in (1.02, 0.98):
            memory = best["memory_bytes_per_s"] * more
            left = (12000 - 4e3 - 2e3 * memory / 1e12) / 1e4
            assert float(f({"memory_bytes_per_s": memory, "peak_flops_scale": left})) >= (
                found.objective * (1 - 1e-9)
            )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"bounds": None}, "expected bounds of the objective's knobs"),
        ({"bounds": {"x": (0, 1)}}, "expected bounds of x above 0"),
        ({"bounds": {"x": 1.0}}, "expected for x a tuple"),
        ({"constraints": "x <= 1"}, "expected a list of conditions"),
        ({"constraints": ["z <= 1"]}, "z"),
        ({"minimise": "a", "maximise": "b"}, "leave one out"),
        ({"minimise": ""}, "say which with minimise"),
        ({"constraints": ["x >= 1 or a >= 2"]}, "has no distance from being true"),
        ({"starts": 0}, "expected starts as a whole number from 1 to 4,096, got 0"),
        ({"seed": 1.5}, "expected seed as a whole number"),
    ],
)
def test_what_is_wrong_is_said(asked, says):
    given = {"bounds": {"x": (1, 2)}, "minimise": "a", **asked}
    with pytest.raises(InputError, match=says):
        hp.search(lambda knobs: {"a": knobs["x"], "b": 2 * knobs["x"]}, **given)


def test_an_objective_is_a_function():
    with pytest.raises(
        InputError, match="expected a function of knobs to search, got 'best_batch'"
    ):
        hp.search("best_batch", {"x": (1, 2)})


@pytest.mark.parametrize(
    ("objective", "bounds", "constraints", "says"),
    [
        # an objective that outweighs any limit within reach pulls the other way
        ("cost", (1.0, 10.0), ["made >= 200"], "x = 10, y = 10, made >= 200 fails by 50.00%"),
        ("cost", range(1, 11), ["made >= 50", "heat <= 4"],
         "x = 2, y = 10, made >= 50 fails by 60.00% (50 should be at most 20);"),
        ("cost", (1.0, 10.0), ["heat >= 150", "made == 200"],
         "x = 10, y = 10, made == 200 fails by 50.00% (100 should equal 200) and heat >= 150"),
    ],
)  # fmt: skip
def test_where_nothing_meets_all_the_nearest_misses_least(
    objective: str, bounds: Any, constraints: list[str], says: str
) -> None:
    def told(knobs: Any) -> dict[str, Any]:
        x, y = knobs["x"], knobs["y"]
        return {"cost": x**30 * y, "made": x * y, "heat": x**2}

    with pytest.raises(InputError, match=re.escape(f"nearest, at {says}")):
        hp.search(told, {"x": bounds, "y": bounds}, constraints, minimise=objective)
