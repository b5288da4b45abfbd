"""What a GPU's power limit leaves of its boost clock in long kernels on tensor cores.

Cards with GDDR memory hold 0.59 TFLOP/s of 16 bits a watt, and no more than the `REACHED_SHARE` of
their peak that free ones reach: T4 0.56, L40S 0.59, whatever the process; L20 and RTX 4090 need no
more. Less than 0.69 of that none holds, however few its watts: best products in bf16 reach 0.70 of
an L40S, 0.76 of an RTX 6000 Ada and of an L4 of 72 W (mag-, "gpu_benchmark", 2024). Not so
Blackwell's (sm_120): requests on an RTX PRO 6000 see tokens too late with that limit.
Cards with HBM hold less of their clock the more TFLOP/s a watt has to feed: large products of A100,
H100, GB300 and B200 (0.78, 1.41, 1.79, 2.25 TFLOP/s a watt) show 0.96, 0.89, 0.87 and 0.78 of it.

AMD's long products in 16 bits reach less of the matrix peak the more of it a watt has to feed:
MI250X 0.77, MI325X 0.60 to 0.64, MI300X 0.51 to 0.54 with 0.68, 1.31 and 1.74 TFLOP/s a watt
(Bekman, "Machine Learning Engineering", 2025; AMD, "Measuring Max-Achievable FLOPs", 2025). CDNA 4
does it by three quarters of the joules: MI355X 0.64 and MI350X 0.45 to 0.51 with 1.80 and 2.31 (Hu
et al., "HipKittens", 2025). With one of the five left out the line through the rest is 1 to 10 %
off it, 17 % where that is the MI350X: chosen in sight of all five. These are
best shapes; ten of DeepSeek V3 reach 0.74 to 0.81 of an MI325X's best (AMD, "Typical Attained
FLOPs", 2026), where an H100's would 0.94 by its rows.

In single precision twice the lanes for the same registers reach less of their peak
(`lanes_share`), whatever the power: cuBLAS 23.2 of an RTX A6000's 38.7 TFLOP/s (Boehm, "How to
Optimize a CUDA Matmul Kernel", 2022) and 57.6 of an RTX 4090's 82.6 (xzwgit, "gpu-flops-bench",
2026), whose mean an L20 left out has, too; an H100 0.85 of the share that an A100 does (NeuSight).
"""

from __future__ import annotations

from hybridperf.hardware.specs import DeviceSpec, architecture

REACHED_SHARE = 0.83  # of the peak, by large products of cards whose power does not limit them
_HELD_FLOPS_PER_J, _LEAST_HELD = 0.59e12, 0.69
_GDDR = ("sm_52", "sm_61", "sm_75", "sm_86", "sm_89", "sm_120")
_UNLIMITED = "sm_120"
_LANES_SHARE = {"sm_86": 0.66, "sm_89": 0.66, "sm_90": 0.85}
# share of the clock where a watt fed nothing, and what each FLOP of a joule takes of it
_HBM_CLOCK, _HBM_CLOCK_PER_FLOP = 1.045, 0.11e-12
# of AMD's matrix peak where a watt fed nothing, and what each FLOP of a joule takes of it
_MATRIX_SHARE, _MATRIX_PER_FLOP = 0.91, 0.21e-12
_MATRIX_UNKNOWN, _LEAST_MATRIX = 0.6, 0.4  # where the watts are not known; none was seen below


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


def matrix_share(device: DeviceSpec) -> float | None:
    """Share of an AMD card's matrix peak that long products in 16 bits reach at best; None where
    nobody wrote down what its architecture's matrix units take.
    """
    watts, peak = device.tdp_w, device.peak_flops_per_s.get("fp16")
    joules = architecture(device.arch).get("matrix_joules")
    if joules is None:
        return None
    if watts is None or peak is None:
        return _MATRIX_UNKNOWN
    return max(_MATRIX_SHARE - _MATRIX_PER_FLOP * joules * peak / watts, _LEAST_MATRIX)
