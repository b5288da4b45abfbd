"""Which points a sweep asks about: designs, formulas, constraints, and what a spec may say."""

import itertools
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from hybridperf.explore.sweeps.chunk import bounds, check_not_empty, chunks, points
from hybridperf.explore.sweeps.design import Design, JointAxis, ListAxis, SampledRange
from hybridperf.explore.sweeps.spec import read_spec
from hybridperf.io import InputError
from hybridperf.io.expression import parse

COLLECTIVES = {"question": "collectives", "model": "dgx_a100"}
THREE = {"collective": "all_reduce", "bytes": 1024, "n_gpus": 2}


def spec_of(parameters, tmp_path=".", target=None, **sections):
    return read_spec(
        {"target": target or COLLECTIVES, "parameters": THREE | parameters, **sections}, tmp_path
    )


def all_points(spec):
    parts = [points(spec, chunk) for chunk in range(chunks(spec))]
    return pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def test_a_grid_by_hand():
    spec = spec_of(
        {
            "n_gpus": {"powers_of_two": [2, 8]},
            "bytes": [1024, 4096],
            "n_nodes": {"lin": [1, 3], "count": 2, "integer": True},
        }
    )
    made = all_points(spec)
    assert made["point"].tolist() == list(range(12))
    # the last varies fastest
    expected = list(itertools.product(["all_reduce"], [1024, 4096], [2, 4, 8], [1, 3]))
    assert (
        list(made[["collective", "bytes", "n_gpus", "n_nodes"]].itertuples(index=False, name=None))
        == expected
    )
    assert made["n_nodes"].dtype == np.int64


def test_ranges():
    made = all_points(spec_of({"bytes": {"log": [1, 1000], "count": 4}}))
    np.testing.assert_allclose(made["bytes"], [1, 10, 100, 1000])
    made = all_points(spec_of({"bytes": {"log": [1, 4], "count": 100, "integer": True}}))
    assert made["bytes"].tolist() == [1, 2, 3, 4]


def test_columns_of_a_table_vary_together(tmp_path):
    pd.DataFrame({"ranks": [2, 4, 8], "nodes": [1, 1, 2]}).to_csv(
        tmp_path / "layouts.csv", index=False
    )
    of_file = {
        "n_gpus": {"table": "layouts.csv", "column": "ranks"},
        "n_nodes": {"table": "layouts.csv", "column": "nodes"},
    }
    spec = spec_of({**of_file, "bytes": [1024, 2048]}, tmp_path)
    made = all_points(spec)
    assert sorted(made[["bytes", "n_gpus", "n_nodes"]].itertuples(index=False, name=None)) == [
        (b, n, k) for b in (1024, 2048) for n, k in ((2, 1), (4, 1), (8, 2))
    ]
    before = spec.identity()
    pd.DataFrame({"ranks": [2, 4, 16], "nodes": [1, 1, 2]}).to_csv(
        tmp_path / "layouts.csv", index=False
    )
    assert spec_of({**of_file, "bytes": [1024, 2048]}, tmp_path).identity() != before


@pytest.mark.parametrize("kind", ["random", "sobol"])
def test_samples_are_the_same_however_they_are_cut(kind):
    parameters = {
        "bytes": {kind: [1e3, 1e9], "scale": "log"},
        "n_gpus": {kind: [2, 9], "integer": True},
        "n_nodes": [1, 2, 3],
    }
    made = {
        c: all_points(spec_of(parameters, design={"count": 1000, "seed": 3}, chunk=c))
        for c in (1, 77, 1000, 4000)
    }
    assert len(made[1]) == 3000
    for other in (77, 1000, 4000):
        pd.testing.assert_frame_equal(made[1], made[other])
    joint = made[1].iloc[::3].reset_index(drop=True)  # each sample once per value of the grid
    pd.testing.assert_frame_equal(
        joint[["bytes", "n_gpus"]], made[1].iloc[2::3].reset_index(drop=True)[["bytes", "n_gpus"]]
    )
    assert joint["bytes"].between(1e3, 1e9).all()
    assert sorted(joint["n_gpus"].unique()) == list(range(2, 10))
    assert abs(np.log10(joint["bytes"]).mean() - 6) < 0.15
    assert abs(np.corrcoef(np.log(joint["bytes"]), joint["n_gpus"])[0, 1]) < 0.1
    reseeded = all_points(spec_of(parameters, design={"count": 1000, "seed": 4}))
    assert not np.allclose(reseeded["bytes"], made[1]["bytes"])


def test_sobol_points_are_scipys():
    from scipy.stats import qmc

    axis = JointAxis(256, 5, {}, {"a": SampledRange(0, 1), "b": SampledRange(0, 1)})
    made = axis.columns(np.arange(256))
    expected = qmc.Sobol(2, scramble=True, rng=np.random.default_rng(5)).random(256)
    np.testing.assert_array_equal(np.stack([made["a"], made["b"]], 1), expected)
    wrapped = axis.columns(np.array([250, 251, 0, 1]))
    np.testing.assert_array_equal(wrapped["a"], expected[[250, 251, 0, 1], 0])


def test_a_large_design_is_never_held_whole():
    spec = spec_of(
        {
            "n_nodes": {"lin": [1, 1e4], "count": 10_000},
            "bytes": {"lin": [1, 1e6], "count": 1_000_000},
        }
    )
    assert spec.design.size == 10**10
    tracemalloc.start()
    for chunk in (0, 77_777, chunks(spec) - 1):
        part = points(spec, chunk)
        start, stop = bounds(spec, chunk)
        assert len(part["bytes"]) == stop - start <= spec.chunk
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30e6
    assert part["point"][-1] == 10**10 - 1
    assert part["bytes"][-1] == 1e6


def test_products_of_designs():
    design = Design(
        [ListAxis({"a": np.arange(3)}), ListAxis({"b": np.arange(2), "c": np.arange(2) * 10})]
    )
    assert {name: values.tolist() for name, values in design.points(1, 5).items()} == {
        "a": [0, 1, 1, 2], "b": [1, 0, 1, 0], "c": [10, 0, 10, 0]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp * pp == gpus", [True, False]),
        ("gpus // 3 % 2", [0, 1]),
        ("2 ** tp - -1", [5, 17]),
        ("min(tp, pp, 3)", [2, 2]),
        ("max(tp, 3) > 3 or not pp < 3", [True, True]),
        ("ceil(log2(gpus + 0.5))", [4, 4]),
        ("1 < tp <= 2", [True, False]),
        ("kind == 'a' and tp != 7", [True, False]),
        ("tp / 0 > 1", [True, True]),
        ("0 * tp / 0 > 1", [False, False]),
    ],
)
def test_formulas(text, expected):
    columns = {
        "tp": np.array([2, 4]),
        "pp": np.array([4, 2]),
        "gpus": np.array([8, 11]),
        "kind": np.array(["a", "b"], object),
    }
    assert parse(text, "here")(columns, 2).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "tp.real",
        "tp[0]",
        "lambda: 1",
        "(tp := 3)",
        "f'{tp}'",
        "abs(tp)",
        "[1, 2]",
        "tp if pp else 1",
        "True",
        "'a'",
        "tp == 'a' + 'b'",
        "min(tp)",
        "log2(tp, pp)",
        "(tp > 1) + 1",
        "tp and pp",
        "not tp",
        "tp <",
        "",
        "1 + " * 300 + "1",
        "tp < 'a'",
        "min(*tp, 1)",
        "tp is pp",
        "tp in pp",
        "((" * 400,
        "9" * 999 + " > tp ** (",
    ],
)
def test_what_is_no_formula(text):
    with pytest.raises(InputError) as refused:
        parse(text, "constraint x")
    assert "constraint x" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_constraints_and_derived_columns():
    grid = {"n_gpus": [2, 4, 8, 16], "n_nodes": [1, 2, 4]}
    spec = spec_of(
        grid,
        derived={"g": "n_gpus / n_nodes", "twice": "2 * g"},
        constraints={"whole": "g >= 2", "few": "twice <= 8"},
        chunk=5,
    )
    made = all_points(spec)
    expected = [
        (n, k) for n in grid["n_gpus"] for k in grid["n_nodes"] if n / k >= 2 and 2 * n / k <= 8
    ]
    assert list(made[["n_gpus", "n_nodes"]].itertuples(index=False, name=None)) == expected
    np.testing.assert_array_equal(made["twice"], 2 * made["n_gpus"] / made["n_nodes"])
    assert made["point"].is_monotonic_increasing


def test_contradictory_constraints_are_refused():
    spec = spec_of(
        {"n_gpus": [2, 4], "n_nodes": [1, 2]},
        constraints={"a": "n_gpus > 4 * n_nodes", "b": "n_nodes > 1"},
        chunk=1,
    )
    with pytest.raises(
        InputError, match=r"leave none of 4 points: n_gpus > 4 \* n_nodes; n_nodes > 1"
    ):
        check_not_empty(spec)


OPS = {"question": "ops", "model": "a100_sxm4_40g"}
GEMM = {"op": "gemm", "dtype": "fp16", "m": 64, "n": 64, "k": 64}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no parameters"),
        ({"parametres": {}}, "did you mean 'parameters'"),
        ({"target": COLLECTIVES, "parameters": {}}, "no parameters"),
        ({"target": {}, "parameters": THREE}, "needs a key 'question'"),
        ({"target": {"question": "collective"}, "parameters": THREE}, "did you mean 'collectives'"),
        ({"target": COLLECTIVES | {"modle": "x"}, "parameters": THREE}, "did you mean 'model'"),
        ({"target": {"question": "collectives"}, "parameters": THREE}, "needs a model"),
        ({"target": COLLECTIVES | {"kind": "ops"}, "parameters": THREE}, "unknown key .*'kind'"),
        ({"target": COLLECTIVES | {"model": 3}, "parameters": THREE}, "must be text"),
        ({"target": COLLECTIVES | {"model": "dgx_a10"}, "parameters": THREE}, "unknown model"),
        ({"target": COLLECTIVES, "parameters": THREE | {"n_gpu": 3}}, "did you mean 'n_gpus'"),
        (
            {"target": COLLECTIVES, "parameters": {"collective": "all_reduce", "bytes": 4}},
            "needs a parameter 'n_gpus'",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"collective": "allreduced"}},
            "did you mean",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": [4, 0]}},
            "bytes must be numbers above zero, got 0",
        ),
        ({"target": COLLECTIVES, "parameters": THREE | {"bytes": "many"}}, "above zero, got many"),
        ({"target": COLLECTIVES, "parameters": THREE | {"bytes": []}}, "bytes has no values"),
        ({"target": COLLECTIVES, "parameters": THREE | {"bytes": [1, "a"]}}, "all of one kind"),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"lin": [1, 2]}}},
            "needs a count",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"lin": [1, 2], "count": 0}}},
            "count of parameter bytes must be a whole number of at least 1",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"lin": [2, 1], "count": 3}}},
            "range",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"log": [0, 1], "count": 3}}},
            "above zero",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"loog": [1, 2], "count": 3}}},
            "unknown key of parameter bytes 'loog'",
        ),
        (
            {
                "target": COLLECTIVES,
                "parameters": THREE | {"bytes": {"lin": [1, 2], "log": [1, 2]}},
            },
            "got lin, log",
        ),
        (
            {
                "target": COLLECTIVES,
                "parameters": THREE | {"bytes": {"lin": [1, 2], "scale": "log"}},
            },
            "goes with count, integer",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"powers_of_two": [2, 6]}}},
            "power of two",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"random": [1, 6]}}},
            "needs? a \\[design\\]",
        ),
        (
            {
                "target": COLLECTIVES,
                "parameters": THREE | {"bytes": {"sobol": [1, 6]}},
                "design": {"count": 0},
            },
            "whole number",
        ),
        ({"target": COLLECTIVES, "parameters": THREE, "design": {"count": 3}}, "there are none"),
        (
            {"target": COLLECTIVES, "parameters": THREE | {"bytes": {"table": "none.csv"}}},
            "none.csv",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "derived": {"x": "bytess + 1"}},
            "did you mean 'bytes'",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "derived": {"x": "bytes > 1"}},
            "must be a number",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "derived": {"predicted_s": "bytes"}},
            "is a column of results",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "derived": {"bytes": "n_gpus"}},
            "a parameter and a derived",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "derived": {"x": "collective + 1"}},
            "whose values are words",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "constraints": {"x": "bytes + 1"}},
            "must be a condition",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "constraints": {"x": "gpus > 1"}},
            "did you mean 'n_gpus'",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "constraints": ["bytes > 1"]},
            "must be a section",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "front": {"minimize": ["predicted_s"]}},
            "did you mean 'minimise'",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "front": {"minimise": ["predicted"]}},
            "did you mean 'predicted_s'",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "top": {"by": "predicted_s"}},
            "a key 'count'",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "top": {"count": 3, "by": "predictd_s"}},
            "did you mean 'predicted_s'",
        ),
        (
            {"target": COLLECTIVES, "parameters": THREE, "chunk": 0},
            "chunk must be a whole number",
        ),
        ({"target": OPS, "parameters": {"m": 3}}, "needs a parameter op"),
        ({"target": OPS, "parameters": GEMM | {"op": "gemmm"}}, "did you mean 'gemm'"),
        ({"target": OPS, "parameters": GEMM | {"dtype": "fp15"}}, "unknown dtype"),
        (
            {"target": OPS, "parameters": GEMM | {"m": [4, -1]}},
            "m must be numbers above zero, got -1",
        ),
        (
            {"target": OPS, "parameters": {"op": "gemm", "dtype": "fp16", "m": 1, "n": 1}},
            "needs a parameter 'k'",
        ),
        ({"target": OPS, "parameters": GEMM | {"mm": 3}}, "unknown parameter 'mm'"),
    ],
)
def test_what_a_spec_may_not_say(document, message):
    with pytest.raises(InputError, match=message) as refused:
        read_spec(document)
    assert "\n" not in str(refused.value)


def test_a_parameter_that_only_a_formula_reads():
    spec = spec_of(
        {"gpus": 16, "tp": [2, 4]},
        constraints={"fits": "tp * n_gpus == gpus"},
        derived={"price": "gpus * predicted_s"},
    )
    assert list(spec.before) == []
    assert list(spec.after) == ["price"]
