"""Recorded ops that multiply: matrix products, convolutions, attention.

PyTorch's profiler records input shapes only, so how operands lie in memory (transposed or not) is
not known: they count as stored in order. A convolution's output comes from the recorded result,
else from recorded stride, padding and dilation; without either the op is unknown.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridperf.ops import (
    BatchedGemm,
    Convolution,
    EncoderAttention,
    Gemm,
    Op,
    PrefillAttention,
    Reduction,
)
from hybridperf.traces.recorded.loops import Ops, Rule
from hybridperf.traces.recorded.tensors import RecordedCall, Tensor, is_whole

_CAUSAL_FROM_TOP, _CAUSAL_FROM_BOTTOM = 1, 2  # `custom_mask_type` of the memory-efficient kernel


def addmm(call: RecordedCall) -> Ops | None:
    """bias + A B; `addmv`, `addbmm` and `baddbmm` alike."""
    read = call.tensors(3)
    if len(read) < 3:
        return None
    product = _product(read[1], read[2])
    if not product or call.kind == "addbmm":
        return None
    op = product[0]
    if isinstance(op, Gemm) and read[0].elements == op.n:
        op = Gemm(op.dtype, op.m, op.n, op.k, bias=1.0)
    return (op,)


def product(call: RecordedCall) -> Ops | None:
    """`mm`, `bmm`, `mv`, `dot` and `matmul`, whose batches broadcast."""
    read = call.tensors(2)
    return _product(*read) if len(read) == 2 else None


def linear(call: RecordedCall) -> Ops | None:
    """x W^T + bias, W stored [out, in]."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None:
        return None
    if not x.shape or len(weight.shape) != 2 or weight.shape[1] != x.shape[-1]:
        return None
    n, k = map(float, weight.shape)
    bias = float(call.tensor(2) is not None)
    return (Gemm(x.dtype, x.elements / k, n, k, bias=bias, transposed_b=1.0),)


def convolution(call: RecordedCall) -> Ops | None:
    """One or two image dimensions, grouped, strided, dilated or transposed."""
    kind, x, weight, written = call.kind, call.tensor(0), call.tensor(1), call.written
    if x is None or weight is None:
        return None
    out = written[0].shape if written else _output_shape(call, x.shape, weight.shape)
    if out is None:
        return None
    flagged = kind in ("convolution", "_convolution") and call.value(6) is True
    if "_transpose" in kind or kind.endswith("transpose") or flagged:
        # transposed: the gradient of a convolution from the result to the input
        op = _convolution(out, weight, x.shape, x.dtype, "bwd_inputs")
    else:
        op = _convolution(x.shape, weight, out, x.dtype, "fwd")
    return None if op is None else (op,)


def convolution_backward(call: RecordedCall) -> Ops | None:
    """Gradients of input, weights and bias, as the mask selects; without it, the first two."""
    read = call.tensors(3)
    if len(read) < 3:
        return None
    gradient, x, weight = read
    mask = call.value(10)
    if not (isinstance(mask, list) and len(mask) == 3):
        mask = [True, True, False]
        if len(call.results) == 3:
            mask = [isinstance(tensor, Tensor) for tensor in call.results]
    transposed = call.value(7) is True
    directions = ("fwd" if transposed else "bwd_inputs", "bwd_params")
    source, result = (gradient, x) if transposed else (x, gradient)
    ops: list[Op] = []
    for wanted, direction in zip(mask, directions, strict=False):
        if wanted:
            op = _convolution(source.shape, weight, result.shape, x.dtype, direction)
            if op is None:
                return None
            ops.append(op)
    if mask[2] and len(gradient.shape) > 1 and gradient.elements:
        channels = float(gradient.shape[1])
        ops.append(Reduction(gradient.dtype, channels, gradient.elements / channels))
    return tuple(ops) or None


def attention(call: RecordedCall) -> Ops | None:
    """Fused attention where the trace tells whether it is causal; its gradient is unknown to us."""
    kind, read = call.kind, call.tensors(3)
    if len(read) < 3 or any(len(tensor.shape) != 4 for tensor in read):
        return None
    # [batch, tokens, heads, size]
    tokens_first = kind in ("_flash_attention_forward", "_efficient_attention_forward")
    token, head = (1, 2) if tokens_first else (2, 1)
    q, k = read[0], read[1]
    causal = call.value(_CAUSAL_AT[kind])
    if kind == "_efficient_attention_forward" and causal is not None:
        causal = causal in (_CAUSAL_FROM_TOP, _CAUSAL_FROM_BOTTOM)
    if not isinstance(causal, bool):
        return None
    if tokens_first and call.tensor(3) is not None:
        return None  # packed sequences, whose lengths are not recorded
    batch, heads, size = float(q.shape[0]), float(q.shape[head]), float(q.shape[3])
    length, keys, kv_heads = float(q.shape[token]), float(k.shape[token]), float(k.shape[head])
    sizes = (q.dtype, batch, length, heads, size)
    if not causal and keys == length:
        return (EncoderAttention(*sizes, kv_heads=kv_heads),)
    if causal and keys >= length:
        return (PrefillAttention(*sizes, kv_heads=kv_heads, kv_len=keys),)
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
_CONVOLUTIONS = (
    "conv1d", "conv2d", "convolution", "_convolution", "cudnn_convolution", "miopen_convolution",
    "mkldnn_convolution", "thnn_conv2d", "_slow_conv2d_forward", "conv_depthwise2d",
    "_conv_depthwise2d", "conv_transpose1d", "miopen_depthwise_convolution",
    "cudnn_convolution_relu", "conv_transpose2d", "convolution_overrideable",
    "cudnn_convolution_transpose", "miopen_convolution_transpose",
)  # fmt: skip
PRODUCTS: dict[str, Rule] = {
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation", "addr"), addmm),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "inner"), product),
    "linear": linear,
    **dict.fromkeys(_CONVOLUTIONS, convolution),
    "convolution_backward": convolution_backward,
    **dict.fromkeys(_CAUSAL_AT, attention),
}


def _product(a: Tensor, b: Tensor) -> Ops | None:
    """A B, of two matrices, batches of them (which broadcast), or with a vector on either side."""
    if not a.shape or not b.shape:
        return None
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    (m, k), (k_right, n) = left[-2:], right[-2:]
    if k != k_right:
        return None
    if len(right) == 2:  # every row of every batch meets the same matrix: one product
        return (Gemm(a.dtype, float(m * math.prod(left[:-2])), float(n), float(k)),)
    try:
        batch = math.prod(np.broadcast_shapes(left[:-2], right[:-2]))
    except ValueError:
        return None
    return (BatchedGemm(a.dtype, float(batch), float(m), float(n), float(k)),) if batch else ()


def _convolution(
    x: tuple[int, ...], weight: Tensor, out: tuple[int, ...], dtype: str, direction: str
) -> Convolution | None:
    """The kernel of one direction, for a forward pass from `x` to `out`."""
    if not len(x) == len(weight.shape) == len(out) or len(x) not in (3, 4):
        return None
    if 0 in (*x, *weight.shape, *out):
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
    call: RecordedCall, x: tuple[int, ...], weight: tuple[int, ...]
) -> tuple[int, ...] | None:
    """(size + 2 padding - dilation (kernel - 1) - 1) / stride + 1 along each image dimension."""
    if "transpose" in call.kind or len(x) != len(weight) or len(x) not in (3, 4):
        return None
    # stride, padding, dilation; these two have padding before stride, and no bias in the list
    vendor = call.kind in ("cudnn_convolution", "miopen_convolution")
    at = (3, 2, 4) if vendor else (3, 4, 5)
    stride, padding, dilation = (_per_dimension(call.value(place), len(x) - 2) for place in at)
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    columns = zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    sizes = [(n + 2 * p - d * (kernel - 1) - 1) // s + 1 for n, kernel, s, p, d in columns]
    return (x[0], weight[0], *sizes) if min(sizes) > 0 else None


def _per_dimension(value: Any, dimensions: int) -> list[int] | None:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(is_whole(one) for one in listed):
        return None
    listed = listed * dimensions if len(listed) == 1 else listed
    return listed if len(listed) == dimensions else None
