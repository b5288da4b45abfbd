"""A place for state that is not on the GPU, as one GPU sees it when all of its node use theirs."""

from __future__ import annotations

import dataclasses

from hybridperf.hardware import SystemSpec
from hybridperf.io import InputError


@dataclasses.dataclass(frozen=True)
class Tier:
    """One GPU's share of a memory."""

    name: str
    bytes: float
    bytes_per_s: float  # to and from the GPU, not both at a time

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
    """A GPU's shares of its node's CPU memory and NVMe drives.

    Args:
        gpus_per_node: GPUs that share them.
        link_bytes_per_s: between the CPU and one GPU.
        cpu_bytes: of the node.
        cpu_bytes_per_s: of the node's CPU memory; None: the links alone limit.
        nvme_bytes: of the node's drives.
        nvme_bytes_per_s: of the node's drives, whose data passes CPU memory and the link.
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
    system: SystemSpec, *, cpu_bytes: float, cpu_bytes_per_s: float | None = None,
    nvme_bytes: float = 0.0, nvme_bytes_per_s: float = 0.0,
) -> tuple[Tier, ...]:  # fmt: skip
    """`node_tiers` of a known system's nodes and host links."""
    return node_tiers(
        system.accelerators_per_node, system.host_link_bytes_per_s, cpu_bytes=cpu_bytes,
        cpu_bytes_per_s=cpu_bytes_per_s, nvme_bytes=nvme_bytes, nvme_bytes_per_s=nvme_bytes_per_s,
    )  # fmt: skip
