"""What PyTorch's ops do on a CPU, where they are not what they are on a GPU.

Operands of products are read as they lie in memory. Sums along rows and along columns are different
loops, and so are copies that turn a matrix. Square roots are arithmetic. Gradients of tables are
added row by row, without sorting; those of a norm, and of a convolution's bias, come out of one
pass. Batch norm reads its input twice where it takes the batch's statistics
(aten/src/ATen/native: cpu/Reduce.cpp, Embedding.cpp, layer_norm.cpp, Normalization.cpp).
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import hybridperf.ops as ops
from hybridperf.workloads.programs.torch.calls import NAMES, Tensor, TorchCall, flat, needs
from hybridperf.workloads.programs.torch.loops import (
    LAYER_NORM_BACKWARD_FLOPS,
    LOOPS,
    Ops,
    Rule,
    dimensions,
    elementwise,
    loop,
    reduction,
)
from hybridperf.workloads.programs.torch.ops import RULES, kernels
from hybridperf.workloads.programs.torch.products import recurrent
from hybridperf.workloads.programs.torch.tables import added_rows, sorted_keys

# flops per element; those that also say where they found it are not vectorised
_SUMMED_FLOPS = {"var": 3, "std": 3, "var_mean": 3, "std_mean": 3, "norm": 2}
_LARGEST = ("max", "min", "amax", "amin", "argmax", "argmin", "aminmax")
_PLACE_FLOPS = 4
_NORM_FLOPS, _SCALE_FLOPS = 7, 2
_ROOTS = ("sqrt", "rsqrt", "pow")


def kernels_on_cpu(call: TorchCall) -> tuple[ops.OpCall, ...] | None:
    """As `ops.kernels`, on a CPU."""
    return kernels(call, _RULES)


def _product(call: TorchCall) -> Ops:
    """Operands as they are stored."""
    (op,), first = RULES[call.kind](call), int("add" in call.kind)
    a, b = call.tensor(first), call.tensor(first + 1)
    if not (isinstance(op, ops.Gemm | ops.BatchedGemm) and a and b):
        return (op,)
    return (replace(op, transposed_a=float(a.transposed), transposed_b=float(b.transposed)),)


def _without(kind: type) -> Rule:
    """A rule without what a CPU does not do apart."""

    def rule(call: TorchCall) -> Ops:
        found = [
            one if isinstance(one, ops.OpCall) else ops.OpCall(one)
            for one in RULES[call.kind](call)
        ]
        return tuple(one for one in found if not isinstance(one.op, kind))

    return rule


def _table_gradient(call: TorchCall) -> Ops:
    """Zeros as large as the table, then rows added."""
    needs(call.written)
    return (*loop(call.written[0], 0.0, 0, 0), added_rows(call))


def _bags_gradient(call: TorchCall) -> Ops:
    """The same, sorted before."""
    rows = added_rows(call)
    return (*loop(call.written[0], 0.0, 0, 0), sorted_keys(rows), rows)


def _put(call: TorchCall) -> Ops:
    """Rows where the first dimensions are indexed, single elements otherwise."""
    table, source = call.single(0, 2)
    index = flat(call.given[1:2])
    rows = max((one.elements for one in index), default=0)
    cols = math.prod(table.shape[len(index) :])
    if not (rows and cols) or rows * cols != source.elements:
        return _without(ops.Sort)(call)
    return (ops.ScatterAdd(table.dtype, float(rows), float(cols), table.elements / cols),)


def _reduction(call: TorchCall) -> Ops:
    """A loop over what is summed."""
    found = reduction(call)
    (x,), op = call.single(0), found[0]
    if not isinstance(op, ops.Reduction) or not x.shape:
        return found
    kind, n = call.kind, float(x.elements)
    placed = len(call.written) == 2 and kind in ("max", "min")
    placed |= kind.startswith("arg")
    flops = _PLACE_FLOPS if placed else _SUMMED_FLOPS.get(kind.removeprefix("linalg_vector_"), 1)
    along = dimensions(call.value(1), len(x.shape))
    inner = along is None or not along or len(x.shape) - 1 in along or op.rows == 1
    written = sum(one.bytes for one in call.written) or op.rows * x.bytes / n
    made = ops.Fused(
        x.dtype, elements=n, flops=flops * n, transcendentals=0.0, bytes_read=x.bytes,
        bytes_written=written, inner=1.0 if inner else float(x.shape[-1]), summed=n / op.rows,
        summed_inner=float(inner), compared=float(kind in _LARGEST), loop="reduction",
    )  # fmt: skip
    return (made,)


def _turned(one: Tensor, result: Tensor) -> bool:
    return one.elements == result.elements > 1 and one.transposed != result.transposed


def _elementwise(call: TorchCall) -> Ops:
    """Roots are arithmetic; operands that lie across the result are read with strides."""
    kind = "square" if call.kind in _ROOTS else call.kind
    found, made = elementwise(call._replace(kind=kind)), call.made
    across = sum(one.elements for one in call.read if _turned(one, made))
    if not across:
        return found
    work = found[0].op.work() if isinstance(found[0], ops.OpCall) else found[0].work()
    return loop(
        made, sum(one.bytes for one in call.read), work.flops / made.elements,
        work.transcendentals / made.elements, strided_reads=float(across),
        strided_bytes=made.bytes,
    )  # fmt: skip


def _copied(call: TorchCall) -> Ops:
    """Along memory, or across it."""
    found = RULES[call.kind](call)
    to = call.tensor(0) if call.kind == "copy" else call.made
    source = call.tensor(1) if call.kind == "copy" else call.tensor(0)
    if to is None or source is None or not _turned(source, to) or len(found) != 1:
        return found
    rows, cols = to.shape[-2:]
    if not isinstance(found[0], ops.Copy):
        return found
    return (ops.Transpose(to.dtype, float(rows), float(cols), float(math.prod(to.shape[:-2]))),)


def _layer_norm_gradient(call: TorchCall) -> Ops:
    (x,) = call.single(1)
    return loop(x, 2 * x.bytes, LAYER_NORM_BACKWARD_FLOPS + 4, 0)


def _batch_norm(call: TorchCall) -> Ops:
    (x,) = call.single(0)
    trains = "with_update" in call.kind or call.value(5) is True
    return loop(x, 2 * x.bytes, _NORM_FLOPS, 0) if trains else loop(x, x.bytes, _SCALE_FLOPS, 0)


_BATCH_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
_RULES: dict[str, Rule] = {
    **{kind: _elementwise for kind, rule in LOOPS.items() if rule is elementwise},
    **dict.fromkeys(NAMES["rules"]["reduction"], _reduction),
    **dict.fromkeys((*NAMES["rules"]["copied"], "copy"), _copied),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("index_put", "_index_put_impl"), _put),
    **dict.fromkeys(_BATCH_NORMS, _batch_norm),
    "_local_scalar_dense": lambda call: (),  # a number is at hand
    "convolution_backward": _without(ops.Reduction),
    "embedding_dense_backward": _table_gradient,
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"), _bags_gradient),
    "native_layer_norm_backward": _layer_norm_gradient,
    **dict.fromkeys(
        ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"), functools.partial(recurrent, formats={})
    ),
}
