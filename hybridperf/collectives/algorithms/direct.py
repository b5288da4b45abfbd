"""Everyone sends to its partner at once: one step inside nodes, one between them."""

from hybridperf.io.namespace import Array


def steps(ranks_per_node: Array, nodes: Array) -> tuple[Array, Array]:
    """Steps inside nodes, and between them; none where there is nobody to send to."""
    return 1.0 * (ranks_per_node > 1), 1.0 * (nodes > 1)
