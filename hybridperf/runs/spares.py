"""Spare nodes: how long a job that needs all of its nodes waits for one that works.

A job runs on n nodes and has s spare ones. Nodes that fail are repaired, each on its own, and come
back as spares. While s + 1 are away the job lies and nothing more fails: that is Erlang's loss
system with s + 1 places and a load a = failures of nodes x repair (Erlang 1917), insensitive to how
repair times are distributed. A failure finds no spare with chance B(s, a) and waits then for the
first of s + 1 repairs.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.runs.goodput import FailureCycle, Goodput, best, goodput
from hybridperf.runs.queues import erlang_b_between

_MOST_SHARE = 0.5  # of a job's nodes that are looked at as spares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Spares:
    """Spare nodes of a job.

    Attributes:
        count: of them; need not be whole.
        repair_s: from the failure of a node until it can be used again, in the mean.
        broken: share of the job's failures that take a node away.
    """

    count: Array
    repair_s: Array
    broken: Array = 1.0


def wait_s(failures_per_s: Array, spares: Spares) -> Array:
    """Mean seconds that a failure waits for a node.

    Args:
        failures_per_s: of all kinds, per second of a run that never waits.
        spares: of the job.
    """
    load = failures_per_s * spares.broken * spares.repair_s
    nobody = erlang_b_between(spares.count, load)
    return spares.broken * nobody * spares.repair_s / (spares.count + 1.0)


def with_spares(cycle: FailureCycle, spares: Spares) -> tuple[Goodput, Array]:
    """(goodput, mean wait for a node in seconds) of a job that waits where no spare is left."""
    waits_s = wait_s(goodput(cycle).failures_per_s, spares)
    return goodput(dataclasses.replace(cycle, detection_s=cycle.detection_s + waits_s)), waits_s


def best_spares(cycle: FailureCycle, spares: Spares, nodes: int) -> int:
    """How many spares make the useful hour of the job cheapest, paying for spares like for nodes.

    The relaxed count is found by gradient, its two whole neighbours are compared.

    Args:
        cycle: of the job.
        spares: its repairs; its own count is not looked at.
        nodes: of the job, without spares.
    """
    load = float(cycle.failures_per_s) * float(spares.broken) * float(spares.repair_s)
    most = max(_MOST_SHARE * nodes, 1.0)
    start = min(max(load + np.sqrt(load), 0.5), most)
    given = (cycle, spares, float(nodes))
    relaxed = best(_of_a_node, given, {"count": start}, {"count": (1e-2, most)})
    low = int(np.floor(relaxed["count"]))
    return max((low, low + 1), key=lambda many: float(_of_a_node(given, {"count": float(many)})))


def _of_a_node(given: tuple[FailureCycle, Spares, Array], free: dict[str, Array]) -> Array:
    """Useful share of the time, over what is paid for in nodes of the job."""
    cycle, spares, nodes = given
    found, _ = with_spares(cycle, dataclasses.replace(spares, count=free["count"]))
    return found.useful / (nodes + free["count"]) * nodes
