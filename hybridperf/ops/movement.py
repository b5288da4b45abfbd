"""Moving data: copies, transposes, table lookups and updates, fresh memory; and what a call of a
program, or of an op of one that runs op by op, costs by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.base import Op, register
from hybridperf.ops.columns import Columns
from hybridperf.ops.embedding import reuse_distance_bytes, uniform_unique_rows
from hybridperf.ops.inputs import log_sizes, shape_inputs, tails
from hybridperf.ops.roofline import Work, streamed

CACHE_LINE_BYTES = 64.0
INDEX_BYTES = 4.0
PAGE_BYTES = 4096.0
_LINES_BEFORE_PREFETCH = 8.0


@register("copy", "concat", "slice", "pad")
@dataclasses.dataclass(frozen=True)
class Copy(Op):
    """rows x cols elements read in order and written in order."""

    rows: Array
    cols: Array

    def work(self) -> Work:
        return streamed(2 * self.rows * self.cols * self.element_bytes)


shape_inputs.register(Copy, lambda op: {**log_sizes(cols=op.cols), **tails(16, cols=op.cols)})


@register("transpose")
@dataclasses.dataclass(frozen=True)
class Transpose(Op):
    """`batch` matrices of rows x cols, written in order, read with a stride of `cols` elements."""

    rows: Array
    cols: Array
    batch: Array = 1.0

    def work(self) -> Work:
        n = self.batch * self.rows * self.cols
        # a whole column is read before its neighbour's turn
        spanned = self.rows * self.cols * self.element_bytes
        moved = 2 * n * self.element_bytes
        return streamed(moved, strided_reads=n, strided_bytes=spanned, steps=n)


@shape_inputs.register(Transpose)
def _(op: Transpose) -> dict[str, Array]:
    turned = tails(16, rows=op.rows, cols=op.cols)
    return {**log_sizes(op, "batch", "rows", "cols"), **turned}


def scattered_lines(row_bytes: Array) -> Array:
    """Cache lines of a row at a random place that are each waited for: prefetching starts only some
    lines into a row, and then keeps up.

    Measured on a Xeon, cold: rows of 350 to 600 bytes take 13 to 16 ns a line, rows of 2 KiB 6 ns.
    """
    return array_module(row_bytes).clip(row_bytes / CACHE_LINE_BYTES, 1.0, _LINES_BEFORE_PREFETCH)


@register("gather", "embedding")
@dataclasses.dataclass(frozen=True)
class Gather(Op):
    """`rows` rows of `cols` elements fetched from a table of `vocab` rows at uniform random places;
    a step is one row.

    `pooled` = 1: the rows are summed into bags as they come in and only the sums are written (a
    fused embedding bag).
    """

    rows: Array
    cols: Array
    vocab: Array
    pooled: Array = 0.0

    def work(self) -> Work:
        # sums are few compared with the rows: not counted
        written = 1.0 - (floats(self.pooled) > 0)
        moved = self.rows * ((1.0 + written) * (self.cols * self.element_bytes) + INDEX_BYTES)
        return _table_work(self, moved)

    def knob_groups(self) -> Mapping[str, Any]:
        """Pooling rows as they come in overlaps their arrival."""
        return {"pooled_gather": floats(self.pooled) > 0, self.group: True}


shape_inputs.register(Gather, lambda op: {**_table_shape(op), "pooled": op.pooled})


@register("scatter_add", "scatter")
@dataclasses.dataclass(frozen=True)
class ScatterAdd(Op):
    """`rows` rows added in place to a table of `vocab` rows at random; a step is one row."""

    rows: Array
    cols: Array
    vocab: Array

    def work(self) -> Work:
        # update and table row read, table row written
        moved = self.rows * (3 * (self.cols * self.element_bytes) + INDEX_BYTES)
        return _table_work(self, moved, flops=self.rows * self.cols)


def _table_shape(op: Gather | ScatterAdd) -> dict[str, Array]:
    return {**log_sizes(op, "rows", "cols", "vocab"), **tails(16, cols=op.cols)}


shape_inputs.register(ScatterAdd, _table_shape)


def _table_work(op: Gather | ScatterAdd, moved: Array, flops: Array = 0.0) -> Work:
    """Work on `op.rows` rows of a table at uniform random places."""
    row_bytes = op.cols * op.element_bytes
    unique = uniform_unique_rows(op.rows, op.vocab)
    return Work(
        flops=flops,
        bytes=moved,
        reuse_bytes=reuse_distance_bytes(unique, row_bytes),
        scattered_reads=op.rows * scattered_lines(row_bytes),
        steps=op.rows,
    )


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


@register("eager_forward", phase="forward")
@register("eager_backward", phase="backward")
@register("eager_update", phase="update")
@register("eager_gathered", phase="gathered")
@register("eager_parameter", phase="parameter")
@register("eager_dispatched", phase="dispatched")
@register("eager_wrapped", phase="wrapped")
@dataclasses.dataclass(frozen=True)
class EagerOp(Op):
    """What a framework that runs op by op spends around one op of a step, besides the op as it is
    called alone: modules, records of gradients, loops over parameters, views. Sharded weights
    (FSDP2) bring more: `gathered`, around each message of a group of parameters; `parameter`, for
    each of these; `dispatched`, around an op on tensors that say how they are sharded (DTensor),
    and `wrapped`, where it makes a new one.
    """

    group: ClassVar[str] = "eager_forward"

    phase: str = "forward"  # or backward, update, gathered, parameter, dispatched, wrapped

    def work(self) -> Work:
        return Work()

    def knob_groups(self) -> Mapping[str, Any]:
        """Each phase has an overhead of its own."""
        return {f"eager_{self.phase}": True}
