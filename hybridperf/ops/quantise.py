"""Quantised weights and activations: what each scheme stores, moves and multiplies; and quantising
a matrix by itself.

Bytes per element count the scales that are stored with the numbers. Activations live in 16 bits
between ops: a scheme that multiplies narrow activations reads 16 bits, writes the narrow form and
reads it again, because the largest number of a block must be known before its first one can be
scaled. Products are written in 16 bits.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from hybridperf.io.errors import unknown
from hybridperf.io.namespace import Array
from hybridperf.ops.base import Columns, Op, register
from hybridperf.ops.inputs import Gpu, gpu_inputs, log2_of, tails
from hybridperf.ops.loops import BLOCK_ELEMENTS, Matrix
from hybridperf.ops.roofline import Work, streamed
from hybridperf.ops.tiles import blocks

WIDE_BYTES = 2.0  # activations between ops: bf16 or fp16


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One way to store and multiply. Bytes are per element, scales included."""

    weight_bytes: float
    # activations as multiplied, where that is not how they come; 0: as they come
    narrow_bytes: float = 0.0
    arithmetic: str = ""  # number format that multiplies; empty: the op's dtype
    incoming_bytes: float = WIDE_BYTES
    outgoing_bytes: float = WIDE_BYTES
    finer: str = ""  # the scheme of the same numbers and arithmetic with more scales
    # the scheme whose kernels stand for its own, which no table has
    like: str = ""
    coarser: str = ""  # the scheme of fewer scales that it is never quicker than

    @property
    def activation_bytes(self) -> float:
        """Moved per activation into a product: read, and where narrowed written and read again."""
        return self.incoming_bytes + 2 * self.narrow_bytes


_FP32_SCALE_BYTES, _FP8_SCALE_BYTES = 4.0, 1.0
SCHEMES = {
    "bfloat16": Scheme(2.0, arithmetic="bf16"),
    "float16": Scheme(2.0, arithmetic="fp16"),
    # one scale per tensor
    "fp8": Scheme(1.0, narrow_bytes=1.0, arithmetic="fp8", finer="fp8_block"),
    # scales per 128 x 128 weights and per 128 activations of a row
    "fp8_block": Scheme(1.0 + _FP32_SCALE_BYTES / 128**2, 1.0 + _FP32_SCALE_BYTES / 128, "fp8"),
    "nvfp4": Scheme(0.5 + _FP8_SCALE_BYTES / 16, 0.5 + _FP8_SCALE_BYTES / 16, "fp4"),
    "w4a8_mxfp4_mxfp8": Scheme(0.5 + _FP8_SCALE_BYTES / 32, 1.0 + _FP8_SCALE_BYTES / 32, "fp8"),
    # weight-only: numbers are widened on their way into the matrix unit, which works at its 16-bit
    # rate
    "w4a16_mxfp4": Scheme(0.5 + _FP8_SCALE_BYTES / 32),
    "int8_wo": Scheme(1.0),  # one scale per column
    "int4_wo": Scheme(0.5 + 2.0 / 128),  # 16-bit scales per 128 weights
    # OCP Microscaling Formats 1.0: a scale of a byte for 32 numbers
    "mxfp8": Scheme(1.0 + 1 / 32, 1.0 + 1 / 32, "fp8", like="fp8_block", coarser="fp8"),
    "mxfp4": Scheme(0.5 + 1 / 32, 0.5 + 1 / 32, "fp4", like="nvfp4"),
    # llama.cpp's weights, bytes of a block for its numbers (ggml-common.h)
    "q8_0": Scheme(34 / 32, like="int8_wo"),
    "q6_k": Scheme(210 / 256, like="int4_wo"),
    "q5_k": Scheme(176 / 256, like="int4_wo"),
    "q5_0": Scheme(22 / 32, like="int4_wo"),
    "q4_k": Scheme(144 / 256, like="int4_wo"),
    "q4_0": Scheme(18 / 32, like="int4_wo"),
    "q3_k": Scheme(110 / 256, like="int4_wo"),
    "q2_k": Scheme(84 / 256, like="int4_wo"),
    # mixes of these in one file, in the mean of a Llama 2 7B (its examples/quantize/README.md)
    "q5_k_m": Scheme(5.68 / 8, like="int4_wo"),
    "q5_k_s": Scheme(5.52 / 8, like="int4_wo"),
    "q4_k_m": Scheme(4.84 / 8, like="int4_wo"),
    "q4_k_s": Scheme(4.58 / 8, like="int4_wo"),
    "q3_k_m": Scheme(3.91 / 8, like="int4_wo"),
    # smooth quantisation: int8 activations come from the op before
    "sq": Scheme(1.0, arithmetic="int8", incoming_bytes=1.0),
}


def known_scheme(name: str) -> str:
    """The name, if it is a scheme of ours or empty (the op's dtype); else `InputError`."""
    if name and name not in SCHEMES:
        advice = "leave it empty where nothing is quantised"
        raise unknown("quant", name, SCHEMES, f"known are {', '.join(SCHEMES)}; {advice}")
    return name


QUANT = {"quant": lambda word, dtype: known_scheme(word)}  # how tables write a scheme


def scheme_of(op: Op) -> Scheme:
    """Of an op with a field `quant`; where that is empty, all numbers are in its dtype."""
    quant, size = getattr(op, "quant", ""), op.element_bytes
    return SCHEMES[quant] if quant else Scheme(size, incoming_bytes=size, outgoing_bytes=size)


def scheme_dtype(dtype: str, quant: str) -> str:
    """The number format that multiplies under a scheme."""
    return (SCHEMES[quant].arithmetic if quant else "") or dtype


def scheme_flags(quant: str) -> dict[str, Array]:
    """Which scheme of those that tables have, as one flag each."""
    return {f"quant_{name}": float(quant == name) for name in SCHEMES if not SCHEMES[name].like}


def measured_scheme(quant: str) -> str:
    """The scheme whose kernels stand for one that no table has; others are their own."""
    return (SCHEMES[quant].like if quant in SCHEMES else "") or quant


_NARROW = [name for name, scheme in SCHEMES.items() if scheme.narrow_bytes]


def _narrowing(word: str, dtype: str) -> str:
    del dtype
    if word not in _NARROW:
        schemes = f"schemes that quantise a matrix are {', '.join(_NARROW)}"
        raise unknown("quant", word, _NARROW, schemes)
    return word


@register("scale_matrix", "quantise", columns=Columns(readers={"quant": _narrowing}))
@dataclasses.dataclass(frozen=True)
class Quantise(Matrix):
    """A matrix of rows x cols scaled, clamped and written in the scheme's format."""

    group: ClassVar[str] = "quantise"

    quant: str = "fp8"

    def work(self) -> Work:
        n = self.rows * self.cols
        moved = n * (self.element_bytes + SCHEMES[self.quant].narrow_bytes)
        return streamed(moved, flops=2 * n)  # scaled and clamped


blocks.register(Quantise, lambda op: op.rows * op.cols / BLOCK_ELEMENTS)


@gpu_inputs.register(Quantise)
def _(op: Quantise, gpu: Gpu) -> dict[str, Array]:
    return {
        **log2_of(op, "rows", "cols", elements=op.rows * op.cols),
        **gpu.per_l2(bytes=op.work().bytes),
        **tails(128, 1024, cols=op.cols),
        **gpu.waves("1024", blocks(op)),
        **gpu.waves("rows", op.rows),
        "written_bytes": SCHEMES[op.quant].narrow_bytes,
    }
