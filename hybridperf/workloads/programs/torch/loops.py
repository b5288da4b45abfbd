"""Recorded ops that are loops over tensors: elementwise ops and their gradients, fills, reductions,
norms, softmax, optimizers.

Bytes are counted tensor by tensor, each in its own format and only as large as it is (a bias added
to a matrix is read once). Where an op of ours has exactly those counts it is taken, since it has
been measured; otherwise the general loop `Fused` with the same counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import hybridperf.ops as ops
from hybridperf.hardware import DTYPE_BYTES
from hybridperf.workloads.programs.torch.calls import (
    NAMES,
    Tensor,
    TorchCall,
    broadcast,
    is_whole,
    needs,
)

# name: (flops, transcendentals) per element of the result
_ELEMENTWISE = {
    **dict.fromkeys(NAMES["elementwise"]["one_flop"], (1, 0)),
    **dict.fromkeys(NAMES["elementwise"]["one_transcendental"], (0, 1)),
    **NAMES["elementwise"]["counts"],
}
# bytes per element besides the result: the mask
_EXTRA_WRITTEN = {"native_dropout": 1.0, "_fused_dropout": 1.0}
_OPTIMIZERS = {
    "_fused_adam": (4.0, 3.0, 12.0, 1.0),
    "_fused_adamw": (4.0, 3.0, 12.0, 1.0),
    "_fused_sgd": (2.0, 1.0, 2.0, 0.0),
}
_ADAM_LISTS = 5  # parameters, gradients, two moments, counts of steps
# of kernels that are no op of ours, the same
_LOOPED = {"momentum": (3, 2, 4, 0), "adagrad": (3, 2, 6, 1), "amsgrad": (5, 4, 13, 1)}
_FOREACH = "_foreach_"
# reads, flops, transcendentals
_REGISTERED = ((1, 1, 0), (2, 1, 0), (1, 0, 1), (2, 0, 1), (1, 2, 1), (1, 8, 1), (1, 0, 0))
# two sums of products (4), the difference of three terms scaled (6)
LAYER_NORM_BACKWARD_FLOPS = 10
_GRADIENT_FIRST = ("native_batch_norm_backward", "native_group_norm_backward")
_BATCH_NORM_BACKWARD_FLOPS = 11  # the same, with the scale's and shift's gradients as by-products

_LIKELIHOODS = ("nll_loss_forward", "nll_loss2d_forward")  # of rows, of pixels
_COUNTED = ("topk", "kthvalue")  # their second argument is a number of elements
GATE_FLOPS = 5  # per number of the gates: added, multiplied, added to the state
# bilinear: four numbers, each times its weight and added
_NEIGHBOURS, _INTERPOLATION_FLOPS = 4, 8
# What passes while a GPU makes a channel of a bilinear image: a thread for each pixel goes from one
# to the next (aten/src/ATen/native/cuda/UpSampleBilinear2d.cu). 11 such on an H200, of 10 to 250
# pixels a side, take 0.15 to 0.4 us each (`calibration/measured`)
_PLANE_BYTES = 1e6

Ops = tuple[ops.Op | ops.OpCall, ...]  # a call where an op runs so many times over
Rule = Callable[[TorchCall], Ops]


def named(which: str, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Rules by the names that a table of `ops.toml` lists for each."""
    return {name: rule for kind, rule in rules.items() for name in NAMES[which][kind]}


def over(op: Callable[..., ops.Op], tensor: Tensor) -> Ops:
    """An op of rows and columns over a tensor, as rows of its last dimension."""
    cols = float(tensor.shape[-1] if tensor.shape else 1)
    return (op(tensor.dtype, float(math.prod(tensor.shape[:-1])), cols),)


def in_rows(op: Callable[..., ops.Op], tensor: Tensor, cols: int) -> Ops:
    """An op of rows and columns over a tensor, as rows of `cols` elements."""
    return (op(tensor.dtype, tensor.elements / cols, float(cols)),)


def loop(
    result: Tensor, read_bytes: float, flops: float, transcendentals: float,
    written_bytes: float | None = None, **more: Any,
) -> tuple[ops.Fused, ...]:  # fmt: skip
    """One pass over a result; flops and transcendentals are per element of it.

    `more`: further fields of `Fused`.
    """
    n = float(result.elements)
    op = ops.Fused(
        result.dtype, elements=n, flops=flops * n, transcendentals=transcendentals * n,
        bytes_read=read_bytes, inner=float(result.shape[-1] if result.shape else 1),
        bytes_written=result.bytes if written_bytes is None else written_bytes, **more,
    )  # fmt: skip
    return (op,)


def elementwise(call: TorchCall) -> Ops:
    """Any op with counts per element."""
    kind, read = call.kind, call.read
    if len(read) > 1 and not read[-1].elements and read[0].elements:  # `out=`, to be resized
        read = read[:-1]
    needs(read)
    flops, transcendentals = _ELEMENTWISE[kind]
    result = _result(call, read)
    full = [tensor for tensor in read if tensor.elements == result.elements]
    alike = all(tensor.dtype == result.dtype for tensor in full) and not _EXTRA_WRITTEN.get(kind)
    # a bias or a scale next to a matrix is small
    small_bytes = sum(tensor.bytes for tensor in read if tensor.elements != result.elements)
    counts = (len(full), flops, transcendentals)
    if alike and counts in _REGISTERED and small_bytes <= result.bytes / 16:
        return over(lambda *sizes: ops.Elementwise(*sizes, *map(float, counts)), result)
    written = result.bytes + result.elements * _EXTRA_WRITTEN.get(kind, 0.0)
    return loop(result, sum(tensor.bytes for tensor in read), flops, transcendentals, written)


def foreach(call: TorchCall) -> Ops:
    """An elementwise op over lists of tensors in few kernels: priced as one loop over all."""
    base, lists = call.kind.removeprefix(_FOREACH), call.lists
    needs(lists)
    n, dtype = sum(tensor.elements for tensor in lists[0]), lists[0][0].dtype
    whole = Tensor((n,), dtype)
    if base == "zero":
        return loop(whole, 0.0, 0, 0)
    if base == "copy":
        return over(ops.Copy, whole)
    if base == "norm":
        return (ops.Reduction(dtype, float(len(lists[0])), n / len(lists[0])),)
    needs(base in _ELEMENTWISE)
    joined = (Tensor((sum(t.elements for t in one),), one[0].dtype) for one in lists)
    return elementwise(TorchCall(base, tuple(joined), (whole,)))


def fill(call: TorchCall) -> Ops:
    """A tensor written without reading another."""
    return loop(call.made, 0.0, 0, 0)


def reduction(call: TorchCall) -> Ops:
    """Sum, maximum and the like; over all dimensions but the last where nothing tells which."""
    read, written = call.read, call.written
    needs(read)
    if call.kind in ("max", "min") and len(read) > 1:
        return elementwise(call._replace(kind="maximum"))
    n, shape = read[0].elements, read[0].shape
    dims = dimensions(call.value(1), len(shape))
    if written:
        rows = written[0].elements
    elif len(call.given) == 1 or len(shape) < 2:
        rows = 1
    elif dims is not None:
        rows = math.prod(size for at, size in enumerate(shape) if at not in dims)
    else:
        rows = shape[-1]
    needs(0 < rows <= n)
    return (ops.Reduction(read[0].dtype, float(rows), n / rows),)


def along(op: Callable[..., ops.Op], scalars: bool = True) -> Rule:
    """Rule of a softmax, running sum or sort: along the recorded dimension, else the last."""

    def rule(call: TorchCall) -> Ops:
        needs(call.read and (scalars or call.read[0].shape))
        shape = call.read[0].shape or (1,)
        dim = call.value(1)
        told = isinstance(dim, int) and not isinstance(dim, bool) and call.kind not in _COUNTED
        cols = shape[dim if told and -len(shape) <= dim < len(shape) else -1]
        return in_rows(op, call.read[0], cols)

    return rule


def random(call: TorchCall) -> Ops:
    """Ops of a call that fills tensors with random numbers."""
    return over(ops.Random, call.made)


def loss(call: TorchCall) -> Ops:
    """Distance of two tensors, summed unless the result has as many elements as they."""
    read, written = call.read, call.written
    needs(len(read) > 1)
    if call.kind in _LIKELIHOODS:  # one log probability per row
        rows = read[1].elements
        target = Tensor((rows,), read[0].dtype)
        sums: dict[str, Any] = {"loop": "reduction", "summed": float(rows)}
        one = DTYPE_BYTES[target.dtype]
        return loop(target, target.bytes + read[1].bytes, 1, 0, one, **sums)
    read_bytes = sum(tensor.bytes for tensor in read)
    flops, transcendentals = NAMES["loss_counts"][call.kind]
    if written and written[0].elements == read[0].elements and written[0].elements > 1:
        return loop(read[0], read_bytes, flops, transcendentals)
    sums = {"loop": "reduction", "summed": float(read[0].elements), "summed_inner": 1.0}
    return loop(read[0], read_bytes, flops, transcendentals, DTYPE_BYTES[read[0].dtype], **sums)


def norm(call: TorchCall) -> Ops:
    """Layer, batch, group and root-mean-square norms and their gradients."""
    kind = call.kind
    backward = kind.endswith("backward")
    gradient_first = backward and ("layer_norm" in kind or "rms_norm" in kind)
    gradient_first = gradient_first or kind.startswith(_GRADIENT_FIRST)
    (x,) = call.single(1 if gradient_first else 0)
    needs(x.shape)
    if "batch_norm" in kind:
        needs(len(x.shape) > 1)
        if backward:
            return loop(x, 2 * x.bytes, _BATCH_NORM_BACKWARD_FLOPS, 0)
        if call.value(5) is False:  # known statistics: a product and a sum
            return loop(x, x.bytes, 2, 0)
        return in_rows(ops.Norm, x, x.shape[1])
    if "group_norm" in kind:
        if backward:
            return loop(x, 2 * x.bytes, _BATCH_NORM_BACKWARD_FLOPS, 0)
        groups = call.value(6)
        needs(isinstance(groups, int) and groups > 0)
        rows = x.shape[0] * groups
        needs(x.elements % rows == 0)
        return (ops.Norm(x.dtype, float(rows), x.elements / rows),)
    cols = _normalised(call, x.shape)
    needs(cols and x.elements % cols == 0)
    if "rms_norm" in kind and not backward:
        return in_rows(ops.RmsNorm, x, cols)
    if backward:  # one kernel for the input's gradient, one that sums the parameters' over rows
        parameters = Tensor((cols,), x.dtype)
        sums = {"loop": "reduction", "summed": x.elements / cols}
        own = loop(x, 2 * x.bytes, LAYER_NORM_BACKWARD_FLOPS, 0)
        return own + loop(x, 2 * x.bytes, 4, 0, 2 * parameters.bytes, **sums)
    return in_rows(ops.Norm, x, cols)


def resized(call: TorchCall, by_channel: bool = True) -> Ops:
    """An image in another size, its nearest numbers or weighted ones of a few; and its gradient.

    `by_channel`: as PyTorch's own kernels have it; Inductor's loops go over all numbers at once,
    and read each of its four neighbours, or add to them, for itself.
    """
    needs(call.read and call.written)
    out, source = call.written[0], call.read[0]
    larger = max(out, source, key=lambda one: one.elements)
    flops = 0.0 if "nearest" in call.kind else _INTERPOLATION_FLOPS
    read_bytes, written_bytes = source.bytes, out.bytes
    if not by_channel and "bilinear2d" in call.kind:
        moved = _NEIGHBOURS * larger.elements
        if larger is out:
            read_bytes = moved * DTYPE_BYTES[source.dtype]
        else:  # a sum is read and written
            written_bytes = moved * DTYPE_BYTES[out.dtype]
            read_bytes += written_bytes
    if by_channel and call.kind == "upsample_bilinear2d" and not channels_last(source):
        planes = math.prod(out.shape[:2])
        read_bytes = max(read_bytes, planes * _PLANE_BYTES - out.bytes)
    return loop(out, read_bytes, flops * larger.elements / out.elements, 0, written_bytes)


def channels_last(image: Tensor) -> bool:
    """Whether the channels of a pixel lie together."""
    return len(image.strides) > 2 and image.shape[1] > 1 and image.strides[1] == 1


def gated_cell(call: TorchCall) -> Ops:
    """All gates of a recurrent cell in one loop; its gradient's sums over a batch for each bias."""
    gates, own_gates, state = call.single(0, 1, 2)
    back = call.kind.endswith("backward")
    written = sum(one.bytes for one in call.written)
    read = sum(one.bytes for one in call.read) if back else gates.bytes + own_gates.bytes
    needs(state.elements)
    each = gates.elements / state.elements
    flops, transcendentals = GATE_FLOPS * each, each * (not back)
    mixed = loop(state, read + state.bytes, flops, transcendentals, written)
    biased = back and call.tensor(3) is not None
    sums = ops.Reduction(gates.dtype, float(gates.shape[-1]), gates.elements / gates.shape[-1])
    return mixed + (sums,) * (2 if biased else 0)


def optimizer(call: TorchCall) -> Ops:
    """A fused update of lists of parameters."""
    needs(call.lists)
    first = call.lists[0]
    n = float(sum(tensor.elements for tensor in first))
    lists = len(call.lists)
    other = (
        "momentum" if call.kind == "_fused_sgd" and lists > 2
        else "adagrad" if "adagrad" in call.kind
        else "amsgrad" if "adam" in call.kind and lists > _ADAM_LISTS else ""
    )  # fmt: skip
    if other:
        reads, writes, flops, transcendentals = _LOOPED[other]
        whole = Tensor((int(n),), first[0].dtype)
        return loop(whole, reads * whole.bytes, flops, transcendentals, writes * whole.bytes)
    return (ops.OptimizerUpdate(first[0].dtype, n, *_OPTIMIZERS[call.kind]),)


_RULES = {
    "fill": fill, "reduction": reduction, "softmax": along(ops.Softmax, scalars=False),
    "resized": resized, "interpolated": resized,
    "cumulative": along(ops.Cumulative), "sort": along(ops.Sort), "random": random, "norm": norm,
}  # fmt: skip
LOOPS: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys((_FOREACH + kind for kind in (*_ELEMENTWISE, "zero", "copy", "norm")), foreach),
    **named("rules", _RULES),
    **dict.fromkeys((*NAMES["loss_counts"], *_LIKELIHOODS), loss),
    **dict.fromkeys((*_OPTIMIZERS, "_fused_adagrad"), optimizer),
    **dict.fromkeys(("gated_cell", "gated_cell_backward"), gated_cell),
}


def _result(call: TorchCall, read: list[Tensor]) -> Tensor:
    """The recorded result, else what broadcasting the inputs gives."""
    if written := call.written:
        return written[0]
    shape = broadcast(*(tensor.shape for tensor in read))
    if call.kind in NAMES["elementwise"]["compares"]:
        return Tensor(shape, "bool")

    def width(one: Tensor) -> tuple[bool, bool, bool, int]:
        return one.dtype != "bool", bool(one.shape), one.dtype[:2] in ("fp", "bf"), one.elements

    return Tensor(shape, max(read, key=width).dtype)


def dimensions(value: Any, rank: int) -> set[int] | None:
    if isinstance(value, bool) or value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    if not listed:
        return set(range(rank))
    if not all(isinstance(at, int) and -rank <= at < rank for at in listed):
        return None
    return {at % rank for at in listed}


def _normalised(call: TorchCall, shape: tuple[int, ...]) -> int:
    """Elements that share a mean: those of the scale, of the recorded dimensions, or the last."""
    backward = call.kind.endswith("backward")
    scale = call.tensor((4 if "rms_norm" in call.kind else 5) if backward else 2)
    if scale is not None and scale.shape:
        return scale.elements
    listed = call.value(2 if backward else 1) if len(call.values) > 2 else None
    if isinstance(listed, list) and listed and all(is_whole(size, 1) for size in listed):
        return math.prod(listed)
    return shape[-1]
