"""Which points a sweep asks about: designs, formulas, constraints, and what a spec may say."""

import itertools
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from support.sweeps import spec_of

from hybridperf.explore.sweeps.chunk import bounds, check_not_empty, chunks, points
from hybridperf.explore.sweeps.design import Design, JointAxis, ListAxis, SampledRange
from hybridperf.io import InputError
from hybridperf.io.expression import parse

COLLECTIVES = {"question": "collectives", "model": "dgx_a100"}
THREE = {"collective": "all_reduce", "bytes": 1024, "n_gpus": 2}


def collectives(fields, **more):
    return spec_of(fields=THREE | fields, **COLLECTIVES, **more)


def all_points(spec):
    parts = [points(spec, chunk) for chunk in range(chunks(spec))]
    return pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def test_a_grid_by_hand():
    nodes = {"min": 1, "max": 3, "count": 2, "scale": "lin", "integer": True}
    spec = collectives({"n_gpus": "2..8", "bytes": [1024, 4096], "n_nodes": nodes})
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
    made = all_points(collectives({"bytes": {"min": 1, "max": 1000, "count": 4}}))
    np.testing.assert_allclose(made["bytes"], [1, 10, 100, 1000])
    few = {"min": 1, "max": 4, "count": 100, "integer": True}
    made = all_points(collectives({"bytes": few}))
    assert made["bytes"].tolist() == [1, 2, 3, 4]


def test_columns_of_a_table_vary_together(tmp_path):
    path = tmp_path / "layouts.csv"
    rows = pd.DataFrame({"n_gpus": [2, 4, 8], "n_nodes": [1, 1, 2]}).assign(
        collective="all_reduce", bytes=1024
    )
    rows.to_csv(path, index=False)
    spec = spec_of(fields=path, **COLLECTIVES)
    pd.testing.assert_frame_equal(all_points(spec)[[*rows]], rows, check_dtype=False)
    rows.assign(n_gpus=[2, 4, 16]).to_csv(path, index=False)
    assert spec_of(fields=path, **COLLECTIVES).identity() != spec.identity()


def test_samples_are_the_same_however_they_are_cut():
    fields = {
        "bytes": {"min": 1e3, "max": 1e9},
        "n_gpus": {"min": 2, "max": 9, "integer": True, "scale": "lin"},
        "n_nodes": {"min": 1, "max": 3, "count": 3, "scale": "lin", "integer": True},
    }
    made = {
        c: all_points(collectives(fields, sample=1000, seed=3, chunk=c))
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
    reseeded = all_points(collectives(fields, sample=1000, seed=4))
    assert not np.allclose(reseeded["bytes"], made[1]["bytes"])


def test_sobol_points_are_scipys():
    from scipy.stats import qmc

    axis = JointAxis(256, 5, {"a": SampledRange(0, 1), "b": SampledRange(0, 1)})
    made = axis.columns(np.arange(256))
    expected = qmc.Sobol(2, scramble=True, rng=np.random.default_rng(5)).random(256)
    np.testing.assert_array_equal(np.stack([made["a"], made["b"]], 1), expected)
    wrapped = axis.columns(np.array([250, 251, 0, 1]))
    np.testing.assert_array_equal(wrapped["a"], expected[[250, 251, 0, 1], 0])


def test_a_large_design_is_never_held_whole():
    nodes, sizes = (
        {"min": 1, "max": most, "count": int(most), "scale": "lin"} for most in (1e4, 1e6)
    )
    spec = collectives({"n_nodes": nodes, "bytes": sizes})
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
    assert part["bytes"].max() == 1e6


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


def test_conditions_and_derived_columns():
    grid = {"n_gpus": [2, 4, 8, 16], "n_nodes": [1, 2, 4]}
    spec = collectives(
        grid, derived={"g": "n_gpus / n_nodes", "twice": "2 * g"}, where=["g >= 2", "twice <= 8"],
        chunk=5,
    )  # fmt: skip
    made = all_points(spec)
    expected = [
        (n, k) for n in grid["n_gpus"] for k in grid["n_nodes"] if n / k >= 2 and 2 * n / k <= 8
    ]
    assert list(made[["n_gpus", "n_nodes"]].itertuples(index=False, name=None)) == expected
    np.testing.assert_array_equal(made["twice"], 2 * made["n_gpus"] / made["n_nodes"])
    assert made["point"].is_monotonic_increasing


def test_contradictory_conditions_are_refused():
    spec = collectives(
        {"n_gpus": [2, 4], "n_nodes": [1, 2]},
        where=["n_gpus > 4 * n_nodes", "n_nodes > 1"],
        chunk=1,
    )
    with pytest.raises(
        InputError, match=r"leave none of 4 points: n_gpus > 4 \* n_nodes; n_nodes > 1"
    ):
        check_not_empty(spec)


OPS = {"question": "ops", "model": "a100_sxm4_40g"}
GEMM = {"op": "gemm", "dtype": "fp16", "m": 64, "n": 64, "k": 64}


@pytest.mark.parametrize(
    ("fields", "more", "message"),
    [
        ({}, {"question": "collective"}, "did you mean 'collectives'"),
        ({}, {"model": ""}, "needs a model"),
        ({}, {"model": "dgx_a10"}, "unknown model"),
        ({"n_gpu": 3}, {}, "did you mean 'n_gpus'"),
        ({"collective": "allreduced"}, {}, "did you mean"),
        ({"bytes": [4, 0]}, {}, "bytes must be numbers above zero, got 0"),
        ({"bytes": "many"}, {}, "above zero, got many"),
        ({"bytes": []}, {}, "expected values of bytes, got none"),
        ({"bytes": [1, "a"]}, {}, "all of one kind"),
        ({"bytes": [1, 2 + 1j]}, {}, "all of one kind"),
        ({"bytes": pd.Timestamp("2026-01-01").date()}, {}, "numbers or words"),
        ({"bytes": 1e300}, {}, "at most"),
        ({"bytes": 0.001}, {}, "at least 1"),
        ({"bytes": 10**400}, {}, "must be numbers"),
        ({"bytes": {"min": 1, "max": 2}}, {}, "needs a count of its values, or a sample"),
        ({"bytes": {"min": 1, "max": 2, "count": 0}}, {}, "count of field bytes must be a whole"),
        ({"bytes": {"min": 1, "max": 2, "count": 1.5}}, {}, "must be a whole number, got 1.5"),
        ({"bytes": {"min": 2, "max": 1, "count": 3}}, {}, "min 2 above max 1; exchange them"),
        ({"bytes": {"min": 0, "max": 1, "count": 3}}, {}, "above zero"),
        ({"bytes": {"mn": 1, "max": 2}}, {}, "unknown key of field bytes 'mn' .did you mean 'min'"),
        ({"bytes": {"max": 2}}, {}, "field bytes needs a key 'min'"),
        ({"bytes": {"min": "3", "max": 2}}, {}, "min of field bytes must be a finite number"),
        ({"bytes": {"min": 1, "max": 2, "scale": "lig"}}, {}, "a scale of log or lin"),
        ({"bytes": {"min": 1.5, "max": 2, "integer": True}}, {"sample": 4}, "has whole ends"),
        ({"bytes": [1, 6]}, {"sample": 0}, "sample must be a whole number from 1"),
        ({}, {"sample": 3}, "expected a field of several values to sample"),
        ({}, {"derived": {"x": "bytess + 1"}}, "did you mean 'bytes'"),
        ({}, {"derived": {"x": "bytes > 1"}}, "must be a number"),
        ({}, {"derived": {"predicted_s": "bytes"}}, "is a column of results"),
        ({}, {"derived": {"bytes": "n_gpus"}}, "a field and a derived"),
        ({}, {"derived": {"x": "collective + 1"}}, "whose values are words"),
        ({}, {"where": "bytes + 1"}, "where must be a condition"),
        ({}, {"where": "gpus > 1"}, "did you mean 'n_gpus'"),
        ({}, {"minimise": "predicted"}, "did you mean 'predicted_s'"),
        ({}, {"top": 3, "by": "predictd_s"}, "did you mean 'predicted_s'"),
        ({}, {"by": "predicted_s"}, "expected top, how many of the best"),
        ({}, {"chunk": 0}, "chunk must be a whole number"),
    ],
)
def test_what_a_sweep_may_not_ask(fields, more, message):
    with pytest.raises(InputError, match=message) as refused:
        spec_of(fields=THREE | fields, **COLLECTIVES | more)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("question", "fields", "message"),
    [
        (COLLECTIVES, {}, "got none"),
        (COLLECTIVES, {"collective": "all_reduce", "bytes": 4}, "needs a parameter 'n_gpus'"),
        (OPS, {"m": 3}, "needs a parameter op"),
        (OPS, GEMM | {"op": "gemmm"}, "did you mean 'gemm'"),
        (OPS, GEMM | {"dtype": "fp15"}, "unknown dtype"),
        (OPS, GEMM | {"m": [4, -1]}, "m must be numbers above zero, got -1"),
        (OPS, {"op": "gemm", "dtype": "fp16", "m": 1, "n": 1}, "needs a parameter 'k'"),
        (OPS, GEMM | {"mm": 3}, "unknown field 'mm'"),
    ],
)
def test_fields_that_a_question_lacks(question, fields, message):
    with pytest.raises(InputError, match=message):
        spec_of(fields=fields, **question)


def test_a_field_that_only_a_formula_reads():
    spec = collectives(
        {"gpus": 16, "tp": [2, 4]}, where="tp * n_gpus == gpus",
        derived={"price": "gpus * predicted_s"},
    )  # fmt: skip
    assert list(spec.before) == []
    assert list(spec.after) == ["price"]
