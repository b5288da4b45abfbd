"""Measured training steps of graph networks: each graph's by kernels fitted to all others.

A step is `hp.gnn`'s, its sparse products by the rows of the same GPU without the graph, everything
else as that GPU is priced without measurements, its launches by the host that Lin et al. traced
beside a V100 (no trace of the measured host is public). The backends of the table are kernels of
the SpMM table; "router" takes the kernel whose step is the quickest. PyG's kernel was measured in
no table alone: its steps are priced as the library's and not counted. A second line has a
graph's own sparse products among the rows: what is left then is the rest of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import predict
from hybridperf.hardware import Host, load_device
from hybridperf.learning.prior.shipped import Prior
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import fit
from hybridperf.validate import lin_data
from hybridperf.validate.harness import Columns, Found, ResultLine
from hybridperf.workloads.gnn import gnn
from hybridperf.workloads.gnn_config import GnnConfig, GraphShape

GOAL = 0.2
_COLUMNS = Columns("time_s", interval=None, baselines={"roofline x constant": "constant_s"})
_KERNELS = {
    "cusparse": ("", "fp32"), "tc_direct": ("tc_direct", "fp16"),
    "tc_direct_tf32": ("tc_direct", "tf32"), "pyg": ("", "fp32"),
}  # fmt: skip
_UNMEASURED = "pyg"
NOBODY = Prior({}, {})  # the shipped prior may have seen the graphs


def of_steps(steps: pd.DataFrame, rows: Mapping[str, pd.DataFrame], lin: Path | None) -> Found:
    """The steps of each graph; `rows`: SpMM kernels by device; `lin`: the folder of its host."""
    host = None if lin is None else lin_data.shared_host(lin)
    judged, own = [], []
    knowing = {
        device: fit(rows[device], load_device(device), prior=NOBODY)[0]
        for device in map(str, steps["device"].unique())
    }
    for (device, graph), mine in steps.groupby(["device", "graph"]):
        kernels = rows[str(device)]
        shapes = kernels[kernels["graph"] == graph]
        if shapes.empty:
            continue
        others = kernels[kernels["graph"] != graph]
        model, _ = fit(others, load_device(str(device)), prior=NOBODY)
        judged.append(_predicted(model, mine, shapes.iloc[0], others, host))
        own.append(_predicted(knowing[str(device)], mine, shapes.iloc[0], others, host))
    frame, known = pd.concat(judged, ignore_index=True), pd.concat(own, ignore_index=True)
    counted = frame[frame["backend"] != _UNMEASURED]
    lines = [_line("steps, graphs left out", counted)]
    lines += [_line("the same, with kernels of the graph", known[known["backend"] != _UNMEASURED])]
    for column in ("graph", "model", "backend"):
        lines += [_line(f"{column} {name}", part) for name, part in frame.groupby(column)]
    return Found("", {"steps": frame}, lines)


def _predicted(
    model: PerfModel, steps: pd.DataFrame, shape: pd.Series, kernels: pd.DataFrame,
    host: Host | None,
) -> pd.DataFrame:  # fmt: skip
    """Steps of one graph with `predicted_s`, and the datasheet's `roofline_s`."""
    known = sorted({*zip(kernels["kernel"], kernels["dtype"], strict=True)})
    degrees = float(shape["cv_degree"]), float(shape["max_degree"])
    ours, bare, sheet = [], [], PerfModel.datasheet(model.device)
    for row in steps.itertuples():
        graph = GraphShape(float(row.rows), float(shape["nnz"]), *degrees)
        widths = (int(row.in_dim), int(row.hidden_dim), int(row.out_dim))
        chosen = known if row.backend == "router" else [_KERNELS[str(row.backend)]]
        configs = [
            GnnConfig(graph, widths, row.model, kernel=kernel, aggregate_dtype=dtype)
            for kernel, dtype in chosen
        ]
        ours.append(min(predict(model, gnn(one, host)).time_s for one in configs))
        bare.append(min(predict(sheet, gnn(one)).time_s for one in configs))
    return steps.assign(predicted_s=ours, roofline_s=bare)


def _line(name: str, rows: pd.DataFrame) -> ResultLine:
    """Mean error, with the datasheet's times the others' median ratio."""
    ratio = rows["time_s"] / rows["roofline_s"]
    constant = [
        ratio[rows["graph"] != graph].median() if (rows["graph"] != graph).any() else ratio.median()
        for graph in rows["graph"]
    ]
    judged = rows.assign(constant_s=rows["roofline_s"] * np.array(constant))
    return _COLUMNS.line(name, judged, GOAL, "mean error")
