"""Ops that PyTorch makes of others as it runs, such as `linear`: a saved program names them whole.

What a program that runs shows instead (`record.py`) are their parts. Only what our rules read of a
part is written here: sizes, formats, the numbers they ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hybridperf.workloads.programs.torch.calls import (
    NAMES,
    Argument,
    Tensor,
    TorchCall,
    UnknownOp,
    needs,
)

_VIEWS = frozenset(NAMES["no_kernel"]["views"])
_MAY_COPY = frozenset(NAMES["no_kernel"]["nothing_alone"])
# the same arguments in the same places, as far as rules read them
_RENAMED = {
    "layer_norm": "native_layer_norm", "batch_norm": "native_batch_norm",
    "rms_norm": "_fused_rms_norm", "embedding_bag": "_embedding_bag", "softmax": "_softmax",
    "log_softmax": "_log_softmax", "nll_loss": "nll_loss_forward", "square": "pow",
    "nll_loss_nd": "nll_loss_forward", "max_pool2d": "max_pool2d_with_indices",
    "max_pool3d": "max_pool3d_with_indices", "_weight_norm": "_weight_norm_interface",
    "pad": "constant_pad_nd", "tile": "repeat", "outer": "mul", "hstack": "cat", "vstack": "cat",
    "concatenate": "cat",
}  # fmt: skip

Parts = tuple[TorchCall, ...]


def is_view(call: TorchCall) -> bool:
    """Whether the result of a call lies where its first input does."""
    kind = _bare(call)
    if not (call.read and call.written):
        return False
    return (kind in _VIEWS and "empty" not in kind) or (kind in _MAY_COPY and not _copies(call))


def parts(call: TorchCall) -> Parts:
    """The calls that a call comes to; itself where it is none of others, or says too little."""
    kind = _bare(call)
    if not call.kind.startswith("aten::") or not call.written:
        return (call,)
    if kind in _RENAMED:
        return (call._replace(kind=f"aten::{_RENAMED[kind]}"),)
    if kind in _MAY_COPY and _copies(call):
        dropped = "dropout" in kind
        copied = "_to_copy" if call.read[0].dtype != call.made.dtype else "clone"
        return (call._replace(kind=f"aten::{'native_dropout' if dropped else copied}"),)
    try:
        return _PARTS[kind](call) if kind in _PARTS else (call,)
    except (UnknownOp, ValueError):
        return (call,)


def _bare(call: TorchCall) -> str:
    return call.kind.removeprefix("aten::").removesuffix("_")


def _copies(call: TorchCall) -> bool:
    """Whether an op that is at times a view has to move numbers."""
    x, made, kind = call.read[0], call.made, _bare(call)
    if "dropout" in kind:
        return call.value(2) is True and bool(call.value(1))
    if x.dtype != made.dtype:
        return True
    return kind not in ("to", "type_as") and not _viewable(x, made.shape)


def _viewable(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor's memory can be read in another shape: dimensions that are merged or split
    have to follow one another in it.
    """
    if 0 in x.shape:
        return True
    left = [pair for pair in zip(x.shape, x.strides, strict=True) if pair[0] != 1]
    blocks: list[list[int]] = []  # elements of dimensions that follow one another
    for at, (size, stride) in enumerate(left):
        if at and left[at - 1][1] == size * stride:
            blocks[-1][0] *= size
        else:
            blocks.append([size])
    wanted = [size for size in reversed(shape) if size != 1]
    for (block,) in reversed(blocks):
        while block > 1:
            if not wanted or block % wanted[0]:
                return False
            block //= wanted.pop(0)
    return True


def _part(
    kind: str, given: tuple[Argument, ...], *results: Argument, **values: object
) -> TorchCall:
    """A call with numbers at places: at6=8."""
    places = {int(name.removeprefix("at")): value for name, value in values.items()}
    listed = [places.get(at) for at in range(max(places, default=-1) + 1)]
    return TorchCall(f"aten::{kind}", given, results, listed)


def _linear(call: TorchCall) -> Parts:
    """x W^T + bias over all rows at once; of what does not lie in order a copy, and the bias apart
    (aten/src/ATen/native/Linear.cpp).
    """
    x, weight = call.single(0, 1)
    made, bias = call.made, call.tensor(2)
    needs(x.shape and len(weight.shape) == 2 and weight.shape[1] == x.shape[-1])
    (n, k), m = weight.shape, math.prod(x.shape[:-1])
    turned = replace(weight, shape=(k, n), transposed=True)
    flat_x, flat_made = replace(x, shape=(m, k)), replace(made, shape=(m, n))
    first = _part("t", (weight,), turned)
    many = len(x.shape) > 2
    if many and not _viewable(x, flat_x.shape):
        copied = replace(x, storage=-made.storage)
        into: Parts = (_part("clone", (x,), copied), _part("view", (copied,), flat_x))
    else:
        into = (_part("view", (x,), flat_x),) * (len(x.shape) != 2)
    out = (_part("view", (flat_made,), made),) * (len(x.shape) != 2)
    if bias is not None and not (many and not _viewable(x, (x.elements,))):
        return (first, *into, _part("addmm", (bias, flat_x, turned), flat_made), *out)
    added = (_part("add_", (made, bias), made),) * (bias is not None)
    return (first, *into, _part("mm", (flat_x, turned), flat_made), *out, *added)


def _convolved(call: TorchCall) -> Parts:
    x, weight = call.single(0, 1)
    turned = "transpose" in call.kind
    return (_part("convolution", (x, weight, call.tensor(2)), call.made, at6=turned),)


def _group_norm(call: TorchCall) -> Parts:
    given = (call.tensor(0), call.tensor(2), call.tensor(3))
    return (_part("native_group_norm", given, call.made, at6=call.value(1)),)


def _pooled(call: TorchCall) -> Parts:
    """To one number of a channel: its mean."""
    if math.prod(call.made.shape[2:]) == 1:
        return (_part("mean", (call.tensor(0),), call.made),)
    return (call._replace(kind="aten::_adaptive_avg_pool2d"),)


def _cross_entropy(call: TorchCall) -> Parts:
    """Of classes by number: log probabilities, then the one of each row."""
    x, target = call.single(0, 1)
    needs(x.elements != target.elements)
    logs = replace(x, storage=-call.made.storage)
    row_of = min(1, len(x.shape) - 1)
    return (
        _part("_log_softmax", (x,), logs, at1=row_of),
        _part("nll_loss_forward", (logs, target), call.made),
    )


def _one_hot(call: TorchCall) -> Parts:
    (index,) = call.single(0)
    return (
        _part("zeros", (), call.made),
        _part("scatter_", (call.made, None, index, None), call.made),
    )


def _recurrent(call: TorchCall) -> Parts:
    """A call for each layer and direction; weights come as [into, own] with or without biases."""
    x, weights = call.tensor(0), call.given[2] if len(call.given) > 2 else None
    if x is None or len(x.shape) != 3 or not isinstance(weights, tuple):
        raise UnknownOp
    each = 4 if call.value(3) is True else 2
    batch, tokens = x.shape[:2] if call.value(8) is True else x.shape[1::-1]
    found: list[TorchCall] = []
    for into, own in zip(weights[::each], weights[1::each], strict=True):
        given = replace(x, shape=(tokens, batch, into.shape[1]))
        made = replace(x, shape=(tokens, batch, own.shape[1]), storage=call.made.storage)
        found.append(_part("mkldnn_rnn_layer", (given, into, own), made))
        x = made
    return tuple(found)


def _cell(call: TorchCall) -> Parts:
    """A token of an LSTM or GRU: a product of what comes in, one of what was, a loop for all gates;
    an LSTM's states are a list.
    """
    states = call.lists[0] if call.lists else tuple(call.single(1))
    x, into, own = call.single(0, 2, 3)
    gates = replace(call.made, shape=(x.shape[0], into.shape[0]), storage=-call.made.storage)
    given = (gates, gates, states[-1], call.tensor(4), call.tensor(5))
    return (
        *_linear(TorchCall("aten::linear", (x, into), (gates,))),
        *_linear(TorchCall("aten::linear", (states[0], own), (gates,))),
        TorchCall("hybridperf::gated_cell", given, (*call.written[:1], states[-1], gates)),
    )


def _transformed(call: TorchCall) -> Parts:
    """A Fourier transform along some dimensions, the last where none is given."""
    (x,), listed = call.single(0), call.value(2)
    two = [-2, -1] if _bare(call).endswith("fft2") else [-1]
    along = listed if isinstance(listed, list) else two if listed is None else [listed]
    if _bare(call).endswith("fftn") and listed is None:
        along = [*range(len(x.shape))]
    return (_part("_fft_c2c", (x,), call.made, at1=along),)


def _einsum(call: TorchCall) -> Parts:
    """A sum of products of tensors, two at a time from the left: batches of matrices; where nothing
    is summed over, a loop.
    """
    words = call.values[0] if call.values else None
    operands = call.lists[0] if call.lists else ()
    needs(isinstance(words, str) and len(operands) > 1)
    into, out = str(words).replace(" ", "").split("->")
    names = into.split(",")
    sizes = {
        letter: size for word, one in zip(names, operands, strict=True)
        for letter, size in zip(word, one.shape, strict=True)
    }  # fmt: skip
    found: list[TorchCall] = []
    name, left = names[0], operands[0]
    for at in range(1, len(operands)):
        wanted = set(out).union(*names[at + 1 :])
        together = [*dict.fromkeys(name + names[at])]
        kept = [letter for letter in together if letter in wanted]
        last = at == len(operands) - 1
        made = replace(
            call.made, shape=tuple(sizes[letter] for letter in kept),
            storage=call.made.storage if last else -call.made.storage,
        )  # fmt: skip
        found.append(_of_two(name, left, names[at], operands[at], set(kept), sizes, made))
        name, left = "".join(kept), made
    return tuple(found)


def _of_two(
    name: str, left: Tensor, other: str, right: Tensor, kept: set[str], sizes: dict[str, int],
    made: Tensor,
) -> TorchCall:  # fmt: skip
    """Letters of two tensors, and those of their product that are kept."""
    mine, its = set(name), set(other)
    summed = (mine & its) - kept
    needs(mine | its == kept | summed)
    if not summed:
        return _part("mul", (left, right), made)
    batch, k, m, n = (
        math.prod(sizes[letter] for letter in letters)
        for letters in (mine & its & kept, summed, mine - its, its - mine)
    )
    a, b = replace(left, shape=(batch, m, k)), replace(right, shape=(batch, k, n))
    return _part("bmm", (a, b), replace(made, shape=(batch, m, n)))


_PARTS: dict[str, Callable[[TorchCall], Parts]] = {
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolved),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolved),
    "group_norm": _group_norm,
    "adaptive_avg_pool2d": _pooled,
    "cross_entropy_loss": _cross_entropy,
    "one_hot": _one_hot,
    **dict.fromkeys(("lstm", "gru"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell"), _cell),
    "einsum": _einsum,
    **{
        f"fft_{way}fft{dims}": _transformed
        for way in ("", "i", "r", "ir")
        for dims in ("", "2", "n")
    },
}
