"""A process group that sends nothing, for programs of many ranks on one machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from hybridperf.io import InputError
from hybridperf.workloads.torch.replicas import reduced_by_hooks
from hybridperf.workloads.torch.stages import stages_alone


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
    made = DeviceMesh.__init__

    def here(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        made(self, "cpu", *args, **kwargs)

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with (
            mock.patch.object(DeviceMesh, "__init__", here), reduced_by_hooks(), stages_alone()
        ):  # fmt: skip
            yield
    finally:
        dist.destroy_process_group()
