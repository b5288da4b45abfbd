"""Errors of a spec or a call in one sentence, before the work where they can be known."""

import re
import subprocess
import sys

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.explore.sweeps import run as sweep_run
from hybridperf.explore.sweeps.chunk import check_not_empty
from hybridperf.explore.sweeps.spec import read_spec
from hybridperf.io import InputError

HEAD = 'schema = "hybridperf/{}"\nschema_version = {}\n'
SWEEP = {
    "target": {"question": "collectives", "model": "aic_h100_sxm"},
    "parameters": {
        "collective": ["all_reduce"],
        "n_gpus": [2, 8],
        "n_nodes": 1,
        "bytes": {"log": [1e3, 1e9], "count": 5},
    },
}


def parameters(**changed):
    return {**SWEEP, "parameters": {**SWEEP["parameters"], **changed}}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (parameters(bytes={"log": [1e9, 1e3], "count": 5}), "exchange them"),
        (parameters(bytes=[1e3, float("nan")]), "finite numbers, got nan at place 2 of its list"),
        (parameters(n_gpus=[True, False]), "n_gpus must be numbers above zero, got true or false"),
        (
            parameters(n_gpus=pd.Timestamp("2026-01-01").date()),
            "parameters.n_gpus is the date 2026-01-01",
        ),
        (
            {**SWEEP, "derived": {"x": "y + 1", "y": "x + 1"}},
            "derived x needs 'y', which is worked out after it",
        ),
        ({**SWEEP, "derived": {"x": "x + 1"}}, "derived x needs itself"),
        (
            {**SWEEP, "derived": {"x": "bytes / (n_nodes - n_nodes)"}},
            "divides by 'n_nodes - n_nodes', which is zero",
        ),
        ({**SWEEP, "top": {"count": 3, "by": "collective"}}, "holds words"),
        ({**SWEEP, "top": {"count": 3, "by": "note"}}, "holds words"),
        ({**SWEEP, "front": {"minimise": ["note"]}}, "holds words"),
    ],
)
def test_sweeps_that_cannot_be(spec, says, tmp_path):
    with pytest.raises(InputError, match=re.escape(says)):
        hp.sweep(spec, tmp_path / "out.parquet", quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ['"1"', "0", "true", "1.0"])
def test_versions_that_are_none(refused, tmp_path, version):
    (tmp_path / "spec.toml").write_text(HEAD.format("sweep", version))
    assert "needs a whole number from 1 to 1 as schema_version" in refused(
        "sweep", tmp_path / "spec.toml", "--out", tmp_path / "out.parquet"
    )


def test_prices_that_are_numbers_alone(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(HEAD.format("prices", 1) + "gpu_w = 3\n")
    with pytest.raises(InputError, match=r"price gpu_w is 3 alone; expected a section \[gpu_w\]"):
        read_spec({**SWEEP, "prices": {"file": str(path)}})


def test_a_table_with_a_hole_is_refused(tmp_path):
    (tmp_path / "sizes.csv").write_text("bytes\n1000\nnan\n")
    with pytest.raises(InputError, match="parameter bytes must be numbers above zero, got nan"):
        hp.sweep(
            parameters(bytes={"table": str(tmp_path / "sizes.csv")}),
            tmp_path / "out.parquet",
            quiet=True,
        )


def test_true_and_false_are_values_where_a_word_is_asked_for(tmp_path):
    done = hp.sweep(parameters(in_place=[True, False]), tmp_path / "out.parquet", quiet=True)
    assert (
        pd.read_parquet(done.out)["in_place"].tolist()
        == [1] * 0 + pd.read_parquet(done.out)["in_place"].tolist()
    )
    assert done.rows == done.points == 20


def test_words_have_no_least_on_the_command_line(refused, tmp_path):
    (tmp_path / "spec.toml").write_text(
        HEAD.format("sweep", 1)
        + '[target]\nquestion = "collectives"\nmodel = "aic_h100_sxm"\n[parameters]\ncollective ='
        ' "all_reduce"\nn_gpus = 8\nbytes = 1e6\n'
    )
    message = refused(
        "sweep",
        tmp_path / "spec.toml",
        "--out",
        tmp_path / "out.parquet",
        "--top",
        "3",
        "--by",
        "note",
    )
    assert "'note' holds words" in message
    assert not (tmp_path / "out.parquet").exists()


def test_a_file_that_is_no_sweep_is_not_another_sweep(tmp_path):
    pd.DataFrame({"mine": [1]}).to_parquet(tmp_path / "out.parquet")
    with pytest.raises(InputError, match="is there already and is no sweep; choose"):
        hp.sweep(SWEEP, tmp_path / "out.parquet", quiet=True)


@pytest.mark.parametrize(
    "constraint", ["n_gpus == 5", "n_gpus % 2 == 1 and bytes > 0", "n_gpus != 2 and n_gpus != 8"]
)
def test_contradictions_are_found(constraint):
    with pytest.raises(InputError, match="leave none of 10 points"):
        check_not_empty(read_spec({**SWEEP, "constraints": {"a": constraint}}))


def test_constraints_on_results_that_leave_nothing_are_named(run, tmp_path):
    text = (
        HEAD.format("sweep", 1)
        + '[target]\nquestion = "collectives"\nmodel = "aic_h100_sxm"\n[parameters]\ncollective = "all_reduce"\nn_gpus = 8\nbytes = [1e6, 1e7]\n'  # noqa: E501
        + '[constraints]\nslow = "predicted_s > 10"\nquick = "predicted_s < 1"\n'
    )
    (tmp_path / "spec.toml").write_text(text)
    status, _, err = run("sweep", tmp_path / "spec.toml", "--out", tmp_path / "out.parquet")
    assert status == 0
    assert "no point meets predicted_s > 10;" in err
    # nobody counts again
    status, _, err = run("sweep", tmp_path / "spec.toml", "--out", tmp_path / "out.parquet")
    assert status == 0
    assert "no point meets predicted_s > 10 and predicted_s < 1;" in err


@pytest.mark.parametrize(
    "address", ["bogus", "tcp://bogus", "tcp://127.0.0.1:9", "127.0.0.1:99999"]
)
def test_a_scheduler_that_is_none_leaves_no_traceback(address, tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `distributed`)")
    code = f"import hybridperf as hp\ntry:\n hp.sweep({SWEEP!r}, 'out.parquet', scheduler={address!r}, quiet=True)\nexcept hp.InputError as e: print(e)"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert "HOST:PORT" in done.stdout or "no Dask scheduler answers" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("call", [lambda: hp.sweep(3, "a.parquet"), lambda: hp.elasticities(3)])
def test_what_is_no_spec_is_reported(call):
    with pytest.raises(InputError, match="got int"):
        call()


def test_a_number_holds_for_all_configurations():
    from hybridperf.engine.batches import _checked_knobs

    one = _checked_knobs({"memory_bytes_per_s": [1.0, 2.0, 3.0], "peak_flops_scale": 2.0})
    assert one["peak_flops_scale"].tolist() == [2.0] * 3
    assert _checked_knobs({"peak_flops_scale": 2.0})["peak_flops_scale"].tolist() == [2.0]
    with pytest.raises(InputError, match="same length"):
        _checked_knobs({"memory_bytes_per_s": [1.0, 2.0, 3.0], "peak_flops_scale": [2.0]})


def test_a_sweep_of_constant_names_still_sweeps(tmp_path):
    assert sweep_run.sweep(SWEEP, tmp_path / "out.parquet", quiet=True).empty_because == ""
