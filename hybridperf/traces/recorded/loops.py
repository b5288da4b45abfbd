"""Recorded ops that are loops over tensors: elementwise ops and their gradients, fills, reductions,
norms, softmax, optimizers.

Bytes are counted tensor by tensor, each in its own format and only as large as it is (a bias added
to a matrix is read once). Where an op of ours has exactly those counts it is taken, since it has
been measured; otherwise the general loop `Fused` with the same counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import (
    Copy,
    Cumulative,
    Elementwise,
    Fused,
    Norm,
    Op,
    OptimizerUpdate,
    Random,
    Reduction,
    RmsNorm,
    Softmax,
    Sort,
)
from hybridperf.traces.recorded.tensors import RecordedCall, Tensor, is_whole

# one flop per element of the result
_ONE_FLOP = (
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "clamp", "clamp_min", "clamp_max", "relu",
    "relu6", "hardtanh", "threshold", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge",
    "where", "masked_fill", "logical_and", "logical_or", "logical_not", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift",
    "bitwise_right_shift", "__and__", "__or__", "sign", "sgn", "floor", "ceil", "round", "trunc",
    "remainder", "fmod", "floor_divide", "nan_to_num", "isnan", "isinf", "isfinite", "square",
    "threshold_backward", "hardtanh_backward", "triu", "tril", "leaky_relu", "divide", "multiply",
    "subtract", "true_divide", "native_dropout_backward", "_masked_scale", "flip", "roll",
    "copysign", "fmax", "fmin", "reciprocal",
)  # fmt: skip
# one transcendental per element of the result
_ONE_TRANSCENDENTAL = (
    "sqrt", "exp", "log", "tanh", "rsqrt", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan",
    "atan", "erf", "erfc", "pow", "atan2", "exp2", "asin", "acos", "sinh", "cosh", "lgamma",
    "digamma", "erfinv",
)  # fmt: skip
# name: (flops, transcendentals) per element of the result
_ELEMENTWISE = {
    **dict.fromkeys(_ONE_FLOP, (1, 0)),
    **dict.fromkeys(_ONE_TRANSCENDENTAL, (0, 1)),
    "sigmoid": (2, 1), "silu": (3, 1), "gelu": (8, 1), "softplus": (3, 2), "elu": (3, 1),
    "selu": (3, 1), "mish": (4, 3), "logit": (3, 1), "hardswish": (4, 0), "hardsigmoid": (3, 0),
    "log_sigmoid_forward": (3, 2), "lerp": (3, 0), "addcmul": (3, 0), "addcdiv": (3, 0),
    "sigmoid_backward": (3, 0), "tanh_backward": (3, 0), "silu_backward": (6, 1),
    "gelu_backward": (12, 2), "leaky_relu_backward": (2, 0), "elu_backward": (3, 1),
    "softplus_backward": (3, 1), "hardswish_backward": (4, 0), "hardsigmoid_backward": (2, 0),
    "log_sigmoid_backward": (4, 1), "native_dropout": (3, 0), "_fused_dropout": (3, 0),
    "binary_cross_entropy_backward": (5, 0), "mse_loss_backward": (3, 0),
    "smooth_l1_loss_backward": (4, 0), "huber_loss_backward": (4, 0),
    "_softmax_backward_data": (4, 0), "_log_softmax_backward_data": (4, 1), "xlogy": (1, 1),
    "mish_backward": (8, 3),
}  # fmt: skip
_COMPARES = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor",
    "isnan", "isinf", "isfinite",
)  # fmt: skip
# bytes per element besides the result: the mask
_EXTRA_WRITTEN = {"native_dropout": 1.0, "_fused_dropout": 1.0}
_FILLS = (
    "fill", "zero", "ones", "zeros", "full", "ones_like", "zeros_like", "full_like", "new_zeros",
    "new_ones", "new_full", "arange", "eye", "linspace",
)  # fmt: skip
_REDUCTIONS = (
    "sum", "mean", "max", "min", "amax", "amin", "aminmax", "norm", "linalg_vector_norm", "var",
    "std", "var_mean", "std_mean", "any", "all", "prod", "argmax", "argmin", "logsumexp", "nansum",
    "count_nonzero", "frobenius_norm",
)  # fmt: skip
_SOFTMAXES = ("_softmax", "_log_softmax", "softmax", "log_softmax")
_RANDOM = (
    "bernoulli", "normal", "uniform", "random", "exponential", "rand", "randn", "rand_like",
    "randn_like", "randint", "geometric", "log_normal", "cauchy", "randint_like",
)  # fmt: skip
_LOSSES = {  # name: (flops, transcendentals) per element, summed to one number
    "mse_loss": (3, 0), "l1_loss": (3, 0), "binary_cross_entropy": (5, 2),
    "smooth_l1_loss": (5, 0), "huber_loss": (5, 0), "kl_div": (4, 1),
}  # fmt: skip
_OPTIMIZERS = {
    "_fused_adam": (4.0, 3.0, 12.0, 1.0),
    "_fused_adamw": (4.0, 3.0, 12.0, 1.0),
    "_fused_sgd": (2.0, 1.0, 2.0, 0.0),
}
_FOREACH = "_foreach_"
# reads, flops, transcendentals
_REGISTERED = ((1, 1, 0), (2, 1, 0), (1, 0, 1), (2, 0, 1), (1, 2, 1), (1, 8, 1), (1, 0, 0))
# two sums of products (4), the difference of three terms scaled (6)
_LAYER_NORM_BACKWARD_FLOPS = 10
_BATCH_NORM_BACKWARD_FLOPS = 11  # the same, with the scale's and shift's gradients as by-products

Ops = tuple[Op, ...]
Rule = Callable[[RecordedCall], Ops | None]


def rows_and_columns(shape: tuple[int, ...]) -> tuple[float, float]:
    """A tensor's shape as rows of its last dimension."""
    cols = shape[-1] if shape else 1
    return float(math.prod(shape[:-1])), float(cols)


def loop(
    result: Tensor, read_bytes: float, flops: float, transcendentals: float,
    written_bytes: float | None = None, **more: Any,
) -> Ops:  # fmt: skip
    """One pass over a result; flops and transcendentals are per element of it.

    `more`: further fields of `Fused`.
    """
    n = float(result.elements)
    op = Fused(
        result.dtype, elements=n, flops=flops * n, transcendentals=transcendentals * n,
        bytes_read=read_bytes, inner=rows_and_columns(result.shape)[1],
        bytes_written=result.bytes if written_bytes is None else written_bytes, **more,
    )  # fmt: skip
    return (op,)


def elementwise(call: RecordedCall) -> Ops | None:
    """Any op of `_ELEMENTWISE`."""
    kind, read = call.kind, call.read
    if len(read) > 1 and not read[-1].elements and read[0].elements:  # `out=`, to be resized
        read = read[:-1]
    if not read:
        return None
    flops, transcendentals = _ELEMENTWISE[kind]
    result = _result(call, read)
    if result is None:
        return None
    full = [tensor for tensor in read if tensor.elements == result.elements]
    alike = all(tensor.dtype == result.dtype for tensor in full) and not _EXTRA_WRITTEN.get(kind)
    # a bias or a scale next to a matrix is small
    small_bytes = sum(tensor.bytes for tensor in read if tensor.elements != result.elements)
    counts = (len(full), flops, transcendentals)
    if alike and counts in _REGISTERED and small_bytes <= result.bytes / 16:
        rows, cols = rows_and_columns(result.shape)
        return (Elementwise(result.dtype, rows, cols, *map(float, counts)),)
    written = result.bytes + result.elements * _EXTRA_WRITTEN.get(kind, 0.0)
    return loop(result, sum(tensor.bytes for tensor in read), flops, transcendentals, written)


def foreach(call: RecordedCall) -> Ops | None:
    """An elementwise op over lists of tensors in few kernels: priced as one loop over all."""
    base = call.kind.removeprefix(_FOREACH)
    lists = [argument for argument in call.given if isinstance(argument, tuple)]
    if not lists:
        return None
    n, dtype = sum(tensor.elements for tensor in lists[0]), lists[0][0].dtype
    whole = Tensor((n,), dtype)
    if base == "zero":
        return fill(RecordedCall("fill", (whole,)))
    if base == "copy":
        return (Copy(dtype, 1.0, float(n)),)
    if base == "norm":
        return (Reduction(dtype, float(len(lists[0])), n / len(lists[0])),)
    if base not in _ELEMENTWISE:
        return None
    joined = (Tensor((sum(t.elements for t in one),), one[0].dtype) for one in lists)
    return elementwise(RecordedCall(base, tuple(joined), (whole,)))


def fill(call: RecordedCall) -> Ops | None:
    """A tensor written without reading another."""
    written = call.written or call.read
    return loop(written[0], 0.0, 0, 0) if written else None


def reduction(call: RecordedCall) -> Ops | None:
    """Sum, maximum and the like; over all dimensions but the last where nothing tells which."""
    read, written = call.read, call.written
    if not read:
        return None
    if call.kind in ("max", "min") and len(read) > 1:
        return elementwise(call._replace(kind="maximum"))
    n, shape = read[0].elements, read[0].shape
    dims = _dimensions(call.value(1), len(shape))
    if written:
        rows = written[0].elements
    elif len(call.given) == 1 or len(shape) < 2:
        rows = 1
    elif dims is not None:
        rows = math.prod(size for at, size in enumerate(shape) if at not in dims)
    else:
        rows = shape[-1]
    return (Reduction(read[0].dtype, float(rows), n / rows),) if rows and rows <= n else None


def softmax(call: RecordedCall) -> Ops | None:
    """Along the recorded dimension, else the last."""
    read = call.read
    if not read or not read[0].shape:
        return None
    cols = _size_along(call, read[0].shape)
    return (Softmax(read[0].dtype, read[0].elements / cols, float(cols)),)


def along(op: Callable[..., Op]) -> Rule:
    """Rule of a running sum or sort: along the recorded dimension, else the last."""

    def rule(call: RecordedCall) -> Ops | None:
        read = call.read
        if not read:
            return None
        if not read[0].shape:
            return (op(read[0].dtype, 1.0, 1.0),)
        shape = read[0].shape
        cols = shape[-1] if call.kind == "topk" else _size_along(call, shape)
        return (op(read[0].dtype, read[0].elements / cols, float(cols)),)

    return rule


def random(call: RecordedCall) -> Ops | None:
    """Random numbers."""
    written = call.written or call.read
    return (Random(written[0].dtype, *rows_and_columns(written[0].shape)),) if written else None


def loss(call: RecordedCall) -> Ops | None:
    """Distance of two tensors, summed unless the result has as many elements as they."""
    read, written = call.read, call.written
    if len(read) < 2:
        return None
    if call.kind == "nll_loss_forward":  # one log probability per row
        rows = read[1].elements
        target = Tensor((rows,), read[0].dtype)
        sums: dict[str, Any] = {"loop": "reduction", "summed": float(rows)}
        one = DTYPE_BYTES[target.dtype]
        return loop(target, target.bytes + read[1].bytes, 1, 0, one, **sums)
    read_bytes = sum(tensor.bytes for tensor in read)
    flops, transcendentals = _LOSSES[call.kind]
    if written and written[0].elements == read[0].elements and written[0].elements > 1:
        return loop(read[0], read_bytes, flops, transcendentals)
    sums = {"loop": "reduction", "summed": float(read[0].elements), "summed_inner": 1.0}
    return loop(read[0], read_bytes, flops, transcendentals, DTYPE_BYTES[read[0].dtype], **sums)


def norm(call: RecordedCall) -> Ops | None:
    """Layer, batch, group and root-mean-square norms and their gradients."""
    kind = call.kind
    backward = kind.endswith("backward")
    gradient_first = backward and "layer_norm" in kind
    gradient_first = gradient_first or kind.startswith("native_batch_norm_backward")
    x = call.tensor(1 if gradient_first else 0)
    if x is None or not x.shape:
        return None
    if "batch_norm" in kind:
        if len(x.shape) < 2:
            return None
        cols = x.shape[1]
        if backward:
            return loop(x, 2 * x.bytes, _BATCH_NORM_BACKWARD_FLOPS, 0)
        return (Norm(x.dtype, x.elements / cols, float(cols)),)
    if "group_norm" in kind:
        groups = call.value(6)
        if backward or not isinstance(groups, int) or groups < 1:
            return None
        rows = x.shape[0] * groups
        return None if x.elements % rows else (Norm(x.dtype, float(rows), x.elements / rows),)
    cols = _normalised(call, x.shape)
    if not cols or x.elements % cols:
        return None
    if "rms_norm" in kind:
        return None if backward else (RmsNorm(x.dtype, x.elements / cols, float(cols)),)
    if backward:  # one kernel for the input's gradient, one that sums the parameters' over rows
        parameters = Tensor((cols,), x.dtype)
        sums = {"loop": "reduction", "summed": x.elements / cols}
        own = loop(x, 2 * x.bytes, _LAYER_NORM_BACKWARD_FLOPS, 0)
        return own + loop(x, 2 * x.bytes, 4, 0, 2 * parameters.bytes, **sums)
    return (Norm(x.dtype, x.elements / cols, float(cols)),)


def optimizer(call: RecordedCall) -> Ops | None:
    """A fused update of lists of parameters."""
    lists = [argument for argument in call.given if isinstance(argument, tuple)]
    if not lists:
        return None
    n = float(sum(tensor.elements for tensor in lists[0]))
    return (OptimizerUpdate(lists[0][0].dtype, n, *_OPTIMIZERS[call.kind]),)


_NORMS = (
    "native_layer_norm", "layer_norm", "native_layer_norm_backward", "cudnn_batch_norm",
    "native_batch_norm", "batch_norm", "miopen_batch_norm", "_native_batch_norm_legit",
    "_batch_norm_impl_index", "cudnn_batch_norm_backward", "native_batch_norm_backward",
    "miopen_batch_norm_backward", "native_group_norm", "group_norm", "rms_norm", "_fused_rms_norm",
    "instance_norm", "_batch_norm_with_update", "batch_norm_backward",
)  # fmt: skip
LOOPS: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys((_FOREACH + kind for kind in (*_ELEMENTWISE, "zero", "copy", "norm")), foreach),
    **dict.fromkeys(_FILLS, fill),
    **dict.fromkeys(_REDUCTIONS, reduction),
    **dict.fromkeys(_SOFTMAXES, softmax),
    **dict.fromkeys(("cumsum", "cumprod", "_cumsum", "logcumsumexp"), along(Cumulative)),
    **dict.fromkeys(("sort", "argsort", "topk"), along(Sort)),
    **dict.fromkeys(_RANDOM, random),
    **dict.fromkeys((*_LOSSES, "nll_loss_forward"), loss),
    **dict.fromkeys(_NORMS, norm),
    **dict.fromkeys(_OPTIMIZERS, optimizer),
}


def _result(call: RecordedCall, read: list[Tensor]) -> Tensor | None:
    """The recorded result, else what broadcasting the inputs gives."""
    if written := call.written:
        return written[0]
    try:
        shape = np.broadcast_shapes(*(tensor.shape for tensor in read))
    except ValueError:
        return None
    if call.kind in _COMPARES:
        return Tensor(shape, "bool")

    def width(one: Tensor) -> tuple[bool, bool, bool, int]:
        return one.dtype != "bool", bool(one.shape), one.dtype[:2] in ("fp", "bf"), one.elements

    return Tensor(shape, max(read, key=width).dtype)


def _dimensions(value: Any, rank: int) -> set[int] | None:
    if isinstance(value, bool) or value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    if not listed:
        return set(range(rank))
    if not all(isinstance(at, int) and -rank <= at < rank for at in listed):
        return None
    return {at % rank for at in listed}


def _size_along(call: RecordedCall, shape: tuple[int, ...]) -> int:
    dim = call.value(1)
    if isinstance(dim, int) and not isinstance(dim, bool) and -len(shape) <= dim < len(shape):
        return shape[dim]
    return shape[-1]


def _normalised(call: RecordedCall, shape: tuple[int, ...]) -> int:
    """Elements that share a mean: those of the scale, of the recorded dimensions, or the last."""
    backward = call.kind.endswith("backward")
    scale = call.tensor(5 if backward else 2)
    if scale is not None and scale.shape:
        return scale.elements
    listed = call.value(2 if backward else 1) if len(call.values) > 2 else None
    if isinstance(listed, list) and listed and all(is_whole(size, 1) for size in listed):
        return math.prod(listed)
    return shape[-1]
