"""Predict how long ML training takes on a machine before anyone runs it there.

    import hybridperf as hp

    model = hp.load_model("my-machine")                      # a folder that `hybridperf calibrate`
                                                             made
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
    # XLA reports tuning flags of its own cached programs as missing machine features, kilobytes
    # each; what fails raises all the same
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_WHERE = {
    "BatchPredictor": "engine.batches",
    "Cluster": "studies.strategies.cluster",
    "CollectiveModel": "collectives.model",
    "CollectivePricer": "model.pricing",
    "DlrmConfig": "workloads.dlrm",
    "Eager": "workloads.eager",
    "Factored": "studies.kaisa",
    "FitReport": "model.fit.device",
    "Histogram": "ops.embedding",
    "Host": "hardware",
    "Indices": "ops.embedding",
    "InputError": "io",
    "Layout": "workloads.transformer.layout",
    "MadMax": "studies.strategies.mad_max",
    "MemoryKnobs": "workloads.memory.knobs",
    "MemoryUse": "workloads.memory.use",
    "OpPricer": "model.pricing",
    "PerfModel": "model",
    "Placement": "workloads.placement",
    "Plan": "training.plans.run",
    "Prediction": "engine.prediction",
    "SearchResult": "explore.searches.result",
    "SecondOrderCosts": "studies.kaisa",
    "StageAdditive": "studies.strategies.cluster",
    "Table": "ops.embedding",
    "Tier": "training.offload.tier",
    "TransformerConfig": "workloads.transformer.config",
    "TransformerShape": "workloads.transformer.shape",
    "Uniform": "ops.embedding",
    "Workload": "engine.workload",
    "Zipf": "ops.embedding",
    "collective_seconds": "collectives.model",
    "convergence_plot": "report.search",
    "dense_layers": "studies.strategies.layer",
    "dlrm": "workloads.dlrm",
    "dlrm_a": "studies.strategies.mad_max",
    "elasticities": "engine.elasticities",
    "embedding_tables": "studies.strategies.layer",
    "fit": "model.fit.device",
    "fit_collectives": "collectives.fit",
    "from_jax": "workloads.jax.program",
    "gradient": "engine.batches",
    "load_collectives": "collectives.model",
    "load_device": "hardware",
    "load_model": "model",
    "load_program": "workloads.jax.program",
    "load_shape": "workloads.transformer.zoo",
    "load_system": "hardware",
    "lookup_calls": "ops.embedding_bag",
    "memory": "workloads.memory",
    "node_tiers": "training.offload.tier",
    "offload": "training.offload.step",
    "pipelines": "studies.chimera",
    "plan": "training.plans.run",
    "plan_report": "report.plan",
    "predict": "engine.prediction",
    "predict_batch": "engine.batches",
    "read_table": "io",
    "search": "explore.searches.run",
    "search_report": "report.search",
    "search_strategies": "studies.strategies.search",
    "second_order_front": "studies.kaisa",
    "shard": "explore.sharding.run",
    "sweep": "explore.sweeps.run",
    "system_tiers": "training.offload.tier",
    "thin": "ops.embedding",
    "transformer": "workloads.transformer.step",
    "transformer_layers": "studies.strategies.layer",
    "write_timeline": "report.perfetto",
    "zionex": "studies.strategies.mad_max",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(
            f"module 'hybridperf' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(f"hybridperf.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
