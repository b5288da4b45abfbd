"""How a framework runs a step: what it fuses and launches, and what is assumed of it where nobody
says otherwise.

Launches are counted, not guessed: a layer is host-bound where kernels x launch cost exceeds what
the device needs, as for most published steps of small models.

A framework that tables of measured steps name runs one of a few sets of kernels (`Framework`), and
has habits that are fields of a config or a layout: a file each in `fields/frameworks/`; what all do
that say nothing, and the sets, stand in `frameworks.toml`. One
function, `defaults`, answers what is assumed where nothing is said: rows of steps, plans, launch
files and a `TransformerConfig` all ask it, and it answers alike whether its framework was named or
is the one that is assumed (`assumed_framework`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from hybridperf.fields.frameworks import last_release, over_likes, training_frameworks
from hybridperf.hardware import DTYPE_BYTES, DeviceSpec, canonical_dtype
from hybridperf.io import shipped_toml
from hybridperf.ops.attention_kernels import WIDEST_HEADS
from hybridperf.ops.quantise import SCHEMES
from hybridperf.workloads.transformer.fields import check_word

if TYPE_CHECKING:
    from hybridperf.workloads.transformer.layout import Layout
    from hybridperf.workloads.transformer.shape import TransformerShape

# where a device has no products in the usual precision
_OTHER_PRECISIONS = ("fp16", "fp32")


@dataclasses.dataclass(frozen=True)
class Framework:
    """A set of kernels: switches of those who run it."""

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
    products: str = ""  # library of its products (`model/kernels.toml`)
    expert_kernels: str = ""  # of its mixtures' products (`[variants]` there)
    expert_passes: float = 0.0  # over routed tokens, read or written, forward and back


@functools.cache
def _contents() -> Mapping[str, Any]:
    return shipped_toml(__package__, "frameworks.toml")


@functools.cache
def kernel_sets() -> Mapping[str, Framework]:
    """Which fused kernels a set of that name has, for all sets."""
    every = {name: one.get("own_kernels") for name, one in training_frameworks().items()}
    own = {name: one for name, one in every.items() if one is not None}
    found = over_likes({**_contents()["kernels"], **own})
    return {name: Framework(name, **switches) for name, switches in found.items()}


@functools.cache
def framework_habits() -> Mapping[str, Mapping[str, Any]]:
    """Frameworks by their names in rows of steps, with what each settles where a row does not.

    `framework` is the name, `kernels` that of the set of kernels it runs.
    """
    apart = ("effects", "own_effects", "own_kernels", "stalls")
    return {
        name: {key: value for key, value in one.items() if key not in apart}
        for name, one in training_frameworks().items()
    }


@functools.cache
def assumed_framework() -> str:
    """The framework that is assumed where none is named."""
    return str(_contents()["assumed"])


@functools.cache
def unknown_framework() -> str:
    """What stands for a framework that is named and not known: the mean over those that are."""
    return str(_contents()["unknown"])


def implied_words() -> str:
    """What assuming it implies, in words."""
    return str(_contents()["implies"])


@functools.cache
def does(framework: str, habit: str, dtype: str = "") -> bool:
    """Whether a framework has a habit, in any number format or in one."""
    habits = framework_habits().get(framework, {})
    return (habits | habits.get(f"in_{dtype}", {})).get(habit) is True


def of_release(framework: str, release: str) -> str:
    """The framework that a release (year and month, "26.06") of one is, else the framework."""
    since = framework_habits().get(framework, {}).get("releases", {})
    return str(since.get(last_release(since, release), framework))


def usual_precision(device: DeviceSpec | None, wanted: str = "") -> str:
    """A precision that is assumed on a device: the wanted one, else the usual one, else the first
    of fp16 and fp32 that it has; without a device the usual one.
    """
    usual = str(_contents()["default"]["precision"])
    if device is None:
        return usual
    names = (wanted, usual, *_OTHER_PRECISIONS)
    return next((name for name in names if name in device.peak_flops_per_s), usual)


def defaults(
    framework: str = "", *, device: DeviceSpec | None = None, dtype: str | None = None,
    quant: str = "", own: Mapping[str, Any] | None = None, shape: TransformerShape | None = None,
    layout: Layout | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What is assumed of a step where nothing is said: the one answer for rows of steps, plans,
    launch files and `TransformerConfig`.

    Args:
        framework: its name, or that of a set of kernels; "" where none is named: the assumed one,
            with the same answer as if it were named.
        device: whose number formats count; None: nothing is known of it, so the usual one.
        dtype: of activations; None where it is left open.
        quant: scheme in which layers multiply; "" where it is left open.
        own: habits that precede the framework's: of the publisher of a row.
        shape: the model, whose heads a framework's attention may not take; None: any.
        layout: degrees that decide how a vocabulary is padded, and what can run; None: one rank.

    Returns:
        Fields of a config and of a layout, among them `dtype`, `quant` and `gradient_bytes`, and
        other habits; `precision`: the word for `dtype` and `quant` where neither is given, else "".
    """
    name = framework or assumed_framework()
    habits = framework_habits().get(name) or {"kernels": name, "framework": name}
    found = {**_contents()["default"], **habits, **(own or {})}
    if dtype is None and not quant:
        found["precision"] = usual_precision(device, found["precision"])
        quant = found["precision"] if found["precision"] in SCHEMES else ""
        dtype = usual_precision(device) if quant else found["precision"]
    else:
        found["precision"] = ""
    found |= {"dtype": dtype or usual_precision(device), "quant": quant}
    if found["dtype"] == "bf16":  # what a publisher has otherwise is so in any format
        found |= {**found.get("in_bf16", {}), **(own or {})}
    found.setdefault("gradient_bytes", DTYPE_BYTES.get(canonical_dtype(found["dtype"])))
    if layout is not None and layout.tp > 1:
        found["vocab_multiple"] = found.get("vocab_multiple_tp", found["vocab_multiple"])
    if layout is not None and layout.kind.pipes > 1:
        found["stage_split"] = "even"  # all that is modelled, as below
    if shape is not None:
        if shape.dim > WIDEST_HEADS.get(found["attention_kernel"], math.inf):
            found["attention"] = "unfused"
        if shape.latent is not None or (layout is not None and layout.cp > 1):
            found["attention"] = "fused"
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
    return tuple(dict.fromkeys((*framework_habits(), *kernel_sets())))


def framework_called(name: str, quant: str = "", swiglu: bool = True) -> Framework:
    """A framework's kernels by its name, or by that of a set of kernels; what it does with experts
    in a number format, whether they are gated and without biases (`swiglu`) or not.
    """
    check_word("framework", name, framework_names())
    habits = {**_contents()["default"], **framework_habits().get(name, {"kernels": name})}
    if swiglu:
        habits |= habits.get(f"swiglu_in_{quant}", {})
    own = {name: habits[name] for name in ("products", "expert_kernels", "expert_passes")}
    return dataclasses.replace(kernel_sets()[habits["kernels"]], **own)
