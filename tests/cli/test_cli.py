"""The command line, as people type it: right once, and wrong in every way the README's reader could
be wrong.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from hybridperf.cli import app as cli
from hybridperf.hardware import device_names, load_device, system_names
from hybridperf.io import write_json
from hybridperf.io.documents import with_checksum
from hybridperf.learning.prior.alone import read_version_5
from hybridperf.model import MODEL_SCHEMA_VERSION, GroupReport, PerfModel, neutral_knobs
from hybridperf.model.fit.device import FitReport
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import Work
from hybridperf.report import fits
from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION

GEMMS = pd.DataFrame({
    "op": "gemm", "dtype": "fp32", "m": [64, 512, 1024, 33], "n": [64, 512, 256, 65],
    "k": [128, 512, 2048, 129], "tag": ["a", "b", "c", "d"],
})  # fmt: skip


@pytest.fixture
def rows(tmp_path):
    """Write a table and give its path."""

    def rows(frame, name="rows.csv"):
        path = tmp_path / name
        frame.to_csv(path, index=False)
        return path

    return rows


@pytest.fixture
def measured(rows):
    """Sixty measured matrix products of a made-up machine: half of a V100's peak, plus 10 us."""
    rng = np.random.default_rng(0)
    sizes = (2 ** rng.uniform(5, 12, (60, 3))).astype(int)
    frame = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(op="gemm", dtype="fp32")
    frame["time_s"] = 1e-5 + 2.0 * sizes.prod(axis=1) / (0.5 * 15.7e12)
    return frame


def test_lists_every_device_and_system(run):
    status, out, _ = run("devices")
    assert status == 0
    assert all(name in out for name in device_names())
    status, out, _ = run("systems")
    assert status == 0
    assert all(name in out for name in system_names())


@pytest.mark.parametrize(
    ("name", "expected"),
    [("H100", "3.35 TB/s"), ("dgx_a100", "NVSwitch"), ("here", "cores"), ("ops", "scatter_add")],
)
def test_show(run, name, expected):
    status, out, _ = run("show", name)
    assert status == 0
    assert expected in out


@pytest.fixture(scope="module")
def two_models(tmp_path_factory):
    """Folders of two models of one device: the second's products are a quarter slower at their
    peak, it knows softmax too, later.
    """
    names = [field.name for field in dataclasses.fields(Work)]
    report = GroupReport(
        60, 0.1, dict.fromkeys(names, 0.0), dict.fromkeys(names, 50.0), errors=(-0.1, 0.1)
    )
    box = report.box
    weights = {
        "first/kernel": (32, 16), "first/bias": (16,), "second/kernel": (16, 16),
        "second/bias": (16,), "out/kernel": (16, 1), "out/bias": (1,),
    }  # fmt: skip
    silent = {name: np.zeros((2, *shape), np.float32) for name, shape in weights.items()}
    said = {"names": ["flops"], "centre": [15.0], "scale": [5.0]}
    learned = read_version_5(box, {**said, "share": 0.75, "process_share": 0.0}, silent)
    wide = dataclasses.replace(report, half_width=0.25, residual=learned)
    first = {
        "date": "2026-11-01",
        "rows": 60,
        "machine": {"cpu_model": "X"},
        "versions": {"jax": "0.9.2"},
        "made_by": "a test",
    }
    second = {"date": "2026-11-02", "rows": 90, "machine": {"cpu_model": "Y"}, "made_by": "a test"}
    folder, gemm = tmp_path_factory.mktemp("models"), GROUPS.index("gemm")
    for name, peak, groups, provenance in (
        ("first", 0.8, {"gemm": report, "copy": report}, first),
        ("second", 0.6, {"gemm": wide, "softmax": report}, second),
    ):
        knobs = dataclasses.replace(
            neutral_knobs(), level_speedup=np.array([1.0, 2.0 * peak, 1.0, 1.0])
        )
        knobs.compute_efficiency[gemm], knobs.floor_s[gemm], knobs.strided_factor[gemm] = (
            peak,
            1e-5,
            1.5,
        )
        knobs.transcendental_flops[gemm], knobs.smoothing[gemm] = 12.0, 0.3
        PerfModel(load_device("v100"), knobs, groups, provenance).save(folder / name)
    return folder / "first", folder / "second"


def test_show_a_model(run, two_models):
    """Every knob, and how much of the corrections is taken."""
    first, second = (run("show", folder)[1].splitlines() for folder in two_models)
    heads = next(line for line in first if line.startswith("group "))
    for head in (
        "floor",
        "of peak",
        "of bandwidth",
        "per step",
        "smoothing",
        "transcendental",
        "strided",
        "90 % within",
        "learned",
    ):
        assert head in heads
    cells = next(line for line in first if line.startswith("gemm ")).split()
    assert cells == [
        "gemm",
        "60",
        "10",
        "µs",
        "80.0",
        "%",
        "100.0",
        "%",
        "0",
        "s",
        "0.30",
        "12",
        "flops",
        "x1.50",
        "x1.10",
        "-",
    ]
    assert next(line for line in second if line.startswith("gemm ")).split()[-2:] == ["75", "%"]
    assert "versions: jax 0.9.2" in first


def test_show_what_two_models_differ_in(run, two_models):
    status, out, _ = run("show", *two_models)
    assert status == 0
    lines = {tuple(line.split()) for line in out.splitlines()}
    assert {
        ("date", "2026-11-01", "2026-11-02"), ("rows", "60", "90"),
        ("machine", "cpu_model", "X", "Y"), ("versions", "jax", "0.9.2", "-"),
        ("gemm", "of", "peak", "80.0", "%", "60.0", "%", "x0.75"),
        ("90", "%", "within", "x1.10", "x1.25", "x2.5"), ("learned", "-", "75", "%"),
        ("l2", "bandwidth", "1.44", "TB/s", "1.08", "TB/s", "x0.75"), ("only", "in", "A:", "copy"),
        ("only", "in", "B:", "softmax"),
    } <= lines  # fmt: skip
    assert "fingerprint" in out
    assert "made_by" not in out  # the same in both
    assert "floor" not in out


def test_show_a_model_beside_a_copy_or_its_datasheet(run, two_models, tmp_path):
    first, _ = two_models
    shutil.copytree(first, tmp_path / "copy")
    out = run("show", first, tmp_path / "copy")[1]
    assert "same fingerprint" in out
    assert "nothing differs" in out
    out = run("show", "a100_sxm4_40g", first)[1]
    assert any(
        line.split() == ["gemm", "floor", "0", "s", "10", "µs", "-"] for line in out.splitlines()
    )
    assert "only in B: gemm, copy" in out
    out = run("show", "v100", "a100_sxm4_80g")[1]
    assert any(line.split()[:2] == ["memory", "bandwidth"] for line in out.splitlines())
    assert "nothing differs" not in out


def test_what_cannot_be_compared(refused, two_models, tmp_path):
    first, _ = two_models
    assert "dgx_a100, which has no knobs" in refused("show", first, "dgx_a100")
    assert "got ops, which has no knobs" in refused("show", "ops", first)
    assert "did you mean 'v100_sxm2'" in refused("show", "v100_sxm3", first)
    shutil.copytree(first, tmp_path / "demo" / "model")
    assert f"did you mean {tmp_path / 'demo' / 'model'}?" in refused(
        "show", first, tmp_path / "demo"
    )
    assert "holds no model.json" in refused("show", first, tmp_path)
    assert "nowhere.toml" in refused("show", first, "nowhere.toml")


def test_a_model_folder_comes_before_a_device_of_its_name(run, two_models, tmp_path, monkeypatch):
    """`fit --out v100`, then `show v100`."""
    shutil.copytree(two_models[0], tmp_path / "v100")
    monkeypatch.chdir(tmp_path)
    assert "90 % within" in run("show", "v100")[1]


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        (180, "90.0 % of 200 rows"),
        (160, "too few"),
        (200, "too many"),
        (None, "too few rows of any kind"),
    ],
)
def test_a_fit_says_whether_its_intervals_hold(inside, says):
    """99 % of fair draws of 200 rows hold 168 to 190."""
    held_out = pd.DataFrame({"measured_s": np.ones(200), "low_s": 0.9, "high_s": 1.1})
    held_out.loc[: 199 - (inside or 0), "low_s"] = 1.05 if inside else np.nan
    line = {
        "op": "gemm",
        "rows": 200,
        "median_ape": 0.1,
        "mean_ape": 0.2,
        "knobs_ape": 0.3,
        "noise": np.nan,
        "coverage": 0.9,
        "share": 0.75,
    }
    lines = [
        {**line, "roofline_ape": 0.5, "share": 0.75},
        {**line, "op": "copy", "rows": 15, "roofline_ape": 0.05, "share": 0.0},
    ]
    table = pd.DataFrame(lines)
    said = fits.fit_report(FitReport(table, held_out, 215, {"thermally throttled": 2}))
    assert [cell.strip() for cell in said.splitlines()[2].split("  ") if cell] == [
        "gemm", "200", "10.0 %", "20.0 %", "30.0 %", "50.0 %", "-", "90.0 %", "75 %",
    ]  # fmt: skip
    assert said.splitlines()[3].split()[-1] == "-"
    assert "not fitted on: 2 rows, thermally throttled" in said
    assert says in said.splitlines()[-1]
    assert said.endswith("worse than the plain roofline: copy")
    assert fits.binomial_band(200, 0.9) == (168, 190)
    assert fits.binomial_band(1, 0.5) == (0, 1)


def test_a_datasheet_model_is_the_roofline_and_says_so(run, rows, tmp_path):
    assert run("fit", "--device", "v100", "--prior", "none", "--folder", tmp_path / "model")[0] == 0
    status, _, _ = run(
        "ops", rows(GEMMS), "--model", tmp_path / "model", "--out", tmp_path / "out.csv"
    )
    out = pd.read_csv(tmp_path / "out.csv")
    assert status == 0
    assert list(out.columns) == [
        *GEMMS.columns,
        "predicted_s",
        "low_s",
        "high_s",
        "roofline_s",
        "in_range",
        "note",
    ]
    assert list(out["tag"]) == list(GEMMS["tag"])
    assert (out["predicted_s"] == out["roofline_s"]).all()
    assert out["note"].str.contains("datasheet roofline").all()
    assert not out["in_range"].any()
    by_hand = 2 * 512**3 / 15.7e12
    assert out["roofline_s"][1] == pytest.approx(by_hand, rel=1e-5)


def test_fit_then_show_then_predict(run, measured, rows, tmp_path):
    status, out, _ = run(
        "fit",
        rows(measured, "measured.csv"),
        "--device",
        "v100",
        "--prior",
        "none",
        "--folder",
        tmp_path / "model",
    )
    assert status == 0
    assert "gemm" in out
    status, out, _ = run("show", tmp_path / "model")
    assert status == 0
    assert "rows: 60" in out
    table = GEMMS.assign(m=[700, 1500, 900, 300])
    assert (
        run("ops", rows(table), "--model", tmp_path / "model", "--out", tmp_path / "out.parquet")[0]
        == 0
    )
    predicted = pd.read_parquet(tmp_path / "out.parquet")
    truth = 1e-5 + 2.0 * table[["m", "n", "k"]].prod(axis=1) / (0.5 * 15.7e12)
    assert np.abs(predicted["predicted_s"] / truth - 1).max() < 0.15
    assert (predicted["low_s"] < predicted["predicted_s"]).all()
    assert (predicted["predicted_s"] < predicted["high_s"]).all()
    assert predicted["in_range"].any()


def test_some_rows_unpredicted_is_status_3_and_loses_no_row(run, rows, tmp_path):
    mixed = pd.concat(
        [GEMMS, GEMMS.head(3).assign(op=["gemmm", "gemm", "gemm"], m=[8, 0, -5])], ignore_index=True
    )
    mixed.loc[6, "dtype"] = "fp33"
    status, _, err = run("ops", rows(mixed), "--model", "v100", "--out", tmp_path / "out.csv")
    out = pd.read_csv(tmp_path / "out.csv")
    assert status == 3
    assert len(out) == len(mixed)
    assert out["predicted_s"].notna().tolist() == [True] * 4 + [False] * 3
    assert "did you mean 'gemm'" in out["note"][4]
    assert "m must be a number above zero" in out["note"][5]
    assert "fp33" in out["note"][6]
    assert "3 rows" in err


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.drop(columns="time_s"), "time_s"),
        (lambda d: d.drop(columns="k").assign(kk=1), "'k' (did you mean 'kk'?)"),
        (lambda d: d.rename(columns={"op": "what"}), "'op'"),
        (lambda d: d.assign(time_s=-1.0), "above zero"),
        (lambda d: d.assign(time_s=[float("nan")] + [1.0] * 59), "row 1"),
        (lambda d: d.assign(time_s="fast"), "above zero"),
        (lambda d: d.assign(op="gem"), "unknown op 'gem'"),
        (lambda d: d.assign(dtype="fp99"), "unknown dtype"),
        (lambda d: d.assign(dtype="fp4"), "no known fp4 peak"),
        (lambda d: d.assign(m=0), "above zero"),
        (lambda d: d.assign(m=10**30), "at most"),
        (lambda d: d.assign(device="t4"), "no rows left"),
        (lambda d: d.assign(throttled=1), "no rows left"),
        (lambda d: d.head(0), "no rows"),
    ],
)
def test_fit_refuses(refused, rows, measured, tmp_path, change, says):
    assert says in refused(
        "fit", rows(change(measured)), "--device", "v100", "--folder", tmp_path / "model"
    )
    assert not (tmp_path / "model").exists()


def test_fit_refuses_files_and_names(refused, rows, measured, tmp_path):
    path = rows(measured)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(b"\x1f\x8bnonsense")
    out = tmp_path / "model"
    assert "found nothing" in refused(
        "fit", tmp_path / "none.csv", "--device", "v100", "--folder", out
    )
    assert "empty" in refused("fit", empty, "--device", "v100", "--folder", out)
    assert "cannot read" in refused("fit", damaged, "--device", "v100", "--folder", out)
    assert "did you mean" in refused("fit", path, "--device", "v1000", "--folder", out)
    assert "--device" in refused("fit", path, "--folder", out)
    assert "rows of ops with --curve" in refused("fit", "--device", "v100", "--curve")
    assert "unknown prior" in refused(
        "fit", path, "--device", "v100", "--prior", "everything", "--folder", out
    )
    (tmp_path / "file").write_text("")
    assert "cannot write" in refused(
        "fit", path, "--device", "v100", "--folder", tmp_path / "file" / "model"
    )


def test_a_prior_that_cannot_serve_is_refused(refused, rows, measured, tmp_path):
    path, out = rows(measured), tmp_path / "model"
    assert "did you mean 'none'" in refused(
        "fit", path, "--device", "v100", "--prior", "nome", "--folder", out
    )
    assert "unknown prior" in refused(
        "fit", path, "--device", "v100", "--prior", tmp_path, "--folder", out
    )  # a folder without one
    assert "priors know GPUs" in refused(
        "fit", path, "--device", "here", "--prior", "prior", "--folder", out
    )
    assert "got one over CPUs" in refused(
        "fit", path, "--device", "v100", "--prior", "cpu_jax", "--folder", out
    )
    (tmp_path / "prior.json").write_text("{")
    assert "is damaged" in refused(
        "fit", path, "--device", "v100", "--prior", tmp_path, "--folder", out
    )
    write_json(
        tmp_path / "prior.json",
        "prior",
        3,
        {"families": {}, "weights_sha256": "", "provenance": {}},
    )
    assert "prior.npz is missing beside it" in refused(
        "fit", path, "--device", "v100", "--prior", tmp_path, "--folder", out
    )
    assert not out.exists()


def test_a_data_folder_that_is_none_is_refused(refused, tmp_path):
    out = tmp_path / "out"
    given = ("calibrations", "--folder", out, "--data")
    assert str(tmp_path / "none") in refused(*given, tmp_path / "none")
    assert "unknown" in refused(*given, tmp_path, "--families", "softmux")
    (tmp_path / "compute").mkdir()
    assert "unknown device 'k80'" in refused(
        "calibrations", "--data", tmp_path, "--devices", "k80", "--folder", out
    )
    assert "expected the tables" in refused("calibrations", "--data", tmp_path, "--folder", out)
    assert not (out / "prior").exists()


def test_models_that_cannot_be_read(refused, run, rows, tmp_path):
    table, out = rows(GEMMS), tmp_path / "out.csv"
    assert run("fit", "--device", "v100", "--prior", "none", "--folder", tmp_path / "model")[0] == 0
    path = tmp_path / "model" / "model.json"
    whole = path.read_text()

    def with_model(text):
        path.write_text(text)
        return refused("ops", table, "--model", tmp_path / "model", "--out", out)

    assert "damaged" in with_model(whole[: len(whole) // 2])
    assert "damaged" in with_model(
        json.dumps(with_checksum({**json.loads(whole), "groups": {"gemm": {"floor_s": "x"}}}))
    )
    assert "damaged" in with_model(
        json.dumps(with_checksum({k: v for k, v in json.loads(whole).items() if k != "levels"}))
    )
    assert "upgrade" in with_model(
        json.dumps({**json.loads(whole), "schema_version": MODEL_SCHEMA_VERSION + 1})
    )
    assert "expected a hybridperf/model" in with_model(json.dumps({"schema": "something else"}))
    path.unlink()
    assert "no model.json" in refused("ops", table, "--model", tmp_path / "model", "--out", out)
    assert "unknown model" in refused("ops", table, "--model", "nonsense", "--out", out)
    assert not out.exists()


def test_output_that_cannot_be_written_keeps_the_old_one(refused, rows, tmp_path):
    old = tmp_path / "out.txt"
    old.write_text("precious")
    assert "ending in" in refused("ops", rows(GEMMS), "--model", "v100", "--out", old)
    assert old.read_text() == "precious"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["ops"],
        ["ops", "x.csv", "--modell", "y"],
        ["show"],
        ["show", "h1000"],
        ["predict"],
        ["calibrate"],
    ],
)
def test_wrong_words_are_one_sentence(refused, arguments):
    refused(*arguments)


def test_a_second_word_of_an_option_is_told_to_name_it_again(refused):
    words = [
        "plan",
        "--shape",
        "llama3_8b",
        "--system",
        "h100_sxm",
        "--gpus",
        "8",
        "--only",
        "tp=1",
        "pp=2",
    ]
    said = refused(*words)
    assert "an option takes one word" in said


# --- JAX programs ---------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A module on the path with a few programs."""
    (tmp_path / "programs_for_test.py").write_text(
        "import jax, jax.numpy as jnp\ndef good():\n    return (lambda x, w: jnp.tanh(x @ w)),"
        " (jnp.ones((64, 128)), jnp.ones((128, 32)))\ndef lapack():\n    return (lambda x:"
        " jnp.linalg.cholesky(x @ x.T)), (jnp.ones((8, 8)),)\ndef wrong():\n    return 3\ndef"
        " needs(x):\n    return x\ndef careless():\n    raise ValueError('no data\\nat all')\ndef"
        " mismatched():\n    return (lambda x, w: x @ w), (jnp.ones((2, 3)), jnp.ones((4, 5)))\ndef"
        " no_array():\n    return (lambda x: x), ('text',)\ndef jitted():\n    return"
        " jax.jit(lambda x: x + 1), (jnp.ones(3),), 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(
        sys.modules, "programs_for_test", raising=False
    )  # another test's, in another folder
    return "programs_for_test"


def test_predict_a_jax_program(run, refused, program, tmp_path):
    status, out, _ = run("predict", "--jax", f"{program}:good", "--timeline", tmp_path / "t.json")
    assert status == 0
    assert "datasheet roofline" in out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"X", "M"} == {event["ph"] for event in events}
    assert "lapack" in refused("predict", "--jax", f"{program}:lapack")
    status, out, _ = run("predict", "--jax", f"{program}:good", "--model", "h100", "--json")
    assert status == 0
    assert "gemm" in {row["group"] for row in json.loads(out)["breakdown"]}
    said = refused("predict", "--jax", f"{program}:lapack", "--model", "h100_sxm")
    assert f"{program}.py line" in said
    said = refused("predict", "--jax", f"{program}:good", "--model", "h100", "--measure")
    assert "expected a model of this machine with --measure" in said
    assert "must return" in refused("predict", "--jax", f"{program}:wrong")
    assert "no arguments" in refused("predict", "--jax", f"{program}:needs")
    assert "no function" in refused("predict", "--jax", f"{program}:absent")
    assert "cannot import" in refused("predict", "--jax", "no_such_module:f")
    assert "module:function" in refused("predict", "--jax", "nonsense")
    assert "found none" in refused("predict", "--program", tmp_path / "none.json")


def test_what_the_users_own_code_raises_is_a_sentence(refused, program, tmp_path):
    where = f"(in {tmp_path / (program + '.py')} line"
    said = refused("predict", "--jax", f"{program}:careless")
    assert f"{program}:careless raised ValueError: no data {where} 11)" in said
    said = refused("predict", "--jax", f"{program}:mismatched")
    assert "raised TypeError: dot_general requires" in said
    assert f"{where} 13)" in said
    assert "raised TypeError" in refused("predict", "--jax", f"{program}:no_array")
    assert "already jitted" in refused("predict", "--jax", f"{program}:jitted")
    for name, text, says in [
        ("broken_for_test", "def f(:\n", "raised SyntaxError"),
        (
            "missing_for_test",
            "\nimport no_such_module_at_all\n",
            "raised ModuleNotFoundError: No module named 'no_such_module_at_all'",
        ),
        ("leaving_for_test", "raise SystemExit(5)\n", "raised SystemExit: 5"),
    ]:
        (tmp_path / f"{name}.py").write_text(text)
        said = refused("predict", "--jax", f"{name}:f")
        assert says in said
        assert f"{name}.py line {2 if 'missing' in name else 1})" in said
    with pytest.raises(ValueError, match="no data") as raised:
        cli.main(["predict", "--jax", f"{program}:careless", "--debug"])
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_cut_off_program_file_is_refused(run, refused, tmp_path):
    text = (
        "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8]{0} parameter(0)\n  %y = f32[8]{0}"
        " add(%x, %x)\n  ROOT %z = f32[8]{0} add(%y, %x)\n}\n"
    )
    content = {"name": "add", "backend": "cpu", "temporary_bytes": 0, "result_bytes": 32}
    path = tmp_path / "program.json"

    def written(hlo):
        write_json(path, "program", PROGRAM_SCHEMA_VERSION, {**content, "hlo": hlo})
        return "predict", "--program", path

    assert run(*written(text))[0] == 0
    assert "no ROOT" in refused(*written(text[: text.index("  ROOT")] + "}\n"))
    assert "no closing brace" in refused(*written(text[: text.index("  ROOT")]))
    assert "no closing brace" in refused(*written(text[: text.index("  ROOT")] + text))


def test_a_folder_of_the_demo_names_the_model_in_it(run, refused, rows, tmp_path):
    assert (
        run("fit", "--device", "v100", "--prior", "none", "--folder", tmp_path / "demo" / "model")[
            0
        ]
        == 0
    )
    for arguments in (
        ["show", tmp_path / "demo"],
        ["ops", rows(GEMMS), "--model", tmp_path / "demo", "--out", tmp_path / "out.csv"],
    ):
        assert f"holds no model.json; did you mean {tmp_path / 'demo' / 'model'}?" in refused(
            *arguments
        )


# --- calibration ----------------------------------------------------------------------------------

FEW = ["--quick", "--ops", "softmax,layer_norm,sort,cumulative,optimizer,fill", "--budget", "60s"]
FEWER = ["--ops", "softmax,sort,fill"]  # twelve cases, each measured twice


def _calibrate(out, *more, limit_kib=None):
    command = [
        sys.executable,
        "-m",
        "hybridperf.cli",
        "calibrate",
        *FEW,
        "--folder",
        str(out),
        *more,
    ]
    if limit_kib:  # no file may grow beyond it: what a full disk looks like to the program
        command = [
            "bash",
            "-c",
            f'trap "" XFSZ; ulimit -f {limit_kib}; exec "$@"',
            "bash",
            *command,
        ]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_calibrate_killed_in_the_middle_resumes(tmp_path):
    store = tmp_path / "ops.jsonl"
    process = _calibrate(tmp_path, *FEWER)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and (not store.exists() or store.read_text().count("\n") < 8):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = [line for line in store.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert len(kept) >= 8

    process = _calibrate(tmp_path, *FEWER)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "softmax" in out
    assert "not read" not in out
    assert "Where to be careful:" in out
    pictures = {path.name for path in tmp_path.iterdir() if "png" in path.name}
    assert pictures == {"fit.png", "errors.png", "roofline.png"}
    assert all(name in out for name in pictures)
    lines = store.read_text().splitlines(keepends=True)
    assert lines[: len(kept)] == kept  # nothing lost, nothing measured again
    measured = [(row["key"], row["pass_no"]) for row in map(json.loads, lines[1:])]
    assert len(measured) == len(set(measured))
    model = json.loads((tmp_path / "model.json").read_text())
    assert {"softmax", "call", "allocation"} <= set(model["groups"])
    assert model["provenance"]["machine"]["jax"]


def test_calibrate_says_what_is_wrong(tmp_path, capfd):
    """As the command says it; the first three by the program that measures, in its own process."""
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "ops.jsonl").write_text("not a store\n")
    cases = {
        "unknown family": ["--ops", "nonsense"],
        "cores like": ["--cores", "zero"],
        "cannot run on core": ["--cores", "4095"],
        "a time such as": ["--budget", "soon"],
        "ops.jsonl": ["--folder", str(damaged)],
    }
    for says, arguments in cases.items():
        with pytest.raises(SystemExit) as ended:
            cli.main(["calibrate", *FEW, "--folder", str(tmp_path / "x"), *arguments])
        err = capfd.readouterr().err
        assert ended.value.code == 2, err
        assert says in err
        assert len(err.strip().splitlines()) == 1, err


def test_calibrate_on_a_full_disk_keeps_its_rows(tmp_path):
    process = _calibrate(tmp_path, limit_kib=6)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert (
        sum("space" in line or "too large" in line or "full" in line for line in err.splitlines())
        == 1
    ), err
    lines = (tmp_path / "ops.jsonl").read_text().splitlines()
    assert len(lines) > 2
    assert all(json.loads(line) for line in lines[1:-1])
