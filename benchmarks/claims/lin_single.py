"""Lin et al. on one GPU: kernels of a step, seconds in which the GPU is active, the step with its
host.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

import benchmarks.claims.lin_data as lin
from benchmarks.claims.lin_data import own_host, shared_host
from benchmarks.claims.lin_kernels import KernelPrices, borrowed
from hybridperf.engine.evaluate import timeline
from hybridperf.engine.lower import lower
from hybridperf.engine.workload import Workload
from hybridperf.hardware import Host
from hybridperf.model import PerfModel
from hybridperf.model.calls import GivenSeconds
from hybridperf.ops import OpCall
from hybridperf.workloads.dlrm import DlrmConfig, dlrm
from hybridperf.workloads.programs.eager import Eager

# their V100 cells: geometric mean of the errors' sizes
BY_LIN = {"active": 0.0269, "shared": 0.0692, "own": 0.0756}
GOALS = {"active": 0.027, "shared": 0.069, "own": 0.075}


@dataclasses.dataclass(frozen=True)
class LinStep:
    """One predicted step. U rows, N nodes."""

    workload: Workload
    row_s: np.ndarray  # [U]

    @property
    def node_s(self) -> np.ndarray:
        """Seconds of each node on the device [N]."""
        row = self.workload.graph.row
        return np.where(row > 0, self.row_s[row - 1], 0.0)

    @property
    def active_s(self) -> float:
        """Seconds in which the device is busy; nothing overlaps copies of the batch."""
        return float(self.node_s.sum())

    @property
    def time_s(self) -> float:
        return float(timeline(lower(self.workload.graph), self.row_s).end_s.max())

    def by_op(self) -> pd.Series:
        """Seconds by the framework's op."""
        ops = [lin.plain(label) for label in self.workload.graph.labels]
        return pd.Series(self.node_s, ops).groupby(level=0).sum()


def step(
    config: DlrmConfig, prices: KernelPrices, host: Host | None = None, added_s: float = 0.0
) -> LinStep:
    """`added_s`: to every kernel."""
    workload = dlrm(config, host)
    added = [added_s if isinstance(call, OpCall) else 0.0 for call in workload.calls]
    row_s = prices.seconds(workload.calls) + np.array(added)
    if (rates := prices.borrowed) is None:
        return LinStep(workload, row_s)
    columns = config.batch * config.bottom_mlp[-1]
    most_s = {
        "aten::bmm": prices.kernel_s + columns / rates.dot_columns_per_s,
        "BmmBackward": prices.kernel_s + columns / rates.dot_backward_columns_per_s,
    }
    ops = [lin.plain(label) for label in workload.graph.labels]
    index = max(node for node, op in enumerate(ops) if op == "IndexBackward")  # the last kernel
    known = {index: config.batch * lin.pairs(config) / rates.index_elements_per_s + added_s}
    for node, op in enumerate(ops):
        if op in most_s and (row := workload.graph.row[node]) > 0:
            known[node] = float(np.fmin(row_s[row - 1], most_s[op] + added_s))
    # rows of their own: other kernels may be as large
    graph_row = workload.graph.row.copy()
    graph_row[list(known)] = len(workload.calls) + 1 + np.arange(len(known))
    given = [GivenSeconds(seconds, ops[node]) for node, seconds in known.items()]
    calls = (*workload.calls, *given)
    graph = dataclasses.replace(workload.graph, row=graph_row)
    workload = dataclasses.replace(workload, graph=graph, calls=calls)
    return LinStep(workload, np.append(row_s, list(known.values())))


def kernels(data: Path, prices: KernelPrices, borrow: bool = True) -> pd.DataFrame:
    """Recorded sequences by op: `date, workload, op, measured_s, predicted_s`."""
    measured = lin.sequence(data)
    parts = []
    for (date, workload), part in measured.groupby(["date", "workload"], sort=False):
        priced = _priced(data, prices, prices if borrow else None, str(workload))
        predicted = step(_config(str(workload), 2048, priced, lin.RECORDED), priced).by_op()
        predicted = predicted[predicted > 0]
        # one of the dates records no sums and additions of the backward pass at all
        absent = [op for op in ("aten::sum", "aten::add") if op not in part["op"].to_numpy()]
        predicted = predicted.drop(absent, errors="ignore").rename("predicted_s")
        both = part.set_index("op")["measured_s"].to_frame().join(predicted, how="outer")
        both = both.fillna(0.0).rename_axis("op").reset_index()
        parts.append(both.assign(date=date, workload=workload))
    columns = ["date", "workload", "op", "measured_s", "predicted_s"]
    return pd.concat(parts, ignore_index=True)[columns]


def published(
    data: Path, prices: KernelPrices, v100: KernelPrices | None, workload: str, batch: int
) -> LinStep:
    """A published cell's step without a host, at rates borrowed from the V100's sequences."""
    priced = _priced(data, prices, v100, workload)
    return step(_config(workload, batch, priced, lin.PUBLISHED), priced)


def _priced(
    data: Path, prices: KernelPrices, v100: KernelPrices | None, workload: str
) -> KernelPrices:
    """With rates borrowed from the V100's sequences, scaled as loops are; None: without."""
    if v100 is None:
        return dataclasses.replace(prices, borrowed=None)
    factor = prices.streaming_bytes_per_s / v100.streaming_bytes_per_s
    return dataclasses.replace(prices, borrowed=borrowed(data, v100, workload).times(factor))


def _config(workload: str, batch: int, prices: KernelPrices, eager: Eager) -> DlrmConfig:
    rate = lin.COPY_BYTES_PER_S if prices.borrowed is None else prices.borrowed.copy_bytes_per_s
    return lin.config(workload, batch, rate, eager)


def cells(
    data: Path, prices: Mapping[str, KernelPrices], borrow: bool = True, added_s: float = 0.0
) -> pd.DataFrame:
    """Published cells with predictions and errors. `prices` by GPU; `given`: whether the data give
    all of a cell's inputs, else `note`.

    Hosts: `shared`, `own`; on the V100 also `profiled`, the shared one as slow as in 2021, and
    `dlrms`, shared by DLRMs only.
    """
    found, shared = lin.cells(data), shared_host(data)
    others = {
        "profiled_s": shared_host(data, shrunk=False), "dlrms_s": shared_host(data, family="DLRM"),
    }  # fmt: skip
    rows: list[dict[str, float]] = []
    for gpu, workload, batch in found[["gpu", "workload", "batch_size"]].itertuples(index=False):
        row = dict.fromkeys(("predicted_active_s", "shared_s", *others, "own_s"), np.nan)
        rows.append(row)
        if gpu not in prices:
            continue
        priced = _priced(data, prices[gpu], prices.get("V100") if borrow else None, workload)
        config = _config(workload, int(batch), priced, lin.PUBLISHED)
        one = step(config, priced, shared, added_s)
        row |= {"predicted_active_s": one.active_s, "shared_s": one.time_s}
        if gpu == "V100":
            hosts = others | {"own_s": own_host(data, workload, int(batch))}
            known = {name: host for name, host in hosts.items() if host is not None}
            row |= {
                name: step(config, priced, host, added_s).time_s for name, host in known.items()
            }
    notes = [
        lin.NOT_GIVEN.get(workload, "") if gpu in prices else f"no model of {gpu}"
        for gpu, workload in zip(found["gpu"], found["workload"], strict=True)
    ]
    given = ~found["workload"].isin(lin.NOT_GIVEN)
    found = found.assign(**pd.DataFrame(rows), note=notes, given=given)
    judged = found["actual_s"].where((found["gpu"] == "V100") & found["given"])
    others_s = (judged.sum() - judged) / (judged.count() - 1)
    found["constant_error"] = others_s / judged - 1  # baseline: the mean of the other cells
    for name, predicted, actual in (
        ("active", "predicted_active_s", "active_s"), ("shared", "shared_s", "actual_s"),
        ("profiled", "profiled_s", "actual_s"), ("dlrms", "dlrms_s", "actual_s"),
        ("own", "own_s", "actual_s"), ("kernels_only", "predicted_active_s", "actual_s"),
    ):  # fmt: skip
        found[f"{name}_error"] = found[predicted] / found[actual] - 1
    return found


def geomean(errors: pd.Series) -> float:
    """Geometric mean of the errors' sizes with the 4e-4 of Lin et al.; NaN of none."""
    sizes = errors.dropna().abs()
    return float(np.exp(np.log(sizes + 4e-4).mean())) if len(sizes) else np.nan


def datasheet(prices: KernelPrices) -> KernelPrices:
    """The baseline: every kernel at its device's datasheet, no minimum."""
    bare = PerfModel.datasheet(prices.model.device)
    return dataclasses.replace(prices, model=bare, kernel_s=0.0)
