"""Seconds of ops on a device that has no measurement of them: as large a share of the datasheet's
roofline as its reference device reaches.

    seconds = t + roofline(device, op) x (measured(reference, op) - t) / roofline(reference, op)
              x (power limit of the reference / own)^(1/3)

`t` is what an op's kernels take to fill and to empty a device (`FIXED_S` each, or what the op takes
beyond the roofline, if less), which a faster memory makes no quicker: decoding steps of four GPUs
left out in turn are 7.1 % off in the mean with it (claim `serving --tasks gpus`).

The reference device is the shipped calibration of the same architecture, or generation, that has
such ops; where there is none, that of the nearest peak, and of equal ones that of the nearest
memory. An op in FP4 takes the share of one in FP8 where no device has it. The last factor counts
within an architecture alone and is never below 1: what more power gains nobody measured. Products
in 16 bits on a device that was measured in 32 are no nearer their peak than those: tensor cores are
fed by the same memory and heat the same chip. Between cards with GDDR it is also what watts feed of
the tensor cores of each (`hardware/power.py`). Where no calibration is shipped at all, a share that
devices commonly reach is taken.

Lookups take as long as on a device of the same architecture that has measured them: a bag's rows
are read one after the other, which waits for latency, so neither memory's bandwidth nor its share
tells (20 of the H100 take 0.95 to 1.05 times what they take on the H200, whose memory is 1.4 times
as fast; by the H200's fit they err by 3 %, by its share of the roofline 17, by the form below 91).
They take no less than by caches that other GPUs show (`lookup_prior.py`), which is all that tells
of them elsewhere, and how sure that is: a share of the roofline says little of another cache.

Both 16-bit formats multiply at one rate where the datasheet says so, and a step's products take one
time in both: by rows of its framework's library (`as_measured`). Megatron's and GPT-NeoX's of 2021
to 2023 go by those of that day; by today's, published steps of A100s over nodes are missed by 12 %
in place of 8 %, those of the Megatron papers by 9 % in place of 5 %.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec
from hybridperf.hardware.power import has_gddr, held_share, lanes_share
from hybridperf.io.namespace import Array, array_module
from hybridperf.learning.prior import nobody
from hybridperf.learning.prior.form import ROW_ROOFLINE
from hybridperf.model.batch import Batch
from hybridperf.model.families import GATHERED, family_rows, gpu_of, references_of
from hybridperf.model.lookup_prior import is_lookup, lookup_prior
from hybridperf.model.sources import Code, Source
from hybridperf.model.stages.closed import priced_alone
from hybridperf.model.stages.family import kernel_floors
from hybridperf.model.stages.step import NOTHING_S, Machine, Step
from hybridperf.model.stages.who import as_measured, has_met, is_measured, rate
from hybridperf.ops import Op
from hybridperf.ops.attention import PUBLISHED_SHARE
from hybridperf.ops.quantise import SCHEMES, measured_scheme
from hybridperf.ops.rows import RowMachine, goes_by_rows

# of any kernel on any GPU, believed
FIXED_S = 5e-6
# Kernels that an op runs as, in tables of ops. Experts: two grouped products; scores and choice of
# experts, three of a token's way to them, activation, sum. Attention that decodes: the new keys and
# values on their way into the cache, parts of the keys, and their merge; of latent attention the
# last two
_KERNELS = {"moe": 8.0, "decode_attention": 3.0}
_LATENT_KERNELS = 2.0
# of a quantised product: the matrix is quantised before it; of one in FP8, whose few tokens leave a
# device empty: parts of the inner dimension, and their sum
_QUANTISED_KERNELS = 2.0
# A clock follows the cube root of the power that it needs; what memory, leakage and the board draw
# does not fall with it: assumed a quarter of the larger card's limit
_PER_POWER, _STEADY_POWER = 1 / 3, 0.25
# Of the roofline, where no shipped calibration has the op: long products and attention of four
# calibrated GPUs reach 0.67 to 0.84 and 0.46 to 0.52 of it
PRODUCTS_SHARE, ATTENTION_SHARE = 0.75, 0.5
_SHARES = {
    "gemm": PRODUCTS_SHARE,
    "gemm_transposed": PRODUCTS_SHARE,
    "latent_attention": PUBLISHED_SHARE,
}
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
# The same by a relative with the same kind of memory: 0.12 on GB300 and A100 PCIe 80GB, as one
# laboratory timed them, and 0.2 that another one adds; more as rates lie apart
RELATIVE_WIDTH, _WIDTH_PER_RATE = 0.23, 0.4
# of lookups: the H200's fit holds nine in ten of its own within 17 %; another device is believed to
# lie as far from it
LOOKUPS_WIDTH = 0.15
_LONG_ATTENTION = ("prefill_attention", "encoder_attention")  # of whole sequences


def by_stand_in(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """Seconds of the device whose calibration stands for this one, longer by the ratio of rooflines
    where its peak or bandwidth is less; shorter where it is more, by no more than its power gives.
    """
    other = Machine.of(machine.model.stand_in)
    there = as_measured(other.model, batch.plain.on(other.device))
    found = priced_alone(there, other)
    own, of = machine.device, other.device
    longer = xp.maximum(log_s - found.roofline_log_s, np.log(slowed(own, of) / slowed(of, own)))
    source = Source(Code.STAND_IN, batch.group, of.id)
    widths = found.log_variance, found.shared_log_variance
    form = Step("form", found.log_s - log_s, source, *widths, found.owner.outside)
    return [form, Step("device", longer, source)]


def by_others(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """What other devices' calibrations say of ops that were not measured here."""
    models, device, op = machine.model.references(), machine.device, batch.op
    found, matrix = reference_device(device, batch, models), op.unit == "matrix"
    by_rows = batch.family and goes_by_rows(op) and RowMachine.of(device) is not None
    shared: Array = ATTENTION_WIDTH if batch.group in _LONG_ATTENTION else PRODUCTS_WIDTH
    if is_lookup(op):
        seconds, source, spread = _lookups(batch, machine, found, xp)
        shared = spread
    elif gpu_of(device) is not None and (batch.family == GATHERED or by_rows):
        seconds, source, spread = _own_form(batch, machine, found)
        shared = shared if source.what == "gathers" else spread
    else:
        seconds, source = _share(batch, machine, found, models, log_s, xp)
        spread = _row_width(device, op, found)
        if source.code in (Code.DATASHEET, Code.BELIEF) and not matrix:
            spread = shared = np.nan
    stand_in = machine.model.stand_in
    measured = machine if stand_in is None else Machine.of(stand_in)
    report = measured.model.groups.get(batch.group)
    if report is not None:
        source = dataclasses.replace(source, only=report.dtypes)
        if DTYPE_BYTES[op.dtype] <= DTYPE_BYTES["fp16"]:
            least = priced_alone(batch.on(measured.device), measured)
            seconds = xp.maximum(seconds, least.seconds(batch.xp))
    factor = xp.log(xp.maximum(seconds, NOTHING_S)) - log_s
    return [Step("borrowed", factor, source, spread**2, shared**2, np.full(len(batch), np.inf))]


def reference_device(device: DeviceSpec, batch: Batch, models: Sequence[Any]) -> Any | None:
    """The calibration whose share of the roofline is believed of ops, if any has such."""
    having, met, op = {}, set[str](), batch.op
    for model in models:
        if not rate(model.device, op):
            continue
        same = as_measured(model, batch.on(model.device))
        if is_measured(model, same):
            having[model.device.id] = model, rate(model.device, same.op)
            met |= {model.device.id} if op.unit == "matrix" and has_met(model, same) else set()
    having = {name: one for name, one in having.items() if name in met} or having
    near = references_of(device, having) or ([] if is_lookup(op) else list(having))
    alike = [name for name in near if has_gddr(having[name][0].device) == has_gddr(device)]
    near = alike or near  # what a card of lower power with GDDR keeps up says nothing of the others
    own = device.peak(op.peak_dtype, op.unit), device.memory_bytes_per_s

    def apart(name: str) -> tuple[float, float]:
        model, peak = having[name]
        rates = peak, model.device.memory_bytes_per_s
        peak, bandwidth = np.abs(np.log(np.divide(rates, own)))
        return round(peak, 2), bandwidth

    return having[min(near, key=apart)][0] if near else None


def _row_width(device: DeviceSpec, op: Op, found: Any | None) -> float:
    """Deviation of the log of one op's seconds, by how near the device is whose share it takes."""
    most = ROW_WIDTH if op.unit == "matrix" else LOOPS_ROW_WIDTH
    if found is None or not references_of(device, [found.device.id]):
        return most
    if has_gddr(device) != has_gddr(found.device):
        return most
    apart = _rates_apart(device, found.device, op)
    return float(min(most, np.hypot(RELATIVE_WIDTH, _WIDTH_PER_RATE * np.hypot(*apart))))


def _rates_apart(device: DeviceSpec, other: DeviceSpec, op: Op) -> tuple[float, float]:
    """Logs of the ratios of peaks and of bandwidths."""
    own, theirs = ((rate(one, op), one.memory_bytes_per_s) for one in (device, other))
    if not min(own[0], theirs[0]):
        return np.inf, np.inf
    peak, bandwidth = np.abs(np.log(np.divide(theirs, own)))
    return float(peak), float(bandwidth)


def slowed(device: DeviceSpec, of: DeviceSpec) -> float:
    """Seconds of a device over those of one with more power; less power gains nothing."""
    if device.tdp_w is None or of.tdp_w is None:
        return 1.0
    steady_w = _STEADY_POWER * min(of.tdp_w, device.tdp_w * 2)
    left = (of.tdp_w - steady_w) / (device.tdp_w - steady_w)
    return max(left**_PER_POWER, 1.0)


def _slower(device: DeviceSpec, of: DeviceSpec) -> float:
    """`slowed`, within an architecture."""
    return slowed(device, of) if device.arch == of.arch else 1.0


def _share(
    batch: Batch, machine: Machine, found: Any | None, models: Sequence[Any], log_s: Array, xp: Any
) -> tuple[Array, Source]:
    """Seconds [R] by the share of the roofline that a reference device reaches."""
    device, asked = machine.device, batch
    if found is None and (wider := _wider(batch, device)) is not None:
        found = reference_device(device, wider, models)
        asked = batch if found is None else wider
    roofline_s = xp.exp(log_s)
    if found is None:
        usual = batch.op.unit == "matrix"
        share = _SHARES.get(batch.group, ATTENTION_SHARE) if usual else 1.0
        latent = batch.group == "latent_attention"
        source = Source(Code.BELIEF if usual else Code.DATASHEET, batch.group)
        return roofline_s / share + (FIXED_S * _kernels(batch, xp) if latent else 0.0), source
    there = as_measured(found, asked.plain.on(found.device))
    priced, own = priced_alone(there, Machine.of(found)), batch.xp  # numbers where sizes are
    measured_s, bare_s = own.exp(priced.log_s), own.exp(priced.roofline_log_s)
    fixed_s = own.minimum(FIXED_S * _kernels(batch, own), own.maximum(measured_s - bare_s, 0.0))
    over = own.maximum((measured_s - fixed_s) / bare_s, 1.0) * _slower(device, found.device)
    if batch.op.peak_dtype == "fp32" and batch.op.group in _SHARES:
        over = over * (lanes_share(found.device) / lanes_share(device))
    narrow = batch.op.unit == "matrix" and DTYPE_BYTES[batch.op.peak_dtype] <= DTYPE_BYTES["fp16"]
    if narrow and has_gddr(device) and has_gddr(found.device):
        held = held_share(found.device) / held_share(device)
        over = own.maximum(over * held, own.minimum(over, 1.0))
    return fixed_s + roofline_s * over, Source(Code.BORROWED, batch.group, found.device.id)


def _lookups(
    batch: Batch, machine: Machine, found: Any | None, xp: Any
) -> tuple[Array, Source, Array]:
    """(seconds [R], by what, deviation of their logs) of lookups by the caches of other GPUs, no
    less than a device of this architecture took.
    """
    log_s, spread = lookup_prior().log_seconds(
        machine.device, batch.op, machine.numbers, batch.work, xp
    )
    if found is None:
        return xp.exp(log_s), Source(Code.FORM, "lookups"), spread
    there = priced_alone(batch.plain.on(found.device), Machine.of(found))
    there_s = batch.xp.exp(there.log_s) * _slower(machine.device, found.device)
    source = Source(Code.FORM, "lookups", found.device.id)
    return xp.maximum(xp.exp(log_s), there_s), source, LOOKUPS_WIDTH


def _own_form(batch: Batch, machine: Machine, found: Any | None) -> tuple[Array, Source, float]:
    """(seconds [R], by what, deviation of their logs) of ops that gather rows or go row by row, by
    their own form at this device's bandwidth and cache: a share of the roofline would not carry
    over to a cache of another size, or to another library. The knobs are the reference device's, or
    the beliefs where no device has such ops.
    """
    asked = batch if found is None else as_measured(found, batch)
    adapted = None if found is None else found.families.get(asked.family)
    part, every = asked.part, np.ones(len(batch), bool)
    if batch.framework:
        words = np.full(len(batch), batch.framework, object)
        part = dataclasses.replace(part, labels={"framework": words})
    rows = family_rows(part, every, machine.device, machine.numbers)
    if adapted is None:  # or its rows were fitted by themselves
        log_s = nobody(rows).typical().closed(rows).total
    else:
        alone = kernel_floors(asked, machine.device) if goes_by_rows(batch.op) else None
        log_s = adapted.by_form(rows, alone)
    what = "gathers" if batch.family == GATHERED else "passes over rows"
    spread = ((ROW_ROOFLINE.law_sd or 0.0) ** 2 + rows.library_sd**2) ** 0.5
    device = "" if found is None else found.device.id
    seconds = array_module(log_s).exp(log_s)
    return seconds, Source(Code.FORM, what, device), GATHERS_WIDTH if what == "gathers" else spread


def _wider(batch: Batch, device: DeviceSpec) -> Batch | None:
    """Products of the next wider format, whose share of the roofline those in FP4 are believed to
    reach where no device has measured such.
    """
    op: Any = batch.op
    quant = getattr(op, "quant", "")
    wide = {"gemm": "", "moe": "fp8_block"}.get(op.group)
    if measured_scheme(quant) != "nvfp4" or wide is None:
        return None
    return batch.of(dataclasses.replace(op, dtype="fp8", quant=wide), device)


def _kernels(batch: Batch, xp: Any) -> Array:
    """That an op runs as, in tables of ops."""
    op: Any = batch.op
    if op.group == "latent_attention":
        return xp.where(batch.size("valued") > 0, _LATENT_KERNELS, 1.0)
    if op.group == "gemm":
        narrowed = SCHEMES[op.quant].narrow_bytes if op.quant else op.dtype == "fp8"
        return _QUANTISED_KERNELS if narrowed else 1.0
    return _KERNELS.get(op.group, 1.0)
