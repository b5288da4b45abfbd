"""Errors of a call in one sentence, before the work where they can be known."""

import re
import subprocess
import sys

import pandas as pd
import pytest
from support.sweeps import spec_of, words_of

import hybridperf as hp
from hybridperf.explore.sweeps.chunk import check_not_empty
from hybridperf.hardware.prices import read_prices
from hybridperf.io import InputError

FIELDS = {
    "collective": "all_reduce", "n_gpus": [2, 8], "n_nodes": 1,
    "bytes": {"min": 1e3, "max": 1e9, "count": 5},
}  # fmt: skip
SWEEP = {"question": "collectives", "model": "aic_h100_sxm", "fields": FIELDS}


def fields(**changed):
    return {"fields": {**FIELDS, **changed}}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (fields(bytes=[1e3, float("nan")]), "finite numbers, got nan at place 2 of its list"),
        (fields(n_gpus=[True, False]), "n_gpus must be numbers above zero, got true or false"),
        (
            {"derived": {"x": "y + 1", "y": "x + 1"}},
            "derived x needs 'y', which is worked out after it",
        ),
        ({"derived": {"x": "x + 1"}}, "derived x needs itself"),
        (
            {"derived": {"x": "bytes / (n_nodes - n_nodes)"}},
            "divides by 'n_nodes - n_nodes', which is zero",
        ),
        ({"top": 3, "by": "collective"}, "holds words"),
        ({"top": 3, "by": "note"}, "holds words"),
        ({"minimise": "note"}, "holds words"),
    ],
)
def test_sweeps_that_cannot_be(changed, says, tmp_path):
    with pytest.raises(InputError, match=re.escape(says)):
        hp.sweep(**SWEEP | changed, out=tmp_path / "out.parquet", quiet=True)
    assert not list(tmp_path.iterdir())


def test_prices_that_are_numbers_alone(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('schema = "hybridperf/prices"\nschema_version = 1\ngpu_w = 3\n')
    with pytest.raises(InputError, match=r"price gpu_w is 3 alone; expected a section \[gpu_w\]"):
        read_prices(path)


def test_a_table_with_a_hole_is_refused(tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text("collective,n_gpus,bytes\nall_reduce,8,1000\nall_reduce,8,nan\n")
    with pytest.raises(InputError, match="parameter bytes must be numbers above zero, got nan"):
        hp.sweep(**SWEEP | {"fields": path}, out=tmp_path / "out.parquet", quiet=True)


def test_true_and_false_are_values_where_a_word_is_asked_for(tmp_path):
    done = hp.sweep(
        **SWEEP | fields(in_place=[True, False]), out=tmp_path / "out.parquet", quiet=True
    )
    assert (
        pd.read_parquet(done.out)["in_place"].tolist()
        == [1] * 0 + pd.read_parquet(done.out)["in_place"].tolist()
    )
    assert done.rows == done.points == 20


def test_a_file_that_is_no_sweep_is_not_another_sweep(tmp_path):
    pd.DataFrame({"mine": [1]}).to_parquet(tmp_path / "out.parquet")
    with pytest.raises(InputError, match="is there already and is no sweep; choose"):
        hp.sweep(**SWEEP, out=tmp_path / "out.parquet", quiet=True)


@pytest.mark.parametrize(
    "where", ["n_gpus == 5", "n_gpus % 2 == 1 and bytes > 0", "n_gpus != 2 and n_gpus != 8"]
)
def test_contradictions_are_found(where):
    with pytest.raises(InputError, match="leave none of 10 points"):
        check_not_empty(spec_of(**SWEEP, where=where))


def test_conditions_on_results_that_leave_nothing_are_named(run, tmp_path):
    words = words_of(
        "collectives", {"collective": "all_reduce", "n_gpus": 8, "bytes": [1e6, 1e7]},
        "aic_h100_sxm", where=["predicted_s > 10", "predicted_s < 1"],
        out=str(tmp_path / "out.parquet"),
    )  # fmt: skip
    status, _, err = run(*words)
    assert status == 0
    assert "no point meets predicted_s > 10;" in err
    # nobody counts again
    status, _, err = run(*words)
    assert status == 0
    assert "no point meets predicted_s > 10 and predicted_s < 1;" in err


@pytest.mark.parametrize(
    "address", ["bogus", "tcp://bogus", "tcp://127.0.0.1:9", "127.0.0.1:99999"]
)
def test_a_scheduler_that_is_none_leaves_no_traceback(address, tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `distributed`)")
    code = f"import hybridperf as hp\ntry:\n hp.sweep(**{SWEEP!r}, out='out.parquet', scheduler={address!r}, quiet=True)\nexcept hp.InputError as e: print(e)"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert "HOST:PORT" in done.stdout or "no Dask scheduler answers" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_prediction_is_reported():
    with pytest.raises(InputError, match="got int"):
        hp.elasticities(3)


def test_a_number_holds_for_all_configurations():
    from hybridperf.engine.batches import _checked_knobs

    one = _checked_knobs({"memory_bytes_per_s": [1.0, 2.0, 3.0], "peak_flops_scale": 2.0})
    assert one["peak_flops_scale"].tolist() == [2.0] * 3
    assert _checked_knobs({"peak_flops_scale": 2.0})["peak_flops_scale"].tolist() == [2.0]
    with pytest.raises(InputError, match="same length"):
        _checked_knobs({"memory_bytes_per_s": [1.0, 2.0, 3.0], "peak_flops_scale": [2.0]})


def test_a_sweep_of_constant_names_still_sweeps(tmp_path):
    assert hp.sweep(**SWEEP, out=tmp_path / "out.parquet", quiet=True).empty_because == ""
