"""A place for state that is not on the GPU, as one GPU sees it when all of its node use theirs."""

from __future__ import annotations

import dataclasses

from hybridperf.hardware import SystemSpec, load_system
from hybridperf.io import InputError


@dataclasses.dataclass(frozen=True)
class Tier:
    """One GPU's share of a memory beyond its own: CPU memory or NVMe drives."""

    name: str
    bytes: float  # capacity, of one GPU's share
    bytes_per_s: float  # bandwidth to or from the GPU, one direction at a time

    def __post_init__(self) -> None:
        if not (self.bytes >= 0 and self.bytes_per_s > 0):
            raise InputError(
                f"tier {self.name!r} needs 0 or more bytes and a bandwidth above 0, got"
                f" {self.bytes} bytes, {self.bytes_per_s} bytes/s"
            )


def node_tiers(
    gpus_per_node: int, link_bytes_per_s: float, *, cpu_bytes: float,
    cpu_bytes_per_s: float | None = None, nvme_bytes: float = 0.0, nvme_bytes_per_s: float = 0.0,
) -> tuple[Tier, ...]:  # fmt: skip
    """One GPU's shares of its node's CPU memory and NVMe drives, for `hp.offload`.

    Args:
        gpus_per_node: GPUs that share the node's memories.
        link_bytes_per_s: bandwidth between the CPU and one GPU.
        cpu_bytes: CPU memory of the node.
        cpu_bytes_per_s: bandwidth of the node's CPU memory; None: only the links limit.
        nvme_bytes: capacity of the node's drives; 0: none.
        nvme_bytes_per_s: bandwidth of the node's drives, whose data passes CPU memory and link.

    Raises:
        InputError: when there is no GPU, or a size or bandwidth is out of range.
    """
    if gpus_per_node < 1:
        raise InputError(f"a node has 1 or more GPUs, got {gpus_per_node}")
    to_cpu = link_bytes_per_s
    if cpu_bytes_per_s is not None:
        to_cpu = min(to_cpu, cpu_bytes_per_s / gpus_per_node)
    tiers = [Tier("CPU memory", cpu_bytes / gpus_per_node, to_cpu)]
    if nvme_bytes > 0:
        to_nvme = min(to_cpu, nvme_bytes_per_s / gpus_per_node)
        tiers.append(Tier("NVMe", nvme_bytes / gpus_per_node, to_nvme))
    return tuple(tiers)


def system_tiers(
    system: SystemSpec | str, *, cpu_bytes: float, cpu_bytes_per_s: float | None = None,
    nvme_bytes: float = 0.0, nvme_bytes_per_s: float = 0.0,
) -> tuple[Tier, ...]:  # fmt: skip
    """`node_tiers` with the GPUs per node and host links of a known system.

    Args:
        system: its name, a .toml file, or its facts (`hp.load_system`).
        cpu_bytes: CPU memory of a node.
        cpu_bytes_per_s: bandwidth of a node's CPU memory; None: only the links limit.
        nvme_bytes: capacity of a node's drives; 0: none.
        nvme_bytes_per_s: bandwidth of a node's drives.

    Raises:
        InputError: when nobody knows a system of that name, or a number is out of its range.
    """
    system = load_system(system) if isinstance(system, str) else system
    return node_tiers(
        system.accelerators_per_node, system.host_link_bytes_per_s, cpu_bytes=cpu_bytes,
        cpu_bytes_per_s=cpu_bytes_per_s, nvme_bytes=nvme_bytes, nvme_bytes_per_s=nvme_bytes_per_s,
    )  # fmt: skip
