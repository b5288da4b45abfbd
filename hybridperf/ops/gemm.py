"""Dense linear algebra: C[m,n] = A[m,k] B[k,n], alone or in batches.

`transposed_a` = 1: A is stored as [k, m]; `transposed_b` = 1: B as [n, k] (weight and input
gradients). A library that packs operands before multiplying reads such an A with a stride, element
by element: on CPUs that can cost as much as the arithmetic.

`quant` names a scheme of `quantise.py`: B holds weights in the scheme's format, A comes in and C
goes out as the scheme says, and its number format multiplies. Empty: all three in the op's dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, Unit
from hybridperf.io.namespace import Array, floats, reals
from hybridperf.ops.base import Columns, Op, register
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, log_of, shape_inputs, tails
from hybridperf.ops.quantise import (
    QUANT,
    SCHEMES,
    measured_scheme,
    scheme_dtype,
    scheme_flags,
    scheme_of,
)
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import blocks, product_inputs, product_steps, serial_steps, tile_count

FLOPS_PER_MULTIPLY_ADD = 2.0
# starting one product of a batch takes about as long as packing so many numbers (Eigen: 0.25 us to
# 0.25 ns)
PRODUCT_STEPS = 1000.0
_LEAST_CUT_BYTES = 2.0
# number formats whose tables hold widths of whole tiles alone; from how wide on these are so wide
_TILED_BYTES, _TILES = 2.0, ((16.0, 16.0), (64.0, 64.0), (256.0, 128.0), (4096.0, 256.0))
_COLUMNS = Columns(
    readers=QUANT, refused={"batch": "write bmm, a product for each of a batch, or more rows in m"}
)


class Product(Op):
    """Products of matrices, as BLAS names what is transposed, in the number format of a scheme."""

    unit: ClassVar[Unit] = "matrix"

    def knob_groups(self: Any) -> Mapping[str, Any]:
        """Products that pack an operand against its grain have knobs of their own."""
        return {f"{self.group}_transposed": floats(self.transposed_a) > 0, self.group: True}

    @property
    def peak_dtype(self: Any) -> str:
        return scheme_dtype(self.dtype, self.quant)


@register("gemm", "matmul", bias=0.0)
@register("linear", bias=1.0, columns=_COLUMNS)
@dataclasses.dataclass(frozen=True)
class Gemm(Product):
    """One matrix product; `bias` = 1 adds a vector of n to every row."""

    group: ClassVar[str] = "gemm"

    m: Array
    n: Array
    k: Array
    bias: Array = 0.0
    transposed_a: Array = 0.0
    transposed_b: Array = 0.0
    quant: str = ""

    def work(self) -> Work:
        m, n, k = self.m, self.n, self.k
        return streamed(
            _product_bytes(self) + self.bias * n * scheme_of(self).outgoing_bytes,
            flops=FLOPS_PER_MULTIPLY_ADD * m * n * k + self.bias * m * n,
            # with both transposed the other operand is packed against its grain, too
            strided_reads=self.transposed_a * (m * k + self.transposed_b * n * k),
            strided_bytes=m * k * self.element_bytes,
            # operands are packed and results written one by one, wherever they come from
            steps=m * k + k * n + m * n,
        )


# the last two: latent attention's projections of one token per head
@register("bmm", "mla_gen_pre", "mla_gen_post", columns=_COLUMNS)
@dataclasses.dataclass(frozen=True)
class BatchedGemm(Product):
    """`batch` independent matrix products of one shape; a step is one number packed or written."""

    group: ClassVar[str] = "batched_gemm"

    batch: Array
    m: Array
    n: Array
    k: Array
    transposed_a: Array = 0.0
    transposed_b: Array = 0.0
    quant: str = ""

    def work(self) -> Work:
        m, n, k = self.m, self.n, self.k
        return streamed(
            self.batch * _product_bytes(self),
            flops=FLOPS_PER_MULTIPLY_ADD * self.batch * m * n * k,
            strided_reads=self.batch * (self.transposed_a * m * k + self.transposed_b * n * k),
            strided_bytes=m * k * self.element_bytes,
            steps=self.batch * (m * k + k * n + m * n + PRODUCT_STEPS),
        )


def _product_bytes(op: Gemm | BatchedGemm) -> Array:
    """Bytes of one product."""
    scheme = scheme_of(op)
    activations = op.m * op.k * scheme.activation_bytes
    return activations + op.k * op.n * scheme.weight_bytes + op.m * op.n * scheme.outgoing_bytes


@blocks.register(Product)
def _(op: Any) -> Array:
    return _batch(op) * tile_count(op.m, op.n)


@serial_steps.register(Product)
def _(op: Any, gpu: Gpu) -> Array:
    # kernels of narrow numbers, measured so far, do not cut k into parts
    may_cut = DTYPE_BYTES[op.peak_dtype] >= _LEAST_CUT_BYTES
    return product_steps(op.m, op.n, op.k, gpu, _batch(op), may_cut)


@shape_inputs.register(Product)
def _(op: Any) -> dict[str, Array]:
    # vectors of 4 to 16 numbers on CPUs, tiles of 64 and 128 on GPUs
    return {
        **log_of(op, "m", "n", "k"),
        **tails(4, m=op.m, n=op.n),
        **tails(16, m=op.m, n=op.n, k=op.k),
        **tails(64, m=op.m, n=op.n),
        "transposed_a": op.transposed_a,
        "transposed_b": op.transposed_b,
        **(log_of(op, "batch") if isinstance(op, BatchedGemm) else {}),
    }


@gpu_inputs.register(Product)
def _(op: Any, gpu: Gpu) -> dict[str, Array]:
    batch, weight_bytes = _batch(op), scheme_of(op).weight_bytes
    kernels = SCHEMES[measured_scheme(op.quant)] if op.quant else scheme_of(op)
    return {
        **_fill_inputs(op, gpu, batch),
        **gpu.per_l2(bytes=op.work().bytes, weights=batch * op.k * op.n * weight_bytes),
        "transposed_a": op.transposed_a,
        "transposed_b": op.transposed_b,
        "weight_bytes": kernels.weight_bytes,
        **scheme_flags(op.quant),
        **(log2_of(batch=batch) if isinstance(op, BatchedGemm) else {"bias": op.bias}),
    }


def _fill_inputs(op: Any, gpu: Gpu, batch: Array) -> dict[str, Array]:
    """How a product fills the GPU. Of 16 bits and fewer tables hold no width or depth between whole
    tiles: what is learned there goes from one to the next in a straight line (a row in m is
    measured, and stays as it is), or 4,097 columns would come out an eighth quicker than 4,096.
    """
    if DTYPE_BYTES[op.peak_dtype] > _TILED_BYTES:
        return product_inputs(op.m, op.n, op.k, gpu, batch)
    module, *sizes = reals(op.m, op.n, op.k, batch)
    m, n, k, batch = module.broadcast_arrays(*sizes)
    n_cell, k_cell = _cell(module, n), _cell(module, k)
    if module is np and not (np.any(n_cell[2]) or np.any(k_cell[2])):
        return product_inputs(op.m, op.n, op.k, gpu, batch)
    at = [(n_up, k_up) for n_up in (0, 1) for k_up in (0, 1)]  # corners [4, ...], asked at once
    n, k = (
        module.stack([cell[corner[of]] for corner in at]) for of, cell in ((0, n_cell), (1, k_cell))
    )
    shares = [[1 - cell[2], cell[2]] for cell in (n_cell, k_cell)]
    share = module.stack([shares[0][n_up] * shares[1][k_up] for n_up, k_up in at])
    found = product_inputs(m, n, k, gpu, batch)
    return {name: module.sum(share * value, axis=0) for name, value in found.items()}


def _cell(module: Any, size: Array) -> tuple[Array, Array, Array]:
    """(the sizes of whole tiles on either side, how far from the lower one a size lies)."""
    tile = 1.0
    for least, whole in _TILES:
        tile = module.where(size >= least, whole, tile)
    lower = module.floor(size / tile) * tile
    return lower, lower + tile, (size - lower) / tile


def _batch(op: Any) -> Array:
    return op.batch if isinstance(op, BatchedGemm) else 1.0
