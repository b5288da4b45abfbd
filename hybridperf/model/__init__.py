"""A calibrated machine: device facts, knobs per group of ops, intervals; prices ops, one table of
unique ops at a time.

model = load_model("h100_sxm")
model.op_seconds(model.table([OpCall(Gemm("bf16", 4096, 4096, 4096))]))
"""

from hybridperf.model.document import MODEL_SCHEMA_VERSION
from hybridperf.model.files import (
    is_shipped,
    load_model,
    model_or_datasheet,
    shipped,
    shipped_models,
    unmeasured_device,
)
from hybridperf.model.group_report import GroupReport
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.platform import (
    GROUP_KNOBS,
    LEVEL_KNOBS,
    OpTable,
    Platform,
    canonical,
    neutral_knobs,
)

__all__ = [
    "GROUP_KNOBS", "LEVEL_KNOBS", "MODEL_SCHEMA_VERSION", "GroupReport", "OpTable", "PerfModel",
    "Platform", "canonical", "is_shipped", "load_model", "model_or_datasheet", "neutral_knobs",
    "shipped", "shipped_models", "unmeasured_device",
]  # fmt: skip
