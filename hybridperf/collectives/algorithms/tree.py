"""Trees: who has the message doubles with each step, inside a node and then among nodes.

An all-reduce goes up and down two trees at once, each with half of the buffer, so that every node
is a leaf of one and within the other (Sanders, Speck and Traeff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", 2009; NCCL since 2.4): each sends the buffer twice, and of
two nodes once.
"""

from hybridperf.io.namespace import Array, array_module


def across(nodes: Array) -> Array:
    """Times the buffer of an all-reduce that each node sends; none where there is one node."""
    return array_module(nodes).minimum(2.0, nodes - 1.0)


def steps(ranks_per_node: Array, nodes: Array) -> tuple[Array, Array]:
    """Steps inside nodes, and between them."""
    module = array_module(ranks_per_node, nodes)
    return module.log2(ranks_per_node), module.log2(nodes)
