"""Sparse products and training steps of graph networks on graphs that no fit has seen.

    kernels   SpMM of 26 graphs on two GPUs (RA-SpMM): whole graphs are left out in five folds, each
              GPU by its own rows of the other graphs
    gpus      all rows of one GPU by the other's alone: a prior of one device
    steps     training steps of graph networks (GCN, GraphSAGE, GIN) on whole graphs, each graph's
              by the kernels of all other graphs; not with `quick`

Beside ours: trees given the same rows and inputs, and the datasheet's roofline times a constant of
each kernel.

A step of a graph network is `hp.gnn`'s, its sparse products by the rows of the same GPU without the
graph, everything else as that GPU is priced without measurements, its launches by the host that Lin
et al. traced beside a V100 (no trace of the measured host is public). The backends of the table are
kernels of the SpMM table; "router" takes the kernel whose step is the quickest. PyG's kernel was
measured in no table alone: its steps are priced as the library's and not counted. A second line has
a graph's own sparse products among the rows: what is left then is the rest of the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims import lin_data
from benchmarks.claims.device_baselines import trees
from benchmarks.claims.harness import Columns, Found, ResultLine, claim
from benchmarks.claims.scores import SEED
from hybridperf.engine.prediction import predict
from hybridperf.hardware import Host, load_device
from hybridperf.learning.prior import FamilyRows, concatenate, train_family
from hybridperf.learning.prior.shipped import Prior
from hybridperf.model import PerfModel
from hybridperf.model.families import architectures_of, family_rows
from hybridperf.model.fit.device import fit
from hybridperf.model.fit.rows import parse_measured
from hybridperf.workloads.gnn import gnn
from hybridperf.workloads.gnn_config import GnnConfig, GraphShape
from hybridperf_calibration.published.sparse import by_device, read_spmm, read_steps

TASKS = ("kernels", "gpus", "steps")
FOLDS = 5
_MEDIAN, _MEAN = 0.10, 0.15
_COLUMNS = Columns("time_s", baselines={"trees": "trees_s", "roofline x constant": "constant_s"})


@claim("sparse", TASKS, by_data=True)
def run(data: Path | None, tasks: Sequence[str], quick: bool) -> Iterator[Found]:
    """The tasks; `quick`: one fold of one GPU."""
    rows = by_device(read_spmm(Path(data or "")))
    for task in tasks:
        if task == "kernels":
            yield of_kernels(rows, quick)
        elif task == "gpus":
            yield of_gpus(rows, quick)
        elif not quick:
            folder = Path(data or "")
            yield of_steps(read_steps(folder), rows, folder)


def of_kernels(rows: Mapping[str, pd.DataFrame], quick: bool) -> Found:
    """Graphs left out."""
    judged = []
    for device, frame in list(rows.items())[: 1 if quick else None]:
        fold = folds_of(frame["graph"])
        for k in range(1 if quick else FOLDS):
            given, rest = frame[fold != k], frame[fold == k]
            model, _ = fit(given, load_device(device), prior=NOBODY)
            judged.append(_predicted(model, given, rest))
    return _found("kernels", "graphs left out", judged)


def of_gpus(rows: Mapping[str, pd.DataFrame], quick: bool) -> Found:
    """One GPU by the other."""
    judged = []
    for device, frame in list(rows.items())[: 1 if quick else None]:
        others = {name: other for name, other in rows.items() if name != device}
        seen = {name: _timed(other, name) for name, other in others.items()}
        prior = train_family(seen, architectures=architectures_of(others))
        model, _ = fit(None, load_device(device), prior=Prior({"spmm": prior}, {}))
        judged.append(_predicted(model, pd.concat(others.values(), ignore_index=True), frame))
    return _found("gpus", "by the other GPU alone", judged)


def folds_of(graph: pd.Series) -> np.ndarray:
    """The fold of each row [N]: graphs are dealt, not rows."""
    names = sorted(graph.unique())
    dealt = np.random.default_rng(SEED).permutation(len(names)) % FOLDS
    return graph.map(dict(zip(names, dealt, strict=True))).to_numpy()


def _predicted(model: PerfModel, given: pd.DataFrame, rest: pd.DataFrame) -> pd.DataFrame:
    """Judged rows with seconds by ours and by the baselines."""
    out = model.predict_ops(rest.reset_index(drop=True))
    device = str(rest["device"].iloc[0])
    seen = [_timed(one, name) for name, one in by_device(given).items()]
    own = seen[0] if (given["device"] == device).all() else None
    asked, at = _family(rest, device)
    by_trees = np.empty(len(rest))
    by_trees[at] = np.exp(trees([] if own else seen, own, False)(asked))
    over = given.assign(r=given["time_s"] / _roofline(given))
    constant = over.groupby(["kernel", "dtype"])["r"].median()
    kinds = pd.MultiIndex.from_frame(rest[["kernel", "dtype"]])
    times = constant.reindex(kinds).fillna(constant.median()).to_numpy()
    return out.assign(trees_s=by_trees, constant_s=_roofline(rest).to_numpy() * times)


def _roofline(frame: pd.DataFrame) -> pd.Series:
    """The datasheet's seconds of rows, each on its own device."""
    out = pd.Series(np.nan, index=frame.index)
    for device, rows in frame.groupby("device"):
        bare = PerfModel.datasheet(load_device(str(device)))
        out[rows.index] = bare.predict_ops(rows.reset_index(drop=True))["roofline_s"].to_numpy()
    return out


def _family(frame: pd.DataFrame, device: str) -> tuple[FamilyRows, np.ndarray]:
    """(rows as priors see them, their places in the table)."""
    spec = load_device(device)
    parts = parse_measured(frame.reset_index(drop=True), spec).parts
    every = [family_rows(part, np.ones(len(part.rows), bool), spec) for part in parts]
    return concatenate(every), np.concatenate([part.rows for part in parts])


def _timed(frame: pd.DataFrame, device: str) -> tuple[FamilyRows, np.ndarray]:
    """Rows with their seconds."""
    rows, at = _family(frame, device)
    return rows, frame["time_s"].to_numpy(float)[at]


def _found(task: str, name: str, judged: Sequence[pd.DataFrame]) -> Found:
    """Lines over all rows and by GPU: the median error, with its mean as a second line."""
    frame = pd.concat(judged, ignore_index=True)
    lines = [line for part, rows in _parts(frame) for line in _lines(f"{name}{part}", rows)]
    return Found("", {task: frame}, lines)


def _parts(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    yield "", frame
    for device, rows in frame.groupby("device"):
        yield f", {device}", rows
    sizes: Sequence[tuple[str, Callable[[pd.Series], pd.Series]]] = (
        ("under 0.1 ms", lambda s: s < 1e-4),
        ("0.1 to 1 ms", lambda s: (s >= 1e-4) & (s < 1e-3)),
        ("over 1 ms", lambda s: s >= 1e-3),
    )
    for word, of in sizes:
        if (some := frame[of(frame["time_s"])]).shape[0]:
            yield f", {word}", some


def _lines(name: str, rows: pd.DataFrame) -> list[ResultLine]:
    middle = _COLUMNS.line(name, rows, _MEDIAN, "median error")
    apart = dataclasses.replace(_COLUMNS, interval=None)
    return [middle, apart.line(name, rows, _MEAN, "mean error")]


GOAL = 0.2
_STEP_COLUMNS = Columns("time_s", baselines={"roofline x constant": "constant_s"})
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
        judged.append(_predicted_steps(model, mine, shapes.iloc[0], others, host))
        own.append(_predicted_steps(knowing[str(device)], mine, shapes.iloc[0], others, host))
    frame, known = pd.concat(judged, ignore_index=True), pd.concat(own, ignore_index=True)
    counted = frame[frame["backend"] != _UNMEASURED]
    lines = [_step_line("steps, graphs left out", counted)]
    lines += [
        _step_line("the same, with kernels of the graph", known[known["backend"] != _UNMEASURED])
    ]
    for column in ("graph", "model", "backend"):
        lines += [_step_line(f"{column} {name}", part) for name, part in frame.groupby(column)]
    return Found("", {"steps": frame}, lines)


def _predicted_steps(
    model: PerfModel, steps: pd.DataFrame, shape: pd.Series, kernels: pd.DataFrame,
    host: Host | None,
) -> pd.DataFrame:  # fmt: skip
    """Steps of one graph with `predicted_s`, its interval, and the datasheet's `roofline_s`."""
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
        found = (predict(model, gnn(one, host)) for one in configs)
        ours.append(min(found, key=lambda one: one.time_s))
        bare.append(min(predict(sheet, gnn(one)).time_s for one in configs))
    ends = {f"{end}_s": [getattr(one, f"{end}_s") for one in ours] for end in ("low", "high")}
    return steps.assign(predicted_s=[one.time_s for one in ours], roofline_s=bare, **ends)


def _step_line(name: str, rows: pd.DataFrame) -> ResultLine:
    """Mean error, with the datasheet's times the others' median ratio."""
    ratio = rows["time_s"] / rows["roofline_s"]
    constant = [
        ratio[rows["graph"] != graph].median() if (rows["graph"] != graph).any() else ratio.median()
        for graph in rows["graph"]
    ]
    judged = rows.assign(constant_s=rows["roofline_s"] * np.array(constant))
    return _STEP_COLUMNS.line(name, judged, GOAL, "mean error")
