"""A cluster of two levels, and what prices layers and messages on it: the protocol of such
a law, and ours (`Priced`), by which they cost what those of any other workload do.

Messages are of a group over some levels: of a node's GPUs (inside), of one GPU of each node
(across), or of all.
"""

import dataclasses
from typing import Literal, Protocol, Self

from hybridperf.collectives.fit import fit_collectives
from hybridperf.collectives.model import find_collectives, load_collectives
from hybridperf.hardware import DeviceSpec, SystemSpec
from hybridperf.io import InputError
from hybridperf.model import PerfModel, is_shipped, load_model
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.model.fit.device import fit
from hybridperf.model.step_table import row_seconds
from hybridperf.ops import OpCall
from hybridperf.studies.strategies.layer import Layer

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Levels = tuple[str, ...]
INSIDE, ACROSS = "inside", "across"
BOTH: Levels = (INSIDE, ACROSS)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster of equal GPUs; of a paper's law by the rates that they achieve."""

    gpus_per_node: int
    nodes: int
    flops_per_s: float  # of a GPU
    memory_bytes_per_s: float  # of a GPU
    inside_bytes_per_s: float  # of a GPU to others of its node, one direction
    across_bytes_per_s: float  # of a GPU to other nodes: its share of the network cards
    capacity_bytes: float = float("inf")  # memory of a GPU

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

    @classmethod
    def of_system(
        cls, system: SystemSpec, device: DeviceSpec, nodes: int, dtype: str, *,
        compute: float = 1.0, memory: float = 1.0, inside: float = 1.0, across: float = 1.0,
    ) -> Self:  # fmt: skip
        """A known system at shares of its datasheet's peak and bandwidths."""
        return cls(
            system.accelerators_per_node, nodes, compute * device.peak(dtype, "matrix"),
            memory * device.memory_bytes_per_s, inside * system.intra_bytes_per_s,
            across * system.share_bytes_per_s, device.memory_bytes,
        )  # fmt: skip


class CostModel(Protocol):
    """Seconds of computation and messages on a cluster."""

    @property
    def cluster(self) -> Cluster: ...

    def compute_s(self, layer: Layer, samples: float, backward: bool, parts: int = 1) -> float:
        """One unit's matrices and lookups of a GPU's samples; of so many GPUs' where each computes
        one of as many parts of the unit."""
        ...

    def collective_s(self, kind: Collective, size: float, levels: Levels) -> float:
        """One collective of `size` bytes, whole array, over a group of some levels."""
        ...

    def exchange_s(self, layer: Layer, samples: float, levels: Levels) -> float:
        """The all-to-all between tables and a GPU's samples; or of their gradients, back."""
        ...


@dataclasses.dataclass(frozen=True)
class Priced:
    """Cost model of layers on a cluster by a calibrated machine (`hp.load_model`, `hp.fit`)."""

    model: PerfModel  # with the collectives of its system
    cluster: Cluster
    _known: dict[Call, float] = dataclasses.field(default_factory=dict, repr=False)

    @classmethod
    def of_system(cls, system: SystemSpec, device: DeviceSpec, nodes: int, dtype: str) -> Self:
        """A known system, by its calibration or by what measured machines say of it."""
        cluster = Cluster.of_system(system, device, nodes, dtype)
        return cls(_machine(system, device), cluster)

    def compute_s(self, layer: Layer, samples: float, backward: bool, parts: int = 1) -> float:
        if layer.ops is None:
            raise InputError(
                f"expected a layer whose ops are known, got {layer.name!r} of sizes alone; give"
                " `ops`, or take the law of mad-max"
            )
        return sum(self._seconds(OpCall(op)) for op in layer.ops(samples, parts, backward))

    def exchange_s(self, layer: Layer, samples: float, levels: Levels) -> float:
        return self.collective_s("all_to_all", layer.output_bytes * samples, levels)

    def collective_s(self, kind: Collective, size: float, levels: Levels) -> float:
        ranks = self.cluster.ranks(levels)
        if ranks == 1 or size <= 0:
            return 0.0
        name = "alltoall" if kind == "all_to_all" else kind
        nodes = self.cluster.nodes if ACROSS in levels else 1
        return self._seconds(CollectiveCall(name, float(size), ranks, nodes))

    def _seconds(self, call: Call) -> float:
        if call not in self._known:
            self._known[call] = float(row_seconds(self.model, [call])[0])
        return self._known[call]


def _machine(system: SystemSpec, device: DeviceSpec) -> PerfModel:
    model = load_model(device.id) if is_shipped(device.id) else fit(None, device)[0]
    known = find_collectives(system.id) is not None
    return model.with_collectives(
        load_collectives(system.id) if known else fit_collectives(None, system)[0]
    )
