"""Two-dimensional convolution, forward or either backward pass (all three multiply and add equally
often).

A library may take 3 x 3 kernels of stride 1 another way, Winograd's F(4 x 4, 3 x 3): each tile of 4
x 4 outputs becomes 36 numbers, and the convolution 36 products of (tiles, channels in) and
(channels in, channels out), with a quarter of the multiplications (Lavin & Gray, "Fast algorithms
for convolutional neural networks", 2016). GPUs take it for most such ops in single precision, but
which op is not known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from hybridperf.hardware import DeviceSpec, Unit
from hybridperf.io.errors import unknown
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.base import Op, register
from hybridperf.ops.columns import Columns
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.ops.inputs import (
    Gpu,
    gpu_inputs,
    log2_ratio,
    log_sizes,
    log_sizes_base2,
    shape_inputs,
    tails,
)
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import (
    blocks,
    product_inputs,
    product_steps,
    serial_steps,
    tile_count,
    wave_inputs,
    whole_tiles,
)

DIRECTIONS = ("fwd", "bwd_inputs", "bwd_params")
_WINOGRAD_TILE, _WINOGRAD_PRODUCTS = 4, 36.0
_BLOCKS_AT_ONCE = 2.0  # of a kernel's in single precision, that a multiprocessor holds


def _direction(field: str, word: str, dtype: str) -> str:
    del field, dtype
    if word not in DIRECTIONS:
        passes = f"a convolution's passes are {', '.join(DIRECTIONS)}"
        raise unknown("pass", word, DIRECTIONS, passes)
    return word


def _dtype_on(dtype: str, device: DeviceSpec) -> str:
    """cuDNN takes TF32 for single precision where there is such: PyTorch's
    `torch.backends.cudnn.allow_tf32` and XLA's default precision alike.
    """
    return "tf32" if dtype == "fp32" and "tf32" in device.peak_flops_per_s else dtype


_COLUMNS = Columns(
    synonyms={"kernel_size": "kh", "pass": "direction"}, read_text=_direction, dtype_on=_dtype_on
)


@register("conv", "convolution", columns=_COLUMNS)
@dataclasses.dataclass(frozen=True)
class Convolution(Op):
    """NCHW sizes. `taps`: mean number of kernel positions that lie inside the image, kh * kw where
    nothing says otherwise.

    Sizes are those of the forward pass whichever way the op goes.
    """

    group: ClassVar[str] = "convolution"
    unit: ClassVar[Unit] = "matrix"

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
    channels_first: Array = 0.0  # 1: images lie plane by plane (nchw); 0: as kernels want them
    # one of DIRECTIONS: outputs from inputs, input gradients, or weight gradients
    direction: str = "fwd"

    def work(self) -> Work:
        kw, _, w_out, taps = self._widths()
        return streamed(
            sum(self.parts_bytes()),
            flops=FLOPS_PER_MULTIPLY_ADD * self.outputs() * self.c_in / self.groups * taps,
            # addresses: which pixel lies under each position of the kernel
            steps=self.batch * self.h_out * w_out * self.kh * kw,
        )

    def outputs(self) -> Array:
        """Numbers of the forward pass's result."""
        return self.batch * self.c_out * self.h_out * self._widths()[2]

    def parts_bytes(self) -> tuple[Array, Array, Array]:
        """Bytes of the forward pass's input, of its result, of the weights."""
        kw, w_in, _, _ = self._widths()
        inputs = self.batch * self.c_in * self.h_in * w_in
        weights = self.kh * kw * self.c_in / self.groups * self.c_out
        each = self.element_bytes
        return inputs * each, self.outputs() * each, weights * each

    def positions(self) -> tuple[Array, Array]:
        """(kernel's positions, their mean number inside the image)."""
        kw, _, _, taps = self._widths()
        return self.kh * kw, taps

    def _widths(self) -> tuple[Array, Array, Array, Array]:
        """(kw, w_in, w_out, taps), square where nothing was given."""
        kw = self.kw + (self.kw == 0) * self.kh
        w_in = self.w_in + (self.w_in == 0) * self.h_in
        w_out = self.w_out + (self.w_out == 0) * self.h_out
        return kw, w_in, w_out, self.taps + (self.taps == 0) * self.kh * kw

    def _pixels(self) -> Array:
        """Pixels that a pass in their direction computes."""
        _, w_in, w_out, _ = self._widths()
        backwards = self.direction == "bwd_inputs"
        return self.batch * (self.h_in * w_in if backwards else self.h_out * w_out)

    def _may_winograd(self) -> Array:
        """Whether Winograd's way is open: 3 x 3, as many pixels out as in, no weight gradients."""
        kw, w_in, w_out, _ = self._widths()
        square = (floats(self.kh) == 3) & (floats(kw) == 3)
        alike = (floats(self.h_in) == self.h_out) & (floats(w_in) == w_out)
        return square & alike & (self.direction != "bwd_params")

    def _as_winograd(self) -> tuple[Array, Array, Array]:
        """(tiles, channels out, channels in) of each of its products."""
        _, _, w_out, _ = self._widths()
        across = whole_tiles(w_out, _WINOGRAD_TILE)
        tiles = self.batch * whole_tiles(self.h_out, _WINOGRAD_TILE) * across
        ins, outs = self.c_in / self.groups, self.c_out / self.groups
        return (tiles, ins, outs) if self.direction == "bwd_inputs" else (tiles, outs, ins)

    def _as_product(self) -> tuple[Array, Array, Array]:
        """(m, n, k) of the matrix product that each group's pass comes down to."""
        kw, w_in, w_out, _ = self._widths()
        c_in, c_out, kernel = self.c_in / self.groups, self.c_out / self.groups, self.kh * kw
        if self.direction == "bwd_inputs":
            return self.batch * self.h_in * w_in, c_in, c_out * kernel
        if self.direction == "bwd_params":
            return c_out, c_in * kernel, self.batch * self.h_out * w_out
        return self.batch * self.h_out * w_out, c_out, c_in * kernel

    def knob_groups(self) -> Mapping[str, Any]:
        """Libraries have no fast path for grouped convolutions."""
        return {"grouped_convolution": floats(self.groups) > 1, self.group: True}


@shape_inputs.register(Convolution)
def _(op: Convolution) -> dict[str, Array]:
    kw, _, w_out, taps = op._widths()
    kernel = op.kh * kw
    sizes = {"pixels": op.h_out * w_out, "width": w_out, "kernel": kernel}
    return {
        **log_sizes(op, "batch", "c_in", "c_out", **sizes),
        **log_sizes(groups=op.groups, stride=op.h_in / op.h_out),
        **tails(2, c_in=op.c_in),
        **tails(4, 16, c_in=op.c_in, c_out=op.c_out),
        **tails(64, c_out=op.c_out),
        "odd": array_module(op.c_in).rint(floats(op.c_in)) % 2.0,
        # positions of the kernel in the padding, or between dilated pixels
        "outside": kernel / taps - 1.0,
    }


@blocks.register(Convolution)
def _(op: Convolution) -> Array:
    m, n, _ = op._as_product()
    return op.groups * tile_count(m, n)


@serial_steps.register(Convolution)
def _(op: Convolution, gpu: Gpu) -> Array:
    if op.dtype != "fp32":
        return product_steps(*op._as_product(), gpu, op.groups)
    wide = Gpu(_BLOCKS_AT_ONCE * gpu.sm_count, gpu.l2_bytes)
    direct = product_steps(*op._as_product(), wide, op.groups, cut=False)
    products = _WINOGRAD_PRODUCTS * op.groups
    quick = product_steps(*op._as_winograd(), wide, products, cut=False)
    module = array_module(direct, quick)
    steps = module.where(op._may_winograd(), module.minimum(direct, quick), direct)
    return _BLOCKS_AT_ONCE * steps


@gpu_inputs.register(Convolution)
def _(op: Convolution, gpu: Gpu) -> dict[str, Array]:
    m, n, k = op._as_product()
    tiles, outs, _ = op._as_winograd()
    blocks = _WINOGRAD_PRODUCTS * op.groups * tile_count(tiles, outs)
    may = op._may_winograd() * 1.0
    winograd = wave_inputs("winograd", blocks / _BLOCKS_AT_ONCE, gpu)
    padding = log2_ratio(_WINOGRAD_TILE**2 * tiles, op._pixels())
    kw, w_in, w_out, taps = op._widths()
    pixels_in, pixels_out = op.h_in * w_in, op.h_out * w_out
    weights = op.kh * kw * op.c_in / op.groups * op.c_out
    channels = {"c_in": op.c_in, "c_out": op.c_out}
    return {
        **product_inputs(m, n, k, gpu, op.groups),
        **log_sizes_base2(batch=op.batch, **channels),
        **log_sizes_base2(pixels_in=pixels_in, pixels_out=pixels_out),
        **log_sizes_base2(kernel=op.kh * kw, groups=op.groups, width=w_out),
        "stride": log2_ratio(pixels_in, pixels_out) / 2,
        # what Winograd's transform is made for; it works on tiles of 4 x 4 outputs
        "square_3": (floats(op.kh) == 3) * (floats(kw) == 3) * 1.0,
        "pointwise": (floats(op.kh * kw) == 1) * 1.0,
        "outside": op.kh * kw / taps - 1.0,
        **tails(4, height=op.h_out, width=w_out),
        **tails(32, **channels),
        "log2_bytes_per_l2": log2_ratio(op.work().bytes, gpu.l2_bytes),
        "log2_weights_per_l2": log2_ratio(weights * op.element_bytes, gpu.l2_bytes),
        **{f"pass_{name}": float(op.direction == name) for name in DIRECTIONS},
        **{name: may * value for name, value in winograd.items()},
        "winograd_padding": may * padding,
    }
