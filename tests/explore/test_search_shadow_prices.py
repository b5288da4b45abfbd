"""What a search says around its optimum: stated limits, plateaus, poles."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import hybridperf as hp

CLOSE = 1e-3
BOX = {"x": (0.1, 100), "y": (0.1, 100)}


def closed(constraint):
    return hp.search(lambda at: at["x"] + 4 * at["y"], BOX, {"c": constraint})


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

    def cost(at):
        return 3 * jnp.ceil(at["n"] / 4) + at["n"] / at["x"] + at["x"]

    for seed in range(3):
        bounds = {"n": range(1, 65), "x": (1, 9)}
        result = hp.search(cost, bounds, ["n * x >= 33"], seed=seed, starts=3)
        assert result.relaxed_objective is None or result.relaxed_objective <= result.objective * (
            1 + 1e-6
        )


def test_a_plateau_is_reported():
    """max(x, 5) + y is 5.1 for any x up to 5; a whole number likewise."""
    for x in ((1, 100), range(1, 101)):
        result = hp.search(lambda at: jnp.maximum(at["x"], 5) + at["y"], {"x": x, "y": (0.1, 100)})
        assert result.plateaus["x"] == pytest.approx((1, 5), rel=CLOSE)
        assert set(result.plateaus) == {"x"}
        assert re.search(r"x: any value from 1 to (5|4\.999\d*) does", hp.search_report(result))


def test_a_pole_is_reported():
    result = hp.search(lambda at: at["y"] / (at["x"] - 7), BOX, ["y >= 3"])
    assert any("no least value near x = 7" in note for note in result.notes)
    smooth = hp.search(lambda at: (at["x"] - 7) ** 2 + at["y"], BOX)
    assert smooth.notes == ()


def test_bounds_that_hold_are_named():
    message = hp.search_report(hp.search(lambda at: at["x"] + 4 * at["y"], BOX))
    assert "the bounds hold the optimum, x at its min, y at its min" in message


def test_a_whole_number_is_stopped_by_what_it_presses_and_nothing_else():
    """max n / (1 + x) with n <= 3 m: n = 30 and m = 10 whole; the bound limit of x has no part in
    that.
    """
    result = hp.search(
        lambda at: at["n"] / (1 + at["x"]),
        {"n": range(1, 101), "m": range(1, 11), "x": (0.1, 9)},
        {"keep_up": "n <= 3 * m", "least": "x >= 2"},
        maximise="objective",
    )
    assert {one.name: one.value for one in result.knobs} == pytest.approx(
        {"n": 30, "m": 10, "x": 2}, rel=CLOSE
    )
    assert {(stop.name, stop.knob) for stop in result.stops} == {("keep_up", "n")}
    assert [one.name for one in result.active] == ["least"]
