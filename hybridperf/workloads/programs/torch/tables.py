"""Recorded ops that look rows up in tables, update them, or sort their indices.

PyTorch's own, and those of FBGEMM for many tables at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import Copy, Fused, Gather, OpCall, ScatterAdd, Sort
from hybridperf.ops.embedding import uniform_unique_rows
from hybridperf.ops.embedding_bag import EmbeddingBag, EmbeddingBagBackward
from hybridperf.workloads.programs.torch.calls import TorchCall, flat, needs
from hybridperf.workloads.programs.torch.loops import LOOPS, Ops, Rule, loop, named, over

# of a table's gradient: rows from which on they are sorted, passes of a sort of whole numbers,
# small kernels
_SORTED, _PASSES, _MARKS = 3072.0, 8.0, 23.0
_SEGMENT, _WARP, _LEAST_THREADS = 10.0, 32.0, 64.0  # rows summed by one thread; of a row's threads
# of a thread that sums a segment, most of them spent waiting: each reads where its segment begins,
# which rows it has, then their numbers
_INSTRUCTIONS = 273.0


def _lookup(call: TorchCall) -> Ops:
    """`embedding(weight, indices)`, `index_select(self, dim, index)`; a bag sums its rows."""
    kind = call.kind
    table, index = call.single(0, 2 if kind in ("index_select", "gather") else 1)
    if kind in ("gather", "take"):
        return (Gather(table.dtype, float(index.elements), 1.0, float(table.elements)),)
    dim = call.value(1) if kind == "index_select" and len(call.values) > 1 else 0
    rank = len(table.shape)
    needs(rank and isinstance(dim, int) and -rank <= dim < rank and index.elements)
    vocab, outer = table.shape[dim], math.prod(table.shape[: dim % rank])
    cols, rows = table.elements / vocab / outer, float(index.elements * outer)
    pooled = float("bag" in kind)
    return (Gather(table.dtype, rows, cols, float(vocab * outer), pooled=pooled),)


def _index(call: TorchCall) -> Ops:
    """`self[indices]`: rows where the first dimensions are indexed, single elements otherwise."""
    (table,), index, written = call.single(0), flat(call.given[1:2]), call.written
    needs(index and written and written[0].elements)
    rows = max(tensor.elements for tensor in index)
    cols = written[0].elements / rows
    rest = table.shape[len(index) :]
    if not (cols.is_integer() and rest and math.prod(rest) == cols):
        rows, cols = written[0].elements, 1.0
    return (Gather(table.dtype, float(rows), float(cols), max(table.elements / cols, 1.0)),)


def _searched(call: TorchCall) -> Ops:
    """Where numbers belong in sorted rows: a step for each halving of a row."""
    values = call.tensor(0 if call.kind == "bucketize" else 1)
    (row,) = call.single(1 if call.kind == "bucketize" else 0)
    needs(row.elements and row.shape)
    read_bytes = row.bytes + (values.bytes if values else 0.0)
    return loop(call.made, read_bytes, math.ceil(math.log2(row.shape[-1] + 1)), 0)


def _scatter(call: TorchCall) -> Ops:
    """Rows put or added into a table; sorted first where they may meet and are added in order."""
    put = "index_put" in call.kind
    (table,) = call.single(0)
    # of one number for all: as many as there are indices
    source = call.tensor(2 if put else 3) or call.tensor(2)
    needs(source)
    assert source is not None
    rows = source.elements
    index = flat(call.given[2:3])
    by_row = not put and call.kind.startswith("index")
    if by_row and index and index[0].elements and rows % index[0].elements == 0:
        rows = index[0].elements
    needs(rows and table.elements)
    cols = source.elements / rows
    ops = (ScatterAdd(table.dtype, float(rows), float(cols), max(table.elements / cols, 1.0)),)
    adds = put and call.value(3) is True
    return (Sort("int64", 1.0, float(rows)), *ops) if adds else ops


def added_rows(call: TorchCall) -> ScatterAdd:
    """Rows of a table's gradient, added into it."""
    (gradient, index), written = call.single(0, 1), call.written
    needs(gradient.shape and index.elements)
    vocab = written[0].shape[0] if written and written[0].shape else call.value(2)
    needs(not isinstance(vocab, bool) and isinstance(vocab, int | float) and vocab >= 1)
    cols = float(gradient.shape[-1])
    return ScatterAdd(gradient.dtype, float(index.elements), cols, float(vocab))


def _embedding_gradient(call: TorchCall) -> Ops:
    """Of a dense table; its zeros are an op of their own."""
    rows = added_rows(call)
    return sorted_gradient(rows) if rows.rows > _SORTED else (sorted_keys(rows), rows)


def sorted_keys(rows: ScatterAdd) -> Sort:
    """The sort of lookup indices that a deterministic update begins with."""
    return Sort("int64", 1.0, rows.rows)


def sorted_gradient(added: ScatterAdd) -> tuple[OpCall, ...]:
    """Rows of a table's gradient on a GPU (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu).

    Indices with their places are sorted, eight bits a pass; small kernels find where each index
    begins and cut it into segments of ten rows at most; the rows of each segment are summed, then
    each index's segments into the table. A block has a warp, or more, for a row of its kind, and a
    multiprocessor at most 32 blocks, so that narrow rows keep as many threads busy as those of 64.

    How many small kernels, and how many instructions a thread takes, are fitted to 58 such
    gradients of an H100 and an H200 whose indices are equally frequent (`calibration/measured`):
    6 % off in the mean, 7 % on widths left out, 8 % on the GPU left out. By bytes in place of
    threads they were 11 % off and those of the H100 15 %: both GPUs take equally long.
    """
    rows, unique = float(added.rows), float(uniform_unique_rows(added.rows, added.vocab))
    keys = Fused("int64", elements=rows, flops=0.0, transcendentals=0.0,
                 bytes_read=2 * 8 * rows, bytes_written=2 * 8 * rows)  # fmt: skip
    marks = dataclasses.replace(keys, bytes_read=8 * rows, bytes_written=0.0)
    small = (OpCall(keys, times=_PASSES), OpCall(marks, times=_MARKS))
    segments = unique + (rows - unique) / _SEGMENT
    return (
        *small,
        OpCall(_summed(added, rows, segments)),
        OpCall(_summed(added, segments, unique)),
    )


def _summed(added: ScatterAdd, rows: float, results: float) -> Fused:
    """Rows summed to so many, a thread for each number of a result."""
    cols, each = float(added.cols), float(DTYPE_BYTES[added.dtype])
    threads = results * max(_WARP * math.ceil(cols / _WARP), _LEAST_THREADS)
    return Fused("fp32", elements=results * cols, flops=rows * cols, transcendentals=0.0,
                 bytes_read=rows * cols * each, bytes_written=results * cols * each,
                 instructions=_INSTRUCTIONS * threads)  # fmt: skip


def _bags_gradient(call: TorchCall) -> Ops:
    """Of sums of a dense table's rows: zeros as large as the table, then as of single rows."""
    needs(call.written)
    return loop(call.written[0], 0.0, 0, 0) + _embedding_gradient(call)


def _pooled_lookup(call: TorchCall) -> Ops:
    """Many tables' lookups in one kernel: rows of the mean width, from result or arguments; which
    rows stands in no trace: all equally often.
    """
    places = (0, 2, 3, 7, 8) if call.kind.startswith("dense") else (1, 6, 7, 11, 12)
    weights, widths, total_at, index_at, offset_at = places
    given = call.single(weights, widths, index_at, offset_at)
    needs(all(len(one.shape) == 1 for one in given))
    table, width_offsets, index, offsets = given
    tables, written = width_offsets.elements - 1, call.written
    total = call.value(total_at)
    if not isinstance(total, int) or isinstance(total, bool):
        total = written[0].shape[-1] if written and len(written[0].shape) == 2 else 0
        moments = call.tensor(20)
        if not total and "rowwise" in call.kind and moments and moments.elements:
            total = round(table.elements / moments.elements * tables)  # one moment per row
    needs(tables > 0 and total > 0 and index.elements and table.elements)
    needs(offsets.elements > tables)
    batch, cols = (offsets.elements - 1) // tables, total / tables
    sizes = {"rows": max(table.elements / cols, 1.0), "dim": cols, "tables": float(tables)}
    pooling = index.elements / batch
    return (EmbeddingBag(table.dtype, float(batch), pooling, width=float(total), **sizes),)


def lookup_update(name: str, calls: Sequence[OpCall] | None) -> tuple[OpCall, ...] | None:
    """What the gradient of a pooled lookup launches, by the lookup's name and ops: the rows that it
    read updated; None where there is no lookup among them.
    """
    words = {"sgd": "sgd", "dense": "sgd", "rowwise": "rowwise_adagrad"}
    # all others hold at least a number for each of a row
    optimizer = next((words[word] for word in words if word in name), "adagrad")
    for call in calls or ():
        if isinstance(op := call.op, EmbeddingBag):
            sizes = {one.name: getattr(op, one.name) for one in dataclasses.fields(op)}
            return (OpCall(EmbeddingBagBackward(**sizes, optimizer=optimizer)),)
    return None


def _reordered(call: TorchCall) -> Ops:
    """Parts of a tensor in another order."""
    written = call.written or call.read
    needs(any(tensor.elements for tensor in written))
    return over(Copy, max(written, key=lambda tensor: tensor.bytes))


def _permuted(call: TorchCall) -> Ops:
    """Lengths and values of sparse features in another order, and a running sum of the lengths."""
    read, written = call.read, call.written
    needs(len(read) > 2 and read[1].elements and read[2].elements)
    lengths, values = (written + read[1:3])[:2] if len(written) >= 2 else read[1:3]
    sums = LOOPS["cumsum"](TorchCall("cumsum", (lengths,)))
    return over(Copy, lengths) + sums + over(Copy, values)


def _checked(call: TorchCall) -> Ops:
    """Indices and offsets read once, and compared."""
    read = call.read
    needs(len(read) > 2 and read[1].elements)
    return loop(read[1], read[1].bytes + read[2].bytes, 1, 0, DTYPE_BYTES[read[1].dtype])


def _running(call: TorchCall) -> Ops:
    return LOOPS["cumsum"](call._replace(given=call.given[:1]))


FBGEMM = named("fbgemm", {  # part of a name: rule
    "running": _running, "permuted": _permuted, "checked": _checked, "reordered": _reordered,
    "pooled": _pooled_lookup,
})  # fmt: skip
TABLES: dict[str, Rule] = {
    **named("rules", {"lookup": _lookup, "scatter": _scatter}),
    "index": _index,
    **dict.fromkeys(("searchsorted", "bucketize"), _searched),
    "embedding_dense_backward": _embedding_gradient,
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"), _bags_gradient),
}
