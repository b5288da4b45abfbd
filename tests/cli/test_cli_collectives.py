"""Collectives on the command line: logs to tables, fits with and without rows, predictions, and
every wrong input in one sentence.
"""

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.collectives import form
from hybridperf.collectives.rows import checked, collective_rows
from hybridperf.hardware import load_system

SYSTEM = "dgx_a100"
LOG = """# nThread 1 nGpus 4 minBytes 1024 maxBytes 1048576 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  41 on  node1 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  41 on  node1 device  1 [0x0f] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid  41 on  node1 device  2 [0x47] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid  41 on  node1 device  3 [0x4e] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    15.00    0.07    0.10      0    15.00    0.07    0.10      0
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    40.00   26.21   39.32      0
"""


@pytest.fixture
def measured(tmp_path):
    """A table of made-up measurements: the closed form with known knobs, and noise."""
    sizes = 2.0 ** np.arange(8, 28)
    frame = pd.concat(
        pd.DataFrame(
            {
                "collective": name,
                "bytes": sizes,
                "n_gpus": n,
                "n_nodes": 1,
                "lib": "nccl",
                "dtype": "half",
            }
        )
        for name in ("all_reduce", "all_gather")
        for n in (2, 4, 8)
    )
    good, _, _ = checked(frame)
    work = collective_rows(good, load_system(SYSTEM)).work()
    time_s = form.parts(form.ALPHA_BETA.start, work).total
    frame["time_s"] = time_s * np.exp(0.02 * np.random.default_rng(0).normal(size=len(frame)))
    frame.to_csv(tmp_path / "measured.csv", index=False)
    return tmp_path / "measured.csv"


def test_a_log_becomes_a_table(run, tmp_path):
    (tmp_path / "all_reduce.log").write_text(LOG)
    status, out, _ = run("collectives", tmp_path / "all_reduce.log", "--out", tmp_path / "rows.csv")
    assert (status, out.startswith("4 rows read")) == (0, True)
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert set(rows["collective"]) == {"all_reduce"}
    assert rows["n_gpus"].unique().tolist() == [4]
    np.testing.assert_allclose(sorted(rows["time_s"].unique()), [15e-6, 40e-6])


def test_rows_and_logs_are_fitted_and_predicted(run, measured, tmp_path):
    (tmp_path / "all_reduce.log").write_text(LOG)
    model = tmp_path / "model"
    status, out, err = run(
        "fit",
        measured,
        tmp_path / "all_reduce.log",
        "--system",
        SYSTEM,
        "--prior",
        "none",
        "--folder",
        model,
    )
    assert status == 0, err
    assert "all_gather" in out
    assert (model / "collectives.png").stat().st_size > 10_000
    status, _, _ = run("collectives", measured, "--model", model, "--out", tmp_path / "out.csv")
    predicted = pd.read_csv(tmp_path / "out.csv")
    assert status == 0
    assert np.abs(predicted["predicted_s"] / predicted["time_s"] - 1).median() < 0.05
    assert predicted["in_range"].all()
    assert (predicted["low_s"] < predicted["predicted_s"]).all()
    loaded = hp.load_model(
        model
    )  # ops by the datasheet of the system's device, collectives as fitted
    pd.testing.assert_series_equal(
        loaded.collectives.predict(pd.read_csv(measured))["predicted_s"],
        predicted["predicted_s"],
        rtol=1e-9,
    )
    assert "fitted to 124 rows" in run("show", model)[1]


def test_no_rows_and_no_prior_are_the_datasheet_and_say_so(run, measured, tmp_path):
    assert (
        "the datasheet alone"
        in run("fit", "--system", SYSTEM, "--prior", "none", "--folder", tmp_path / "m")[1]
    )
    status, _, _ = run(
        "collectives", measured, "--model", tmp_path / "m", "--out", tmp_path / "out.csv"
    )
    out = pd.read_csv(tmp_path / "out.csv")
    assert status == 0
    assert (out["predicted_s"] == out["roofline_s"]).all()
    assert out["note"].str.contains("datasheet alone").all()
    assert out["low_s"].isna().all()


def test_a_system_without_a_calibration_is_predicted_by_the_prior(run, measured, tmp_path):
    assert run("collectives", measured, "--model", "dgx2", "--out", tmp_path / "out.csv")[0] == 0
    out = pd.read_csv(tmp_path / "out.csv")
    assert out["note"].str.contains("prior alone: no collective of dgx2 was measured").all()
    assert (out["low_s"] < out["predicted_s"]).all()
    assert not out["in_range"].any()


def test_a_system_whose_calibration_is_shipped_goes_by_all_its_names(run, measured, tmp_path):
    for name in ("aic_h100_sxm", "dgx_h100"):
        status, _, _ = run(
            "collectives", measured, "--model", name, "--out", tmp_path / f"{name}.csv"
        )
        assert status == 0
    assert (tmp_path / "dgx_h100.csv").read_bytes() == (tmp_path / "aic_h100_sxm.csv").read_bytes()
    assert pd.read_csv(tmp_path / "dgx_h100.csv")["in_range"].any()
    assert "fitted to" in run("show", "dgx_h100")[1]


def test_rows_that_cannot_be_predicted_keep_their_place(run, tmp_path):
    pd.DataFrame({
        "collective": ["all_reduce", "all_redcue", "all_gather", "alltoall"],
        "bytes": [1024, 1024, 0, 4096], "n_gpus": [8, 8, 8, 9], "n_nodes": [1, 1, 1, 2],
        "tag": list("abcd"),
    }).to_csv(tmp_path / "rows.csv", index=False)  # fmt: skip
    status, _, err = run(
        "collectives", tmp_path / "rows.csv", "--model", SYSTEM, "--out", tmp_path / "out.csv"
    )
    out = pd.read_csv(tmp_path / "out.csv")
    assert status == 3
    assert "3 rows not predicted" in err
    assert out["tag"].tolist() == list("abcd")
    assert out["predicted_s"].notna().tolist() == [True, False, False, False]
    assert "did you mean 'all_reduce'" in out["note"][1]
    assert "bytes above zero" in out["note"][2]
    assert "9 ranks do not divide into 2 nodes" in out["note"][3]


def test_wrong_input_is_refused_in_one_sentence(refused, measured, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "junk.log").write_text("hello")
    assert "unknown system 'dgx_a10'" in refused(
        "fit", measured, "--system", "dgx_a10", "--folder", out
    )
    assert "got both" in refused(
        "fit", measured, "--system", SYSTEM, "--device", "a100", "--folder", out
    )
    assert "got neither" in refused("fit", measured, "--folder", out)
    assert "log of nccl-tests" in refused(
        "fit", tmp_path / "junk.log", "--system", SYSTEM, "--folder", out
    )
    assert "cannot read" in refused(
        "collectives", tmp_path / "none.log", "--out", tmp_path / "o.csv"
    )
    assert "unknown model of collectives" in refused(
        "collectives", measured, "--model", "nosuch", "--out", tmp_path / "o.csv"
    )
    assert "2 or more" in refused("calibrate", "--collectives", "--processes", "1", "--folder", out)
    assert "unknown part" in refused(
        "calibrations", "--data", tmp_path, "--only", "links", "--folder", out
    )
    pd.read_csv(measured).assign(system="another").to_csv(tmp_path / "another.csv", index=False)
    assert "no row of aic_a100_sxm" in refused(
        "fit", tmp_path / "another.csv", "--system", SYSTEM, "--prior", "none", "--folder", out
    )
    pd.read_csv(measured).drop(columns="time_s").to_csv(tmp_path / "untimed.csv", index=False)
    assert "needs a column 'time_s'" in refused(
        "fit", tmp_path / "untimed.csv", "--system", SYSTEM, "--prior", "none", "--folder", out
    )
    assert not out.exists()
