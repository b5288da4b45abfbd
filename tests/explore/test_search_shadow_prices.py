"""What a search says around its optimum: stated limits, plateaus, poles, shadowed prices, and
whether its seconds can be believed.
"""

import json
import re

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.explore.searches.run import search
from hybridperf.io import InputError

CLOSE = 1e-3
BOX = {"x": {"min": 0.1, "max": 100}, "y": {"min": 0.1, "max": 100}}
GEMM = {"name": "g", "op": "gemm", "dtype": "bf16", "m": "tokens", "n": 4096, "k": 4096}


def closed(constraint, **more):
    return search(
        {
            "knobs": BOX,
            "constraints": {"c": constraint},
            "objective": {"minimise": "x + 4 * y"},
            **more,
        }
    )


@pytest.mark.parametrize(
    "constraint",
    ["x*y >= 16", "16 <= x*y", "x*y == 16", "16 == x*y", "x*y/16 >= 1", "0-x*y <= -16"],
)
def test_one_percent_more_of_the_stated_limit(constraint):
    """min x + 4 y with x y = L is 4 sqrt(L): one percent more of the limit costs half a percent,
    however it is written.
    """
    result = closed(constraint)
    (one,) = result.active
    assert one.objective_then == pytest.approx(16 * np.sqrt(1.01), rel=1e-5)
    per_scale = 1 if result.objective == pytest.approx(16, rel=CLOSE) else np.nan
    assert one.multiplier * per_scale == pytest.approx(0.5, rel=1e-2)
    assert one.limit in ("16", "1", "-16")
    assert f"1 % more of {one.limit} (c): objective +0.5" in hp.search_report(result)


def test_the_other_way_round_the_sign_turns():
    (one,) = closed("16/(x*y) <= 1").active
    assert one.limit == "1"
    assert one.multiplier == pytest.approx(-0.5, rel=CLOSE)
    assert one.objective_then == pytest.approx(16 / np.sqrt(1.01), rel=1e-5)


def test_where_knobs_move_both_sides_it_is_loosened():
    """x >= 16 / y: loosened by one percent, x may be 16 / y / 1.01."""
    result = closed("x >= 16 / y")
    (one,) = result.active
    assert one.limit is None
    assert one.objective_then == pytest.approx(16 / np.sqrt(1.01), rel=1e-5)
    assert "loosened by 1 % (c): objective -0.5" in hp.search_report(result)


def test_search_json_says_what_the_multiplier_is_of(tmp_path):
    saved = json.loads(closed("x*y >= 16").save(tmp_path).read_text())
    (one,) = saved["active"]
    assert (one["limit"], one["what_if"]) == ("16", "1 % more of 16 (c)")
    assert one["multiplier"] > 0
    assert one["objective_then"] > saved["objective"]["value"]


def test_what_need_not_be_whole_is_never_worse():
    """Two valleys, the deeper one found from the whole numbers only: the relaxed answer goes on
    from there or is not printed.
    """
    for seed in range(3):
        result = search({
            "knobs": {"n": {"min": 1, "max": 64, "integer": True}, "x": {"min": 1, "max": 9}},
            "constraints": {"c": "n * x >= 33"},
            "objective": {"minimise": "ceil(n / 4) * 3 + n / x + x"},
            "method": {"seed": seed, "starts": 3},
        })  # fmt: skip
        assert result.relaxed_objective is None or result.relaxed_objective <= result.objective * (
            1 + 1e-6
        )


def test_an_objective_without_knobs_is_refused():
    for formula in ("a", "3", "gpu_w"):
        with pytest.raises(InputError, match="no knob changes the objective"):
            search(
                {
                    "knobs": BOX,
                    "constants": {"a": 3},
                    "constraints": {"c": "x*y + a >= 16"},
                    "objective": {"minimise": formula},
                }
            )


def test_a_constraint_of_constants_alone_that_fails_is_refused():
    with pytest.raises(InputError, match="depends on no knob"):
        search(
            {
                "knobs": BOX,
                "constants": {"a": 3},
                "constraints": {"c": "a >= 4"},
                "objective": {"minimise": "x + y"},
            }
        )


def test_a_plateau_is_reported():
    """max(x, 5) + y is 5.1 for any x up to 5; a whole number likewise."""
    for integer in (False, True):
        knobs = {"x": {"min": 1, "max": 100, "integer": integer}, "y": {"min": 0.1, "max": 100}}
        result = search({"knobs": knobs, "objective": {"minimise": "max(x, 5) + y"}})
        assert result.plateaus["x"] == pytest.approx((1, 5), rel=CLOSE)
        assert set(result.plateaus) == {"x"}
        assert re.search(r"x: any value from 1 to (5|4\.999\d*) does", hp.search_report(result))


def test_a_pole_is_reported():
    result = search(
        {
            "parameters": BOX,
            "constraints": {"c": "y >= 3"},
            "objective": {"minimise": "y / (x - 7)"},
        }
    )
    assert any("no least value near x = 7" in note for note in result.notes)
    smooth = search({"parameters": BOX, "objective": {"minimise": "(x - 7) ** 2 + y"}})
    assert smooth.notes == ()


def test_bounds_that_hold_are_named_and_no_table_is_empty():
    message = hp.search_report(search({"knobs": BOX, "objective": {"minimise": "x + 4 * y"}}))
    assert "the bounds hold the optimum, x at its min, y at its min" in message
    assert "evaluated again" not in message


def test_a_constant_that_shadows_a_price_is_reported():
    result = closed("x*y >= 16 * gpu_w", constants={"gpu_w": 1})
    assert any(
        "gpu_w is the spec's own, not the price of that name (700 W" in note
        for note in result.notes
    )


def test_a_divisor_that_is_zero_is_named():
    with pytest.raises(InputError, match=r"divides by 'z', which is zero"):
        search({"knobs": BOX, "constants": {"z": 0}, "objective": {"minimise": "x + y / z"}})


def test_a_step_on_the_measured_machine_has_an_interval():
    spec = {
        "target": {"kind": "step", "model": "h100_sxm", "ops": [GEMM]},
        "parameters": {"tokens": {"min": 64, "max": 8192}},
        "constraints": {"enough": "tokens >= 4096"},
        "objective": {"minimise": "time_s"}, "method": {"starts": 2, "rounds": 2, "steps": 10},
    }  # fmt: skip
    result = search(spec)
    assert result.notes == ()
    assert result.trust.in_range
    assert result.trust.low_s < result.columns["time_s"] < result.trust.high_s
    spec["parameters"] = {"memory_bytes_per_s": {"min": 1e11, "max": 1e12}, "tokens": 64}
    moved = search({**spec, "constraints": {}})
    assert moved.trust.low_s is moved.trust.high_s is None
    assert not moved.trust.in_range
    assert "memory_bytes_per_s is 0.2" in moved.trust.note
    assert "in the measured range" in hp.search_report(moved)


def test_a_whole_number_is_stopped_by_what_it_presses_and_nothing_else():
    """max n / (1 + x) with n <= 3 m: n = 30 and m = 10 whole; the bound limit of x has no part in
    that.
    """
    result = search(
        {
            "knobs": {
                "n": {"min": 1, "max": 100, "integer": True},
                "m": {"min": 1, "max": 10, "integer": True},
                "x": {"min": 0.1, "max": 9},
            },
            "constraints": {"keep_up": "n <= 3 * m", "least": "x >= 2"},
            "objective": {"maximise": "n / (1 + x)"},
        }
    )
    assert {one.name: one.value for one in result.knobs} == pytest.approx(
        {"n": 30, "m": 10, "x": 2}, rel=CLOSE
    )
    assert {(stop.name, stop.knob) for stop in result.stops} == {("keep_up", "n")}
    assert [one.name for one in result.active] == ["least"]
