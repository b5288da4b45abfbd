"""What a device's datasheet says of its knobs in a family of ops, before anything is measured.

Clock: where tables hold kernels alone, replayed without a host. On A100, H100 and B200 products,
decoding steps and experts start after nearly as many cycles, 30 to 40 % later on the A100, whose
clock is as much slower. Attention of prompts takes as many seconds on all three. Eager ops are
launched by a host, whose clock nobody wrote down.

Power, single precision: T4 and P4 hold 0.39 and 0.56 of their peaks in long products, boards of 250
W and more 0.65 to 0.87, as if a watt fed 57 GFLOP/s of 16 and 12 nm. NVIDIA's forum says so of the
T4 (24 of 65 TFLOP/s in 16 bits, "due to power capping", forums.developer.nvidia.com/t/264462).
Before: 23 GFLOP/s of 28 nm, by long products of a Tesla M40 and, 4 % off, of a TITAN X (Maxwell).
Later years: by what a watt gives on large boards that hold their clock; GTX 1080 Ti to TITAN RTX
0.045 to 0.059, A40 0.125, RTX 4090 and 5090 0.18 TFLOP/s.

In 16 bits: `hardware/power.py`, of cards with GDDR memory. With that limit requests on an RTX PRO
6000 see first tokens 12 % and tokens 8.5 % too late, without it 7 and 6.

AMD: long products in fp32 on MI100 and MI210 reach 0.69 of the share of the matrix peak that
NVIDIA's reach. In 16 bits and fewer best shapes reach `matrix_share`, where NVIDIA's rows say 0.89
of long products; usual ones fall about as far short of that again. Attention has no shapes of its
own. Of the memory's bandwidth MI100 and MI210 reach 0.75 in plain loops, where NVIDIA's with HBM
reach 0.9, and 0.76 of their share in products.

Memory, attention of prompts: an H200 moves no more bytes than an H100, and an A100 as many a cycle
and multiprocessor: their share of the bandwidth falls as it grows against the chip. By half, in
logs, since a B200 moves more; no share is above `_MOST_MEMORY`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hybridperf.hardware import DeviceSpec, load_device
from hybridperf.hardware.power import has_gddr, held_share, lanes_share, matrix_share
from hybridperf.io import InputError
from hybridperf.learning.prior.form import NO_FACTS, Machine

_PRODUCTS = frozenset({"matmul", "matmul_fp32"})
_PROMPTS = "prefill_attention"
_BY_CLOCK = frozenset({"matmul", "decode_attention", "moe"})
_SINGLE = frozenset({"matmul_fp32", "convolution"})
_SINGLE_FLOPS_PER_J = 57e9
# first year of a process, and how much more work a joule does than with 16 and 12 nm
_BETTER_SINCE = ((2022, 3.4), (2020, 2.0), (2016, 1.0))
_OF_OLDER, _USUAL_YEAR = 0.4, 2016  # 28 nm; where none is told
_ATTENTION = frozenset({"prefill_attention", "encoder_attention"})
_ON_MATRIX_UNITS = frozenset({"matmul", "prefill_attention"})
_NARROW = ("fp16", "bf16", "fp8", "int8", "fp4")
_LONG_PRODUCTS = 0.89  # of the peak in 16 bits, by NVIDIA's
_OF_NVIDIAS_SHARE, _OF_NVIDIAS_MEMORY = 0.69, 0.78  # AMD's, of peak and bandwidth
# of products on MI100, MI210, MI300X by NVIDIA's constants; of L40S, T4 by those of cards with HBM
_VENDOR_SD, _MEMORY_KIND_SD = 0.25, 0.2
# what another laboratory adds to a device left out: what is timed, not silicon
_LABORATORY_SD, _LOOPS_LABORATORY_SD = 0.2, 0.06
_LOOPS = frozenset({"elementwise", "softmax", "norm", "quantise", "gather"})
_TAKES_KERNELS = ("sm_90", "sm_100", "sm_103")  # for which TensorRT-LLM's are made
# bytes of bandwidth per multiprocessor and cycle of H100 and A100, and the most that cards with a
# narrow memory gain: from the 0.45 of it that both use to 0.9
_USUAL_BYTES, _MEMORY_POWER, _MOST_MEMORY = 13.0, 0.5, 2.0


def machine_of(device: DeviceSpec, family: str) -> Machine:
    """The facts of a device that move a family's knobs."""
    if device.kind != "gpu":
        return NO_FACTS
    kind, kind_sd = _kind(device)
    memory_share = _memory_share(device) if family == _PROMPTS else 1.0
    if device.vendor == "AMD" and family in _BY_CLOCK:  # of others its own rows say so
        memory_share = _OF_NVIDIAS_MEMORY
    return Machine(
        device.clock_hz if family in _BY_CLOCK else None,
        {dtype: share for dtype, share in _sustained(device, family).items() if share < 1},
        memory_share,
        any(one in device.arch for one in _TAKES_KERNELS),
        kind, _LOOPS_LABORATORY_SD if family in _LOOPS else _LABORATORY_SD, kind_sd,
    )  # fmt: skip


def machines_of(names: Iterable[str], family: str) -> dict[str, Machine]:
    """Those of devices by name; none of a device that is not known."""
    out = {}
    for name in names:
        try:
            out[name] = machine_of(load_device(name), family)
        except InputError:
            out[name] = NO_FACTS
    return out


def _sustained(device: DeviceSpec, family: str) -> dict[str, float]:
    """Share of each peak that a device holds, against a usual one."""
    held = {"fp32": _single(device)} if family in _SINGLE else {}
    if family in _PRODUCTS & _SINGLE and has_gddr(device):
        held["fp32"] = min(held["fp32"], lanes_share(device))
    if family in _ON_MATRIX_UNITS:
        # in 16 bits a law of clock and power brought nothing on A100, H100 and B200 left out
        held |= dict.fromkeys(_NARROW, held_share(device) if has_gddr(device) else 1.0)
    if device.vendor == "AMD" and family in _PRODUCTS | _ATTENTION | {"moe"}:
        narrow = matrix_share(device)
        if narrow is None:
            narrow = _OF_NVIDIAS_SHARE
        elif family in _ATTENTION:
            narrow /= _LONG_PRODUCTS
        held = dict.fromkeys(_NARROW, narrow) | dict.fromkeys(("fp32", "tf32"), _OF_NVIDIAS_SHARE)
    return held


def _kind(device: DeviceSpec) -> tuple[str, float]:
    """(class of devices, deviation of the log of seconds by the constants of NVIDIA's with HBM)."""
    if device.vendor != "NVIDIA":
        return device.vendor, _VENDOR_SD
    return ("GDDR", _MEMORY_KIND_SD) if has_gddr(device) else ("", 0.0)


def _single(device: DeviceSpec) -> float:
    """Share of the fp32 peak that the power limit lets products hold."""
    peak = device.peak_flops_per_s.get("fp32")
    if device.tdp_w is None or peak is None:
        return 1.0
    year = device.year or _USUAL_YEAR
    better = next((factor for since, factor in _BETTER_SINCE if year >= since), _OF_OLDER)
    return min(1.0, _SINGLE_FLOPS_PER_J * better * device.tdp_w / peak)


def _memory_share(device: DeviceSpec) -> float:
    """Of the memory's bandwidth, against a device with `_USUAL_BYTES`."""
    if device.multiprocessors is None or device.clock_hz is None:
        return 1.0
    cycles_per_s = device.multiprocessors * device.clock_hz
    more = _USUAL_BYTES * cycles_per_s / device.memory_bytes_per_s
    return float(min(more**_MEMORY_POWER, _MOST_MEMORY))
