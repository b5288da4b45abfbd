"""FusionAI's comparison (Tang et al., 2023): many consumer GPUs in a pipeline over slow links beside a
few of a data centre.
"""

import functools
import tempfile
from pathlib import Path

import pandas as pd

import hybridperf as hp

CARD, CARDS, SEQUENCES = "rtx_3080", 48, 256
_STEP = {"model": "gpt2-xl", "precision": "fp16", "seq": 1024, "framework": "megatron_core"}
_SYSTEM = """schema = "hybridperf/systems"
schema_version = 1

[one_card_a_machine]
description = "a consumer GPU a machine"
accelerator = "RTX 3080"
device = "rtx_3080"
accelerators_per_node = 1
intra_link = "PCIe4 x16"
intra_bytes_per_s = 24e9
in_network_reduction = false
host_link = "PCIe4 x16"
host_link_bytes_per_s = 24e9
nic = "Ethernet"
nics_per_node = 1
nic_bytes_per_s = {rate}
node_bytes_per_s = {rate}
latency_s = 50e-6
source = "links of the question"
confidence = "assumed"
"""


@functools.cache
def h100() -> pd.Series:
    """A step of four H100 that share the batch."""
    row = _STEP | {
        "gpu": "h100_sxm", "n_gpus": 4, "tp": 1, "pp": 1, "dp": 4, "micro_batch": 4,
        "grad_accum": SEQUENCES // 16, "sharding": "zero1", "recompute": "none",
    }  # fmt: skip
    return hp.predict_steps(pd.DataFrame([row])).iloc[0]


@functools.cache
def cards(gb_per_s: float, micro_batch: int = 1) -> pd.Series:
    """The same step of a pipeline of 48 cards, a layer each, one a machine."""
    row = _STEP | {
        "gpu": CARD, "n_gpus": CARDS, "tp": 1, "pp": CARDS, "dp": 1, "micro_batch": micro_batch,
        "grad_accum": SEQUENCES // micro_batch, "sharding": "none", "recompute": "none",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one_card_a_machine.toml"
        path.write_text(_SYSTEM.format(rate=gb_per_s * 1e9 / 8))
        return hp.predict_steps(pd.DataFrame([row]), system=str(path)).iloc[0]


def by_peaks() -> float:
    """How many H100 the cards are by peaks of dense products in half precision."""
    card, big = (hp.load_device(name).peak("fp16", "matrix") for name in (CARD, "h100_sxm"))
    return CARDS * card / big
