"""Loops over tensors: elementwise ops, fusions of them, reductions, norms, softmax, random numbers,
optimizer updates.

All are priced by the same counts; what differs is the group they are calibrated with. Flops per
element follow XLA's count: one per arithmetic instruction, transcendentals apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.base import Columns, Op, register
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, log_of, shape_inputs, tails
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import aligned, blocks

# of a real number, times log2 of a Fourier transform's length: FFTW counts 5 n log2 n flops for n
# complex numbers, each of them two (https://www.fftw.org/speed/method.html)
FOURIER_FLOPS = 5 / 2
BLOCK_ELEMENTS = 1024.0  # elements that one thread block of a GPU loop takes

# name: (tensors read, flops, transcendentals) per element; `...u` has a scalar as second operand,
# as in NeuSight's tables
_ELEMENTWISE = {
    "add": (2, 1, 0), "sub": (2, 1, 0), "mul": (2, 1, 0), "div": (2, 1, 0), "pow": (2, 0, 1),
    "maximum": (2, 1, 0), "addu": (1, 1, 0), "mulu": (1, 1, 0), "divu": (1, 1, 0),
    "powu": (1, 0, 1), "relu": (1, 1, 0), "gelu": (1, 8, 1), "tanh": (1, 0, 1), "exp": (1, 0, 1),
    "log": (1, 0, 1), "sqrt": (1, 0, 1), "sigmoid": (1, 2, 1), "cast": (1, 0, 0),
    "fill": (0, 0, 0), "addcmul": (3, 2, 0),
    "silu_mul": (2, 4, 1),  # x * sigmoid(x) * y: exponential, sum, quotient, two products
    "rope": (1, 3, 0),  # a pair turned by an angle: two products and a sum for each number
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Matrix(Op):
    """An op on rows x cols elements."""

    rows: Array
    cols: Array


@shape_inputs.register(Matrix)
def _(op: Matrix) -> dict[str, Array]:
    return {**log_of(op, "rows", "cols"), **tails(16, cols=op.cols)}


def _matrix_inputs(op: Any, gpu: Gpu) -> dict[str, Array]:
    return {
        **log2_of(op, "rows", "cols", elements=op.rows * op.cols),
        **gpu.per_l2(bytes=op.work().bytes),
        **tails(32, 128, 1024, cols=op.cols),  # lanes of a warp, ..., threads of a block
        "align_cols": aligned(op.cols, 16),  # vector loads
        **gpu.waves("rows", op.rows),
    }


@dataclasses.dataclass(frozen=True)
class Elementwise(Matrix):
    """One op applied to each of rows x cols elements."""

    group: ClassVar[str] = "elementwise"

    inputs: Array = 1.0
    element_flops: Array = 1.0
    element_transcendentals: Array = 0.0

    def work(self) -> Work:
        n = self.rows * self.cols
        moved = (self.inputs + 1) * n * self.element_bytes
        transcendentals = self.element_transcendentals * n
        return streamed(moved, flops=self.element_flops * n, transcendentals=transcendentals)


blocks.register(Elementwise, lambda op: op.rows * op.cols / BLOCK_ELEMENTS)


@shape_inputs.register(Elementwise)
def _(op: Elementwise) -> dict[str, Array]:
    size, elements = op.element_bytes, op.rows * op.cols
    flops, transcendentals = op.element_flops, op.element_transcendentals
    return {
        **log_of(elements=elements, inner=op.cols, flops_each=flops, written_each=size),
        **log_of(transcendentals_each=transcendentals, read_each=op.inputs * size),
        **tails(16, inner=op.cols),
    }


@gpu_inputs.register(Elementwise)
def _(op: Elementwise, gpu: Gpu) -> dict[str, Array]:
    return {
        **_matrix_inputs(op, gpu),
        **gpu.waves("elements", blocks(op)),
        "inputs": op.inputs,
        "flops_each": op.element_flops,
        "transcendentals_each": op.element_transcendentals,
    }


for _name, (_inputs, _flops, _curved) in _ELEMENTWISE.items():
    register(_name, inputs=_inputs, element_flops=_flops, element_transcendentals=_curved)(
        Elementwise
    )


_FUSED = Columns(
    optional={"flops": 0.0, "transcendentals": 0.0},
    zero_allowed=frozenset({"flops", "transcendentals", "bytes_read"}),
)


@register("fused", loop="elementwise")
@register("fused_reduction", loop="reduction")
@register("fused_window_reduction", loop="window_reduction")
@register("fused_padded_window_reduction", loop="padded_window_reduction")
@register("fused_joint_reduction", loop="joint_reduction")
@register("fused_library_reduction", loop="library_reduction", columns=_FUSED)
@dataclasses.dataclass(frozen=True)
class Fused(Op):
    """A compiler's fusion of many ops into one loop, by what it computes, reads and writes.

    `strided_reads` counts element reads that jump by more than a cache line from one loop iteration
    to the next (a transposed operand); `strided_bytes` is the memory spanned until the turn of
    those lines' other elements comes. A `joint_reduction` brings several arrays down at once, as
    the largest element of a window and where it was.
    """

    group: ClassVar[str] = "elementwise"

    elements: Array  # loop iterations
    flops: Array
    transcendentals: Array
    bytes_read: Array
    bytes_written: Array
    strided_reads: Array = 0.0
    strided_bytes: Array = 0.0
    inner: Array = 0.0  # steps along the fastest dimension of the result; 0: not known
    summed: Array = 0.0  # elements that go into one result of a reduction
    summed_inner: Array = 0.0  # 1: the reduction runs along the fastest dimension of memory
    compared: Array = 0.0  # 1: the reduction is a maximum or minimum
    instructions: Array = 0.0  # of lanes, besides flops: as `Work` counts them
    loop: str = "elementwise"

    def work(self) -> Work:
        same = ("flops", "transcendentals", "instructions", "strided_reads", "strided_bytes")
        counts = {name: getattr(self, name) for name in same}  # as `Work` calls them
        return streamed(self.bytes_read + self.bytes_written, steps=self.elements, **counts)

    def knob_groups(self) -> Mapping[str, Any]:
        """Loops that are not vectorised have knobs of their own: strided and padded ones."""
        groups: dict[str, Any] = {}
        if self.loop == "elementwise":
            groups["strided_loop"] = floats(self.strided_reads) > 0
        # more loop iterations than elements to read: windows reach over the edge
        if self.loop == "library_reduction":
            padded = floats(self.elements) * self.element_bytes > floats(self.bytes_read)
            groups["padded_library_reduction"] = padded
        return {**groups, self.loop: True}


@shape_inputs.register(Fused)
def _(op: Fused) -> dict[str, Array]:
    n = op.elements
    flops, transcendentals = op.flops / n, op.transcendentals / n
    return {
        **log_of(op, "elements", "inner", "summed", flops_each=flops),
        **log_of(transcendentals_each=transcendentals),
        **log_of(read_each=op.bytes_read / n, written_each=op.bytes_written / n),
        **tails(16, inner=op.inner),
        "summed_inner": op.summed_inner,
        "compared": op.compared,
    }


class RowByRow(Matrix):
    """One that GPUs run with a thread block for each row."""


blocks.register(RowByRow, lambda op: op.rows)
gpu_inputs.register(RowByRow, _matrix_inputs)


@register("reduction", "reduce")
class Reduction(RowByRow):
    """Sum (or maximum) of each row of `cols` elements."""

    def work(self) -> Work:
        n = self.rows * self.cols
        return streamed((n + self.rows) * self.element_bytes, flops=n, steps=n)


@register("softmax")
class Softmax(RowByRow):
    """exp(x - max) / sum over each row: maximum, subtraction, exponential, sum, division."""

    def work(self) -> Work:
        n = self.rows * self.cols
        return streamed(2 * n * self.element_bytes, flops=4 * n, transcendentals=n, steps=self.rows)


@register("layernorm", "ln", "layer_norm")
@register("batchnorm", "batch_norm")
class Norm(RowByRow):
    """(x - mean) / sqrt(variance) * scale + shift; layernorm over rows, batchnorm over columns."""

    group: ClassVar[str] = "norm"

    def work(self) -> Work:
        n = self.rows * self.cols
        moved = 2 * (n + self.cols) * self.element_bytes
        # mean 1, difference 1, square and its sum 2, scaling by 1/sqrt 1, scale and shift 2
        return streamed(moved, flops=7 * n, transcendentals=self.rows, steps=self.rows)


@register("rmsnorm", "rms_norm")
class RmsNorm(RowByRow):
    """x / sqrt(mean of squares) * scale over each row."""

    group: ClassVar[str] = "norm"

    def work(self) -> Work:
        n = self.rows * self.cols
        moved = (2 * n + self.cols) * self.element_bytes
        # square and its sum 2, division by the root 1, scale 1
        return streamed(moved, flops=4 * n, transcendentals=self.rows, steps=self.rows)


@register("sort")
class Sort(Matrix):
    """Each row of `cols` keys sorted by itself; a step is one comparison of a merge sort."""

    def work(self) -> Work:
        n = self.rows * self.cols
        comparisons = n * array_module(self.cols).log2(self.cols + 1)
        return streamed(2 * n * self.element_bytes, steps=comparisons)


@register("cumulative", "cumsum", "cumprod", "cummax")
class Cumulative(Matrix):
    """Running sum (product, maximum) along each row."""

    def work(self) -> Work:
        n = self.rows * self.cols
        return streamed(2 * n * self.element_bytes, flops=n, steps=n)


@register("random", "rng")
class Random(Matrix):
    """Random numbers, one per element; a step is one number."""

    def work(self) -> Work:
        n = self.rows * self.cols
        return streamed(n * self.element_bytes, steps=n)


@register("sgd", reads=2.0, writes=1.0, element_flops=2.0, element_transcendentals=0.0)
@register("lamb", reads=6.0, writes=4.0, element_flops=16.0, element_transcendentals=1.0)
@register("adam", reads=4.0, writes=3.0, element_flops=12.0, element_transcendentals=1.0)
@dataclasses.dataclass(frozen=True)
class OptimizerUpdate(Op):
    """Update of `parameters` numbers: SGD reads parameter and gradient, Adam also two moments,
    LAMB its own update and the parameter again.
    """

    group: ClassVar[str] = "optimizer"

    parameters: Array
    reads: Array = 2.0
    writes: Array = 1.0
    element_flops: Array = 2.0
    element_transcendentals: Array = 0.0

    def work(self) -> Work:
        n, moved = self.parameters, (self.reads + self.writes) * self.element_bytes
        roots = self.element_transcendentals * n
        return streamed(n * moved, flops=self.element_flops * n, transcendentals=roots)


shape_inputs.register(
    OptimizerUpdate, lambda op: log_of(elements=op.parameters, tensors=op.reads + op.writes)
)
