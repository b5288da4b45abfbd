"""What to measure for one workload: its own interval falls, faster than by other choices."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.cli import app as cli
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.explore.measurements.belief import NOISE_SD, Belief
from hybridperf.explore.measurements.plans import choose, ops_of, plan, plan_for
from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import fit
from hybridperf.model.fit.knobs import fit_knobs
from hybridperf.ops import Gemm, OpCall
from hybridperf_calibration.published.ops import read_model_ops

V100 = load_device("v100_pcie_32g")
BARE = PerfModel.datasheet(V100)  # believed by the knobs alone
STEP = pd.DataFrame([
    {"op": "gemm", "dtype": "fp32", "m": 4096, "n": 4096, "k": 1024, "times": 24},
    {"op": "gemm", "dtype": "fp32", "m": 4096, "n": 1024, "k": 4096, "times": 24},
    {"op": "softmax", "dtype": "fp32", "rows": 32768, "cols": 512, "times": 12},
    {"op": "softmax", "dtype": "fp32", "rows": 4, "cols": 4, "times": 1},
])  # fmt: skip


def covariance_of(rng: np.random.Generator, n: int) -> np.ndarray:
    half = rng.standard_normal((n, n))
    return half @ half.T / n


def test_what_is_left_is_the_posterior_of_the_step() -> None:
    """After any picks the variance is that of one Gaussian conditioned on all of them at once."""
    rng = np.random.default_rng(0)
    covariance, weight = covariance_of(rng, 30), rng.dirichlet(np.ones(30))
    chosen = choose(covariance, np.full(30, NOISE_SD**2), np.ones(30), 8.0, weight)
    assert len(chosen.picks) == len(set(chosen.picks)) == 8
    for count in range(9):
        at = chosen.picks[:count]
        among = covariance[np.ix_(at, at)] + NOISE_SD**2 * np.eye(count)
        told = covariance[at] @ weight
        left = weight @ covariance @ weight - told @ np.linalg.solve(among, told)
        removed = chosen.removed[:count].sum()
        assert weight @ covariance @ weight - removed == pytest.approx(left)


def test_the_first_pick_narrows_most_a_second() -> None:
    rng = np.random.default_rng(1)
    covariance, weight, cost = covariance_of(rng, 20), rng.random(20), rng.uniform(1, 3, 20)
    cost[3] = np.inf
    left = [
        weight @ (covariance - np.outer(k, k) / (k[i] + NOISE_SD**2)) @ weight
        for i, k in enumerate(covariance)
    ]
    best = int(np.argmax((weight @ covariance @ weight - left) / cost))
    noise = np.full(20, NOISE_SD**2)
    assert choose(covariance, noise, cost, 4.0, weight).picks[0] == best
    with pytest.raises(InputError, match=r"a budget that pays for a measurement, got 0\.1 s"):
        choose(covariance, noise, cost, 0.1, weight)


def test_a_plan_measures_what_the_step_spends_its_time_on() -> None:
    made = plan_for(STEP, V100, 20.0, model=BARE)
    assert made.seconds <= 20.0
    assert set(made.table["op"]) <= {"gemm", "softmax"}
    shares = made.summary.set_index("op")
    assert shares.loc["gemm", "share"] > 0.7
    assert shares.loc["gemm", "removed"] > shares.loc["softmax", "removed"]
    assert made.summary["share"].sum() == pytest.approx(1.0)
    assert made.other_share == pytest.approx(0.0, abs=1e-9)
    assert made.table["half_width"].is_monotonic_decreasing
    assert made.curve["half_width"].iloc[-1] < 0.2 * made.curve["half_width"].iloc[0]
    assert PerfModel.datasheet(V100).predict_ops(made.table)["predicted_s"].gt(0).all()
    pd.testing.assert_frame_equal(plan_for(STEP, V100, 20.0, model=BARE).table, made.table)


def test_a_plan_promises_what_the_fit_to_its_rows_then_says() -> None:
    """An RTX PRO 6000 that is a quarter slower than the prior says: before any row the plan has the
    interval that `predict` has; its rows narrow it, about as promised, and more than others do.
    """
    device = load_device("rtx_pro_6000_server")
    step = pd.DataFrame({"op": "gemm", "dtype": "bf16", "m": 2048, "n": [12288, 4096], "k": 4096})
    prior, made = fit(None, device)[0], plan_for(step.assign(times=32.0), device, 15.0)

    def measured(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(time_s=1.25 * prior.predict_ops(table)["predicted_s"])

    def half_width(model: PerfModel) -> float:
        graph = GraphBuilder()
        for at in (1, 2):
            graph.op(at, label="op")
        calls = [OpCall(Gemm("bf16", 2048.0, n, 4096.0), times=32.0) for n in (12288.0, 4096.0)]
        found = predict(model, Workload("step", graph.build(), tuple(calls)))
        assert found.low_s is not None
        assert found.high_s is not None
        return float(np.sqrt(found.high_s / found.low_s)) - 1

    rows = measured(made.table)
    other = measured(plan(device, 15.0, ops=["gemm"], dtypes=["bf16"]).table)
    assert made.curve["half_width"].iloc[0] == pytest.approx(half_width(prior), rel=0.15)
    fitted = fit(rows[:4], device)[0]
    some = half_width(fitted)
    assert Belief.about(rows[:4], fitted).shared == pytest.approx(1 / (2 + 4 / 5))
    assert rows["half_width"].iloc[3] == pytest.approx(some, rel=0.4)
    assert some < 0.7 * half_width(fit(other[:4], device)[0])


def test_a_steps_own_seconds_are_its_weights() -> None:
    """Off the critical path nothing counts; what is no op keeps its share."""
    seconds = {"seconds": [1.0, 2.0, 0.5, 0.5], "critical": [True, True, False, True]}
    given = pd.DataFrame([{"op": "given", "dtype": None, "seconds": 0.5, "critical": True}])
    rows, share, _ = ops_of(
        pd.concat([STEP.drop(columns="times").assign(**seconds), given], ignore_index=True), V100
    )
    assert len(rows) == 3
    assert share == pytest.approx(np.array([1.0, 2.0, 0.5]) / 4.0)
    with pytest.raises(InputError, match="no op that can be measured by itself"):
        ops_of(given, V100)
    with pytest.raises(InputError, match="expected columns op, dtype"):
        ops_of(given.drop(columns="dtype"), V100)
    for column, value in (("times", "x"), ("times", -1.0), ("seconds", "x"), ("seconds", np.inf)):
        with pytest.raises(InputError, match=f"in {column} of op 1"):
            ops_of(STEP.assign(**{column: value}), V100)
    with pytest.raises(InputError, match="seconds above zero"):
        ops_of(STEP.assign(seconds=0.0), V100)


def test_on_a_real_v100_a_step_is_known_sooner_than_by_chance(data_dir: Path) -> None:
    """NeuSight's rows of a V100 are the machine, BERT-large's products and softmax (inference,
    batch 8) the workload: none of its own rows is offered.
    """
    ops, _ = read_model_ops(data_dir)
    one = "device == @V100.id and model == 'bert_large' and mode == 'inf' and model_batch == 8"
    ops = ops.query(one)
    ops = ops[ops["op"].isin(["linear", "bmm", "softmax"])]
    sizes = ["op", "dtype", "m", "n", "k", "batch", "rows", "cols"]
    own, *_ = ops_of(ops[sizes], V100)
    offered = []
    for name in ("linear", "bmm", "softmax"):
        rows = read_table(data_dir / "compute" / f"neusight_{name}.csv.gz")
        rows = rows[(rows["device"] == V100.id) & rows["op"].isin({*own["op"]})]
        offered.append(rows.sample(min(len(rows), 200), random_state=0))
    rows = pd.concat(offered, ignore_index=True)[[*sizes, "time_s"]]
    n, known = len(rows), len(own)
    belief = Belief.about(pd.concat([own[sizes], rows[sizes]], ignore_index=True), BARE)
    covariance, seconds = belief.covariance(), belief.seconds[:known]
    weight = np.concatenate([seconds / seconds.sum(), np.zeros(n)])
    cost = np.concatenate([np.full(known, np.inf), np.ones(n)])

    def left(picks: np.ndarray) -> float:
        among = covariance[np.ix_(picks, picks)] + NOISE_SD**2 * np.eye(len(picks))
        told = covariance[picks] @ weight
        return float(weight @ covariance @ weight - told @ np.linalg.solve(among, told))

    def error(picks: np.ndarray) -> float:
        """Of the whole workload, by knobs fitted to the picks alone."""
        measured = rows.iloc[picks - known].reset_index(drop=True)
        table = Belief.about(measured, BARE).table
        knobs, _ = fit_knobs(table, measured["time_s"].to_numpy(float), V100)
        found = PerfModel(V100, knobs).predict_ops(own[sizes])["predicted_s"].sum()
        return abs(float(np.log(found / ops["label_fw_s"].sum())))

    planned = choose(covariance, belief.noise(), cost, 6.0, weight).picks
    by_chance = [
        known + np.random.default_rng(seed).choice(n, size, replace=False)
        for seed, size in ((0, 6), (1, 6), (2, 6), (3, 24))
    ]
    # four times as many rows at random leave it wider
    assert left(planned) < 0.6 * min(map(left, by_chance))
    assert error(planned) < 0.1
    assert error(planned) < np.median([error(picks) for picks in by_chance[:3]])


def test_the_command_says_what_each_minute_narrows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*more: object) -> int:
        asked = ["plan-measurements", "--device", V100.id, "--budget", "20s", *more]
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in asked])
        return int(ended.value.code or 0)

    step, out = tmp_path / "step.csv", tmp_path / "plan.csv"
    STEP.to_csv(step, index=False)
    assert run("--workload", step, "--out", out) == 0
    said = capsys.readouterr().out
    assert "points a minute" in said
    assert f"hybridperf fit {out} --device {V100.id}" in said
    assert read_table(out)["time_s"].isna().all()
    odd = pd.DataFrame([{"op": "gem", "dtype": "fp32"}, {"op": "gemm", "dtype": "fp32", "m": -1}])
    pd.concat([STEP, odd], ignore_index=True).assign(times=1).to_csv(step, index=False)
    assert run("--workload", step, "--out", out) == 3
    said = capsys.readouterr().err
    assert "2 rows of step.csv cannot be read; the first, row 5: unknown op 'gem'" in said
    assert run("--workload", step, "--ops", "gemm", "--out", out) == 2
    assert "one of --ops and --workload" in capsys.readouterr().err
    assert run("--workload", step, "--out", step) == 2
