"""What Lin et al. published, as steps, hosts and measured numbers (`reference/lin.md` sections 5 to 7, `data/lin`).

DLRM_default and DLRM_MLPerf are given in full; DLRM_DDP lacks how many rows a sample looks up, so its cells are listed and not judged.
Table rows of DLRM_MLPerf, one lookup each, hardly count: all its lookups are 3 % of a step.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.embedding import Table
from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.io import InputError
from hybridperf.workloads.dlrm import DlrmConfig
from hybridperf.workloads.eager import Eager

CLOCK_HZ = 1.297e9  # their V100's, locked
COPY_BYTES_PER_S = 13.1e9  # PCIe 3.0 x16 with packets of 128 bytes: 15.75 GB/s x 128 / 154
LAUNCH_CALL_S = 4e-6  # their T4
ADDED_S = 5e-6  # that their pipeline adds to every kernel of a step
SHARES = {  # of the step in which the GPU is active on their V100, by batch 512 .. 4096
    "DLRM_default": (0.54, 0.70, 0.82, 0.91), "DLRM_MLPerf": (0.54, 0.66, 0.80, 0.91), "DLRM_DDP": (0.33, 0.43, 0.61, 0.75),
}  # fmt: skip
BATCHES = (512, 1024, 2048, 4096)
NOT_GIVEN = {"DLRM_DDP": "lookups of a sample per table are not given"}
_MLPERF_TABLES, _MLPERF_ROWS = 26, 40e6  # as said: so many tables of at most so many rows
_PER_ITERATION = 10  # iterations of each recorded sequence
_EAGER = Eager("fp32", bias_copy=True, accumulates=True, views=True)


def config(workload: str, batch: int, copy_bytes_per_s: float = COPY_BYTES_PER_S) -> DlrmConfig:
    """A published model; `InputError` where its inputs are not given."""
    if workload in NOT_GIVEN:
        raise InputError(f"{workload}: {NOT_GIVEN[workload]}")
    default = workload == "DLRM_default"
    tables = (
        [Table(f"t{i}", 1e6, 64, 100) for i in range(8)]
        if default
        else [Table(f"t{i}", _MLPERF_ROWS, 128, 1) for i in range(_MLPERF_TABLES)]
    )
    return DlrmConfig(
        batch=batch, dense_features=512 if default else 13, bottom_mlp=(512, 64) if default else (512, 256, 128),
        top_mlp=(1024, 1024, 1024, 1) if default else (1024, 1024, 512, 256, 1), tables=tuple(tables), loss="mse" if default else "bce",
        duplicates="each", host_bytes_per_s=copy_bytes_per_s, index_bytes=4.0, lookup_first=False, reads_loss=True, eager=_EAGER,
    )  # fmt: skip


def plain(op: str) -> str:
    """An op's name without PyTorch's number of the overload."""
    return re.sub(r"\d+$", "", op)


def sequence(data: Path) -> pd.DataFrame:
    """Mean seconds of a step by recorded sequence and op: `date, workload, op, measured_s`."""
    rows = _read(data, "v100_dlrm_kernel_sequence.csv")
    rows["op"] = rows["op"].map(plain)
    sums = rows.groupby(["notebook_date", "workload", "op"], sort=False)["runtime_us_sum"].sum() * 1e-6 / _PER_ITERATION
    return sums.rename("measured_s").rename_axis(["date", "workload", "op"]).reset_index()


def index_rates(data: Path) -> dict[str, float]:
    """Elements per second of the backward of `x[:, i, j]`, by workload, over the sequences of the *other* workloads."""
    rows = _read(data, "v100_dlrm_kernel_sequence.csv")
    rows = rows[rows["kernel"] == "indexing_backward_kernel"]
    found = {}
    for workload in rows["workload"].unique():
        rates = []
        for other, part in rows[rows["workload"] != workload].groupby("workload"):
            made = config(str(other), 2048)
            pairs = (len(made.tables) + 1) * len(made.tables) // 2
            rates.append(2048 * pairs / (part["runtime_us_sum"].mean() * 1e-6))
        found[str(workload)] = float(np.mean(rates))
    return found


def cells(data: Path) -> pd.DataFrame:
    """The published cells with `active_s` where a share is given."""
    frame = _read(data, "dlrm_single_gpu_e2e_digitised.csv")
    frame["actual_s"] = frame["actual_ms_approx"] * 1e-3
    shares = [SHARES[w][BATCHES.index(b)] if g == "V100" else np.nan for g, w, b in frame[["gpu", "workload", "batch_size"]].to_numpy()]
    frame["active_s"] = frame["actual_s"] * shares
    return frame


def shared_host(data: Path) -> Host:
    """Overheads of all workloads together: T1 and T2 of 2022, T3 and T5 of 2021 (which count per launch only on one of its dates)."""
    late = _read(data, "overheads_t1_t2_daisy.csv")
    early = _read(data, "overheads_t1_t5_v100_2021.csv")
    return _host("shared", late, early[early["notebook_date"] == "2021-05-04"])


def own_host(data: Path, workload: str, batch: int) -> Host | None:
    """Overheads of one workload and batch, None where T3 and T5 are not given for it."""
    early = _read(data, "overheads_t1_t5_v100_2021.csv")
    early = early[(early["workload"] == workload) & (early["batch_size"] == batch)]
    late = _read(data, "overheads_t1_t2_daisy.csv")
    late = late[(late["workload"] == workload) & (late["batch_size"] == batch)]
    if early.empty or late.empty:
        return None
    if workload == "DLRM_MLPerf":  # there T5 is of an op's launches together
        rows = _read(data, "v100_dlrm_kernel_sequence.csv")
        rows = rows[rows["notebook_date"] == early["notebook_date"].iloc[0]]
        launches = rows.groupby("op")["launch_count"].sum() / _PER_ITERATION
        calls = {"AddmmBackward": 8, "aten::linear": 8, "torch::autograd::AccumulateGrad": 16}
        gaps = [max(launches.get(op, 1.0) / calls.get(op, 1) - 1, 1.0) for op in early["op_or_runtime_call"]]
        early = early.assign(mean_us=np.where(early["type"] == "t5", early["mean_us"] / gaps, early["mean_us"]))
    return _host(f"{workload} at {batch}", late, early)


def _host(source: str, late: pd.DataFrame, early: pd.DataFrame) -> Host:
    t1 = late[late["overhead_type"] == "t1"]
    t2 = late[late["overhead_type"] == "t2"].assign(op=lambda frame: frame["op_name"].map(plain))
    before = {op: _spread(part["mean_us"], part["count"]) for op, part in t2.groupby("op")}
    t3, t5 = (early[early["type"] == kind].assign(op=lambda f: f["op_or_runtime_call"].map(plain)) for kind in ("t3", "t5"))
    t3 = t3[t3["op"] != "aten::to"]  # it holds the wait for the copy, which is the device's time
    launches = set(before) | set(t3["op"])
    older = early[early["type"] == "t2"].assign(op=lambda frame: frame["op_or_runtime_call"].map(plain))
    for op, part in older.groupby("op"):
        before.setdefault(op, _spread(part["mean_us"]))
    return Host(
        source=source, profiler_s=0.0, between_ops_s=_spread(t1["mean_us"], t1["count"]),
        before_launch_s=_overhead(before),
        after_launch_s=_overhead({op: _spread(part["mean_us"]) for op, part in t3.groupby("op")} | {"aten::to": _spread(pd.Series([0.0]))}),
        launch_call_s=_overhead({"cudaLaunchKernel": _spread(pd.Series([LAUNCH_CALL_S * 1e6]))}),
        between_launches_s=_overhead({op: _spread(part["mean_us"]) for op, part in t5.groupby("op") if op in launches}),
        without_launch_s=_overhead({op: _spread(part["mean_us"]) for op, part in t5.groupby("op") if op not in launches}),
    )  # fmt: skip


def _overhead(by_kind: dict[str, Spread]) -> Overhead:
    weights = pd.Series([one.count for one in by_kind.values()])
    return Overhead(shared=_spread(pd.Series([one.mean_s * 1e6 for one in by_kind.values()]), weights), by_kind=by_kind)


def _spread(mean_us: pd.Series, count: pd.Series | None = None) -> Spread:
    weights = np.ones(len(mean_us)) if count is None else count.to_numpy(float)
    mean_s = float(np.average(mean_us.to_numpy(float), weights=weights)) * 1e-6
    return Spread(mean_s=mean_s, std_s=0.0, median_s=mean_s, count=max(3, int(weights.sum())))


def _read(data: Path, name: str) -> pd.DataFrame:
    path = Path(data) / "lin" / name
    try:
        return pd.read_csv(path)
    except OSError as error:
        raise InputError(f"expected {path} with what Lin et al. published, cannot read it ({error.strerror or error})") from error
