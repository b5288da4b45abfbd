"""What Lin et al. published, as steps and measured numbers (`data/lin`); their hosts: `lin_hosts`.

Configurations are those of the data, but for the rows that a sample of DLRM_DDP looks up: Lin's
script (owensgroup/ml_perf_model, benchmark/dlrm_benchmark.sh) leaves that to the default of the
program that it runs, facebookresearch/dlrm, which is 10. Table rows of DLRM_MLPerf, one lookup
each, hardly count: all its lookups are 3 % of a step.

Seconds in which the GPU is active are not printed for the cells. Three errors are, of the same
prediction p of them: p / active - 1 and p / step - 1 ("kernels only"). Hence active / step = (1 +
kernels only) / (1 + active error). For the errors of arXiv v1, another run whose steps are
not printed, this gives the shares that v1 plots.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pandas as pd

from hybridperf.io import InputError, unknown
from hybridperf.ops.embedding import Table
from hybridperf.workloads.dlrm import DlrmConfig
from hybridperf.workloads.eager import Eager

CLOCK_HZ = 1.297e9  # their V100's, locked
COPY_BYTES_PER_S = 13.1e9  # PCIe 3.0 x16 with packets of 128 bytes: 15.75 GB/s x 128 / 154
LAUNCH_CALL_S = 4e-6  # their T4
ADDED_S = 5e-6  # that their pipeline adds to every kernel of a step
PER_ITERATION = 10  # iterations of each recorded sequence
# PyTorch of the sequences, 2021
RECORDED = Eager("fp32", bias_copy=True, accumulates=True, views=True)
# PyTorch of the cells, 2022
PUBLISHED = dataclasses.replace(RECORDED, grouped=True, host_pairs=True)
_MLPERF_TABLES, _MLPERF_ROWS = 26, 40e6  # as said: so many tables of at most so many rows
_DDP_LOOKUPS = 10
NOT_GIVEN = {"DLRM_DDP": f"{_DDP_LOOKUPS} lookups: its program's default, not in the data"}


def config(
    workload: str, batch: int, copy_bytes_per_s: float = COPY_BYTES_PER_S, eager: Eager = RECORDED
) -> DlrmConfig:
    """A published model."""
    if workload not in _MODELS:
        known = f"known are {', '.join(_MODELS)}"
        raise unknown("workload of Lin et al.", workload, _MODELS, known)
    return DlrmConfig(
        **_MODELS[workload], batch=batch, duplicates="each", index_bytes=4.0,
        host_bytes_per_s=copy_bytes_per_s, lookup_first=False, reads_loss=True, eager=eager,
    )  # fmt: skip


def _tables(count: int, rows: float, dim: int, lookups: int) -> tuple[Table, ...]:
    return tuple(Table(f"t{i}", rows, dim, lookups) for i in range(count))


_MODELS: dict[str, dict] = {
    "DLRM_default": {
        **{"dense_features": 512, "bottom_mlp": (512, 64), "top_mlp": (1024, 1024, 1024, 1)},
        "loss": "mse",
        "tables": _tables(8, 1e6, 64, 100),
    },
    "DLRM_MLPerf": {
        "dense_features": 13,
        "bottom_mlp": (512, 256, 128),
        "top_mlp": (1024, 1024, 512, 256, 1),
        "loss": "bce",
        "tables": _tables(_MLPERF_TABLES, _MLPERF_ROWS, 128, 1),
    },
    "DLRM_DDP": {
        "dense_features": 128,
        "bottom_mlp": (128, 128, 128),
        "top_mlp": (512, 512, 512, 256, 1),
        "loss": "bce",
        "tables": _tables(8, 80_000.0, 128, _DDP_LOOKUPS),
    },
}


def pairs(made: DlrmConfig) -> int:
    """Products that the interaction keeps of each sample."""
    return (len(made.tables) + 1) * len(made.tables) // 2


def plain(op: str) -> str:
    """An op's name without PyTorch's number of the overload."""
    return re.sub(r"\d+$", "", op)


def sequence(data: Path) -> pd.DataFrame:
    """Mean seconds of a step by recorded sequence and op: `date, workload, op, measured_s`."""
    rows = read(data, "v100_dlrm_kernel_sequence.csv")
    rows["op"] = rows["op"].map(plain)
    by_op = rows.groupby(["notebook_date", "workload", "op"], sort=False)["runtime_us_sum"]
    sums = by_op.sum() * 1e-6 / PER_ITERATION
    return sums.rename("measured_s").rename_axis(["date", "workload", "op"]).reset_index()


def cells(data: Path) -> pd.DataFrame:
    """The published cells with `actual_s` of a step and `active_s` (module docstring)."""
    frame = read(data, "dlrm_single_gpu_e2e_digitised.csv")
    actual_s = frame["actual_ms_approx"] * 1e-3
    return frame.assign(actual_s=actual_s, active_s=actual_s * active_share(frame))


def active_share(errors: pd.DataFrame) -> pd.Series:
    """Share of the step in which the GPU is active, from Lin's own errors in %."""
    return (1 + errors["kernel_only_err_pct"] / 100) / (1 + errors["active_err_pct"] / 100)


def read(data: Path, name: str) -> pd.DataFrame:
    """A table of `data/lin`; `InputError` where it cannot be read."""
    path = Path(data) / "lin" / name
    try:
        return pd.read_csv(path)
    except OSError as error:
        why = error.strerror or error
        expected = f"expected {path} with what Lin et al. published"
        raise InputError(f"{expected}, cannot read it ({why})") from error
