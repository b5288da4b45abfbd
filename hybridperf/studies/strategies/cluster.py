"""A cluster of two levels, and our cost model of its collectives: stage by stage, times added.

g GPUs inside a node at B_i bytes/s each, N nodes at B_e bytes/s per GPU across them, n = g N. Of an
array of S bytes:

    all-reduce    inside 2 (g-1)/g S/B_i, across 2 (N-1)/N S/B_e; both: reduce-scatter inside,
                  all-reduce of S/g across, all-gather inside
    all-gather    inside (g-1)/g S/B_i, across (N-1)/N S/B_e; both: of S/g across, then inside;
                  reduce-scatter the other way round
    all-to-all    inside and across as all-gather; both: (g-1)/n S inside, (n-g)/n S across

Each stage also takes its level's latency. Times of levels thus add: a mean of bandwidths
(`mad_max.py`) lets a fast inside make up for a slow network, which it cannot.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

from hybridperf.hardware import DeviceSpec, SystemSpec
from hybridperf.io import InputError
from hybridperf.studies.strategies.layer import Layer

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Levels = tuple[str, ...]
INSIDE, ACROSS = "inside", "across"
BOTH: Levels = (INSIDE, ACROSS)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster of equal GPUs by the rates that they achieve, not their datasheet's."""

    gpus_per_node: int
    nodes: int
    flops_per_s: float  # of a GPU
    memory_bytes_per_s: float  # of a GPU
    inside_bytes_per_s: float  # of a GPU to others of its node, one direction
    across_bytes_per_s: float  # of a GPU to other nodes: its share of the network cards
    capacity_bytes: float = float("inf")  # memory of a GPU
    inside_latency_s: float = 0.0  # of a message inside a node
    across_latency_s: float = 0.0  # of a message between nodes

    def __post_init__(self) -> None:
        links = (self.inside_bytes_per_s, self.across_bytes_per_s)
        rates = (self.flops_per_s, self.memory_bytes_per_s, *links)
        if self.gpus_per_node < 1 or self.nodes < 1 or min(rates) <= 0:
            got = f"{self.nodes} nodes of {self.gpus_per_node}, rates {rates}"
            raise InputError(f"a cluster has 1 or more nodes and GPUs and rates above 0, got {got}")

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes

    def ranks(self, levels: Levels) -> int:
        """GPUs that a group over some levels has."""
        inside, across = INSIDE in levels, ACROSS in levels
        return (self.gpus_per_node if inside else 1) * (self.nodes if across else 1)

    @staticmethod
    def of_system(
        system: SystemSpec, device: DeviceSpec, nodes: int, dtype: str, *, compute: float,
        memory: float, inside: float, across: float,
    ) -> Cluster:  # fmt: skip
        """A known system at shares of its datasheet's peak and bandwidths."""
        return Cluster(
            system.accelerators_per_node, nodes, compute * device.peak(dtype, "matrix"),
            memory * device.memory_bytes_per_s, inside * system.intra_bytes_per_s,
            across * system.share_bytes_per_s, device.memory_bytes, system.latency_s,
            system.latency_s,
        )  # fmt: skip


class CostModel(Protocol):
    """Seconds of computation and messages on a cluster."""

    @property
    def cluster(self) -> Cluster: ...

    def compute_s(self, layer: Layer, samples: float, backward: bool) -> float:
        """One unit's matrices and lookups of a GPU's samples."""
        ...

    def collective_s(self, kind: Collective, size: float, levels: Levels) -> float:
        """One collective of `size` bytes, whole array, over a group of some levels."""
        ...

    def exchange_s(self, layer: Layer, samples: float, levels: Levels) -> float:
        """The all-to-all between tables and a GPU's samples; or of their gradients, back."""
        ...


@dataclasses.dataclass(frozen=True)
class StageAdditive:
    """Cost model of layers on a cluster: collectives run in stages, inside nodes and across.

    A backward pass takes twice the FLOPs of matrices and bytes of looked-up rows.
    """

    cluster: Cluster

    def compute_s(self, layer: Layer, samples: float, backward: bool) -> float:
        times = 2 if backward else 1
        matrices_s = layer.flops * samples / self.cluster.flops_per_s
        return times * (matrices_s + layer.read_bytes * samples / self.cluster.memory_bytes_per_s)

    def exchange_s(self, layer: Layer, samples: float, levels: Levels) -> float:
        return self.collective_s("all_to_all", layer.output_bytes * samples, levels)

    def collective_s(self, kind: Collective, size: float, levels: Levels) -> float:
        g, n = (self.cluster.ranks((level,)) if level in levels else 1 for level in BOTH)
        if kind == "all_reduce":
            if g == 1 or n == 1:
                return 2 * (self._inside_s(size, g) + self._across_s(size, n))
            return 2 * (self._inside_s(size, g) + self._across_s(size / g, n))
        if kind == "all_to_all":
            return self._inside_s(size / n, g) + self._across_s(size, n)
        return self._inside_s(size, g) + self._across_s(size / g, n)

    def _inside_s(self, size: float, ranks: int) -> float:
        return _stage_s(size, ranks, self.cluster.inside_bytes_per_s, self.cluster.inside_latency_s)

    def _across_s(self, size: float, ranks: int) -> float:
        return _stage_s(size, ranks, self.cluster.across_bytes_per_s, self.cluster.across_latency_s)


def _stage_s(size: float, ranks: int, bytes_per_s: float, latency_s: float) -> float:
    """Seconds until each of some ranks has sent all parts of its array but its own."""
    return 0.0 if ranks == 1 or size <= 0 else latency_s + (ranks - 1) / ranks * size / bytes_per_s
