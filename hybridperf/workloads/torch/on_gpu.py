"""Ops that are one kernel on GPUs alone, as programs are captured for them: RMSNorm and dropout.

`aten::_fused_rms_norm` has a kernel of its own on GPUs alone (its `dispatch` in PyTorch's
native_functions.yaml); tensors without memory lie on the host, where it is taken apart. Here it is
an op of ours by the same name and arguments, recorded as any other. `aten::native_dropout` is what
a GPU runs (aten/src/ATen/native/Dropout.cpp), where a CPU draws a mask, scales it and multiplies;
fused attention of GPUs drops as it goes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

_FORWARD = "(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)"
_BACKWARD = (
    "(Tensor gradient, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight)"
    " -> (Tensor, Tensor)"
)


@contextlib.contextmanager
def fused_norms() -> Iterator[None]:
    """`rms_norm` as one op, of plain tensors; those that are made of others go their own way."""
    import torch

    apart, plain = torch.rms_norm, (torch.Tensor, torch.nn.Parameter)

    def normed(
        input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
    ) -> Any:
        given = [one for one in (input, weight) if one is not None]
        if not all(_is_plain(one, plain) for one in given):
            return apart(input, normalized_shape, weight, eps)
        return _op()(input, list(normalized_shape), weight, eps)[0]

    with mock.patch.object(torch, "rms_norm", normed):
        yield


def _is_plain(one: Any, plain: tuple[type, ...]) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return type(one) in (*plain, FakeTensor)


@functools.cache
def _op() -> Any:
    """The op with its gradient, known to PyTorch once."""
    import torch

    def unseen(*_: Any) -> Any:
        raise NotImplementedError("this op is for tensors without memory")

    forward, backward = (
        torch.library.custom_op(f"hybridperf::{name}", unseen, mutates_args=(), schema=schema)
        for name, schema in (
            ("_fused_rms_norm", _FORWARD), ("_fused_rms_norm_backward", _BACKWARD)
        )
    )  # fmt: skip

    @forward.register_fake
    def _(input: Any, normalized_shape: list[int], *_: Any) -> Any:
        rows = input.shape[: input.dim() - len(normalized_shape)]
        sums = input.new_empty((*rows, *[1] * len(normalized_shape)), dtype=torch.float32)
        return torch.empty_like(input), sums

    @backward.register_fake
    def _(gradient: Any, input: Any, normalized_shape: list[int], _: Any, weight: Any) -> Any:
        scale = input.new_empty(0) if weight is None else torch.empty_like(weight)
        return torch.empty_like(input), scale

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)  # of what nobody reads
        input, ctx.shape, weight, _ = inputs
        ctx.save_for_backward(input, output[1], *(() if weight is None else (weight,)))

    def gradients(ctx: Any, gradient: Any, _: Any) -> Any:
        input, rstd, *weight = ctx.saved_tensors
        own, scale = backward(gradient, input, ctx.shape, rstd, *(weight or (None,)))
        return own, None, scale if weight else None, None

    forward.register_autograd(gradients, setup_context=keep)
    return forward


@contextlib.contextmanager
def fused_drops() -> Iterator[None]:
    """`dropout` as one op, also where modules of PyTorch call it."""
    import torch

    functional = torch.nn.functional
    apart, attend = torch.dropout, functional.scaled_dot_product_attention

    def dropped(input: Any, p: float, train: bool) -> Any:
        if train and 0.0 < p < 1.0:
            return torch.native_dropout(input, p, True)[0]
        return apart(input, p, train)

    def attended(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        del dropout_p
        return attend(query, key, value, attn_mask, 0.0, *args, **kwargs)

    with (
        mock.patch.object(torch, "dropout", dropped),
        mock.patch.object(torch._VF, "dropout", dropped, create=True),
        mock.patch.object(functional, "scaled_dot_product_attention", attended),
    ):
        yield
