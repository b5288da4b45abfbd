"""Prose of published training steps as columns."""

import pandas as pd
import pytest

from benchmarks.claims.published_rows import with_told


@pytest.mark.parametrize(
    ("said", "column", "found"),
    [
        ({"note": "asyncTP compile", "framework": "torchtitan"}, "framework",
         "torchtitan_async_tp"),
        ({"note": "2D eager", "source": "torchtitan"}, "framework", "torchtitan_eager"),
        ({"note": "GPT-NeoX library", "framework": "Megatron-Core"}, "framework", "gpt_neox"),
        ({"note": "CUDA graphs", "framework": "megatron_core"}, "framework",
         "megatron_core_graphs"),
        ({"source": "karpathy/llm.c, scripts", "framework": "megatron_core"}, "framework", "llm_c"),
        ({"source": "Dao-AILab/x", "framework": "megatron_core"}, "framework", "flash_attention_1"),
        ({"note": "CUDA graphs", "framework": "nanotron"}, "framework", "nanotron"),
        ({"note": "no graphs", "source": "mlperf_training", "model": "bert"}, "framework", ""),
        ({"gpu": "a100_80gb", "system_detail": "A100 80GB with 1600 Gbps node-node"}, "network",
         "oci_bm_gpu_a100_v2_8"),
        ({"section": "BM.GPU.H100.8"}, "network", "oci_bm_gpu_h100_8"),
        ({"section": "BM.GPU.H100.8", "network": "vtrain"}, "network", "vtrain"),
    ],
)  # fmt: skip
def test_prose_is_told_in_columns_and_what_these_say_stays(
    said: dict[str, str], column: str, found: str
) -> None:
    told = with_told(pd.DataFrame([said, {"model": "llama2-7b"}]))
    assert told[column].tolist() == [found, ""]
    assert told["model"].tolist()[1] == "llama2-7b"
