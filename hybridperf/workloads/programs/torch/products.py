"""Recorded ops that multiply: matrix products, convolutions, attention.

PyTorch's profiler records input shapes only, so how operands lie in memory (transposed or not) is
not known: they count as stored in order. A convolution's output comes from the recorded result,
else from recorded stride, padding and dilation; without either the op is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hybridperf.ops import BatchedGemm, Convolution, Fused, Gemm, OpCall, Reduction, attention_of
from hybridperf.ops.attention import Attention
from hybridperf.workloads.programs import ratios
from hybridperf.workloads.programs.torch.calls import Tensor, TorchCall, broadcast, is_whole, needs
from hybridperf.workloads.programs.torch.loops import GATE_FLOPS, Ops, Rule, loop, named

_DISTANCE_FLOPS = 3  # of each pair of numbers: subtracted, multiplied, added
_CAUSAL_FROM_TOP, _CAUSAL_FROM_BOTTOM = 1, 2  # `custom_mask_type` of the memory-efficient kernel


def addmm(call: TorchCall) -> Ops:
    """bias + A B; `addmv` and `baddbmm` alike."""
    bias, a, b = call.single(0, 1, 2)
    product = _product(a, b)
    needs(product)
    op = product[0]
    if isinstance(op, Gemm) and bias.elements == op.n:
        op = Gemm(op.dtype, op.m, op.n, op.k, bias=1.0)
    return (op,)


def product(call: TorchCall) -> Ops:
    """`mm`, `bmm`, `mv`, `dot` and `matmul`, whose batches broadcast."""
    return _product(*call.single(0, 1))


def linear(call: TorchCall) -> Ops:
    """x W^T + bias, W stored [out, in]."""
    x, weight = call.single(0, 1)
    needs(x.shape and len(weight.shape) == 2 and weight.shape[1] == x.shape[-1])
    n, k = map(float, weight.shape)
    bias = float(call.tensor(2) is not None)
    return (Gemm(x.dtype, x.elements / k, n, k, bias=bias, transposed_b=1.0),)


def convolution(call: TorchCall) -> Ops:
    """One to three image dimensions, grouped, strided, dilated or transposed."""
    (x, weight), kind, written = call.single(0, 1), call.kind, call.written
    out = written[0].shape if written else _output_shape(call, x.shape, weight.shape)
    flagged = kind in ("convolution", "_convolution") and call.value(6) is True
    if "_transpose" in kind or kind.endswith("transpose") or flagged:
        # transposed: the gradient of a convolution from the result to the input
        return (_convolution(out, weight, x.shape, x.dtype, "bwd_inputs"),)
    return (_convolution(x.shape, weight, out, x.dtype, "fwd"),)


def convolution_backward(call: TorchCall) -> Ops:
    """Gradients of input, weights and bias, as the mask selects; without it, the first two."""
    gradient, x, weight = call.single(0, 1, 2)
    mask = call.value(10)
    if not (isinstance(mask, list) and len(mask) == 3):
        mask = [True, True, False]
        if len(call.results) == 3:
            mask = [isinstance(tensor, Tensor) for tensor in call.results]
    transposed = call.value(7) is True
    directions = ("fwd" if transposed else "bwd_inputs", "bwd_params")
    source, result = (gradient, x) if transposed else (x, gradient)
    ops: Ops = ()
    for wanted, direction in zip(mask, directions, strict=False):
        if wanted:
            ops += (_convolution(source.shape, weight, result.shape, x.dtype, direction),)
    if mask[2] and len(gradient.shape) > 1 and gradient.elements:
        channels = float(gradient.shape[1])
        ops += (Reduction(gradient.dtype, channels, gradient.elements / channels),)
    needs(ops)
    return ops


def attention(call: TorchCall) -> Ops:
    """Fused attention where the call tells whether it is causal."""
    kind = call.kind
    # [batch, tokens, heads, size]
    tokens_first = kind in ("_flash_attention_forward", "_efficient_attention_forward")
    # else packed, of lengths not recorded
    needs(not tokens_first or call.tensor(3) is None)
    return (_attention(call, 0, CAUSAL_AT[kind], tokens_first),)


def attention_gradient(call: TorchCall) -> Ops:
    """As many times its forward: gradients of queries, keys and values."""
    forward = _attention(call, 1, CAUSAL_AT[call.kind], False)
    return (OpCall(forward, times=ratios.FUSED_ATTENTION),)


def varlen_attention(call: TorchCall) -> Ops:
    """Fused attention of sequences that are packed one behind the other, [tokens, heads, size]:
    their lengths are numbers, so that all count as equally long.
    """
    back = call.kind.endswith("backward")
    q, k, starts = call.single(*(1, 2, 6) if back else (0, 1, 3))
    causal, batch = call.value(10 if back else 7), starts.elements - 1
    needs(len(q.shape) == len(k.shape) == 3 and batch > 0 and isinstance(causal, bool))
    queries, keys = q.shape[0] / batch, k.shape[0] / batch
    others = 0 if keys == queries and not causal else keys
    op = attention_of(q.dtype, batch, queries, others, q.shape[1], q.shape[2], k.shape[1], causal)
    return (OpCall(op, times=ratios.FUSED_ATTENTION if back else 1.0),)


def distances(call: TorchCall) -> Ops:
    """Of each point to each of others: a product where they are Euclidean and there are many of
    them, else a loop (aten/src/ATen/native/Distance.cpp); its gradient goes over as many pairs.
    """
    first = 1 if call.kind.endswith("backward") else 0
    x, y = call.single(first, first + 1)
    needs(len(x.shape) > 1 and len(y.shape) > 1 and y.elements)
    if call.kind == "_euclidean_dist":
        turned = Tensor((*y.shape[:-2], *y.shape[:-3:-1]), y.dtype)
        return (*_product(x, turned), *loop(call.made, call.made.bytes, 1, 1))
    pairs = _DISTANCE_FLOPS * (y.shape[-2] if first else x.shape[-1])
    return loop(call.made, x.bytes + y.bytes, float(pairs), 0 if first else 1)


def flex_attention(call: TorchCall) -> Ops:
    """Attention of all queries to all keys, as large a share of it as the mask keeps."""
    back = call.kind.endswith("backward")
    q, k = call.single(*(1, 2) if back else (0, 1))
    share = call.value(6 if back else 3)
    needs(len(q.shape) == len(k.shape) == 4 and isinstance(share, float))
    keys = 0 if k.shape[2] == q.shape[2] else k.shape[2]
    op = attention_of(
        q.dtype, q.shape[0], q.shape[2], keys, q.shape[1], q.shape[3], k.shape[1], False
    )
    return (OpCall(op, times=share * (ratios.FUSED_ATTENTION if back else 1.0)),)


def _attention(call: TorchCall, first: int, causal_at: int, tokens_first: bool) -> Attention:
    """The op whose queries, keys and values are three arguments from the `first` on."""
    q, k, v = call.single(first, first + 1, first + 2)
    needs(all(len(tensor.shape) == 4 for tensor in (q, k, v)))
    token, head = (1, 2) if tokens_first else (2, 1)
    causal = call.value(causal_at)
    if call.kind == "_efficient_attention_forward" and causal is not None:
        causal = causal in (_CAUSAL_FROM_TOP, _CAUSAL_FROM_BOTTOM)
    needs(isinstance(causal, bool))
    queries, keys = q.shape[token], k.shape[token]
    needs(keys >= queries or not causal)
    others = 0 if keys == queries and not causal else keys
    return attention_of(
        q.dtype, q.shape[0], queries, others, q.shape[head], q.shape[3], k.shape[head], causal
    )


def grouped(call: TorchCall) -> Ops:
    """Products of groups of rows, each with its own matrix; rows are spread evenly."""
    (a, b), result = call.single(0, 1), call.made
    needs(len(call.written) == 1 and a.shape and b.shape)
    if len(result.shape) == 3:  # gradients of the matrices: groups are cut from the inner dimension
        groups, m, n = result.shape
        rows, k = float(m), a.shape[-1] / groups
    else:
        needs(len(b.shape) == 3 and len(a.shape) == 2)
        groups, k, n = b.shape
        rows = a.shape[0] / groups
    return (BatchedGemm(a.dtype, float(groups), max(rows, 1.0), float(n), max(float(k), 1.0)),)


def recurrent(
    call: TorchCall, formats: Mapping[str, str] = MappingProxyType({"fp32": "tf32"})
) -> Ops:
    """A layer of an LSTM or GRU: all inputs' products at once, then a product and a loop per token.

    Its gradient has two products for each, weights' gradients over all tokens at once. Products of
    single precision are TF32's on GPUs: `torch.backends.cudnn.allow_tf32` is true unless told
    otherwise.
    """
    x, into, own = call.single(0, 1, 2)
    dtype = formats.get(x.dtype, x.dtype)
    needs(len(x.shape) == 3 and len(into.shape) == len(own.shape) == 2)
    (tokens, batch, inputs), (wide, hidden) = x.shape, own.shape
    gates = Tensor((batch, wide), x.dtype)
    rows = float(batch * tokens)
    from_inputs = Gemm(dtype, rows, float(wide), float(inputs))
    each = Gemm(dtype, float(batch), float(wide), float(hidden))
    mixed = Fused(
        x.dtype, elements=float(gates.elements), flops=GATE_FLOPS * float(gates.elements),
        transcendentals=float(gates.elements), bytes_read=gates.bytes, bytes_written=gates.bytes,
    )  # fmt: skip
    weights = (
        Gemm(dtype, float(wide), float(inputs), rows),
        Gemm(dtype, float(wide), float(hidden), rows),
    )
    per_token = tuple(OpCall(one, times=float(tokens)) for one in (each, mixed))
    return (from_inputs, *per_token, *(weights if call.kind.endswith("backward") else ()))


CAUSAL_AT = {  # place of the flag among the arguments
    "scaled_dot_product_attention": 5,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
    "_flash_attention_forward": 8,
    "_efficient_attention_forward": 9,
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
}
_RULES = {"addmm": addmm, "product": product, "convolution": convolution}
PRODUCTS: dict[str, Rule] = {
    **named("rules", _RULES),
    "linear": linear,
    "convolution_backward": convolution_backward,
    "_grouped_mm": grouped,
    "flex_attention": flex_attention,
    "flex_attention_backward": flex_attention,
    **dict.fromkeys(("_varlen_attn", "_varlen_attn_backward"), varlen_attention),
    **dict.fromkeys(("_euclidean_dist", "_cdist_forward", "_cdist_backward"), distances),
    **{
        f"{kind}{back}": recurrent
        for kind in ("mkldnn_rnn_layer", "recurrent_layer")
        for back in ("", "_backward")
    },
    **{kind: attention_gradient if kind.endswith("backward") else attention for kind in CAUSAL_AT},
}


def _product(a: Tensor, b: Tensor) -> Ops:
    """A B, of two matrices, batches of them (which broadcast), or with a vector on either side."""
    needs(a.shape and b.shape)
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    (m, k), (k_right, n) = left[-2:], right[-2:]
    k_right *= 1 + (a.in_pairs and b.in_pairs)
    needs(k == k_right)
    if len(right) == 2:  # every row of every batch meets the same matrix: one product
        return (Gemm(a.dtype, float(m * math.prod(left[:-2])), float(n), float(k)),)
    batch = math.prod(broadcast(left[:-2], right[:-2]))
    return (BatchedGemm(a.dtype, float(batch), float(m), float(n), float(k)),) if batch else ()


def _convolution(
    x: tuple[int, ...], weight: Tensor, out: tuple[int, ...], dtype: str, direction: str
) -> Convolution:
    """The kernel of one direction, for a forward pass from `x` to `out`."""
    needs(len(x) == len(weight.shape) == len(out) and len(x) in (3, 4, 5))
    if len(x) == 5:  # a video: its frames one above the other, as much to read and to multiply
        x, out, kernel = ((*one[:2], one[2] * one[3], one[4]) for one in (x, out, weight.shape))
        weight = Tensor(kernel, weight.dtype)
    needs(0 not in (*x, *weight.shape, *out))
    c_out, c_in_per_group, kh, *rest = weight.shape
    needs(x[1] % c_in_per_group == 0 and out[1] == c_out and x[0] == out[0])
    flat_image = len(x) == 3  # one dimension: an image one pixel wide
    return Convolution(
        dtype, batch=float(x[0]), c_in=float(x[1]), c_out=float(c_out), h_in=float(x[2]),
        h_out=float(out[2]), kh=float(kh), kw=1.0 if flat_image else float(rest[0]),
        w_in=1.0 if flat_image else float(x[3]), w_out=1.0 if flat_image else float(out[3]),
        groups=float(x[1] // c_in_per_group), direction=direction,
    )  # fmt: skip


def _output_shape(call: TorchCall, x: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, ...]:
    """(size + 2 padding - dilation (kernel - 1) - 1) / stride + 1 along each image dimension."""
    needs("transpose" not in call.kind and len(x) == len(weight) and len(x) in (3, 4))
    # stride, padding, dilation; these two have padding before stride, and no bias in the list
    vendor = call.kind in ("cudnn_convolution", "miopen_convolution")
    at = (3, 2, 4) if vendor else (3, 4, 5)
    stride, padding, dilation = (_per_dimension(call.value(place), len(x) - 2) for place in at)
    needs(0 not in stride)
    columns = zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    sizes = [(n + 2 * p - d * (kernel - 1) - 1) // s + 1 for n, kernel, s, p, d in columns]
    needs(min(sizes) > 0)
    return (x[0], weight[0], *sizes)


def _per_dimension(value: Any, dimensions: int) -> list[int]:
    listed = value if isinstance(value, list) else [value]
    needs(all(is_whole(one) for one in listed))
    listed = listed * dimensions if len(listed) == 1 else listed
    needs(len(listed) == dimensions)
    return listed
