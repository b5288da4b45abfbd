"""One dialect of sweeps and searches: its published schema, old spellings, all faults at once."""

import itertools
import json
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.explore.searches.spec import SHIPPED as SEARCHES
from hybridperf.explore.searches.spec import read_search
from hybridperf.explore.sweeps.chunk import points
from hybridperf.explore.sweeps.spec import SHIPPED as SWEEPS
from hybridperf.explore.sweeps.spec import read_spec
from hybridperf.explore.sweeps.written import json_schema
from hybridperf.io import InputError

PUBLISHED = Path(__file__).parent.parent.parent / "docs" / "reference" / "spec.schema.json"
SPECS = sorted(itertools.chain(SWEEPS.glob("*.toml"), SEARCHES.glob("*.toml")))
STEP = {
    "kind": "step",
    "model": "a100_sxm4_40g",
    "ops": [{"op": "relu", "dtype": "fp32", "rows": "rows", "cols": 65536}],
}
QUESTION = {  # both a sweep and a search
    "target": STEP,
    "parameters": {
        "rows": {"min": 1024, "max": 65536, "count": 4},
        "memory_bytes_per_s": {"min": 1e12, "max": 4e12, "count": 3},
    },
    "prices": {"usd_per_kwh": 0.5},
    "derived": {"cost": "usd_per_kwh * memory_bytes_per_s / 1e12", "rows_per_s": "rows / time_s"},
    "constraints": {"cheap": "cost <= 1.1"},
    "objective": {"maximise": "rows_per_s"},
}


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
        {"target": document["target"] | {"kind": "stepp"}},
        {"parameters": {"x": {"min": 1, "mox": 3}}},
        {"chunk": 0},
        {"objective": {"minimize": "time_s"}},
    ):
        assert not validator.is_valid(document | wrong), wrong


def test_one_spec_is_swept_and_searched(tmp_path):
    swept = hp.sweep(QUESTION, tmp_path / "out.parquet", quiet=True)
    rows = pd.read_parquet(swept.out)
    assert (rows["usd_per_kwh"] == 0.5).all()  # the price stands in the result
    assert sorted(rows["memory_bytes_per_s"].unique()) == pytest.approx([1e12, 2e12])
    found = hp.search(QUESTION | {"method": {"starts": 2, "rounds": 3}})
    assert found.objective >= rows["rows_per_s"].max() * (1 - 1e-6)
    assert found.columns["cost"] == pytest.approx(1.1, rel=1e-3)
    assert found.prices["usd_per_kwh"].value == 0.5


OLD = {
    "target": {"kind": "collectives", "model": "aic_h100_sxm"},
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
    "front": {"minimise": ["time_s", "all"]},
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


def test_a_search_in_the_old_spelling_is_the_same():
    today = {
        "parameters": {"x": {"min": 1, "max": 9}, "least": 2},
        "constraints": {"a": "x >= least"},
        "objective": {"minimise": "x"},
    }
    old = {
        "knobs": {"x": {"min": 1, "max": 9}},
        "constants": {"least": 2},
        "constraints": {"a": "x >= least"},
        "objective": {"minimise": "x"},
    }
    of_old, of_today = read_search(old), read_search(today)
    assert (of_old.knobs, of_old.constants) == (of_today.knobs, of_today.constants)
    (note,) = of_old.remarks()
    assert "[parameters] for [knobs] and [constants]" in note


def test_all_that_is_wrong_is_said_at_once():
    wrong = {
        "targt": {},
        "chunk": 1.5,
        "target": {"kind": "collectives", "model": "dgx_h1"},
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
        "constraints": {"c": "b > timme_s"},
        "top": {"count": 3, "by": "tme_s"},
    }
    with pytest.raises(InputError) as refused:
        read_spec(wrong)
    said = str(refused.value)
    assert said.startswith("4 faults: (1) unknown name in derived a: 'bites'")
    assert "unknown name in constraint c: 'timme_s' (did you mean 'time_s'?)" in said
    assert "unknown column 'tme_s'" in said
    assert "bytes must be numbers above zero" in said


def test_all_wrong_ops_of_a_step_are_said_at_once():
    ops = [
        {"op": "gemm", "dtype": "bf16", "m": "x", "n": 3, "kk": 3},
        {"op": "gemmm", "dtype": "bf16"},
        {"op": "relu", "after": ["z"]},
    ]
    with pytest.raises(InputError) as refused:
        read_search(
            {
                "target": STEP | {"ops": ops},
                "parameters": {"x": {"min": 1, "max": 8}},
                "objective": {"minimise": "time_s"},
            }
        )
    said = str(refused.value)
    assert "unknown key of [[target.ops]] 'op1' 'kk'" in said
    assert "gemmm" in said
    assert "'op3' waits for 'z'" in said
    with pytest.raises(InputError, match=r"\[\[target.ops\]\] number 2 after 0 must be text"):
        read_search({"target": STEP | {"ops": [ops[0], {"op": "relu", "after": [3]}]}})


def test_names_that_are_no_words_are_refused():
    with pytest.raises(InputError, match="names in parameters are words, got 5"):
        read_spec({"target": {"kind": "collectives", "model": "dgx_a100"}, "parameters": {5: 6}})
