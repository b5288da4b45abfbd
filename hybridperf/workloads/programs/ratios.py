"""Seconds of backward kernels over those of their forward, where there is no op of their own to
price.

A product's backward is two products and needs no ratio: 1.6 to 2.1 times the forward in NeuSight's
ops of BERT and GPT-2 (23 products, fp32). Loops whose forward is an elementwise op are counted by
the bytes they move: GELU 1.5, measured 1.2 to 1.5; scaling 1.0, measured 0.94. The rest is here:
each ratio with the range it may lie in, and why. Measured ratios of whole layers lie between 0.86
and 1.71 (`chimera_profiles`), so backward = 2 x forward is nowhere assumed.
"""

from hybridperf.ops import attention_kernels

FUSED_ATTENTION = attention_kernels.BACKWARD  # derived there; 2.0 to 3.5
# Reads results and their gradients, writes gradients: three tensors where the forward moves two;
# 1.2 to 2.0.
SOFTMAX = 1.5
EAGER_SOFTMAX = 2.65  # the same by PyTorch's own kernel: measured, three rows; 2.5 to 2.85
NORM_INPUT = 1.5  # input's gradient: reads input and gradient, writes a gradient; 1.2 to 2.0
# Gradients of scale and shift: input and gradient summed over tokens, read from a cache in part:
# both together measured 1.3 to 1.95; 0.1 to 1.0.
NORM_PARAMETERS = 0.45
# Two grouped products per grouped product of the experts, as for any product; 1.7 to 2.3.
EXPERTS = 2.0
# Transformer Engine's cast_transpose writes a tensor in both orders: 2 bytes read, twice 1 written,
# where `Quantise` writes 1.
CAST_AND_TRANSPOSED = 4 / 3
