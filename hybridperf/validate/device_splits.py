"""What is judged on GPUs nobody measured yet: which devices are left out together, which rows make
a line of the table, and the goals.

A split leaves some devices out of every prior and judges one or more of them. Its kind says how far
the rest are: `near` has a sibling of the same chip in the prior, `new` has none of its generation,
`single` are the single-precision tables, `large` fits on small shapes and is judged on large ones.
A line is a set of rows with its own draws of rows to fit on; a view looks at some of a line's test
rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from hybridperf.model.published.ops import DeviceRows

Chooses = Callable[[DeviceRows], np.ndarray]  # mask [N]

SIZES: tuple[str, ...] = ("0", "20", "50", "200", "10%", "all")  # rows of the new device to fit on
FEW_SIZES = ("0", "50", "200")  # of lines without a goal
_ALL_IS_CHEAP = 3000  # rows


@dataclasses.dataclass(frozen=True)
class Split:
    """Devices no prior may see, and those of them that are judged."""

    name: str
    left_out: tuple[str, ...]
    judged: tuple[str, ...]
    kind: str


@dataclasses.dataclass(frozen=True)
class Line:
    """A set of rows that is judged by itself."""

    name: str
    family: str
    chosen: Chooses
    sizes: tuple[str, ...] = FEW_SIZES
    views: Mapping[str, Chooses] = dataclasses.field(default_factory=dict)


SPLITS = (
    Split("a100", ("a100_sxm4_80g", "a100_pcie_40g"), ("a100_sxm4_80g",), "new"),
    Split("b200", ("b200_sxm",), ("b200_sxm",), "new"),
    Split("h100_h200", ("h100_sxm", "h200_sxm"), ("h100_sxm", "h200_sxm"), "new"),
    Split("h200", ("h200_sxm",), ("h200_sxm",), "near"),
    Split("t4", ("t4",), ("t4",), "single"),
    Split("v100", ("v100_pcie_32g", "v100_sxm2"), ("v100_pcie_32g", "v100_sxm2"), "single"),
    Split("p100", ("p100_pcie_16g", "p100_sxm2"), ("p100_pcie_16g",), "large"),
)
FAMILIES = (
    "matmul", "decode_attention", "prefill_attention", "moe", "matmul_fp32", "convolution",
    "elementwise", "softmax", "norm", "encoder_attention", "quantise", "gather",
)  # fmt: skip


def _where(**columns: str | tuple[str, ...]) -> Chooses:
    """Rows whose `about` columns hold one of these words."""
    wanted = {name: [one] if isinstance(one, str) else list(one) for name, one in columns.items()}
    return lambda rows: rows.about[list(wanted)].isin(wanted).all(axis=1).to_numpy()


def _above_floor(rows: DeviceRows) -> np.ndarray:
    """Rows above twice what the quickest of a device take, whatever they compute."""
    floor_s = float(np.quantile(rows.time_s, 0.01))
    return np.asarray(rows.time_s > 2 * floor_s)


def _slots(column: str, *words: str) -> Mapping[str, Chooses]:
    return {word: _where(**{column: word}) for word in words}


_AICONFIGURATOR, _VIDUR = "aiconfigurator_gemm", "vidur_memory_ops"
_FRAMEWORKS = _slots("framework", "trtllm", "vllm")
_INT8_FP4 = ("sq", "int8_wo", "int4_wo", "nvfp4")
_MOE = ("bfloat16", "fp8", "fp8_block")
_MOE_4_BIT = ("int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "nvfp4")
_gemm_bf16 = _where(file=_AICONFIGURATOR, quant="bfloat16")
_gemm_fp8 = _where(file=_AICONFIGURATOR, dtype="fp8")
_above = {"above twice the floor": _above_floor}
_linear_bmm = _where(op=("linear", "bmm"))
_decode = _where(op="generation_attention")
LINES = (
    Line("GEMM bf16", "matmul", _gemm_bf16, SIZES, _FRAMEWORKS),
    Line("GEMM fp8", "matmul", _gemm_fp8, SIZES, _slots("quant", "fp8", "fp8_block")),
    Line("GEMM int8, fp4", "matmul", _where(file=_AICONFIGURATOR, quant=_INT8_FP4)),
    Line("GEMM fp16, vidur", "matmul", _where(file="vidur_gemm")),
    Line("MLA projections", "matmul", _where(op=("mla_gen_pre", "mla_gen_post"))),
    Line("decode attention", "decode_attention", _decode, SIZES, _FRAMEWORKS),
    Line("prefill attention", "prefill_attention", _where(dtype="bf16"), SIZES, _FRAMEWORKS),
    Line("prefill attention fp8", "prefill_attention", _where(dtype="fp8")),
    Line("MoE", "moe", _where(quant=_MOE), SIZES, _slots("quant", *_MOE)),
    Line("MoE 4 bit", "moe", _where(quant=_MOE_4_BIT)),
    Line("linear + bmm fp32", "matmul_fp32", _linear_bmm, SIZES, _slots("op", "linear", "bmm")),
    Line("convolution fp32", "convolution", _where(file="neusight_conv"), SIZES),
    Line("convolution, DeepBench", "convolution", _where(file="deepbench_conv")),
    Line("elementwise fp32", "elementwise", _where(file="neusight_elementwise"), SIZES, _above),
    Line("elementwise fp16, vidur", "elementwise", _where(file=_VIDUR)),
    Line("softmax fp32", "softmax", _where(file="neusight_softmax"), SIZES),
    Line("layernorm fp32", "norm", _where(file="neusight_ln"), SIZES),
    Line("rmsnorm fp16, vidur", "norm", _where(file=_VIDUR)),
    Line("encoder attention", "encoder_attention", _where(op="encoder_attention")),
    Line("quantise", "quantise", _where(op="scale_matrix")),
    Line("embedding fp16, vidur", "gather", _where(op="embedding")),
)

# median errors we want on shapes held out: by line (and view) and kind of split, by rows fitted on
GOALS: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("GEMM bf16", "near"): {"0": 0.06, "50": 0.045, "200": 0.036, "10%": 0.028},
    ("GEMM bf16", "new"): {"0": 0.10, "50": 0.057, "200": 0.045, "10%": 0.03},
    ("GEMM fp8", "near"): {"0": 0.06, "50": 0.043, "200": 0.034, "10%": 0.025},
    ("GEMM fp8", "new"): {"0": 0.11, "50": 0.07, "200": 0.046, "10%": 0.028},
    ("prefill attention", "near"): {"0": 0.08, "50": 0.04, "200": 0.03, "10%": 0.02},
    ("prefill attention", "new"): {"0": 0.14, "50": 0.08, "200": 0.05, "10%": 0.025},
    ("decode attention", "near"): {"0": 0.11, "50": 0.085, "200": 0.065, "10%": 0.045},
    ("decode attention", "new"): {"0": 0.20, "50": 0.11, "200": 0.075, "10%": 0.04},
    ("MoE", "near"): {"0": 0.10, "50": 0.085, "200": 0.07, "10%": 0.045},
    ("MoE", "new"): {"0": 0.16, "50": 0.10, "200": 0.075, "10%": 0.045},
    ("linear + bmm fp32", "single"): {"0": 0.25, "50": 0.11, "200": 0.09, "10%": 0.07},
    ("linear + bmm fp32", "large"): {"0": 0.16, "50": 0.10, "200": 0.07, "10%": 0.04},
    ("convolution fp32", "single"): {"50": 0.085, "200": 0.07},
    ("elementwise fp32", "single"): {"50": 0.03, "200": 0.018},
    ("elementwise fp32: above twice the floor", "single"): {"50": 0.05, "200": 0.05},
    ("softmax fp32", "single"): {"50": 0.04, "200": 0.032},
    ("layernorm fp32", "single"): {"50": 0.035, "200": 0.024},
}


def rows_of_size(size: str, pool: int) -> int | None:
    """How many of a pool's rows a size means; None where they are too few, or too many to fit."""
    if size == "all":
        return pool if pool <= _ALL_IS_CHEAP else None
    count = round(0.1 * pool) if size == "10%" else int(size)
    return count if count <= pool else None
