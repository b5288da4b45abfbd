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

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from hybridperf.engine.evaluate import timeline
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.lower import Lowered, lower
from hybridperf.studies.strategies import mapping
from hybridperf.studies.strategies.cluster import CostModel
from hybridperf.studies.strategies.layer import Layer, check_layers
from hybridperf.studies.strategies.mapping import LayerCosts, LayerStrategies, layer_costs

Nodes = frozenset[int]  # of the graph
_COMPUTE, _SENDS = "compute", "sends"


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


class _Streams:
    """A GPU's two streams as nodes of a graph, seconds of its rows beside it."""

    def __init__(self) -> None:
        self.nodes, self.seconds = list[tuple[str, tuple[int, ...]]](), list[float]()
        self.last: dict[str, int] = {}

    def add(self, stream: str, seconds: float, after: Nodes) -> Nodes:
        """The node that does this after others; what takes no time holds nothing up."""
        if seconds <= 0:
            return after
        node = len(self.nodes)
        self.seconds.append(seconds)
        self.nodes.append((stream, tuple(sorted(after))))
        self.last[stream] = node
        return frozenset((node,))

    def computed(self) -> Nodes:
        """What the compute stream has done last."""
        return frozenset({self.last[_COMPUTE]} if _COMPUTE in self.last else ())


@functools.lru_cache(maxsize=256)
def _lowered(nodes: tuple[tuple[str, tuple[int, ...]], ...]) -> Lowered:
    """Stream and waits of each node: most strategies of a model differ in nothing but seconds."""
    graph = GraphBuilder()
    for row, (stream, after) in enumerate(nodes, 1):
        graph.op(row, stream=stream, after=after)
    return lower(graph.build())


def iteration(
    layers: Sequence[Layer], chosen: LayerStrategies, cost_model: CostModel, global_batch: float
) -> Iteration:
    """The time of a training iteration with a strategy for each layer.

    Args:
        layers: of the model, in their order.
        chosen: strategies by a layer's name, from `mapping`.
        cost_model: seconds on the cluster, `Priced` or `MadMax`.
        global_batch: samples of an iteration over all GPUs.

    Raises:
        InputError: when the layers make no model.
    """
    check_layers(layers)
    samples = global_batch / cost_model.cluster.gpus
    by_name = {layer.name: layer for layer in layers}
    asked = {n: layer_costs(one, chosen[n], cost_model, samples) for n, one in by_name.items()}
    streams, began = _Streams(), frozenset[int]()  # what the last unit's beginning waited for

    def send(seconds: float, after: Nodes) -> Nodes:
        return streams.add(_SENDS, seconds, after)

    def unit(asks: LayerCosts, seconds: float, exchange_s: float, after: Nodes) -> Nodes:
        nonlocal began  # the next unit's weights are gathered from then on
        there = after | send(asks.gather_s, began)
        began = there | streams.computed()
        return send(exchange_s, streams.add(_COMPUTE, seconds, there))

    def again_s(name: str, mine: str, other: str) -> float:
        strategies = chosen[mine], chosen[other]
        return mapping.regathered_s(by_name[name], *strategies, cost_model, samples)

    out: dict[str, Nodes] = {}
    for layer in layers:
        asks, ready = asked[layer.name], Nodes()
        for name in layer.needs:
            ready |= send(again_s(name, layer.name, name), out[name])
        for _ in range(layer.units):
            ready = unit(asks, asks.forward_s, asks.forward_exchange_s, ready)
        out[layer.name] = send(asks.lookup_exchange_s * layer.units, ready)

    readers = {layer.name: sum(layer.name in other.needs for other in layers) for layer in layers}
    back = {layer.name: Nodes() if readers[layer.name] else out[layer.name] for layer in layers}
    for layer in reversed(layers):
        asks, ready = asked[layer.name], back[layer.name]
        for _ in range(layer.units):
            ready = unit(asks, asks.backward_s, asks.backward_exchange_s, ready)
            send(asks.gradients_s, streams.computed())
        for name in layer.needs:
            back[name] |= send(again_s(name, name, layer.name), ready)
            readers[name] -= 1
            if not readers[name]:
                exchange_s = asked[name].lookup_exchange_s * by_name[name].units
                back[name] = send(exchange_s, back[name])
    lowered, seconds = _lowered(tuple(streams.nodes)), np.array(streams.seconds)
    ends_s, graph = timeline(lowered, seconds).end_s, lowered.graph
    sums_s = dict(zip(graph.stream_names, np.bincount(graph.stream, seconds), strict=True))
    memory = sum(asks.memory_bytes for asks in asked.values())
    return Iteration(
        float(ends_s.max()), float(sums_s[_COMPUTE]), float(sums_s.get(_SENDS, 0.0)), memory
    )
