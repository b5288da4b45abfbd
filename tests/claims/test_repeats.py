"""Fits of one machine side by side: spreads by hand, and calibrations that are known to differ."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import repeats
from hybridperf.hardware import this_cpu
from hybridperf.io import InputError
from hybridperf.model import PerfModel

SLOWER = 1.21  # its root is how far each of two lies from their mean


def made_up_rows(slower: float = 1.0) -> pd.DataFrame:
    """Products at 50 GFLOP/s and sums at 10 GB/s, each a case."""
    sizes = np.round(2 ** np.random.default_rng(0).uniform(5, 10, (40, 3)))
    gemm = pd.DataFrame(sizes[:20], columns=["m", "n", "k"]).assign(op="gemm")
    gemm["time_s"] = 2.0 * sizes[:20].prod(axis=1) / 5e10
    add = pd.DataFrame(sizes[20:, :2], columns=["rows", "cols"]).assign(op="add")
    add["time_s"] = 12.0 * sizes[20:, :2].prod(axis=1) / 1e10
    rows = pd.concat([gemm, add], ignore_index=True).assign(dtype="fp32", device="here", cores=1)
    rows["key"] = [f"case {at}" for at in range(len(rows))]
    return rows.assign(time_s=1e-6 + slower * rows["time_s"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of this core with what was measured, of which the second finds all slower."""
    made, core = [], this_cpu(1)
    for slower in (1.0, SLOWER):
        folder = tmp_path_factory.mktemp("calibrated")
        peaks = {name: peak / slower for name, peak in core.peak_flops_per_s.items()}
        rates = {"memory_bytes_per_s": core.memory_bytes_per_s / slower, "peak_flops_per_s": peaks}
        PerfModel.datasheet(core.model_copy(update=rates)).save(folder)
        made_up_rows(slower).to_csv(folder / "ops.csv", index=False)
        made.append(folder)
    return made


def test_fits_lie_as_far_apart_as_what_they_measured(folders, tmp_path, claim) -> None:
    status, said, err = claim("repeats", *folders, "--out", tmp_path / "out")
    assert status == 0, err
    assert "2 calibrations of" in said
    lines = json.loads((tmp_path / "out" / "results.json").read_text())["lines"]
    of = {line["name"]: line for line in lines}
    for family, ops in (("gemm", 20), ("elementwise", 20)):
        assert of[family]["n"] == ops
        assert of[family]["baselines"]["measured"] == pytest.approx(SLOWER**0.5 - 1, rel=0.1)
    large = [line for name, line in of.items() if name.endswith(repeats.LARGE)]
    assert [line["baselines"]["measured"] for line in large] == [None] * 4  # nobody measured them
    assert [line["ours"] for line in lines] == pytest.approx([SLOWER**0.5 - 1] * 6)
    found = pd.read_csv(tmp_path / "out" / "repeats.csv")
    assert {"fit_0_s", "fit_1_s"} < set(found)
    table_bytes = 4 * (found["vocab"] * found["cols"]).fillna(found["rows"] * found["dim"])
    assert sorted(set((table_bytes.dropna() / 1e8).round())) == [1, 2, 5, 10, 20]


def test_one_fit_is_repeated_without_a_fifth_of_its_rows(folders, monkeypatch) -> None:
    given = []
    monkeypatch.setattr(repeats, "fit", lambda rows, *_, **__: (given.append(rows), None))
    model = PerfModel.datasheet(this_cpu(1))
    rows = repeats.measured_rows(folders[0], model)
    for fold in range(repeats.FOLDS):
        repeats.refitted(rows, model, fold)
    left_out = [set(rows["key"]) - set(one["key"]) for one in given]
    assert [len(one) for one in left_out] == [8] * 5
    assert set.union(*left_out) == set(rows["key"])  # each once


def test_a_spread_is_the_distance_from_the_geometric_mean() -> None:
    apart = repeats.spread(pd.DataFrame([[1.0, 4.0, np.nan], [2.0, 2.0, 2.0]]))
    np.testing.assert_allclose(apart, np.log([[2.0, 2.0, np.nan], [1.0, 1.0, 1.0]]))


def test_a_family_whose_fits_flip_comes_first() -> None:
    ops = pd.DataFrame(
        {"family": ["a", "b", "b"], "fit_0_s": [1.0, 1.0, 1.0], "fit_1_s": [1.21, 1.0, 4.0]}
    )
    cases = pd.DataFrame({"family": ["b"], "key": ["k"], "rows_0_s": [1.0], "rows_1_s": [1.44]})
    b, a = repeats.by_family(ops, cases).to_dict("records")
    assert (a["family"], a["cases"], a["largest_factor"]) == ("a", 0, pytest.approx(1.21))
    assert a["fits_median"] == pytest.approx(0.1)
    assert np.isnan(a["cases_median"])
    assert (b["largest_factor"], b["cases_median"]) == (4.0, pytest.approx(0.2))
    assert b["fits_most"] == pytest.approx(1.0)


def test_folders_must_be_calibrations_of_one_device(tmp_path) -> None:
    for folders, says in (
        ([], "expected folders of calibrations of one machine, got none"),
        (["h100_sxm", "v100_sxm2"], "expected folders of .*, got one of"),
    ):
        with pytest.raises(InputError, match=says):
            repeats.run(folders, tmp_path)
