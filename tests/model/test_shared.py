"""Calibrations given back: what the file holds, and that a taker's fit is the giver's."""

import json

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import this_cpu
from hybridperf.io import InputError, write_json
from hybridperf.model import load_model
from hybridperf.model.fit.device import fit
from hybridperf.model.fit.shared import load_shared, share
from hybridperf.model.fit.this_machine import read

SECRET = "somebodys-laptop"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A folder as `calibrate` leaves it, of rows that a simple law makes."""
    folder = tmp_path_factory.mktemp(SECRET)
    device, draw = this_cpu(1), np.random.default_rng(7)
    m = draw.integers(64, 2048, 40)
    gemms = pd.DataFrame({"op": "gemm", "dtype": "fp32", "m": m, "n": m, "k": m})
    least_s = 2.0 * m.astype(float) ** 3 / device.peak_flops_per_s["fp32"]
    gemms["time_s"] = 1.6 * least_s * np.exp(draw.normal(0, 0.05, 40)) + 2e-6
    gemms.assign(key=SECRET, load=0.5).to_csv(folder / "ops.csv", index=False)
    calls = {"op": "call", "dtype": "fp32", "buffers": [1, 4, 8], "time_s": [9e-6, 1e-5, 1.1e-5]}
    calls = pd.DataFrame(calls)
    calls.to_csv(folder / "host.csv", index=False)
    facts = {"host": SECRET, "cpu_model": device.name, "cores": 1, "backend": "cpu", "drift": []}
    write_json(
        folder / "ops.machine.json", "machine", 1, facts | {"jax": "0.9.2", "xla_flags": SECRET}
    )
    read(folder).fit()
    return folder


def test_a_takers_fit_is_the_givers(calibrated, tmp_path, run) -> None:
    file = tmp_path / "epyc.json"
    status, text, _ = run("share", calibrated, "--name", "epyc_1", "--out", file)
    assert status == 0
    assert "| gemm | 40 |" in text
    assert "calibration/hardware/epyc_1" in text
    assert SECRET not in file.read_text() + text
    status, said, _ = run("fit", file, "--folder", tmp_path / "taken")
    assert status == 0
    assert "nearer than the datasheet roofline" in said
    assert "not read" not in said
    taken, given = load_model(tmp_path / "taken"), load_model(calibrated)
    assert taken.device.id == "epyc_1"
    asked = pd.DataFrame({"op": "gemm", "dtype": "fp32", "m": [100, 900], "n": 512, "k": 512})
    one, other = (model.predict_ops(asked)["predicted_s"] for model in (taken, given))
    assert one.to_numpy() == pytest.approx(other.to_numpy(), rel=1e-9)


def test_rows_and_errors_are_kept(calibrated, tmp_path) -> None:
    made = share(calibrated, "epyc_1")
    made.save(tmp_path / "a.json")
    found = load_shared(tmp_path / "a.json")
    pd.testing.assert_frame_equal(found.rows, made.rows, check_dtype=False)
    assert found.device == made.device
    _, report = fit(found.rows, found.device, drift=found.drift)
    beside = found.beside(report.table)
    assert beside["giver_error"].to_numpy() == pytest.approx(beside["error"].to_numpy())


def test_what_is_wrong_is_one_sentence(calibrated, tmp_path, refused) -> None:
    out = ("--out", tmp_path / "a.json")
    assert "give it by --name" in refused("share", calibrated, *out)
    assert "small letters" in refused("share", calibrated, "--name", "My CPU", *out)
    assert "ends in .json" in refused("share", calibrated, "--name", "x1", "--out", "a.csv")
    assert "nowhere" in refused("share", tmp_path / "nowhere", "--name", "x1", *out)
    share(calibrated, "epyc_1").save(tmp_path / "b.json")
    taken = ("--folder", tmp_path / "t")
    assert "which has its own" in refused("fit", tmp_path / "b.json", "--device", "t4", *taken)
    content = json.loads((tmp_path / "b.json").read_text())
    content["rows"]["time_s"][0] *= 2
    (tmp_path / "b.json").write_text(json.dumps(content))
    assert "was changed" in refused("fit", tmp_path / "b.json", *taken)
    write_json(tmp_path / "c.json", "shared-calibration", 1, {"device": {}})
    with pytest.raises(InputError, match="hybridperf share"):
        load_shared(tmp_path / "c.json")
