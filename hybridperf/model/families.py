"""Families of ops that one prior serves across GPUs, and the implementation of each row.

A family is a set of op groups whose errors are alike. Inside it a slot names an implementation: op,
framework, number format, quantisation, cache format, direction; each slot has knobs of its own. A
row without a framework takes the slot without one where the prior has met it, else the first by
name with the same other words: predictions note this.

Besides the op's own inputs, the networks see flags, `framework=vllm`, `kernel=...`; words the prior
never met have no effect.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import LEVELS, DeviceSpec, load_device
from hybridperf.io import InputError
from hybridperf.io.namespace import Array, array_module, column, floats, put
from hybridperf.learning.inputs import Inputs
from hybridperf.learning.prior import FamilyRows
from hybridperf.learning.prior.form import (
    ROW_ROOFLINE,
    SCORE_ROOFLINE,
    STEP_S,
    WAVE_ROOFLINE,
    ClosedForm,
)
from hybridperf.learning.prior.gather_form import GATHER_ROOFLINE
from hybridperf.learning.prior.implementation import OpImplementation
from hybridperf.learning.prior.rows import NOTHING
from hybridperf.model.platform import Platform
from hybridperf.ops import GROUPS, Gpu, Op, columns, columns_of, op_by_name, op_names
from hybridperf.ops.attention import run_by
from hybridperf.ops.gemm import Product
from hybridperf.ops.inputs import gpu_inputs
from hybridperf.ops.quantise import SCHEMES, measured_scheme, scheme_dtype
from hybridperf.ops.rows import RowMachine, goes_by_rows, is_dated, row_work
from hybridperf.ops.scores import (
    MOST,
    ScoreGpu,
    goes_by_scores,
    library_amounts,
    library_of,
    score_amounts,
)
from hybridperf.ops.table import OpRows
from hybridperf.ops.tiles import STEP_FLOPS, blocks, serial_steps

_SINGLE = ("fp32", "tf32", "fp64")
_FAMILY = {
    "gemm": "matmul", "gemm_transposed": "matmul", "batched_gemm": "matmul",
    "batched_gemm_transposed": "matmul", "prefill_attention": "prefill_attention",
    "decode_attention": "decode_attention", "encoder_attention": "encoder_attention", "moe": "moe",
    "convolution": "convolution", "grouped_convolution": "convolution",
    "elementwise": "elementwise", "softmax": "softmax", "norm": "norm", "gather": "gather",
    "quantise": "quantise", "spmm": "spmm", "sddmm": "spmm",
}  # fmt: skip
GATHERED = "spmm"  # the family whose rows gather those of a matrix
FAMILIES = (*dict.fromkeys(_FAMILY.values()), "matmul_fp32")
# text of an op that its own inputs already hold as numbers
_NOT_AN_IMPLEMENTATION = frozenset({"distribution"})
_FLAGS = ("framework", "kernel", "algo")
# batched products by other kernels: not the `bmm` that they are counted as
_NOT_A_SPELLING = frozenset({"mla_gen_pre", "mla_gen_post"})
# schemes that leave an op of this number format as it is
_UNQUANTISED = {"bfloat16": "bf16", "float16": "fp16"}
# Groups whose time is not told by waves: on devices left out, experts' blocks cost 8 points of
# accuracy without rows, and bring none with.
_WITHOUT_WAVES = frozenset({"moe"})


def family_of(group: str, dtype: str) -> str:
    """The family of an op in a number format; empty where no prior knows its group.

    Single precision runs on other units, without launch graphs: its own.
    """
    family = _FAMILY.get(group, "")
    return "matmul_fp32" if family == "matmul" and dtype in _SINGLE else family


def groups_of(family: str) -> list[str]:
    """Groups of ops that a family prices."""
    return [group for group, of in _FAMILY.items() if of == family.removesuffix("_fp32")]


def by_family(part: OpRows) -> Iterator[tuple[str, np.ndarray]]:
    """(family, mask [R]) of the rows of a part; an empty name where no prior knows their group."""
    named = np.array([family_of(group, part.op.dtype) for group in GROUPS], object)
    for family in dict.fromkeys(named[np.unique(part.group)]):
        yield family, named[part.group] == family


def gpu_of(device: DeviceSpec) -> Gpu | None:
    """What the ops' inputs need of a GPU; None for other devices, or where facts are missing."""
    if device.kind != "gpu" or device.multiprocessors is None or device.l2_bytes is None:
        return None
    return Gpu(float(device.multiprocessors), float(device.l2_bytes))


def references_of(device: DeviceSpec, names: Iterable[str]) -> list[str]:
    """Those of some known devices whose efficiencies stand in for a device, itself included.

    They have its architecture, or where none has, its generation: an architecture's first word and
    the first part of its number, so Blackwell sm_103 refers to sm_100 and not to sm_120, and CDNA2
    gfx90a to CDNA gfx908.
    """
    arches = architectures_of(names)
    same = [name for name, arch in arches.items() if arch == device.arch]
    return same or [
        name for name, arch in arches.items() if _generation(arch) == _generation(device.arch)
    ]


def architectures_of(names: Iterable[str]) -> dict[str, str]:
    """The architecture of each device whose facts are known."""
    found = {}
    for name in names:
        with contextlib.suppress(InputError):
            found[name] = load_device(name).arch
    return found


def _generation(arch: str) -> tuple[str, str]:
    words = arch.split()
    return words[0].rstrip("0123456789"), words[-1][:-1]


def family_rows(
    part: OpRows, keep: np.ndarray, device: DeviceSpec, rates: Platform | None = None
) -> FamilyRows:
    """Rows `keep` (a mask [R]) of a part as the prior sees them; on a machine of other `rates` than
    its datasheet says, which may be traced.
    """
    gpu = gpu_of(device)
    if gpu is None:
        raise InputError(
            f"the number of multiprocessors or the L2 size of {device.id} is not known; give them"
            " in a device file, or --prior none"
        )
    n, peak, bandwidth = len(part.rows), part.peak_flops_per_s, device.memory_bytes_per_s
    if rates is not None:
        gpu = dataclasses.replace(gpu, l2_bytes=rates.level_bytes[LEVELS.index("l2")])
        peak, bandwidth = peak * rates.peak_flops_scale, rates.memory_bytes_per_s

    def whole(values: Array) -> Array:  # of a single op they are numbers
        return column(values, n)

    own = {name: whole(value) for name, value in gpu_inputs(part.op, gpu).items()}
    slots, flags = _slots_and_flags(part)
    framework = part.labels.get("framework")
    run = part.op if framework is None else run_by(part.op, framework)
    work = part.work if run is part.op else run.work()
    values = array_module(*own.values()).stack([*own.values(), *flags.values()], 1)
    machine = RowMachine.of(device, bandwidth, gpu.l2_bytes)
    form: ClosedForm = WAVE_ROOFLINE
    own_work, most, library_sd = None, np.inf, 0.0
    if _FAMILY.get(part.op.group) == GATHERED:
        form, own_work = GATHER_ROOFLINE, _gathers(part.op, bandwidth, gpu, whole)[keep]
    elif goes_by_rows(part.op) and machine is not None:
        passes = _passes(part, machine, whole)
        form, (own_work, most, library_sd) = ROW_ROOFLINE, (one[keep] for one in passes)
    elif goes_by_scores(part.op) and device.clock_hz is not None:
        scale = 1.0 if rates is None else rates.peak_flops_scale
        form, most = SCORE_ROOFLINE, MOST
        own_work = _scores(part, ScoreGpu.of(device, peak, scale, bandwidth), device, whole)[keep]
    return FamilyRows(
        flops=whole(work.flops)[keep], bytes=whole(work.bytes)[keep],
        blocks=whole(0.0 if run.group in _WITHOUT_WAVES else blocks(run))[keep],
        peak_flops_per_s=whole(peak)[keep], memory_bytes_per_s=bandwidth, sm_count=gpu.sm_count,
        implementation=slots[keep], inputs=Inputs((*own, *flags), values[keep]),
        sizes=tuple(name for name in own if name.startswith("log2_")),
        own_work=own_work, steps=whole(_steps(run, peak, gpu))[keep], form=form, most=most,
        library_sd=library_sd,
    )  # fmt: skip


def _steps(run: Op, peak_flops_per_s: Array, gpu: Gpu) -> Array:
    """Serial steps [R] of an op as kernels run it; in single precision, where no matrix unit makes
    a step short, as many usual ones as its arithmetic takes.
    """
    steps = serial_steps(run, gpu)
    if run.dtype not in _SINGLE:
        return steps
    return steps * (STEP_FLOPS * gpu.sm_count / peak_flops_per_s / STEP_S)


def _passes(
    part: OpRows, machine: RowMachine, whole: Callable[[Array], Array]
) -> tuple[Array, Array, Array]:
    """(what passes over rows take, as `ROW_ROOFLINE` reads it, what bounds them, the scatter of
    libraries) [R] each.
    """
    framework = part.labels.get("framework", np.full(len(part.rows), "", object))
    columns, mine = [], []
    for word in dict.fromkeys(framework):
        work = row_work(part.op, machine, word)
        columns.append([whole(one) for one in (*work.amounts, work.most, work.library_sd)])
        mine.append(framework == word)
    module = array_module(*columns[0])
    *amounts, most, library_sd = (module.select(mine, one) for one in zip(*columns, strict=True))
    logs = [module.log(module.maximum(one, NOTHING)) for one in amounts]
    return module.stack(logs, 1), most, library_sd


def _scores(
    part: OpRows, gpu: ScoreGpu, device: DeviceSpec, whole: Callable[[Array], Array]
) -> Array:
    """What scores take, as `SCORE_ROOFLINE` reads it [R, 4], by each row's library."""
    framework = part.labels.get("framework", np.full(len(part.rows), "", object))
    columns, mine = [], []
    for word in dict.fromkeys(framework):
        told = library_of(str(word), device.arch)
        amounts = (
            score_amounts(part.op, gpu) if told is None else library_amounts(part.op, gpu, told)
        )
        columns.append([whole(one) for one in amounts])
        mine.append(framework == word)
    module = array_module(*columns[0])
    each = (module.select(mine, one) for one in zip(*columns, strict=True))
    return module.stack([module.log(module.maximum(one, NOTHING)) for one in each], 1)


def _gathers(
    op: Any, memory_bytes_per_s: Array, gpu: Gpu, whole: Callable[[Array], Array]
) -> Array:
    """What rows gather, as `gather_form.WORK` names it after arithmetic."""
    seconds = (op.again_bytes(), op.first_bytes(), op.beside_bytes(), op.index_bytes())
    amounts = [floats(one) / memory_bytes_per_s for one in seconds]
    amounts += [floats(op.first_bytes()) / op.n / gpu.l2_bytes]
    amounts += [op.n, op.longest(), op.row_bytes()]
    skew = op.skew()
    module = array_module(*amounts, skew)
    logs = [module.log(module.maximum(whole(one), NOTHING)) for one in amounts]
    return module.stack([*logs, whole(skew)], 1)


def with_defaults(rows: FamilyRows, known: Sequence[str]) -> tuple[FamilyRows, np.ndarray]:
    """(rows whose slot is one of `known` where that is clear, what was assumed [N] or empty).

    `known`: slots, of which the first counts where several fit. A slot that only spells its op
    another way, or names the scheme that quantises nothing, is the known one; a row without a
    framework is taken for the slot that differs in nothing else.
    """
    slots, assumed = rows.implementation.copy(), np.full(len(rows), "", object)
    for slot in dict.fromkeys(rows.implementation):
        here = rows.implementation == slot
        other = slot if slot in known else _known_slot(slot, tuple(known))
        slots[here] = other
        named = framework_of(other)
        said = [f"no framework given: taken for {named}"] if named != framework_of(slot) else []
        said += [f"no {one} was measured: by {like}" for one, like in _stood_for(slot, other)]
        assumed[here] = "; ".join(said)
    return with_slots(rows, slots), assumed


@functools.lru_cache(4096)
def in_another_format(slot: str, known: tuple[str, ...]) -> str:
    """The first of some `known` slots that is one's library, or any where it names none, in another
    number format; "" where there is none, or the slot itself is known.
    """
    mine = OpImplementation.parse(slot)
    others = () if slot in known else map(OpImplementation.parse, known)
    same = (one for one in others if _means(mine._replace(dtype=one.dtype, text=one.text), one))
    return str(next(same, ""))


def framework_of(slot: str) -> str:
    """The framework that a slot names; the empty string for none."""
    return OpImplementation.parse(slot).framework


@functools.lru_cache(4096)
def _known_slot(slot: str, known: tuple[str, ...]) -> str:
    """The known slot that a slot means, the closest one first; itself where there is none, by the
    first of the names that its op has.
    """
    mine = OpImplementation.parse(slot)
    fitting = [one for one in map(OpImplementation.parse, known) if _means(mine, one)]
    itself = mine
    if mine.op in op_names() and mine.op not in _NOT_A_SPELLING:
        op = next(one for one in op_names() if op_by_name(one) == op_by_name(mine.op))
        itself = mine._replace(op=op)
    return str(min(fitting, key=lambda one: _differs(mine, one), default=itself))


def _means(mine: OpImplementation, other: OpImplementation) -> bool:
    """Whether the other is this implementation, perhaps spelt otherwise or with a framework."""
    # tables name quantised ops by the format that their scheme multiplies in, steps by what goes in
    quant = dict(zip(_text_of(op_by_name(mine.op)[0]), mine.text, strict=True)).get("quant", "")
    formats = mine.dtype, scheme_dtype(mine.dtype, quant) if quant in SCHEMES else mine.dtype
    # none means any framework, unless its kernel is a dated one
    named = mine.op in op_names() and is_dated(op_by_name(mine.op)[0].group, other.framework)
    return (
        other.dtype in formats
        and _quantised(other) in (_quantised(mine), _quantised(mine, stands_for=True))
        and (mine.framework == other.framework or (not mine.framework and not named))
        and _same_op(mine.op, other.op)
    )


def _quantised(one: OpImplementation, stands_for: bool = False) -> list[str]:
    """Its text without schemes that leave everything in its number format, and, where the kernels
    of another may stand for a scheme's own, with that one.
    """
    kept = ["" if _UNQUANTISED.get(word) == one.dtype else word for word in one.text]
    return [measured_scheme(word) for word in kept] if stands_for else kept


def _stood_for(slot: str, known: str) -> list[tuple[str, str]]:
    """Schemes that a slot names, each with the one whose kernels stand for it."""
    pairs = zip(OpImplementation.parse(slot).text, OpImplementation.parse(known).text, strict=False)
    return [pair for pair in pairs if pair[0] != pair[1] == measured_scheme(pair[0])]


def _differs(mine: OpImplementation, other: OpImplementation) -> list[bool]:
    """Word by word, the class of the op before its name."""
    words = [ours != theirs for ours, theirs in zip(mine.words, other.words, strict=True)]
    apart = words[0] and op_by_name(mine.op)[0] is not op_by_name(other.op)[0]
    return [apart, *words]


def _same_op(name: str, other: str) -> bool:
    """Whether two names of tables are one op in two spellings."""
    if name == other:
        return True
    names = {name, other}
    if names & _NOT_A_SPELLING or not names <= {*op_names()}:
        return False
    if all(issubclass(op_by_name(one)[0], Product) for one in names):
        return True  # with a bias or in a batch, where those were not measured
    return op_by_name(name) == op_by_name(other)


def with_slots(rows: FamilyRows, slots: np.ndarray) -> FamilyRows:
    """The rows as of other implementations [N], with flags as those have their words."""
    module = array_module(rows.inputs.values)
    values, names = rows.inputs.values.copy(), list(rows.inputs.names)
    for old, new in dict.fromkeys(zip(rows.implementation, slots, strict=True)):
        here = (rows.implementation == old) & (slots == new)
        slot, was_slot = OpImplementation.parse(new), OpImplementation.parse(old)
        # what each word is, as flags name it
        labels = ["op", "framework", "dtype", *_text_of(op_by_name(slot.op)[0])]
        words = zip(labels, was_slot.words, slot.words, strict=True)
        for label, was, word in words:
            if was == word:
                continue
            if word and f"{label}={word}" not in names:
                names.append(f"{label}={word}")
                values = module.concatenate([values, np.zeros((len(values), 1))], 1)
            for joint in "=_":  # ops write `quant_fp8` for flags of their own
                for one, raised in ((was, 0.0), (word, 1.0)):
                    if (name := f"{label}{joint}{one}") in names:
                        values = put(values, (here, names.index(name)), raised)
    return dataclasses.replace(rows, implementation=slots, inputs=Inputs(tuple(names), values))


def _text_of(kind: type[Op]) -> list[str]:
    """Fields of an op whose words name an implementation."""
    return [field for field in columns_of(kind).text if field not in _NOT_AN_IMPLEMENTATION]


def _slots_and_flags(part: OpRows) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(implementation of each row, one number of 0 or 1 for each word that a row carries) [R]."""
    n, op = len(part.rows), part.op
    name = part.name or columns(op)["op"]
    text = {field: str(getattr(op, field)) for field in _text_of(type(op))}
    framework = part.labels.get("framework", np.full(n, "", object))
    slots = {
        word: str(OpImplementation(name, word, op.dtype, tuple(text.values())))
        for word in dict.fromkeys(framework)
    }
    words = {label: part.labels[label] for label in _FLAGS if label in part.labels}
    words |= {
        label: np.full(n, word, object)
        for label, word in {"op": name, "dtype": op.dtype, **text}.items()
    }
    flags = {
        f"{label}={word}": (values == word).astype(np.float64)
        for label, values in words.items()
        for word in dict.fromkeys(values)
        if word
    }
    return np.array([slots[word] for word in framework], object), flags
