"""Seconds of backward kernels over those of their forward, where there is no op of their own to
price.

A product's backward is two products and needs no ratio: 1.6 to 2.1 times the forward in NeuSight's
ops of BERT and GPT-2 (23 products, fp32). Loops whose forward is an elementwise op are counted by
the bytes they move: GELU 1.5, measured 1.2 to 1.5; scaling 1.0, measured 0.94. The rest is here:
each ratio with the range it may lie in, and why. Measured ratios of whole layers lie between 0.86
and 1.71 (`chimera_profiles`), so backward = 2 x forward is nowhere assumed.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridperf.ops import attention_kernels


class Ratio(NamedTuple):
    """Backward over forward."""

    value: float
    low: float
    high: float


# derived in `ops/attention_kernels.py`
FUSED_ATTENTION = Ratio(attention_kernels.BACKWARD, 2.0, 3.5)
# Reads results and their gradients, writes gradients: three tensors where the forward moves two.
SOFTMAX = Ratio(1.5, 1.2, 2.0)
# The same by PyTorch's own kernel: measured, three rows.
EAGER_SOFTMAX = Ratio(2.65, 2.5, 2.85)
# Input's gradient: reads input and gradient, writes a gradient.
NORM_INPUT = Ratio(1.5, 1.2, 2.0)
# Gradients of scale and shift: input and gradient summed over tokens, read from a cache in part:
# both together measured 1.3 to 1.95.
NORM_PARAMETERS = Ratio(0.45, 0.1, 1.0)
# Two grouped products per grouped product of the experts, as for any product.
EXPERTS = Ratio(2.0, 1.7, 2.3)
