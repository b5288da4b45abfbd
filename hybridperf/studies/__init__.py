"""Small choices that papers made, as worked searches: Chimera's shape of a pipeline, KAISA's share
of gradient workers.
"""

from hybridperf.studies.chimera import Pipeline, pipelines
from hybridperf.studies.kaisa import (
    Factored,
    SecondOrder,
    SecondOrderCosts,
    best_batch,
    factored,
    second_order,
    second_order_front,
    second_orders,
)

__all__ = [
    "Factored", "Pipeline", "SecondOrder", "SecondOrderCosts", "best_batch", "factored",
    "pipelines", "second_order", "second_order_front", "second_orders",
]  # fmt: skip
