"""Seconds of ops on a device that has no measurement of them: as large a share of the datasheet's
roofline as its reference device reaches.

    seconds = t + roofline(device, op) x (measured(reference, op) - t) / roofline(reference, op)
              x (power limit of the reference / own)^(1/3)

`t` is what an op's kernels take to fill and to empty a device (`FIXED_S` each, or what the op takes
beyond the roofline, if less), which a faster memory makes no quicker: decoding steps of four GPUs
left out in turn are 7.1 % off in the mean with it (`validate serving --tasks gpus`).

The reference device is the shipped calibration of the same architecture, or generation, that has
such ops; where there is none, that of the nearest peak, and of equal ones that of the nearest
memory. An op in FP4 takes the share of one in FP8 where no device has it. The last factor counts
within an architecture alone and is never below 1: what more power gains nobody measured. Products
in 16 bits on a device that was measured in 32 are no nearer their peak than those: tensor cores are
fed by the same memory and heat the same chip. Where no calibration is shipped at all, a share that
devices commonly reach is taken.

Lookups take as long as on a device of the same architecture that has measured them: a bag's rows
are read one after the other, which waits for latency, so neither memory's bandwidth nor its share
tells (20 of the H100 take 0.95 to 1.05 times what they take on the H200, whose memory is 1.4 times
as fast; by the H200's fit they err by 3 %, by its share of the roofline 17, by the form below 91).
They take no less than by caches that other GPUs show (`lookup_prior.py`), which is all that tells
of them elsewhere, and how sure that is: a share of the roofline says little of another cache.

Both 16-bit formats multiply at one rate where the datasheet says so; calibrations are of bf16, so
fp16 attention is priced as bf16's. Products in fp16 stay with their own measurements: as bf16's,
published steps of A100s over nodes are missed by 12 % in place of 8 %, those of the Megatron papers
by 9 % in place of 5 % (one node alone by 6.0 % in place of 6.5 %).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec
from hybridperf.io import InputError
from hybridperf.learning.prior import Adapted, uninformed_knobs
from hybridperf.learning.prior.implementation import OpImplementation
from hybridperf.model.families import family_of, gpu_of, op_rows, references_of
from hybridperf.model.group_report import GroupReport
from hybridperf.model.lookup_prior import is_lookup, lookup_prior
from hybridperf.model.platform import OpTable
from hybridperf.ops import (
    FUSED,
    GROUPS,
    DecodeAttention,
    EncoderAttention,
    Gemm,
    LatentAttention,
    Moe,
    Op,
    OpCall,
    PrefillAttention,
)
from hybridperf.ops.inputs import gathered
from hybridperf.ops.latent_attention import PUBLISHED_SHARE
from hybridperf.ops.quantise import SCHEMES
from hybridperf.ops.roofline import RooflineKnobs

# of any kernel on any GPU, believed
FIXED_S = 5e-6
# of experts: two grouped products; scores and choice of experts, three of a token's way to them,
# activation, sum; of a quantised product: the matrix is quantised before it; of one in FP8, whose
# few tokens leave a device empty: parts of the inner dimension, and their sum; of attention that
# decodes: the new keys and values on their way into the cache, parts of the keys, and their merge;
# of latent attention the last two
EXPERTS_KERNELS, QUANTISED_KERNELS, DECODE_KERNELS, LATENT_KERNELS = 8.0, 2.0, 3.0, 2.0


class Calibration(Protocol):
    """What is asked of a `PerfModel`."""

    @property
    def device(self) -> DeviceSpec: ...
    @property
    def knobs(self) -> RooflineKnobs: ...
    @property
    def groups(self) -> Mapping[str, GroupReport]: ...
    @property
    def families(self) -> Mapping[str, Adapted]: ...
    @property
    def stand_in(self) -> Any: ...
    @property
    def references(self) -> Callable[[], Sequence[Any]] | None: ...
    @staticmethod
    def datasheet(device: DeviceSpec) -> Any: ...
    def own_table(self, calls: Sequence[OpCall]) -> OpTable: ...
    def op_seconds(self, table: OpTable) -> np.ndarray: ...
    def roofline_seconds(self, table: OpTable) -> np.ndarray: ...


# A clock follows the cube root of the power that it needs; what memory, leakage and the board draw
# does not fall with it: assumed a quarter of the larger card's limit
_PER_POWER, _STEADY_POWER = 1 / 3, 0.25
# Of the roofline, where no shipped calibration has the op: long products and attention of four
# calibrated GPUs reach 0.67 to 0.84 and 0.46 to 0.52 of it
PRODUCTS_SHARE, ATTENTION_SHARE = 0.75, 0.5
# Of the seconds of gathers, in logs: of two GPUs with caches of 6 and 72 MiB, the one farther off
# by the other's knobs has nine in ten rows within exp(0.69)
GATHERS_WIDTH = 0.42
# Of such shares in logs. The same four GPUs lie within 0.1 and 0.25 of their median (long and short
# sequences); another generation is believed to lie twice as far
PRODUCTS_WIDTH, ATTENTION_WIDTH = 0.2, 0.4
# Of one op of a table, of any size: nine in ten rows of 13 GPUs, each by the calibrations of the
# others, lie within 1.645 of it (pooled; products 0.44, convolutions 0.46, decoding 0.44, experts
# 0.54, loops 0.72). A step has large ones, whose shares differ less
ROW_WIDTH, LOOPS_ROW_WIDTH = 0.45, 0.72
# of lookups: the H200's fit holds nine in ten of its own within 17 %; another device is believed to
# lie as far from it
LOOKUPS_WIDTH = 0.15
_TWINS = {"fp16": "bf16", "bf16": "fp16"}


def is_measured(model: Calibration, op: Op) -> bool:
    """Whether a calibration has such ops in such numbers."""
    group = _group(op)
    adapted = model.families.get(family_of(group, op.dtype) or "")
    report = model.groups.get(group)
    return (adapted is not None and adapted.rows > 0) or (
        report is not None and bool(report.dtypes) and report.measured_dtype(op)
    )


def as_measured(model: Calibration, op: Op) -> Op:
    """The op in the 16-bit format that a calibration has, where both multiply at one rate."""
    twin = _TWINS.get(op.dtype)
    if twin is None or not _rate(model.device, op) or _in_slots(model, op):
        return op
    other = dataclasses.replace(op, dtype=twin)
    same_rate = _rate(model.device, op) == _rate(model.device, other)
    return other if same_rate and _in_slots(model, other) else op


def _wider(op: Op) -> Op | None:
    """A product of the next wider format, whose share of the roofline one in FP4 is believed to
    reach where no device has measured such.
    """
    if isinstance(op, Gemm) and op.quant == "nvfp4":
        return dataclasses.replace(op, dtype="fp8", quant="")
    if isinstance(op, Moe) and op.quant == "nvfp4":
        return dataclasses.replace(op, dtype="fp8", quant="fp8_block")
    return None


def reference_device(
    device: DeviceSpec, op: Op, models: Sequence[Calibration]
) -> Calibration | None:
    """The calibration whose share of the roofline is believed of a device's op, if any has such."""
    having = {}
    for model in models:
        same = as_measured(model, op)
        if is_measured(model, same) and _rate(model.device, same):
            having[model.device.id] = model
    near = references_of(device, having) or ([] if is_lookup(op) else list(having))
    own = device.peak(op.peak_dtype, op.unit), device.memory_bytes_per_s

    def apart(name: str) -> tuple[float, float]:
        there = having[name].device
        rates = _rate(there, as_measured(having[name], op)), there.memory_bytes_per_s
        peak, bandwidth = np.abs(np.log(np.divide(rates, own)))
        return round(peak, 2), bandwidth

    return having[min(near, key=apart)] if near else None


def priced_elsewhere(model: Calibration, calls: Sequence[OpCall]) -> tuple[np.ndarray, np.ndarray]:
    """(places of ops that a model has no measurements of its own of, their believed seconds).

    A device that another one's calibration stands for takes that one's seconds, at its own clock,
    longer by the ratio of rooflines where its peak or bandwidth is less.
    """
    measured = model.stand_in or model
    known = np.array([is_measured(measured, as_measured(measured, one.op)) for one in calls], bool)
    seconds = np.full(len(calls), np.nan)
    if model.stand_in is not None and known.any():
        mine = list(itertools.compress(calls, known))
        seconds[known] = _longer(model, mine) * model.stand_in.op_seconds(
            model.stand_in.table(mine)
        )
    if refers(model) and not known.all():
        others = list(itertools.compress(calls, ~known))
        assert model.references is not None
        seconds[~known] = _believed(measured, model.device, others, model.references())
    at = np.flatnonzero(np.isfinite(seconds))
    return at, seconds[at]


def _longer(model: Calibration, calls: Sequence[OpCall]) -> np.ndarray:
    """Seconds of a device over those of the one whose calibration stands for it [N].

    Shorter where its peak or bandwidth is larger, by no more than its power limit gives it.
    """
    assert model.stand_in is not None
    here, there = (model.datasheet(one.device) for one in (model, model.stand_in))
    here_s, there_s = (bare.op_seconds(bare.own_table(calls)) for bare in (here, there))
    own, other = model.device, model.stand_in.device
    return np.asarray(np.maximum(here_s / there_s, slowed(own, other) / slowed(other, own)))


def refers(model: Calibration) -> bool:
    """Whether calibrations of other devices say anything of a model's: those that are shipped are
    GPUs, which tell nothing of a CPU.
    """
    return model.references is not None and model.device.kind == "gpu"


def believed_spread(model: Calibration, calls: Sequence[OpCall]) -> np.ndarray:
    """Deviations of the logs of believed seconds [N]; NaN for ops that were measured, and for those
    of which only a datasheet tells.
    """
    spread = np.full(len(calls), np.nan)
    if not refers(model) or model.references is None:
        return spread
    measured, known = model.stand_in or model, dict[Any, float]()
    for at, call in enumerate(calls):
        op = call.op
        if call.kernel == FUSED:
            continue
        if by_other_lookups(measured, op):
            spread[at] = lookup_prior().log_seconds(model.device, [op])[1][0]
            continue
        kind = type(op), _group(op), op.dtype, _rate(model.device, op)
        if kind not in known:
            same, referred = as_measured(measured, op), op.unit == "matrix" or is_lookup(op)
            if not referred and not is_measured(measured, same):
                referred = reference_device(model.device, same, model.references()) is not None
            wide = referred and not is_measured(measured, same)
            known[kind] = width_of(op) if wide else np.nan
        spread[at] = known[kind]
    return spread


def spread_of_rows(model: Calibration, calls: Sequence[OpCall]) -> np.ndarray:
    """`believed_spread` of ops of a table, each by itself [N]."""
    spread = believed_spread(model, calls)
    for at in np.flatnonzero(np.isfinite(spread)).tolist():
        op = calls[at].op
        if not is_lookup(op):
            least = ROW_WIDTH if op.unit == "matrix" else LOOPS_ROW_WIDTH
            spread[at] = max(spread[at], GATHERS_WIDTH if gathered(op) is not None else least)
    return spread


def is_long_attention(op: Op) -> bool:
    """Whether an op is attention of whole sequences."""
    return isinstance(op, PrefillAttention | EncoderAttention)


def width_of(op: Op) -> float:
    """Deviation of the log of the share of the roofline that a reference device stands for."""
    if is_lookup(op):
        return LOOKUPS_WIDTH
    return ATTENTION_WIDTH if is_long_attention(op) else PRODUCTS_WIDTH


def by_other_lookups(model: Calibration, op: Op) -> bool:
    """Whether an op is a lookup that goes by what other GPUs' caches show: neither the device nor
    one of its architecture has measured any.
    """
    if not is_lookup(op) or not refers(model) or model.references is None:
        return False
    measured = is_measured(model, op)
    return not measured and reference_device(model.device, op, model.references()) is None


def believed_by(model: Calibration, op: Op) -> str:
    """In words, what prices an op that a model has no measurements of."""
    if not refers(model) or model.references is None:
        return "datasheet roofline"
    found = reference_device(model.device, op, model.references())
    if gathered(op) is not None and gpu_of(model.device) is not None:
        whose = "believed knobs" if found is None else f"the knobs of {found.device.id}"
        return f"the form of gathers at this device's bandwidth and cache, with {whose}"
    if found is not None and is_lookup(op):
        return f"lookups of {found.device.id}"
    if found is not None:
        return f"the share of the roofline that {found.device.id} reaches"
    if is_lookup(op):
        return "bandwidths of memory and L2 that other GPUs show (a wide belief)"
    usual = op.unit == "matrix"
    return "the share of the roofline that devices usually reach" if usual else "datasheet roofline"


def _believed(
    model: Calibration, device: DeviceSpec, calls: Sequence[OpCall], models: Sequence[Calibration]
) -> np.ndarray:
    """Believed seconds of ops [n] that `model`, otherwise the device's, has not measured."""
    bare = model.datasheet(device)
    roofline_s = bare.op_seconds(bare.own_table(calls))
    over, fixed_s = np.ones(len(calls)), np.zeros(len(calls))
    by_reference: dict[str, tuple[Calibration | None, list[int]]] = {}
    asked = list(calls)
    for at, call in enumerate(calls):
        found = reference_device(device, call.op, models)
        if found is None and (wider := _wider(call.op)) is not None:
            found = reference_device(device, wider, models)
            asked[at] = dataclasses.replace(call, op=call.op if found is None else wider)
        by_reference.setdefault("" if found is None else found.device.id, (found, []))[1].append(at)
    for found, places in by_reference.values():
        looked_up = [at for at in places if is_lookup(calls[at].op)]
        if looked_up:
            log_s, _ = lookup_prior().log_seconds(device, [calls[at].op for at in looked_up])
            times = np.array([calls[at].times for at in looked_up])
            fixed_s[looked_up], over[looked_up] = times * np.exp(log_s), 0.0
        places = [at for at in places if not is_lookup(calls[at].op)]
        if found is None:
            over[places] = [1 / _usual_share(calls[one].op) for one in places]
            fixed_s[places] = [
                FIXED_S * calls[one].times * _kernels(calls[one].op)
                * isinstance(calls[one].op, LatentAttention)
                for one in places
            ]  # fmt: skip
            continue
        slower = slowed(device, found.device) if device.arch == found.device.arch else 1.0
        if looked_up:
            there_s = found.op_seconds(found.own_table([calls[at] for at in looked_up]))
            fixed_s[looked_up] = np.maximum(fixed_s[looked_up], there_s * slower)
        if not places:
            continue
        ops = [dataclasses.replace(asked[at], op=as_measured(found, asked[at].op)) for at in places]
        table = found.own_table(ops)
        measured_s, bare_s = found.op_seconds(table), found.roofline_seconds(table)
        kernels = np.array([calls[at].times * _kernels(calls[at].op) for at in places])
        fixed_s[places] = np.minimum(FIXED_S * kernels, np.maximum(measured_s - bare_s, 0.0))
        over[places] = np.maximum((measured_s - fixed_s[places]) / bare_s, 1.0) * slower
    believed_s = fixed_s + roofline_s * over
    for at, seconds in _by_gathers(device, calls, models):
        believed_s[at] = seconds * calls[at].times
    narrow = [
        at
        for at, call in enumerate(calls)
        if DTYPE_BYTES[call.op.dtype] <= DTYPE_BYTES["fp16"] and _group(call.op) in model.groups
    ]
    if narrow:
        own_s = model.op_seconds(model.own_table([calls[at] for at in narrow]))
        believed_s[narrow] = np.maximum(believed_s[narrow], own_s)
    return believed_s


def _by_gathers(
    device: DeviceSpec, calls: Sequence[OpCall], models: Sequence[Calibration]
) -> Iterator[tuple[int, float]]:
    """(place, seconds) of ops that gather rows, by their own form at this device's bandwidth and
    cache: a share of the roofline would not carry over to a cache of another size. The knobs are
    the reference device's, or the beliefs where no device has such ops.
    """
    for at, call in enumerate(calls):
        if gathered(call.op) is None or gpu_of(device) is None:
            continue
        rows = op_rows(call.op, device)
        found = reference_device(device, call.op, models)
        if found is None:
            knobs = uninformed_knobs(rows)
        else:
            adapted = found.families[family_of(_group(call.op), call.op.dtype) or ""]
            knobs = adapted.knobs.including(adapted.prior.population, rows.implementation)
        yield at, float(np.exp(knobs.closed(rows).total[0]))


def _kernels(op: Op) -> float:
    """That an op runs as, in tables of ops."""
    if isinstance(op, Moe):
        return EXPERTS_KERNELS
    if isinstance(op, DecodeAttention):
        return DECODE_KERNELS
    if isinstance(op, LatentAttention):
        return LATENT_KERNELS if float(op.valued) else 1.0
    if not isinstance(op, Gemm):
        return 1.0
    narrowed = SCHEMES[op.quant].narrow_bytes if op.quant else op.dtype == "fp8"
    return QUANTISED_KERNELS if narrowed else 1.0


def _usual_share(op: Op) -> float:
    """Share of the roofline that ops of no reference device are believed to reach."""
    if op.unit != "matrix":
        return 1.0
    if isinstance(op, LatentAttention):
        return PUBLISHED_SHARE
    return PRODUCTS_SHARE if isinstance(op, Gemm) else ATTENTION_SHARE


def slowed(device: DeviceSpec, of: DeviceSpec) -> float:
    """Seconds of a device over those of one with more power; less power gains nothing."""
    if device.tdp_w is None or of.tdp_w is None:
        return 1.0
    steady_w = _STEADY_POWER * min(of.tdp_w, device.tdp_w * 2)
    left = (of.tdp_w - steady_w) / (device.tdp_w - steady_w)
    return max(left**_PER_POWER, 1.0)


def _group(op: Op) -> str:
    return GROUPS[int(op.group_index())]


def _rate(device: DeviceSpec, op: Op) -> float:
    """FLOP/s of a device in an op's numbers; 0 where it has none."""
    try:
        return device.peak(op.peak_dtype, op.unit)
    except InputError:
        return 0.0


def _in_slots(model: Calibration, op: Op) -> bool:
    """Whether an adapted prior has met ops of this family and number format."""
    adapted = model.families.get(family_of(_group(op), op.dtype) or "")
    return adapted is not None and any(
        OpImplementation.parse(name).dtype == op.dtype for name in adapted.knobs.implementations
    )
