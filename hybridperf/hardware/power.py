"""What a GPU's power limit leaves of its boost clock in long kernels on tensor cores.

Cards with GDDR memory hold 0.59 TFLOP/s of 16 bits a watt, and no more than the `REACHED_SHARE` of
their peak that free ones reach: T4 0.56, L40S 0.59, whatever the process; L20 and RTX 4090 need no
more. Less than 0.69 of that none holds, however few its watts: best products in bf16 reach 0.70 of
an L40S, 0.76 of an RTX 6000 Ada and of an L4 of 72 W (mag-, "gpu_benchmark", 2024). Not so
Blackwell's (sm_120): requests on an RTX PRO 6000 see tokens too late with that limit.
Cards with HBM hold less of their clock the more TFLOP/s a watt has to feed: large products of A100,
H100, GB300 and B200 (0.78, 1.41, 1.79, 2.25 TFLOP/s a watt) show 0.96, 0.89, 0.87 and 0.78 of it.

In single precision twice the lanes for the same registers reach less of their peak
(`lanes_share`), whatever the power: cuBLAS 23.2 of an RTX A6000's 38.7 TFLOP/s (Boehm, "How to
Optimize a CUDA Matmul Kernel", 2022), an H100 0.85 of the share that an A100 does (NeuSight).
"""

from __future__ import annotations

from hybridperf.hardware.specs import DeviceSpec

REACHED_SHARE = 0.83  # of the peak, by large products of cards whose power does not limit them
_HELD_FLOPS_PER_J, _LEAST_HELD = 0.59e12, 0.69
_GDDR = ("sm_52", "sm_61", "sm_75", "sm_86", "sm_89", "sm_120")
_UNLIMITED = "sm_120"
_LANES_SHARE = {"sm_86": 0.75, "sm_89": 0.75, "sm_90": 0.85}
# share of the clock where a watt fed nothing, and what each FLOP of a joule takes of it
_HBM_CLOCK, _HBM_CLOCK_PER_FLOP = 1.045, 0.11e-12


def has_gddr(device: DeviceSpec) -> bool:
    """Whether a GPU is of an architecture that is sold with GDDR memory; others have HBM."""
    return device.arch.endswith(_GDDR)


def held_share(device: DeviceSpec) -> float:
    """Share of the peak in 16 bits, and of narrower ones, that a card's watts feed; 1: all."""
    watts, peak = device.tdp_w, device.peak_flops_per_s.get("fp16")
    if watts is None or peak is None or _UNLIMITED in device.arch:
        return 1.0
    if has_gddr(device):
        return min(1.0, max(_HELD_FLOPS_PER_J * watts / (REACHED_SHARE * peak), _LEAST_HELD))
    return min(1.0, _HBM_CLOCK - _HBM_CLOCK_PER_FLOP * peak / watts)


def lanes_share(device: DeviceSpec) -> float:
    """Share of what products in fp32 reach of the peak on 64 lanes that they do on a card's."""
    return _LANES_SHARE.get(device.arch.split()[-1], 1.0)
