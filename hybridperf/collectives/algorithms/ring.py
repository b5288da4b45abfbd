"""A ring through all ranks, node after node: each passes on what comes from the one before.

A part goes on n - 1 times, N - 1 of them to another node (n = g N ranks on N nodes): NCCL's
`nsteps` and `nInterSteps` (NVIDIA/nccl, src/graph/tuning.cc). All of a buffer but a rank's own part
comes into every node, so the ring carries (n - 1) / n of it across, however many ranks a node has;
levels one after the other would carry (N - 1) / N. Measured all-gathers agree with both (SimAI's
table, 16 MiB to 16 GiB): what a small one takes beyond the wire is the same for each of 31 steps
as for each of 127, and a large one reaches 0.96 of a bus bandwidth on 2 nodes as on 16.
"""

from hybridperf.io.namespace import Array


def share(n: Array) -> Array:
    """(n - 1) / n: all parts of a buffer but a rank's own."""
    return (n - 1) / n


def across(ranks_per_node: Array, nodes: Array) -> Array:
    """Share of a buffer that comes into each node; none where there is one node."""
    return share(ranks_per_node * nodes) * (nodes > 1)


def steps(ranks_per_node: Array, nodes: Array) -> tuple[Array, Array]:
    """Steps inside nodes, and between them."""
    return 1.0 * (ranks_per_node * nodes - nodes), nodes - 1.0
