"""MAD-Max's question (Hsia et al., ISCA 2024): which strategy for which class of layers at which
level of a cluster?
"""

from hybridperf.studies.strategies.cluster import BOTH, Cluster, StageAdditive
from hybridperf.studies.strategies.layer import (
    Layer,
    dense_layers,
    embedding_tables,
    transformer_layers,
)
from hybridperf.studies.strategies.mad_max import DLRM_A, MadMax, dlrm_a, zionex
from hybridperf.studies.strategies.mapping import Mapping, Strategy, mapping
from hybridperf.studies.strategies.search import search_strategies, strategies_of
from hybridperf.studies.strategies.timeline import Iteration, iteration

__all__ = [
    "BOTH", "DLRM_A", "Cluster", "Iteration", "Layer", "MadMax", "Mapping", "StageAdditive",
    "Strategy", "dense_layers", "dlrm_a", "embedding_tables", "iteration", "mapping",
    "search_strategies", "strategies_of", "transformer_layers", "zionex",
]  # fmt: skip
