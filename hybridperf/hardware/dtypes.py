"""Formats of numbers: their bytes, and what they are called elsewhere."""

from __future__ import annotations

from hybridperf.io import unknown

DTYPE_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5,
    "fp16in_fp32math": 2.0, "int64": 8.0, "int32": 4.0, "int16": 2.0, "int8": 1.0, "bool": 1.0,
}  # fmt: skip
FLOAT_DTYPES = tuple(name for name in DTYPE_BYTES if not name.startswith("int") and name != "bool")
_DTYPE_ALIASES = {
    "half": "fp16", "float16": "fp16", "float32": "fp32", "float": "fp32", "float64": "fp64",
    "bfloat16": "bf16",
}  # fmt: skip


def canonical_dtype(name: str) -> str:
    """Our name of a number format (`fp32`, `bf16`, ...); `InputError` for one we don't know."""
    dtype = _DTYPE_ALIASES.get(str(name), str(name))
    if dtype not in DTYPE_BYTES:
        raise unknown(
            "dtype", name, [*DTYPE_BYTES, *_DTYPE_ALIASES], f"known are {', '.join(DTYPE_BYTES)}"
        )
    return dtype
