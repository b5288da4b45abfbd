"""A graph network: its graph, its sizes and where it runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from hybridperf.hardware import FLOAT_DTYPES, canonical_dtype
from hybridperf.io import InputError
from hybridperf.ops import SpMM
from hybridperf.workloads.transformer.fields import (
    check_each,
    check_word,
    is_count,
    is_number,
    is_positive,
)

_WORDS = {"model": ("gcn", "graphsage", "gin"), "cut": ("vertex", "edge")}


@dataclasses.dataclass(frozen=True)
class GraphShape:
    """What is asked of a graph.

    Args:
        nodes: of the graph.
        edges: directed: both directions of an undirected one.
        cv_degree: standard deviation of degrees over their mean.
        max_degree: the largest; 0: the mean.
    """

    nodes: float
    edges: float
    cv_degree: float = 0.0
    max_degree: float = 0.0

    @property
    def mean_degree(self) -> float:
        return self.edges / self.nodes

    def degrees(self, count: int) -> np.ndarray:
        """Quantiles of a log-normal distribution of that mean, spread and maximum [count]."""
        sparse = SpMM(
            "fp32", self.nodes, self.nodes, self.edges, 1.0, self.cv_degree, self.max_degree
        )
        spread = float(sparse.skew())
        logs = spread * ndtri((np.arange(count) + 0.5) / count)
        return self.mean_degree * np.exp(logs) / np.exp(logs).mean()


@dataclasses.dataclass(frozen=True)
class GnnConfig:
    """A graph network, its training and where it runs.

    Args:
        graph: its sizes.
        widths: numbers of a node: features, hidden layers, classes.
        model: "gcn" (Kipf and Welling, 2017), "graphsage" (mean; Hamilton et al., 2017), "gin" (Xu
            et al., 2019).
        fanouts: neighbours that a node draws, of the last layer first; empty: the full graph.
        batch: nodes of a sampled batch, on each rank.
        samples_on_device: neighbours are drawn by the device, not before by its host.
        host_bytes_per_s: rate at which the features of a sampled batch are copied; None: they are
            on the device.
        snapshots: graphs over time that one step trains on, with an LSTM over them; 0: one graph.
        dtype: number format of activations and weights.
        aggregate_dtype: of the sparse products, where another.
        kernel: of the sparse products, as tables name it; empty: the platform's library.
        framework: whose kernels run the sparse products, where tables name one.
        loss_wait_s: seconds that a GPU's thread waits for a number from memory: PyTorch's loss has
            one warp go through all output nodes. Half a microsecond is believed; 0: a loss that all
            of the device computes.
        ranks: devices in all.
        nodes: nodes (of the machine) in all.
        cut: "vertex": edges are dealt out to ranks; "edge": nodes are.
        replication: ranks that a node is on in the mean; 0: of a random cut.
        delay: steps over which clones are exchanged (cd-r); 0: all in each step; inf: never.

    Example:
        graph = GraphShape(nodes=232_965, edges=114_615_892, cv_degree=1.63, max_degree=21_657)
        step = gnn(GnnConfig(graph, (602, 128, 41), "graphsage"))
        predict("a100_sxm4_80g", step)
    """

    graph: GraphShape
    widths: Sequence[int]
    model: Literal["gcn", "graphsage", "gin"] = "gcn"
    fanouts: Sequence[int] = ()
    batch: int = 0
    samples_on_device: bool = False
    host_bytes_per_s: float | None = None
    snapshots: int = 0
    dtype: str = "fp32"
    aggregate_dtype: str = ""
    kernel: str = ""
    framework: str = ""
    loss_wait_s: float = 5e-7
    ranks: int = 1
    nodes: int = 1
    cut: Literal["vertex", "edge"] = "vertex"
    replication: float = 0.0
    delay: float = 0.0

    def check(self) -> None:
        """`InputError` for sizes that make no model."""
        for name, allowed in _WORDS.items():
            check_word(name, getattr(self, name), allowed)
        _require(isinstance(self.graph, GraphShape), "graph must be a GraphShape(...)", self.graph)
        check_each(self.graph, ("nodes", "edges"), _finite, "of the graph must be above zero")
        check_each(self.graph, ("cv_degree", "max_degree"), _from_zero, "must be zero or more")
        longest, mean = self.graph.max_degree, self.graph.mean_degree
        good = longest == 0 or longest + 1.0 > mean
        _require(good, f"max_degree must be at least the mean degree, {mean:.4g}", longest)
        wide = isinstance(self.widths, tuple | list) and len(self.widths) > 1
        wide = wide and all(is_count(one) for one in self.widths)
        _require(
            wide, "widths must be two or more whole numbers, (features, ..., classes)", self.widths
        )
        check_each(self, ("ranks", "nodes"), is_count, "must be a whole number of 1 or more")
        _require(self.nodes <= self.ranks, "there must be a rank on every node", self.nodes)
        layers = len(self.widths) - 1
        if self.fanouts:
            counted = isinstance(self.fanouts, tuple | list) and all(map(is_count, self.fanouts))
            good = counted and len(self.fanouts) == layers
            _require(good, f"fanouts must be {layers} whole numbers, one a layer", self.fanouts)
            _require(is_count(self.batch), "batch must be a whole number of 1 or more", self.batch)
            _require(not self.snapshots, "expected fanouts or snapshots, not both", self.snapshots)
        else:
            _require(self.batch == 0, "batch needs fanouts, the neighbours drawn", self.batch)
        if self.snapshots:
            good = is_count(self.snapshots) and self.snapshots % self.ranks == 0
            _require(good, "snapshots must be a whole multiple of ranks", self.snapshots)
        rate = self.host_bytes_per_s
        _require(rate is None or _finite(rate), "host_bytes_per_s must be above zero", rate)
        given = self.replication
        good = is_number(given) and (given == 0 or 1 <= given <= self.ranks)
        _require(good, "replication must lie from 1 to the number of ranks", given)
        check_each(self, ("loss_wait_s", "delay"), _from_zero, "must be zero or more")
        for dtype in (self.dtype, self.aggregate_dtype or self.dtype):
            known = canonical_dtype(dtype) in FLOAT_DTYPES
            _require(known, f"dtype must be one of {', '.join(FLOAT_DTYPES)}", dtype)

    def name(self) -> str:
        """Network, graph and division in words, for reports."""
        how = f"batch {self.batch}" if self.fanouts else "full graph"
        how = f"{self.snapshots} snapshots" if self.snapshots else how
        where = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.model} of {self.graph.nodes:g} nodes, {how}{where}"


def _require(good: bool, expected: str, got: Any) -> None:
    if not good:
        raise InputError(f"{expected}, got {got!r}")


def _finite(value: Any) -> bool:
    return is_positive(value) and value < math.inf


def _from_zero(value: Any) -> bool:
    return is_number(value) and value >= 0
