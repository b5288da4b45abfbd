"""Recorded ops that multiply: matrix products, convolutions, attention.

PyTorch's profiler records input shapes only, so how operands lie in memory (transposed or not) is
not known: they count as stored in order. A convolution's output comes from the recorded result,
else from recorded stride, padding and dilation; without either the op is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hybridperf.ops import (
    BatchedGemm,
    Convolution,
    EncoderAttention,
    Gemm,
    Op,
    PrefillAttention,
    Reduction,
)
from hybridperf.traces.recorded_loops import Ops, Rule
from hybridperf.traces.recorded_tensors import Argument, Tensor, flat, number

_CAUSAL_FROM_TOP, _CAUSAL_FROM_BOTTOM = 1, 2  # `custom_mask_type` of the memory-efficient kernel


def addmm(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """bias + A B; `addmv`, `addbmm` and `baddbmm` alike."""
    del results, values
    read = [tensor for tensor in given[:3] if isinstance(tensor, Tensor)]
    if len(read) < 3:
        return None
    product = _product(read[1], read[2])
    if product is None or kind == "addbmm":
        return None
    op = product[0]
    if isinstance(op, Gemm) and read[0].elements == op.n:
        op = Gemm(op.dtype, op.m, op.n, op.k, bias=1.0)
    return (op,)


def product(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """`mm`, `bmm`, `mv`, `dot` and `matmul`, whose batches broadcast."""
    del kind, results, values
    read = [tensor for tensor in given[:2] if isinstance(tensor, Tensor)]
    return _product(*read) if len(read) == 2 else None


def linear(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """x W^T + bias, W stored [out, in]."""
    del kind, results, values
    if len(given) < 2 or not isinstance(given[0], Tensor) or not isinstance(given[1], Tensor):
        return None
    x, weight = given[0], given[1]
    if not x.shape or len(weight.shape) != 2 or weight.shape[1] != x.shape[-1]:
        return None
    n, k = weight.shape
    biased = len(given) > 2 and isinstance(given[2], Tensor)
    return (
        Gemm(x.dtype, x.elements / k, float(n), float(k), bias=float(biased), transposed_b=1.0),
    )


def convolution(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """One or two image dimensions, grouped, strided, dilated or transposed."""
    if len(given) < 2 or not isinstance(given[0], Tensor) or not isinstance(given[1], Tensor):
        return None
    x, weight = given[0], given[1]
    written = flat(results)
    out = written[0].shape if written else _output_shape(kind, x.shape, weight.shape, values)
    turned = (
        kind.endswith("transpose")
        or "_transpose" in kind
        or (kind in ("convolution", "_convolution") and _at(values, 6) is True)
    )
    if out is None:
        return None
    # transposed: the gradient of a convolution from the result to the input
    ends = (out, x.shape) if turned else (x.shape, out)
    op = _convolution(ends[0], weight, ends[1], x.dtype, "bwd_inputs" if turned else "fwd")
    return None if op is None else (op,)


def convolution_backward(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Up to three kernels: gradients of the input, the weights and the bias, as the output mask
    says; without one, the first two.
    """
    del kind
    if len(given) < 3 or not all(isinstance(tensor, Tensor) for tensor in given[:3]):
        return None
    gradient, x, weight = (tensor for tensor in given[:3] if isinstance(tensor, Tensor))
    mask = number(values[10]) if len(values) > 10 else None
    if not (isinstance(mask, list) and len(mask) == 3):
        mask = (
            [isinstance(tensor, Tensor) for tensor in results]
            if len(results) == 3
            else [True, True, False]
        )
    turned = _at(values, 7) is True
    directions = ("fwd", "bwd_params") if turned else ("bwd_inputs", "bwd_params")
    ends = (gradient.shape, x.shape) if turned else (x.shape, gradient.shape)
    ops: list[Op] = []
    for wanted, direction in zip(mask, directions, strict=False):
        if wanted:
            op = _convolution(ends[0], weight, ends[1], x.dtype, direction)
            if op is None:
                return None
            ops.append(op)
    if mask[2] and len(gradient.shape) > 1 and gradient.elements:
        channels = float(gradient.shape[1])
        ops.append(Reduction(gradient.dtype, channels, gradient.elements / channels))
    return tuple(ops) or None


def attention(
    kind: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    """Fused attention, where the trace says whether it is causal; its gradient is unknown to us."""
    del results
    read = [tensor for tensor in given[:3] if isinstance(tensor, Tensor)]
    if len(read) < 3 or any(len(tensor.shape) != 4 for tensor in read):
        return None
    tokens_first = kind in (
        "_flash_attention_forward",
        "_efficient_attention_forward",
    )  # [batch, tokens, heads, size]
    token, head = (1, 2) if tokens_first else (2, 1)
    q, k = read[0], read[1]
    flag = _at(values, _CAUSAL_AT[kind])
    causal = (
        flag in (_CAUSAL_FROM_TOP, _CAUSAL_FROM_BOTTOM)
        if kind == "_efficient_attention_forward" and flag is not None
        else flag
    )
    if not isinstance(causal, bool):
        return None
    if (
        len(given) > 3 and isinstance(given[3], Tensor) and tokens_first
    ):  # sequences of several lengths, packed: their lengths are not told
        return None
    batch, heads, size, length = (
        float(q.shape[0]),
        float(q.shape[head]),
        float(q.shape[3]),
        float(q.shape[token]),
    )
    keys, kv_heads = float(k.shape[token]), float(k.shape[head])
    if not causal and keys == length:
        return (EncoderAttention(q.dtype, batch, length, heads, size, kv_heads=kv_heads),)
    if causal and keys >= length:
        return (
            PrefillAttention(q.dtype, batch, length, heads, size, kv_heads=kv_heads, kv_len=keys),
        )
    return None


_CAUSAL_AT = {  # place of the flag among the arguments
    "scaled_dot_product_attention": 5,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
    "_flash_attention_forward": 8,
    "_efficient_attention_forward": 9,
    "_scaled_dot_product_flash_attention_for_cpu": 4,
}

PRODUCTS: dict[str, Rule] = {
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation", "addr"), addmm),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "inner"), product),
    "linear": linear,
    **dict.fromkeys(
        (
            "conv1d",
            "conv2d",
            "convolution",
            "_convolution",
            "cudnn_convolution",
            "miopen_convolution",
            "mkldnn_convolution",
            "thnn_conv2d",
            "_slow_conv2d_forward",
            "conv_depthwise2d",
            "_conv_depthwise2d",
            "miopen_depthwise_convolution",
            "cudnn_convolution_relu",
            "conv_transpose1d",
            "conv_transpose2d",
            "cudnn_convolution_transpose",
            "miopen_convolution_transpose",
            "convolution_overrideable",
        ),
        convolution,
    ),
    "convolution_backward": convolution_backward,
    **dict.fromkeys(_CAUSAL_AT, attention),
}


def _product(a: Tensor, b: Tensor) -> Ops | None:
    """A B, of two matrices, batches of them (whose leading dimensions broadcast), or with a vector
    on either side.
    """
    if not a.shape or not b.shape:
        return None
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    (m, k), (k_right, n) = left[-2:], right[-2:]
    if k != k_right:
        return None
    if len(right) == 2:  # every row of every batch meets the same matrix: one product
        return (Gemm(a.dtype, float(m * math.prod(left[:-2])), float(n), float(k)),)
    longest = max(len(left), len(right)) - 2
    outer = zip(
        (1,) * (longest - len(left) + 2) + left[:-2],
        (1,) * (longest - len(right) + 2) + right[:-2],
        strict=True,
    )
    batch = 1
    for x, y in outer:
        if x != y and 1 not in (x, y):
            return None
        batch *= max(x, y)
    return (BatchedGemm(a.dtype, float(batch), float(m), float(n), float(k)),)


def _convolution(
    x: tuple[int, ...], weight: Tensor, out: tuple[int, ...], dtype: str, direction: str
) -> Convolution | None:
    """Of a forward pass from `x` to `out`, whichever way it goes."""
    if (
        not len(x) == len(weight.shape) == len(out)
        or len(x) not in (3, 4)
        or 0 in (*x, *weight.shape, *out)
    ):
        return None
    c_out, c_in_per_group, kh, *rest = weight.shape
    if x[1] % c_in_per_group or out[1] != c_out or x[0] != out[0]:
        return None
    flat_image = len(x) == 3  # one dimension: an image one pixel wide
    return Convolution(
        dtype, batch=float(x[0]), c_in=float(x[1]), c_out=float(c_out), h_in=float(x[2]),
        h_out=float(out[2]), kh=float(kh), kw=1.0 if flat_image else float(rest[0]),
        w_in=1.0 if flat_image else float(x[3]), w_out=1.0 if flat_image else float(out[3]),
        groups=float(x[1] // c_in_per_group), direction=direction,
    )  # fmt: skip


def _output_shape(
    kind: str, x: tuple[int, ...], weight: tuple[int, ...], values: Sequence[Any]
) -> tuple[int, ...] | None:
    """(size + 2 padding - dilation (kernel - 1) - 1) / stride + 1 along each dimension of the
    image, from recorded values.
    """
    if "transpose" in kind or len(x) != len(weight) or len(x) not in (3, 4):
        return None
    first = {"cudnn_convolution": 2, "miopen_convolution": 2}.get(
        kind
    )  # padding before stride, and no bias in the list
    image = len(x) - 2
    at = (3, 2, 4) if first is not None else (3, 4, 5)  # stride, padding, dilation
    stride, padding, dilation = (_per_dimension(_at(values, place), image) for place in at)
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    sizes = [
        (size + 2 * p - d * (kernel - 1) - 1) // s + 1
        for size, kernel, s, p, d in zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return (x[0], weight[0], *sizes) if min(sizes) > 0 else None


def _per_dimension(value: Any, image: int) -> list[int] | None:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in listed
    ):
        return None
    listed = listed * image if len(listed) == 1 else listed
    return listed if len(listed) == image else None


def _at(values: Sequence[Any], place: int) -> Any:
    return number(values[place]) if len(values) > place else None
