"""Searches: optima that are known in closed form, whole numbers, what holds an optimum back, files
and picture.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import hybridperf as hp
from hybridperf.io import InputError

CLOSE = 1e-3  # a tenth of a percent: what is promised of optima


def knobs(result):
    return {one.name: one.value for one in result.knobs}


@pytest.mark.parametrize("integer", [False, True])
def test_the_best_batch_under_a_latency_limit(integer):
    """Throughput n / (a + b n) rises with n: the largest with a + b n <= limit, 304.5 or the whole
    number below.
    """

    def served(knobs):
        step_s = 1e-3 + 1e-5 * knobs["n"]
        return {"t": step_s, "rate": knobs["n"] / step_s}

    limits = {"latency": "t <= 4.045e-3", "room": "n <= 900"}
    bounds = {"n": range(1, 1001) if integer else (1, 1000)}
    result = hp.search(served, bounds, limits, maximise="n / t")
    n = 304 if integer else 304.5
    assert knobs(result)["n"] == pytest.approx(n, rel=1e-9 if integer else CLOSE)
    assert result.objective == pytest.approx(n / (1e-3 + 1e-5 * n), rel=1e-9 if integer else CLOSE)
    assert result.objective == pytest.approx(result.columns["rate"])
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
    result = hp.search(
        lambda x: 1 / x["x0"] + 4 / x["x1"] + 9 / x["x2"],
        {f"x{i}": (0.01, 100) for i in range(3)},
        {"budget": "10 >= x0 + 2 * x1 + 3 * x2"},
    )
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
    result = hp.search(
        lambda at: at["x"] + at["y"], {"x": (1, 4), "y": (1, 1000)}, {"area": "x * y == 100"}
    )
    assert knobs(result) == pytest.approx({"x": 4, "y": 25}, rel=CLOSE)
    assert [one.at for one in result.knobs] == ["max", ""]
    assert result.active[0].multiplier == pytest.approx(25 / 29, rel=CLOSE)


def test_an_objective_that_can_be_below_zero():
    """max 10 log2(x) - x over [0.1, 100]: x = 10 / log(2)."""
    result = hp.search(
        lambda at: 10 * jnp.log2(at["x"]) - at["x"], {"x": (0.1, 100)}, maximise="objective"
    )
    assert knobs(result)["x"] == pytest.approx(10 / np.log(2), rel=CLOSE)
    assert result.active == ()


def test_the_better_of_two_valleys_is_found():
    """Both ends of [1, 100] are least nearby; the far one is deeper."""
    result = hp.search(lambda at: jnp.minimum(at["x"], 60 / at["x"]), {"x": (1, 100)})
    assert knobs(result)["x"] == pytest.approx(100, rel=CLOSE)


def test_whole_numbers_are_the_best_of_all_of_them():
    """Waves: a batch a little above a multiple of 96 is a bad one; all 300 x 40 points tried out
    say which is best.
    """

    def waves(at):
        n, p = at["n"], at["p"]
        t = 2 + jnp.ceil(n / 96) * (3 + 60 / p) + 0.8 * p
        return {"t": t, "rate": n / t / (20 + p)}

    n, p = np.meshgrid(np.arange(1, 301), np.arange(1, 41))
    t = 2 + np.ceil(n / 96) * (3 + 60 / p) + 0.8 * p
    best = np.where(t <= 40, n / t / (20 + p), 0)
    bounds = {"n": range(1, 301), "p": range(1, 41)}
    result = hp.search(waves, bounds, ["t <= 40"], maximise="rate")
    assert result.objective == pytest.approx(best.max(), rel=1e-9)
    assert knobs(result) == {"n": n.flat[best.argmax()], "p": p.flat[best.argmax()]}


def test_seeds_differ_in_the_way_and_not_in_the_optimum():
    def search(seed, starts):
        return hp.search(
            lambda at: jnp.maximum(at["a"], 1 / at["b"]) + at["b"],
            {"a": (0.1, 10), "b": (0.1, 10)}, ["a * b ** 2 >= 2"], seed=seed, starts=starts,
        )  # fmt: skip

    one, other, again = search(1, 4), search(2, 9), search(1, 4)
    assert one.objective == pytest.approx(other.objective, rel=1e-5)
    assert one.evaluations != other.evaluations
    assert one.objective == again.objective
    assert one.convergence.equals(again.convergence)


def test_convergence_never_gets_worse_and_ends_at_the_optimum(tmp_path):
    result = hp.search(
        lambda at: 3 * at["x"] + at["y"], {"x": (0.1, 50), "y": (0.1, 50)}, ["x * y >= 7"]
    )
    path = result.convergence["objective"].dropna()
    assert (path.diff().dropna() <= 0).all()
    assert path.iloc[-1] == pytest.approx(result.objective, rel=1e-5)
    assert result.objective == pytest.approx(2 * np.sqrt(21), rel=CLOSE)
    assert result.convergence["evaluations"].is_monotonic_increasing
    assert result.convergence["evaluations"].iloc[-1] <= result.evaluations
    saved = json.loads(result.save(tmp_path).read_text())
    assert saved["schema"] == "hybridperf/search-result"
    assert saved["knobs"]["x"]["value"] == knobs(result)["x"]
    hp.convergence_plot(result, tmp_path / "convergence.png")
    assert (tmp_path / "convergence.png").read_bytes()[:4] == b"\x89PNG"


def test_a_formula_without_values_is_refused():
    with pytest.raises(InputError, match="no number anywhere"):
        hp.search(lambda at: jnp.log2(-at["x"]), {"x": (1, 2)}, starts=2)
