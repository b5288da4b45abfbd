"""Errors of a search in one sentence, before compilation; intervals exclude nothing possible."""

import copy
import math

import numpy as np
import pytest

from hybridperf.explore.searches import run as search_run
from hybridperf.explore.searches.run import search
from hybridperf.explore.searches.spec import SHIPPED, read_search
from hybridperf.io import InputError
from hybridperf.io.expression import parse

PARAMETERS = {"x": {"min": 1, "max": 100}, "y": {"min": 1, "max": 100}, "most": 50}
KNOBS = {"x": PARAMETERS["x"], "y": PARAMETERS["y"]}
GOOD = {
    "parameters": PARAMETERS,
    "derived": {"area": "x * y"},
    "constraints": {"large": "area >= most"},
    "objective": {"minimise": "x + y"},
}
WRONG = {
    "unknown section 'parameter' (did you mean 'parameters'?)": {"parameter": {}},
    "unknown parameter 'z'": {"parameters": PARAMETERS | {"z": {"min": 1, "max": 2}}},
    "unknown parameter 'other'": {"parameters": PARAMETERS | {"other": 1}},
    "a search needs at least one range under [parameters]": {"parameters": {"most": 50}},
    "parameter x of a search must be a finite number, or a range": {
        "parameters": PARAMETERS | {"x": [1, 3]}
    },
    "parameter x is searched in logs, got scale 'lin'": {
        "parameters": PARAMETERS | {"x": {"min": 1, "max": 2, "scale": "lin"}}
    },
    "unknown key of parameter x 'maxx' (did you mean 'max'?)": {
        "parameters": PARAMETERS | {"x": {"min": 1, "max": 2, "maxx": 3}}
    },
    "min 9 above max 2": {"parameters": PARAMETERS | {"x": {"min": 9, "max": 2}}},
    "can only be 2": {"parameters": PARAMETERS | {"x": {"min": 2, "max": 2}}},
    "a min above zero, got 0": {"parameters": PARAMETERS | {"x": {"min": 0, "max": 2}}},
    "max of parameter x must be a finite number, got 'nan'": {
        "parameters": PARAMETERS | {"x": {"min": 1, "max": math.nan}}
    },
    "min of parameter x must be a finite number, got '-inf'": {
        "parameters": PARAMETERS | {"x": {"min": -math.inf, "max": 2}}
    },
    "has whole ends": {"parameters": PARAMETERS | {"x": {"min": 1.5, "max": 2, "integer": True}}},
    "parameter most of a search must be a finite number": {
        "parameters": PARAMETERS | {"most": math.nan}
    },
    "price gpu_w must be a finite number": {"prices": {"gpu_w": math.inf}},
    "expected a hybridperf/prices file": {"prices": {"file": "nowhere.toml"}},
    "unknown name in constraint large: 'aera' (did you mean 'area'?)": {
        "constraints": {"large": "aera >= most"}
    },
    "must be a condition": {"constraints": {"large": "area"}},
    "has no distance from being true": {"constraints": {"large": "area >= 1 or x >= 2"}},
    "can meet the constraint area >= 20000 + most": {
        "constraints": {"large": "area >= 20000 + most"}
    },
    "contradict each other": {
        "constraints": {"large": "x + y >= 10 + most", "small": "x * 2 <= 20", "low": "y <= 49"}
    },
    "needs minimise or maximise": {"objective": {}},
    "[objective] minimise must be a number": {"objective": {"minimise": "x <= 2"}},
    "unknown name in [objective] minimise: 'z'": {"objective": {"minimise": "z"}},
    "'x' is a knob and a constant": {
        "parameters": {},
        "knobs": {"x": {"min": 1, "max": 2}},
        "constants": {"x": 3},
    },
    "knob x needs { min = ..., max = ... }": {"parameters": {}, "knobs": {"x": 3}},
    "'x' is a parameter and a derived column": {"derived": {"x": "3 * y"}},
    "unknown key of [method] 'start'": {"method": {"start": 3}},
    "[method] starts must be a whole number of at least 1": {"method": {"starts": 0}},
    "[method] smoothing must be above 0": {"method": {"smoothing": -1}},
    "unknown kind of target 'stepp' (did you mean 'step'?)": {"target": {"kind": "stepp"}},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_reported_before_anything_is_compiled(message, monkeypatch):
    def never(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(search_run, "SearchProblem", never)
    with pytest.raises(InputError) as error:
        search({**copy.deepcopy(GOOD), **WRONG[message]})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


STEP = {
    "kind": "step",
    "model": "a100_sxm4_40g",
    "ops": [{"op": "relu", "dtype": "fp32", "rows": "x", "cols": "y"}],
}
WRONG_STEPS = {
    "needs either op or collective": {"ops": [{"dtype": "fp32"}]},
    "must be a list": {"ops": 3},
    "unknown key of [[target.ops]] 'op1' 'row' (did you mean 'rows'?)": {
        "ops": [{"op": "relu", "dtype": "fp32", "row": 1, "cols": 2}]
    },
    "needs a dimension 'cols'": {"ops": [{"op": "relu", "dtype": "fp32", "rows": 1}]},
    "needs a dtype": {"ops": [{"op": "relu", "rows": 1, "cols": 1}]},
    "which is no op before it": {
        "ops": [{"op": "relu", "dtype": "fp32", "rows": 1, "cols": 1, "after": ["later"]}]
    },
    "for which [target] needs a system": {
        "ops": [{"collective": "all_reduce", "bytes": 8, "n_gpus": 2}]
    },
    "unknown name in the formulas of 'op1': 'xx'": {
        "ops": [{"op": "relu", "dtype": "fp32", "rows": "xx", "cols": 1}]
    },
    "number of at least zero, got -1": {
        "ops": [{"op": "relu", "dtype": "fp32", "rows": -1, "cols": 1}]
    },
    "is the group's structure": {
        "system": "dgx2",
        "ops": [{"collective": "all_reduce", "bytes": 8, "n_gpus": "x"}],
    },
}


@pytest.mark.parametrize("message", WRONG_STEPS)
def test_what_is_wrong_with_a_step(message):
    with pytest.raises(InputError) as error:
        read_search({**GOOD, "target": {**STEP, **WRONG_STEPS[message]}})
    assert message in str(error.value)


def test_results_cannot_be_asked_for_what_is_below_nothing():
    spec = {**GOOD, "target": STEP, "parameters": KNOBS}
    with pytest.raises(InputError, match="can meet the constraint time_s <= -1"):
        read_search({**spec, "constraints": {"fast": "time_s <= -1"}})
    with pytest.raises(InputError, match="contradict each other"):
        read_search({**spec, "constraints": {"fast": "time_s <= 0.1", "slow": "time_s >= 0.2"}})


def test_targets_without_gradients_are_not_searched():
    ops = {"kind": "ops", "model": "a100_sxm4_40g"}
    with pytest.raises(InputError):
        search({**GOOD, "target": ops})


def test_a_constraint_that_only_predictions_show_to_be_too_tight():
    """Which is missed by how much is reported after the search."""
    with pytest.raises(
        InputError,
        match=(
            r"no point was found that meets all constraints: nearest, .* time_s <= 1e-15 fails by"
        ),
    ) as error:
        search(
            {
                **GOOD,
                "target": STEP,
                "constraints": {"fast": "time_s <= 1e-15"},
                "parameters": KNOBS,
                "method": {"starts": 2, "rounds": 2},
            }
        )
    assert "\n" not in str(error.value)


def test_a_formula_without_values_is_refused():
    with pytest.raises(InputError, match="no number anywhere"):
        search({**GOOD, "objective": {"minimise": "log2(0 - x) + y"}, "method": {"starts": 2}})


def test_the_command_refuses_in_one_sentence(refused, tmp_path):
    assert "give a .toml file, or a shipped example" in refused("search", tmp_path / "none.toml")
    (tmp_path / "sweep.toml").write_text('schema = "hybridperf/sweep"\nschema_version = 1\n')
    assert 'expected schema = "hybridperf/spec"' in refused("search", tmp_path / "sweep.toml")
    assert "is not TOML" in refused("search", _written(tmp_path / "bad.toml", "x = ["))


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.toml")))
def test_shipped_examples_can_be_read(name):
    spec = read_search(name)
    assert spec.target is not None
    assert all("assumption" in price.source for price in spec.prices.values())


FORMULAS = [
    "x + 2 * y - 3", "x / (y - 5)", "(x - 4) * (y - 3)", "-x // 2 + y", "max(x, y, 3) - min(x, 2)",
    "ceil(x / y) + floor(y)", "x ** y", "2 ** -x", "(x - 3) ** 2", "log2(x) * y", "x % 3 + y",
    "log2(x - 2)", "1 / x - y / x",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_intervals_hold_every_value(text):
    rng = np.random.default_rng(5)
    formula = parse(text, "test")
    low, high = np.sort(rng.uniform(0.1, 8, (2, 2, 40)), axis=0)
    least, most = formula.interval({"x": (low[0], high[0]), "y": (low[1], high[1])})
    for _ in range(200):
        x, y = rng.uniform(low, high)
        value = formula({"x": x, "y": y}, 40)
        inside = (least <= value + 1e-9) & (value <= most + 1e-9)
        assert (inside | np.isnan(value)).all()


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_means_the_same_in_jax(text):
    import jax
    import jax.numpy as jnp

    formula = parse(text, "test")
    with jax.enable_x64(True):
        got = jax.jit(lambda x, y: formula.traced({"x": x, "y": y}, jnp))(3.5, 1.25)
    assert float(got) == pytest.approx(
        float(formula({"x": np.array([3.5]), "y": np.array([1.25])}, 1)[0]), rel=1e-12
    )
