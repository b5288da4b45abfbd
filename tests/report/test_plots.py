"""Pictures are made from whatever a fit can report, and show what it holds."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from hybridperf.cli import app as cli
from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_json, read_table
from hybridperf.io.provenance import origin
from hybridperf.model import PerfModel, load_model
from hybridperf.model.fit.device import FitReport, fit
from hybridperf.model.fit.learning_curve import ALL_OPS, learning_curve
from hybridperf.report import fit_plots, plots

V100 = load_device("v100")


def made_up_rows(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Products at half of the peak plus 10 us, sums at half of the bandwidth plus 5 us; 3 % of
    noise.
    """
    rng = np.random.default_rng(seed)
    sizes = np.round(2 ** rng.uniform(5, 12, (2 * n, 3)))
    gemm = pd.DataFrame(sizes[:n], columns=["m", "n", "k"]).assign(op="gemm", dtype="fp32")
    gemm["time_s"] = 1e-5 + 2.0 * sizes[:n].prod(axis=1) / (0.5 * 15.7e12)
    add = pd.DataFrame(sizes[n:, :2], columns=["rows", "cols"]).assign(op="add", dtype="fp32")
    add["time_s"] = 5e-6 + 12.0 * sizes[n:, :2].prod(axis=1) / (0.5 * 900e9)
    rows = pd.concat([gemm, add], ignore_index=True)
    return rows.assign(
        time_s=rows["time_s"] * np.exp(0.03 * rng.standard_normal(len(rows))), noise=0.03
    )


@pytest.fixture(scope="module")
def fitted() -> tuple[PerfModel, FitReport]:
    return fit(made_up_rows(), V100, prior="none")


@pytest.fixture(scope="module")
def curve() -> pd.DataFrame:
    return learning_curve(made_up_rows(), V100, shares=(1 / 8, 1))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """The figures that are saved, in order."""
    figures = []
    for module in (plots, fit_plots):
        monkeypatch.setattr(module, "save_figure", lambda figure, *_, **__: figures.append(figure))
    return figures


def is_picture(path: Path) -> bool:
    pixels = imread(path)
    return min(pixels.shape[:2]) > 200 and len(np.unique(pixels[..., :3])) > 10


def test_a_fit_drawn(fitted, tmp_path: Path, drawn: list) -> None:
    """A panel per op kind; what is too far off stands at its edge."""
    _, report = fitted
    wild = report.held_out.copy()
    at = wild.index[wild["op"] == "gemm"][0]
    wild.loc[at, "predicted_s"] = 1e4 * wild.loc[at, "measured_s"]
    fit_plots.fit_plot(dataclasses.replace(report, held_out=wild), tmp_path / "fit.png")
    panels = {axes.get_title().split(":")[0]: axes for axes in drawn[0].axes}
    assert set(panels) == {"elementwise", "gemm"}
    for kind, axes in panels.items():
        _, roofline, ours = axes.collections  # the first is the band of noise
        rows = wild[wild["op"] == kind]
        for points, column in ((roofline, "roofline_s"), (ours, "predicted_s")):
            x, ratio = np.asarray(points.get_offsets()).T
            expected = (rows[column] / rows["measured_s"]).clip(1 / 8, 8)
            np.testing.assert_allclose(x, rows["measured_s"])
            np.testing.assert_allclose(ratio, expected)
            assert axes.get_ylim()[0] < ratio.min() < ratio.max() < axes.get_ylim()[1]
    names = [text.get_text() for text in drawn[0].legends[0].texts]
    assert names == [
        "noise of the measurements", "90 % interval", "datasheet roofline",
        "calibrated, without this row",
    ]  # fmt: skip


def test_shares_of_the_error_are_those_of_the_table(fitted, tmp_path: Path, drawn: list) -> None:
    _, report = fitted
    fit_plots.error_shares_plot(report, tmp_path / "errors.png")
    left, right = drawn[0].axes
    total = report.table["rows"] * report.table["mean_ape"]
    shares = dict(zip(report.table["op"], 100 * total / total.sum(), strict=True))
    drawn_shares = [bar.get_width() for bar in right.patches]
    assert drawn_shares == sorted(drawn_shares)  # the largest above
    names = [label.get_text() for label in left.get_yticklabels()]
    assert dict(zip(names, drawn_shares, strict=True)) == pytest.approx(shares)


def test_fit_leaves_model_report_and_picture_together(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of three rows, too: a picture needs no running median worth its name."""
    rows, out = tmp_path / "rows.csv", tmp_path / "model"
    made_up_rows().iloc[:3].to_csv(rows, index=False)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["fit", str(rows), "--device", "v100", "--folder", str(out)])
    assert {path.name for path in out.iterdir()} == {
        "model.json",
        "residual.npz",
        "report.json",
        "held_out.csv",
        "fit.png",
    }
    assert is_picture(out / "fit.png")
    provenance = load_model(out).provenance
    assert set(provenance["versions"]) == {"hybridperf", "python", "jax", "flax", "numpy"}
    assert provenance["rows"] == 3
    assert provenance["rows_from"] == ["rows.csv"]
    assert provenance["date"]
    with pytest.raises(SystemExit, match="0"):
        cli.main(["fit", "--device", "v100", "--folder", str(out)])
    assert not (out / "fit.png").exists()  # it showed another model
    assert read_json(out / "report.json", "fit-report", 1)["rows"] == 0


def test_a_report_survives_in_files(fitted, tmp_path: Path) -> None:
    _, report = fitted
    report.save(tmp_path)
    stored = read_json(tmp_path / "report.json", "fit-report", 1)
    assert {name: stored[name] for name in ("rows", "dropped", "ops", "kept")} == report.summary()
    held_out = read_table(tmp_path / "held_out.csv")
    pd.testing.assert_frame_equal(held_out, report.held_out)


def test_a_learning_curve_falls(curve: pd.DataFrame) -> None:
    """A closed form of few knobs and 3 % of noise: few rows teach little, all of them nearly
    everything.
    """
    assert list(curve.columns) == ["rows", "op", "median_ape", "knobs_ape", "roofline_ape", "noise"]
    overall = curve[curve["op"] == ALL_OPS]
    assert overall["rows"].tolist() == [12, 96]  # of the 96 that are not held out
    for kind in ("gemm", "elementwise"):
        assert curve.loc[curve["op"] == kind, "rows"].tolist() == [6, 48]
    first, last = overall["median_ape"]
    assert last < 0.05
    assert last < first
    assert (curve["noise"] == 0.03).all()
    assert overall["roofline_ape"].nunique() == 1  # the same unseen rows, whatever was fitted on
    assert overall["roofline_ape"].iloc[0] > 0.3


def test_a_learning_curve_needs_rows_to_hold_out() -> None:
    with pytest.raises(InputError, match="at least 5 rows"):
        learning_curve(made_up_rows().iloc[:3], V100)
    with pytest.raises(InputError, match="shares of the rows above 0"):
        learning_curve(made_up_rows(), V100, shares=(0.5, 2.0))


def test_a_learning_curve_drawn(curve: pd.DataFrame, tmp_path: Path, drawn: list) -> None:
    few = pd.DataFrame(
        {
            "rows": [1, 4],
            "op": "call",
            "median_ape": 0.1,
            "knobs_ape": 0.2,
            "roofline_ape": 0.9,
            "noise": 0.01,
        }
    )
    plots.learning_curve_plot(pd.concat([curve, few]), tmp_path / "curve.png")
    titles = [axes.get_title() for axes in drawn[0].axes if axes.get_visible()]
    assert titles[0] == "all ops"
    assert sorted(titles[1:]) == ["elementwise", "gemm"]  # of four rows nothing can be said
    names = [text.get_text() for text in drawn[0].legends[0].texts]
    assert names == [
        "datasheet roofline, no rows", "knobs alone", "with learned corrections",
        "noise of the held-out rows",
    ]  # fmt: skip
    plots.learning_curve_plot(curve.assign(noise=np.nan), tmp_path / "curve.png")
    assert len(drawn[1].legends[0].texts) == 3


def test_steps_drawn_with_intervals_and_a_baseline(tmp_path: Path, drawn: list) -> None:
    plots.measured_plot(
        ["a", "b"], [1.0, 2.0], [1.1, 1.7], tmp_path / "steps.png", [(0.9, 1.3), (None, None)],
        ("constant", [3.0, 2.0]),
    )  # fmt: skip
    axes = drawn[0].axes[0]
    whiskers = [one for one in axes.containers if one.has_yerr]
    assert [one[2][0].get_segments()[0].tolist() for one in whiskers] == [[[1.0, 0.9], [1.0, 1.3]]]
    names = [text.get_text() for text in drawn[0].legends[0].texts]
    assert names == ["within 25 %", "constant (mean 100%)", "a (+10%)", "b (-15%)"]
    crosses = next(one for one in axes.collections if one.get_label() == names[1])
    np.testing.assert_allclose(crosses.get_offsets(), [[1.0, 3.0], [2.0, 2.0]])


def test_every_picture_is_a_file(fitted, curve: pd.DataFrame, tmp_path: Path) -> None:
    model, report = fitted
    fit_plots.fit_plot(report, tmp_path / "fit.png")
    fit_plots.error_shares_plot(report, tmp_path / "errors.png")
    plots.learning_curve_plot(curve, tmp_path / "curve.png")
    plots.roofline_plot(model, made_up_rows(), tmp_path / "roofline.png")
    plots.measured_plot(
        ["a", "b"], [1.0, 2.0], [1.1, 1.7], tmp_path / "steps.png", [(0.9, 1.3), (None, None)]
    )
    for name in ("fit", "errors", "curve", "roofline", "steps"):
        assert is_picture(tmp_path / f"{name}.png"), name


def test_rows_are_known_by_their_hash() -> None:
    rows = made_up_rows()
    same, slower, renamed = (
        origin(f)["rows_sha256"]
        for f in (
            rows.copy(),
            rows.assign(time_s=2 * rows["time_s"]),
            rows.rename(columns={"m": "n", "n": "m"}),
        )
    )
    assert same == origin(rows)["rows_sha256"]
    assert len({same, slower, renamed}) == 3


def test_rows_of_this_cpu_name_its_cores() -> None:
    rows = made_up_rows().iloc[:5]
    assert fit(rows.iloc[:1].assign(cores=3, device="here"), "here")[0].device.multiprocessors == 3
    with pytest.raises(InputError, match="one number of cores, got 1, 2"):
        fit(rows.assign(cores=[1, 1, 2, 2, 2]), "here")
    with pytest.raises(InputError, match="5 other devices"):
        fit(rows.assign(device="here"), "v100")
