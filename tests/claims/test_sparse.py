"""The claim on sparse products: graphs are left out whole, and ours beats the baselines on a slice.

The slice is of one GPU, two kernels and two widths; the figures of all rows are those of
claim `sparse --data DATA`.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims import sparse as claim
from hybridperf.workloads.gnn_config import GraphShape
from hybridperf_calibration.published.sparse import read_spmm, read_steps


@pytest.fixture(scope="module")
def rows(data_dir: Path) -> pd.DataFrame:
    if not (data_dir / "sparse").is_dir():
        pytest.skip(f"no sparse products in {data_dir}: its folder sparse is missing")
    frame = read_spmm(data_dir)
    some = frame["kernel"].isin(["cusparse", "rode_enhanced"]) & frame["n"].isin([64, 128])
    return frame[some & (frame["device"] == "rtx_3090")].reset_index(drop=True)


def test_graphs_are_dealt_not_rows(rows: pd.DataFrame) -> None:
    fold = claim.folds_of(rows["graph"])
    assert set(fold) == set(range(claim.FOLDS))
    assert (pd.Series(fold).groupby(rows["graph"]).nunique() == 1).all()


def test_left_out_graphs_are_nearer_than_by_the_baselines(rows: pd.DataFrame) -> None:
    found = claim.of_kernels({"rtx_3090": rows}, quick=False)
    middle, mean = found.lines[:2]
    assert middle.n == len(rows)
    assert middle.ours is not None
    assert mean.ours is not None
    assert middle.ours < min(middle.baselines.values())
    assert mean.ours < min(mean.baselines.values())
    table = found.tables["kernels"]
    assert (table["low_s"] < table["predicted_s"]).all()
    assert not np.isnan(table["trees_s"]).any()


def test_steps_are_of_graphs_whose_products_were_measured(
    rows: pd.DataFrame, data_dir: Path
) -> None:
    steps = read_steps(data_dir)
    assert set(steps["graph"]) <= set(rows["graph"])
    shape = GraphShape(10.0, 40.0)
    assert shape.degrees(64).mean() == pytest.approx(4.0)
