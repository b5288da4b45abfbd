"""Held-out errors of the claim `devices` against rows of a device, a panel per line and device."""

import os
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.report.plots import new_panels, plain_ticks, save_figure, shared_legend

_DEVICE_COLUMNS = 4
_ZERO_AT = 8.0  # rows; where a logarithmic axis shows none
_BASELINES = {
    "null_roofline": ("datasheet roofline", "0.6", ":"),
    "null_floor_and_rates": ("floor and two efficiencies", "C1", ":"),
    "null_trees": ("trees on time", "C2", "--"),
    "null_residual_trees": ("trees on roofline residual", "C4", "--"),
    "null_process": ("Gaussian process", "C0", "--"),
    "knobs": ("our knobs alone", "crimson", "-"),
}
_PERCENTS = (1, 2, 5, 10, 20, 50, 100)


def learning_curves(results: pd.DataFrame, path: str | os.PathLike) -> None:
    """Median error on unseen shapes against rows fitted on, a panel per line and device."""
    results = results[(results["shapes"] == "unseen") & (~results["line"].str.contains(": "))]
    groups = list(results.groupby(["line", "device", "split"], sort=False))
    if not groups:
        return
    columns = min(_DEVICE_COLUMNS, len(groups))
    figure, panels = new_panels(len(groups), columns, (3.1, 2.6), (0.6, 0.9), narrowest=8.0)
    for axes, ((line, device, split), rows) in zip(panels, groups, strict=True):
        _errors_panel(axes, rows.sort_values("fitted", kind="stable"))
        axes.set_title(f"{line}\n{device} (split {split})", fontsize=8)
    figure.supxlabel("rows of the new device", fontsize=9)
    figure.supylabel("median error on shapes never seen, %", fontsize=9)
    shared_legend(figure, panels, fontsize=8, ncols=4)
    save_figure(figure, path)


def _errors_panel(axes: Any, rows: pd.DataFrame) -> None:
    at = np.where(rows["fitted"] > 0, rows["fitted"], _ZERO_AT).astype(float)
    for column, (label, colour, dashes) in _BASELINES.items():
        if column in rows.columns and rows[column].notna().any():
            error = 100 * rows[column].astype(float)
            axes.plot(at, error, color=colour, lw=1, ls=dashes, label=label)
    axes.plot(at, 100 * rows["median"], color="black", lw=2, marker="o", ms=4, label="ours")
    goals = rows["goal"].astype(float)
    if goals.notna().any():
        axes.plot(at, 100 * goals, color="black", ls="none", marker="x", ms=6, label="goal")
    noise = rows["noise"].astype(float).median()
    if np.isfinite(noise) and noise > 0:
        axes.axhline(100 * noise, color="black", lw=0.8, ls=":", label="repeat noise")
    axes.set(xscale="log", yscale="log")
    low, high = 100 * rows["median"].min() / 2, 100 * rows["median"].max() * 3
    axes.set_ylim(max(0.5, low), min(200.0, max(high, 20.0)))
    plain_ticks(axes, at, lambda x, _: "0" if x == _ZERO_AT else f"{x:g}", _PERCENTS)
