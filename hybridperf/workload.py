"""A training step as a model prices it: unique ops, and a graph whose nodes point into them.

Row u of the duration table (from 1; row 0 is always zero) belongs to `calls[u - 1]`. A step repeats the same op on the same shapes many
times, so the table is far shorter than the graph, and pricing it costs little however deep the model is.
"""

from __future__ import annotations

import dataclasses

from hybridperf.graph import Graph
from hybridperf.ops import OpCall


@dataclasses.dataclass(frozen=True)
class Workload:
    """What `predict` takes."""

    name: str
    graph: Graph
    calls: tuple[OpCall, ...]
    backend: str | None = None  # kind of device it was compiled for (`cpu`, `gpu`); None: runs anywhere
    flops: float = 0.0  # arithmetic of one step, as counted from the program
    transcendentals: float = 0.0
    notes: tuple[str, ...] = ()  # what was assumed or left out
