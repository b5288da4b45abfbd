"""A call of an op of PyTorch -> our ops.

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
from collections.abc import Mapping
from types import MappingProxyType

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io import InputError
from hybridperf.ops import Copy, OpCall, Random, Reduction, Softmax
from hybridperf.ops.loops import FOURIER_FLOPS
from hybridperf.workloads.programs.torch.calls import (
    NAMES,
    Tensor,
    TorchCall,
    UnknownOp,
    is_whole,
    needs,
)
from hybridperf.workloads.programs.torch.loops import LOOPS, Ops, Rule, in_rows, loop, named, over
from hybridperf.workloads.programs.torch.products import PRODUCTS
from hybridperf.workloads.programs.torch.tables import FBGEMM, TABLES

NO_KERNEL: tuple[OpCall, ...] = ()

_VIEWS, _NOTHING_ALONE, _PARTS_ONLY, _WHOLE = map(frozenset, NAMES["no_kernel"].values())
_BY_PARTS = _NOTHING_ALONE | _PARTS_ONLY | _WHOLE
_SIZED_BY_NUMBERS = (
    "arange", "linspace", "eye", "logspace", "range", "tril_indices", "triu_indices", "hann_window",
)  # fmt: skip
_GRADIENT_NODE = ("Backward0", "Backward1", "Backward2", "Backward3")
_ENGINE = ("autograd::engine::", "torch::autograd::AccumulateGrad")


_REGISTERED: dict[str, Rule] = {}  # by whole name


def price_torch_op(name: str, rule: Rule) -> None:
    """Make a custom op of PyTorch known, in programs and in traces.

    Args:
        name: as PyTorch has it, "mylib::fused_norm".
        rule: given a `TorchCall` (shapes and formats of what the op takes and returns), what its
            kernels do: a tuple of `hybridperf.ops`, such as `RmsNorm("bf16", rows, cols)`.

    Raises:
        InputError: a name that is known.
    """
    space, _, kind = name.partition("::")
    if name in _REGISTERED or (space == "aten" and _bare(kind) in RULES):
        raise InputError(f"expected an op that has no rule, got {name}, which has one")
    _REGISTERED[name] = rule


def kernels(
    call: TorchCall, own: Mapping[str, Rule] = MappingProxyType({})
) -> tuple[OpCall, ...] | None:
    """Our ops for a call by its whole name (`aten::mm`); NO_KERNEL if it launches none, None if it
    is unknown. `own`: rules by bare name that come before those of all devices.
    """
    try:
        ops = _answer(call, own)
    except UnknownOp:
        return None
    return tuple(op if isinstance(op, OpCall) else OpCall(op) for op in ops)


def by_parts(name: str) -> bool:
    """An op whose work is that of the ops recorded inside it."""
    space, _, kind = name.rpartition("::")
    return space == "aten" and _bare(kind) in _BY_PARTS


def _answer(call: TorchCall, own: Mapping[str, Rule]) -> Ops:
    name = call.kind
    if name.endswith(_GRADIENT_NODE) or name.startswith(_ENGINE):
        return ()  # what they do is done by the ops inside them
    space, _, kind = name.rpartition("::")
    if name in _REGISTERED:
        rule: Rule | None = _REGISTERED[name]
    elif space in ("fbgemm", "fb"):
        rule = next((rule for part, rule in FBGEMM.items() if part in kind), None)
    elif "PermutePooledEmbsFunction" in name:  # the gradient of an order is another order
        rule = FBGEMM["permute_pooled_embs"]
    elif space == "fsdp":
        rule = _buffered
    elif space in ("torch::distributed::reducer", "torch.distributed.ddp.reducer"):
        return ()  # a gradient scaled and put into its place by the ops inside
    elif space in ("hybridperf", "torch_attn"):
        rule = PRODUCTS.get(kind) or RULES.get(kind)
    elif space == "prims":  # what PyTorch's own rules for tangents are written in
        rule = RULES.get(kind)
    elif space in ("aten", ""):
        kind = _bare(kind)
        # else a mark that somebody set, or a function of their own
        needs(space == "aten" or kind == "detach")
        if kind in _VIEWS or kind in _NOTHING_ALONE:
            return ()
        rule = own.get(kind) or RULES.get(kind)
    else:
        rule = None
    call = call._replace(kind=kind)
    read, written = call.read, call.written
    # a recorded input of the latter is the memory it will resize
    if rule is None or (kind in _SIZED_BY_NUMBERS and not written):
        raise UnknownOp
    # the first input is as large as the result
    sized = written[:1] or (read[:1] if space == "aten" and "cat" not in kind else [])
    all_empty = bool(read) and not written and all(0 in tensor.shape for tensor in read)
    if all_empty or any(0 in tensor.shape for tensor in sized):
        return ()  # nothing to do, and PyTorch launches nothing
    return rule(call)


def _bare(kind: str) -> str:
    """A name without what tells that it works in place or into a given tensor."""
    return kind if kind.endswith("__") else kind.removesuffix("_out").removesuffix("_")


def _copy(call: TorchCall) -> Ops:
    to, source = call.single(0, 1)
    needs(to.device[:3] == source.device[:3])  # else over a bus that no op of ours knows
    return _moved(to, source)


def _copied(call: TorchCall) -> Ops:
    """A copy of its own: in another format, order or number of times."""
    needs(call.read and call.written)
    return _moved(call.written[0], call.read[0])


def _moved(to: Tensor, source: Tensor) -> Ops:
    """In order where both have one format; a conversion reads one and writes the other."""
    if to.dtype == source.dtype and to.elements == source.elements:
        return over(Copy, to)
    return loop(to, source.bytes, 0, 0)


def _unfolded(call: TorchCall) -> Ops:
    """Of windows, which overlap: each number's gradients summed, in one pass over the larger."""
    needs(call.read and call.written)
    source, made = call.read[0], call.written[0]
    larger = max(source, made, key=lambda one: one.elements)
    return loop(larger, source.bytes, 1, 0, made.bytes)


def _part_gradient(call: TorchCall) -> Ops:
    """Of a slice: zeros as large as what it was cut from, and the gradient put into them."""
    needs(call.read and call.written)
    return loop(call.written[0], 0.0, 0, 0) + over(Copy, call.read[0])


def _part_replaced(call: TorchCall) -> Ops:
    """A tensor copied, and a part of the copy written."""
    whole, part = call.single(0, 1)
    return over(Copy, whole) + over(Copy, part)


def _buffered(call: TorchCall) -> Ops:
    """Shards put into a buffer, or cut out of it: the larger side is all that is moved."""
    sizes = [sum(one.elements for one in given) for given in call.lists]
    n = max([*sizes, *(one.elements for one in call.read if not call.lists)])
    return (Copy(call.read[0].dtype, 1.0, float(n)),)


def _cat(call: TorchCall) -> Ops:
    if written := call.written:
        return over(Copy, written[0])
    n = sum(tensor.elements for tensor in call.read)
    needs(n)
    return (Copy(call.read[0].dtype, 1.0, float(n)),)


def _pool(call: TorchCall) -> Ops:
    """Windows over an image; a maximum writes where it found it (8 bytes), for its gradient."""
    kind = call.kind
    backward = kind.endswith("backward")
    needs(len(call.given) > 1)
    (x,) = call.single(1 if backward else 0)
    needs(x.shape)
    mark_bytes = 8.0 if "indices" in kind or "adaptive_max" in kind else 0.0
    if backward:
        (gradient,) = call.single(0)
        return loop(x, gradient.bytes + gradient.elements * mark_bytes, 1, 0)
    written = call.written
    needs(written and written[0].elements)
    out, kernel = written[0], call.value(1)
    sizes = kernel if isinstance(kernel, list) else [kernel] * (len(x.shape) - 2)
    if "adaptive" in kind:
        window = x.elements / out.elements
    else:
        needs(all(is_whole(size, 1) for size in sizes))
        window = float(math.prod(sizes * (2 if len(sizes) == 1 else 1)))
    sums = {"loop": "window_reduction", "summed": window, "compared": float("max" in kind)}
    return loop(out, x.bytes, window, 0, out.bytes + out.elements * mark_bytes, **sums)


def _cross_entropy(call: TorchCall) -> Ops:
    """Softmax over the second dimension, then log probabilities summed: the target's, or all."""
    x, target = call.single(0, 1)
    needs(x.shape)
    classes = x.shape[min(1, len(x.shape) - 1)]
    read = x.bytes if target.elements == x.elements else target.elements * DTYPE_BYTES[x.dtype]
    sums = {"loop": "reduction", "summed": float(target.elements)}
    summed = loop(target, read + target.bytes, 2, 0, DTYPE_BYTES[x.dtype], **sums)
    return in_rows(Softmax, x, classes) + summed


def _cross_entropy_of_logits(call: TorchCall) -> Ops:
    """(1 - target) x - log sigmoid(x), a loop for each operation (aten/src/ATen/native/Loss.cpp),
    then their sum.
    """
    x, target = call.single(0, 1)
    logs = loop(x, x.bytes, *NAMES["elementwise"]["counts"]["log_sigmoid_forward"])
    others = loop(x, target.bytes, 1, 0) + 2 * loop(x, 2 * x.bytes, 1, 0)
    whole = call.written and call.written[0].elements < x.elements
    return others + logs + ((Reduction(x.dtype, 1.0, float(x.elements)),) if whole else ())


def _sampled(call: TorchCall) -> Ops:
    """One number of each row by its probability: exponential numbers, divided, their largest
    (aten/src/ATen/native/Distributions.cpp).
    """
    (x,) = call.single(0)
    needs(x.shape and call.value(1) == 1)
    largest = in_rows(Reduction, x, x.shape[-1])
    return over(Random, x) + loop(x, 2 * x.bytes, 1, 0) + largest


def _left_aligned(call: TorchCall) -> Ops:
    """Whether each row's marks come first: the marks are read once."""
    (_, marks) = call.single(0, 1)
    return in_rows(Reduction, marks, marks.shape[-1])


def _unscaled(call: TorchCall) -> Ops:
    """Lists of gradients divided by a loss's scale, and looked through for overflows."""
    needs(call.lists)
    n, dtype = sum(one.elements for one in call.lists[0]), call.lists[0][0].dtype
    whole = Tensor((n,), dtype)
    return loop(whole, whole.bytes, 2, 0)


def _trace(call: TorchCall) -> Ops:
    """The numbers of a diagonal, summed."""
    (x,) = call.single(0)
    needs(len(x.shape) == 2 and x.elements)
    return (Reduction(x.dtype, 1.0, float(min(x.shape))),)


def _fourier(call: TorchCall) -> Ops:
    """A pass along each dimension."""
    (x,), listed = call.single(0), call.value(1)
    needs(call.written and isinstance(listed, list) and listed)
    larger = max(x, call.written[0], key=lambda one: one.elements)
    sizes = [float(larger.shape[at]) for at in listed]
    passes = [loop(larger, larger.bytes, FOURIER_FLOPS * math.log2(one), 0) for one in sizes]
    return tuple(op for ops in passes for op in ops)


def _loss_gradient(call: TorchCall) -> Ops:
    """Of a negative log likelihood: one number per row; the zeros around it are another op."""
    x, target = call.single(1, 2)
    return loop(Tensor((target.elements,), x.dtype), target.bytes, 1, 0)


RULES: dict[str, Rule] = {
    **LOOPS,
    **PRODUCTS,
    **TABLES,
    "copy": _copy,
    **named(
        "rules",
        {
            "cat": _cat,
            "pool": _pool,
            "copied": _copied,
            "unfolded": _unfolded,
            "part_gradient": _part_gradient,
            "part_replaced": _part_replaced,
            "fourier": _fourier,
        },
    ),
    "cross_entropy_loss": _cross_entropy,
    "binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "multinomial": _sampled,
    "trace": _trace,
    "_nested_tensor_from_mask_left_aligned": _left_aligned,
    "_amp_foreach_non_finite_check_and_unscale": _unscaled,
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _loss_gradient),
}
