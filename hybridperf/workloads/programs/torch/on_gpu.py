"""What runs otherwise on GPUs than on CPUs, as programs are captured for them: RMSNorm, dropout and
FlexAttention, which are one kernel there, and autocast, which runs more in single precision.

`aten::_fused_rms_norm` has a kernel of its own on GPUs alone (its `dispatch` in PyTorch's
native_functions.yaml); tensors without memory lie on the host, where it is taken apart. Here it is
an op of ours by the same name and arguments, recorded as any other. `aten::native_dropout` is what
a GPU runs (aten/src/ATen/native/Dropout.cpp), where a CPU draws a mask, scales it and multiplies;
fused attention of GPUs drops as it goes.

FlexAttention is attention whose mask and scores are functions of a user's own: one kernel that
skips blocks that the mask leaves out (Dong et al., "Flex Attention: A Programming Model for
Generating Optimized Attention Kernels", 2024, section 3). Here it is an op of ours, too, with the
share of pairs that the mask keeps: its function is evaluated on a grid of positions. What a
function does to scores costs nothing beside the products.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from hybridperf.workloads.programs.torch.calls import NAMES

if TYPE_CHECKING:
    from typing import Never

    from torch import Tensor
    from torch._library.custom_ops import CustomOpDef

    Tensors = tuple[Tensor, ...]

_NORM = {
    "_fused_rms_norm": (
        "(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)"
    ),
    "_fused_rms_norm_backward": (
        "(Tensor gradient, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight)"
        " -> (Tensor, Tensor)"
    ),
}
_FLEX = {
    "flex_attention": "(Tensor q, Tensor k, Tensor v, float share) -> (Tensor, Tensor)",
    "flex_attention_backward": (
        "(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logs, float share)"
        " -> (Tensor, Tensor, Tensor)"
    ),
}
_WIDENED, _GIVEN_A_FORMAT = (
    frozenset(NAMES["autocast"][kind]) for kind in ("widened", "given_a_format")
)
_GRID = 256  # positions along queries and keys that a mask is asked for
_MASK_AT = -1  # among what a block mask is made of


def own_ops(schemas: Mapping[str, str]) -> Iterator[CustomOpDef]:
    """Ops of ours, known to PyTorch, that nobody runs."""
    import torch

    def unseen(*_: object) -> Never:
        raise NotImplementedError("this op is for tensors without memory")

    return (
        torch.library.custom_op(f"hybridperf::{name}", unseen, mutates_args=(), schema=schema)
        for name, schema in schemas.items()
    )


class Autocast:
    """`torch.autocast` of a GPU where all tensors lie on the host: the host's, beside `call`."""

    def __init__(self) -> None:
        self.open = 0  # contexts of a GPU that a program is in

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Every context that a program makes of it is one of the host."""
        import torch

        of = torch.amp.autocast_mode.autocast
        make, enter, leave = of.__init__, of.__enter__, of.__exit__

        def made(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            of_a_gpu = str(device_type).split(":")[0] == "cuda"
            make(context, "cpu" if of_a_gpu else device_type, *args, **kwargs)
            context.of_a_gpu = of_a_gpu  # last: one of these inside another makes it, too

        def entered(context: Any) -> Any:
            self.open += getattr(context, "of_a_gpu", False)
            return enter(context)

        def left(context: Any, *args: Any) -> Any:
            self.open -= getattr(context, "of_a_gpu", False)
            return leave(context, *args)

        methods: dict[str, Any] = {"__init__": made, "__enter__": entered, "__exit__": left}
        with mock.patch.multiple(of, **methods):
            yield

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A function's result, in single precision if autocast of a GPU has it so."""
        import torch

        name = getattr(func, "__name__", "")
        asked = kwargs.get("dtype") or any(isinstance(one, torch.dtype) for one in args)
        widened, given = name in _WIDENED, name in _GIVEN_A_FORMAT and not asked
        if not (self.open and (widened or given) and torch.is_autocast_enabled("cpu")):
            return func(*args, **kwargs)

        def narrow(one: object) -> bool:
            return isinstance(one, torch.Tensor) and one.dtype in (torch.bfloat16, torch.float16)

        def wide(one: Any) -> Any:
            return one.float() if narrow(one) else one

        tree = torch.utils._pytree
        if given and any(map(narrow, args)):
            kwargs = kwargs | {"dtype": torch.float32}
        elif widened:
            args, kwargs = tree.tree_map(wide, (tuple(args), kwargs))
        with torch.autocast("cpu", enabled=False):
            return func(*args, **kwargs)


@contextlib.contextmanager
def fused_norms() -> Iterator[None]:
    """`rms_norm` as one op, of plain tensors; those that are made of others go their own way."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    apart, plain = torch.rms_norm, (torch.Tensor, torch.nn.Parameter, FakeTensor)

    def normed(
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        given = [one for one in (input, weight) if one is not None]
        if not all(type(one) in plain for one in given):
            return apart(input, normalized_shape, weight, eps)
        return _fused_norm()(input, list(normalized_shape), weight, eps)[0]

    with mock.patch.object(torch, "rms_norm", normed):
        yield


@functools.cache
def _fused_norm() -> CustomOpDef:
    """The op with its gradient, known to PyTorch once."""
    import torch

    forward, backward = own_ops(_NORM)

    @forward.register_fake
    def _(input: Tensor, normalized_shape: list[int], *_: object) -> Tensors:
        rows = input.shape[: input.dim() - len(normalized_shape)]
        sums = input.new_empty((*rows, *[1] * len(normalized_shape)), dtype=torch.float32)
        return torch.empty_like(input), sums

    @backward.register_fake
    def _(
        gradient: Tensor,
        input: Tensor,
        normalized_shape: list[int],
        _: object,
        weight: Tensor | None,
    ) -> Tensors:
        scale = input.new_empty(0) if weight is None else torch.empty_like(weight)
        return torch.empty_like(input), scale

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)  # of what nobody reads
        input, ctx.shape, weight, _ = inputs
        ctx.save_for_backward(input, output[1], *(() if weight is None else (weight,)))

    def gradients(ctx: Any, gradient: Tensor, _: object) -> Any:
        input, rstd, *weight = ctx.saved_tensors
        own, scale = backward(gradient, input, ctx.shape, rstd, *(weight or (None,)))
        return own, None, scale if weight else None, None

    forward.register_autograd(gradients, setup_context=keep)
    return forward


@contextlib.contextmanager
def fused_drops() -> Iterator[None]:
    """`dropout` as one op, also where modules of PyTorch call it, and in attention; attention with
    a mask that is learned as one op, too, of which GPUs' kernels have the gradient.
    """
    import torch

    class Learned(torch.autograd.Function):
        """A result that a mask has a part in; its gradient comes with the attention's."""

        @staticmethod
        def forward(ctx: Any, out: Tensor, mask: Tensor) -> Tensor:
            ctx.like = mask
            return out.view_as(out)  # another tensor, as autograd asks

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensors:
            return gradient, torch.empty_like(ctx.like)

    functional = torch.nn.functional
    apart, attend = torch.dropout, functional.scaled_dot_product_attention

    def dropped(input: Tensor, p: float, train: bool) -> Tensor:
        if train and 0.0 < p < 1.0:
            return torch.native_dropout(input, p, True)[0]
        return apart(input, p, train)

    def attended(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, *args: Any, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        del dropout_p
        if attn_mask is None or not attn_mask.requires_grad:
            return attend(query, key, value, attn_mask, 0.0, *args, **kwargs)
        out = attend(query, key, value, attn_mask.detach(), 0.0, *args, **kwargs)
        return Learned.apply(out, attn_mask.expand(*query.shape[:-1], key.shape[-2]))

    with (
        mock.patch.object(torch, "dropout", dropped),
        mock.patch.object(torch._VF, "dropout", dropped, create=True),
        mock.patch.object(functional, "scaled_dot_product_attention", attended),
    ):
        yield


@contextlib.contextmanager
def flex_attended() -> Iterator[None]:
    """`flex_attention` as one op, wherever its tensors are."""
    from torch.nn.attention import flex_attention as module

    def attended(
        query: Tensor, key: Tensor, value: Tensor, _: object, mask: Sequence[Any], *others: object
    ) -> Tensors:
        share = _share(mask[_MASK_AT], query.shape[-2], key.shape[-2])
        out, logs = _flex()(query, key, value, share)
        return out, logs, logs

    with mock.patch.multiple(
        module, flex_attention_hop=attended, _validate_device=lambda *_: None,
        _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=True,
    ):  # fmt: skip
        yield


def _share(mask: Callable, queries: int, keys: int) -> float:
    """Of all pairs, those that a mask keeps; all of them where it reads tensors without memory."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), unset_fake_temporarily(), torch._C.DisableTorchFunction():
        zero = torch.zeros((), dtype=torch.long)
        rows, columns = (
            torch.linspace(0, size - 1, min(size, _GRID)).round().long() for size in (queries, keys)
        )
        try:
            kept = mask(zero, zero, rows[:, None], columns[None, :])
        except Exception:
            return 1.0
        if not isinstance(kept, torch.Tensor) or type(kept) is not torch.Tensor:
            return 1.0
        return float(kept.broadcast_to(len(rows), len(columns)).float().mean())


@functools.cache
def _flex() -> CustomOpDef:
    """The op with its gradient, known to PyTorch once."""
    import torch

    forward, backward = own_ops(_FLEX)

    @forward.register_fake
    def _(query: Tensor, key: Tensor, value: Tensor, share: float) -> Tensors:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        return out, query.new_empty(query.shape[:-1], dtype=torch.float32)

    @backward.register_fake
    def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object) -> Tensors:
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)  # of what nobody reads
        *tensors, ctx.share = inputs
        ctx.save_for_backward(*tensors, *output)

    def gradients(ctx: Any, gradient: Tensor, *_: object) -> Any:
        return *backward(gradient, *ctx.saved_tensors, ctx.share), None

    forward.register_autograd(gradients, setup_context=keep)
    return forward
