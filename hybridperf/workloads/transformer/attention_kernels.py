"""Which fused attention a framework trains with. Tables of measured attention are of the fastest kernels that serve prompts today; a
framework of an earlier year runs an earlier generation, on the same device up to three times slower.

    flash1    FlashAttention 1 and its Triton port (2022 to mid 2023): 25 to 40 % of an A100's peak, and half of flash2's rate
    flash2    FlashAttention 2 (mid 2023 on, PyTorch's own): 50 to 73 % of an A100's peak, 35 % of an H100's

Shares are those of forward and backward together on long sequences, as their authors publish them (Dao, FlashAttention-2, 2023; Shah et
al., FlashAttention-3, 2024); of a range the geometric mean. None was fitted to measured steps. What depends on sizes is the op model's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_AMPERE, _HOPPER = "Ampere sm_80", "Hopper sm_90"
_FLASH_2_HOPPER = 0.35
_OVER_FLASH_1 = 2.0  # "around 2x speedup compared to FlashAttention"
SHARES: Mapping[str, Mapping[str, float]] = {  # of the matrix units' peak, by kernel and architecture
    "flash1": {_AMPERE: math.sqrt(0.25 * 0.40), _HOPPER: _FLASH_2_HOPPER / _OVER_FLASH_1},
    "flash2": {_AMPERE: math.sqrt(0.50 * 0.73), _HOPPER: _FLASH_2_HOPPER},
}
KERNELS = ("", *SHARES)  # empty: the op model's own


def published_share(kernel: str, arch: str) -> float | None:
    """Share of the peak that a kernel reaches on an architecture; None where nobody published one."""
    return SHARES[kernel].get(arch) if kernel else None
