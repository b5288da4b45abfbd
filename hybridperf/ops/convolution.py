"""Two-dimensional convolution, forward or either backward pass (all three multiply and add equally
often).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from hybridperf.hardware import Unit
from hybridperf.io.errors import unknown
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.base import Gpu, Op, register
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.ops.inputs import log2_ratio, log_sizes, log_sizes_base2, tails
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import product_inputs, serial_steps, tile_count

DIRECTIONS = ("fwd", "bwd_inputs", "bwd_params")


@register("conv", "convolution")
@dataclasses.dataclass(frozen=True)
class Convolution(Op):
    """NCHW sizes. `taps`: mean number of kernel positions that lie inside the image, kh * kw where
    nothing says otherwise.

    Sizes are those of the forward pass whichever way the op goes.
    """

    group: ClassVar[str] = "convolution"
    other_group: ClassVar[str] = "grouped_convolution"
    unit: ClassVar[Unit] = "matrix"
    synonyms: ClassVar = {"kernel_size": "kh", "pass": "direction"}

    batch: Array
    c_in: Array
    c_out: Array
    h_in: Array
    h_out: Array
    kh: Array
    kw: Array = 0.0  # 0: square, as kh
    w_in: Array = 0.0  # 0: square, as h_in
    w_out: Array = 0.0  # 0: square, as h_out
    groups: Array = 1.0
    taps: Array = 0.0  # 0: kh * kw
    # one of DIRECTIONS: outputs from inputs, input gradients, or weight gradients
    direction: str = "fwd"

    @classmethod
    def read_text(cls, name: str, value: str, dtype: str) -> str:
        """A known direction."""
        del name, dtype
        if value not in DIRECTIONS:
            passes = f"a convolution's passes are {', '.join(DIRECTIONS)}"
            raise unknown("pass", value, DIRECTIONS, passes)
        return value

    def work(self) -> Work:
        kw, w_in, w_out, taps = self._widths()
        outputs = self.batch * self.c_out * self.h_out * w_out
        weights = self.kh * kw * self.c_in / self.groups * self.c_out
        moved = (self.batch * self.c_in * self.h_in * w_in + weights + outputs) * self.element_bytes
        return streamed(
            moved,
            flops=FLOPS_PER_MULTIPLY_ADD * outputs * self.c_in / self.groups * taps,
            # addresses: which pixel lies under each position of the kernel
            steps=self.batch * self.h_out * w_out * self.kh * kw,
        )

    def _widths(self) -> tuple[Array, Array, Array, Array]:
        """(kw, w_in, w_out, taps), square where nothing was given."""
        kw = self.kw + (self.kw == 0) * self.kh
        w_in = self.w_in + (self.w_in == 0) * self.h_in
        w_out = self.w_out + (self.w_out == 0) * self.h_out
        return kw, w_in, w_out, self.taps + (self.taps == 0) * self.kh * kw

    def shape(self) -> dict[str, Array]:
        kw, _, w_out, taps = self._widths()
        kernel = self.kh * kw
        sizes = {"pixels": self.h_out * w_out, "width": w_out, "kernel": kernel}
        return {
            **log_sizes(self, "batch", "c_in", "c_out", **sizes),
            **log_sizes(groups=self.groups, stride=self.h_in / self.h_out),
            **tails(2, c_in=self.c_in),
            **tails(4, 16, c_in=self.c_in, c_out=self.c_out),
            **tails(64, c_out=self.c_out),
            "odd": array_module(self.c_in).rint(floats(self.c_in)) % 2.0,
            # positions of the kernel in the padding, or between dilated pixels
            "outside": kernel / taps - 1.0,
        }

    def blocks(self) -> Array:
        m, n, _ = self._as_product()
        return self.groups * tile_count(m, n)

    def serial_steps(self, gpu: Gpu) -> Array:
        return serial_steps(*self._as_product(), gpu, self.groups)

    def gpu_inputs(self, gpu: Gpu) -> dict[str, Array]:
        m, n, k = self._as_product()
        kw, w_in, w_out, taps = self._widths()
        pixels_in, pixels_out = self.h_in * w_in, self.h_out * w_out
        weights = self.kh * kw * self.c_in / self.groups * self.c_out
        channels = {"c_in": self.c_in, "c_out": self.c_out}
        return {
            **product_inputs(m, n, k, gpu, self.groups),
            **log_sizes_base2(batch=self.batch, **channels),
            **log_sizes_base2(pixels_in=pixels_in, pixels_out=pixels_out),
            **log_sizes_base2(kernel=self.kh * kw, groups=self.groups, width=w_out),
            "stride": log2_ratio(pixels_in, pixels_out) / 2,
            # what Winograd's transform is made for; it works on tiles of 4 x 4 outputs
            "square_3": (floats(self.kh) == 3) * (floats(kw) == 3) * 1.0,
            "pointwise": (floats(self.kh * kw) == 1) * 1.0,
            "outside": self.kh * kw / taps - 1.0,
            **tails(4, height=self.h_out, width=w_out),
            **tails(32, **channels),
            "log2_bytes_per_l2": log2_ratio(self.work().bytes, gpu.l2_bytes),
            "log2_weights_per_l2": log2_ratio(weights * self.element_bytes, gpu.l2_bytes),
            **{f"pass_{name}": float(self.direction == name) for name in DIRECTIONS},
        }

    def _as_product(self) -> tuple[Array, Array, Array]:
        """(m, n, k) of the matrix product that each group's pass comes down to."""
        kw, w_in, w_out, _ = self._widths()
        c_in, c_out, kernel = self.c_in / self.groups, self.c_out / self.groups, self.kh * kw
        if self.direction == "bwd_inputs":
            return self.batch * self.h_in * w_in, c_in, c_out * kernel
        if self.direction == "bwd_params":
            return c_out, c_in * kernel, self.batch * self.h_out * w_out
        return self.batch * self.h_out * w_out, c_out, c_in * kernel

    def is_other(self) -> Array:
        """Libraries have no fast path for grouped convolutions."""
        return floats(self.groups) > 1
