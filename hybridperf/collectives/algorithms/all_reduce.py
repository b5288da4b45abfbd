"""All-reduce: every rank gets the sum of all buffers of S bytes; and its halves, reduce-scatter (S:
the whole input) and all-gather (S: the whole output).

The links of a rank's node carry what a ring inside it would, 2 (g - 1) / g S or half of it. The
halves go round one ring through all ranks, with few bytes as with many (other protocols, not other
steps); an all-reduce by that ring or by trees, whichever carries less between nodes.
"""

from hybridperf.collectives.algorithms import ring, tree
from hybridperf.collectives.algorithms.base import Collective, register
from hybridperf.io.namespace import Array, array_module


def _across(ranks_per_node: Array, nodes: Array) -> Array:
    by_ring = 2 * ring.across(ranks_per_node, nodes)
    return array_module(by_ring).minimum(by_ring, tree.across(nodes))


register(
    Collective(
        bus_factor=lambda n: 2 * ring.share(n),
        inside=lambda g, nodes: 2 * ring.share(g),
        across=_across,
    ),
    "all_reduce", "allreduce",
)  # fmt: skip
_HALF = Collective(
    bus_factor=ring.share,
    inside=lambda g, nodes: ring.share(g),
    across=ring.across,
    few_bytes_steps=ring.steps,
)
register(_HALF, "all_gather", "allgather")
register(_HALF, "reduce_scatter", "reducescatter")
