"""A place for state that is not on the GPU, as one GPU sees it when all of its node use theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
    gpus_per_node: int,
    link_bytes_per_s: float,
    *,
    cpu_bytes: float,
    cpu_bytes_per_s: float | None = None,
    nvme_bytes: float = 0.0,
    nvme_bytes_per_s: float = 0.0,
) -> tuple[Tier, ...]:
    """Shares of a node's CPU memory and NVMe drives.

    Bytes and bandwidths are the node's, `link_bytes_per_s` (between the CPU and a GPU) one GPU's.
    What lies on NVMe passes CPU memory and the link on its way. `cpu_bytes_per_s` None: the links
    alone limit.
    """
    if gpus_per_node < 1:
        raise InputError(f"a node has 1 or more GPUs, got {gpus_per_node}")
    to_cpu = (
        link_bytes_per_s
        if cpu_bytes_per_s is None
        else min(link_bytes_per_s, cpu_bytes_per_s / gpus_per_node)
    )
    tiers = [Tier("CPU memory", cpu_bytes / gpus_per_node, to_cpu)]
    if nvme_bytes > 0:
        tiers.append(
            Tier("NVMe", nvme_bytes / gpus_per_node, min(to_cpu, nvme_bytes_per_s / gpus_per_node))
        )
    return tuple(tiers)


def system_tiers(
    system: SystemSpec,
    *,
    cpu_bytes: float,
    cpu_bytes_per_s: float | None = None,
    nvme_bytes: float = 0.0,
    nvme_bytes_per_s: float = 0.0,
) -> tuple[Tier, ...]:
    """The same of a known system's nodes and host links."""
    return node_tiers(
        system.accelerators_per_node,
        system.host_link_bytes_per_s,
        cpu_bytes=cpu_bytes,
        cpu_bytes_per_s=cpu_bytes_per_s,
        nvme_bytes=nvme_bytes,
        nvme_bytes_per_s=nvme_bytes_per_s,
    )


def fastest_first(tiers: Sequence[Tier]) -> list[Tier]:
    return sorted(tiers, key=lambda tier: -tier.bytes_per_s)
