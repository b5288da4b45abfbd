"""Processes that PyTorch joins on CPUs, by gloo: the collectives of `torch.distributed` between
them, as DDP, FSDP2 and a user's own program call them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from hybridperf_calibration.microbench import machine
from hybridperf_calibration.microbench.collective_cases import CollectiveCase
from hybridperf_calibration.microbench.collectives import INITIALIZE_S, Job


class TorchTeam(Job):
    """All processes of a job, in the default process group."""

    platform = "cpu"

    def __init__(self, coordinator: str, processes: int, rank: int) -> None:
        """Join the job, when all are there; `coordinator` is rank 0's "host:port"."""
        torch.set_num_threads(machine.cores_available())
        host, _, port = coordinator.rpartition(":")
        wait = timedelta(seconds=INITIALIZE_S)
        store = dist.TCPStore(host, int(port), processes, rank == 0, timeout=wait)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
        self.n, self.rank, self.clock = processes, rank, machine.clock()
        self._one = torch.ones(1)

    def barrier(self) -> None:
        dist.all_reduce(self._one)

    def exchange(self, numbers: Sequence[float]) -> np.ndarray:
        mine = torch.tensor(list(numbers), dtype=torch.float32)
        everyone = [torch.empty_like(mine) for _ in range(self.n)]
        dist.all_gather(everyone, mine)
        return torch.stack(everyone).double().numpy()

    def prepared(self, case: CollectiveCase) -> tuple[Callable[[], None], str]:
        x, y = torch.ones(case.items_in), torch.ones(case.items_out)
        call = _CALLS[case.collective]

        def run() -> None:
            for _ in range(case.chained):
                call(x, y)

        return run, ""

    def library(self) -> str:
        return "gloo(torch)"

    def version(self) -> str:
        return torch.__version__


def _ring(x: torch.Tensor, y: torch.Tensor) -> None:
    """To the next rank, from the one before."""
    n, rank = dist.get_world_size(), dist.get_rank()
    sent = dist.isend(x, (rank + 1) % n)
    dist.recv(y, (rank - 1) % n)
    if sent is not None:
        sent.wait()


# FSDP2 and tensors of DTensor gather and scatter into one buffer
_CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "all_reduce": lambda x, y: dist.all_reduce(x),
    "all_gather": lambda x, y: dist.all_gather_into_tensor(y, x),
    "reduce_scatter": lambda x, y: dist.reduce_scatter_tensor(y, x),
    "alltoall": lambda x, y: dist.all_to_all_single(y, x),
    "sendrecv": _ring,
    "broadcast": lambda x, y: dist.broadcast(x, 0),
    "reduce": lambda x, y: dist.reduce(x, 0),
}
