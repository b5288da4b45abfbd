"""Lin et al. on one GPU: kernels of a step, seconds in which the GPU is active, the step with its host."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

import hybridperf.validate.lin_data as lin
from hybridperf.evaluate import timeline
from hybridperf.hardware import Host
from hybridperf.lower import lower
from hybridperf.model import PerfModel
from hybridperf.ops import OpCall
from hybridperf.validate.lin_kernels import KernelPrices
from hybridperf.validate.lin_profiler import read_records
from hybridperf.workload import Seconds, Workload
from hybridperf.workloads.dlrm import DlrmConfig, dlrm

BY_LIN = {"active": 0.0269, "shared": 0.0692, "own": 0.0756}  # their V100 cells: geometric mean of the errors' sizes
GOALS = {"active": 0.027, "shared": 0.069, "own": 0.075}


@dataclasses.dataclass(frozen=True)
class Step:
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
        """Seconds in which the device is busy; copies of the batch wait for nothing else, and nothing runs beside them."""
        return float(self.node_s.sum())

    @property
    def time_s(self) -> float:
        return float(timeline(lower(self.workload.graph), self.row_s).end_s.max())

    def by_op(self) -> pd.Series:
        """Seconds by the framework's op."""
        return pd.Series(self.node_s, [lin.plain(label) for label in self.workload.graph.labels]).groupby(level=0).sum()


def step(config: DlrmConfig, prices: KernelPrices, host: Host | None = None, index_rate: float | None = None, added_s: float = 0.0) -> Step:
    """`index_rate`: elements per second of the backward of `x[:, i, j]`; None: as its bytes say. `added_s`: to every kernel."""
    workload = dlrm(config, host)
    row_s = prices.seconds(workload.calls) + np.array([added_s if isinstance(call, OpCall) else 0.0 for call in workload.calls])
    if index_rate is not None:
        at = [i for i, label in enumerate(workload.graph.labels) if lin.plain(label) == "IndexBackward"][-1]
        pairs = (len(config.tables) + 1) * len(config.tables) // 2
        # a row of its own: other kernels may be as large
        graph_row = workload.graph.row.copy()
        graph_row[at] = len(workload.calls) + 1
        seconds = config.batch * pairs / index_rate + added_s
        workload = dataclasses.replace(
            workload, graph=dataclasses.replace(workload.graph, row=graph_row), calls=(*workload.calls, Seconds(seconds, "index backward"))
        )
        row_s = np.append(row_s, seconds)
    return Step(workload, row_s)


def kernels(data: Path, prices: KernelPrices, borrowed: bool = True) -> pd.DataFrame:
    """Recorded sequences by op: `date, workload, op, measured_s, predicted_s`."""
    measured, rates = lin.sequence(data), lin.index_rates(data)
    parts = []
    for (date, workload), part in measured.groupby(["date", "workload"], sort=False):
        config = lin.config(str(workload), 2048)
        predicted = step(config, prices, index_rate=rates[str(workload)] if borrowed else None).by_op()
        predicted = predicted[predicted > 0]
        # one of the dates records no sums and additions of the backward pass at all
        predicted = predicted.drop([op for op in ("aten::sum", "aten::add") if op not in part["op"].to_numpy()], errors="ignore")
        both = part.set_index("op")["measured_s"].to_frame().join(predicted.rename("predicted_s"), how="outer").fillna(0.0)
        parts.append(both.rename_axis("op").reset_index().assign(date=date, workload=workload))
    return pd.concat(parts, ignore_index=True)[["date", "workload", "op", "measured_s", "predicted_s"]]


def cells(data: Path, prices: Mapping[str, KernelPrices], borrowed: bool = True, added_s: float = 0.0) -> pd.DataFrame:
    """Published cells with predictions and errors, `note` where one is not judged. `prices` by GPU.

    Hosts: `shared`, `own`; on the V100 also `profiled`, the shared one with the profiler's cost inside, and `dlrms`, shared by DLRMs only.
    """
    found = lin.cells(data)
    rates, records = lin.index_rates(data), read_records(data)
    shared = lin.shared_host(data, records=records)
    others = {"profiled": lin.shared_host(data), "dlrms": lin.shared_host(data, records=records, family="DLRM")}
    columns: dict[str, list[float]] = {name: [] for name in ("predicted_active_s", "shared_s", "profiled_s", "dlrms_s", "own_s")}
    notes = []
    for gpu, workload, batch in found[["gpu", "workload", "batch_size"]].itertuples(index=False):
        row = dict.fromkeys(columns, np.nan)
        notes.append(lin.NOT_GIVEN.get(workload, "" if gpu in prices else f"no model of {gpu}"))
        if not notes[-1]:
            config, rate = lin.config(workload, int(batch)), rates[workload] if borrowed else None
            one = step(config, prices[gpu], shared, rate, added_s)
            row |= {"predicted_active_s": one.active_s, "shared_s": one.time_s}
            if gpu == "V100":
                row |= {f"{name}_s": step(config, prices[gpu], host, rate, added_s).time_s for name, host in others.items()}
            if (own := lin.own_host(data, workload, int(batch), records)) is not None and gpu == "V100":
                row["own_s"] = step(config, prices[gpu], own, rate, added_s).time_s
        for name, value in row.items():
            columns[name].append(value)
    found = found.assign(**columns, note=notes)
    judged = found["actual_s"].where((found["gpu"] == "V100") & (found["note"] == ""))
    found["constant_error"] = (judged.sum() - judged) / (judged.count() - 1) / judged - 1  # null model: the mean of the other cells
    for name, predicted, actual in (
        ("active", "predicted_active_s", "active_s"), ("shared", "shared_s", "actual_s"),
        ("profiled", "profiled_s", "actual_s"), ("dlrms", "dlrms_s", "actual_s"), ("own", "own_s", "actual_s"),
        ("kernels_only", "predicted_active_s", "actual_s"),
    ):  # fmt: skip
        found[f"{name}_error"] = found[predicted] / found[actual] - 1
    return found


def geomean(errors: pd.Series) -> float:
    """Geometric mean of the errors' sizes, as Lin et al. take it (their 4e-4 keeps zero away); NaN of none."""
    sizes = errors.dropna().abs()
    return float(np.exp(np.log(sizes + 4e-4).mean())) if len(sizes) else np.nan


def datasheet(prices: KernelPrices) -> KernelPrices:
    """The null model: every kernel at its device's datasheet, no least time."""
    bare = PerfModel.datasheet(prices.model.device)
    return dataclasses.replace(prices, model=bare, kernel_s=0.0)
