"""The dialect of sweeps: its published schema, old spellings, all faults at once."""

import json
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.explore.sweeps.chunk import points
from hybridperf.explore.sweeps.spec import SHIPPED, read_spec
from hybridperf.explore.sweeps.written import json_schema
from hybridperf.io import InputError

PUBLISHED = Path(__file__).parent.parent.parent / "docs" / "reference" / "spec.schema.json"
SPECS = sorted(SHIPPED.glob("*.toml"))


def test_the_published_schema_is_todays():
    mend = "hybridperf show spec > docs/reference/spec.schema.json"
    assert json.loads(PUBLISHED.read_text()) == json_schema(), mend


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_specs_are_of_the_schema(path):
    jsonschema = pytest.importorskip("jsonschema", reason="comes with the notebooks' extra")
    validator = jsonschema.Draft202012Validator(json_schema())
    document = tomllib.loads(path.read_text())
    validator.validate(document)
    for wrong in (
        {"knob": {}},
        {"target": document["target"] | {"question": "stepp"}},
        {"parameters": {"x": {"min": 1, "mox": 3}}},
        {"chunk": 0},
        {"objective": {"minimize": "predicted_s"}},
    ):
        assert not validator.is_valid(document | wrong), wrong


def test_a_price_stands_in_the_result(tmp_path):
    spec = TODAY | {"prices": {"usd_per_kwh": 0.5}, "derived": {"all": "a + b + c * usd_per_kwh"}}
    rows = pd.read_parquet(hp.sweep(spec, tmp_path / "out.parquet", quiet=True).out)
    assert (rows["usd_per_kwh"] == 0.5).all()
    assert rows["all"].tolist() == pytest.approx((rows["a"] + rows["b"] + rows["c"] / 2).tolist())


OLD = {
    "target": {"question": "collectives", "model": "aic_h100_sxm"},
    "parameters": {
        "collective": "all_reduce",
        "n_gpus": {"powers_of_two": [2, 8]},
        "bytes": {"log": [1e3, 1e6], "count": 4},
        "a": {"random": [1, 9]},
        "b": {"sobol": [1, 9], "scale": "log", "integer": True},
        "c": {"lin": [0, 4], "count": 3},
    },
    "design": {"count": 5},
    "derived": {"all": "a + b + c"},
    "front": {"minimise": ["predicted_s", "all"]},
}
TODAY = OLD | {
    "parameters": {
        "collective": "all_reduce",
        "n_gpus": {"min": 2, "max": 8, "scale": "powers_of_two"},
        "bytes": {"min": 1e3, "max": 1e6, "count": 4},
        "a": {"min": 1, "max": 9, "scale": "lin", "sample": "random"},
        "b": {"min": 1, "max": 9, "integer": True},
        "c": {"min": 0, "max": 4, "count": 3, "scale": "lin"},
    },
    "objective": OLD["front"],
}
del TODAY["front"]


def test_a_sweep_in_the_old_spelling_is_the_same():
    old, today = read_spec(OLD), read_spec(TODAY)
    assert today.notes == []
    (note,) = old.notes
    assert "older spelling, which works, too" in note
    assert "[objective] for [front]" in note
    assert old.best == today.best
    made = [points(spec, 0) for spec in (old, today)]
    assert list(made[0]) == list(made[1])
    for name, values in made[0].items():
        assert values.tolist() == made[1][name].tolist(), name


def test_all_that_is_wrong_is_said_at_once():
    wrong = {
        "targt": {},
        "chunk": 1.5,
        "target": {"question": "collectives", "model": "dgx_h1"},
        "parameters": {
            "collective": "all_reduce",
            "bytes": {"min": 3, "max": 1},
            "n_gpus": {"min": 2, "max": 7, "scale": "powers_of_two"},
            "y": {"max": "3"},
            "z": [1, "a"],
        },
        "derived": {"a": "b +"},
        "constraints": {"q": "bytes"},
        "objective": {"minimize": "x"},
        "top": {},
    }
    with pytest.raises(InputError) as refused:
        read_spec(wrong)
    said = str(refused.value)
    assert said.startswith("12 faults: (1) ")
    for one in (
        "unknown section 'targt' (did you mean 'target'?)", "chunk must be a whole number",
        "unknown model of collectives 'dgx_h1'", "parameter bytes has a range with min 3",
        "parameter n_gpus goes by powers_of_two", "parameter y needs a key 'min'",
        "max of parameter y must be a number, got '3'", "parameter z must be numbers or words",
        "derived a: 'b +' is not a formula", "constraint q must be a condition",
        "unknown key of [objective] 'minimize' (did you mean 'minimise'?)",
        "[top] needs a key 'count'",
    ):  # fmt: skip
        assert one in said, one


def test_names_that_are_wrong_are_said_at_once_and_what_hangs_on_them_is_not():
    parameters = {"collective": "all_reduce", "n_gpus": 8, "bytes": [1e6, -1.0], "other": 3}
    wrong = {
        "target": OLD["target"],
        "parameters": parameters,
        "derived": {"a": "bites", "b": "a + other"},
        "constraints": {"c": "b > predictd_s"},
        "top": {"count": 3, "by": "predictd"},
    }
    with pytest.raises(InputError) as refused:
        read_spec(wrong)
    said = str(refused.value)
    assert said.startswith("4 faults: (1) unknown name in derived a: 'bites'")
    assert "unknown name in constraint c: 'predictd_s' (did you mean 'predicted_s'?)" in said
    assert "unknown column 'predictd'" in said
    assert "bytes must be numbers above zero" in said


def test_names_that_are_no_words_are_refused():
    with pytest.raises(InputError, match="names in parameters are words, got 5"):
        read_spec(
            {"target": {"question": "collectives", "model": "dgx_a100"}, "parameters": {5: 6}}
        )
