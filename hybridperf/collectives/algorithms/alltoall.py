"""All-to-all: S / n of each rank's send buffer of S bytes goes to each rank.

g - 1 of a rank's partners are in its node, and g ranks share the network for the rest.
"""

from hybridperf.collectives.algorithms import ring
from hybridperf.collectives.algorithms.base import Collective, register

register(
    Collective(
        bus_factor=ring.share,
        inside=lambda g, nodes: (g - 1) / (g * nodes),
        many_bytes_steps=lambda g, nodes: (g - 1.0, nodes - 1.0),
        across=lambda g, nodes: g * ring.share(nodes),
    ),
    "alltoall", "all_to_all", "a2a",
)  # fmt: skip
