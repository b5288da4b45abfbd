"""The form of gathers: its limits, its slopes, and rows of one matrix that stay together."""

import numpy as np
import pandas as pd
import pytest

from hybridperf.hardware import load_device
from hybridperf.learning.prior import adapt, concatenate, uninformed
from hybridperf.learning.prior.adapted import _dealt
from hybridperf.learning.prior.form import slopes
from hybridperf.learning.prior.gather_form import GATHER_ROOFLINE, WORK
from hybridperf.learning.prior.shipped import Prior
from hybridperf.model.families import family_rows
from hybridperf.model.fit.device import fit
from hybridperf.model.fit.rows import parse_measured

THETA = GATHER_ROOFLINE.start
GPU = load_device("rtx_3090")


def work(**changed: float) -> np.ndarray:
    logs = {
        "compute_s": 1e-9, "again_s": 1e-3, "first_s": 1e-9, "beside_s": 1e-9, "index_s": 1e-9,
        "column_per_l2": 1.0, "columns": 64.0, "longest": 1e-9, "row_bytes": 256.0,
    } | changed  # fmt: skip
    skew = logs.pop("skew", 0.0)
    return np.array([[*(np.log(logs[name]) for name in WORK[:-1]), skew]])


def seconds(**changed: float) -> float:
    return float(np.exp(GATHER_ROOFLINE.log_s(THETA, work(**changed)))[0])


def knob(name: str) -> float:
    return float(np.exp(THETA[GATHER_ROOFLINE.knobs.index(name)]))


def test_a_cache_serves_all_or_nothing() -> None:
    memory = 1e-3 / knob("memory_efficiency")
    floor = knob("floor_s")
    none, every = seconds(column_per_l2=1e6), seconds(column_per_l2=1e-6)
    assert none == pytest.approx(floor + memory, rel=1e-3)
    assert every == pytest.approx(floor + memory / knob("cache_gain"), rel=1e-3)


def test_a_share_of_the_footprint_is_hit_and_more_where_gathers_are_skewed() -> None:
    tenth = 10 * 1.0 / 64  # the footprint of all columns is ten caches
    wide = THETA.copy()
    wide[GATHER_ROOFLINE.knobs.index("slice_columns")] = np.log(1e9)
    hit = GATHER_ROOFLINE.closed(wide, work(column_per_l2=tenth)).position[0, 0]
    skewed = GATHER_ROOFLINE.closed(wide, work(column_per_l2=tenth, skew=1.0)).position[0, 0]
    assert hit == pytest.approx(0.1, rel=0.02)
    # Phi(Phi^-1(0.1) + 1) = 0.389
    assert skewed == pytest.approx(0.389, abs=0.03)


def test_more_of_anything_is_never_faster() -> None:
    usual = seconds()
    for name in ("compute_s", "again_s", "first_s", "beside_s", "index_s", "longest", "row_bytes"):
        assert seconds(**{name: np.exp(work()[0, WORK.index(name)]) * 1e3}) >= usual
    assert seconds(column_per_l2=10.0) > usual > seconds(skew=2.0)


def test_slopes_are_finite_differences() -> None:
    some = np.concatenate([
        work(again_s=1e-4, first_s=5e-5, beside_s=3e-5, index_s=2e-5, column_per_l2=0.02, skew=0.7,
             longest=900.0, compute_s=2e-5, columns=128.0),
        work(column_per_l2=30.0, longest=20.0),
    ])  # fmt: skip
    exact = slopes(GATHER_ROOFLINE, np.tile(THETA, (2, 1)), some)
    for at in range(len(THETA)):
        step = np.zeros_like(THETA)
        step[at] = 1e-5
        up, down = (GATHER_ROOFLINE.log_s(THETA + sign * step, some) for sign in (1, -1))
        np.testing.assert_allclose(exact[:, at], (up - down) / 2e-5, rtol=1e-5, atol=1e-9)


def rows_of(matrices: int) -> pd.DataFrame:
    rng, each = np.random.default_rng(1), []
    for at in range(matrices):
        size, degree = np.round(10 ** rng.uniform(4, 6)), 10 ** rng.uniform(0.5, 2)
        entries, most = np.round([size * degree, 3 * degree])
        for n in (64.0, 128.0, 256.0):
            each.append({
                "op": "spmm", "dtype": "fp32", "rows": size, "cols": size, "nnz": entries,
                "n": n, "cv_degree": 0.1 * at, "max_degree": most, "kernel": "cusparse",
            })  # fmt: skip
    return pd.DataFrame(each)


def test_rows_of_a_matrix_are_left_out_together() -> None:
    parts = parse_measured(rows_of(12), GPU).parts
    rows = concatenate([family_rows(one, np.ones(len(one.rows), bool), GPU) for one in parts])
    matrix = rows.matrix()
    assert matrix is not None
    assert len(np.unique(matrix)) == 12
    fold = _dealt(rows, 0)
    for one in range(12):
        assert len(np.unique(fold[matrix == one])) == 1
    assert len(np.unique(fold)) == 5
    with_some = adapt(uninformed(rows), rows, np.full(len(rows), 1e-3))
    assert len(with_some.held_out) == len(rows)


def test_knobs_that_made_rows_are_found_again() -> None:
    """Rows of a GPU with half the believed gain of its cache, one matrix in two left out."""
    table = rows_of(40)
    parts = parse_measured(table, GPU).parts
    rows = concatenate([family_rows(one, np.ones(len(one.rows), bool), GPU) for one in parts])
    truth = THETA.copy()
    truth[GATHER_ROOFLINE.knobs.index("cache_gain")] -= 0.4
    truth[GATHER_ROOFLINE.knobs.index("memory_efficiency")] -= 0.2
    made = np.exp(GATHER_ROOFLINE.log_s(truth, rows.work()))
    table = table.assign(time_s=made[np.argsort(np.concatenate([one.rows for one in parts]))])
    given = (np.arange(len(table)) // 3) % 2 == 0
    model, report = fit(table[given], GPU, prior=Prior({}, {}))
    out = model.predict_ops(table[~given].reset_index(drop=True))
    error = np.abs(out["predicted_s"] / table["time_s"][~given].to_numpy() - 1)
    assert float(np.median(error)) < 0.03
    assert list(report.table["op"]) == ["spmm"]
    assert (out["low_s"] < out["predicted_s"]).all()
    assert (out["predicted_s"] < out["high_s"]).all()
