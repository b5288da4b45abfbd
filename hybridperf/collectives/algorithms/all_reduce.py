"""All-reduce: every rank gets the sum of all buffers of S bytes; and its halves, reduce-scatter (S:
the whole input) and all-gather (S: the whole output).

Levels are composed: reduce-scatter inside a node, all-reduce across nodes, all-gather inside, so
each rank's link carries 2 (g - 1) / g S and each node's network 2 (N - 1) / N S (Thakur et al.,
"Optimization of Collective Communication Operations in MPICH", 2005).
"""

from hybridperf.collectives.algorithms.base import Collective, register, ring_share

register(
    Collective(
        bus_factor=lambda n: 2 * ring_share(n),
        inside=lambda g, nodes: 2 * ring_share(g),
        across=lambda g, nodes: 2 * ring_share(nodes),
    ),
    "all_reduce", "allreduce",
)  # fmt: skip
_HALF = Collective(
    bus_factor=ring_share,
    inside=lambda g, nodes: ring_share(g),
    across=lambda g, nodes: ring_share(nodes),
)
register(_HALF, "all_gather", "allgather")
register(_HALF, "reduce_scatter", "reducescatter")
