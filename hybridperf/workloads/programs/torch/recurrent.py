"""GRUs, plain RNNs and 16-bit LSTMs as cuDNN runs them: a call for each layer and direction; and
single cells of LSTMs and GRUs.

A CPU has one op for an LSTM's layer (`aten::mkldnn_rnn_layer`) and for nothing else: tensors
without memory, which lie on the host, would have a GRU taken apart, token by token and op by op,
where a GPU makes one call of cuDNN (aten/src/ATen/native/cudnn/RNN.cpp). Here a layer is an op of
ours that is priced as that one is: the inputs' products of all tokens at once, then a product and a
loop a token (`products.recurrent`). Packed sequences and projections go PyTorch's own way. A cell
is two products and one kernel for all of its gates (aten/src/ATen/native/cuda/RNN.cu).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from hybridperf.workloads.programs.torch.on_gpu import own_ops

if TYPE_CHECKING:
    from torch import Tensor
    from torch._library.custom_ops import CustomOpDef

    Tensors = tuple[Tensor, ...]

_KINDS = ("gru", "rnn_tanh", "rnn_relu", "lstm")
_CELL_SCHEMAS = {
    "gated_cell": (
        "(Tensor gates, Tensor own_gates, Tensor state, Tensor? bias, Tensor? own_bias)"
        " -> (Tensor, Tensor, Tensor)"
    ),
    "gated_cell_backward": (
        "(Tensor gates, Tensor own_gates, Tensor state, Tensor? bias, Tensor? own_bias,"
        " Tensor kept, Tensor? d_made, Tensor? d_cell)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
}
_SCHEMAS = {
    "recurrent_layer": (
        "(Tensor x, Tensor into, Tensor own, Tensor h, Tensor? c, Tensor? bias, Tensor? own_bias)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    ),
    "recurrent_layer_backward": (
        "(Tensor x, Tensor into, Tensor own, Tensor h, Tensor? c, Tensor? bias, Tensor? own_bias,"
        " Tensor out, Tensor kept, Tensor? d_out, Tensor? d_last, Tensor? d_cell)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
}


@contextlib.contextmanager
def fused_layers() -> Iterator[None]:
    """Layers of recurrent networks as one op each."""
    import torch

    with contextlib.ExitStack() as stack:
        for kind in _KINDS:
            made = _fused(kind, getattr(torch._VF, kind))
            stack.enter_context(mock.patch.object(torch._VF, kind, made, create=True))
        stack.enter_context(mock.patch.object(torch._VF, "gru_cell", _gru_cell, create=True))
        stack.enter_context(mock.patch.object(torch._VF, "lstm_cell", _lstm_cell, create=True))
        yield


def _gru_cell(x: Tensor, h: Tensor, into: Tensor, own: Tensor, *biases: Tensor) -> Tensor:
    return _gated(x, h, h, into, own, *biases)[0]


def _lstm_cell(
    x: Tensor, states: tuple[Tensor, Tensor], into: Tensor, own: Tensor, *biases: Tensor
) -> Tensors:
    return tuple(_gated(x, *states, into, own, *biases)[:2])


def _gated(
    x: Tensor, h: Tensor, state: Tensor, into: Tensor, own: Tensor, *biases: Tensor
) -> Tensors:
    """(the state that others see, the cell's own, what its gradient needs)."""
    import torch

    product = torch.nn.functional.linear
    return _cell()(product(x, into), product(h, own), state, *(biases or (None, None)))


def _fused(kind: str, apart: Callable) -> Callable:
    """`torch._VF.gru` and the like: (all tokens, the last states)."""
    import torch

    def run(x: Tensor, states: Any, weights: Any, *options: Any) -> Any:
        with_biases = options[0] if options else None
        each = 4 if with_biases is True else 2
        dtype = x.dtype
        if torch.is_autocast_enabled("cpu") and x.is_floating_point():
            dtype = torch.get_autocast_dtype("cpu")
        packed = not isinstance(with_biases, bool)
        known = kind == "lstm" and dtype != torch.float16  # by an op of CPUs
        if packed or known or any(type(one).__name__ == "DTensor" for one in weights):
            return apart(x, states, weights, *options)
        _, layers, dropout, train, both, batch_first = options
        if len(weights) != each * layers * (1 + both):  # with projections
            return apart(x, states, weights, *options)
        starts = states if kind == "lstm" else (states,)
        x, starts, weights = (
            torch.utils._pytree.tree_map(lambda one: one.to(dtype), one)
            for one in (x, tuple(starts), list(weights))
        )
        out, lasts = x.transpose(0, 1) if batch_first else x, []
        for layer in range(layers):
            if layer and dropout and train:
                out = torch.native_dropout(out, dropout, True)[0]
            made = []
            for at in range(layer * (1 + both), (layer + 1) * (1 + both)):
                into, own, *biases = weights[at * each : (at + 1) * each]
                start = [one[at] for one in starts]
                given = (*start, *[None] * (2 - len(start)), *(biases or (None, None)))
                all_, *last = _layer()(out, into, own, *given)[:3]
                made.append(all_)
                lasts.append(last)
            out = torch.cat(made, -1) if both else made[0]
        ends = [
            torch.stack(one) if len(one) > 1 else one[0][None] for one in zip(*lasts, strict=True)
        ]
        out = out.transpose(0, 1) if batch_first else out
        return (out, *ends) if kind == "lstm" else (out, ends[0])

    return run


@functools.cache
def _layer() -> CustomOpDef:
    """The op with its gradient, known to PyTorch once."""
    import torch

    forward, backward = own_ops(_SCHEMAS)

    @forward.register_fake
    def _(x: Tensor, into: Tensor, own: Tensor, h: Tensor, *_: object) -> Tensors:
        out = x.new_empty((*x.shape[:2], own.shape[1]))
        return out, torch.empty_like(h), torch.empty_like(h), x.new_empty(*x.shape[:2], len(own))

    _differentiable(forward, backward, inputs=7, kept=(0, 3))
    return forward


@functools.cache
def _cell() -> CustomOpDef:
    """The same of one token."""
    import torch

    forward, backward = own_ops(_CELL_SCHEMAS)

    @forward.register_fake
    def _(gates: Tensor, own_gates: Tensor, state: Tensor, *_: object) -> Tensors:
        return torch.empty_like(state), torch.empty_like(state), torch.empty_like(gates)

    _differentiable(forward, backward, inputs=5, kept=(2,))
    return forward


def _differentiable(
    forward: CustomOpDef, backward: CustomOpDef, inputs: int, kept: tuple[int, ...]
) -> None:
    """Gradients of an op's inputs by another, which takes these, some results (`kept`), and as many
    of the results' gradients as its arguments ask for.
    """
    import torch

    @backward.register_fake
    def _(*given: Tensor) -> Tensors:
        return tuple(
            given[0].new_empty(0) if one is None else torch.empty_like(one)
            for one in given[:inputs]
        )

    asked = len(backward._opoverload._schema.arguments) - inputs - len(kept)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)  # of what nobody reads
        ctx.save_for_backward(*inputs, *(output[at] for at in kept))

    def gradients(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        made = backward(*saved, *given[:asked])
        return tuple(
            own if one is not None else None for own, one in zip(made, saved, strict=False)
        )

    forward.register_autograd(gradients, setup_context=keep)
