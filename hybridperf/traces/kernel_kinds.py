"""What a kernel does, by its name alone: which rate of a device it goes by where no op tells more.

Libraries name products, convolutions and attention by their algorithm and number format
(`volta_sgemm_128x64_nn`, `ampere_fp16_s16816gemm_...`, `cudnn::...::implicit_convolve_sgemm`); all
other kernels of a training step are loops that wait for memory. On another device

    seconds = floor + (measured - floor) x (old rate / new rate)

with the rate a product's peak in its format, else the memory's bandwidth, and the floor what no
kernel goes below. A copy between host and device goes over a bus that neither datasheet has.
"""

from __future__ import annotations

import re

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError

_PRODUCT = re.compile(
    r"gemm|gemv|cutlass|conv(?!ert)|winograd|fprop|dgrad|wgrad|xmma|nvjet|wgmma|fmha|flash|"
    r"attention|s16816|s1688|h884|h16816|i8816",
    re.I,
)
# Inductor calls a loop after all that it is made of, also after a product whose loop it was
_LOOP = re.compile(r"triton_(poi|red|per)_")
_FORMATS = (  # the first that fits
    ("fp8", re.compile(r"e4m3|e5m2|fp8", re.I)),
    ("bf16", re.compile(r"bf16|bfloat", re.I)),
    ("fp16", re.compile(r"fp16|f16|half|hgemm|h884|h1688|h16816", re.I)),
    ("int8", re.compile(r"i8816|s8_|int8", re.I)),
    ("tf32", re.compile(r"tf32|tensorfloat|s1688", re.I)),
    # tensor cores alone run these, mostly in a format of 16 bits; both of them have one rate
    ("bf16", re.compile(r"nvjet|wgmma|s16816|flash|fmha", re.I)),
)
_SOFTMAX = re.compile(r"(?!.*(flash|fmha|gemm)).*softmax", re.I)  # also one named by its attention
_OVER_A_BUS = re.compile(r"Memcpy (HtoD|DtoH|HtoH|PtoP)", re.I)


def seconds_ratio(kernel: str, old: DeviceSpec, new: DeviceSpec) -> float | None:
    """New over old seconds of a kernel beyond the floor; None where no rate tells."""
    if not kernel or _OVER_A_BUS.search(kernel):
        return None
    if _LOOP.match(kernel) or _SOFTMAX.match(kernel) or not _PRODUCT.search(kernel):
        return old.memory_bytes_per_s / new.memory_bytes_per_s
    dtype = next((name for name, says in _FORMATS if says.search(kernel)), "fp32")
    try:
        return old.peak(dtype, "matrix") / new.peak(dtype, "matrix")
    except InputError:
        return None  # one of the devices does not have this format
