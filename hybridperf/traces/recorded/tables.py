"""Recorded ops that look rows up in tables, update them, or sort their indices.

PyTorch's own, and those of FBGEMM for many tables at once.
"""

from __future__ import annotations

import math

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import Copy, Gather, ScatterAdd, Sort
from hybridperf.traces.recorded.loops import LOOPS, Ops, Rule, loop, rows_and_columns
from hybridperf.traces.recorded.tensors import RecordedCall, Tensor, flat


def _lookup(call: RecordedCall) -> Ops | None:
    """`embedding(weight, indices)`, `index_select(self, dim, index)`; a bag sums its rows."""
    kind = call.kind
    table, index = call.tensor(0), call.tensor(2 if kind in ("index_select", "gather") else 1)
    if table is None or index is None:
        return None
    if kind in ("gather", "take"):
        return (Gather(table.dtype, float(index.elements), 1.0, float(table.elements)),)
    dim = call.value(1) if kind == "index_select" and len(call.values) > 1 else 0
    rank = len(table.shape)
    if not rank or not isinstance(dim, int) or not -rank <= dim < rank or not index.elements:
        return None
    vocab, outer = table.shape[dim], math.prod(table.shape[: dim % rank])
    cols, rows = table.elements / vocab / outer, float(index.elements * outer)
    pooled = float("bag" in kind)
    return (Gather(table.dtype, rows, cols, float(vocab * outer), pooled=pooled),)


def _index(call: RecordedCall) -> Ops | None:
    """`self[indices]`: rows where the first dimensions are indexed, single elements otherwise."""
    table, index, written = call.tensor(0), flat(call.given[1:2]), call.written
    if table is None or not index or not written or not written[0].elements:
        return None
    rows = max(tensor.elements for tensor in index)
    cols = written[0].elements / rows
    rest = table.shape[len(index) :]
    if not (cols.is_integer() and rest and math.prod(rest) == cols):
        rows, cols = written[0].elements, 1.0
    return (Gather(table.dtype, float(rows), float(cols), max(table.elements / cols, 1.0)),)


def _scatter(call: RecordedCall) -> Ops | None:
    """Rows put or added into a table; sorted first where they may meet and are added in order."""
    put = "index_put" in call.kind
    table, source = call.tensor(0), call.tensor(2 if put else 3)
    if table is None or source is None:
        return None
    rows = source.elements
    index = flat(call.given[2:3])
    by_row = not put and call.kind.startswith("index")
    if by_row and index and index[0].elements and rows % index[0].elements == 0:
        rows = index[0].elements
    if not rows or not table.elements:
        return None
    cols = source.elements / rows
    ops = (ScatterAdd(table.dtype, float(rows), float(cols), max(table.elements / cols, 1.0)),)
    adds = put and call.value(3) is True
    return (Sort("int64", 1.0, float(rows)), *ops) if adds else ops


def _embedding_gradient(call: RecordedCall) -> Ops | None:
    """Of a dense table: indices sorted, rows added; the table's zeros are an op of their own."""
    read, written = call.tensors(2), call.written
    if len(read) < 2 or not read[0].shape or not read[1].elements:
        return None
    rows = written[0].shape[0] if written and written[0].shape else call.value(2)
    if isinstance(rows, bool) or not isinstance(rows, int | float) or rows < 1:
        return None
    gradient, index = read
    n = float(index.elements)
    update = ScatterAdd(gradient.dtype, n, float(gradient.shape[-1]), float(rows))
    return (Sort("int64", 1.0, n), update)


def _pooled_lookup(call: RecordedCall) -> Ops | None:
    """Many tables' lookups in one kernel: rows of the mean width, from result or arguments."""
    places = (0, 2, 3, 7, 8) if call.kind.startswith("dense") else (1, 6, 7, 11, 12)
    weights, widths, total_at, index_at, offset_at = places
    table, width_offsets, index = (call.tensor(at) for at in (weights, widths, index_at))
    offsets = call.tensor(offset_at)
    if table is None or width_offsets is None or index is None or offsets is None:
        return None
    if any(len(one.shape) != 1 for one in (table, width_offsets, index, offsets)):
        return None
    tables, written = width_offsets.elements - 1, call.written
    total = call.value(total_at)
    if not isinstance(total, int) or isinstance(total, bool):
        total = written[0].shape[-1] if written and len(written[0].shape) == 2 else 0
        moments = call.tensor(20)
        if not total and "rowwise" in call.kind and moments and moments.elements:
            total = round(table.elements / moments.elements * tables)  # one moment per row
    if tables < 1 or total < 1 or not index.elements or not table.elements:
        return None
    cols = total / tables
    vocab = max(table.elements / cols, 1.0)
    return (Gather(table.dtype, float(index.elements), cols, vocab, pooled=1.0),)


def _reordered(call: RecordedCall) -> Ops | None:
    """Parts of a tensor in another order."""
    written = call.written or call.read
    largest = max(written, key=lambda tensor: tensor.bytes, default=None)
    if largest is None or not largest.elements:
        return None
    return (_copied(largest),)


def _permuted(call: RecordedCall) -> Ops | None:
    """Lengths and values of sparse features in another order, and a running sum of the lengths."""
    read, written = call.read, call.written
    if len(read) < 3 or not read[1].elements or not read[2].elements:
        return None
    lengths, values = (written + read[1:3])[:2] if len(written) >= 2 else read[1:3]
    sums = LOOPS["cumsum"](RecordedCall("cumsum", (lengths,))) or ()
    return (_copied(lengths), *sums, _copied(values))


def _copied(tensor: Tensor) -> Copy:
    return Copy(tensor.dtype, *rows_and_columns(tensor.shape))


def _checked(call: RecordedCall) -> Ops | None:
    """Indices and offsets read once, and compared."""
    read = call.read
    if len(read) < 3 or not read[1].elements:
        return None
    return loop(read[1], read[1].bytes + read[2].bytes, 1, 0, DTYPE_BYTES[read[1].dtype])


def _running(call: RecordedCall) -> Ops | None:
    return LOOPS["cumsum"](call._replace(given=call.given[:1]))


_PERMUTATIONS = (
    "permute_2D_sparse_data", "permute_sparse_features", "permute_sparse_data",
    "permute_1D_sparse_data",
)  # fmt: skip
_LOOKUPS = (
    "embedding", "index_select", "gather", "take", "_embedding_bag", "embedding_bag",
    "_embedding_bag_forward_only",
)  # fmt: skip
_UPDATES = (
    "_index_put_impl", "index_put", "scatter_add", "scatter", "index_add", "index_copy",
)  # fmt: skip
FBGEMM: dict[str, Rule] = {  # part of a name: rule
    **dict.fromkeys(("complete_cumsum", "inclusive_cumsum", "exclusive_cumsum"), _running),
    **dict.fromkeys(_PERMUTATIONS, _permuted),
    "bounds_check_indices": _checked,
    **dict.fromkeys(("permute_pooled_embs", "recat_embedding_grad_output"), _reordered),
    "codegen_lookup": _pooled_lookup,
}
TABLES: dict[str, Rule] = {
    **dict.fromkeys(_LOOKUPS, _lookup),
    "index": _index,
    **dict.fromkeys(_UPDATES, _scatter),
    "embedding_dense_backward": _embedding_gradient,
}
