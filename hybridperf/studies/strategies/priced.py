"""Our cost model of layers on a cluster: their ops and messages, priced as those of any other
workload.
"""

import dataclasses
from typing import Self

from hybridperf.collectives.fit import fit_collectives
from hybridperf.collectives.model import find_collectives, load_collectives
from hybridperf.hardware import DeviceSpec, SystemSpec
from hybridperf.io import InputError
from hybridperf.model import PerfModel, is_shipped, load_model
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.model.fit.device import fit
from hybridperf.model.step_table import row_seconds, step_table
from hybridperf.ops import OpCall
from hybridperf.studies.strategies.cluster import ACROSS, Cluster, Collective, Levels
from hybridperf.studies.strategies.layer import Layer


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
            self._known[call] = float(row_seconds(self.model, step_table(self.model, [call]))[0])
        return self._known[call]


def _machine(system: SystemSpec, device: DeviceSpec) -> PerfModel:
    model = load_model(device.id) if is_shipped(device.id) else fit(None, device)[0]
    known = find_collectives(system.id) is not None
    return model.with_collectives(
        load_collectives(system.id) if known else fit_collectives(None, system)[0]
    )
