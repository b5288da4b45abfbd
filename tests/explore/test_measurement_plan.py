"""A plan tells more than as many rows at random, keeps to budget and memory, and comes back through
`fit`.
"""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from hybridperf.cli import app as cli
from hybridperf.explore.measurements.belief import (
    CASE_OVERHEAD_S,
    LARGEST_SHARE_OF_MEMORY,
    NOISE_SD,
    Belief,
    centre,
)
from hybridperf.explore.measurements.plans import (
    DEFAULT_OPS,
    Choice,
    MeasurementPlan,
    choose,
    plan,
)
from hybridperf.explore.measurements.shapes import LARGEST_SHARE_OF_BUDGET, candidates
from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table, write_table
from hybridperf.learning.inputs import Box, inputs_of
from hybridperf.model import GROUP_KNOBS, GroupReport, PerfModel, load_model, neutral_knobs
from hybridperf.model.fit.device import fit
from hybridperf.model.fit.knobs import KnobVector, fit_knobs
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops

V100 = load_device("v100_pcie_32g")
BARE = PerfModel.datasheet(V100)  # believed by the knobs alone
OPS = ["gemm", "softmax", "copy"]  # the same in most tests: what is compiled for one serves all
TRUE = {  # knobs of a made-up machine, each one to two widths from its prior
    "gemm": {
        "floor_s": 2e-5,
        "compute_efficiency": 0.35,
        "memory_efficiency": 0.4,
        "smoothing": 0.2,
    },
    "gemm_transposed": {
        "floor_s": 2e-5,
        "compute_efficiency": 0.3,
        "memory_efficiency": 0.4,
        "smoothing": 0.2,
    },
    "softmax": {
        "floor_s": 1.5e-5,
        "compute_efficiency": 0.3,
        "memory_efficiency": 0.5,
        "transcendental_flops": 40.0,
        "smoothing": 0.3,
    },
    "copy": {"floor_s": 1e-5, "memory_efficiency": 0.9, "smoothing": 0.3},
}


def machine() -> PerfModel:
    """The made-up machine itself."""
    knobs = neutral_knobs()
    for group, values in TRUE.items():
        for name, value in values.items():
            getattr(knobs, name)[GROUPS.index(group)] = value
    return PerfModel(
        V100,
        dataclasses.replace(
            knobs, level_speedup=np.array([3.0, 3.0, 1.0, 1.0]), line_s=np.full(4, 1e-11)
        ),
    )


def timed(rows: pd.DataFrame, noise: float = 0.05, seed: int = 0) -> pd.DataFrame:
    """A table filled in by the made-up machine."""
    seconds = machine().predict_ops(rows)["predicted_s"].to_numpy()
    return rows.assign(
        time_s=seconds * np.exp(noise * np.random.default_rng(seed).standard_normal(len(rows)))
    )


def median_error(model: PerfModel, rows: pd.DataFrame) -> float:
    return float((model.predict_ops(rows)["predicted_s"] / rows["time_s"] - 1).abs().median())


@pytest.fixture(scope="module")
def short() -> MeasurementPlan:
    return plan(V100, 60.0, model=BARE)


# --- what a plan is -------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget_s", "least"), [(20.0, 12), (120.0, 90)])
def test_the_budget_is_kept_and_used(budget_s: float, least: int) -> None:
    made = plan(V100, budget_s, ops=OPS)
    cost = CASE_OVERHEAD_S + made.table["repeats"] * made.table["expected_s"]
    assert cost.sum() == pytest.approx(made.seconds)
    assert made.seconds <= budget_s
    assert len(made.table) >= least
    assert made.summary["cases"].sum() == len(made.table)
    assert made.summary["measuring_s"].sum() == pytest.approx(made.seconds)


def test_a_plan_can_be_repeated(short: MeasurementPlan) -> None:
    again = plan(V100, 60.0, model=BARE)
    pd.testing.assert_frame_equal(again.table, short.table, check_exact=True)
    pd.testing.assert_frame_equal(again.summary, short.summary, check_exact=True)


def test_all_default_ops_are_measured(short: MeasurementPlan) -> None:
    assert set(short.table["op"]) == set(DEFAULT_OPS)
    assert set(short.table["op"][: len(DEFAULT_OPS)]) == set(
        DEFAULT_OPS
    )  # also if measuring stops early
    assert (short.summary["removed"] > 0.5).all()
    assert (short.table["device"] == V100.id).all()
    assert short.table["time_s"].isna().all()
    assert not short.table.duplicated(
        [c for c in short.table if c not in ("expected_s", "repeats", "gain")]
    ).any()


@pytest.mark.parametrize("name", ["plan.csv", "plan.parquet"])
def test_every_row_is_read_and_priced(short: MeasurementPlan, tmp_path: Path, name: str) -> None:
    """In one mixed table, most of whose columns are empty in any one row."""
    write_table(short.table, tmp_path / name)
    for table in (short.table, read_table(tmp_path / name)):
        out = PerfModel.datasheet(V100).predict_ops(table)
        assert out["predicted_s"].gt(0).all(), out["note"].unique()
    gemm = short.table[short.table["op"] == "gemm"]
    assert gemm[["m", "n", "k"]].notna().all(axis=None)
    assert gemm[["rows", "c_in", "vocab"]].isna().all(axis=None)


def test_integers_are_written_as_integers(short: MeasurementPlan, tmp_path: Path) -> None:
    write_table(short.table, tmp_path / "plan.csv")
    text = pd.read_csv(tmp_path / "plan.csv", dtype=str)
    for column in ("m", "rows", "kh", "repeats", "transposed_a"):
        assert text[column].dropna().str.fullmatch(r"\d+").all(), column


def test_ops_and_dtypes_asked_for_and_no_others() -> None:
    made = plan(V100, 40.0, ops=["linear", "embedding"], dtypes=["half", "fp32"])
    kinds = {(op, dtype) for op in ("linear", "embedding") for dtype in ("fp16", "fp32")}
    assert set(zip(made.table["op"], made.table["dtype"], strict=True)) == kinds
    assert "c_in" not in made.table


def tiny(memory_bytes: float) -> PerfModel:
    return PerfModel.datasheet(V100.model_copy(update={"memory_bytes": memory_bytes}))


def test_nothing_is_larger_than_the_memory() -> None:
    """By hand, on a device of 64 MB: tensors of a product, a table and its rows, four moments and
    parameters.
    """
    pool = candidates(tiny(64e6), ["gemm", "gather", "adam", "add"], ["fp32"], 3600.0)
    room = LARGEST_SHARE_OF_MEMORY * 64e6
    rows = {op: pool[pool["op"] == op] for op in pool["op"].unique()}
    assert set(rows) == {"gemm", "gather", "adam", "add"}
    gemm, gather = rows["gemm"], rows["gather"]
    assert (
        4 * (gemm["m"] * gemm["k"] + gemm["k"] * gemm["n"] + gemm["m"] * gemm["n"]) <= room
    ).all()
    assert (
        4 * gather["vocab"] * gather["cols"] + 8 * gather["rows"] * gather["cols"] <= room
    ).all()
    assert (4 * 4 * rows["adam"]["parameters"] <= room).all()
    assert (3 * 4 * rows["add"]["rows"] * rows["add"]["cols"] <= room).all()
    assert len(gemm) > 300  # what is dropped is replaced


def test_a_short_budget_has_no_long_case() -> None:
    p4 = PerfModel.datasheet(load_device("p4"))
    pool = candidates(p4, ["gemm", "sort"], ["fp32"], 10.0)
    assert (pool["expected_s"] * pool["repeats"]).max() <= LARGEST_SHARE_OF_BUDGET * 10.0
    assert candidates(p4, ["gemm", "sort"], ["fp32"], 3600.0)["expected_s"].max() <= 1.0


def test_sizes_are_of_all_kinds() -> None:
    """Powers of two, multiples of 8, odd ones; over the whole range."""
    m = candidates(BARE, ["gemm"], ["fp32"], 3600.0)["m"].to_numpy(int)
    power = (m & (m - 1)) == 0
    assert 0.25 < power.mean() < 0.55
    assert 0.2 < (m % 2 == 1).mean() < 0.4
    assert ((m % 8 == 0) & ~power).mean() > 0.15
    assert m.min() < 16
    assert m.max() > 30_000


# --- how it chooses -------------------------------------------------------------------------------


def gemms(n: int, largest: float = 4096, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sizes = np.round(np.exp(rng.uniform(np.log(8), np.log(largest), (n, 3))))
    return pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(op="gemm", dtype="fp32")


def chosen(
    rows: pd.DataFrame, cost_s: np.ndarray, budget_s: float, model: PerfModel = BARE
) -> Choice:
    """As `plan` chooses among rows of a table."""
    belief = Belief.about(rows, model)
    _, kind = np.unique(belief.kind, return_inverse=True)
    weight = 1.0 / np.bincount(kind)[kind]
    return choose(belief.covariance(), belief.noise(), cost_s, budget_s, weight, kind)


def test_rank_one_updates_are_the_posterior() -> None:
    """After 100 picks the variances are those of one Gaussian conditioned on
    all picks at once.
    """
    rows = pd.concat(
        [
            gemms(150),
            timed(candidates(BARE, ["copy"], ["fp32"], 60.0)).head(100)[
                ["op", "dtype", "rows", "cols"]
            ],
        ]
    )
    rows = rows.reset_index(drop=True)
    choice = chosen(rows, np.ones(len(rows)), 100.0)
    assert len(choice.picks) == len(set(choice.picks)) == 100
    covariance = Belief.about(rows, BARE).covariance()
    among = covariance[np.ix_(choice.picks, choice.picks)] + NOISE_SD**2 * np.eye(100)
    told = np.linalg.solve(among, covariance[choice.picks])
    by_hand = np.diag(covariance) - np.einsum("ij,ij->j", covariance[choice.picks], told)
    np.testing.assert_allclose(choice.variance, by_hand, rtol=1e-6)
    weight = np.where(rows["op"] == "gemm", 1 / 150, 1 / 100)
    assert choice.removed.sum() == pytest.approx(weight @ (np.diag(covariance) - by_hand))
    assert (choice.removed > 0).all()


def test_the_first_pick_is_the_best_of_all() -> None:
    """By trying each: the one that removes most variance per second."""
    rows, cost = gemms(60), np.random.default_rng(1).uniform(1, 3, 60)
    covariance = Belief.about(rows, BARE).covariance()
    left = [
        np.trace(covariance - np.outer(k, k) / (k[i] + NOISE_SD**2))
        for i, k in enumerate(covariance)
    ]
    best = np.argmax((np.trace(covariance) - left) / cost)
    assert chosen(rows, cost, 3.0).picks[0] == best


def test_what_costs_more_is_measured_less() -> None:
    rows = gemms(60)
    dear = (rows["m"] > rows["m"].median()).to_numpy()
    even = chosen(rows, np.ones(60), 12.0).picks
    uneven = chosen(rows, np.where(dear, 8.0, 1.0), 12.0).picks
    assert dear[uneven].mean() < dear[even].mean()
    assert np.where(dear, 8.0, 1.0)[uneven].sum() <= 12.0


def test_a_models_knobs_are_the_centre() -> None:
    model = dataclasses.replace(machine(), groups={"gemm": report(gemms(20), 0.1)})
    belief = Belief.about(gemms(60), model)
    vector = KnobVector.of(belief.table, V100)
    knobs = vector.knobs(jnp.asarray(centre(vector, model)))
    at = GROUPS.index("gemm")
    for name in set(GROUP_KNOBS) & set(TRUE["gemm"]):
        assert float(getattr(knobs, name)[at]) == pytest.approx(TRUE["gemm"][name], rel=1e-5)
    np.testing.assert_allclose(knobs.level_speedup, [3.0, 3.0, 1.0, 1.0], rtol=1e-5)
    assert float(knobs.line_s[-1]) == pytest.approx(1e-11, rel=1e-5)
    np.testing.assert_allclose(
        belief.seconds, model.predict_ops(gemms(60))["predicted_s"], rtol=1e-3
    )


def report(rows: pd.DataFrame, half_width: float) -> GroupReport:
    """What a model says that was fitted on these rows."""
    (part,) = parse_ops(rows, V100).parts
    box = Box.of(inputs_of(part.op, part.work, len(rows)))
    ends = [dict(zip(box.names, map(float, end), strict=True)) for end in (box.low, box.high)]
    return GroupReport(len(rows), half_width, *ends, dtypes=("fp32",))


def test_a_model_sends_measurements_where_it_has_none() -> None:
    """A model of small products is asked for large ones; one of softmax with wide intervals for
    softmax.
    """
    rows = pd.concat(
        [gemms(100, 128), gemms(100, 8192, seed=1).query("m * n * k > 1e8")], ignore_index=True
    )
    small = (rows["m"] * rows["n"] * rows["k"] <= 128**3).to_numpy()
    model = dataclasses.replace(machine(), groups={"gemm": report(rows[small], 0.05)})
    unknown, known = (chosen(rows, np.ones(len(rows)), 20.0, m).picks for m in (BARE, model))
    assert small[known].mean() < small[unknown].mean() / 2
    loose = dataclasses.replace(machine(), groups={"gemm": report(rows[small], 0.6)})
    before, with_rows, with_loose = (
        np.diag(Belief.about(rows, m).covariance()) for m in (BARE, model, loose)
    )
    assert with_rows[small].mean() < 0.1 * before[small].mean()
    assert with_rows[~small].mean() > 5 * with_rows[small].mean()
    assert with_loose[small].mean() > 0.05


# --- what it is good for --------------------------------------------------------------------------


def fitted(rows: pd.DataFrame) -> PerfModel:
    """Knobs alone, without the folds of a whole fit: what is compared is the choice of rows."""
    table = Belief.about(rows, BARE).table
    knobs, _ = fit_knobs(table, rows["time_s"].to_numpy(np.float64), V100)
    return PerfModel(V100, knobs)


def test_a_plan_beats_as_much_measuring_at_random() -> None:
    """Six rows of each of three ops, of a machine whose knobs are far from the prior's; five random
    draws of the same cost.
    """
    made = plan(V100, 19.0, ops=OPS)
    pool = candidates(BARE, OPS, ["fp32"], 19.0)
    cost = CASE_OVERHEAD_S + (pool["repeats"] * pool["expected_s"]).to_numpy()
    rng = np.random.default_rng(0)
    held_out = timed(pool, noise=0.0).sample(800, random_state=0)
    planned = median_error(fitted(timed(made.table)), held_out)
    at_random = []
    for seed in range(5):
        order = rng.permutation(len(pool))
        taken = order[: int(np.searchsorted(np.cumsum(cost[order]), made.seconds, side="right"))]
        at_random.append(median_error(fitted(timed(pool.iloc[taken], seed=seed)), held_out))
    assert planned < 0.12
    assert planned <= np.median(at_random), at_random


def test_a_plan_not_filled_in_is_refused() -> None:
    table = plan(V100, 30.0, ops=OPS).table
    with pytest.raises(
        InputError, match=f"{len(table)} rows are not measured yet; fill in their time_s"
    ) as error:
        fit(table, V100, prior="none")
    assert "\n" not in str(error.value)


def test_a_time_missing_elsewhere_is_still_a_slip() -> None:
    """Only planned rows may be empty, also in one table with others."""
    table = timed(plan(V100, 30.0, ops=OPS).table)
    other = timed(gemms(5)).assign(device=V100.id)
    other.loc[2, "time_s"] = np.nan
    with pytest.raises(InputError, match=f"row {len(table) + 3} has"):
        fit(pd.concat([table, other], ignore_index=True), V100, prior="none")


def test_40_chosen_rows_of_a_real_v100_are_as_good_as_40_at_random(data_dir: Path) -> None:
    """NeuSight's linear layers, 1,000 rows to choose from, the other 3,000 held out."""
    rows = read_table(data_dir / "compute" / "neusight_linear.csv.gz")
    rows = rows[rows["device"] == V100.id].sample(frac=1.0, random_state=0).reset_index(drop=True)
    offered, held_out = rows.iloc[:1000], rows.iloc[1000:]
    picks = chosen(offered, np.ones(len(offered)), 40.0).picks
    by_plan = median_error(fitted(offered.iloc[picks]), held_out)
    at_random = [
        median_error(fitted(offered.sample(40, random_state=seed)), held_out) for seed in range(5)
    ]
    assert by_plan <= np.median(at_random), (by_plan, at_random)


# --- the command ----------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def test_a_plan_half_filled_in_becomes_a_model_and_the_next_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.csv"
    asked = ["plan-measurements", "--device", V100.id, "--budget", "30s", "--ops", ",".join(OPS)]
    assert run(*asked, "--out", path) == 0
    said = capsys.readouterr().out
    assert "softmax" in said
    assert f"hybridperf fit {path} --device {V100.id}" in said

    table = read_table(path)
    filled = timed(table)
    filled.loc[20:, "time_s"] = np.nan
    write_table(filled, path)
    assert (
        run("fit", path, "--device", V100.id, "--prior", "none", "--folder", tmp_path / "model")
        == 0
    )  # made-up times: no V100 that the prior knows
    assert f"not fitted on: {len(table) - 20} rows, not measured yet" in capsys.readouterr().out
    model = load_model(tmp_path / "model")
    assert model.provenance["fit"]["dropped"] == {"not measured yet": len(table) - 20}
    assert set(OPS) <= set(model.groups)
    assert median_error(model, timed(table, noise=0.0)) < 0.2

    assert run(*asked, "--model", tmp_path / "model", "--out", tmp_path / "next.csv") == 0
    again = read_table(tmp_path / "next.csv")
    assert not again.equals(table)
    close = np.abs(np.log(again["expected_s"] / timed(again, noise=0.0)["time_s"]))
    assert close.median() < 0.2  # the plan's own times are the model's now


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "v1000"], "unknown device 'v1000' (did you mean"),
        (["--ops", "gemm,sofmax"], "unknown op 'sofmax' (did you mean 'softmax'?)"),
        (["--ops", "fused"], "unknown op 'fused'"),
        (["--ops", ","], "at least one op"),
        (["--dtype", "fp33"], "unknown dtype 'fp33'"),
        (["--dtype", "bf16"], "no known bf16 peak"),
        (["--budget", "soon"], "a time such as"),
        (
            ["--budget", "0.5s"],
            "expected a budget that pays for a measurement, got 0.5 s; the cheapest takes 1 s",
        ),
        (["--budget", "0.001s"], "expected a budget that pays for gemm fp32"),
        (["--model", "nowhere"], "unknown model 'nowhere'"),
        (["--out", "plan.txt"], "ending in"),
    ],
)
def test_wrong_words_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    usual = {"--device": "v100", "--budget": "20s", "--ops": "gemm", "--out": tmp_path / "plan.csv"}
    given = {**usual, **dict(zip(arguments[::2], arguments[1::2], strict=True))}
    assert run("plan-measurements", *[word for pair in given.items() for word in pair]) == 2
    err = capsys.readouterr().err.strip()
    assert len(err.splitlines()) == 1, err
    assert says in err
    assert not (tmp_path / "plan.csv").exists()


def test_a_model_of_another_device_is_refused() -> None:
    with pytest.raises(InputError, match="expected a model of v100_pcie_32g, got one of t4"):
        plan(V100, 20.0, model=PerfModel.datasheet(load_device("t4")))


def test_rows_that_cannot_be_read_are_named() -> None:
    rows = gemms(5)
    rows.loc[3, "m"] = -1
    with pytest.raises(InputError, match="row 4: gemm: m must be"):
        chosen(rows, np.ones(5), 3.0)
