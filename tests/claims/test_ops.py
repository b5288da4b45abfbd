"""Held-out ops next to baselines: medians and bootstrap by hand, coverage with its band, and the
whole claim on a small calibration.
"""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import ops
from hybridperf.hardware import load_device
from hybridperf.io import InputError, write_table
from hybridperf.model.fit.device import fit


def held_out(
    predicted: list[float], knobs: list[float], trees: list[float], noise: float = 0.02
) -> pd.DataFrame:
    """Rows of one kind of op that took a second each."""
    n = len(predicted)
    return pd.DataFrame({
        "op": ["gemm"] * n, "measured_s": 1.0, "predicted_s": predicted, "knobs_s": knobs,
        "trees_s": trees, "roofline_s": 0.5, "scaled_s": 0.8, "low_s": np.asarray(predicted) / 1.1,
        "high_s": np.asarray(predicted) * 1.1, "noise": noise,
    })  # fmt: skip


def test_medians_and_the_better_baseline_by_hand() -> None:
    (line,) = ops.compare(held_out([1.05] * 30, [1.2] * 30, [0.9] * 30)).to_dict("records")
    assert line["rows"] == 30
    names = ("ours", "knobs", "trees", "datasheet", "scaled")
    assert [line[name] for name in names] == pytest.approx([0.05, 0.2, 0.1, 0.5, 0.2])
    assert (line["excess"], line["excess_low"], line["excess_high"]) == pytest.approx(
        (-0.05,) * 3
    )  # against trees, no row differs
    assert line["goal"] == 0.10


def test_the_goal_is_twice_the_noise_where_that_is_more() -> None:
    assert ops.compare(held_out([1.0] * 20, [1.0] * 20, [1.0] * 20, noise=0.09))["goal"][
        0
    ] == pytest.approx(0.18)
    without = held_out([1.0] * 20, [1.0] * 20, [1.0] * 20).assign(noise=np.nan)
    assert ops.compare(without)["goal"][0] == 0.10


def test_worse_beyond_chance_is_seen_and_chance_is_not() -> None:
    rng = np.random.default_rng(0)
    error = rng.normal(0, 0.1, 200)
    other = rng.normal(0, 0.1, 200)
    same = ops.compare(held_out(list(1 + error), list(1 + other), [3.0] * 200))
    assert same["excess_low"][0] < 0 < same["excess_high"][0]
    worse = ops.compare(held_out(list(1 + 2 * error), list(1 + other), [3.0] * 200))
    assert worse["excess_low"][0] > 0


def test_the_roofline_is_scaled_by_other_folds_of_the_same_op() -> None:
    rows = pd.DataFrame({
        "op": ["gemm"] * 4 + ["copy"] * 2, "fold": [0, 1, 1, 1, 0, 1],
        "measured_s": [9.0, 2.0, 3.0, 4.0, 5.0, 7.0], "roofline_s": [1.0, 1.0, 1.0, 1.0, 2.0, 1.0],
    })  # fmt: skip
    assert ops.scaled(rows).tolist() == [3.0, 9.0, 9.0, 9.0, 14.0, 2.5]


def test_few_rows_are_not_judged() -> None:
    assert ops.compare(held_out([1.0] * 19, [1.0] * 19, [1.0] * 19)).empty


def test_coverage_and_its_band() -> None:
    rows = held_out([1.0] * 90 + [2.0] * 10, [1.0] * 100, [1.0] * 100)
    found = ops.covered(rows)
    assert found["inside"] == pytest.approx(0.9)
    assert found["band_low"] == pytest.approx(
        0.82
    )  # the 0.5 and 99.5 % quantiles of 100 draws at 0.9
    assert found["band_high"] == pytest.approx(0.97)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """A model and its rows: elementwise ops whose time has a ripple that knobs cannot follow."""
    rng = np.random.default_rng(1)
    rows_, cols = np.exp(rng.uniform(np.log(16), np.log(4096), (2, 120))).round()
    truth = 2e-6 + 12 * rows_ * cols / 5e11 * (1 + 0.3 * np.sin(2 * np.log2(cols)))
    rows = pd.DataFrame(
        {
            "op": "add",
            "dtype": "fp32",
            "rows": rows_,
            "cols": cols,
            "time_s": truth * rng.lognormal(0, 0.02, 120),
            "noise": 0.02,
        }
    )
    folder = tmp_path_factory.mktemp("model")
    model, _ = fit(rows, load_device("v100_pcie_32g"), prior="none")
    model.save(folder)
    write_table(rows, folder / "ops.csv")
    return model, folder


def test_the_claim_on_a_small_calibration(calibration, tmp_path) -> None:
    model, folder = calibration
    said: list[str] = []
    summary = ops.run(model, folder, tmp_path, said.append)
    (line,) = summary["ops"]
    assert line["op"] == "elementwise"
    assert line["ours"] < line["knobs"]  # the ripple is learned
    assert line["ours"] < line["datasheet"]
    assert json.loads((tmp_path / "ops.json").read_text())["ops"] == summary["ops"]
    rows = pd.read_csv(tmp_path / "ops.csv")
    assert len(rows) == 120
    assert np.median(np.abs(rows["trees_s"] / rows["measured_s"] - 1)) == pytest.approx(
        line["trees"]
    )
    assert 0.05 < line["trees"] < 0.5  # trees of rows they have not seen: neither perfect nor lost
    assert "elementwise" in said[-2]
    assert "inside their 90 % interval" in said[-2]


def test_a_folder_without_rows_is_one_sentence(calibration, tmp_path) -> None:
    with pytest.raises(
        InputError,
        match=(
            r"holds no ops\.csv or host\.csv; expected the folder that `hybridperf calibrate` made"
        ),
    ):
        ops.run(calibration[0], tmp_path, tmp_path)
