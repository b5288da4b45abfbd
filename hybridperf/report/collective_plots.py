"""Bus bandwidth of collectives against message size: measured rows and predicted curves."""

import os
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.rows import checked, implementations
from hybridperf.collectives.traffic import bus_bytes_per_s, link_of
from hybridperf.io import InputError
from hybridperf.report.plots import new_panels, plain_ticks, save_figure

_MOST_PANELS = 12  # the ones with the most rows
_COLUMNS = 4
_SIZES = 60  # of a curve
_MANY_POINTS = 300  # of a panel, which are then drawn small
_PANEL = ["collective", "implementation", "where"]
_RANKS = ["n_gpus", "n_nodes"]
_USUAL = ["dtype", "in_place", "lib", "lib_version", "variant"]  # a curve has the most frequent
_NAMES = {"alltoall": "all-to-all", "sendrecv": "send-receive"}
_LINKS = {"nvlink": "NVLink", "nvswitch": "NVSwitch", "pcie": "PCIe", "xgmi": "xGMI"}
_BINARY = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def bus_bandwidth_plot(
    model: CollectiveModel | pd.DataFrame, measured: pd.DataFrame, path: str | os.PathLike,
    title: str | None = None,
) -> None:  # fmt: skip
    """A panel per collective, implementation and kind of link, with 90 % intervals as bands.

    `measured`: rows with `time_s`. `model`: what predicts `curves(measured)`, or those rows with
    `predicted_s, low_s, high_s`.
    """
    if measured.empty:
        raise InputError("a plot of bus bandwidth needs measured rows; got none")
    wanted = curves(measured)
    predicted = model if isinstance(model, pd.DataFrame) else model.predict(wanted)
    points, lines = _labelled(measured), _labelled(predicted)
    rows = points.groupby(_PANEL, sort=False).size()
    keys = rows.sort_values(ascending=False, kind="stable").index[:_MOST_PANELS]
    columns = min(_COLUMNS, len(keys))
    figure, panels = new_panels(len(keys), columns, (3.6, 3.2), (0.4, 0.6), narrowest=6.5)
    for axes, key in zip(panels, keys, strict=True):
        _panel(axes, _of(points, key), _of(lines, key))
        collective, implementation, where = key
        name = _NAMES.get(collective, collective.replace("_", "-"))
        axes.set_title(f"{name}, {where}\n{implementation}", fontsize=9)
    if title is None and isinstance(model, CollectiveModel):
        link = link_of(model.system)
        joined = _LINKS.get(link, f"{link.replace('_', ' ')} links")
        title = f"{model.system.id}: {joined} inside a node"
    if title:
        figure.suptitle(title, fontsize=10)
    figure.supxlabel("message size", fontsize=9)
    figure.supylabel("bus bandwidth, GB/s", fontsize=9)
    save_figure(figure, path, dpi=120)


def curves(measured: pd.DataFrame) -> pd.DataFrame:
    """Rows to predict for the curves of measured ones: sizes in their range, the usual kind."""
    rows = _labelled(measured)
    kinds = [column for column in _USUAL if column in rows]
    parts = []
    for _, of_curve in rows.groupby([*_PANEL, *_RANKS], sort=False):
        kind = pd.Series(0, of_curve.index)
        if kinds:
            kind = of_curve.groupby(kinds, dropna=False).ngroup()
        first = of_curve[kind == kind.mode().iloc[0]].iloc[:1]
        sizes = np.geomspace(of_curve["bytes"].min(), of_curve["bytes"].max(), _SIZES)
        columns = ("system", "collective", *_RANKS, "gpus_per_node", *kinds)
        kept = [column for column in columns if column in first]
        parts.append(pd.concat([first[kept]] * _SIZES, ignore_index=True).assign(bytes=sizes))
    return pd.concat(parts, ignore_index=True)


def _labelled(frame: pd.DataFrame) -> pd.DataFrame:
    frame, _, _ = checked(frame)
    where = np.where(frame["n_nodes"] > 1, "across nodes", "one node")
    return frame.assign(implementation=implementations(frame), where=where)


def _of(frame: pd.DataFrame, key: tuple[Any, ...]) -> pd.DataFrame:
    return frame[(frame[_PANEL] == list(key)).all(axis=1)]


def _panel(axes: Any, points: pd.DataFrame, lines: pd.DataFrame) -> None:
    size, alpha = (5, 0.25) if len(points) > _MANY_POINTS else (16, 0.8)
    for number, (ranks, rows) in enumerate(points.groupby(_RANKS)):
        colour = f"C{number % 10}"
        n, nodes = (int(value) for value in ranks)
        label = f"{n} ranks" + (f", {nodes} nodes" if nodes > 1 else "")
        style = {"s": size, "alpha": alpha, "lw": 0, "color": colour, "zorder": 3}
        axes.scatter(rows["bytes"], _gb_per_s(rows, "time_s"), **style)
        line = lines[(lines["n_gpus"] == n) & (lines["n_nodes"] == nodes)].sort_values("bytes")
        axes.plot(line["bytes"], _gb_per_s(line, "predicted_s"), color=colour, lw=1.2, label=label)
        if line["low_s"].notna().any():
            slow, fast = _gb_per_s(line, "high_s"), _gb_per_s(line, "low_s")
            axes.fill_between(line["bytes"], slow, fast, color=colour, alpha=0.15, lw=0)
    axes.set(xscale="log", yscale="log")
    # at powers of two, a few of them
    low, high = np.floor(np.log2(points["bytes"].min())), np.ceil(np.log2(points["bytes"].max()))
    step = max(1, int(np.ceil((high - low) / 5)))
    ends = np.array(axes.get_ylim())
    few = ends[1] < 300 * ends[0]  # else powers of ten alone
    rates = [f * 10.0**p for p in range(-9, 6) for f in ((1, 2, 5) if few else (1,))]
    rates = [rate for rate in rates if ends[0] <= rate <= ends[1]]
    plain_ticks(axes, 2.0 ** np.arange(low, high + 1, step), _bytes, rates)
    axes.legend(fontsize=7, loc="best")


def _gb_per_s(rows: pd.DataFrame, column: str) -> np.ndarray:
    if rows.empty:
        return np.zeros(0)
    collective = str(rows["collective"].iloc[0])
    size, ranks = rows["bytes"].to_numpy(float), rows["n_gpus"].to_numpy(float)
    values = bus_bytes_per_s(collective, size, ranks, rows[column])
    return np.asarray(values, np.float64) / 1e9


def _bytes(size: float, _: object) -> str:
    scale, unit = next(((scale, unit) for scale, unit in _BINARY if size >= scale), (1, "B"))
    return f"{size / scale:.3g} {unit}"
