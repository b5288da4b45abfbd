"""Predict how long ML training takes on a machine before anyone runs it there.

    import hybridperf as hp

    model = hp.load_model("my-machine")                      # a folder that `hybridperf calibrate` made
    workload = hp.from_jax(train_step, state, batch)         # compile it, read what XLA will run
    print(hp.predict(model, workload).time_s)

Names are loaded when first used, so that importing the package costs little.
"""

import importlib
import os
import sys
from typing import Any

__version__ = "0.1.0"

if "JAX_COMPILATION_CACHE_DIR" in os.environ and "jax" not in sys.modules:
    # XLA reports tuning flags of its own cached programs as missing machine features, kilobytes each; what fails raises all the same
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_WHERE = {
    "BatchPredictor": "batches",
    "Cluster": "strategies.cluster",
    "CollectiveModel": "collectives.model",
    "CollectivePricer": "pricing",
    "DlrmConfig": "workloads.dlrm",
    "Eager": "workloads.eager",
    "Factored": "choices.second_order",
    "FitReport": "calibrate",
    "Histogram": "embedding",
    "Host": "hardware",
    "Indices": "embedding",
    "InputError": "io",
    "Layout": "workloads.transformer.layout",
    "MadMax": "strategies.mad_max",
    "MemoryKnobs": "memory.knobs",
    "MemoryUse": "memory.use",
    "OpPricer": "pricing",
    "PerfModel": "model",
    "Placement": "workloads.placement",
    "Plan": "plans.run",
    "Prediction": "prediction",
    "SearchResult": "searches.result",
    "SecondOrderCosts": "choices.second_order",
    "StageAdditive": "strategies.cluster",
    "Table": "embedding",
    "Tier": "tiers.tier",
    "TransformerConfig": "workloads.transformer.config",
    "TransformerShape": "workloads.transformer.shape",
    "Uniform": "embedding",
    "Workload": "workload",
    "Zipf": "embedding",
    "collective_seconds": "collectives.model",
    "convergence_plot": "report.search",
    "dense_layers": "strategies.layer",
    "dlrm": "workloads.dlrm",
    "dlrm_a": "strategies.mad_max",
    "elasticities": "elasticities",
    "embedding_tables": "strategies.layer",
    "fit": "calibrate",
    "fit_collectives": "collectives.fit",
    "from_jax": "importers.jax_program",
    "gradient": "batches",
    "load_collectives": "collectives.model",
    "load_device": "hardware",
    "load_model": "model",
    "load_program": "importers.jax_program",
    "load_shape": "workloads.transformer.zoo",
    "load_system": "hardware",
    "lookup_calls": "ops.embedding_bag",
    "memory": "memory",
    "node_tiers": "tiers.tier",
    "offload": "tiers.offload",
    "pipelines": "choices.pipeline",
    "plan": "plans.run",
    "plan_report": "report.plan",
    "predict": "prediction",
    "predict_batch": "batches",
    "read_table": "io",
    "search": "searches.run",
    "search_report": "report.search",
    "search_strategies": "strategies.search",
    "second_order_front": "choices.second_order",
    "shard": "sharding.run",
    "sweep": "sweeps.run",
    "system_tiers": "tiers.tier",
    "thin": "embedding",
    "transformer": "workloads.transformer.step",
    "transformer_layers": "strategies.layer",
    "write_timeline": "report.perfetto",
    "zionex": "strategies.mad_max",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'hybridperf' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = importlib.import_module(f"hybridperf.{_WHERE[name]}")
    value = found if callable(found) else getattr(found, name)  # `hp.memory` is the room and its function
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
