"""Products of sparse matrices: every nonzero of a row gathers a row of a dense matrix.

    spmm        y[i] = sum over nonzeros (i, j) of a_ij x[j]: aggregation of a graph network,
                segment reduction (each x[j] met once), block-sparse GEMM (`block` rows share an
                index)
    sddmm       s_ij = <u[i], v[j]> at the nonzeros alone: attention over edges
    nm_gemm     a dense product by weights of which `kept` in every `of` are not zero (2:4)

Traffic. A nonzero brings its index and value, a result is written once, and each dense row that is
met at all is read once; all further gathers of it are served by a cache where they find it there.
How many different rows nnz uniform gathers among `cols` meet is cols (1 - exp(-nnz / cols)).

Where the nonzeros lie is not among the columns of tables; two figures of the rows' degrees stand
for it. In a graph that people or pages made, nodes of many neighbours are neighbours of many:
gathers then go to few dense rows, as unevenly as degrees are spread. `skew` is the deviation of log
degrees, by the smaller of what a log-normal distribution of that coefficient of variation has,
sqrt(log(1 + cv^2)), and what one has whose largest of `rows` degrees is `max_degree` times its
mean: log(max / mean) = z s - s^2 / 2 at z, the normal quantile of 1 - 1 / rows. And the longest row
is one thread block's (or warp's) work: what balances nothing waits for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np
import scipy

from hybridperf.hardware import Unit
from hybridperf.io.namespace import Array, array_module, floats, root
from hybridperf.ops.base import Columns, Op, register
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, log2_ratio, log_of, shape_inputs, tails
from hybridperf.ops.movement import INDEX_BYTES, scattered_lines
from hybridperf.ops.roofline import Work, streamed

_METADATA_BITS = 2.0  # of a kept value's place among four (NVIDIA Ampere whitepaper, 2:4 sparsity)


@dataclasses.dataclass(frozen=True)
class Sparse(Op):
    """Products over nonzeros; `GatherRoofline` prices their GPU kernels."""

    rows: Array
    cols: Array  # rows of the dense matrix that is gathered from
    nnz: Array
    n: Array  # columns of the dense matrix: features
    cv_degree: Array = 0.0  # nonzeros of a row: standard deviation / mean
    max_degree: Array = 0.0  # of the longest row; 0: the mean
    block: Array = 1.0  # rows that share one index: V of a Vx1 vector-sparse matrix
    kernel: str = ""  # the platform's library where empty

    unit: ClassVar[Unit] = "matrix"

    def longest(self) -> Array:
        """Nonzeros of the longest row."""
        given, mean = floats(self.max_degree), self.nnz / self.rows
        return array_module(given, mean).maximum(given, mean)

    def skew(self) -> Array:
        """Standard deviation of log degrees (module docstring)."""
        over = floats(self.longest() / (self.nnz / self.rows))
        module = array_module(over, self.rows, self.cv_degree)
        ndtri = (scipy.special if module is np else jax.scipy.special).ndtri
        z = ndtri(1.0 - 1.0 / module.maximum(floats(self.rows), 2.0 + 1e-6))
        of_longest = z - root(module.maximum(z**2 - 2.0 * module.log(over), 0.0))
        of_spread = root(module.log1p(floats(self.cv_degree) ** 2))
        return module.minimum(of_longest, of_spread)

    def gathers(self) -> Array:
        """Number of dense rows that the kernel gathers."""
        return self.nnz / self.block

    def distinct(self) -> Array:
        """Different dense rows that are met."""
        cols = floats(self.cols)
        return -cols * array_module(cols, self.nnz).expm1(-self.gathers() / cols)

    def row_bytes(self) -> Array:
        """Bytes of a row of the dense operand."""
        return self.n * self.element_bytes

    def first_bytes(self) -> Array:
        """Of the different rows that are gathered."""
        return self.distinct() * self.row_bytes()

    def again_bytes(self) -> Array:
        """Of rows that were gathered before: a cache may hold them."""
        more = self.gathers() - self.distinct()
        return array_module(more).maximum(more, 0.0) * self.row_bytes()

    def index_bytes(self) -> Array:
        """Of the nonzeros: indices, values, and where rows begin."""
        values = self.nnz * self.element_bytes
        return INDEX_BYTES * (self.gathers() + self.rows / self.block + 1.0) + values

    def beside_bytes(self) -> Array:
        """Dense numbers that are read or written in order."""
        return self.rows * self.row_bytes()

    def work(self) -> Work:
        return Work(
            flops=FLOPS_PER_MULTIPLY_ADD * self.nnz * self.n,
            bytes=self.first_bytes() + self.beside_bytes() + self.index_bytes(),
            reuse_bytes=self.first_bytes(),
            reuse_spread=self.skew(),
            scattered_reads=self.gathers() * scattered_lines(self.row_bytes()),
            steps=self.nnz,
        )


@shape_inputs.register(Sparse)
def _(op: Sparse) -> dict[str, Array]:
    degree = op.nnz / op.rows
    return {
        **log_of(op, "rows", "cols", "n", "block", degree=degree),
        **tails(16, n=op.n),
        "skew": op.skew(),
        "longest": log2_ratio(op.longest(), degree),
        **({f"kernel_{op.kernel}": 1.0} if op.kernel else {}),
    }


@gpu_inputs.register(Sparse)
def _(op: Sparse, gpu: Gpu) -> dict[str, Array]:
    degree = op.nnz / op.rows
    return {
        **log2_of(op, "rows", "n", "block", degree=degree),
        **gpu.per_l2(footprint=op.first_bytes()),
        "longest": log2_ratio(op.longest(), degree),
        "cv_degree": floats(op.cv_degree),
        "aspect": log2_ratio(op.cols, op.rows),
    }


def _kernel(word: str, dtype: str) -> str:
    """A kernel's name without the number format that tables put behind it."""
    del dtype
    name = word.strip().lower()
    for ending in ("_fp32", "_fp16", "_tf32"):
        name = name.removesuffix(ending)
    return "" if name in ("cusparse", "library") else name


def _contradictions(op: Sparse) -> Sequence[tuple[Array, str]]:
    too_short = (op.max_degree > 0) & (op.max_degree + 1.0 <= op.nnz / op.rows)
    return (
        (op.nnz > op.rows * op.cols, "nnz must be at most rows x cols"),
        (op.max_degree >= op.cols + 1.0, "max_degree must be at most cols"),
        (too_short, "max_degree must be at least nnz / rows, the mean"),
    )


_COLUMNS = Columns(readers={"kernel": _kernel}, contradictions=_contradictions)


@register("spmm", "segment_sum", columns=_COLUMNS)
class SpMM(Sparse):
    """A sparse matrix (rows x cols, CSR) times a dense one (cols x n); a step is one nonzero."""


@register("sddmm", columns=_COLUMNS)
class SDDMM(Sparse):
    """Dot products of n numbers at the nonzeros of rows x cols; a step is one nonzero."""

    def beside_bytes(self) -> Array:
        """A row's own vector, kept while its nonzeros are gone through; results."""
        return self.rows * self.row_bytes() + self.nnz * self.element_bytes

    def index_bytes(self) -> Array:
        """Indices, and where rows begin."""
        return INDEX_BYTES * (self.gathers() + self.rows / self.block + 1.0)


_KEPT = Columns(contradictions=lambda op: ((op.kept > op.of, "kept must be at most of"),))


@register("nm_gemm", columns=_KEPT)
@dataclasses.dataclass(frozen=True)
class NMGemm(Op):
    """m x k activations by k x n weights of which `kept` in every `of` along k are stored: flops
    are those of kept values, so 2:4 takes half the seconds of the dense product at the same peak.
    """

    unit: ClassVar[Unit] = "matrix"

    m: Array
    n: Array
    k: Array
    kept: Array = 2.0
    of: Array = 4.0

    def work(self) -> Work:
        density = self.kept / self.of
        weights = self.k * self.n * density
        dense = self.m * self.k + self.m * self.n
        moved = (dense + weights) * self.element_bytes + weights * _METADATA_BITS / 8.0
        return streamed(moved, flops=FLOPS_PER_MULTIPLY_ADD * self.m * self.n * self.k * density)


@shape_inputs.register(NMGemm)
def _(op: NMGemm) -> dict[str, Array]:
    density = {"density": log2_ratio(op.kept, op.of)}
    return {**log_of(op, "m", "n", "k"), **tails(16, m=op.m, n=op.n), **density}
