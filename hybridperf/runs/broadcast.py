"""Weights from one rank to all others: flat, node by node, down a tree, as calls to be priced.

    flat        the source sends to one rank after the other
    per_node    to one rank of each node after the other; each of these to the others of its node,
                the source last
    tree        whoever has the weights sends to one that has not: over nodes first, then inside
                (binomial, ceil(log2 n) rounds)
    library     the library's own broadcast

(Zhang et al., Whale, SC 2021, ask it of streams of messages; messages to one node instead of one
rank are its gain.) Axes: n = g N ranks on N nodes.
"""

from __future__ import annotations

import math

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model.calls import Call, CallChain, CollectiveCall

WAYS = ("flat", "per_node", "tree", "library")


def broadcast(bytes: float, ranks: int, nodes: int, way: str) -> Workload:
    """The messages of a broadcast that decide its time, one after the other.

    Args:
        bytes: of the weights.
        ranks: in all, spread evenly over the nodes.
        nodes: that they lie on.
        way: one of `WAYS`.
    """
    if way not in WAYS:
        raise InputError(f"expected a way of {', '.join(WAYS)}, got {way!r}")
    if not (bytes > 0 and math.isfinite(bytes)) or not 1 <= nodes <= ranks or ranks < 2:
        raise InputError(
            f"expected bytes above 0 to 2 ranks or more on 1 node to as many as ranks, got"
            f" {bytes:g} to {ranks} on {nodes}"
        )
    g = -(-ranks // nodes)
    across, inside = {
        "flat": (ranks - g, g - 1),
        "per_node": (nodes - 1, g - 1),
        "tree": (math.ceil(math.log2(nodes)), math.ceil(math.log2(g))),
        "library": (0, 0),
    }[way]
    calls: list[Call] = []
    parts = []
    for times, over in ((across, 2), (inside, 1)):
        if times:
            calls.append(CollectiveCall("sendrecv", bytes, 2, over))
            parts.append((len(calls), times))
    if way == "library":
        calls, parts = [CollectiveCall("broadcast", bytes, ranks, nodes)], [(1, 1)]
    calls.append(CallChain(tuple(parts)))
    builder = GraphBuilder()
    builder.op(len(calls), label=f"broadcast, {way}")
    return Workload(f"broadcast of {bytes:g} bytes, {way}", builder.build(), tuple(calls))
