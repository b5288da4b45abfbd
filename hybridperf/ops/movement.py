"""Moving data: copies, transposes, table lookups and updates, fresh memory; and what a call of a
program, or of an op of one that runs op by op, costs by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.base import Columns, Op, register
from hybridperf.ops.embedding import uniform_unique_rows
from hybridperf.ops.inputs import log_of, shape_inputs, tails
from hybridperf.ops.loops import Matrix
from hybridperf.ops.roofline import Work, streamed

CACHE_LINE_BYTES = 64.0
INDEX_BYTES = 4.0
PAGE_BYTES = 4096.0
_LINES_BEFORE_PREFETCH = 8.0


@register("copy", "concat", "slice", "pad")
class Copy(Matrix):
    """rows x cols elements read in order and written in order."""

    def work(self) -> Work:
        return streamed(2 * self.rows * self.cols * self.element_bytes)


shape_inputs.register(Copy, lambda op: {**log_of(op, "cols"), **tails(16, cols=op.cols)})


@register("transpose")
@dataclasses.dataclass(frozen=True)
class Transpose(Matrix):
    """`batch` matrices of rows x cols, written in order, read with a stride of `cols` elements."""

    batch: Array = 1.0

    def work(self) -> Work:
        n = self.batch * self.rows * self.cols
        # a whole column is read before its neighbour's turn
        spanned = self.rows * self.cols * self.element_bytes
        moved = 2 * n * self.element_bytes
        return streamed(moved, strided_reads=n, strided_bytes=spanned, steps=n)


@shape_inputs.register(Transpose)
def _(op: Transpose) -> dict[str, Array]:
    return {**log_of(op, "batch", "rows", "cols"), **tails(16, rows=op.rows, cols=op.cols)}


def scattered_lines(row_bytes: Array) -> Array:
    """Cache lines of a row at a random place that are each waited for: prefetching starts only some
    lines into a row, and then keeps up.

    Measured on a Xeon, cold: rows of 350 to 600 bytes take 13 to 16 ns a line, rows of 2 KiB 6 ns.
    """
    return array_module(row_bytes).clip(row_bytes / CACHE_LINE_BYTES, 1.0, _LINES_BEFORE_PREFETCH)


@dataclasses.dataclass(frozen=True)
class TableOp(Op):
    """`rows` rows of `cols` elements at uniform random places of a table of `vocab` rows; a step is
    one row.
    """

    rows: Array
    cols: Array
    vocab: Array

    def row_work(self, moved: Array, flops: Array = 0.0) -> Work:
        """Work that moves so many bytes a row."""
        row_bytes = self.cols * self.element_bytes
        return Work(
            flops=flops,
            bytes=self.rows * moved,
            reuse_bytes=uniform_unique_rows(self.rows, self.vocab) * row_bytes,  # those in use
            scattered_reads=self.rows * scattered_lines(row_bytes),
            steps=self.rows,
        )


@shape_inputs.register(TableOp)
def _(op: TableOp) -> dict[str, Array]:
    pooled = {"pooled": op.pooled} if isinstance(op, Gather) else {}
    return {**log_of(op, "rows", "cols", "vocab"), **tails(16, cols=op.cols), **pooled}


@register("gather", "embedding")
@dataclasses.dataclass(frozen=True)
class Gather(TableOp):
    """Rows fetched from a table. `pooled` = 1: they are summed into bags as they come in and only
    the sums are written (a fused embedding bag).
    """

    pooled: Array = 0.0

    def work(self) -> Work:
        # sums are few compared with the rows: not counted
        written = 1.0 - (floats(self.pooled) > 0)
        return self.row_work((1.0 + written) * (self.cols * self.element_bytes) + INDEX_BYTES)

    def knob_groups(self) -> Mapping[str, Any]:
        """Pooling rows as they come in overlaps their arrival."""
        return {"pooled_gather": floats(self.pooled) > 0, self.group: True}


@register("scatter_add", "scatter")
class ScatterAdd(TableOp):
    """Rows added in place to those of a table."""

    def work(self) -> Work:
        # update and table row read, table row written
        moved = 3 * (self.cols * self.element_bytes) + INDEX_BYTES
        return self.row_work(moved, flops=self.rows * self.cols)


@register("allocation")
@dataclasses.dataclass(frozen=True)
class Allocation(Op):
    """Memory that the operating system hands out at first touch; a step is one 4 KiB page."""

    bytes: Array

    def work(self) -> Work:
        return Work(steps=self.bytes / PAGE_BYTES)


@register("call", columns=Columns(zero_allowed=frozenset({"buffers"})))
@dataclasses.dataclass(frozen=True)
class Call(Op):
    """Starting a compiled program from the host; a step is one argument or result handed over."""

    buffers: Array

    def work(self) -> Work:
        return Work(steps=self.buffers)


@register("loop_trip")
@dataclasses.dataclass(frozen=True)
class LoopTrip(Op):
    """One trip of a compiled while loop besides its body: condition, counter."""

    trips: Array

    def work(self) -> Work:
        return Work(steps=self.trips)


@dataclasses.dataclass(frozen=True)
class EagerOp(Op):
    """What a framework that runs op by op spends around one op of a step, besides the op as it is
    called alone: modules, records of gradients, loops over parameters, views. Sharded weights
    (FSDP2) bring more: `gathered`, around each message of a group of parameters; `parameter`, for
    each of these; `dispatched`, around an op on tensors that say how they are sharded (DTensor),
    and `wrapped`, where it makes a new one.
    """

    group: ClassVar[str] = "eager_forward"

    phase: str = "forward"

    def work(self) -> Work:
        return Work()

    def knob_groups(self) -> Mapping[str, Any]:
        """Each phase has an overhead of its own."""
        return {f"eager_{self.phase}": True}


for _phase in (
    "forward", "backward", "update", "gathered", "parameter", "dispatched", "wrapped",
):  # fmt: skip
    register(f"eager_{_phase}", phase=_phase)(EagerOp)
