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

The layer model: seconds kernel by kernel, from a datasheet and six knobs. A host launches the K
kernels of a pass one after the other, L seconds each, and a device runs them in that order, g_j
seconds each. The pass ends with the longest of K ways to be late (the graph of one stream with
launches, in closed form):

    t = max over i of  i L + g_i + ... + g_K
    g = (flops + F0) / (e P) + k   of a product: e of the peak for large ones, half of that at F0
                                   flops
    g = bytes / (c BW) + k         of a loop; k the least that any kernel takes

Forward and backward share the device but for e: their products differ in layout. Nothing assumes
that a backward costs twice its forward; its kernels are listed by `layer_passes`.

Axes: N rows of a table, K kernels of a pass (rows with fewer end in kernels that take nothing).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Self

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf.hardware import load_device
from hybridperf.io import positive_column, require_columns
from hybridperf.learning.robust import huber_data_only
from hybridperf.model import KERNEL_S
from hybridperf.ops import OpCall
from hybridperf.validate.harness import Columns, Found, Split
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.parts import layer_passes
from hybridperf.workloads.transformer.passes import Steps
from hybridperf.workloads.transformer.zoo import load_shape

FILE = "chimera_profiles/layer_profiles_dev.csv"
DIRECTIONS = ("forward", "backward")
IN_SAMPLE, MODEL, DEVICE = "in sample", "model left out", "device left out"
HOST = f"{DEVICE}, host known"
SPLITS = (IN_SAMPLE, MODEL, DEVICE, HOST)
_HOST_KNOBS = ("launch_s", "backward_launch_s")
_COLUMNS = Columns(interval=None, baselines={"smooth roofline": "null_s"})


def judge(frame: pd.DataFrame) -> Found:
    """All splits of a table of profiles: `model, device, micro_batch, f_s, b_s`. Tables: a row per
    split, row and direction with `measured_s, predicted_s, null_s`, and their mean errors.
    """
    columns = ("model", "device", "micro_batch", "f_s", "b_s")
    require_columns(frame, columns, "a table of layer profiles")
    numbers = (positive_column(frame, name, "layer profiles") for name in columns[2:])
    _, *both_s = numbers
    measured_s, layers, parts = np.stack(both_s), Layers.of(frame), []
    for split, host in _splits(frame, layers):
        ours, baseline = (way(layers, measured_s, split, host) for way in (_ours, _baseline))
        about = frame.loc[frame.index[split.judged], ["device", "model", "micro_batch"]]
        about = about.assign(split=split.task, left_out=split.part)
        for at, direction in enumerate(DIRECTIONS):
            parts.append(about.assign(
                direction=direction, measured_s=measured_s[at, split.judged],
                predicted_s=ours[at], null_s=baseline[at],
            ))  # fmt: skip
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.sort_values("split", key=lambda at: at.map(SPLITS.index), kind="stable")
    by_direction = rows.groupby(["split", "direction"], sort=False)
    lines = [_COLUMNS.line(f"layers, {', '.join(key)}", part) for key, part in by_direction]
    errors = rows.assign(**{
        f"{name}error": (rows[column] / rows["measured_s"] - 1).abs()
        for name, column in (("", "predicted_s"), ("null_", "null_s"))
    })  # fmt: skip
    by_cell = errors.groupby(["split", "device", "left_out", "direction"], sort=False)
    cells = by_cell.agg(rows=("error", "size"), error=("error", "mean"),
                        null_error=("null_error", "mean")).reset_index()  # fmt: skip
    return Found("", {"layer_rows": rows, "layers": cells}, lines, "layers")


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


SEQ = 128  # of all profiles
# per kernel in shared PyTorch traces: 42 to 47 us forward, 30 to 93 us backward
USUAL_LAUNCH_S = 45e-6
# of a profiled time, in the log: how far the data may pull the knobs from their priors
_NOISE = 0.03
_LIMITS = 20.0  # no knob leaves its prior by more than this factor: the solver may try


@dataclasses.dataclass(frozen=True)
class LayerKnobs:
    """What is learned, and in `prior` what is thought before: centre and spread in the log."""

    forward_efficiency: float  # e: share of peak that large products reach
    backward_efficiency: float
    loop_efficiency: float  # c: share of memory bandwidth that loops reach
    half_rate_flops: float  # F0
    launch_s: float  # L
    backward_launch_s: float

    @staticmethod
    def prior() -> tuple[np.ndarray, np.ndarray]:
        """Logs of usual values and their spreads [6], from op tables and traces."""
        usual = np.log([0.8, 0.8, 0.75, 3e8, USUAL_LAUNCH_S, USUAL_LAUNCH_S])
        return usual, np.array([0.2, 0.2, 0.3, 1.0, 0.5, 0.5])

    def logs(self) -> np.ndarray:
        """Natural logs [6]."""
        return np.log(dataclasses.astuple(self))

    @classmethod
    def of(cls, logs: np.ndarray) -> Self:
        return cls(*map(float, np.exp(logs)))


@dataclasses.dataclass(frozen=True)
class Pass:
    """Kernels of one direction of many layers."""

    product: np.ndarray  # bool [N, K]
    flops: np.ndarray  # [N, K], of products
    bytes: np.ndarray  # [N, K], of loops
    launches: np.ndarray  # up to this kernel and with it [N, K]

    def seconds(
        self,
        peak: np.ndarray,
        bandwidth: np.ndarray,
        efficiency: float,
        launch_s: float,
        knobs: LayerKnobs,
    ) -> np.ndarray:
        """Seconds of the pass [N] on devices of so many FLOP/s and bytes/s [N]."""
        product_s = (self.flops + knobs.half_rate_flops) / (efficiency * peak[:, None])
        loop_s = self.bytes / (knobs.loop_efficiency * bandwidth[:, None])
        there = np.diff(self.launches, axis=1, prepend=0.0) > 0
        kernel_s = np.where(there, np.where(self.product, product_s, loop_s) + KERNEL_S, 0.0)
        from_here_s = np.cumsum(kernel_s[:, ::-1], axis=1)[:, ::-1]
        return np.asarray((self.launches * launch_s + from_here_s).max(1))

    def rows(self, keep: np.ndarray) -> Self:
        """Some layers."""
        return type(self)(*(getattr(self, field.name)[keep] for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Layers:
    """Rows of layer profiles as the model sees them."""

    forward: Pass
    backward: Pass
    model_flops: np.ndarray  # of the forward's products: 24 b s h^2 + 4 b s^2 h; [N]
    peak: np.ndarray  # FLOP/s [N]
    bandwidth: np.ndarray  # bytes/s [N]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Rows with `model, micro_batch, device`, fp32, all kernels in PyTorch's own ops."""
        passes = [
            layer_passes(_config(name, batch))
            for name, batch in zip(frame["model"], frame["micro_batch"], strict=True)
        ]
        devices = [load_device(name) for name in frame["device"]]
        forward = _pass([each.forward for each in passes])
        return cls(
            forward,
            _pass([each.backward for each in passes]),
            np.where(forward.product, forward.flops, 0.0).sum(1),
            np.array([device.peak("fp32", "matrix") for device in devices]),
            np.array([device.memory_bytes_per_s for device in devices]),
        )

    def rows(self, keep: np.ndarray) -> Self:
        """Some of them."""
        passes = self.forward.rows(keep), self.backward.rows(keep)
        facts = (self.model_flops, self.peak, self.bandwidth)
        return type(self)(*passes, *(fact[keep] for fact in facts))

    def seconds(self, knobs: LayerKnobs) -> np.ndarray:
        """Seconds forward and backward [2, N]."""
        both = (
            (self.forward, knobs.forward_efficiency, knobs.launch_s),
            (self.backward, knobs.backward_efficiency, knobs.backward_launch_s),
        )
        rates = self.peak, self.bandwidth
        return np.stack([way.seconds(*rates, share, launch, knobs) for way, share, launch in both])


def fit(
    layers: Layers,
    measured_s: np.ndarray,
    start: LayerKnobs | None = None,
    only: tuple[str, ...] = (),
) -> LayerKnobs:
    """Knobs that explain seconds forward and backward [2, N], near their priors; `only` some of
    them, the rest and their centre `start`.
    """
    names = [field.name for field in dataclasses.fields(LayerKnobs)]
    centre, spread = LayerKnobs.prior()
    centre = centre if start is None else start.logs()
    free = np.array([not only or name in only for name in names])

    def residuals(logs: np.ndarray) -> np.ndarray:
        every = centre.copy()
        every[free] = logs
        data = np.log(layers.seconds(LayerKnobs.of(every)) / measured_s).ravel() / _NOISE
        return np.concatenate([data, ((every - centre) / spread)[free]])

    limits = centre[free] - np.log(_LIMITS), centre[free] + np.log(_LIMITS)
    fitted, loss = centre.copy(), huber_data_only(measured_s.size)
    fitted[free] = least_squares(residuals, centre[free], bounds=limits, loss=loss).x
    return LayerKnobs.of(fitted)


def elsewhere(knobs: LayerKnobs) -> LayerKnobs:
    """The same for another device on an unknown host: launches halfway to the usual, in logs."""
    halfway = {
        name: float(np.sqrt(getattr(knobs, name) * USUAL_LAUNCH_S))
        for name in ("launch_s", "backward_launch_s")
    }
    return dataclasses.replace(knobs, **halfway)


def _config(model: str, micro_batch: int) -> TransformerConfig:
    shape = dataclasses.replace(load_shape(model), seq=SEQ)
    layout = Layout(micro_batch=int(micro_batch))
    return TransformerConfig(
        shape, layout, dtype="fp32", attention="unfused", framework="eager", dropout=True
    )


def _pass(rows: list[Steps]) -> Pass:
    product, flops, moved, launches = np.zeros((4, len(rows), max(map(len, rows))))
    for at, steps in enumerate(rows):
        calls = [(step, step.call) for step in steps if isinstance(step.call, OpCall)]
        ops = [(step, step.op.work(), call.times) for step, call in calls]
        count = len(ops)
        product[at, :count] = [step.part in ("gemm", "attention") for step, _, _ in ops]
        flops[at, :count] = [float(work.flops) * times for _, work, times in ops]
        moved[at, :count] = [float(work.bytes) * times for _, work, times in ops]
        launches[at, :count] = np.cumsum([float(step.kernels) for step, _, _ in ops])
        launches[at, count:] = launches[at, count - 1]
    return Pass(product > 0, flops, moved, launches)
