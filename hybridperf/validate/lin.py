"""`hybridperf validate lin`: DLRMs of Lin et al. (HiPC 2022, TPDS 2025) predicted, beside their own
errors and null models.

Nothing is fitted on the cells that are judged. What a kernel sequence or a host gives is given by
another workload or another rank; what is borrowed from the traced sequences says so
(`lin_borrowed`), and the figures without it stand beside.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.io import InputError, write_table
from hybridperf.model import PerfModel, load_model, model_or_datasheet
from hybridperf.ops.embedding import lin as lin_formulas
from hybridperf.report import text
from hybridperf.validate import lin_data, lin_ranks, lin_single
from hybridperf.validate.lin_kernels import KernelPrices

MODEL = (  # of the V100s that are shipped, the one whose products and loops were measured
    "v100_pcie_32g"
)
KERNEL_SUM_GOAL, RANK_GOAL = 0.06, 0.10
_DATES = ("2021-05-04", "2021-05-14")  # the other two dates recorded the same models
_BATCH = 2048
_LOOKUPS = {"LookupFunction": "forward", "LookupFunctionBackward": "backward"}
_OTHERS = {"P100": ("p100_pcie_16g", 1.189e9), "Xp": ("titanxp", 1.404e9)}


def run(data: Path, out: Path, model: str = MODEL) -> None:
    """Print all tables and write them to `out` as CSV."""
    prices = KernelPrices(load_model(model), lin_data.CLOCK_HZ)
    rate, clock = prices.streaming_bytes_per_s / 1e9, lin_data.CLOCK_HZ / 1e6
    print(f"Kernels of {prices.model.device.name} at {clock:.0f} MHz; loops move {rate:.0f} GB/s\n")
    kernels = lin_single.kernels(data, prices)
    print(_kernel_table(kernels))
    print(_sums(data, prices, kernels), end="\n\n")
    looked_up = lookups(kernels)
    print(_lookup_table(looked_up), end="\n\n")
    by_gpu = {"V100": prices} | _other_gpus()
    plain = lin_single.cells(data, by_gpu)
    added = lin_single.cells(data, by_gpu, added_s=lin_data.ADDED_S)
    print(_cell_table(plain, added))
    print(_cell_summary(data, by_gpu, plain, added), end="\n\n")
    ranks = lin_ranks.ranks(data)
    print(_rank_tables(ranks))
    tables = {
        "kernels": kernels,
        "lookups": looked_up,
        "cells": plain,
        "cells_added": added,
        "ranks": ranks.steps,
        "waits": ranks.waits,
    }
    for name, frame in tables.items():
        write_table(frame, out / f"lin_{name}.csv")
    print(f"\ntables in {out}/lin_*.csv")


def _other_gpus() -> dict[str, KernelPrices]:
    found = {}
    for gpu, (name, clock_hz) in _OTHERS.items():
        try:
            model: PerfModel = model_or_datasheet(name)
        except InputError:
            continue  # its cells say so
        found[gpu] = KernelPrices(model, clock_hz)
    return found


def _kernel_table(kernels: pd.DataFrame) -> str:
    """One line per kind of op: microseconds measured and predicted, of both models."""
    one = kernels[kernels["date"].isin(_DATES)]
    rows = []
    wide = one.pivot(index="op", columns="workload", values=["measured_s", "predicted_s"]) * 1e6
    for op in wide[("measured_s", "DLRM_default")].fillna(0.0).sort_values(ascending=False).index:
        cells = [
            wide.loc[op, (what, workload)]
            for workload in ("DLRM_default", "DLRM_MLPerf")
            for what in ("measured_s", "predicted_s")
        ]
        rows.append([op, *("" if np.isnan(cell) else f"{cell:.0f}" for cell in cells)])
    return text.table(
        ["kernels by op, us a step (B = 2048)", "default", "predicted", "MLPerf", "predicted"], rows
    )


def lookups(kernels: pd.DataFrame) -> pd.DataFrame:
    """Embedding kernels as measured, by us, and by the formulas of Lin's pipeline with their own
    constants of a V100, s a step.
    """
    found = kernels[kernels["op"].isin(_LOOKUPS) & kernels["date"].isin(_DATES)]
    rows = []
    for _, one in found.iterrows():
        tables, direction = lin_data.config(one["workload"], _BATCH).tables, _LOOKUPS[one["op"]]
        theirs = {
            name: by[direction](tables, _BATCH, lin_formulas.gpu("v100_sxm2"))
            for name, by in lin_formulas.FORMULAS.items()
        }
        rows.append(
            {
                "workload": one["workload"],
                "direction": direction,
                **one[["measured_s", "predicted_s"]],
                **theirs,
            }
        )
    return pd.DataFrame(rows)


def _lookup_table(found: pd.DataFrame) -> str:
    numbers = ["measured_s", "predicted_s", *lin_formulas.FORMULAS]
    rows = [
        [f"{one['workload']} {one['direction']}", *(f"{one[name] * 1e6:.0f}" for name in numbers)]
        for _, one in found.iterrows()
    ]
    headers = [
        "lookups, us a step (B = 2048)",
        "measured",
        "predicted",
        "Lin: all from memory",
        "Lin: hits",
    ]
    return text.table(headers, rows)


def _sums(data: Path, prices: KernelPrices, kernels: pd.DataFrame) -> str:
    datasheet = lin_single.kernels(data, lin_single.datasheet(prices), borrow=False)
    alone = lin_single.kernels(data, prices, borrow=False)
    rows = []
    for (date, workload), part in kernels.groupby(["date", "workload"], sort=False):
        errors = [_sum_error(frame, date) for frame in (kernels, alone, datasheet)]
        reached = "yes" if abs(errors[0]) <= KERNEL_SUM_GOAL else "no"
        rows.append(
            [
                f"{workload} {date}",
                f"{part['measured_s'].sum() * 1e6:.0f}",
                *map(_percent, errors),
                reached,
            ]
        )
    return text.table(
        [
            "summed kernel time",
            "us",
            "error",
            "nothing borrowed",
            "datasheet",
            f"within {KERNEL_SUM_GOAL:.0%}",
        ],
        rows,
    )


def _sum_error(frame: pd.DataFrame, date: object) -> float:
    sums = frame.loc[frame["date"] == date, ["measured_s", "predicted_s"]].sum()
    return float(sums["predicted_s"] / sums["measured_s"] - 1)


def _cell_table(plain: pd.DataFrame, added: pd.DataFrame) -> str:
    rows = []
    for (_, one), (_, more) in zip(plain.iterrows(), added.iterrows(), strict=True):
        head = [
            f"{one['gpu']} {one['workload']} {one['batch_size']}",
            f"{one['actual_s'] * 1e3:.2f}",
        ]
        errors = (
            one["active_error"],
            more["active_error"],
            one["shared_error"],
            more["shared_error"],
            one["own_error"],
        )
        rows.append([*head, *map(_percent, errors), one["note"]])
    headers = [
        "cell",
        "ms",
        "active",
        "active, 5 us more",
        "shared host",
        "shared, 5 us more",
        "own host",
        "",
    ]
    return text.table(headers, rows)


def _cell_summary(
    data: Path, by_gpu: dict[str, KernelPrices], plain: pd.DataFrame, added: pd.DataFrame
) -> str:
    roofline = lin_single.cells(data, {"V100": lin_single.datasheet(by_gpu["V100"])}, borrow=False)
    unborrowed = lin_single.cells(data, {"V100": by_gpu["V100"]}, borrow=False)
    rows = []
    groups = {gpu: plain["gpu"] == gpu for gpu in plain["gpu"].unique()}
    groups = {"V100": groups["V100"] & plain["given"], "V100 with DDP": groups["V100"]} | {
        g: at for g, at in groups.items() if g != "V100"
    }
    for group, at in groups.items():
        here, alone, more, bare = (frame[at] for frame in (plain, unborrowed, added, roofline))
        for what, name in (
            ("active", "GPU active"),
            ("shared", "step, shared host"),
            ("own", "step, own host"),
            ("profiled", "step, shared host as of 2021"),
            ("dlrms", "step, host shared by DLRMs only"),
        ):
            found = [
                lin_single.geomean(frame[f"{what}_error"]) for frame in (here, alone, more, bare)
            ]
            if np.isnan(found[0]):
                continue
            goal = lin_single.GOALS.get(what) if group.startswith("V100") else None
            nulls = [
                lin_single.geomean(here[f"{null}_error"]) if what != "active" else np.nan
                for null in ("kernels_only", "constant")
            ]
            bar = [
                "" if goal is None else f"<= {goal:.1%}",
                "" if goal is None else _percent(lin_single.BY_LIN[what], signed=False),
            ]
            count = str(int(here[f"{what}_error"].count()))
            values = (*found[:3], *nulls, found[3])
            rows.append(
                [
                    f"{group}: {name}",
                    count,
                    *(_percent(value, signed=False) for value in values),
                    *bar,
                ]
            )
    nulls_of = ["kernels only", "constant", "roofline"]
    headers = [
        "geometric mean of |error|",
        "cells",
        "ours",
        "nothing borrowed",
        "5 us more",
        *nulls_of,
        "bar",
        "Lin",
    ]
    said = (
        "5 us more: added to every kernel, as Lin's pipeline does. Active seconds: from Lin's own"
        " errors, of one and the same\nprediction, against them and against the step. Hosts: T1, T2"
        " of 2022; T3, T5 of 2021, shrunk to 2022 as each op's T2.\nShared: raw samples of all"
        " workloads pooled (for T1, T2 CNNs, too), as Lin's. DDP: how many rows a sample looks up"
        " is not\nin the data. Lin's errors are over all 12 cells."
    )
    return text.table(headers, rows) + "\n" + said


def _rank_tables(ranks: lin_ranks.Ranks) -> str:
    rows = [
        [
            str(int(one["rank"])),
            f"{one['measured_s'] * 1e3:.2f}",
            f"{one['predicted_s'] * 1e3:.2f}",
            _percent(one["error"]),
            "yes" if abs(one["error"]) <= RANK_GOAL else "no",
            _percent(one["null_error"]),
        ]
        for _, one in ranks.steps.iterrows()
    ]
    steps = text.table(
        [
            "8-V100 step: rank",
            "ms",
            "predicted",
            "error",
            f"within {RANK_GOAL:.0%}",
            "null: mean of others",
        ],
        rows,
    )
    wide = ranks.waits.assign(
        cell=[f"{m * 1e6:.0f} | {p * 1e6:.0f}" for m, p in zip(*_waits(ranks), strict=True)]
    )
    table = wide.pivot(index="collective", columns="rank", values="cell").fillna("")
    lines = [
        [str(name), *map(str, row)] for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return (
        steps
        + "\n\n"
        + text.table(
            ["us waited, measured | predicted", *(f"rank {rank}" for rank in table.columns)], lines
        )
    )


def _waits(ranks: lin_ranks.Ranks) -> tuple[pd.Series, pd.Series]:
    return ranks.waits["measured_s"], ranks.waits["predicted_s"]


def _percent(value: float, signed: bool = True) -> str:
    return "" if np.isnan(value) else f"{value:+.1%}" if signed else f"{value:.1%}"
