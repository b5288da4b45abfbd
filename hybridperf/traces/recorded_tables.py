"""Recorded ops that look rows up in tables, update them, or sort their indices: PyTorch's, and
those of FBGEMM for many tables at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import Copy, Gather, ScatterAdd, Sort
from hybridperf.traces.recorded_loops import LOOPS, Ops, Rule, loop, rows_and_columns
from hybridperf.traces.recorded_tensors import Argument, Tensor, flat, number


def _lookup(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Rows of a table: `embedding(weight, indices)` and `index_select(self, dim, index)`; a bag
    sums them as they come in.
    """
    del results
    at = {"index_select": 2, "gather": 2}.get(kind, 1)
    if len(given) <= at or not isinstance(given[0], Tensor) or not isinstance(given[at], Tensor):
        return None
    table, index = given[0], given[at]
    assert isinstance(index, Tensor)
    if kind in ("gather", "take"):
        return (Gather(table.dtype, float(index.elements), 1.0, float(table.elements)),)
    dim = number(values[1]) if kind == "index_select" and len(values) > 1 else 0
    if (
        not table.shape
        or not isinstance(dim, int)
        or not -len(table.shape) <= dim < len(table.shape)
        or not index.elements
    ):
        return None
    vocab, outer = table.shape[dim], math.prod(table.shape[: dim % len(table.shape)])
    cols = table.elements / vocab / outer
    return (
        Gather(
            table.dtype,
            float(index.elements * outer),
            cols,
            float(vocab * outer),
            pooled=float("bag" in kind),
        ),
    )


def _index(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """`self[indices]`: rows where the first dimensions are indexed, single elements otherwise."""
    del kind, values
    written = flat(results)
    if len(given) < 2 or not isinstance(given[0], Tensor) or not written or not written[0].elements:
        return None
    table, index = given[0], flat(given[1:2])
    if not index:
        return None
    rows = max(tensor.elements for tensor in index)
    cols = written[0].elements / rows
    whole = (
        cols.is_integer()
        and table.shape[len(index) :]
        and math.prod(table.shape[len(index) :]) == cols
    )
    if not whole:
        rows, cols = written[0].elements, 1.0
    return (Gather(table.dtype, float(rows), float(cols), max(table.elements / cols, 1.0)),)


def _scatter(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Rows or elements put or added into a table; where they may meet and are added in order, they
    are sorted first.
    """
    del results
    put = "index_put" in kind
    at = 2 if put else 3
    if len(given) <= at or not isinstance(given[0], Tensor) or not isinstance(given[at], Tensor):
        return None
    table, source = given[0], given[at]
    assert isinstance(source, Tensor)
    rows = source.elements
    index = flat(given[1:2]) if put else flat(given[2:3])
    if (
        not put
        and kind.startswith("index")
        and index
        and index[0].elements
        and rows % index[0].elements == 0
    ):
        rows = index[0].elements
    if not rows or not table.elements:
        return None
    cols = source.elements / rows
    ops = (ScatterAdd(table.dtype, float(rows), float(cols), max(table.elements / cols, 1.0)),)
    adds = put and number(values[3] if len(values) > 3 else None) is True
    return (Sort("int64", 1.0, float(rows)), *ops) if adds else ops


def _embedding_gradient(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Of a dense table: indices sorted, rows added; the table's zeros are an op of their own."""
    del kind
    read = [tensor for tensor in given[:2] if isinstance(tensor, Tensor)]
    written = flat(results)
    if len(read) < 2 or not read[0].shape or not read[1].elements:
        return None
    vocab = number(values[2]) if len(values) > 2 else None
    rows = written[0].shape[0] if written and written[0].shape else vocab
    if isinstance(rows, bool) or not isinstance(rows, int | float) or rows < 1:
        return None
    gradient, index = read
    return (
        Sort("int64", 1.0, float(index.elements)),
        ScatterAdd(gradient.dtype, float(index.elements), float(gradient.shape[-1]), float(rows)),
    )


def _pooled_lookup(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Many tables' lookups in one kernel: rows of the mean width. Width from the recorded result or
    the arguments.
    """
    places = (0, 2, 3, 7, 8) if kind.startswith("dense") else (1, 6, 7, 11, 12)
    weights, widths, total_at, index_at, offset_at = places
    if len(given) <= offset_at:
        return None
    table, width_offsets, index, offsets = (
        given[weights],
        given[widths],
        given[index_at],
        given[offset_at],
    )
    if not all(
        isinstance(one, Tensor) and len(one.shape) == 1
        for one in (table, width_offsets, index, offsets)
    ):
        return None
    # noqa: PT018
    assert (
        isinstance(table, Tensor)
        and isinstance(width_offsets, Tensor)
        and isinstance(index, Tensor)
    )
    tables = width_offsets.elements - 1
    written = flat(results)
    total = number(values[total_at]) if len(values) > total_at else None
    if not isinstance(total, int) or isinstance(total, bool):
        total = written[0].shape[-1] if written and len(written[0].shape) == 2 else 0
        moments = given[20] if len(given) > 20 else None
        if (
            not total and "rowwise" in kind and isinstance(moments, Tensor) and moments.elements
        ):  # one moment per row
            total = round(table.elements / moments.elements * tables)
    if tables < 1 or total < 1 or not index.elements or not table.elements:
        return None
    cols = total / tables
    return (
        Gather(
            table.dtype, float(index.elements), cols, max(table.elements / cols, 1.0), pooled=1.0
        ),
    )


def _moved(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Parts of a tensor in another order."""
    del kind, values
    written = flat(results) or flat(given)
    largest = max(written, key=lambda tensor: tensor.bytes, default=None)
    return (
        (Copy(largest.dtype, *rows_and_columns(largest.shape)),)
        if largest and largest.elements
        else None
    )


def _permuted(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Lengths and values of sparse features in another order: two copies and the running sum
    between them.
    """
    del kind, values
    read = flat(given)
    if len(read) < 3 or not read[1].elements or not read[2].elements:
        return None
    lengths, held = (flat(results) + read[1:3])[:2] if len(flat(results)) >= 2 else read[1:3]
    return (
        *_moved("", (lengths,), (), ()),
        *LOOPS["cumsum"]("cumsum", (lengths,), (), ()),
        *_moved("", (held,), (), ()),
    )  # type: ignore[misc]


def _checked(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Indices and offsets read once, and compared."""
    del kind, results, values
    read = flat(given)
    if len(read) < 3 or not read[1].elements:
        return None
    return loop(read[1], read[1].bytes + read[2].bytes, 1, 0, DTYPE_BYTES[read[1].dtype])


def _running(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    return LOOPS["cumsum"](kind, given[:1], results, values)


FBGEMM: dict[str, Rule] = {  # part of a name: rule
    "complete_cumsum": _running,
    "inclusive_cumsum": _running,
    "exclusive_cumsum": _running,
    "permute_2D_sparse_data": _permuted,
    "permute_sparse_features": _permuted,
    "permute_sparse_data": _permuted,
    "permute_1D_sparse_data": _permuted,
    "bounds_check_indices": _checked,
    "permute_pooled_embs": _moved,
    "recat_embedding_grad_output": _moved,
    "codegen_lookup": _pooled_lookup,
}
TABLES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "embedding",
            "index_select",
            "gather",
            "take",
            "_embedding_bag",
            "_embedding_bag_forward_only",
            "embedding_bag",
        ),
        _lookup,
    ),
    "index": _index,
    **dict.fromkeys(
        ("_index_put_impl", "index_put", "scatter_add", "scatter", "index_add", "index_copy"),
        _scatter,
    ),
    "embedding_dense_backward": _embedding_gradient,
}
