"""What Lin et al. published, as steps, hosts and measured numbers (`reference/lin.md` sections 5 to 7, `data/lin`).

DLRM_default and DLRM_MLPerf are given in full; DLRM_DDP lacks how many rows a sample looks up, so its cells are listed and not judged.
Table rows of DLRM_MLPerf, one lookup each, hardly count: all its lookups are 3 % of a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.embedding import Table
from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.io import InputError
from hybridperf.validate.lin_profiler import Records, without_records_us
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


def shared_host(data: Path, *, records: Mapping[str, Records] | None = None, family: str = "") -> Host:
    """Raw samples of all workloads pooled, as Lin et al. share overheads: T1, T2 of 2022 (CNNs, DeepFM, NCF too), T3, T5 of 2021 (DLRMs).

    `records`: nested in each op, whose cost is taken off T2, T3 and T5 of 2021; None: the profiler's cost stays inside. `family`: only
    workloads whose names begin so.
    """
    late = _read(data, "overheads_t1_t2_daisy.csv")
    return _host("shared", late[late["workload"].str.startswith(family)], profiled(data, records or {}))


def own_host(data: Path, workload: str, batch: int, records: Mapping[str, Records] | None = None) -> Host | None:
    """Overheads of one workload and batch, None where T3 and T5 are not given for it."""
    early = profiled(data, records or {})
    early = early[(early["workload"] == workload) & (early["batch_size"] == batch)]
    late = _read(data, "overheads_t1_t2_daisy.csv")
    late = late[(late["workload"] == workload) & (late["batch_size"] == batch)]
    if early.empty or late.empty:
        return None
    return _host(f"{workload} at {batch}", late, early)


def profiled(data: Path, records: Mapping[str, Records]) -> pd.DataFrame:
    """T2, T3 and T5 of 2021: `workload, batch_size, type, op, mean_us, count`, T5 of ops that launch more than once by gap."""
    early = _read(data, "overheads_t1_t5_v100_2021.csv")
    early = early[early["type"].isin(["t2", "t3", "t5"])]
    early = early.assign(op=early["op_or_runtime_call"].map(plain))
    rows = _read(data, "v100_dlrm_kernel_sequence.csv")
    rows = rows[rows["kernel"] != "Memset (Device)"]  # no launch of a kernel
    launches = rows.assign(op=rows["op"].map(plain)).groupby(["notebook_date", "op"])["launch_count"].sum() / _PER_ITERATION
    launching = set(early.loc[early["type"] != "t5", "op"])
    means, counts = [], []
    for one in early.itertuples():
        calls = _calls(config(one.workload, int(one.batch_size)), one.op)
        gaps = max(round(launches.get((one.notebook_date, one.op), 1.0)) / calls - 1, 0.0) if one.op in launching else 0.0
        mean_us = one.mean_us
        if one.type == "t5" and one.op in launching:
            gaps = max(gaps, 1.0)
            if one.workload == "DLRM_MLPerf":  # there T5 is of an op's gaps together
                mean_us /= gaps
        means.append(without_records_us(records, one.op, one.type, mean_us, gaps))
        counts.append(_PER_ITERATION * calls * (gaps if one.type == "t5" and gaps else 1.0))
    return early.assign(mean_us=means, count=counts)


def _calls(made: DlrmConfig, op: str) -> int:
    """How often a step calls an op of 2021."""
    layers = len(made.bottom_mlp) + len(made.top_mlp)
    of_layers = {
        "AddmmBackward": layers, "aten::linear": layers, "aten::sum": layers, "TBackward": layers,
        "torch::autograd::AccumulateGrad": 2 * layers, "aten::relu": layers - 1, "ReluBackward": layers - 1, "aten::cat": 2, "aten::add": 2,
    }  # fmt: skip
    return of_layers.get(op, 1)


def _host(source: str, late: pd.DataFrame, early: pd.DataFrame) -> Host:
    t1 = late[late["overhead_type"] == "t1"]
    t2 = late[late["overhead_type"] == "t2"].assign(op=lambda frame: frame["op_name"].map(plain))
    before = _by_op(t2)
    t3, t5 = (early[early["type"] == kind] for kind in ("t3", "t5"))
    t3 = t3[t3["op"] != "aten::to"]  # it holds the wait for the copy, which is the device's time
    launches = set(before) | set(t3["op"])
    before = _by_op(early[early["type"] == "t2"]) | before  # PyTorch of 2022 has no outermost `aten::sum` any more
    after = _by_op(t3) | {"aten::to": _spread(pd.Series([0.0]))}
    return Host(
        source=source,
        profiler_s=0.0,
        between_ops_s=_spread(t1["mean_us"], t1["count"]),
        before_launch_s=_overhead(before),
        after_launch_s=_overhead(after),
        launch_call_s=_overhead({"cudaLaunchKernel": _spread(pd.Series([LAUNCH_CALL_S * 1e6]))}),
        between_launches_s=_overhead(_by_op(t5[t5["op"].isin(launches)])),
        without_launch_s=_overhead(_by_op(t5[~t5["op"].isin(launches)])),
    )


def _by_op(rows: pd.DataFrame) -> dict[str, Spread]:
    return {str(op): _spread(part["mean_us"], part["count"]) for op, part in rows.groupby("op")}


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
