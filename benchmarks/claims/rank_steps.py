"""Eight steps of PyTorch that processes share, each with its own part of a batch: replicated by
DistributedDataParallel, or sharded by FSDP2 layer by layer; called where a process group is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hybridperf.validate import torch_steps


def replicated_mlp() -> torch_steps.Made:
    return _replicated(torch_steps.mlp())


def replicated_cnn() -> torch_steps.Made:
    return _replicated(torch_steps.cnn())


def replicated_resnet() -> torch_steps.Made:
    """Its norms have buffers, which the first rank sends before each step."""
    module, args, _ = torch_steps.resnet()
    return _replicated((module, args, torch.optim.SGD))


def replicated_gpt() -> torch_steps.Made:
    """With gradients in the buckets themselves."""
    return _replicated(torch_steps.gpt(), gradient_as_bucket_view=True)


def sharded_mlp() -> torch_steps.Made:
    module, args, optimizer = torch_steps.mlp()
    return _sharded(module, module.layers[::2]), args, optimizer


def sharded_gpt() -> torch_steps.Made:
    module, args, optimizer = torch_steps.gpt()
    return _sharded(module, module.layers), args, optimizer


def sharded_autoencoder() -> torch_steps.Made:
    module, args, optimizer = torch_steps.autoencoder()
    return _sharded(module, module.layers[::2]), args, optimizer


def sharded_lstm() -> torch_steps.Made:
    """An LSTM whose parameters are sharded as a whole."""
    module, args, optimizer = torch_steps.lstm()
    return _sharded(module, ()), args, optimizer


def _replicated(made: torch_steps.Made, **options: Any) -> torch_steps.Made:
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
