"""DLRMs of Lin et al. (HiPC 2022, TPDS 2025) predicted, next to their own errors and baselines.

Nothing is fitted on the cells that are judged. What a kernel sequence or a host gives is given by
another workload or another rank; what is borrowed from the traced sequences is named
(`lin_kernels`), and the figures without it stand next to it.

Of the 8-V100 step of `param_dlrm_8xv100` every rank's step and waits are predicted from the other
seven ranks' host. Given are what each rank issues and on which stream (its trace), when it begins
and when its batch is there (the first of its host times: data loading is an input), and the wire
time of each collective. Predicted are

    host        each launch and wait by its op and kernel: the mean of what the *other* ranks' hosts
                took (one rank never sees itself)
    kernels     the minimum that one takes on a V100 (a batch of 16: nothing here is bound by bytes
                or products)

and from these, by the evaluator, who waits how long for whom. The baseline: the mean step of the
other ranks. What tells ranks apart is mostly given: when they begin decides how long they
wait at the first collective.
"""

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims import harness, lin_data, lin_formulas, lin_lookups, lin_single
from benchmarks.claims.harness import Columns, Found, ResultLine
from benchmarks.claims.lin_kernels import KERNEL_S, KernelPrices
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.engine.prediction import predict
from hybridperf.io import InputError
from hybridperf.model import PerfModel, load_model, model_or_datasheet
from hybridperf.traces.events import NONE
from hybridperf.traces.readers.graphs import recorded_step
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.replay import Replay, replay
from hybridperf.traces.replay_graph import DEVICE, HOST

MODEL = "v100_pcie_32g"  # of the V100s that are shipped, the one that was measured
KERNEL_SUM_GOAL, RANK_GOAL = 0.06, 0.10
TRACES = "traces/param_dlrm_8xV100_kineto.tar.gz"
GRAPH, GRAPH_BATCH = "lin/execution_graphs/dlrm_default_1024.json", 1024
SYSTEM = "dgx_1v"  # of the V100s of Lin et al.
_GRAPH_NOTES = (
    "Their graph of DLRM_default, 1,024 samples, priced op by op; its tables are half as wide as"
    " those of the measured step (fp16 beside fp32)."
)
_DATES = ("2021-05-04", "2021-05-14")  # the other two dates recorded the same models
_BATCH = 2048
OTHERS = {"P100": ("p100_pcie_16g", 1.189e9), "Xp": ("titanxp", 1.404e9)}


def run(data: Path, out: Path, model: str = MODEL, quick: bool = False) -> None:
    """Print all tables and write them to `out` as CSV; all of it takes less than a minute."""
    del quick
    harness.publish(out, "lin", _found(data, model), print)


def _found(data: Path, model: str) -> Iterator[Found]:
    prices = KernelPrices(load_model(model), lin_data.CLOCK_HZ)
    rate, clock = prices.streaming_bytes_per_s / 1e9, lin_data.CLOCK_HZ / 1e6
    gpu = f"Kernels of {prices.model.device.name} at {clock:.0f} MHz; loops move {rate:.0f} GB/s"
    kernels = lin_single.kernels(data, prices)
    sums = _sums(data, prices, kernels)
    yield Found(gpu, {"kernels": kernels, "sums": sums, "lookups": lookups(kernels)})
    by_gpu = {"V100": prices}
    for name, (device, clock_hz) in OTHERS.items():
        with contextlib.suppress(InputError):  # a note stands in its cells
            by_gpu[name] = KernelPrices(model_or_datasheet(device), clock_hz)
    left_out = lin_lookups.held_out(data, by_gpu, kernels)
    lines = lin_lookups.result_lines(left_out)
    yield Found("", {"lookups_left_out": left_out}, lines)
    plain = lin_single.cells(data, by_gpu)
    added = lin_single.cells(data, by_gpu, added_s=lin_data.ADDED_S)
    found = summary(data, by_gpu, plain, added)
    means = pd.DataFrame(found).rename(columns={way: f"{way}_error" for way in _WAYS})
    tables = {"cells": plain, "cells_added": added, "means": means}
    yield Found(_NOTES, tables, [_result_line(one) for one in found], "cells")
    graph = own_graph(data, prices.model)
    yield Found(_GRAPH_NOTES, {"graph": graph}, [_graph_line(graph)], "graph")
    steps, waits = judge_ranks(data)
    yield Found("", {"ranks": steps, "waits": waits}, [_ranks_line(steps)], "ranks")


def lookups(kernels: pd.DataFrame) -> pd.DataFrame:
    """Embedding kernels as measured, by us, and by Lin's formulas of a V100: seconds a step."""
    found = kernels[kernels["op"].isin(lin_lookups.DIRECTIONS) & kernels["date"].isin(_DATES)]
    gpu, rows = lin_formulas.gpu("v100_sxm2"), []
    for _, one in found.iterrows():
        tables, direction = (
            lin_data.config(one["workload"], _BATCH).tables,
            lin_lookups.DIRECTIONS[one["op"]],
        )
        theirs = {
            name: lin_formulas.lookup_s(name, direction, tables, _BATCH, gpu)
            for name in lin_formulas.FORMULAS
        }
        ours = one[["measured_s", "predicted_s"]]
        rows.append({"workload": one["workload"], "direction": direction, **ours, **theirs})
    return pd.DataFrame(rows)


def _sums(data: Path, prices: KernelPrices, kernels: pd.DataFrame) -> pd.DataFrame:
    """Summed kernel time of each sequence: seconds, errors of ours, of ours with nothing borrowed,
    and of the datasheet.
    """
    datasheet = lin_single.kernels(data, lin_single.datasheet(prices), borrow=False)
    alone = lin_single.kernels(data, prices, borrow=False)
    frames, sums = {"": kernels, "unborrowed_": alone, "datasheet_": datasheet}, []
    for (date, workload), part in kernels.groupby(["date", "workload"], sort=False):
        about = {"date": date, "workload": workload, "measured_s": part["measured_s"].sum()}
        of = {name: one[one["date"] == date].sum(numeric_only=True) for name, one in frames.items()}
        sums.append(about | {
            f"{name}error": one["predicted_s"] / one["measured_s"] - 1 for name, one in of.items()
        })  # fmt: skip
    return pd.DataFrame(sums).assign(goal_error=KERNEL_SUM_GOAL)


_JUDGED = {  # columns of errors, and what they are of
    "active": "GPU active", "shared": "step, shared host", "own": "step, own host",
    "profiled": "step, shared host as of 2021", "dlrms": "step, host shared by DLRMs only",
}  # fmt: skip


_WAYS = ("ours", "unborrowed", "added", "kernels_only", "constant", "roofline", "lin")
_NOTES = (
    "geometric means of |error|; unborrowed: nothing borrowed from traced sequences; added: 5 us to"
    " every kernel, as Lin's pipeline does. Active seconds: from Lin's own errors, of one and the"
    " same\nprediction, against them and against the step. Hosts: T1, T2 of 2022; T3, T5 of 2021,"
    " shrunk to 2022 as each op's T2.\nShared: raw samples of all workloads pooled (for T1, T2"
    " CNNs, too), as Lin's. DDP: how many rows a sample looks up is not\nin the data. Lin's errors"
    " are over all 12 cells."
)


def summary(
    data: Path, by_gpu: dict[str, KernelPrices], plain: pd.DataFrame, added: pd.DataFrame
) -> list[dict[str, Any]]:
    """Geometric means of errors over each GPU's cells: `name, cells, goal, lin`, ours and the
    baselines'.
    """
    datasheet = {"V100": lin_single.datasheet(by_gpu["V100"])}
    roofline = lin_single.cells(data, datasheet, borrow=False)
    unborrowed = lin_single.cells(data, {"V100": by_gpu["V100"]}, borrow=False)
    frames = {"ours": plain, "unborrowed": unborrowed, "added": added, "roofline": roofline}
    v100 = plain["gpu"] == "V100"
    groups = {"V100": v100 & plain["given"], "V100 with DDP": v100}
    groups |= {gpu: plain["gpu"] == gpu for gpu in plain["gpu"].unique() if gpu != "V100"}
    found = []
    for group, at in groups.items():
        for what, name in _JUDGED.items():
            column = f"{what}_error"
            errors = {way: lin_single.geomean(cells[at][column]) for way, cells in frames.items()}
            if np.isnan(errors["ours"]):
                continue
            for way in ("kernels_only", "constant"):
                known = what != "active"
                errors[way] = lin_single.geomean(plain[at][f"{way}_error"]) if known else np.nan
            goal = lin_single.GOALS.get(what) if group.startswith("V100") else None
            lin = None if goal is None else lin_single.BY_LIN[what]
            cells = int(plain[at][column].count())
            about = {"name": f"{group}: {name}", "cells": cells, "goal": goal, "lin": lin}
            found.append({**about, **errors})
    return found


def _result_line(one: Mapping[str, Any]) -> ResultLine:
    others = {name: one[name] for name in ("kernels_only", "constant", "roofline", "lin")}
    measure = "geometric mean of |error|"
    return ResultLine(one["name"], one["ours"], one["cells"], one["goal"], others, measure)


def own_graph(data: Path, model: PerfModel) -> pd.DataFrame:
    """The execution graph that Lin et al. ship, as `predict --trace` reads it, beside the seconds
    in which the GPU was active: `measured_s, predicted_s, low_s, high_s, roofline_s`.
    """
    system = collectives_by_name(SYSTEM)
    step = recorded_step(Path(data) / GRAPH, system=system.system)
    found = predict(model.with_collectives(system), step)
    cells = lin_data.cells(data)
    at = (cells["gpu"] == "V100") & (cells["workload"] == "DLRM_default")
    measured_s = cells[at & (cells["batch_size"] == GRAPH_BATCH)]["active_s"]
    of = ("time_s", "low_s", "high_s", "roofline_s")
    predicted = {name: getattr(found, name) for name in of}
    predicted["predicted_s"] = predicted.pop("time_s")
    return pd.DataFrame([{"measured_s": float(measured_s.iloc[0]), **predicted}])


def _graph_line(graph: pd.DataFrame) -> ResultLine:
    (one,) = graph.itertuples()
    roofline = abs(one.roofline_s / one.measured_s - 1)
    error = abs(one.predicted_s / one.measured_s - 1)
    inside = float(one.low_s <= one.measured_s <= one.high_s)
    name = "V100: Lin's execution graph, GPU active"
    return ResultLine(
        name, error, 1, None, {"roofline": roofline}, "|error|", coverage=inside,
        half_width=float(np.sqrt(one.high_s / one.low_s) - 1),
    )  # fmt: skip


def _ranks_line(steps: pd.DataFrame) -> ResultLine:
    columns = Columns(interval=None, baselines={"mean of others": "others_s"})
    others_s = (1 + steps["null_error"]) * steps["measured_s"]
    return columns.line("8-V100 step, each rank", steps.assign(others_s=others_s), RANK_GOAL)


def judge_ranks(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The 8-V100 step, predicted next to measured: steps (`rank, measured_s, predicted_s, error`,
    `null_error` of the mean step of the others, `replay_error` of its own durations) and waits
    (`collective, rank, measured_s, predicted_s`).
    """
    made = replay(read_traces(Path(data) / TRACES))
    predicted = made.with_seconds(predicted_seconds(made))
    measured_s = made.measured_s
    others_s = (measured_s.sum() - measured_s) / (len(measured_s) - 1)
    steps = pd.DataFrame({
        "rank": np.arange(len(measured_s)), "measured_s": measured_s,
        "predicted_s": predicted.replayed_s, "error": predicted.error,
        "null_error": others_s / measured_s - 1, "replay_error": made.error,
    })  # fmt: skip
    waits = [
        pd.DataFrame(
            {"collective": str(one), "rank": one.rank, "measured_s": measured, "predicted_s": found}
        )
        for one, measured, found in predicted.waits_s()
    ]
    return steps, pd.concat(waits, ignore_index=True)


def predicted_seconds(made: Replay) -> np.ndarray:
    """Seconds of each row [U]: hosts by the other ranks', kernels by their minimum."""
    rows, seconds = made.rows, made.seconds.copy()
    device = rows.kind == DEVICE
    seconds[device] = KERNEL_S + rows.fixed_s[device]
    host = np.flatnonzero(rows.kind == HOST)
    first = {int(rows.trace[row]): int(row) for row in host[::-1]}  # until its batch is there
    keys: dict[int, tuple[Hashable, ...]] = {
        int(row): _keys(made, int(row)) for row in host if first[int(rows.trace[row])] != row
    }
    by_key: dict[Hashable, dict[int, list[float]]] = {}
    for row, names in keys.items():
        for name in names:
            of_traces = by_key.setdefault(name, {})
            of_traces.setdefault(int(rows.trace[row]), []).append(float(made.seconds[row]))
    for row, names in keys.items():
        for name in names:
            of_others = [by for trace, by in by_key[name].items() if trace != rows.trace[row]]
            if of_others:
                seconds[row] = np.mean([value for values in of_others for value in values])
                break
    return seconds


def _keys(made: Replay, row: int) -> tuple[Hashable, ...]:
    """What a host's seconds go by, the closest first: op, kernel and call; op; anything."""
    trace = made.traces[made.rows.trace[row]]
    event, call = int(made.rows.event[row]), int(made.rows.call[row])
    op = trace.op_of_call(call) if call != NONE else NONE
    name = trace.host_name(op) if op != NONE else ""
    kernel = trace.device_name(event) if event != NONE else "rest"
    return (name, kernel, trace.host_name(call) if call != NONE else ""), (name,), ()
