"""How a framework cuts a layer into kernels: what it fuses, and what it launches besides the model's arithmetic.

Launches are counted, not guessed: a layer is host-bound where kernels x launch cost exceeds what the device needs, as for most published
steps of small models (training_steps.md, sections 2 and 3).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from hybridperf.io import unknown


@dataclasses.dataclass(frozen=True)
class Framework:
    """Switches of one framework."""

    name: str
    bias_apart: bool  # a product's bias is added by a kernel of its own
    fused_softmax: bool  # scale, mask and softmax of unfused attention in one kernel, where it has one for the sizes
    fused_residual: bool  # bias, dropout and residual in one kernel
    fused_activation: bool  # bias, activation and gate in one kernel
    rope_kernels: int  # per tensor that is turned
    norm_parameter_kernels: int  # of a norm's backward, for scale and shift
    gradients: Literal["always", "repeated", "never"]  # a kernel per parameter adds its gradient: to a buffer, from the second on, or none


_KNOWN = (
    # Megatron-LM and Megatron-DeepSpeed of 2020-22: matmul + bias, fused softmax, JIT-fused loops, Apex norms, a hook per parameter
    # that adds its gradient to a flat buffer
    Framework("megatron", True, True, True, True, 1, 2, "always"),
    # a model written in PyTorch ops with the usual fused norm; linear layers add their bias in the product
    Framework("eager", False, False, False, False, 5, 1, "repeated"),
    # torch.compile, Transformer Engine: neighbouring loops are one kernel; gradients are added up in the product's epilogue
    Framework("compiled", False, True, True, True, 1, 1, "never"),
)
FRAMEWORKS = {one.name: one for one in _KNOWN}


def framework_called(name: str) -> Framework:
    """A framework by name; `InputError` for one nobody knows."""
    if name not in FRAMEWORKS:
        raise unknown("framework", name, FRAMEWORKS, f"known are {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
