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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from hybridperf.fields import fields_of
from hybridperf.hardware import DeviceSpec, Unit
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops import tiles
from hybridperf.ops.base import Columns, Op, register, undivided
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, log2_ratio, log_of, shape_inputs, tails
from hybridperf.ops.roofline import Work, streamed

DIRECTIONS = tuple(fields_of("ops")["direction"].words)
_WINOGRAD_TILE, _WINOGRAD_PRODUCTS = 4, 36.0
_BLOCKS_AT_ONCE = 2.0  # of a kernel's in single precision, that a multiprocessor holds


def _dtype_on(dtype: str, device: DeviceSpec) -> str:
    """cuDNN takes TF32 for single precision where there is such: PyTorch's
    `torch.backends.cudnn.allow_tf32` and XLA's default precision alike.
    """
    return "tf32" if dtype == "fp32" and "tf32" in device.peak_flops_per_s else dtype


def _contradictions(op: Convolution) -> Sequence[tuple[Array, str]]:
    kernel = op.kh * (op.kw + (op.kw == 0) * op.kh)
    return (
        (undivided(op.c_in, op.groups), "groups must divide c_in"),
        (undivided(op.c_out, op.groups), "groups must divide c_out"),
        (op.taps > kernel, "taps must be at most kh x kw"),
    )


_COLUMNS = Columns(dtype_on=_dtype_on, contradictions=_contradictions)


@register("conv", "convolution", columns=_COLUMNS)
@dataclasses.dataclass(frozen=True)
class Convolution(Op):
    """NCHW sizes, those of the forward pass whichever way the op goes. `taps`: mean number of
    kernel positions that lie inside the image, kh * kw where nothing says otherwise.
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
        op = self.filled()
        return streamed(
            sum(op.parts_bytes()),
            flops=FLOPS_PER_MULTIPLY_ADD * op.outputs() * op.c_in / op.groups * op.taps,
            # addresses: which pixel lies under each position of the kernel
            steps=op.batch * op.h_out * op.w_out * op.kh * op.kw,
        )

    def filled(self) -> Convolution:
        """Square, and with all of the kernel inside the image, where nothing was given."""
        kw, taps = self.kw + (self.kw == 0) * self.kh, self.taps
        taps = taps + (taps == 0) * self.kh * kw
        w_in = self.w_in + (self.w_in == 0) * self.h_in
        w_out = self.w_out + (self.w_out == 0) * self.h_out
        return dataclasses.replace(self, kw=kw, w_in=w_in, w_out=w_out, taps=taps)

    def outputs(self) -> Array:
        """Numbers of the forward pass's result."""
        return self.batch * self.c_out * self.h_out * self.filled().w_out

    def parts_bytes(self) -> tuple[Array, Array, Array]:
        """Bytes of the forward pass's input, of its result, of the weights."""
        op, each = self.filled(), self.element_bytes
        inputs = op.batch * op.c_in * op.h_in * op.w_in
        weights = op.kh * op.kw * op.c_in / op.groups * op.c_out
        return inputs * each, op.outputs() * each, weights * each

    def knob_groups(self) -> Mapping[str, Any]:
        """Libraries have no fast path for grouped convolutions."""
        return {"grouped_convolution": floats(self.groups) > 1, self.group: True}


def _may_winograd(op: Convolution) -> Array:
    """Whether Winograd's way is open: 3 x 3, as many pixels out as in, no weight gradients."""
    square = (floats(op.kh) == 3) & (floats(op.kw) == 3)
    alike = (floats(op.h_in) == op.h_out) & (floats(op.w_in) == op.w_out)
    return square & alike & (op.direction != "bwd_params")


def _as_winograd(op: Convolution) -> tuple[Array, Array, Array]:
    """(tiles, channels out, channels in) of each of its products."""
    down, across = (tiles.whole_tiles(size, _WINOGRAD_TILE) for size in (op.h_out, op.w_out))
    ins, outs = op.c_in / op.groups, op.c_out / op.groups
    channels = (ins, outs) if op.direction == "bwd_inputs" else (outs, ins)
    return op.batch * down * across, *channels


def _as_product(op: Convolution) -> tuple[Array, Array, Array]:
    """(m, n, k) of the matrix product that each group's pass comes down to."""
    c_in, c_out, kernel = op.c_in / op.groups, op.c_out / op.groups, op.kh * op.kw
    if op.direction == "bwd_inputs":
        return op.batch * op.h_in * op.w_in, c_in, c_out * kernel
    if op.direction == "bwd_params":
        return c_out, c_in * kernel, op.batch * op.h_out * op.w_out
    return op.batch * op.h_out * op.w_out, c_out, c_in * kernel


@shape_inputs.register(Convolution)
def _(op: Convolution) -> dict[str, Array]:
    op = op.filled()
    kernel = op.kh * op.kw
    return {
        **log_of(op, "batch", "c_in", "c_out", "groups", pixels=op.h_out * op.w_out),
        **log_of(width=op.w_out, kernel=kernel, stride=op.h_in / op.h_out),
        **tails(2, c_in=op.c_in),
        **tails(4, 16, c_in=op.c_in, c_out=op.c_out),
        **tails(64, c_out=op.c_out),
        "odd": array_module(op.c_in).rint(floats(op.c_in)) % 2.0,
        # positions of the kernel in the padding, or between dilated pixels
        "outside": kernel / op.taps - 1.0,
    }


@tiles.blocks.register(Convolution)
def _(op: Convolution) -> Array:
    m, n, _ = _as_product(op.filled())
    return op.groups * tiles.tile_count(m, n)


@tiles.serial_steps.register(Convolution)
def _(op: Convolution, gpu: Gpu) -> Array:
    op = op.filled()
    if op.dtype != "fp32":
        return tiles.product_steps(*_as_product(op), gpu, op.groups)
    wide = Gpu(_BLOCKS_AT_ONCE * gpu.sm_count, gpu.l2_bytes)
    direct = tiles.product_steps(*_as_product(op), wide, op.groups, cut=False)
    products = _WINOGRAD_PRODUCTS * op.groups
    quick = tiles.product_steps(*_as_winograd(op), wide, products, cut=False)
    module = array_module(direct, quick)
    steps = module.where(_may_winograd(op), module.minimum(direct, quick), direct)
    return _BLOCKS_AT_ONCE * steps


@gpu_inputs.register(Convolution)
def _(op: Convolution, gpu: Gpu) -> dict[str, Array]:
    op = op.filled()
    winograd_tiles, outs, _ = _as_winograd(op)
    blocks = _WINOGRAD_PRODUCTS * op.groups * tiles.tile_count(winograd_tiles, outs)
    may = _may_winograd(op) * 1.0
    kernel, pixels_in, pixels_out = op.kh * op.kw, op.h_in * op.w_in, op.h_out * op.w_out
    computed = op.batch * (pixels_in if op.direction == "bwd_inputs" else pixels_out)
    return {
        **tiles.product_inputs(*_as_product(op), gpu, op.groups),
        **log2_of(op, "batch", "c_in", "c_out", "groups", kernel=kernel, width=op.w_out),
        **log2_of(pixels_in=pixels_in, pixels_out=pixels_out),
        "stride": log2_ratio(pixels_in, pixels_out) / 2,
        # what Winograd's transform is made for; it works on tiles of 4 x 4 outputs
        "square_3": (floats(op.kh) == 3) * (floats(op.kw) == 3) * 1.0,
        "pointwise": (floats(kernel) == 1) * 1.0,
        "outside": kernel / op.taps - 1.0,
        **tails(4, height=op.h_out, width=op.w_out),
        **tails(32, c_in=op.c_in, c_out=op.c_out),
        **gpu.per_l2(bytes=op.work().bytes, weights=op.parts_bytes()[2]),
        **{f"pass_{name}": float(op.direction == name) for name in DIRECTIONS},
        **{
            name: may * value
            for name, value in gpu.waves("winograd", blocks / _BLOCKS_AT_ONCE).items()
        },
        "winograd_padding": may * log2_ratio(_WINOGRAD_TILE**2 * winograd_tiles, computed),
    }
