"""Who sends how much in a collective: bytes through a rank's link inside its node and through a
node's network, and bus factors.

A collective runs over n = g N ranks, g on each of N nodes. `bytes` S means: all_reduce, broadcast,
reduce the buffer; all_gather the whole output; reduce_scatter the whole input; alltoall one rank's
send buffer; sendrecv the message. Levels are composed: reduce-scatter inside a node, all-reduce
across, all-gather inside (formulas.md 3.4), so an all-reduce moves 2 (g - 1) / g S through each
rank's link and 2 (N - 1) / N S through each node's network. Bus bandwidth is S / t times the bus
factor (nccl-tests, doc/PERFORMANCE.md).

Everything here takes numbers, NumPy or JAX arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridperf.io import unknown


@dataclasses.dataclass(frozen=True)
class Collective:
    """How a collective divides its bytes S; g ranks per node, N nodes."""

    bus_factor: Callable[[Any], Any]  # of n
    inside: Callable[
        [Any, Any], Any
    ]  # share of S through one rank's link inside the node, from (g, N)
    across: Callable[[Any, Any], Any]  # share of S through one node's network
    # only one rank of a node talks to another node, so one rank's share of the network carries it
    one_rank_across: bool = False


def _ring(n: Any) -> Any:
    return (n - 1) / n


def _whole_if_many(ranks: Any) -> Any:
    """1 where there is anyone to send to, 0 where not."""
    return 1.0 * (ranks > 1)


# In an all-to-all S / n goes from each rank to each: g - 1 of its partners are in its node, and g
# ranks share the network for the rest.
COLLECTIVES = {
    "all_reduce": Collective(
        lambda n: 2 * _ring(n), lambda g, nodes: 2 * _ring(g), lambda g, nodes: 2 * _ring(nodes)
    ),
    "all_gather": Collective(_ring, lambda g, nodes: _ring(g), lambda g, nodes: _ring(nodes)),
    "reduce_scatter": Collective(_ring, lambda g, nodes: _ring(g), lambda g, nodes: _ring(nodes)),
    "alltoall": Collective(
        _ring, lambda g, nodes: (g - 1) / (g * nodes), lambda g, nodes: g * _ring(nodes)
    ),
    "broadcast": Collective(
        lambda n: 1.0, lambda g, nodes: _whole_if_many(g), lambda g, nodes: _whole_if_many(nodes)
    ),
    "reduce": Collective(
        lambda n: 1.0, lambda g, nodes: _whole_if_many(g), lambda g, nodes: _whole_if_many(nodes)
    ),
    "sendrecv": Collective(
        lambda n: 1.0,
        lambda g, nodes: _whole_if_many(g),
        lambda g, nodes: _whole_if_many(nodes),
        one_rank_across=True,
    ),
}
_ALIASES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "all_to_all": "alltoall", "a2a": "alltoall", "send_recv": "sendrecv", "p2p": "sendrecv",
    "bcast": "broadcast",
}  # fmt: skip


def canonical_collective(name: str) -> str:
    """Our name of a collective; `InputError` for one we do not know."""
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    found = _ALIASES.get(plain, plain)
    if found not in COLLECTIVES:
        raise unknown(
            "collective", name, [*COLLECTIVES, *_ALIASES], f"known are {', '.join(COLLECTIVES)}"
        )
    return found


def shares(
    names: np.ndarray, ranks_per_node: np.ndarray, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of collectives by our names [N]: shares of their bytes through a rank's link and through a
    node's network, and how many ranks of a node use that network at once.
    """
    inside, across, talking = (
        np.empty(len(names)),
        np.empty(len(names)),
        np.array(ranks_per_node, np.float64),
    )
    for name in dict.fromkeys(names):
        at, kind = names == name, COLLECTIVES[name]
        inside[at], across[at] = (
            kind.inside(ranks_per_node[at], nodes[at]),
            kind.across(ranks_per_node[at], nodes[at]),
        )
        if kind.one_rank_across:
            talking[at] = 1.0
    return inside, across, talking


def bus_factor(collective: str, ranks: Any) -> Any:
    """Bus bandwidth over algorithm bandwidth S / t: 2 (n - 1) / n for an all-reduce, (n - 1) / n
    for its halves and all-to-all, else 1.
    """
    return COLLECTIVES[canonical_collective(collective)].bus_factor(ranks)


def bus_bytes_per_s(collective: str, bytes: Any, ranks: Any, time_s: Any) -> Any:
    """Bus bandwidth of a measured or predicted time."""
    return bytes / time_s * bus_factor(collective, ranks)
