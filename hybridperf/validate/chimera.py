"""Layer times of Chimera's profiles (one BERT layer, forward and backward, fp32, sequence 128),
each predicted without being seen.

    in sample             all rows of a device
    model left out        knobs from the other models on the same device
    device left out       knobs from the other devices, as shares of the new one's datasheet; its
                          host is not known, see `elsewhere`
    ..., host known       the same, and the smallest layer measured on the new device tells what its
                          host takes

The baseline is a plain smooth roofline on the same rows, t = sqrt(t0^2 + (F / (e P))^2) with t0
and e for each direction; where the host is known, its t0 follows from the same row. F are the
layer's forward flops, P the datasheet's peak.

The host decides the small layers of a device left out, and no datasheet knows it: both models are
some 20 % off there forward, one too fast and the other too slow, by whose host the other is
predicted from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf.io import positive_column, read_table, require_columns
from hybridperf.report import text
from hybridperf.validate.chimera_layers import Layers, elsewhere, fit
from hybridperf.validate.harness import ResultLine

FILE = "chimera_profiles/layer_profiles_dev.csv"
DIRECTIONS = ("forward", "backward")
IN_SAMPLE, MODEL, DEVICE = "in sample", "model left out", "device left out"
HOST = f"{DEVICE}, host known"
SPLITS = (IN_SAMPLE, MODEL, DEVICE, HOST)
_HOST_KNOBS = ("launch_s", "backward_launch_s")


@dataclasses.dataclass(frozen=True)
class ChimeraReport:
    """What was predicted, and how far off it was."""

    # a line per split, row and direction: `split, device, model, micro_batch, direction,
    # measured_s, predicted_s, null_s`
    rows: pd.DataFrame
    # mean |error| per split, device and model left out: `rows, forward, forward_null, backward,
    # backward_null`
    lines: pd.DataFrame
    summary: pd.DataFrame  # the same per split, cells weighted by their rows

    def text(self) -> str:
        """Both tables for people."""
        headers = ["mean |error|", "rows", "forward", "baseline", "backward", "baseline"]
        tables = []
        for frame in (self.lines, self.summary):
            rows = frame.itertuples(index=False, name=None)
            cells = [[" ".join(r[:-5]), str(r[-5]), *map(text.percent, r[-4:])] for r in rows]
            tables.append(text.table(headers, cells))
        return "\n\n".join(tables)

    def result_lines(self) -> list[ResultLine]:
        """The summary as `results.json` keeps it."""
        return [
            ResultLine(
                f"layers, {line['split']}, {direction}", line[direction], line["rows"],
                baselines={"smooth roofline": line[f"{direction}_null"]},
            )
            for line in self.summary.to_dict("records")
            for direction in DIRECTIONS
        ]  # fmt: skip


def chimera_report(data: Path) -> ChimeraReport:
    """All splits of the profiles under a folder of measured data."""
    return report(read_table(data / FILE))


def report(frame: pd.DataFrame) -> ChimeraReport:
    """All splits of a table of profiles: `model, device, micro_batch, f_s, b_s`."""
    columns = ("model", "device", "micro_batch", "f_s", "b_s")
    require_columns(frame, columns, "a table of layer profiles")
    seconds = [positive_column(frame, name, "layer profiles") for name in ("f_s", "b_s")]
    measured_s = np.stack(seconds)
    positive_column(frame, "micro_batch", "layer profiles")
    layers = Layers.of(frame)
    parts = []
    for split in _splits(frame, layers):
        ours, baseline = (predict(layers, measured_s, split) for predict in (_ours, _baseline))
        for at, direction in enumerate(DIRECTIONS):
            part = frame.loc[frame.index[split.test], ["device", "model", "micro_batch"]]
            part = part.assign(split=split.name, direction=direction)
            part["left_out"] = part["model"] if split.name == MODEL else ""
            part["measured_s"] = measured_s[at, split.test]
            parts.append(part.assign(predicted_s=ours[at], null_s=baseline[at]))
    rows = pd.concat(parts, ignore_index=True)
    by_cell = _errors(rows, ["split", "device", "left_out"])
    return ChimeraReport(rows, by_cell, _errors(rows, ["split"]))


@dataclasses.dataclass(frozen=True)
class _Split:
    """Rows by their places in the table."""

    name: str
    train: np.ndarray
    test: np.ndarray
    host: np.ndarray  # the row that tells what the host takes, or none


def _splits(frame: pd.DataFrame, layers: Layers) -> Iterator[_Split]:
    device, model = frame["device"].to_numpy(), frame["model"].to_numpy()
    nothing = np.zeros(0, int)
    for one in pd.unique(device):
        here, others = np.flatnonzero(device == one), np.flatnonzero(device != one)
        yield _Split(IN_SAMPLE, here, here, nothing)
        for name in pd.unique(model[here]) if len(pd.unique(model[here])) > 1 else ():
            yield _Split(MODEL, here[model[here] != name], here[model[here] == name], nothing)
        if len(others):
            yield _Split(DEVICE, others, here, nothing)
            smallest = here[[np.argmin(layers.model_flops[here])]]
            yield _Split(HOST, others, np.setdiff1d(here, smallest), smallest)


def _ours(layers: Layers, measured_s: np.ndarray, split: _Split) -> np.ndarray:
    """Seconds by the layer model [2, T] of the rows to predict."""
    knobs = fit(layers.rows(split.train), measured_s[:, split.train])
    if split.name in (DEVICE, HOST):
        knobs = elsewhere(knobs)
    if len(split.host):
        knobs = fit(layers.rows(split.host), measured_s[:, split.host], knobs, _HOST_KNOBS)
    return layers.rows(split.test).seconds(knobs)


def _baseline(layers: Layers, measured_s: np.ndarray, split: _Split) -> np.ndarray:
    """Seconds by the smooth roofline [2, T], each direction by itself."""
    ideal_s = layers.model_flops / layers.peak

    def roofline(t0_s: np.ndarray, efficiency: float, rows: np.ndarray) -> np.ndarray:
        return np.hypot(t0_s, ideal_s[rows] / efficiency)

    out = []
    for seconds in measured_s:
        start = np.log([seconds[split.train].min(), (ideal_s / seconds)[split.train].max()])

        def residuals(logs: np.ndarray, seconds: np.ndarray = seconds) -> np.ndarray:
            t0_s, efficiency = np.exp(logs)
            predicted_s = roofline(t0_s, efficiency, split.train)
            return np.asarray(np.log(predicted_s / seconds[split.train]))

        t0_s, efficiency = np.exp(least_squares(residuals, start, loss="soft_l1", f_scale=0.05).x)
        if len(split.host):
            device_s = ideal_s[split.host] / efficiency
            t0_s = np.sqrt(np.maximum(seconds[split.host] ** 2 - device_s**2, 0.0))
        out.append(roofline(t0_s, efficiency, split.test))
    return np.stack(out)


def _errors(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Mean absolute errors per group, in the groups' order: `rows, forward, forward_null, backward,
    backward_null`.
    """
    rows = rows.assign(
        ours=(rows["predicted_s"] / rows["measured_s"] - 1).abs(),
        null=(rows["null_s"] / rows["measured_s"] - 1).abs(),
    )
    lines = []
    for key, group in rows.groupby(by, sort=False):
        line = {**dict(zip(by, key, strict=True)), "rows": len(group) // len(DIRECTIONS)}
        for direction, part in group.groupby("direction", sort=False):
            line |= {str(direction): part["ours"].mean(), f"{direction}_null": part["null"].mean()}
        lines.append(line)
    frame = pd.DataFrame(lines)
    frame = frame.sort_values("split", key=lambda at: at.map(SPLITS.index), kind="stable")
    return frame.reset_index(drop=True)
