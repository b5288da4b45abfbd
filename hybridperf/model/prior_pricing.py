"""Ops that adapted priors price: which they are, what was assumed, what they take issued apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.io import closest, shipped_toml
from hybridperf.io.namespace import array_module, put
from hybridperf.learning.inputs import Inputs
from hybridperf.learning.prior import Adapted, FamilyRows, Predicted
from hybridperf.learning.prior import concatenate as join_rows
from hybridperf.learning.prior.implementation import OpImplementation
from hybridperf.model.families import (
    by_family,
    family_rows,
    framework_of,
    with_defaults,
    with_slots,
)
from hybridperf.ops import Elementwise, Gemm, Norm, Op, OpCall, Quantise, RmsNorm
from hybridperf.ops.loops import RowByRow
from hybridperf.ops.quantise import SCHEMES
from hybridperf.ops.table import OpRows, stacked

LOOPS = ("elementwise", "softmax", "norm")  # families of loops over rows
PRODUCTS, QUANTISE = "matmul", "quantise"
LEAST_PRODUCT = 0.5  # of a quantised layer: so much at least is its product
# lower bound of a GPU's kernel: median of a V100's short elementwise kernels in the test traces of
# facebookresearch/HolisticTraceAnalysis
KERNEL_S = 2.2e-6
# of a norm, which waits for sums of its rows: one in ten of PyTorch on our H100 and H200
NORM_S = 2.8e-6
# elements: milliseconds, far above what a launch costs, and no more than was measured
LONG_LOOP = 2.0**27


def members(
    families: Mapping[str, Adapted], device: DeviceSpec, calls: Sequence[OpCall],
    parts: Sequence[OpRows],
) -> dict[str, tuple[np.ndarray, FamilyRows, np.ndarray]]:  # fmt: skip
    """By family, the ops that an adapted prior prices: (positions, its rows, what was assumed).

    `parts`: the calls, stacked.
    """
    found: dict[str, list[tuple[np.ndarray, FamilyRows]]] = {}
    kinds = {kind: at for at, kind in enumerate(
        dict.fromkeys((call.framework, call.variant) for call in calls if families)
    )}  # fmt: skip
    run_by = np.array(
        [-1 if call.inlined or not families else kinds[call.framework, call.variant]
         for call in calls], int
    )  # fmt: skip
    for kind, at in kinds.items():
        for part in parts:
            run = run_by[part.rows] == at
            for family, keep in by_family(part):
                if family in families and (keep := keep & run).any():
                    slots = families[family].prior.population.implementations
                    rows = _of_framework(part, keep, device, *kind, slots)
                    found.setdefault(family, []).append((part.rows[keep], rows))
    out = {}
    for family, some in found.items():
        slots = families[family].prior.population.implementations
        rows, assumed = with_defaults(join_rows([rows for _, rows in some]), slots)
        out[family] = np.concatenate([at for at, _ in some]), rows, assumed
    return out


def predicted(adapted: Adapted, rows: FamilyRows) -> Predicted:
    """Times of ops on a device; a product without a bias takes no longer than one with.

    Tables of PyTorch's layers have only the latter: a GPU measured by them alone knows its products
    without a bias by what they take elsewhere.
    """
    found, known = adapted.predict(rows), adapted.prior.population.implementations
    slots = rows.implementation.copy()
    for slot in dict.fromkeys(slots):
        if (twin := _with_bias(slot)) in known:
            slots[slots == slot] = twin
    bare = slots != rows.implementation
    if not bare.any():
        return found
    biased = with_slots(rows, slots)
    values, names = biased.inputs.values.copy(), biased.inputs.names
    values = put(values, (bare, names.index("bias")), 1.0)
    biased = dataclasses.replace(biased, inputs=Inputs(names, values))
    module = array_module(found.log_s)
    most = adapted.predict(biased).log_s
    less = module.where(bare, module.minimum(most - found.log_s, 0.0), 0.0)
    shifted = {name: getattr(found, name) + less for name in ("log_s", "low_log_s", "high_log_s")}
    return dataclasses.replace(found, **shifted)


@functools.lru_cache
def _with_bias(slot: str) -> str:
    """How the same implementation of a product with a bias is named; "" of another op."""
    named = OpImplementation.parse(slot)
    return str(named._replace(op="linear")) if named.op == "gemm" else ""


def _of_framework(
    part: OpRows, keep: np.ndarray, device: DeviceSpec, framework: str, variant: str,
    known: Sequence[str],
) -> FamilyRows:  # fmt: skip
    """Rows `keep` (a mask [R]) of a part as a framework runs them, where it was met, by the kernel
    that it has there; else as one that is not named.
    """
    if framework:
        usual = _usual_kernel(device.arch, part.op, framework, variant)
        for words in filter(None, (usual, {"framework": framework})):
            labels = {name: np.full(len(part.rows), word, object) for name, word in words.items()}
            rows = family_rows(dataclasses.replace(part, labels=labels), keep, device)
            if np.isin(with_defaults(rows, known)[0].implementation, known).all():
                return rows
    return family_rows(part, keep, device)


def _usual_kernel(arch: str, op: Op, framework: str, variant: str) -> dict[str, str]:
    """Words of the kernel that runs an op on an architecture (`kernels.toml`); empty: not told."""
    table = _kernels().get(arch.split()[-1], {})
    words = [op.group, framework, getattr(op, "quant", "") or op.dtype, variant]
    for most in range(len(words), 1, -1):
        if found := table.get(" ".join(filter(None, words[:most]))):
            return dict(zip(("framework", "kernel"), found.split(), strict=True))
    return {}


@functools.cache
def _kernels() -> Mapping[str, Any]:
    return shipped_toml(__package__, "kernels.toml")


def remarks(
    family: str, adapted: Adapted, device: DeviceSpec, rows: FamilyRows, assumed: np.ndarray
) -> list[str]:
    """What was assumed of each row, or never met [N]."""
    alone = "" if adapted.rows else f"prior alone: no {family} of {device.id} was measured"
    unknown_slot = np.full(len(rows.implementation), "", object)
    for slot in dict.fromkeys(rows.implementation[~known(adapted, rows)]):
        meant = _closest_framework(str(slot), adapted.knobs.implementations)
        text = f"no such {family} was measured{meant}: usual knobs of the family"
        unknown_slot[rows.implementation == slot] = text
    pairs = zip(assumed, unknown_slot, strict=True)
    return ["; ".join(filter(None, (alone, *pair))) for pair in pairs]


def known(adapted: Adapted, rows: FamilyRows) -> np.ndarray:
    """Whether each row is of an implementation that was met, here or by the prior [N]."""
    return np.isin(rows.implementation, adapted.knobs.implementations)


def kernels_alone(
    family: str, adapted: Adapted, device: DeviceSpec, calls: Sequence[OpCall], log_s: np.ndarray
) -> np.ndarray:
    """Log seconds of ops [N] without the launch that tables of single ops include.

    Only loops show it: on the V100 of NeuSight's tables none takes less than 28 us, where a
    profiler sees 2 us. Those issued apart cost the lower bound of a kernel plus what each element
    costs in a long loop over rows as long. Products take longer than their launch and stay as they
    are.
    """
    of_rows = {
        at: call.op
        for at, call in enumerate(calls)
        if call.issued_apart and isinstance(call.op, Elementwise | RowByRow)
    }
    if not of_rows or device.kind != "gpu":
        return log_s
    apart, loops = list(of_rows), of_rows.values()
    long, elements = [], np.array([float(op.rows) * float(op.cols) for op in loops])
    for op in loops:
        cols = 1024.0 if isinstance(op, Elementwise) else float(op.cols)
        long.append(OpCall(dataclasses.replace(op, rows=LONG_LOOP / cols, cols=cols)))
    _, rows, _ = members({family: adapted}, device, long, stacked(long, device))[family]
    element_s = np.exp(adapted.predict(rows).log_s) / LONG_LOOP
    alone = np.array(log_s)
    least_s = np.array([NORM_S if isinstance(op, Norm | RmsNorm) else KERNEL_S for op in loops])
    alone[apart] = np.minimum(alone[apart], np.log(least_s + element_s * elements))
    return alone


def products_alone(
    families: Mapping[str, Adapted], device: DeviceSpec, calls: Sequence[OpCall], log_s: np.ndarray
) -> np.ndarray:
    """Log seconds of products [N] without making their input narrow, which tables of quantised
    layers include and a step issues apart: no longer than the same product in wide numbers.
    """
    narrowed = {
        at: call.op
        for at, call in enumerate(calls)
        if call.issued_apart and isinstance(call.op, Gemm) and _narrows(call.op.quant)
    }
    if not narrowed or QUANTISE not in families:
        return log_s

    def seconds(family: str, ops: Iterable[Op]) -> np.ndarray:
        asked = [OpCall(op) for op in ops]
        found = members({family: families[family]}, device, asked, stacked(asked, device))
        _, rows, _ = found[family]
        return np.exp(families[family].predict(rows).log_s)

    ops, at = narrowed.values(), list(narrowed)
    made_s = seconds(QUANTISE, (Quantise(op.dtype, op.m, op.k, quant=op.quant) for op in ops))
    wide_s = seconds(PRODUCTS, (dataclasses.replace(op, quant="") for op in ops))
    alone, whole_s = np.array(log_s), np.exp(log_s[at])
    left_s = np.maximum(whole_s - made_s, LEAST_PRODUCT * whole_s)
    alone[at] = np.log(np.minimum(left_s, wide_s))
    return alone


def _narrows(quant: str) -> bool:
    return bool(quant) and SCHEMES[quant].narrow_bytes > 0


def _closest_framework(slot: str, known: Sequence[str]) -> str:
    """A hint if the framework looks misspelt; other words are checked where tables are read."""
    frameworks = {framework_of(other) for other in known} - {""}
    given = framework_of(slot)
    return "" if not given or given in frameworks else closest(given, frameworks)
