"""ZeRO-Infinity's runs (Rajbhandari et al., SC21): a trillion parameters on nodes of 16 V100 whose
state lies in CPU memory and on drives, too.
"""

import functools
from typing import NamedTuple

import hybridperf as hp

MODEL, SYSTEM, DEVICE = "gpt-1008b", "dgx2", "v100_sxm2_32g"
# of a node (recalled)
CPU_BYTES, NVME_BYTES, NVME_BYTES_PER_S = 1.5e12, 28e12, 25e9
_FLOPS_OF_WEIGHT = 8.0  # of a token: forward, backward, forward again


class Trained(NamedTuple):
    """A step of training."""

    step_s: float
    flops_per_s: float  # of all GPUs, what is computed again included
    of_peak: float
    moved_bytes: float  # of the fullest rank's state that lies outside its GPU


@functools.cache
def trained(gpus: int, sequences: int, nvme_bytes: float = NVME_BYTES) -> Trained:
    """The quickest step of so many sequences a GPU by ZeRO-3, nothing overlapped with transfers.

    Raises:
        hp.InputError: the model's state fits nowhere.
    """
    shape, device = hp.load_shape(MODEL), hp.load_device(DEVICE)
    tiers = hp.system_tiers(
        SYSTEM, cpu_bytes=CPU_BYTES, nvme_bytes=nvme_bytes,
        nvme_bytes_per_s=NVME_BYTES_PER_S if nvme_bytes else 0.0,
    )  # fmt: skip
    only = {"zero": [3], "tp": [4], "pp": [1], "cp": [1], "recompute": ["full"]}
    best, *_ = hp.offloaded_layouts(
        MODEL, SYSTEM, gpus, tiers, batch=gpus * sequences, device=DEVICE, only=only, dtype="fp16",
        framework="megatron_deepspeed",
    )  # fmt: skip
    flops = _FLOPS_OF_WEIGHT * WEIGHTS * gpus * sequences * shape.seq
    rate = flops / best.step_s
    peak = gpus * device.peak("fp16", "matrix")
    moved = max(sum(stage.moved_bytes.values()) for stage in best.offload.stages)
    return Trained(best.step_s, rate, rate / peak, moved)


WEIGHTS = 1008e9
