"""What `DistributedDataParallel` does to a program, by hooks: its reducer is not written in Python
and needs memory.

Gradients are put into buckets as they come, the first of 1 MiB and the others of `bucket_cap_mb`
(25), each bucket is reduced beside the backward pass as soon as it is full, and gradients are taken
out again when all are there (torch/nn/parallel/distributed.py; `gradient_as_bucket_view`: they lie
in the buckets from the beginning).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

_MIB = 2**20
_FIRST_MIB, _CAP_MIB = 1, 25


@contextlib.contextmanager
def reduced_by_hooks() -> Iterator[None]:
    """`DistributedDataParallel` as a module whose gradients are reduced in buckets."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as Replicated

    def init(
        self: Any, module: Any, *args: Any, process_group: Any = None,
        bucket_cap_mb: float | None = None, gradient_as_bucket_view: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        torch.nn.Module.__init__(self)
        self.module, self.require_backward_grad_sync = module, True
        buckets = _Buckets(self, process_group, bucket_cap_mb or _CAP_MIB, gradient_as_bucket_view)
        for one in module.parameters():
            if one.requires_grad:
                one.register_post_accumulate_grad_hook(buckets.add)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def train(self: Any, mode: bool = True) -> Any:
        return torch.nn.Module.train(self, mode)

    methods: dict[str, Any] = {"__init__": init, "forward": forward, "train": train}
    with mock.patch.multiple(Replicated, **methods):
        yield


class _Buckets:
    """Gradients that wait for their bucket to be full, and buckets on their way."""

    def __init__(self, module: Any, group: Any, cap_mib: float, views: bool):
        self.module, self.group, self.cap_mib, self.views = module, group, cap_mib, views
        self.waiting: list[Any] = []
        self.sent: list[tuple[Any, list[Any]]] = []
        self.begun = False

    def add(self, parameter: Any) -> None:
        """A gradient is there."""
        import torch

        if not self.module.require_backward_grad_sync:
            return
        if not self.begun:
            self.begun = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self.waiting.append(parameter.grad)
        full_mib = self.cap_mib if self.sent else min(_FIRST_MIB, self.cap_mib)
        if sum(one.numel() * one.element_size() for one in self.waiting) >= full_mib * _MIB:
            self._send()

    def _send(self) -> None:
        import torch

        if self.waiting:
            size = sum(one.numel() for one in self.waiting)
            bucket = self.waiting[0].new_empty(size)
            if not self.views:
                torch.cat([one.reshape(-1) for one in self.waiting], out=bucket)
            bucket.div_(torch.distributed.get_world_size(self.group))
            torch.distributed.all_reduce(bucket, group=self.group, async_op=True)
            self.sent.append((bucket, self.waiting))
            self.waiting = []

    def _end(self) -> None:
        self._send()
        for bucket, gradients in self.sent:
            parts = bucket.split([one.numel() for one in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                if self.views:
                    gradient.set_(part.view_as(gradient))
                else:
                    gradient.copy_(part.view_as(gradient))
        self.sent, self.begun = [], False
