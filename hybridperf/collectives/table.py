"""Collectives as arrays, and their seconds in JAX: for a batch of systems and for gradients.

Rates of links, ranks and nodes are arguments, so one compiled function serves every scale.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives import form
from hybridperf.collectives.traffic import Links
from hybridperf.io.namespace import Array, fresh_views


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CollectiveTable:
    """N collectives as arrays: what `collective_seconds` prices. K knobs."""

    inside_bytes: Array  # [N] through one rank's link
    across_bytes: Array  # [N] through one node's network
    talking: Array  # [N] ranks of a node that share its network
    ranks_per_node: Array  # [N]
    nodes: Array  # [N]
    steps: Array  # [N, 4] see `Collective.steps`
    theta: Array  # [N, K] logs of the form's knobs
    correction: Array  # [N] log


def collective_seconds(table: CollectiveTable, links: Links) -> Array:
    """Seconds of N collectives, differentiable in link rates, knobs, bytes and ranks.

    Args:
        table: the collectives, from `CollectiveModel.table` or `CollectivePricer.table`.
        links: rates of the system's links in bytes/s, from `CollectiveModel.links()`.

    Returns:
        Seconds [N].
    """
    table, links = fresh_views((table, links))
    seconds = links.seconds(table.inside_bytes, table.across_bytes, table.talking, jnp)
    ranks = jnp.stack([table.ranks_per_node, table.nodes], -1)
    work = jnp.concatenate([seconds, ranks, table.steps], -1)
    return form.seconds(table.theta, work, jnp) * jnp.exp(table.correction)


class PricedCollectives(NamedTuple):
    """N collectives as arrays, and how far to trust them."""

    table: CollectiveTable
    log_width: np.ndarray  # [N] of the 90 % interval of seconds; NaN without measurements
    in_range: np.ndarray  # [N] bool
