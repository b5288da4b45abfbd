"""Programs of many ranks on one machine: a process group that sends nothing, what
`DistributedDataParallel` does, and pipeline stages of which one rank's run and the others are not
there.

DDP, by hooks, since its reducer is not written in Python and needs memory: parameters are dealt
into buckets from the last to the first, by number format, the first bucket of 1 MiB and the others
of `bucket_cap_mb` (25). A gradient is divided as it is copied into its bucket; a bucket that is
full, as all before it, is reduced beside the backward pass; gradients are copied back when all are
there (`gradient_as_bucket_view`: they lie in the buckets). Before a forward pass the first rank's
buffers are sent to all (torch/csrc/distributed/c10d/reducer.cpp, torch/nn/parallel/distributed.py).

Stages (`torch.distributed.pipelining`): before its first step a schedule asks along the pipeline
what they send one another (torch/distributed/pipelining/stage.py, `_warmup_forward_vote`,
`_send_meta`, `_recv_meta`). Here the rank answers for itself: gradients are like the results they
are of, and what a later stage of the same rank is sent is like what its first one sends.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from hybridperf.io import InputError
from hybridperf.workloads.own import user_line

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.futures import Future
    from torch.nn import Module


@contextlib.contextmanager
def process_group(ranks: int) -> Iterator[None]:
    """A group of so many ranks, of which this process is the first, that sends nothing.

    Raises:
        InputError: another group is there already.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise InputError(
            "expected no process group, got one: hp.without_memory(ranks=...) makes its own; call"
            " torch.distributed.destroy_process_group() first"
        )
    from torch.distributed.fsdp import CPUOffloadPolicy

    made = DeviceMesh.__init__

    def here(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        made(self, "cpu", *args, **kwargs)

    def offloaded(*_: object, **__: object) -> None:
        raise InputError(
            f"{user_line()}: CPUOffloadPolicy copies between host and GPU, which is not followed;"
            " leave it out of the step"
        )

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with (
            mock.patch.object(DeviceMesh, "__init__", here),
            mock.patch.object(CPUOffloadPolicy, "__init__", offloaded),
            reduced_by_hooks(),
            stages_alone(),
        ):
            yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def stages_alone() -> Iterator[None]:
    """Schedules that ask nobody what their stages send."""
    from torch.distributed.pipelining import schedules, stage
    from torch.distributed.pipelining._utils import InferenceMode

    sent: list[object] = []  # descriptions of results

    def asked(_: object, stages: Sequence[Any], has_backward: bool, p2p_done: bool) -> None:
        open_ = any(InferenceMode.needs_dynamic(one._user_meta, has_backward) for one in stages)
        for one in stages:
            one._inference_mode = InferenceMode.DYNAMIC if open_ else InferenceMode.STATIC

    def received(self: Any, source: int) -> Any:
        if source > self.stage_index:
            gradients = stage._derive_grad_metas(self._stage_meta.outputs)
            return stage._StageBackwardMeta(backward_metas=gradients)
        if not sent:
            raise InputError(
                f"expected what stage {self.stage_index} of a pipeline is sent, which another rank"
                " knows: give it as PipelineStage(..., input_args=..., output_args=...)"
            )
        return sent[0]

    def send(_: object, description: object, target: int) -> None:
        if isinstance(description, stage._StageForwardMeta):
            sent.append(description)

    with (
        mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", asked),
        mock.patch.multiple(stage.PipelineStage, _recv_meta=received, _send_meta=send),
    ):
        yield


_MIB = 2**20
_FIRST_MIB, _CAP_MIB = 1, 25


@contextlib.contextmanager
def reduced_by_hooks() -> Iterator[None]:
    """`DistributedDataParallel` as a module whose gradients are reduced in buckets."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as Replicated

    def init(
        self: Any, module: Module, *args: Any, process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None, gradient_as_bucket_view: bool = False,
        broadcast_buffers: bool = True, **kwargs: Any,
    ) -> None:  # fmt: skip
        torch.nn.Module.__init__(self)
        self.module, self.require_backward_grad_sync = module, True
        self.process_group, self.broadcast_buffers = process_group, broadcast_buffers
        buckets = _Buckets(self, bucket_cap_mb or _CAP_MIB, gradient_as_bucket_view)
        for one in buckets.where:
            one.register_post_accumulate_grad_hook(buckets.add)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.broadcast_buffers and self.require_backward_grad_sync:
            _send_buffers([*self.module.buffers()], self.process_group)
        return self.module(*args, **kwargs)

    def hooked(self: Any, state: Any, hook: Any) -> None:
        self.__dict__["comm_hook"] = functools.partial(hook, state)

    def train(self: Any, mode: bool = True) -> Any:
        return torch.nn.Module.train(self, mode)

    methods: dict[str, Any] = {"__init__": init, "forward": forward, "train": train,
                               "register_comm_hook": hooked}  # fmt: skip
    with mock.patch.multiple(Replicated, **methods):
        yield


def _send_buffers(buffers: list[Tensor], group: ProcessGroup | None) -> None:
    """Those of a number format at once; a count of batches is a number that this process reads."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    for dtype in dict.fromkeys(one.dtype for one in buffers):
        of = [one for one in buffers if one.dtype == dtype]
        held = [one for one in of if isinstance(one, FakeTensor)]
        with torch.no_grad():
            if not held:
                sent = torch.empty(len(of), dtype=dtype)
                torch.distributed.broadcast(sent, 0, group=group)
                continue
            sent = torch.cat([one.reshape(-1) for one in held])
            torch.distributed.broadcast(sent, 0, group=group)
            for one, part in zip(held, sent.split([one.numel() for one in held]), strict=True):
                one.copy_(part.view_as(one))


class _Done:
    """A message that a hook waits for; its future has what was reduced, a fake one has not."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def wait(self) -> None:
        pass

    def get_future(self) -> Future[list[Tensor]]:
        import torch

        made = torch.futures.Future[list["Tensor"]]()
        made.set_result([self.tensor])
        return made


def _reduced(tensor: Tensor, *args: Any, **kwargs: Any) -> _Done:
    import torch

    torch.distributed.distributed_c10d.all_reduce(tensor, *args, **kwargs)
    return _Done(tensor)


class _Bucket:
    """Gradients that are reduced together."""

    def __init__(self, parameters: list[Tensor]):
        sizes = [one.numel() for one in parameters]
        self.content = parameters[0].new_empty(sum(sizes), requires_grad=False)
        parts = zip(parameters, self.content.split(sizes), strict=True)
        self.views = {one: part.view_as(one) for one, part in parts}
        self.full: set[Any] = set()

    def buffer(self) -> Tensor:  # what hooks of a user's own ask of a bucket
        return self.content

    def gradients(self) -> list[Tensor]:
        return [*self.views.values()]

    def parameters(self) -> list[Tensor]:
        return [*self.views]


class _Buckets:
    """All of a module; `where`: the bucket of each parameter."""

    def __init__(self, module: Any, cap_mib: float, views: bool):
        self.module, self.views = module, views
        wanted = [one for one in module.parameters() if one.requires_grad]
        self.buckets: list[_Bucket] = []
        for dtype in dict.fromkeys(one.dtype for one in reversed(wanted)):
            self._deal([one for one in reversed(wanted) if one.dtype == dtype], cap_mib)
        self.where = {one: bucket for bucket in self.buckets for one in bucket.views}
        self.sent, self.begun = 0, False

    def _deal(self, parameters: list[Tensor], cap_mib: float) -> None:
        """Into buckets that end with the parameter which fills them."""
        of: list[Tensor] = []
        for one in parameters:
            of.append(one)
            full_mib = cap_mib if self.buckets else min(_FIRST_MIB, cap_mib)
            if sum(each.numel() * each.element_size() for each in of) >= full_mib * _MIB:
                self.buckets.append(_Bucket(of))
                of = []
        self.buckets += [_Bucket(of)] if of else []

    def add(self, parameter: Any) -> None:
        """Puts a gradient into its bucket and sends buckets that are full."""
        import torch

        if not self.module.require_backward_grad_sync:
            return
        if not self.begun:
            self.begun = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        bucket = self.where[parameter]
        ranks = torch.distributed.get_world_size(self.module.process_group)
        view, gradient = bucket.views[parameter], parameter.grad
        with torch.no_grad():
            if gradient.untyped_storage() is view.untyped_storage():
                view.div_(ranks)
            else:
                torch.mul(gradient, 1 / ranks, out=view)
        if self.views:
            parameter.grad = view
        bucket.full.add(parameter)
        ready = itertools.takewhile(lambda of: len(of.full) == len(of.views), self._unsent())
        for one in [*ready]:
            self._send(one)

    def _unsent(self) -> list[_Bucket]:
        return self.buckets[self.sent :]

    def _send(self, bucket: _Bucket) -> None:
        import torch

        if hook := vars(self.module).get("comm_hook"):
            with mock.patch.object(torch.distributed, "all_reduce", _reduced):
                hook(bucket).wait()
        else:
            group = self.module.process_group
            torch.distributed.all_reduce(bucket.content, group=group, async_op=True)
        self.sent += 1

    def _end(self) -> None:
        for bucket in self._unsent():  # of which some parameters have no gradient
            self._send(bucket)
        for bucket in self.buckets:
            for parameter in bucket.full if not self.views else ():
                parameter.grad.copy_(bucket.views[parameter])
            bucket.full.clear()
        self.sent, self.begun = 0, False
