"""Two-dimensional convolution, forward or either backward pass (all three multiply and add equally often)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from hybridperf.hardware import Unit
from hybridperf.ops.base import GROUPS, Op, log_sizes, register, tails
from hybridperf.ops.gemm import FLOPS_PER_MULTIPLY_ADD
from hybridperf.roofline import Work


@register("conv", "convolution")
@dataclasses.dataclass(frozen=True)
class Convolution(Op):
    """NCHW sizes. `taps`: mean number of kernel positions that lie inside the image, kh * kw where nothing says otherwise."""

    group: ClassVar[str] = "convolution"
    unit: ClassVar[Unit] = "matrix"
    optional: ClassVar = {"groups": 1.0, "taps": 0.0, "kw": 0.0, "w_in": 0.0, "w_out": 0.0}
    synonyms: ClassVar = {"kernel_size": "kh"}
    zero_allowed: ClassVar = frozenset({"taps", "kw", "w_in", "w_out"})

    batch: Any
    c_in: Any
    c_out: Any
    h_in: Any
    h_out: Any
    kh: Any
    kw: Any = 0.0  # 0: square, as kh
    w_in: Any = 0.0  # 0: square, as h_in
    w_out: Any = 0.0  # 0: square, as h_out
    groups: Any = 1.0
    taps: Any = 0.0  # 0: kh * kw

    def work(self) -> Work:
        kw = self.kw + (self.kw == 0) * self.kh
        w_in, w_out = self.w_in + (self.w_in == 0) * self.h_in, self.w_out + (self.w_out == 0) * self.h_out
        taps = self.taps + (self.taps == 0) * self.kh * kw
        outputs = self.batch * self.c_out * self.h_out * w_out
        weights = self.kh * kw * self.c_in / self.groups * self.c_out
        moved = (self.batch * self.c_in * self.h_in * w_in + weights + outputs) * self.element_bytes
        return Work(
            flops=FLOPS_PER_MULTIPLY_ADD * outputs * self.c_in / self.groups * taps,
            bytes=moved,
            reuse_bytes=moved,
            steps=self.batch * self.h_out * w_out * self.kh * kw,  # addresses: which pixel lies under each position of the kernel
        )

    def shape(self) -> dict[str, Any]:
        kernel = self.kh * (self.kw + (self.kw == 0) * self.kh)
        taps = self.taps + (self.taps == 0) * kernel
        w_out = self.w_out + (self.w_out == 0) * self.h_out
        return {
            **log_sizes(batch=self.batch, c_in=self.c_in, c_out=self.c_out, pixels=self.h_out * w_out, width=w_out, kernel=kernel),
            **log_sizes(groups=self.groups, stride=self.h_in / self.h_out),
            **tails(2, c_in=self.c_in),
            **tails(4, c_in=self.c_in, c_out=self.c_out),
            **tails(16, c_in=self.c_in, c_out=self.c_out),
            **tails(64, c_out=self.c_out),
            "odd": self.c_in % 2.0,
            "outside": kernel / taps - 1.0,  # positions of the kernel that fall into the padding, or between dilated pixels
        }

    def group_index(self) -> Any:
        """Libraries have no fast path for grouped convolutions: other knobs."""
        return np.where(np.asarray(self.groups) > 1, GROUPS.index("grouped_convolution"), GROUPS.index("convolution"))
