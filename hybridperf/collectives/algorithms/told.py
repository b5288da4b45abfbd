"""Algorithms that NCCL takes over nodes where its environment tells it to (NCCL_ALGO).

Left alone it takes the one that its own estimate finds fastest, and knobs are fitted to what it
took. Told to, it takes the steps of that one with few bytes as with many, with other protocols:

    ring   g N - N inside nodes, N - 1 between them
    tree   g - 1 (a chain inside each node), log2 N

A ring's sum brings every node twice a buffer but a rank's part, between two nodes as among more.

as NCCL counts them (NVIDIA/nccl, src/graph/tuning.cc). CollNet, NVLS and PAT need a network, a
switch or a collective that has them, and are passed over without (the same file); rows measured
under these words are taken for NCCL left alone, which told them apart less well otherwise (20 rows
of MareNostrum 5), and so is each protocol; predictions note it.

A table's `variant` names an algorithm as its last word: `nccl_ring`, `tree`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import numpy as np

from hybridperf.collectives.algorithms import ring, tree
from hybridperf.io.namespace import Array

ALGORITHMS: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "ring": ring.steps, "tree": lambda g, nodes: (g - 1.0, tree.steps(g, nodes)[1]),
}  # fmt: skip


_TREES = (2, 4)  # the first version with trees (its release notes); before, rings alone
# what NCCL can be told, too, but rows do not tell apart (NCCL_ALGO, NCCL_PROTO)
NOT_TOLD_APART = (
    "nvls", "nvlstree", "collnet", "collnetdirect", "collnetchain", "pat", "ll", "ll128", "simple",
)  # fmt: skip


def told(variants: np.ndarray, words: Collection[str] = tuple(ALGORITHMS)) -> np.ndarray:
    """[N] which of some words, usually the algorithms above, each variant names, "" for none."""
    last = [str(one).lower().replace("-", "_").rsplit("_", 1)[-1] for one in variants]
    return np.array([word if word in words else "" for word in last], object)


def before_trees(versions: np.ndarray) -> np.ndarray:
    """[N] whether the first number of each word is of an NCCL that had rings alone."""
    found = [re.search(r"(\d+)\.(\d+)", str(one)) for one in versions]
    return np.array([one is not None and tuple(map(int, one.groups())) < _TREES for one in found])


def not_told_apart(variants: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """[N] the algorithm or protocol that each variant names and that the price passes over."""
    inside = np.where(np.asarray(nodes) > 1, "", told(variants))
    return np.where(inside == "", told(variants, NOT_TOLD_APART), inside)
