"""By the prior of a family of ops, adapted to a device's own rows (`learning/prior/`).

form       the family's closed form at the machine's numbers, with the knobs of the kernel that
           runs
learned    x exp(bounded network + process over the device's rows)
apart      less what a table's rows include and a step issues by itself: a launch, making
           operands narrow
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import LEVELS, DeviceSpec
from hybridperf.io import closest, shipped_toml
from hybridperf.io.namespace import Array, array_module, put
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning.inputs import Inputs
from hybridperf.learning.prior import Adapted, FamilyRows, Predicted, concatenate
from hybridperf.learning.prior.form import ROW_ROOFLINE, SCORE_ROOFLINE
from hybridperf.learning.prior.implementation import OpImplementation
from hybridperf.model.batch import Batch
from hybridperf.model.families import (
    family_rows,
    framework_of,
    in_another_format,
    with_defaults,
    with_slots,
)
from hybridperf.model.sources import Code, Source
from hybridperf.model.stages.step import NOTHING_S, Machine, Step
from hybridperf.model.stages.who import SINGLE, Who, who
from hybridperf.ops import Quantise
from hybridperf.ops.quantise import SCHEMES, measured_scheme
from hybridperf.ops.rows import KERNEL_S, goes_by_rows

ELEMENTWISE, BY_ROWS = "elementwise", ("softmax", "norm")  # families of loops
PRODUCTS, QUANTISE = "matmul", "quantise"
# elements: milliseconds, far above what a launch costs, and no more than was measured
LONG_LOOP = 2.0**27
_NOT_MEASURED = 1e-6  # octaves: beyond any range, and by no distance
# seconds over the datasheet's that 99 % of measured rows stay under, besides what the shortest
# take, of a family, quantised or not; and of what these take
_MOST = {
    PRODUCTS: {False: 4.0, True: 25.0}, SINGLE: {False: 10.0}, ELEMENTWISE: {False: 4.4},
    "moe": {False: 16.0, True: 28.0},
    "decode_attention": {False: 85.0},  # a block of threads alone, at worst
}  # fmt: skip
_STARTS = 2.0
_FROM_CACHE = ("moe", "decode_attention")  # tables repeat an op, whose bytes stay there
_LAWS = {ROW_ROOFLINE.name: "passes over rows", SCORE_ROOFLINE.name: "cycles of scores"}
LEAST_PRODUCT = 0.5  # of a quantised layer: so much at least is its product
_CONTAINED = 0.99  # of what a product inside takes, at the least: learned times are no surer
# of products: sizes that whole tiles fill, and these
_WHOLE_SIZES = {PRODUCTS: (("m",), (16.0, 64.0)), SINGLE: (("m", "n", "k"), (16.0,))}
_NEARLY_ALL = 0.9
# an implementation never met counts as so far outside what was measured
UNKNOWN_KERNEL_OCTAVES = 1.0


def by_family(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """The family's form and what was learned of it."""
    name, adapted = batch.family, machine.model.families[batch.family]
    rows, assumed, told = machine.told.get(id(batch)) or told_of([batch], machine)[id(batch)]
    known = np.isin(rows.implementation, adapted.knobs.implementations)
    outside = told.outside + np.where(known, 0.0, UNKNOWN_KERNEL_OCTAVES)
    variance = log_variance(told)
    source = np.empty(len(batch), object)
    for slot, what in dict.fromkeys(zip(rows.implementation, assumed, strict=True)):
        here = (rows.implementation == slot) & (assumed == what)
        code = Code.OWN_ROWS if adapted.rows else Code.PRIOR
        never = _never_met(name, slot, adapted)
        words = "; ".join(filter(None, (what, never)))
        one = Source(code, name, rows=adapted.rows, assumed=words, unknown_kernel=bool(never))
        source[here] = [one] * int(here.sum())
    return [
        Step("form", told.closed_log_s - log_s, source, variance, variance, outside),
        Step("learned", told.log_s - told.closed_log_s, source),
        *_bounds(batch, machine, adapted, told.log_s, log_s, outside, xp),
        *_coarser(batch, machine, told.log_s, xp),
        *_apart(batch, machine, told.log_s, xp, source),
    ]


def by_usual(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """A family that no relative of this device measured, as of a device without a calibration:
    outside of what was, whatever its sizes.
    """
    model = dataclasses.replace(machine.model, families=machine.model.by_prior())
    steps = by_family(batch, machine._replace(model=model), log_s, xp)
    return [
        dataclasses.replace(step, outside=xp.maximum(step.outside, _NOT_MEASURED)) for step in steps
    ]


def _bounds(
    batch: Batch, machine: Machine, adapted: Adapted, log_s: Array, least: Array, outside: Array,
    xp: Any,
) -> Sequence[Step]:  # fmt: skip
    """Outside what was measured no less than the datasheet's seconds and no more than kernels of a
    family take; without rows never less, but of what a cache may hold, and that is its size.
    """
    quantised = bool(getattr(batch.op, "quant", ""))
    most = _MOST.get(batch.family, {}).get(quantised)
    if most is None:
        return []
    start = np.log(_STARTS) + float(adapted.knobs.theta[:, 0].max())
    bound = xp.minimum(log_s, xp.logaddexp(least + np.log(most), start))
    beyond = outside > 0
    bound = xp.where(beyond, bound, log_s)
    if batch.family in _FROM_CACHE:
        least = -np.inf
    elif adapted.rows:  # what was measured may come from a cache, as much of it as that holds
        numbers = machine.numbers
        passing = batch.part.work.bytes - numbers.level_bytes[LEVELS.index("l2")]
        passing_s = xp.maximum(passing, 0.0) / numbers.memory_bytes_per_s
        least = xp.where(beyond, least, xp.log(passing_s + NOTHING_S))
    return [Step("bound", xp.maximum(bound, least) - log_s, Source(Code.DATASHEET, batch.group))]


def _coarser(batch: Batch, machine: Machine, log_s: Array, xp: Any) -> Sequence[Step]:
    """A product with a scale for a few numbers by itself, no quicker than with one a tensor, where
    kernels of another scheme stand for its own: Transformer Engine's in MXFP8 take 1.05 times those
    in FP8 on a B300 (its "GEMM Profiling Tutorial"), the B200's with 128 numbers a scale 0.8.
    """
    op: Any = batch.op
    quant = getattr(op, "quant", "") if op.group == "gemm" and not batch.issued_apart else ""
    coarser = SCHEMES[quant].coarser if quant else ""
    if not coarser:
        return []
    least_s = _family_s(
        batch.of(dataclasses.replace(op, quant=coarser), machine.device), batch.family, machine, xp
    )
    source = Source(Code.BELIEF, coarser, assumed=f"no quicker than in {coarser}")
    return [Step("scales", xp.maximum(xp.log(least_s) - log_s, 0.0), source)]


def told_of(
    batches: Sequence[Batch], machine: Machine
) -> dict[int, tuple[FamilyRows, np.ndarray, Predicted]]:
    """What families say of batches that they price, or whose scatter they know, each family asked
    once for all of its batches: (rows, what was assumed, prediction) by `id`.
    """
    asked: dict[Any, list[tuple[Batch, FamilyRows, np.ndarray]]] = {}
    for batch in batches:
        fused = who(batch, machine.model) is Who.FUSED
        run = batch.by_itself if fused else batch
        if who(run, machine.model) is Who.FAMILY:
            rows, assumed = rows_of(run, machine.model.families[run.family], machine)
            alike = run.family, rows.form.name, rows.own_work is None, fused
            asked.setdefault(alike, []).append((batch, rows, assumed))
    found = {}
    for (family, *_, fused), parts in asked.items():
        floors = [kernel_floors(batch, machine.device) for batch, _, _ in parts]
        alone = None if fused else np.concatenate(floors)
        together = parts[0][1] if len(parts) == 1 else concatenate([rows for _, rows, _ in parts])
        adapted = machine.model.families[family]
        told, at = predicted(adapted, together, alone), 0
        if family in _WHOLE_SIZES:
            told = told.moved(_short_of_contained(family, parts, machine, adapted, told.log_s))
        for batch, rows, assumed in parts:
            found[id(batch)] = rows, assumed, told.rows(slice(at, at + len(rows)))
            at += len(rows)
    return found


def _short_of_contained(
    family: str, parts: Sequence[tuple[Batch, FamilyRows, Any]], machine: Machine,
    adapted: Adapted, log_s: Array,
) -> Array:  # fmt: skip
    """Logs by which products [R] come out quicker than those of whole tiles of rows inside them,
    and most of what the rest of their rows takes at its roofline.

    Tables of some devices hold numbers of rows that fill vectors: of others networks know nothing,
    and by them alone 4,097 rows take a sixth less than 4,096 do. Widths and depths between tiles
    are the learner's (`ops/gemm.py`), but in fp32, where tables hold few sizes of whole tiles:
    there products that hold nearly all of the work count.
    """
    inner, own, at, start = [], [], [], 0
    sizes, tiles = _WHOLE_SIZES[family]
    for batch, rows, _ in parts:
        op: Any = batch.op
        xp, count = batch.xp, len(rows)
        # of a batch of products each has blocks of its own, in n too
        names = tuple(dict.fromkeys((*sizes, "n"))) if hasattr(op, "batch") else sizes
        whole = {name: _whole(getattr(op, name), tiles, xp) for name in names}
        short: Any = True
        if xp is np:
            short = functools.reduce(
                np.logical_or, (whole[name] != getattr(op, name) for name in names)
            )
        if np.any(short):
            found, _ = rows_of(
                batch.of(dataclasses.replace(op, **whole), machine.device), adapted, machine
            )
            keep = np.arange(count)
            if xp is np:
                keep = np.flatnonzero(np.broadcast_to(short, (count,)))
                found, rows = found.rows(keep), rows.rows(keep)
            at.append(start + keep)
            inner.append(found)
            own.append(rows)
        start += count
    if not inner:
        return 0.0
    rows, least_s = ((concatenate(each) if len(each) > 1 else each[0]) for each in (inner, own))
    told = predicted(adapted, rows).log_s + np.log(_CONTAINED)
    module = array_module(told, log_s)
    # with three quarters of what the rest takes at its roofline seconds have slopes; all of it
    # passes what the next whole tile takes, whose products reach more of the peak
    beside = module.exp(least_s.log_roofline_s()) - module.exp(rows.log_roofline_s())
    least = module.log(module.exp(told) + 0.75 * module.maximum(beside, 0.0))
    if family == SINGLE:
        least = module.where(rows.flops >= _NEARLY_ALL * least_s.flops, least, -np.inf)
    places = np.concatenate(at)
    more = module.maximum(least - log_s[places], 0.0)
    return put(module.zeros(len(log_s)), (places,), more)


def _whole(size: Array, tiles: Sequence[float], xp: Any) -> Array:
    """A size without what fills no tile, the largest that it reaches."""
    tile = 1.0
    for least in tiles:
        tile = xp.where(size >= least, least, tile)
    return xp.floor(size / tile) * tile


def log_variance(told: Predicted) -> Array:
    """Of one op's seconds by itself [R]."""
    return ((told.high_log_s - told.log_s) / NINE_OF_TEN) ** 2


def tiles_log_factor(batch: Batch, machine: Machine) -> np.ndarray | None:
    """What waves of thread blocks and serial steps make of a family's form, in logs [R]; None where
    it has none.
    """
    adapted = machine.model.families[batch.family]
    rows, _ = rows_of(batch, adapted, machine)
    if rows.own_work is not None:
        return None
    knobs = adapted.knobs.including(adapted.prior.population, rows.implementation)
    bare = dataclasses.replace(rows, blocks=np.zeros(len(rows)), steps=np.zeros(len(rows)))
    return np.asarray(knobs.closed(rows).total - knobs.closed(bare).total)


def rows_of(batch: Batch, adapted: Adapted, machine: Machine) -> tuple[FamilyRows, np.ndarray]:
    """(rows as the prior sees them, by the kernel that the batch's framework has for them where
    that was met; what was assumed of each [R]).
    """
    slots = adapted.prior.population.implementations
    named: list[dict[str, str]] = [{"framework": batch.framework}] if batch.framework else [{}]
    # by a library's plan, measured or not; else by the first kernel that was
    if batch.framework and not goes_by_rows(batch.op):
        usual = _usual_kernel(machine.device.arch, batch)
        named = [*filter(None, (usual, *named)), {}]
    for words in named:
        labels = {key: np.full(len(batch), word, object) for key, word in words.items()}
        part = dataclasses.replace(batch.part, labels={**batch.part.labels, **labels})
        rows = family_rows(part, np.ones(len(batch), bool), machine.device, machine.numbers)
        rows, assumed = with_defaults(rows, slots)
        if np.isin(rows.implementation, slots).all():
            break
    return rows, assumed


def predicted(adapted: Adapted, rows: FamilyRows, alone: np.ndarray | None = None) -> Predicted:
    """Times of ops on a device, `alone` as `kernel_floors` has it; a product without a bias takes
    no longer than one with.

    Tables of PyTorch's layers have only the latter: a GPU measured by them alone knows its products
    without a bias by what they take elsewhere.
    """
    known = adapted.prior.population.implementations
    others = {slot: _other_format(adapted, slot) for slot in dict.fromkeys(rows.implementation)}
    if any(others.values()):
        slots = np.array([others[slot] or slot for slot in rows.implementation], object)
        rows = with_slots(rows, slots)
    found = adapted.predict(rows, alone)
    twins = {slot: _with_bias(slot) for slot in dict.fromkeys(rows.implementation)}
    named = [twins[slot] if twins[slot] in known else slot for slot in rows.implementation]
    slots = np.array(named, object)
    bare = slots != rows.implementation
    if not bare.any():
        return found
    biased, module = with_slots(rows, slots), array_module(found.log_s)
    names = biased.inputs.names
    values = put(biased.inputs.values.copy(), (bare, names.index("bias")), 1.0)
    most = adapted.predict(dataclasses.replace(biased, inputs=Inputs(names, values))).log_s
    less = module.where(bare, module.minimum(most - found.log_s, 0.0), 0.0)
    return found.moved(less)


def _other_format(adapted: Adapted, slot: str) -> str:
    """The slot of attention's own library in another number format, where that alone was measured:
    beside the kernel its calls take what they take, so that it is no stranger's; else "".
    """
    population = adapted.prior.population
    if population.law is not SCORE_ROOFLINE:
        return ""
    return in_another_format(slot, tuple(population.implementations))


@functools.lru_cache
def _with_bias(slot: str) -> str:
    """How the same implementation of a product with a bias is named; "" of another op."""
    named = OpImplementation.parse(slot)
    return str(named._replace(op="linear")) if named.op == "gemm" else ""


def _usual_kernel(arch: str, batch: Batch) -> dict[str, str]:
    """Words of the kernel that runs an op on an architecture (`kernels.toml`); empty: not told."""
    table, op = kernel_tables().get(arch.split()[-1], {}), batch.op
    quant = measured_scheme(getattr(op, "quant", ""))
    words = [op.group, batch.framework, quant or op.dtype, batch.variant]
    for most in range(len(words), 1, -1):
        if found := table.get(" ".join(filter(None, words[:most]))):
            return dict(zip(("framework", "kernel"), found.split(), strict=True))
    return {}


@functools.cache
def kernel_tables() -> Mapping[str, Any]:
    """Which of a library's kernels runs what, and what kernels take over others."""
    return shipped_toml("hybridperf.model", "kernels.toml")


def _never_met(family: str, slot: str, adapted: Adapted) -> str:
    """That no such kernel was measured; empty where one was. With a hint if the framework looks
    misspelt: other words are checked where tables are read.
    """
    if slot in adapted.knobs.implementations:
        return ""
    if other := _other_format(adapted, slot):
        mine, its = OpImplementation.parse(slot), OpImplementation.parse(other)
        return f"no {mine.dtype} of {its.framework} was measured: by its {its.dtype}"
    if law := adapted.prior.population.law:
        whose = framework_of(slot) or "libraries on average: none is told"
        return f"by {_LAWS[law.name]}, as {whose}"
    frameworks = {framework_of(other) for other in adapted.knobs.implementations} - {""}
    given = framework_of(slot)
    meant = "" if not given or given in frameworks else closest(given, frameworks)
    return f"no such {family} was measured{meant}: usual knobs of the family"


def _apart(
    batch: Batch, machine: Machine, log_s: Array, xp: Any, source: np.ndarray
) -> Sequence[Step]:
    """What an op takes that is issued by itself, where tables include more than its kernel.

    Elementwise loops: on the V100 of NeuSight's tables none takes less than 28 us, where a profiler
    sees 2 us. They cost the lower bound of a kernel plus what each element costs in a long loop.
    Products of a quantised layer: without making their input narrow, by the library that a step
    calls, and no longer than the same product in wide numbers or with finer scales. Others take
    longer than their launch and stay as they are.
    """
    op: Any = batch.op
    device, family = machine.device, batch.family
    if not batch.issued_apart:
        return []
    if family == ELEMENTWISE and hasattr(op, "rows") and device.kind == "gpu":
        cols = np.full(len(batch), 1024.0)
        long = batch.of(dataclasses.replace(op, rows=LONG_LOOP / cols, cols=cols), device)
        element_s = _family_s(long, family, machine, xp) / LONG_LOOP
        apart = xp.log(KERNEL_S + element_s * batch.size("rows") * batch.size("cols"))
        return [Step("apart", xp.minimum(apart - log_s, 0.0), source)]
    quant = getattr(op, "quant", "") if op.group == "gemm" else ""
    narrows = bool(quant) and SCHEMES[quant].narrow_bytes > 0
    if family == PRODUCTS and narrows and QUANTISE in machine.model.families:
        wide = batch.of(dataclasses.replace(op, quant=""), device)
        wide_s = _family_s(wide, PRODUCTS, machine, xp)
        left_s = xp.minimum(_product_s(batch, xp.exp(log_s), machine, xp), wide_s)
        if finer := SCHEMES[quant].finer:
            same = batch.of(dataclasses.replace(op, quant=finer), device)
            whole_s = _family_s(same, PRODUCTS, machine, xp)
            left_s = xp.minimum(left_s, _product_s(same, whole_s, machine, xp))
        library = "" if batch.variant else batch.framework  # experts' have kernels of their own
        over = kernel_tables()["over_layers"].get(library, {}).get(device.arch.split()[-1], 1.0)
        return [Step("apart", xp.log(over * left_s) - log_s, source)]
    return []


def _product_s(batch: Batch, whole_s: Array, machine: Machine, xp: Any) -> Array:
    """Seconds of the product of quantised layers [R] that take so long as a whole."""
    op: Any = batch.op
    made = batch.of(Quantise(op.dtype, op.m, op.k, quant=op.quant), machine.device)
    left_s = whole_s - _family_s(made, QUANTISE, machine, xp)
    return xp.maximum(left_s, LEAST_PRODUCT * whole_s)


def kernel_floors(batch: Batch, device: DeviceSpec) -> np.ndarray:
    """[R] what ops take at least without the launch that tables of single ops include, of norms and
    softmax issued apart; not a number of others.
    """
    by_rows = batch.family in BY_ROWS and device.kind == "gpu"
    return np.full(len(batch), KERNEL_S if batch.issued_apart and by_rows else np.nan)


def _family_s(batch: Batch, family: str, machine: Machine, xp: Any) -> Array:
    """Seconds of other ops [R] by a family, of no framework in particular."""
    adapted = machine.model.families[family]
    rows, _ = rows_of(dataclasses.replace(batch, framework=""), adapted, machine)
    return xp.exp(adapted.predict(rows).log_s)
