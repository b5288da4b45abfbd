"""Processes that PyTorch joins, on CPUs by gloo, on GPUs (one each) by NCCL or RCCL: collectives of
`torch.distributed` between them, as DDP, FSDP2 and a user's own program call them.

On a GPU a call is waited for until the device is done with it, and what such a call takes in which
ranks do not meet (a kernel of one number) is taken off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from hybridperf_calibration.microbench import machine
from hybridperf_calibration.microbench.collective_cases import CollectiveCase
from hybridperf_calibration.microbench.collectives import DISPATCH_CALLS, INITIALIZE_S, Job


class TorchTeam(Job):
    """All processes of a job, in the default process group."""

    def __init__(
        self, coordinator: str, processes: int, rank: int, local_device: int | None = None
    ) -> None:
        """Join the job, when all are there.

        Args:
            coordinator: rank 0's "host:port".
            processes: of the job.
            rank: of this one.
            local_device: number of its GPU; None: the CPU.
        """
        torch.set_num_threads(machine.cores_available())
        on_gpu = local_device is not None
        self.platform = "gpu" if on_gpu else "cpu"
        self._device = torch.device("cpu" if local_device is None else f"cuda:{local_device}")
        if on_gpu:
            torch.cuda.set_device(self._device)
        host, _, port = coordinator.rpartition(":")
        wait = timedelta(seconds=INITIALIZE_S)
        store = dist.TCPStore(host, int(port), processes, rank == 0, timeout=wait)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=processes
        )
        self.n, self.rank, self.clock = processes, rank, machine.clock(not on_gpu)
        self._one = torch.ones(1, device=self._device)
        self.barrier()  # connects them
        self.dispatch_s = self._empty_call_s() if on_gpu else 0.0

    def barrier(self) -> None:
        dist.all_reduce(self._one)
        self._wait()

    def _wait(self) -> None:
        """Until the device has done all it was given."""
        if self.platform == "gpu":
            torch.cuda.synchronize()

    def _empty_call_s(self) -> float:
        """A kernel of one number, from its launch to its end."""
        calls_s = []
        for _ in range(DISPATCH_CALLS):
            start_s = time.perf_counter()
            self._one.fill_(1.0)
            self._wait()
            calls_s.append(time.perf_counter() - start_s)
        return float(self.exchange([np.median(calls_s)]).min())

    def exchange(self, numbers: Sequence[float]) -> np.ndarray:
        mine = torch.tensor(list(numbers), dtype=torch.float32, device=self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.n)]
        dist.all_gather(everyone, mine)
        return torch.stack(everyone).double().cpu().numpy()

    def prepared(self, case: CollectiveCase) -> tuple[Callable[[], None], str]:
        x, y = (torch.ones(items, device=self._device) for items in (case.items_in, case.items_out))
        call = _CALLS[case.collective]

        def run() -> None:
            for _ in range(case.chained):
                call(x, y)
            self._wait()

        return run, ""

    def library(self) -> str:
        if self.platform == "cpu":
            return "gloo(torch)"
        return "rccl(torch)" if torch.version.hip else "nccl(torch)"

    def version(self) -> str:
        return torch.__version__


def _ring(x: torch.Tensor, y: torch.Tensor) -> None:
    """To the next rank, from the one before; NCCL wants both at once."""
    n, rank = dist.get_world_size(), dist.get_rank()
    both = [
        dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)
    ]  # fmt: skip
    for one in dist.batch_isend_irecv(both):
        one.wait()


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
