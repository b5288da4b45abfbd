"""How a framework cuts a layer into kernels: what it fuses, and what it launches besides the
model's arithmetic.

Launches are counted, not guessed: a layer is host-bound where kernels x launch cost exceeds what
the device needs, as for most published steps of small models.

Frameworks that rows of measured steps name (`habits`: megatron_core, nanotron, torchtitan ...) run
one of a few sets of kernels, and have habits that are fields of a config or a layout:
`TransformerConfig.run_by` takes them all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

from hybridperf.hardware import DeviceSpec
from hybridperf.io import shipped_toml
from hybridperf.ops.attention_kernels import WIDEST_HEADS
from hybridperf.ops.quantise import SCHEMES
from hybridperf.workloads.transformer.fields import check_word

ASSUMED = "megatron_core"  # whose habits count where no framework is named
_PRECISION = "bf16"  # where a framework has no habit, or the device not its format


@dataclasses.dataclass(frozen=True)
class Framework:
    """Switches of one framework."""

    name: str
    bias_apart: bool  # a product's bias is added by a kernel of its own
    # scale, mask and softmax of unfused attention in one kernel, where it has one for the sizes
    fused_softmax: bool
    fused_residual: bool  # bias, dropout and residual in one kernel
    fused_activation: bool  # bias, activation and gate in one kernel
    rope_kernels: int  # per tensor that is turned
    norm_parameter_kernels: int  # of a norm's backward, for scale and shift
    # a kernel per parameter adds its gradient: to a buffer, from the second on, or none
    gradients: Literal["always", "repeated", "never"]
    # else epilogues of products: sums that are a bias' gradient; GELU and its gradient, which in 8
    # bits is a loop that narrows, too
    bias_sums_apart: bool = True
    gelu_apart: bool = True
    # in 8 bits: attention reads, multiplies and writes narrow numbers, in the order products take
    narrow_attention: bool = False
    # norms write wide numbers, which kernels of their own narrow, and weights in each pass
    narrows_apart: bool = False
    # a kernel for each op of a root mean square norm, in fp32
    composite_norms: bool = False
    products: str = "cublas_12"  # library of its products (`model/kernels.toml`)


_KNOWN = (
    # Megatron-LM and Megatron-DeepSpeed of 2020-22: matmul + bias, fused softmax, JIT-fused loops,
    # Apex norms, a hook per parameter that adds its gradient to a flat buffer
    Framework("megatron", True, True, True, True, 1, 2, "always"),
    # Megatron-LM from 2022 on (core/tensor_parallel/layers.py): products of weights' gradients add
    # to the fp32 buffer (fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32)
    Framework("megatron_2022", True, True, True, True, 1, 2, "never"),
    # GPT-NeoX turns a part of queries and keys by scripted loops and joins it with the rest
    # (megatron/model/transformer.py: cat forward; backward, a slice's gradient fills what it lacks)
    Framework("gpt_neox", True, True, True, True, 3, 2, "always"),
    # a model written in PyTorch ops with the usual fused norm; linear layers add their bias in the
    # product
    Framework("eager", False, False, False, False, 5, 1, "repeated"),
    # the same, its gradients added to a cleared buffer of fp32 from the first micro-batch on
    # (_accumulate_grad of optim/gradient_accumulator.py)
    Framework("nanotron", False, False, False, False, 5, 1, "always"),
    # "eager" with PyTorch's own root mean square norm, before it was one kernel
    # (rms_norm_composite of aten/src/ATen/native/layer_norm.cpp)
    Framework("composite", False, False, False, False, 5, 1, "repeated", composite_norms=True),
    # torch.compile, Transformer Engine: neighbouring loops are one kernel; gradients are added up
    # in the product's epilogue
    Framework("compiled", False, True, True, True, 1, 1, "never"),
    # NVIDIA's BERT of MLPerf (te_layers.py, fmha.py and modeling.py in
    # mlcommons/training_results_v3.1): fused_dense, fused_gemm_gelu, attention of 8 bits
    Framework(
        "mlperf", False, True, True, True, 1, 1, "never",
        bias_sums_apart=False, gelu_apart=False, narrow_attention=True, narrows_apart=True,
    ),
)  # fmt: skip
FRAMEWORKS = {one.name: one for one in _KNOWN}


@functools.cache
def framework_habits() -> Mapping[str, Mapping[str, Any]]:
    """Frameworks by their names in rows of steps, with what each settles where a row does not.

    `framework` is the name, `kernels` that of the set of kernels it runs; in the file one may be
    `like` another one, but for what it settles itself.
    """
    known = shipped_toml(__package__, "frameworks.toml")["framework"]
    found = {name: known.get(habits.pop("like", ""), {}) | habits for name, habits in known.items()}
    return {
        name: {**habits, "kernels": habits["framework"], "framework": name}
        for name, habits in found.items()
    }


@functools.cache
def does(framework: str, habit: str, dtype: str = "") -> bool:
    """Whether a framework has a habit, in any number format or in one."""
    habits = framework_habits().get(framework, {})
    return (habits | habits.get(f"in_{dtype}", {})).get(habit) is True


def settled(
    name: str, device: DeviceSpec | None = None, dtype: str | None = None, quant: str = ""
) -> dict[str, Any]:
    """What a framework does where a user leaves it open: the one rule of rows of steps, of plans
    and of `TransformerConfig.run_by`.

    Args:
        name: of the framework; "" where none is named: the habits of `ASSUMED` then, in bf16.
        device: whose number formats count; None: nothing is known of it, so bf16.
        dtype: of activations; None where it is left open.
        quant: scheme in which layers multiply; "" where it is left open.

    Returns:
        Fields of a config and of a layout, among them `dtype` and `quant`; and `precision`, the
        word for both where neither is given, else "".
    """
    habits = framework_habits()[name or ASSUMED]
    if dtype is not None or quant:
        return {**habits, "precision": "", "dtype": dtype or _PRECISION, "quant": quant}
    precision = habits.get("precision", _PRECISION) if name else _PRECISION
    if device is None or precision not in device.peak_flops_per_s:
        precision = _PRECISION
    quant = precision if precision in SCHEMES else ""
    dtype = _PRECISION if quant else precision
    return {**habits, "precision": precision, "dtype": dtype, "quant": quant}


def config_habits(habits: Mapping[str, Any], tp: int, head_dim: int) -> dict[str, Any]:
    """A framework's habits in their number format, which decides how gradients are summed, at a
    tensor-parallel degree, which decides how the vocabulary is padded, and for heads of a size,
    which decides whether its attention's kernel takes them.
    """
    found = dict(habits)
    if tp > 1 and "vocab_multiple_tp" in habits:
        found["vocab_multiple"] = habits["vocab_multiple_tp"]
    if found["dtype"] == "bf16":
        found |= habits.get("in_bf16", {})
    if head_dim > WIDEST_HEADS.get(habits.get("attention_kernel", ""), math.inf):
        found["attention"] = "unfused"
    return found


@functools.cache
def framework_of_programs(compiled: bool) -> str:
    """The framework whose step effects a captured PyTorch program has."""
    wanted = "compiled" if compiled else "eager"
    every = framework_habits().items()
    return next(name for name, habits in every if habits.get("programs") == wanted)


@functools.cache
def framework_names() -> tuple[str, ...]:
    """All names of `framework_called`."""
    return tuple(dict.fromkeys((*framework_habits(), *FRAMEWORKS)))


def framework_called(name: str) -> Framework:
    """A framework's kernels by its name, or by that of a set of kernels."""
    check_word("framework", name, framework_names())
    habits = framework_habits().get(name, {})
    kernels = FRAMEWORKS[habits.get("kernels", name)]
    return dataclasses.replace(kernels, products=habits.get("products", kernels.products))
