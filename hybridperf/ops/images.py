"""Seconds of ops on images, and of products, by closed forms: what a library's usual kernel of such
an op takes on a GPU that nobody measured it on.

    t       = both(arithmetic, memory) + turns + launch
    both    = (a^3 + b^3)^(1/3): the two overlap but where they are as long
    turns   = 2 (x + y) / loops' share of the bandwidth, for each time that images are brought from
              plane by plane (nchw) to pixel by pixel (nhwc), which kernels for tensor cores read

x, y, w: bytes of input, output, weights; F: the datasheet's peak; bw: its bandwidth; cyc:
multiprocessors x clock. A form is one array expression for NumPy and JAX, between two bounds: no
less than arithmetic at the peak and bytes at the bandwidth, no more than `MOST` times that.

Constants come from whole steps of timm's image models on an RTX 3090 and an RTX 4090 in fp16
(huggingface/pytorch-image-models, results/), fitted together, with beliefs to hold them, on models
that `hybridperf validate timm` does not judge; one set serves both cards. Cards without such steps
differ by datasheet alone, which for their L2 cache nobody has checked.

Norms and pools are in units of a loop: the step effect `memory` says what share of the bandwidth a
loop reaches, and counts for them too.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax

from hybridperf.hardware import DeviceSpec
from hybridperf.hardware.power import held_share
from hybridperf.io import shipped_toml
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.attention import EncoderAttention, PrefillAttention
from hybridperf.ops.base import Op, register
from hybridperf.ops.convolution import Convolution
from hybridperf.ops.gemm import BatchedGemm, Gemm
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.scores import library_of, library_s

# share of the bandwidth that loops reach, by architecture
_LOOPS: dict[str, float] = shipped_toml("hybridperf.ops", "images.toml")["loops"]
# GeForce cards multiply 16 bits at half rate where sums have 32: operands are fed easily, and
# clocks lie above the datasheet's. Of F, at most
ABOVE_PEAK = 1.13
# of F, that products of cards at full rate reach of what those at half rate do: tensor cores twice
# as fast are fed by the same memories. As the dense rows of an H200 have it in the median
FULL_RATE = 0.4
SMALL_L2_BYTES = 12e6  # below, halos and tiles are read again
WHOLE = 8.0  # channels of 16 bits that are 16 bytes, which one load takes
LAUNCH_S = 2e-6
# of the bound from below: 99 % of measured dense convolutions stay under 4 to 13 times it
# (DeepBench, NeuSight); groups, whose kernels leave tensor cores idle, under what few are known
MOST, MOST_GROUPED = 13.0, 100.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GpuFacts:
    """What the forms ask of a GPU, for ops in one number format; leaves may be traced."""

    peak_flops_per_s: Array
    vector_flops_per_s: Array
    memory_bytes_per_s: Array
    cycles_per_s: Array  # multiprocessors x clock
    multiprocessors: Array
    l2_bytes: Array
    sums_rate: Array  # of tensor cores with sums of 32 bits, over that with sums of 16
    held: Array  # share of the clock that power lets long kernels hold
    loops_share: Array  # of the bandwidth that a loop over tensors reaches

    @staticmethod
    def of(device: DeviceSpec, op: Op) -> GpuFacts | None:
        """Of a device, in an op's format; None where a datasheet's number is missing."""
        known = (device.multiprocessors, device.clock_hz, device.l2_bytes)
        if device.kind != "gpu" or None in known:
            return None
        count, clock, l2 = (float(one or 0.0) for one in known)
        return GpuFacts(
            device.peak(op.peak_dtype, op.unit), device.peak(op.peak_dtype, "vector"),
            device.memory_bytes_per_s, count * clock, count, l2, device.fp32_sums_rate,
            held_share(device), _LOOPS.get(device.arch, _LOOPS["usual"]),
        )  # fmt: skip

    @property
    def half_rate(self) -> Array:
        """1 of a card whose tensor cores sum in 32 bits at half rate, else 0."""
        return (floats(self.sums_rate) < 1.0) * 1.0

    def shared(self, share: Array, of_small: Array) -> Array:
        """Bytes a second at a share of the bandwidth, which a small L2 lessens by a factor."""
        is_small = (floats(self.l2_bytes) < SMALL_L2_BYTES) * 1.0
        return share * of_small**is_small * self.memory_bytes_per_s

    def matrix_rate(self, efficiency: Array) -> Array:
        """FLOP/s at an efficiency that was seen at half rate."""
        return efficiency * FULL_RATE ** (1.0 - self.half_rate) * self.peak_flops_per_s

    def least_s(self, flops: Array, moved: Array) -> Array:
        """Arithmetic at the most that the card runs at, bytes at the bandwidth."""
        peak = ABOVE_PEAK**self.half_rate * self.peak_flops_per_s
        xp = array_module(flops, moved)
        return xp.maximum(flops / peak, moved / self.memory_bytes_per_s)


class ConvolutionForm:
    """Constants of convolutions; of pairs the first is for images plane by plane, the second pixel
    by pixel.
    """

    pointwise, spatial = (0.9, 1.08), (1.13, 1.13)  # efficiency of 1 x 1, of larger kernels
    ramp = 29.0  # flops of (1 + this / k): a ramp in the inner dimension
    pointwise_memory, spatial_memory = 0.94, 0.98  # shares of the bandwidth
    pointwise_turns, spatial_turns = 0.12, 0.86  # of images plane by plane
    inputs, weights = 0.94, 0.71  # efficiency of their gradients
    # of larger kernels with channels that are no multiple of `WHOLE`, in either order: over others
    odd_back = 2.0
    turned_back = 1.17  # turns of a gradient, over a forward pass's
    small_l2 = 0.8  # shares of the bandwidth where the L2 cache is small
    # a first layer's few channels: padded to `WHOLE`; shares of the bandwidth, forward and back
    stem = (0.51, 0.38)
    # depthwise: positions of the kernel that a multiprocessor takes a cycle; share of the bandwidth
    taps_per_cycle, depthwise_memory = (8.5, 19.0), (0.98, 0.98)
    depthwise_small_l2 = 0.72
    depthwise_inputs, depthwise_weights = (
        1.7,
        (2.6, 2.85),
    )  # gradients' seconds over a forward pass's
    # grouped: channels of a group as if there were so many; turns; a gradient over a forward pass
    whole_group, grouped_turns, grouped_back = (21.0, 16.0), 1.1, (2.05, 1.4)
    # pixel by pixel, cuDNN has kernels of its own for groups of 4, 8, 16 and 32 channels; others
    # take so many times as long, forward and back
    odd_group = (2.4, 20.0)


_QUICK_GROUPS = (4.0, 8.0, 16.0, 32.0)
_STEM_CHANNELS = 4.0


def convolution_s(op: Convolution, gpu: GpuFacts) -> Array:
    """Seconds of a convolution's pass: dense, depthwise or grouped."""
    c, op = ConvolutionForm, op.filled()
    groups, planes, work = floats(op.groups), floats(op.channels_first), op.work()
    xp = array_module(groups, gpu.memory_bytes_per_s)
    by_order = functools.partial(_by_order, planes=planes)
    x, y, _ = op.parts_bytes()
    per_group, kernel = op.c_in / groups, op.kh * op.kw
    turned_s = 2.0 * (x + y) / (gpu.loops_share * gpu.memory_bytes_per_s)
    forward, of_inputs = op.direction == "fwd", op.direction == "bwd_inputs"
    point = (floats(kernel) == 1) * 1.0
    stem = (floats(op.c_in) <= _STEM_CHANNELS) * 1.0

    # dense
    efficiency = by_order(c.pointwise) * point + by_order(c.spatial) * (1.0 - point)
    if not forward:
        efficiency = c.inputs if of_inputs else c.weights
    k = per_group * kernel
    flops = work.flops * (1.0 + c.ramp / k)
    share = c.pointwise_memory * point + c.spatial_memory * (1.0 - point)
    share = share * (1.0 - stem) + stem * c.stem[0 if forward else 1]
    padded = flops * (stem * WHOLE / xp.minimum(op.c_in, WHOLE) + 1.0 - stem)
    odd = xp.maximum(_odd(op.c_in), _odd(op.c_out)) * (1.0 - point) * (1.0 - stem)
    padded = padded * (1.0 if forward else c.odd_back**odd)
    turns = planes * (c.pointwise_turns * point + c.spatial_turns * (1.0 - point))
    turns = turns * (1.0 if forward else c.turned_back)
    # pixel by pixel, what no load takes whole is padded by a copy first
    pads = (1.0 - planes) * (1.0 - stem)
    copied = pads * 2.0 * (_odd(op.c_in) * x + _odd(op.c_out) * y)
    copied_s = copied / (gpu.loops_share * gpu.memory_bytes_per_s)
    moved_s = work.bytes / gpu.shared(share, c.small_l2)
    dense_s = both(padded / gpu.matrix_rate(efficiency), moved_s)
    dense_s = dense_s + turns * turned_s + copied_s

    # grouped: the forward pass, whichever way
    whole = xp.maximum(1.0, by_order(c.whole_group) / per_group)
    grouped_s = both(
        flops * whole / gpu.matrix_rate(by_order(c.spatial)),
        work.bytes / gpu.shared(c.spatial_memory, c.small_l2),
    )
    grouped_s = grouped_s + planes * c.grouped_turns * turned_s
    quick = functools.reduce(lambda a, b: a | b, [floats(per_group) == n for n in _QUICK_GROUPS])
    slow = (1.0 - planes) * (1.0 - quick * 1.0)
    usual = 1.0 if forward else by_order(c.grouped_back)
    grouped_s = grouped_s * (usual * (1.0 - slow) + slow * c.odd_group[0 if forward else 1])

    # depthwise
    steps_s = op.outputs() * op.taps / (by_order(c.taps_per_cycle) * gpu.cycles_per_s)
    share = by_order(c.depthwise_memory)
    single_s = both(steps_s, work.bytes / gpu.shared(share, c.depthwise_small_l2))
    back = c.depthwise_inputs if of_inputs else by_order(c.depthwise_weights)
    single_s = single_s * (1.0 if forward else back)

    single = (groups > 1) & (groups == op.c_in)
    found_s = xp.where(single, single_s, xp.where(groups > 1, grouped_s, dense_s))
    # depthwise ops run beside the tensor cores
    least_s = gpu.least_s(xp.where(single, 0.0, work.flops), work.bytes)
    lanes_s = xp.where(single, work.flops / gpu.vector_flops_per_s, 0.0)
    most = xp.where(groups > 1, MOST_GROUPED, MOST)
    return bounded(found_s, xp.maximum(least_s, lanes_s), most) + LAUNCH_S


def _by_order(pair: tuple[float, float], planes: Array) -> Array:
    """The first of a pair where images lie plane by plane, else the second."""
    return pair[0] * planes + pair[1] * (1.0 - planes)


def _odd(channels: Array) -> Array:
    """1 where channels are no multiple of `WHOLE`."""
    return (floats(channels) % WHOLE > 0) * 1.0


class NormStep(NamedTuple):
    """What a norm of images does in one step."""

    passes: float  # over a tensor
    flops: float  # of a number
    shares: tuple[float, float]  # of what a loop reaches, as pairs of `ConvolutionForm`


NORM_STEPS = {
    # mean and variance known: a product and a sum
    "eval": NormStep(2.0, 2.0, (0.95 / 0.93, 1.0)),
    # mean 1, difference, square and sum 3, scaled 3
    "train": NormStep(3.0, 7.0, (0.71 / 0.93, 0.89 / 0.93)),
    # two sums of products 4, three terms scaled 6, and a sum
    "bwd": NormStep(5.0, 11.0, (0.52 / 0.93, 0.96 / 0.93)),
}
# numbers that a multiprocessor scales a cycle, plane by plane, each read and written by itself
# (aten/src/ATen/native/cuda/Normalization.cuh): six large norms on an H200
_SCALED_PER_CYCLE = 1.84
_POOL_SHARES = (0.39, 0.41)  # of what a loop reaches, forward and back


@register("image_norm")
@dataclasses.dataclass(frozen=True)
class ImageNorm(Op):
    """Batch norm of images: each channel's numbers by their mean and variance, which inference
    knows. Training reads everything once for these and once to scale it; its gradient reads two
    tensors for their sums and again for the result.

    Bytes are those passes': no cache holds a batch of images.
    """

    batch: Array
    channels: Array
    pixels: Array
    channels_first: Array = 0.0  # 1: plane by plane
    step: str = "train"  # of `NORM_STEPS`

    def work(self) -> Work:
        n, step = self.batch * self.channels * self.pixels, NORM_STEPS[self.step]
        return streamed(step.passes * n * self.element_bytes, flops=step.flops * n)


def image_norm_s(op: ImageNorm, gpu: GpuFacts) -> Array:
    """Seconds of a batch norm, in units of a loop."""
    planes = floats(op.channels_first)
    moved_s = op.work().bytes / gpu.memory_bytes_per_s
    found_s = moved_s / _by_order(NORM_STEPS[op.step].shares, planes)
    if op.step == "eval":
        n = op.batch * op.channels * op.pixels
        singly_s = planes * n / (_SCALED_PER_CYCLE * gpu.cycles_per_s)
        found_s = array_module(planes, found_s).maximum(found_s, singly_s)
    return bounded(found_s, moved_s, MOST)


@register("image_pool")
@dataclasses.dataclass(frozen=True)
class ImagePool(Op):
    """Means or maxima of windows of images (`back`: 1 for the gradient), by PyTorch's own kernels:
    a thread for each result goes through its window.
    """

    elements: Array  # results
    read: Array  # numbers read
    window: Array  # numbers of one result
    marks: Array = 0.0  # places of maxima that are written or read, of 8 bytes
    back: Array = 0.0

    def work(self) -> Work:
        moved = (self.elements + self.read) * self.element_bytes + 8.0 * self.marks
        return streamed(moved, flops=self.elements * self.window)


def image_pool_s(op: ImagePool, gpu: GpuFacts) -> Array:
    """Seconds of a pool, in units of a loop."""
    moved_s = op.work().bytes / gpu.memory_bytes_per_s
    return bounded(moved_s / _by_order(_POOL_SHARES, 1.0 - floats(op.back)), moved_s, MOST)


class ProductForm:
    """Constants of matrix products at half rate."""

    efficiency, batched = 1.1, 0.61  # of F, beside the ramp; of many small ones
    ramp = 63.0  # flops of (1 + this / k)
    memory, small_l2 = 0.86, 0.8


def product_s(op: Gemm | BatchedGemm, gpu: GpuFacts) -> Array:
    """Seconds of a product whose rows begin well, on a card at half rate."""
    work = op.work()
    efficiency = ProductForm.efficiency if op.group == Gemm.group else ProductForm.batched
    flops = work.flops * (1.0 + ProductForm.ramp / op.k)
    return _product_s(work, flops, efficiency, ProductForm.memory, gpu)


def attention_s(op: PrefillAttention | EncoderAttention, gpu: GpuFacts) -> Array:
    """Seconds of fused attention by PyTorch's kernels on a card at half rate: FlashAttention 2.

    Steps of timm's image models by themselves, 197 queries of 64, ask for 0.46 of the peak, 0.98
    to 1.2 times these.
    """
    library = library_of("flash2", "")
    assert library is not None  # the table has it
    work = op.work()
    found_s = library_s(op, gpu, library)
    return bounded(found_s, gpu.least_s(work.flops, work.bytes), MOST)


def _product_s(work: Work, flops: Array, efficiency: float, memory: float, gpu: GpuFacts) -> Array:
    memory_s = work.bytes / gpu.shared(memory, ProductForm.small_l2)
    found_s = both(flops / gpu.matrix_rate(efficiency), memory_s)
    return bounded(found_s, gpu.least_s(work.flops, work.bytes), MOST) + LAUNCH_S


def both(arithmetic_s: Array, memory_s: Array) -> Array:
    """(a^3 + b^3)^(1/3), at most 1.26 times the longer."""
    xp = array_module(arithmetic_s, memory_s)
    most = xp.maximum(arithmetic_s, memory_s)
    return most * ((arithmetic_s / most) ** 3 + (memory_s / most) ** 3) ** (1.0 / 3.0)


def bounded(seconds: Array, least_s: Array, most: Array) -> Array:
    """No less than a bound, no more than `most` times it."""
    return array_module(seconds, least_s).clip(seconds, least_s, most * least_s)
