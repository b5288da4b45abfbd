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

import dataclasses
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf.io import positive_column, require_columns
from hybridperf.validate.chimera_layers import Layers, elsewhere, fit
from hybridperf.validate.harness import ResultLine, Split

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


def report(frame: pd.DataFrame) -> ChimeraReport:
    """All splits of a table of profiles: `model, device, micro_batch, f_s, b_s`."""
    columns = ("model", "device", "micro_batch", "f_s", "b_s")
    require_columns(frame, columns, "a table of layer profiles")
    seconds = [positive_column(frame, name, "layer profiles") for name in ("f_s", "b_s")]
    measured_s = np.stack(seconds)
    positive_column(frame, "micro_batch", "layer profiles")
    layers = Layers.of(frame)
    parts = []
    for split, host in _splits(frame, layers):
        ours, baseline = (way(layers, measured_s, split, host) for way in (_ours, _baseline))
        for at, direction in enumerate(DIRECTIONS):
            part = frame.loc[frame.index[split.judged], ["device", "model", "micro_batch"]]
            part = part.assign(split=split.task, direction=direction, left_out=split.part)
            part["measured_s"] = measured_s[at, split.judged]
            parts.append(part.assign(predicted_s=ours[at], null_s=baseline[at]))
    rows = pd.concat(parts, ignore_index=True)
    by_cell = _errors(rows, ["split", "device", "left_out"])
    return ChimeraReport(rows, by_cell, _errors(rows, ["split"]))


def _splits(frame: pd.DataFrame, layers: Layers) -> Iterator[tuple[Split, np.ndarray]]:
    """Splits, whose part is the model left out, with the row that tells what the host takes [0 or
    1].
    """
    device, model = frame["device"].to_numpy(), frame["model"].to_numpy()
    nothing = np.zeros(0, int)
    for one in pd.unique(device):
        here, others = np.flatnonzero(device == one), np.flatnonzero(device != one)
        yield Split(IN_SAMPLE, "", here, here), nothing
        models = pd.unique(model[here])
        for name in models if len(models) > 1 else ():
            mine = model[here] == name
            yield Split(MODEL, name, here[~mine], here[mine]), nothing
        if len(others):
            yield Split(DEVICE, "", others, here), nothing
            smallest = here[[np.argmin(layers.model_flops[here])]]
            yield Split(HOST, "", others, np.setdiff1d(here, smallest)), smallest


def _ours(layers: Layers, measured_s: np.ndarray, split: Split, host: np.ndarray) -> np.ndarray:
    """Seconds by the layer model [2, T] of the rows to predict."""
    knobs = fit(layers.rows(split.given), measured_s[:, split.given])
    if split.task in (DEVICE, HOST):
        knobs = elsewhere(knobs)
    if len(host):
        knobs = fit(layers.rows(host), measured_s[:, host], knobs, _HOST_KNOBS)
    return layers.rows(split.judged).seconds(knobs)


def _baseline(layers: Layers, measured_s: np.ndarray, split: Split, host: np.ndarray) -> np.ndarray:
    """Seconds by the smooth roofline [2, T], each direction by itself."""
    ideal_s, out = layers.model_flops / layers.peak, []
    for seconds in measured_s:
        known_s, ideal_known_s = seconds[split.given], ideal_s[split.given]
        start = np.log([known_s.min(), (ideal_s / seconds)[split.given].max()])

        def residuals(
            logs: np.ndarray, known_s: np.ndarray = known_s, ideal: np.ndarray = ideal_known_s
        ) -> np.ndarray:
            t0_s, efficiency = np.exp(logs)
            return np.asarray(np.log(np.hypot(t0_s, ideal / efficiency) / known_s))

        t0_s, efficiency = np.exp(least_squares(residuals, start, loss="soft_l1", f_scale=0.05).x)
        if len(host):
            device_s = ideal_s[host] / efficiency
            t0_s = np.sqrt(np.maximum(seconds[host] ** 2 - device_s**2, 0.0))
        out.append(np.hypot(t0_s, ideal_s[split.judged] / efficiency))
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
