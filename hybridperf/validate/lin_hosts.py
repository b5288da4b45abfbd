"""Hosts of Lin et al. from what they published: overheads before, between and after launches
(`data/lin`).

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

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.hardware import Host, Overhead, Spread
from hybridperf.validate import lin_data as lin
from hybridperf.workloads.dlrm import DlrmConfig

_RUN = ["workload", "batch_size"]


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
    early = lin.read(data, "overheads_t1_t5_v100_2021.csv")
    early = early[early["type"].isin(["t2", "t3", "t5"])]
    early = early.assign(op=early["op_or_runtime_call"].map(lin.plain))
    rows = lin.read(data, "v100_dlrm_kernel_sequence.csv")
    rows = rows[rows["kernel"] != "Memset (Device)"]  # no launch of a kernel
    by_op = rows.assign(op=rows["op"].map(lin.plain)).groupby(["notebook_date", "op"])
    launches = by_op["launch_count"].sum() / lin.PER_ITERATION
    launching = set(early.loc[early["type"] != "t5", "op"])
    means, each, counts = [], [], []
    for one in early.itertuples():
        calls = _calls(lin.config(one.workload, int(one.batch_size)), one.op)
        gaps = 1.0
        if one.type == "t5" and one.op in launching:
            gaps = max(round(launches.get((one.notebook_date, one.op), 1.0)) / calls - 1, 1.0)
        together = one.workload == "DLRM_MLPerf"  # there T5 is of an op's gaps together
        means.append(one.mean_us / gaps if together else one.mean_us)
        each.append(calls)
        counts.append(lin.PER_ITERATION * calls * gaps)
    return early.assign(mean_us=means, calls=each, count=counts)


def _late(data: Path) -> pd.DataFrame:
    return lin.read(data, "overheads_t1_t2_daisy.csv").assign(
        op=lambda frame: frame["op_name"].fillna("").map(lin.plain)
    )


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
    launch_call = _spread(pd.Series([lin.LAUNCH_CALL_S * 1e6]))
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
    return Overhead(
        shared=_spread(pd.Series([one.mean_s * 1e6 for one in by_kind.values()]), weights),
        by_kind=by_kind,
    )


def _spread(mean_us: pd.Series, count: pd.Series | None = None) -> Spread:
    weights = np.ones(len(mean_us)) if count is None else count.to_numpy(float)
    mean_s = float(np.average(mean_us.to_numpy(float), weights=weights)) * 1e-6
    return Spread(mean_s=mean_s, std_s=0.0, median_s=mean_s, count=max(3, int(weights.sum())))
