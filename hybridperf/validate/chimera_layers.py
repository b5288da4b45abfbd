"""Seconds of one Transformer layer, forward and backward, kernel by kernel, from a datasheet and
six knobs.

A host launches the K kernels of a pass one after the other, L seconds each, and a device runs them
in that order, g_j seconds each. The pass ends with the longest of K ways to be late (the graph of
one stream with launches, in closed form):

    t = max over i of  i L + g_i + ... + g_K
    g = (flops + F0) / (e P) + k   of a product: e of the peak for large ones, half of that at F0
                                   flops
    g = bytes / (c BW) + k         of a loop; k the least that any kernel takes

Small layers are host-bound (K L and the last kernels behind it), large ones device-bound, and the
corner between them is as round as the kernels differ. Forward and backward share the device but for
e: their products differ in layout. Nothing assumes that a backward costs twice its forward; its
kernels are listed by `layer_passes`.

Axes: N rows of a table, K kernels of a pass (rows with fewer end in kernels that take nothing).
"""

import dataclasses
from typing import Self

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hybridperf.hardware import load_device
from hybridperf.learning.robust import huber_data_only
from hybridperf.model import KERNEL_S
from hybridperf.ops import OpCall
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.parts import layer_passes
from hybridperf.workloads.transformer.passes import Steps
from hybridperf.workloads.transformer.zoo import load_shape

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
