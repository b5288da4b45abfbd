"""Published measurements of sparse products and of graph networks' training steps (RA-SpMM).

A table's `kernel` names library, way and number format together; here they are columns `kernel` and
`dtype`, with `graph` left in, by which honest splits are made: where a graph's nonzeros lie is told
by no column, so rows of one graph err alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from hybridperf.hardware import device_id
from hybridperf.io import read_table, require_columns

SOURCE = "ra-spmm"
# kernels whose name has no number format: tensor-core tiles in half, the others in single precision
_HALF = ("tc_direct", "community_tc", "segment_hybrid")


def table_path(data: Path, name: str) -> Path:
    """Where a table of sparse work lies in the data folder."""
    packed = data / "sparse" / f"{name}.csv.gz"
    return packed if packed.is_file() else packed.with_suffix("")


def spmm_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table of SpMM kernels as `fit` and `ops` read them: `op, device, dtype, kernel`."""
    require_columns(frame, ["gpu", "kernel", "rows", "cols", "nnz", "n"], "a table of SpMM kernels")
    named = {word: kernel_and_dtype(word) for word in map(str, frame["kernel"].unique())}
    words = frame["kernel"].astype(str)
    return frame.assign(
        op="spmm", device=frame["gpu"].map(_device),
        kernel=words.map(lambda word: named[word][0]), dtype=words.map(lambda word: named[word][1]),
    )  # fmt: skip


def kernel_and_dtype(word: str) -> tuple[str, str]:
    """("tc_direct", "tf32") of TC_DIRECT_TF32."""
    name = word.strip().lower()
    for dtype in ("fp32", "fp16", "tf32"):
        if name.endswith(f"_{dtype}"):
            return name.removesuffix(f"_{dtype}"), dtype
    return name, "fp16" if name in _HALF else "fp32"


def read_spmm(data: Path) -> pd.DataFrame:
    """All measured sparse products of the data folder."""
    return spmm_rows(read_table(table_path(data, "spmm")))


def read_steps(data: Path) -> pd.DataFrame:
    """All measured training steps of graph networks, with `device`."""
    frame = read_table(table_path(data, "gnn_steps"))
    require_columns(frame, _STEP_COLUMNS, "a table of steps of graph networks")
    return frame.assign(device=frame["gpu"].map(_device))


def _device(name: object) -> str:
    return device_id(str(name)) or str(name)


_STEP_COLUMNS = (
    "graph", "model", "gpu", "backend", "rows", "nnz", "in_dim", "hidden_dim", "out_dim", "time_s",
)  # fmt: skip


def by_device(frame: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    """Rows of each device, in the order of the table."""
    return {str(name): rows.reset_index(drop=True) for name, rows in frame.groupby("device")}
