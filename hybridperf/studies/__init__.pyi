"""Names of `hp.studies` and where they stand, as in `hybridperf/__init__.pyi`."""

from .chimera import Pipeline as Pipeline
from .chimera import pipelines as pipelines
from .kaisa import Factored as Factored
from .kaisa import SecondOrder as SecondOrder
from .kaisa import SecondOrderCosts as SecondOrderCosts
from .kaisa import factored as factored
from .kaisa import second_order as second_order
from .kaisa import second_order_front as second_order_front
from .kaisa import second_orders as second_orders
from .strategies.cluster import Cluster as Cluster
from .strategies.cluster import Priced as Priced
from .strategies.layer import Layer as Layer
from .strategies.layer import dense_layers as dense_layers
from .strategies.layer import embedding_tables as embedding_tables
from .strategies.layer import transformer_layers as transformer_layers
from .strategies.mad_max import DLRM_A as DLRM_A
from .strategies.mad_max import MadMax as MadMax
from .strategies.mad_max import dlrm_a as dlrm_a
from .strategies.mad_max import zionex as zionex
from .strategies.mapping import Strategy as Strategy
from .strategies.mapping import mapping as mapping
from .strategies.search import search_strategies as search_strategies
from .strategies.search import strategies_of as strategies_of
from .strategies.search import transformer_strategies as transformer_strategies
from .strategies.timeline import Iteration as Iteration
from .strategies.timeline import iteration as iteration
