"""One iteration on one GPU: what it computes and what it sends, each in a queue of its own, and
what of the sending nothing hides.

Forward in the layers' order, backward against it. A unit waits for its gathered weights (which are
gathered while the one before is computed), for exchanged inputs, and for tp's exchange before it.
Gradients are reduced as they are made and waited for at the end. Tables' exchange goes out as soon
as they are looked up; their gradients' as soon as all readers have gone backward, and their own
backward pass comes last of what it does not hold up: after the layers behind which it stands.

    exposed = iteration - computation,      its share is of all communication

There is no optimizer, no loading, no launch in it. All GPUs are alike, so one stands for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hybridperf.studies.strategies import mapping
from hybridperf.studies.strategies.cluster import CostModel
from hybridperf.studies.strategies.layer import Layer, check_layers
from hybridperf.studies.strategies.mapping import LayerCosts, LayerStrategies, layer_costs


@dataclasses.dataclass(frozen=True)
class Iteration:
    """Seconds and memory of one training iteration on one GPU; all GPUs are alike."""

    iteration_s: float
    compute_s: float
    communication_s: float  # hidden or not
    memory_bytes: float

    @property
    def exposed_s(self) -> float:
        """Of the iteration, in which nothing is computed."""
        return self.iteration_s - self.compute_s

    @property
    def exposed_share(self) -> float:
        """Of all communication."""
        return self.exposed_s / self.communication_s if self.communication_s else 0.0

    @property
    def serial_s(self) -> float:
        """Seconds if nothing overlapped."""
        return self.compute_s + self.communication_s


class _Queue:
    """What is done one after the other."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.busy_s = 0.0

    def add(self, seconds: float, ready_s: float = 0.0) -> float:
        """When this ends, if it may begin at `ready_s`; what takes no time holds nothing up."""
        if seconds <= 0:
            return ready_s
        self.free_s = max(self.free_s, ready_s) + seconds
        self.busy_s += seconds
        return self.free_s


def iteration(
    layers: Sequence[Layer], chosen: LayerStrategies, cost_model: CostModel, global_batch: float
) -> Iteration:
    """The time of a training iteration with a strategy for each layer.

    Args:
        layers: of the model, in their order.
        chosen: strategies by a layer's name, from `mapping`.
        cost_model: seconds on the cluster, `StageAdditive` or `MadMax`.
        global_batch: samples of an iteration over all GPUs.

    Raises:
        InputError: when the layers make no model.
    """
    check_layers(layers)
    samples = global_batch / cost_model.cluster.gpus
    by_name = {layer.name: layer for layer in layers}
    asked = {n: layer_costs(one, chosen[n], cost_model, samples) for n, one in by_name.items()}
    compute, sends = _Queue(), _Queue()
    began_s = 0.0  # when the last unit began: the next one's weights are gathered from then on

    def unit(asks: LayerCosts, seconds: float, exchange_s: float, ready_s: float) -> float:
        nonlocal began_s
        there_s = max(ready_s, sends.add(asks.gather_s, began_s))
        began_s = max(there_s, compute.free_s)
        return sends.add(exchange_s, compute.add(seconds, there_s))

    def again_s(name: str, mine: str, other: str) -> float:
        strategies = chosen[mine], chosen[other]
        return mapping.regathered_s(by_name[name], *strategies, cost_model, samples)

    out_s: dict[str, float] = {}
    for layer in layers:
        asks, ready_s = asked[layer.name], 0.0
        for name in layer.needs:
            ready_s = max(ready_s, sends.add(again_s(name, layer.name, name), out_s[name]))
        for _ in range(layer.units):
            ready_s = unit(asks, asks.forward_s, asks.forward_exchange_s, ready_s)
        out_s[layer.name] = sends.add(asks.lookup_exchange_s * layer.units, ready_s)

    end_s = max(out_s.values())
    readers = {layer.name: sum(layer.name in other.needs for other in layers) for layer in layers}
    back_s = {layer.name: 0.0 if readers[layer.name] else out_s[layer.name] for layer in layers}
    for layer in reversed(layers):
        asks, ready_s = asked[layer.name], back_s[layer.name]
        for _ in range(layer.units):
            ready_s = unit(asks, asks.backward_s, asks.backward_exchange_s, ready_s)
            end_s = max(end_s, sends.add(asks.gradients_s, compute.free_s))
        end_s = max(end_s, ready_s)
        for name in layer.needs:
            sent_s = sends.add(again_s(name, name, layer.name), ready_s)
            back_s[name] = max(back_s[name], sent_s)
            readers[name] -= 1
            if not readers[name]:
                exchange_s = asked[name].lookup_exchange_s * by_name[name].units
                back_s[name] = sends.add(exchange_s, back_s[name])
    memory = sum(asks.memory_bytes for asks in asked.values())
    return Iteration(max(end_s, compute.free_s), compute.busy_s, sends.busy_s, memory)
