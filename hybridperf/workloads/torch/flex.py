"""FlexAttention: attention whose mask and scores are functions of a user's own.

On GPUs it is one kernel that skips blocks that the mask leaves out (Dong et al., "Flex Attention: A
Programming Model for Generating Optimized Attention Kernels", 2024, section 3). Here it is an op of
ours, recorded as any other, with the share of pairs that the mask keeps: its function is evaluated
on a grid of positions. What a function does to scores costs nothing beside the products.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

_SCHEMAS = {
    "hybridperf::flex_attention": "(Tensor q, Tensor k, Tensor v, float share) -> (Tensor, Tensor)",
    "hybridperf::flex_attention_backward": (
        "(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logs, float share)"
        " -> (Tensor, Tensor, Tensor)"
    ),
}
_GRID = 256  # positions along queries and keys that a mask is asked for
_MASK_AT = -1  # among what a block mask is made of


@contextlib.contextmanager
def flex_attended() -> Iterator[None]:
    """`flex_attention` as one op, wherever its tensors are."""
    from torch.nn.attention import flex_attention as module

    def attended(query: Any, key: Any, value: Any, _: Any, mask: Any, *others: Any) -> Any:
        share = _share(mask[_MASK_AT], query.shape[-2], key.shape[-2])
        out, logs = _op()(query, key, value, share)
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
def _op() -> Any:
    """The op with its gradient, known to PyTorch once."""
    import torch

    def unseen(*_: Any) -> Any:
        raise NotImplementedError("this op is for tensors without memory")

    forward, backward = (
        torch.library.custom_op(name, unseen, mutates_args=(), schema=schema)
        for name, schema in _SCHEMAS.items()
    )

    @forward.register_fake
    def _(query: Any, key: Any, value: Any, share: float) -> Any:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        return out, query.new_empty(query.shape[:-1], dtype=torch.float32)

    @backward.register_fake
    def _(gradient: Any, query: Any, key: Any, value: Any, *_: Any) -> Any:
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)  # of what nobody reads
        *tensors, ctx.share = inputs
        ctx.save_for_backward(*tensors, *output)

    def gradients(ctx: Any, gradient: Any, *_: Any) -> Any:
        return *backward(gradient, *ctx.saved_tensors, ctx.share), None

    forward.register_autograd(gradients, setup_context=keep)
    return forward
