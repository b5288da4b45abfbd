"""What Lin et al. published, as steps, hosts and measured numbers (`data/lin`).

Configurations are those of the data, but for the rows that a sample of DLRM_DDP looks up: Lin's
script (owensgroup/ml_perf_model, benchmark/dlrm_benchmark.sh) leaves that to the default of the
program that it runs, facebookresearch/dlrm, which is 10. DLRM_MLPerf looks up Criteo's terabyte,
whose values are taken to be as frequent as each other; all its lookups are 3 % of a step.

Seconds in which the GPU is active are not printed for the cells. Three errors are, of the same
prediction p of them: p / active - 1 and p / step - 1 ("kernels only"). Hence active / step = (1 +
kernels only) / (1 + active error). For the errors of arXiv v1, another run whose steps are
not printed, this gives the shares that v1 plots.

Hosts are made of the overheads before, between and after launches:

    T1, T2   2022, less what their profiler cost; the PyTorch of the published cells
    T3, T5   2021, with it, of an older PyTorch

T2 is given of both years. What an op of 2021 took before its first launch shrank until 2022 to a
share that is much the same in both models that were profiled: of one model's T2 of 2021, these
shares make the other's of 2022 within 18 %, one share for all ops 30 %. (Taking 2 us off for each
op nested in it, as Lin et al. do, does not tell which ops shrank.) T3 and T5 are taken to have
shrunk as T2 did, of the same model and op; of an op without T2 in both years, as the model's T2
together.

Since 2022 the sum over a bias's gradient is launched within the backward of its product, and the
lists of the interaction's pairs are copied within the op that uses them (T2 of `TransposeBackward0`
and `ViewBackward0`, none of `aten::sum`; the execution graph). So there

    AddmmBackward   ends as the sum did; from the product to the sum is what ended the one and began
                    the other
    aten::index     between two launches it begins a copy
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims.harness import facts
from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.io import InputError, unknown
from hybridperf.ops.embedding import Table
from hybridperf.workloads.dlrm import DlrmConfig
from hybridperf.workloads.programs.eager import Eager

CLOCK_HZ = 1.297e9  # their V100's, locked
COPY_BYTES_PER_S = 13.1e9  # PCIe 3.0 x16 with packets of 128 bytes: 15.75 GB/s x 128 / 154
LAUNCH_CALL_S = 4e-6  # their T4
ADDED_S = 5e-6  # that their pipeline adds to every kernel of a step
PER_ITERATION = 10  # iterations of each recorded sequence
# PyTorch of the sequences, 2021
RECORDED = Eager("fp32", bias_copy=True, accumulates=True, views=True)
# PyTorch of the cells, 2022
PUBLISHED = dataclasses.replace(RECORDED, grouped=True, host_pairs=True)
_MODELS = facts("lin.toml")
_RUN = ["workload", "batch_size"]
NOT_GIVEN = {"DLRM_DDP": "10 lookups: its program's default, not in the data"}


def config(
    workload: str, batch: int, copy_bytes_per_s: float = COPY_BYTES_PER_S, eager: Eager = RECORDED
) -> DlrmConfig:
    """A published model."""
    if workload not in _MODELS:
        known = f"known are {', '.join(_MODELS)}"
        raise unknown("workload of Lin et al.", workload, _MODELS, known)
    said: dict[str, Any] = dict(_MODELS[workload])
    rows, *sizes = said.pop("tables").values()
    tables = tuple(Table(f"t{i}", float(each), *sizes) for i, each in enumerate(rows))
    said |= {name: tuple(said[name]) for name in ("bottom_mlp", "top_mlp")}
    return DlrmConfig(
        **said, tables=tables, batch=batch,
        duplicates="each", index_bytes=4.0, host_bytes_per_s=copy_bytes_per_s, lookup_first=False,
        reads_loss=True, eager=eager,
    )  # fmt: skip


def pairs(made: DlrmConfig) -> int:
    """Products that the interaction keeps of each sample."""
    return (len(made.tables) + 1) * len(made.tables) // 2


def plain(op: str) -> str:
    """An op's name without PyTorch's number of the overload."""
    return re.sub(r"\d+$", "", op)


def sequence(data: Path) -> pd.DataFrame:
    """Mean seconds of a step by recorded sequence and op: `date, workload, op, measured_s`."""
    by_op = recorded(data).groupby(["notebook_date", "workload", "op"], sort=False)
    sums = by_op["runtime_us_sum"].sum() * 1e-6 / PER_ITERATION
    return sums.rename("measured_s").rename_axis(["date", "workload", "op"]).reset_index()


def recorded(data: Path) -> pd.DataFrame:
    """Kernels of the recorded sequences, with their ops' plain names."""
    rows = read(data, "v100_dlrm_kernel_sequence.csv")
    return rows.assign(op=rows["op"].map(plain))


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


def shared_host(data: Path, *, family: str = "", shrunk: bool = True) -> Host:
    """Raw samples of all workloads pooled, as Lin et al. share overheads: T1, T2 of 2022 (CNNs,
    DeepFM, NCF too), T3, T5 of 2021 (DLRMs).

    `family`: only workloads whose names begin so. Not `shrunk`: T3 and T5 as they were in 2021.
    """
    late = _late(data)
    early, of_family = in_2022(data) if shrunk else profiled(data), late["workload"]
    return _host("shared", late[of_family.str.startswith(family)], early)


def own_host(data: Path, workload: str, batch: int) -> Host | None:
    """Overheads of one workload and batch, None where T3 and T5 are not given for it."""
    early, late = in_2022(data), _late(data)
    one = f"workload == {workload!r} and batch_size == {batch}"
    early, late = early.query(one), late.query(one)
    if early.empty or late.empty:
        return None
    return _host(f"{workload} at {batch}", late, early)


def in_2022(data: Path) -> pd.DataFrame:
    """What `profiled` gives, each op shrunk to 2022 (module docstring)."""
    early, late = profiled(data), _late(data)
    t2 = early[early["type"] == "t2"].merge(
        late[late["overhead_type"] == "t2"], on=[*_RUN, "op"], suffixes=("", "_late")
    )
    t2 = t2.assign(now=t2["mean_us_late"] * t2["calls"], then=t2["mean_us"] * t2["calls"])
    of_op, of_all = (t2.groupby(keys)[["now", "then"]].sum() for keys in ([*_RUN, "op"], _RUN))
    share = early.join((of_op["now"] / of_op["then"]).rename("share"), on=[*_RUN, "op"])["share"]
    together = early.join((of_all["now"] / of_all["then"]).rename("share"), on=_RUN)["share"]
    return early.assign(mean_us=early["mean_us"] * share.fillna(together))


def profiled(data: Path) -> pd.DataFrame:
    """T2, T3 and T5 of 2021: `workload, batch_size, type, op, mean_us, calls, count`, T5 of ops
    that launch more than once by gap.
    """
    early = read(data, "overheads_t1_t5_v100_2021.csv")
    early = early[early["type"].isin(["t2", "t3", "t5"])]
    early = early.assign(op=early["op_or_runtime_call"].map(plain))
    rows = recorded(data)
    rows = rows[rows["kernel"] != "Memset (Device)"]  # no launch of a kernel
    by_op = rows.groupby(["notebook_date", "op"])
    launches = by_op["launch_count"].sum() / PER_ITERATION
    launching = set(early.loc[early["type"] != "t5", "op"])
    means, each, counts = [], [], []
    for one in early.itertuples():
        calls = _calls(config(one.workload, int(one.batch_size)), one.op)
        gaps = 1.0
        if one.type == "t5" and one.op in launching:
            gaps = max(round(launches.get((one.notebook_date, one.op), 1.0)) / calls - 1, 1.0)
        together = one.workload == "DLRM_MLPerf"  # there T5 is of an op's gaps together
        means.append(one.mean_us / gaps if together else one.mean_us)
        each.append(calls)
        counts.append(PER_ITERATION * calls * gaps)
    return early.assign(mean_us=means, calls=each, count=counts)


def _late(data: Path) -> pd.DataFrame:
    late = read(data, "overheads_t1_t2_daisy.csv")
    return late.assign(op=late["op_name"].fillna("").map(plain))


def _calls(made: DlrmConfig, op: str) -> int:
    """How often a step calls an op of 2021."""
    layers = len(made.bottom_mlp) + len(made.top_mlp)
    of_layers = {
        "AddmmBackward": layers, "aten::linear": layers, "aten::sum": layers, "TBackward": layers,
        "torch::autograd::AccumulateGrad": 2 * layers, "aten::relu": layers - 1,
        "ReluBackward": layers - 1, "aten::cat": 2, "aten::add": 2,
    }  # fmt: skip
    return of_layers.get(op, 1)


def _host(source: str, late: pd.DataFrame, early: pd.DataFrame) -> Host:
    t1 = late[late["overhead_type"] == "t1"]
    t2, t3, t5 = (early[early["type"] == kind] for kind in ("t2", "t3", "t5"))
    # 2022 has no outermost `aten::sum` any more
    before = _by_op(t2) | _by_op(late[late["overhead_type"] == "t2"])
    t3 = t3[t3["op"] != "aten::to"]  # it holds the wait for the copy, which is the device's time
    after = _by_op(t3) | {"aten::to": _spread(pd.Series([0.0]))}
    between = _by_op(t5[t5["op"].isin(before)])
    if "aten::to" in before:
        between["aten::index"] = before["aten::to"]
    if "aten::sum" in after and "aten::sum" in before:
        to_sum_s = after["AddmmBackward"].mean_s + before["aten::sum"].mean_s
        gap_s = np.array([between["AddmmBackward"].mean_s, to_sum_s])
        between["AddmmBackward"] = _spread(pd.Series(1e6 * gap_s))
        after["AddmmBackward"] = after["aten::sum"]
    launch_call = _spread(pd.Series([LAUNCH_CALL_S * 1e6]))
    return Host(
        source=source,
        profiler_s=0.0,
        between_ops_s=_spread(t1["mean_us"], t1["count"]),
        before_launch_s=_overhead(before),
        after_launch_s=_overhead(after),
        launch_call_s=_overhead({"cudaLaunchKernel": launch_call}),
        between_launches_s=_overhead(between),
        without_launch_s=_overhead(_by_op(t5[~t5["op"].isin(before)])),
    )


def _by_op(rows: pd.DataFrame) -> dict[str, Spread]:
    return {str(op): _spread(part["mean_us"], part["count"]) for op, part in rows.groupby("op")}


def _overhead(by_kind: dict[str, Spread]) -> Overhead:
    weights = pd.Series([one.count for one in by_kind.values()])
    means_us = pd.Series([one.mean_s * 1e6 for one in by_kind.values()])
    return Overhead(shared=_spread(means_us, weights), by_kind=by_kind)


def _spread(mean_us: pd.Series, count: pd.Series | None = None) -> Spread:
    weights = np.ones(len(mean_us)) if count is None else count.to_numpy(float)
    mean_s = float(np.average(mean_us.to_numpy(float), weights=weights)) * 1e-6
    return Spread(mean_s=mean_s, std_s=0.0, median_s=mean_s, count=max(3, int(weights.sum())))
