# ruff: noqa: F401  (imports for editors; names are loaded when first used)
"""Papers re-enacted: MAD-Max's strategies, Chimera's pipelines, KAISA's gradient workers.

Names are loaded when first used, as in `hybridperf` itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridperf.studies.chimera import Pipeline, pipelines
    from hybridperf.studies.kaisa import (
        Factored,
        SecondOrder,
        SecondOrderCosts,
        factored,
        second_order,
        second_order_front,
        second_orders,
    )
    from hybridperf.studies.strategies.cluster import Cluster, StageAdditive
    from hybridperf.studies.strategies.layer import (
        Layer,
        dense_layers,
        embedding_tables,
        transformer_layers,
    )
    from hybridperf.studies.strategies.mad_max import DLRM_A, MadMax, dlrm_a, zionex
    from hybridperf.studies.strategies.mapping import Strategy, mapping
    from hybridperf.studies.strategies.search import search_strategies, strategies_of
    from hybridperf.studies.strategies.timeline import Iteration, iteration

_WHERE = {
    "DLRM_A": "strategies.mad_max",
    "Cluster": "strategies.cluster",
    "Factored": "kaisa",
    "Iteration": "strategies.timeline",
    "Layer": "strategies.layer",
    "MadMax": "strategies.mad_max",
    "Pipeline": "chimera",
    "SecondOrder": "kaisa",
    "SecondOrderCosts": "kaisa",
    "StageAdditive": "strategies.cluster",
    "Strategy": "strategies.mapping",
    "dense_layers": "strategies.layer",
    "dlrm_a": "strategies.mad_max",
    "embedding_tables": "strategies.layer",
    "factored": "kaisa",
    "iteration": "strategies.timeline",
    "mapping": "strategies.mapping",
    "pipelines": "chimera",
    "search_strategies": "strategies.search",
    "second_order": "kaisa",
    "second_order_front": "kaisa",
    "second_orders": "kaisa",
    "strategies_of": "strategies.search",
    "transformer_layers": "strategies.layer",
    "zionex": "strategies.mad_max",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(
            f"module 'hybridperf.studies' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(f"hybridperf.studies.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
