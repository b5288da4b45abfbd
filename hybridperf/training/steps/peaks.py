"""The peak that MFU is a share of: that of the number format in which the products of layers
multiply.

An fp8 or fp4 recipe multiplies narrow what it keeps in 16 bits between ops (`ops/quantise.py`), so
its activations' dtype does not say which peak counts.
"""

from __future__ import annotations

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.ops.quantise import SCHEMES


def arithmetic(dtype: str, quant: str) -> str:
    """The format that products multiply in; `quant` "" where they do in the activations' dtype."""
    return (SCHEMES[quant].arithmetic if quant else "") or dtype


def peak_flops_per_s(device: DeviceSpec, dtype: str, quant: str) -> float | None:
    """Of a device's matrix units in that format; None where it has none of it."""
    try:
        return device.peak(arithmetic(dtype, quant), "matrix")
    except InputError:
        return None
