"""The fit finds what made the rows, says how far it may be trusted, and
refuses what it cannot use.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import MEMORY, load_device
from hybridperf.io import InputError, read_table
from hybridperf.model import PerfModel, load_model, neutral_knobs
from hybridperf.model.fit.device import LEAST_ROWS_FOR_INTERVAL, conformal_quantile, fit
from hybridperf.ops import GROUPS

V100 = load_device("v100")
NOISE = 0.03
TRUE = {  # group: knobs that made the rows
    "gemm": {
        "floor_s": 6e-6,
        "compute_efficiency": 0.72,
        "memory_efficiency": 0.8,
        "smoothing": 0.2,
    },
    "elementwise": {
        "floor_s": 4e-6,
        "compute_efficiency": 0.5,
        "memory_efficiency": 0.65,
        "smoothing": 0.2,
    },
}


def true_model() -> PerfModel:
    knobs = neutral_knobs()
    for group, values in TRUE.items():
        for name, value in values.items():
            getattr(knobs, name)[GROUPS.index(group)] = value
    return PerfModel(
        V100,
        dataclasses.replace(
            knobs, level_speedup=np.array([2.5, 2.5, 1.0, 1.0]), line_s=np.zeros(4)
        ),
    )


def made_up_rows(n: int = 150, noise: float = NOISE) -> pd.DataFrame:
    rng = np.random.default_rng(3)

    def sizes(low: float, high: float) -> np.ndarray:
        return np.round(np.exp(rng.uniform(np.log(low), np.log(high), n)))

    frame = pd.concat(
        [
            pd.DataFrame(
                {
                    "op": "gemm",
                    "dtype": "fp32",
                    "m": sizes(8, 8192),
                    "n": sizes(8, 8192),
                    "k": sizes(8, 8192),
                }
            ),
            pd.DataFrame(
                {"op": "add", "dtype": "fp32", "rows": sizes(16, 16384), "cols": sizes(16, 8192)}
            ),
        ],
        ignore_index=True,
    )
    seconds = true_model().predict_ops(frame)["predicted_s"]
    return frame.assign(
        time_s=seconds * np.exp(noise * rng.standard_normal(len(frame))), device=V100.id
    )


@pytest.fixture(scope="module")
def fitted():
    return fit(made_up_rows(), V100, prior="none")


def test_known_knobs_are_found(fitted) -> None:
    model, _ = fitted
    for group, values in TRUE.items():
        at = GROUPS.index(group)
        found = {name: float(getattr(model.knobs, name)[at]) for name in values}
        assert found["floor_s"] == pytest.approx(values["floor_s"], rel=0.15)
        assert found["memory_efficiency"] == pytest.approx(values["memory_efficiency"], rel=0.1)
    gemm = GROUPS.index("gemm")
    assert float(model.knobs.compute_efficiency[gemm]) == pytest.approx(0.72, rel=0.05)
    assert float(model.knobs.level_speedup[MEMORY]) == 1.0


def test_held_out_error_is_the_noise(fitted) -> None:
    """The median of |N(0, 3 %)| is 2 %; intervals of nominal 90 % hold 90 %."""
    _, report = fitted
    assert report.rows == 300
    assert report.dropped == {}
    for line in report.table.itertuples():
        assert line.rows == 150
        assert 0.01 < line.median_ape < 0.035
        assert line.roofline_ape > 3 * line.median_ape
        assert line.coverage == pytest.approx(0.9, abs=0.07)


def test_intervals_are_as_wide_as_the_noise(fitted) -> None:
    model, _ = fitted
    for group in TRUE:
        assert (
            1.3 * NOISE < model.groups[group].half_width < 3 * NOISE
        )  # 1.64 times, and what the knobs are off by


def test_fresh_rows_fall_into_the_intervals(fitted) -> None:
    model, _ = fitted
    rows = made_up_rows(100).assign(m=lambda f: f["m"] + 1, rows=lambda f: f["rows"] + 1)
    truth = true_model().predict_ops(rows)["predicted_s"]
    out = model.predict_ops(rows)
    assert out["in_range"].mean() > 0.95
    assert (
        (truth >= out["low_s"]) & (truth <= out["high_s"])
    ).mean() > 0.95  # without noise of their own


def test_a_fitted_model_survives_its_file(fitted, tmp_path: Path) -> None:
    model, _ = fitted
    model.save(tmp_path)
    rows = made_up_rows(20)
    pd.testing.assert_frame_equal(
        load_model(tmp_path).predict_ops(rows), model.predict_ops(rows), check_exact=True
    )
    assert load_model(tmp_path).provenance["fit"]["rows"] == 300


def test_a_fit_can_be_repeated(fitted) -> None:
    again, _ = fit(made_up_rows(), V100, prior="none")
    assert again.fingerprint() == fitted[0].fingerprint()


def test_few_disturbed_rows_do_not_bend_the_fit() -> None:
    rows = made_up_rows()
    rows.loc[::20, "time_s"] *= 5
    model, _ = fit(rows, V100, prior="none")
    gemm = GROUPS.index("gemm")
    assert float(model.knobs.compute_efficiency[gemm]) == pytest.approx(0.72, rel=0.1)


def test_no_rows_give_the_datasheet() -> None:
    model, report = fit(None, V100, prior="none")
    rows = made_up_rows(10)
    pd.testing.assert_frame_equal(
        model.predict_ops(rows), PerfModel.datasheet(V100).predict_ops(rows)
    )
    assert report.rows == 0
    assert model.provenance["rows"] == 0


def test_few_rows_fit_without_an_interval() -> None:
    model, report = fit(made_up_rows(5), V100, prior="none")
    assert model.groups["gemm"].half_width is None
    assert report.rows == 10
    out = model.predict_ops(made_up_rows(5))
    assert out["predicted_s"].notna().all()
    assert out["low_s"].isna().all()


def test_one_row_is_enough() -> None:
    model, _ = fit(made_up_rows(1).iloc[:1], V100, prior="none")
    assert set(model.groups) == {"gemm"}


def test_rows_that_are_not_fitted_on_are_counted() -> None:
    rows = made_up_rows(40)
    rows["throttled"], rows["unreliable"] = 0, 0
    rows.loc[:4, "throttled"] = 1
    rows.loc[5:14, "unreliable"] = 1
    rows.loc[15:17, "device"] = "p100_pcie_16g"
    rows.loc[:17, "time_s"] = -1.0  # nobody looks at their times
    model, report = fit(rows, V100, prior="none")
    assert report.rows == 80 - 18
    assert dict(report.dropped) == {
        "other devices": 3,
        "thermally throttled": 5,
        "mostly call overhead": 10,
    }
    assert model.groups["gemm"].rows == 40 - 18


def test_a_disturbed_time_is_named_by_its_place_in_the_table() -> None:
    rows = made_up_rows(10)
    rows.loc[:4, "device"] = "p100_pcie_16g"
    for bad in (np.nan, -1.0, 0.0):
        rows.loc[7, "time_s"] = bad
        with pytest.raises(InputError, match="row 8 has") as error:
            fit(rows, V100, prior="none")
        assert "\n" not in str(error.value)
    rows.loc[7, "time_s"] = 1.0
    rows.loc[8, "m"] = -4
    with pytest.raises(InputError, match="row 9: gemm: m must be"):
        fit(rows, V100, prior="none")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (pd.DataFrame(), "column 'op'"),
        (made_up_rows(3).iloc[:0], "no rows to fit on"),
        (made_up_rows(3).drop(columns="time_s"), "column 'time_s'"),
        (
            made_up_rows(3).assign(device="a100_sxm4_80g"),
            r"no rows left to fit v100_sxm2 on \(6 other devices\)",
        ),
        (made_up_rows(3).assign(throttled=1), "6 thermally throttled"),
        (made_up_rows(3).assign(op="gemmm"), "did you mean 'gemm'"),
    ],
)
def test_tables_that_cannot_be_fitted(rows: pd.DataFrame, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        fit(rows, V100, prior="none")
    assert "\n" not in str(error.value)


def test_unknown_prior() -> None:
    with pytest.raises(InputError, match="unknown prior 'a100'"):
        fit(None, V100, prior="a100")


def test_conformal_quantile_by_hand() -> None:
    """Of n errors the one at 0.9 (n + 1): of 39 the 36th, of 99 the 90th; of 24 half-way between
    the 22nd and the 23rd.
    """
    rng = np.random.default_rng(0)
    for n, position in ((39, 36), (99, 90), (24, 22.5), (20, 18.9), (28, 26.1)):
        errors = rng.permutation(np.arange(1, n + 1)) * rng.choice([-1, 1], n)
        assert conformal_quantile(errors) == pytest.approx(position, rel=1e-12)
    assert conformal_quantile(np.arange(1, 24), coverage=0.5) == 12.0
    assert conformal_quantile(np.arange(1, 25) ** 2) == pytest.approx((22**2 + 23**2) / 2)
    assert conformal_quantile(np.ones(LEAST_ROWS_FOR_INTERVAL - 1)) is None
    assert conformal_quantile(np.ones(LEAST_ROWS_FOR_INTERVAL)) == 1.0
    assert conformal_quantile(np.ones(25), coverage=0.99) is None  # the 25.74th of 25


@pytest.mark.parametrize("n", [20, 23, 33, 50])
def test_intervals_of_small_groups_hold_nine_in_ten_on_average(n: int) -> None:
    """Of uniform errors a share q lies below q, and the mean of the k-th of n is k / (n + 1):
    exactly 90 % on average over samples.
    """
    rng = np.random.default_rng(n)
    covered = np.array([conformal_quantile(sample) for sample in rng.uniform(0, 1, (4000, n))])
    assert covered.mean() == pytest.approx(0.9, abs=3 * covered.std() / np.sqrt(len(covered)))
    assert covered.std() == pytest.approx(
        np.sqrt(0.9 * 0.1 / (n + 2)), rel=0.1
    )  # and each sample as far off as order statistics are


def test_measured_rows_beat_the_datasheet(data_dir: Path) -> None:
    """NeuSight's V100, up to 120 rows of each op: median held-out error at most a third of the
    roofline's.
    """
    names = (
        "neusight_linear",
        "neusight_bmm",
        "neusight_elementwise",
        "neusight_softmax",
        "neusight_ln",
    )
    frames = [read_table(data_dir / "compute" / f"{name}.csv.gz") for name in names]
    device = load_device(
        "v100_pcie_32g" if (frames[0]["device"] == "v100_pcie_32g").any() else "v100"
    )
    rows = pd.concat(
        [f[f["device"] == device.id].sample(120, random_state=0) for f in frames], ignore_index=True
    )
    _, report = fit(rows, device, prior="none")
    assert report.rows == 600
    for line in report.table.itertuples():
        assert line.median_ape < line.roofline_ape / 3, line
        assert line.coverage > 0.8
