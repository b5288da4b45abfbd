"""Recorded ops that are loops over tensors: elementwise ops and their gradients, fills, reductions,
norms, softmax, optimizers.

Bytes are counted tensor by tensor, each in its own format and only as large as it is (a bias added
to a matrix is read once). Where an op of ours has exactly those counts it is taken, since it has
been measured; otherwise the general loop `Fused` with the same counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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
from hybridperf.traces.recorded_tensors import Argument, Tensor, flat, number

# name: (flops, transcendentals) per element of the result
ELEMENTWISE = {
    **dict.fromkeys(
        (
            "add",
            "sub",
            "rsub",
            "mul",
            "div",
            "neg",
            "abs",
            "clamp",
            "clamp_min",
            "clamp_max",
            "relu",
            "relu6",
            "hardtanh",
            "threshold",
            "maximum",
            "minimum",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "where",
            "masked_fill",
            "logical_and",
            "logical_or",
            "logical_not",
            "logical_xor",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "bitwise_not",
            "bitwise_left_shift",
            "bitwise_right_shift",
            "__and__",
            "__or__",
            "sign",
            "sgn",
            "floor",
            "ceil",
            "round",
            "trunc",
            "remainder",
            "fmod",
            "floor_divide",
            "nan_to_num",
            "isnan",
            "isinf",
            "isfinite",
            "square",
            "threshold_backward",
            "hardtanh_backward",
            "triu",
            "tril",
            "leaky_relu",
            "divide",
            "multiply",
            "subtract",
            "true_divide",
            "native_dropout_backward",
            "_masked_scale",
            "flip",
            "roll",
            "copysign",
            "fmax",
            "fmin",
            "reciprocal",
        ),
        (1, 0),
    ),
    **dict.fromkeys(
        (
            "sqrt",
            "exp",
            "log",
            "tanh",
            "rsqrt",
            "log2",
            "log10",
            "log1p",
            "expm1",
            "sin",
            "cos",
            "tan",
            "atan",
            "erf",
            "erfc",
            "pow",
            "atan2",
            "exp2",
            "asin",
            "acos",
            "sinh",
            "cosh",
            "lgamma",
            "digamma",
            "erfinv",
        ),
        (0, 1),
    ),
    "sigmoid": (2, 1),
    "silu": (3, 1),
    "gelu": (8, 1),
    "softplus": (3, 2),
    "elu": (3, 1),
    "selu": (3, 1),
    "mish": (4, 3),
    "logit": (3, 1),
    "hardswish": (4, 0),
    "hardsigmoid": (3, 0),
    "log_sigmoid_forward": (3, 2),
    "lerp": (3, 0),
    "addcmul": (3, 0),
    "addcdiv": (3, 0),
    "sigmoid_backward": (3, 0),
    "tanh_backward": (3, 0),
    "silu_backward": (6, 1),
    "gelu_backward": (12, 2),
    "leaky_relu_backward": (2, 0),
    "elu_backward": (3, 1),
    "softplus_backward": (3, 1),
    "hardswish_backward": (4, 0),
    "hardsigmoid_backward": (2, 0),
    "log_sigmoid_backward": (4, 1),
    "native_dropout": (3, 0),
    "_fused_dropout": (3, 0),
    "binary_cross_entropy_backward": (5, 0),
    "mse_loss_backward": (3, 0),
    "smooth_l1_loss_backward": (4, 0),
    "huber_loss_backward": (4, 0),
    "_softmax_backward_data": (4, 0),
    "_log_softmax_backward_data": (4, 1),
    "xlogy": (1, 1),
    "mish_backward": (8, 3),
}
_COMPARES = frozenset(
    (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
        "isnan",
        "isinf",
        "isfinite",
    )
)
# bytes per element beside the result: the mask
_EXTRA_WRITTEN = {"native_dropout": 1.0, "_fused_dropout": 1.0}
FILLS = frozenset(
    (
        "fill",
        "zero",
        "ones",
        "zeros",
        "full",
        "ones_like",
        "zeros_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "arange",
        "eye",
        "linspace",
    )
)
REDUCTIONS = frozenset((
    "sum", "mean", "max", "min", "amax", "amin", "aminmax", "norm", "linalg_vector_norm", "var",
    "std", "var_mean", "std_mean", "any", "all", "prod", "argmax", "argmin", "logsumexp", "nansum",
    "count_nonzero", "frobenius_norm",
))  # fmt: skip
SOFTMAXES = frozenset(("_softmax", "_log_softmax", "softmax", "log_softmax"))
RANDOM = frozenset(
    (
        "bernoulli",
        "normal",
        "uniform",
        "random",
        "exponential",
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "randint",
        "geometric",
        "log_normal",
        "cauchy",
        "randint_like",
    )
)
LOSSES = {  # name: (flops, transcendentals) per element, summed to one number
    "mse_loss": (3, 0),
    "l1_loss": (3, 0),
    "binary_cross_entropy": (5, 2),
    "smooth_l1_loss": (5, 0),
    "huber_loss": (5, 0),
    "kl_div": (4, 1),
}
OPTIMIZERS = {
    "_fused_adam": (4.0, 3.0, 12.0, 1.0),
    "_fused_adamw": (4.0, 3.0, 12.0, 1.0),
    "_fused_sgd": (2.0, 1.0, 2.0, 0.0),
}
_FOREACH = "_foreach_"
# reads, flops, transcendentals
_REGISTERED = frozenset(
    ((1, 1, 0), (2, 1, 0), (1, 0, 1), (2, 0, 1), (1, 2, 1), (1, 8, 1), (1, 0, 0))
)
_LAYER_NORM_BACKWARD_FLOPS = (
    10  # two sums of products (4), the difference of three terms scaled (6)
)
_BATCH_NORM_BACKWARD_FLOPS = 11  # the same, with the scale's and shift's gradients as by-products

Ops = tuple[Op, ...]
Rule = Callable[[str, tuple[Argument, ...], tuple[Argument, ...], Sequence[Any]], Ops | None]


def rows_and_columns(shape: tuple[int, ...]) -> tuple[float, float]:
    """A tensor's shape as rows of its last dimension."""
    cols = shape[-1] if shape else 1
    return float(math.prod(shape[:-1])), float(cols)


def loop(
    result: Tensor,
    read_bytes: float,
    flops: float,
    transcendentals: float,
    written_bytes: float | None = None,
    **more: Any,
) -> Ops:
    """One pass over a result; flops and transcendentals per element of it."""
    n = float(result.elements)
    return (
        Fused(
            result.dtype,
            elements=n,
            flops=flops * n,
            transcendentals=transcendentals * n,
            bytes_read=read_bytes,
            bytes_written=result.bytes if written_bytes is None else written_bytes,
            inner=rows_and_columns(result.shape)[1],
            **more,
        ),
    )


def elementwise(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Any op of ELEMENTWISE."""
    del values
    read = flat(given)
    if len(read) > 1 and not read[-1].elements and read[0].elements:  # `out=`, to be resized
        read = read[:-1]
    if not read:
        return None
    flops, transcendentals = ELEMENTWISE[kind]
    result = _result(kind, read, results)
    if result is None:
        return None
    full = [tensor for tensor in read if tensor.elements == result.elements]
    alike = all(tensor.dtype == result.dtype for tensor in full) and not _EXTRA_WRITTEN.get(kind)
    small = sum(tensor.bytes for tensor in read if tensor.elements != result.elements)
    counts = (len(full), flops, transcendentals)
    if (
        alike and counts in _REGISTERED and small <= result.bytes / 16
    ):  # a bias or a scale beside a matrix
        rows, cols = rows_and_columns(result.shape)
        return (
            Elementwise(
                result.dtype, rows, cols, float(counts[0]), float(flops), float(transcendentals)
            ),
        )
    written = result.bytes + result.elements * _EXTRA_WRITTEN.get(kind, 0.0)
    return loop(result, sum(tensor.bytes for tensor in read), flops, transcendentals, written)


def foreach(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """An elementwise op over lists of tensors, in as few kernels as will hold them: priced as one
    loop over all.
    """
    del results, values
    base = kind.removeprefix(_FOREACH)
    lists = [argument for argument in given if isinstance(argument, tuple)]
    if not lists:
        return None
    n, dtype = sum(tensor.elements for tensor in lists[0]), lists[0][0].dtype
    whole = Tensor((n,), dtype)
    if base in ("zero", "copy"):
        return fill("fill", (whole,), (), ()) if base == "zero" else (Copy(dtype, 1.0, float(n)),)
    if base == "norm":
        return (Reduction(dtype, float(len(lists[0])), n / len(lists[0])),)
    if base not in ELEMENTWISE:
        return None
    return elementwise(
        base,
        tuple(Tensor((sum(t.elements for t in one),), one[0].dtype) for one in lists),
        (whole,),
        (),
    )


def fill(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """A tensor written without reading another."""
    del kind, values
    written = flat(results) or flat(given)
    return loop(written[0], 0.0, 0, 0) if written else None


def reduction(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Sum, maximum and the like. Where neither the result nor the dimensions are recorded: over all
    dimensions but the last.
    """
    read = flat(given)
    if not read:
        return None
    if kind in ("max", "min") and len(read) > 1:
        return elementwise("maximum", given, results, values)
    n, shape = read[0].elements, read[0].shape
    written = flat(results)
    dims = _dimensions(number(values[1]) if len(values) > 1 else None, len(shape))
    if written:
        rows = written[0].elements
    elif len(given) == 1 or len(shape) < 2:
        rows = 1
    elif dims is not None:
        rows = math.prod(size for at, size in enumerate(shape) if at not in dims)
    else:
        rows = shape[-1]
    return (Reduction(read[0].dtype, float(rows), n / rows),) if rows and rows <= n else None


def softmax(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Along the recorded dimension, else the last."""
    del kind, results
    read = flat(given)
    if not read or not read[0].shape:
        return None
    n, cols = read[0].elements, _size_along(read[0].shape, values)
    return (Softmax(read[0].dtype, n / cols, float(cols)),)


def along(op: Callable[..., Op]) -> Rule:
    """Rule of an op that works along one dimension, the last where none is recorded: running sums,
    sorts.
    """

    def rule(
        kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
    ) -> Ops | None:
        del results
        read = flat(given)
        if not read:
            return None
        if not read[0].shape:
            return (op(read[0].dtype, 1.0, 1.0),)
        cols = read[0].shape[-1] if kind == "topk" else _size_along(read[0].shape, values)
        return (op(read[0].dtype, read[0].elements / cols, float(cols)),)

    return rule


def random(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Random numbers."""
    del kind, values
    written = flat(results) or flat(given)
    return (Random(written[0].dtype, *rows_and_columns(written[0].shape)),) if written else None


def loss(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Distance of two tensors, summed unless the result says otherwise."""
    read = flat(given)
    if len(read) < 2:
        return None
    if kind == "nll_loss_forward":  # one log probability per row
        rows = read[1].elements
        target = Tensor((rows,), read[0].dtype)
        return loop(
            target,
            target.bytes + read[1].bytes,
            1,
            0,
            DTYPE_BYTES[target.dtype],
            loop="reduction",
            summed=float(rows),
        )
    written = flat(results)
    flops, transcendentals = LOSSES[kind]
    if written and written[0].elements == read[0].elements and written[0].elements > 1:
        return loop(read[0], sum(tensor.bytes for tensor in read), flops, transcendentals)
    return loop(
        read[0], sum(tensor.bytes for tensor in read), flops, transcendentals,
        DTYPE_BYTES[read[0].dtype], loop="reduction", summed=float(read[0].elements),
        summed_inner=1.0,
    )  # fmt: skip


def norm(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Layer, batch, group and root-mean-square norms and their gradients."""
    del results
    backward = kind.endswith("backward")
    at = (
        1
        if (backward and "layer_norm" in kind) or kind.startswith("native_batch_norm_backward")
        else 0
    )
    x = given[at] if len(given) > at else None
    if not isinstance(x, Tensor) or not x.shape:
        return None
    if "batch_norm" in kind:
        if len(x.shape) < 2:
            return None
        cols = x.shape[1]
        if backward:
            return loop(x, 2 * x.bytes, _BATCH_NORM_BACKWARD_FLOPS, 0)
        return (Norm(x.dtype, x.elements / cols, float(cols)),)
    if "group_norm" in kind:
        groups = number(values[6]) if len(values) > 6 else None
        if (
            backward
            or not isinstance(groups, int)
            or groups < 1
            or x.elements % (x.shape[0] * groups)
        ):
            return None
        rows = x.shape[0] * groups
        return (Norm(x.dtype, float(rows), x.elements / rows),)
    cols = _normalised(kind, given, values, x.shape)
    if not cols or x.elements % cols:
        return None
    if "rms_norm" in kind:
        return None if backward else (RmsNorm(x.dtype, x.elements / cols, float(cols)),)
    if backward:  # one kernel for the input's gradient, one that sums the parameters' over rows
        parameters = Tensor((cols,), x.dtype)
        sums = {"loop": "reduction", "summed": x.elements / cols}
        return loop(x, 2 * x.bytes, _LAYER_NORM_BACKWARD_FLOPS, 0) + loop(
            x, 2 * x.bytes, 4, 0, 2 * parameters.bytes, **sums
        )
    return (Norm(x.dtype, x.elements / cols, float(cols)),)


def optimizer(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """A fused update of lists of parameters."""
    del results, values
    lists = [argument for argument in given if isinstance(argument, tuple)]
    if not lists:
        return None
    reads, writes, flops, transcendentals = OPTIMIZERS[kind]
    n = float(sum(tensor.elements for tensor in lists[0]))
    return (OptimizerUpdate(lists[0][0].dtype, n, reads, writes, flops, transcendentals),)


LOOPS: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys((_FOREACH + kind for kind in (*ELEMENTWISE, "zero", "copy", "norm")), foreach),
    **dict.fromkeys(FILLS, fill),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(SOFTMAXES, softmax),
    **dict.fromkeys(("cumsum", "cumprod", "_cumsum", "logcumsumexp"), along(Cumulative)),
    **dict.fromkeys(("sort", "argsort", "topk"), along(Sort)),
    **dict.fromkeys(RANDOM, random),
    **dict.fromkeys((*LOSSES, "nll_loss_forward"), loss),
    **dict.fromkeys(
        (
            "native_layer_norm",
            "layer_norm",
            "native_layer_norm_backward",
            "cudnn_batch_norm",
            "native_batch_norm",
            "batch_norm",
            "miopen_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_impl_index",
            "cudnn_batch_norm_backward",
            "native_batch_norm_backward",
            "miopen_batch_norm_backward",
            "native_group_norm",
            "group_norm",
            "rms_norm",
            "_fused_rms_norm",
            "instance_norm",
            "_batch_norm_with_update",
            "batch_norm_backward",
        ),
        norm,
    ),
    **dict.fromkeys(OPTIMIZERS, optimizer),
}


def _result(kind: str, read: list[Tensor], results: tuple[Argument, ...]) -> Tensor | None:
    """The recorded result, else what broadcasting the inputs gives."""
    written = flat(results)
    if written:
        return written[0]
    try:
        shape: tuple[int, ...] = ()
        for tensor in read:
            shape = _broadcast(shape, tensor.shape)
    except ValueError:
        return None
    dtype = max(
        (tensor for tensor in read),
        key=lambda t: (t.dtype != "bool", bool(t.shape), t.dtype[:2] in ("fp", "bf"), t.elements),
    ).dtype
    return Tensor(shape, "bool" if kind in _COMPARES else dtype)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    longest = max(len(a), len(b))
    out = []
    for x, y in zip((1,) * (longest - len(a)) + a, (1,) * (longest - len(b)) + b, strict=True):
        if x != y and 1 not in (x, y):
            raise ValueError
        out.append(y if x == 1 else x)
    return tuple(out)


def _dimensions(value: Any, rank: int) -> set[int] | None:
    if isinstance(value, bool) or value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    if not listed:
        return set(range(rank))
    if not all(isinstance(at, int) and -rank <= at < rank for at in listed):
        return None
    return {at % rank for at in listed}


def _size_along(shape: tuple[int, ...], values: Sequence[Any]) -> int:
    dim = number(values[1]) if len(values) > 1 else None
    if isinstance(dim, int) and not isinstance(dim, bool) and -len(shape) <= dim < len(shape):
        return shape[dim]
    return shape[-1]


def _normalised(
    kind: str, given: tuple[Argument, ...], values: Sequence[Any], shape: tuple[int, ...]
) -> int:
    """Elements that share a mean: those of the scale, else of the recorded dimensions, else the
    last.
    """
    at = 5 if kind.endswith("backward") else 2
    scale = given[at] if len(given) > at else None
    if isinstance(scale, Tensor) and scale.shape:
        return scale.elements
    listed = number(values[2 if at == 5 else 1]) if len(values) > 2 else None
    if (
        isinstance(listed, list)
        and listed
        and all(isinstance(size, int) and size > 0 for size in listed)
    ):
        return math.prod(listed)
    return shape[-1]
