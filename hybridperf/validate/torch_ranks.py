"""Eight training steps that two processes share, each with its own part of a batch: replicated by
DistributedDataParallel, or sharded by FSDP2 layer by layer.

Their modules are those of `torch_steps.py`, a few sizes apart: functions that return what `predict
--torch` takes, and that are called where a process group is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hybridperf.validate import torch_steps
from hybridperf.validate.torch_steps import Made


def replicated_mlp() -> Made:
    return _replicated(torch_steps.mlp())


def replicated_cnn() -> Made:
    return _replicated(torch_steps.cnn())


def replicated_resnet() -> Made:
    """Its norms have buffers, which the first rank sends before each step."""
    module, args, _ = torch_steps.resnet()
    return _replicated((module, args, torch.optim.SGD))


def replicated_gpt() -> Made:
    """With gradients in the buckets themselves."""
    return _replicated(torch_steps.gpt(), gradient_as_bucket_view=True)


def sharded_mlp() -> Made:
    module, args, optimizer = torch_steps.mlp()
    return _sharded(module, module.layers[::2]), args, optimizer


def sharded_gpt() -> Made:
    module, args, optimizer = torch_steps.gpt()
    return _sharded(module, module.layers), args, optimizer


def sharded_autoencoder() -> Made:
    module, args, optimizer = torch_steps.autoencoder()
    return _sharded(module, module.layers[::2]), args, optimizer


def sharded_lstm() -> Made:
    """As a whole."""
    module, args, optimizer = torch_steps.lstm()
    return _sharded(module, ()), args, optimizer


def _replicated(made: Made, **options: Any) -> Made:
    module, args, optimizer = made
    return DistributedDataParallel(module, **options), args, optimizer


def _sharded(module: nn.Module, layers: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for one in layers:
        fully_shard(one, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module
