"""MAD-Max's question (Hsia et al., ISCA 2024): which strategy for which class of layers at which level of a cluster?"""

from hybridperf.strategies.cluster import BOTH, Cluster, StageAdditive
from hybridperf.strategies.layer import Layer, dense_layers, embedding_tables, transformer_layers
from hybridperf.strategies.mad_max import DLRM_A, MadMax, dlrm_a, zionex
from hybridperf.strategies.mapping import Mapping, Strategy, mapping
from hybridperf.strategies.search import search_strategies, strategies_of
from hybridperf.strategies.timeline import Iteration, iteration

__all__ = [
    "BOTH", "DLRM_A", "Cluster", "Iteration", "Layer", "MadMax", "Mapping", "StageAdditive", "Strategy", "dense_layers", "dlrm_a",
    "embedding_tables", "iteration", "mapping", "search_strategies", "strategies_of", "transformer_layers", "zionex",
]  # fmt: skip
