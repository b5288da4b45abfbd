"""By closed forms of their own (`ops/images.py`): convolutions in groups, norms and pools of images
on GPUs; on cards that sum in 32 bits at half rate, whatever they have no rows of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import LEVELS
from hybridperf.io.namespace import Array
from hybridperf.model.batch import Batch
from hybridperf.model.sources import Code, Source
from hybridperf.model.stages.step import NOTHING_S, Machine, Step
from hybridperf.model.stages.who import Who, who
from hybridperf.ops.images import (
    GpuFacts,
    attention_s,
    convolution_s,
    image_norm_s,
    image_pool_s,
    product_s,
)

SECONDS: Mapping[str, Callable[[Any, GpuFacts], Any]] = {
    "convolution": convolution_s, "image_norm": image_norm_s, "image_pool": image_pool_s,
    "gemm": product_s, "batched_gemm": product_s,
    "prefill_attention": attention_s, "encoder_attention": attention_s,
}  # fmt: skip
# Deviations of logs, believed: of one op, of what all of them have in common. Nine in ten whole
# steps of timm's models that no constant has seen lie within 16 %
ROW_WIDTH, SHARED_WIDTH = 0.45, 0.15


def by_form(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """Seconds of the form at the machine's numbers."""
    if who(batch, machine.model) is not Who.FORM:
        return []
    gpu, numbers = GpuFacts.of(machine.device, batch.op), machine.numbers
    assert gpu is not None  # `who` has asked
    gpu = dataclasses.replace(
        gpu, peak_flops_per_s=gpu.peak_flops_per_s * numbers.peak_flops_scale,
        vector_flops_per_s=gpu.vector_flops_per_s * numbers.peak_flops_scale,
        memory_bytes_per_s=numbers.memory_bytes_per_s,
        l2_bytes=numbers.level_bytes[LEVELS.index("l2")],
    )  # fmt: skip
    seconds = batch.whole(SECONDS[batch.op.group](batch.op, gpu))
    form = xp.log(xp.maximum(seconds, NOTHING_S)) - log_s
    source, far = Source(Code.FORM, "images"), np.full(len(batch), np.inf)
    return [Step("form", form, source, ROW_WIDTH**2, SHARED_WIDTH**2, far)]
