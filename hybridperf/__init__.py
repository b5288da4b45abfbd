"""Predict how long ML training takes on a machine before anyone runs it there.

    import hybridperf as hp

    model = hp.load_model("my-machine")                      # a folder that `hybridperf calibrate` made
    workload = hp.from_jax(train_step, state, batch)         # compile it, read what XLA will run
    print(hp.predict(model, workload).time_s)

Names are loaded when first used, so that importing the package costs little.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "BatchPredictor": "batches",
    "CollectiveModel": "collectives.model",
    "CollectivePricer": "pricing",
    "FitReport": "calibrate",
    "Histogram": "embedding",
    "Indices": "embedding",
    "InputError": "io",
    "Layout": "workloads.transformer.layout",
    "OpPricer": "pricing",
    "PerfModel": "model",
    "Placement": "workloads.placement",
    "Prediction": "prediction",
    "SearchResult": "searches.result",
    "Table": "embedding",
    "TransformerConfig": "workloads.transformer.config",
    "TransformerShape": "workloads.transformer.shape",
    "Uniform": "embedding",
    "Workload": "workload",
    "Zipf": "embedding",
    "collective_seconds": "collectives.model",
    "DlrmConfig": "workloads.dlrm",
    "convergence_plot": "report.search",
    "dlrm": "workloads.dlrm",
    "elasticities": "elasticities",
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
    "predict": "prediction",
    "predict_batch": "batches",
    "read_table": "io",
    "search": "searches.run",
    "search_report": "report.search",
    "shard": "sharding.run",
    "sweep": "sweeps.run",
    "transformer": "workloads.transformer.step",
    "write_timeline": "report.perfetto",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'hybridperf' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"hybridperf.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
