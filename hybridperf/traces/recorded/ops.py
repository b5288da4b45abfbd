"""An op as a trace records it (name, input shapes, types) -> our ops.

What is answered is the work of the kernels that the op launches **itself**; ops recorded inside it
(a `copy_` inside `contiguous`) are recorded, and answered, for themselves. Three answers:

    None        nobody here knows it, or its shapes say too little
    NO_KERNEL   it launches nothing: a view, an allocation, a question
    ops         one per kernel or so, in order; a convolution's gradient is two

An op that goes `by_parts` (`linear`, `conv2d`, `softmax`) has no kernels beside those of the ops
inside it. Its answer is what its parts come to, for traces that record no parts; whoever sees the
parts takes those instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import Copy, OpCall, Softmax
from hybridperf.traces.recorded.graph import NOTHING, RecordedArguments
from hybridperf.traces.recorded.loops import LOOPS, Ops, Rule, fill, loop, rows_and_columns
from hybridperf.traces.recorded.products import PRODUCTS
from hybridperf.traces.recorded.tables import FBGEMM, TABLES
from hybridperf.traces.recorded.tensors import Argument, RecordedCall, Tensor, is_whole

NO_KERNEL: tuple[OpCall, ...] = ()

_VIEWS = frozenset((
    "view", "_reshape_alias", "as_strided", "slice", "select", "narrow", "t", "transpose",
    "permute", "expand", "unsqueeze", "squeeze", "detach", "alias", "empty", "empty_like",
    "empty_strided", "new_empty", "new_empty_strided", "resize", "resize_as", "set", "split",
    "split_with_sizes", "chunk", "unbind", "view_as", "expand_as", "result_type", "is_pinned",
    "record_stream", "lift_fresh", "lift", "resolve_conj", "resolve_neg", "numpy_T", "mT", "mH",
    "T", "broadcast_to", "movedim", "diagonal", "swapaxes", "unfold", "_unsafe_view",
    "requires_grad", "is_floating_point", "can_cast", "promote_types", "is_same_size", "size",
    "stride", "dim", "numel", "is_complex", "_version", "_has_compatible_shallow_copy_type",
    "swapdims", "moveaxis", "unflatten", "view_as_real", "view_as_complex", "real", "imag", "conj",
    "_conj", "data", "retain_grad", "output_nr", "is_leaf", "_fw_primal", "_make_dual", "sym_size",
    "sym_numel", "sym_stride", "is_contiguous", "get_device", "_debug_has_internal_overlap",
    "refine_names", "rename", "tensor_split", "hsplit", "vsplit", "unsafe_split", "unsafe_chunk",
    "unsafe_split_with_sizes", "_assert_tensor_metadata", "broadcast_tensors", "atleast_1d",
    "atleast_2d", "unflatten_dense_tensors", "pin_memory", "_pin_memory", "is_distributed",
    "is_signed", "is_inference", "is_neg", "is_conj",
))  # fmt: skip
# launch only through the ops inside them, and nothing where there are none
_NOTHING_ALONE = frozenset((
    "to", "type_as", "contiguous", "reshape", "reshape_as", "flatten", "ravel", "dropout",
    "feature_dropout", "alpha_dropout", "is_nonzero",
))  # fmt: skip
# launch only through the ops inside them; without those nobody knows
_PARTS_ONLY = frozenset((
    "_to_copy", "clone", "item", "einsum", "nll_loss", "nll_loss_nd",
    "binary_cross_entropy_with_logits", "tensor", "embedding_bag", "embedding_backward",
    "_embedding_bag_backward", "slice_backward", "select_backward",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward", "repeat", "tile", "lstm", "gru",
    "multi_head_attention_forward", "adaptive_avg_pool1d", "max_pool1d", "pad", "constant_pad_nd",
    "tensordot", "outer", "ger", "cosine_similarity", "cosine_embedding_loss",
    "triplet_margin_loss", "one_hot", "kron", "unfold_backward", "hstack", "vstack", "concatenate",
    "lstm_cell", "gru_cell", "gather_backward", "slice_scatter", "select_scatter",
    "linalg_multi_dot", "chain_matmul", "isclose", "allclose", "scalar_tensor",
))  # fmt: skip
# the same, where the shapes tell what the parts come to
_WHOLE = frozenset((
    "linear", "matmul", "conv1d", "conv2d", "convolution", "_convolution", "conv_transpose1d",
    "conv_transpose2d", "thnn_conv2d", "relu", "relu6", "softmax", "log_softmax", "layer_norm",
    "batch_norm", "_batch_norm_impl_index", "group_norm", "instance_norm", "rms_norm", "zero",
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
    "new_full", "rand", "randn", "rand_like", "randn_like", "randint", "randint_like",
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "inner",
    "square", "divide", "multiply", "subtract", "true_divide", "argsort", "rsub", "frobenius_norm",
    "embedding", "index_put", "log_sigmoid", "concat", "stack", "max_pool2d", "adaptive_avg_pool2d",
    "cross_entropy_loss", "flatten_dense_tensors",
))  # fmt: skip
_BY_PARTS = _NOTHING_ALONE | _PARTS_ONLY | _WHOLE
_SIZED_BY_NUMBERS = ("arange", "linspace", "eye", "logspace", "range")
_GRADIENT_NODE = ("Backward0", "Backward1", "Backward2", "Backward3")
_ENGINE = ("autograd::engine::", "torch::autograd::AccumulateGrad")


def recorded_op(
    name: str, inputs: RecordedArguments, outputs: RecordedArguments = NOTHING
) -> tuple[OpCall, ...] | None:
    """Our ops for one recorded op; NO_KERNEL if it launches none, None if it is unknown.

    Only an execution trace's values tell on which device a tensor lives: without them a `copy_`
    counts as one within the device, also where a profiler saw a copy from the host.
    """
    ops = _answer(name, inputs.arguments, outputs.arguments, inputs.values)
    return None if ops is None else tuple(map(OpCall, ops))


def by_parts(name: str) -> bool:
    """An op whose work is that of the ops recorded inside it."""
    space, _, kind = name.rpartition("::")
    return space == "aten" and _bare(kind) in _BY_PARTS


def _answer(
    name: str, given: tuple[Argument, ...], results: tuple[Argument, ...], values: Sequence[Any]
) -> Ops | None:
    if name.endswith(_GRADIENT_NODE) or name.startswith(_ENGINE):
        return ()  # what they do is done by the ops inside them
    space, _, kind = name.rpartition("::")
    if space in ("fbgemm", "fb"):
        rule = next((rule for part, rule in FBGEMM.items() if part in kind), None)
    elif space in ("torch::distributed::reducer", "torch.distributed.ddp.reducer"):
        return ()  # a gradient scaled and put into its place by the ops inside
    elif space in ("aten", ""):
        kind = _bare(kind)
        if space == "" and kind != "detach":  # a mark that somebody set, or a function of their own
            return None
        if kind in _VIEWS or kind in _NOTHING_ALONE:
            return ()
        rule = RULES.get(kind)
    else:
        return None
    call = RecordedCall(kind, given, results, values)
    read, written = call.read, call.written
    if rule is None or (kind in _SIZED_BY_NUMBERS and not written):
        return None  # a recorded input of the latter is the memory it will resize
    # the first input is as large as the result
    sized = written[:1] or (read[:1] if space == "aten" and "cat" not in kind else [])
    all_empty = bool(read) and not written and all(0 in tensor.shape for tensor in read)
    if all_empty or any(0 in tensor.shape for tensor in sized):
        return ()  # nothing to do, and PyTorch launches nothing
    return rule(call)


def _bare(kind: str) -> str:
    """A name without what tells that it works in place or into a given tensor."""
    return kind if kind.endswith("__") else kind.removesuffix("_out").removesuffix("_")


def _copy(call: RecordedCall) -> Ops | None:
    """In order where both have one format; a conversion reads one and writes the other."""
    read = call.tensors(2)
    if len(read) < 2:
        return None
    to, source = read
    if to.device[:3] != source.device[:3]:
        return None  # between host and device: over a bus that no op of ours knows
    if to.dtype == source.dtype and to.elements == source.elements:
        return (Copy(to.dtype, *rows_and_columns(to.shape)),)
    return loop(to, source.bytes, 0, 0)


def _cat(call: RecordedCall) -> Ops | None:
    if written := call.written:
        return (Copy(written[0].dtype, *rows_and_columns(written[0].shape)),)
    parts = call.read
    n = sum(tensor.elements for tensor in parts)
    return (Copy(parts[0].dtype, 1.0, float(n)),) if n else None


def _pool(call: RecordedCall) -> Ops | None:
    """Windows over an image; a maximum writes where it found it (8 bytes), for its gradient."""
    kind = call.kind
    backward = kind.endswith("backward")
    x = call.tensor(1 if backward else 0) if len(call.given) > 1 else None
    if x is None or not x.shape:
        return None
    mark_bytes = 8.0 if "indices" in kind else 0.0
    if backward:
        gradient = call.tensor(0)
        if gradient is None:
            return None
        return loop(x, gradient.bytes + gradient.elements * mark_bytes, 1, 0)
    written = call.written
    if not written or not written[0].elements:
        return None
    out, kernel = written[0], call.value(1)
    sizes = kernel if isinstance(kernel, list) else [kernel] * (len(x.shape) - 2)
    if "adaptive" in kind:
        window = x.elements / out.elements
    elif all(is_whole(size, 1) for size in sizes):
        window = float(math.prod(sizes * (2 if len(sizes) == 1 else 1)))
    else:
        return None
    sums = {"loop": "window_reduction", "summed": window, "compared": float("max" in kind)}
    return loop(out, x.bytes, window, 0, out.bytes + out.elements * mark_bytes, **sums)


def _cross_entropy(call: RecordedCall) -> Ops | None:
    """Softmax over the second dimension, then log probabilities summed: the target's, or all."""
    x, target = call.tensor(0), call.tensor(1)
    if x is None or target is None or not x.shape:
        return None
    classes = x.shape[min(1, len(x.shape) - 1)]
    read = x.bytes if target.elements == x.elements else target.elements * DTYPE_BYTES[x.dtype]
    sums = {"loop": "reduction", "summed": float(target.elements)}
    return (
        Softmax(x.dtype, x.elements / classes, float(classes)),
        *loop(target, read + target.bytes, 2, 0, DTYPE_BYTES[x.dtype], **sums),
    )


def _loss_gradient(call: RecordedCall) -> Ops | None:
    """Of a negative log likelihood: one number per row; the zeros around it are another op."""
    x, target = call.tensor(1), call.tensor(2)
    if x is None or target is None:
        return None
    return loop(Tensor((target.elements,), x.dtype), target.bytes, 1, 0)


_POOLS = (
    "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "max_pool2d",
    "adaptive_avg_pool2d", "max_pool2d_with_indices_backward", "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
)  # fmt: skip
RULES: dict[str, Rule] = {
    **LOOPS,
    **PRODUCTS,
    **TABLES,
    "copy": _copy,
    **dict.fromkeys(("cat", "_cat", "concat", "stack", "_stack", "flatten_dense_tensors"), _cat),
    "_foreach_fill": fill,
    "cross_entropy_loss": _cross_entropy,
    "nll_loss_backward": _loss_gradient,
    **dict.fromkeys(_POOLS, _pool),
}
