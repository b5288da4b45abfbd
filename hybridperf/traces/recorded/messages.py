"""What a recorded rank sends, and copies from and to its host: calls by the links of a system.

A trace is one rank's. Who takes part in its collectives stands beside some of them: as the size of
their group, or as how much goes to each rank. Others have the size that most of the trace's have;
where it names none, one node's accelerators. All ranks are taken to arrive together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hybridperf.collectives.traffic import canonical_collective
from hybridperf.hardware import SystemSpec
from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall, GivenSeconds
from hybridperf.traces.ranks import spoken
from hybridperf.traces.recorded.graph import RecordedGraph, RecordedNode
from hybridperf.workloads.programs.eager import SMALL_COPY_S
from hybridperf.workloads.programs.torch.calls import flat

_BARRIER_BYTES = 4.0


def collective_call(
    nodes: Sequence[RecordedNode], graph: RecordedGraph, system: SystemSpec, ranks: int
) -> CollectiveCall | None:
    """A collective by the nodes that record it, outermost first; None where its kind or size is not
    known.

    Args:
        nodes: the op and what is inside it.
        graph: of the trace.
        system: whose links it goes by.
        ranks: of a group whose size the trace does not say; 0: `usual_group`.
    """
    kinds = (kind for one in nodes if (kind := _kind(one)))
    kind = next(kinds, None)
    # an argument holds what a rank sends or what it gets; tables go by the larger side
    sides = [
        sum(tensor.bytes for tensor in flat([argument]))
        for one in nodes
        for argument in (*one.inputs.arguments, *one.outputs.arguments)
    ]
    size = max(sides, default=0.0)
    if any("barrier" in one.comm_type for one in nodes):
        size = max(size, _BARRIER_BYTES)
    if kind is None or size <= 0:
        return None
    n = max(one.group for one in nodes) or ranks or usual_group(graph) or _node(system)
    return CollectiveCall(kind, float(size), n, -(-n // _node(system)))


def usual_group(graph: RecordedGraph) -> int:
    """Ranks that most collectives of a trace have; 0 where it says of none."""
    sizes = Counter(node.group for node in graph.nodes if node.group > 1)
    return sizes.most_common(1)[0][0] if sizes else 0


def host_copy(node: RecordedNode, system: SystemSpec) -> GivenSeconds:
    """A copy between a host and its device, over the link between them."""
    tensors = flat(node.inputs.arguments) + flat(node.outputs.arguments)
    size = max((tensor.bytes for tensor in tensors), default=0.0)
    return GivenSeconds(SMALL_COPY_S + size / system.host_link_bytes_per_s, "host copy")


def _node(system: SystemSpec) -> int:
    return max(int(system.accelerators_per_node), 1)


def _kind(node: RecordedNode) -> str | None:
    """Our name of a node's collective; None of other nodes and of what has no price."""
    for name in (node.name.split(":")[-1], node.comm_type):
        try:
            return canonical_collective(spoken(name) or "")
        except InputError:
            continue
    return None
