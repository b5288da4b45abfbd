"""A recorded step on another device: each kernel's measured seconds times predicted new over old.

By what a kernel is priced, the first that tells:

    MEASURED   both models price its op by measurements, their own or those of a reference device
    DATASHEET  one of them has none of it: both datasheets' rooflines, since the two would not err
               alike
    NAME       its op, or the op's shapes, are not known: what its kernel's name tells
    HOST       a copy out of memory that the host has not pinned: the host's work, as measured
    KEPT       nothing tells: as measured

By name: libraries name products, convolutions and attention by their algorithm and number format
(`volta_sgemm_128x64_nn`, `ampere_fp16_s16816gemm_...`, `cudnn::...::implicit_convolve_sgemm`); all
other kernels of a training step are loops that wait for memory. On another device

    seconds = floor + (measured - floor) x (old rate / new rate)

with the rate a product's peak in its format, else the memory's bandwidth, and the floor what no
kernel goes below. A copy between host and device goes over a bus that neither datasheet has.

Axes: U rows of the replay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from hybridperf.hardware import DeviceSpec, device_called, device_names, load_device
from hybridperf.io import InputError, closest
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.ops import GROUPS, OpCall
from hybridperf.traces.events import NONE
from hybridperf.traces.replay import Replay
from hybridperf.traces.replay_graph import DEVICE
from hybridperf.traces.row_ops import RecordedCall, op_of, our_ops, recorded_calls, rows_by_call
from hybridperf.traces.what_if import Change

KERNEL_S = 2e-6  # no kernel takes less, whatever a datasheet's rates make of few bytes
MEASURED, DATASHEET, NAME, HOST, KEPT = (
    "measurements", "datasheets", "kernel names", "host", "kept",
)  # fmt: skip
PRICED_BY = (MEASURED, DATASHEET, NAME, HOST, KEPT)
_NO_SHAPES, _NO_OP = "no shapes recorded", "launched outside of ops"
_UNKNOWN_OP, _NO_MODEL = "unknown op", "no rate of one of the devices"
_PAGEABLE = re.compile(r"Memcpy \w+ \(.*Pageable", re.I)


def other_device(replay: Replay, old: PerfModel, new: PerfModel) -> Change:
    """What another device makes of each kernel; `by` says by what."""
    rows, calls = replay.rows, recorded_calls(replay)
    factor, by = np.ones(len(rows)), np.full(len(rows), "", object)
    unknown: dict[str, dict[str, float]] = {}  # op -> why -> seconds
    ops = {call: our_ops(call) for call in set(calls.values())}
    ratio = ratios({call: known for call, known in ops.items() if known}, (old, new))
    for call, members in rows_by_call(calls).items():
        if call in ratio:
            factor[members], by[members] = ratio[call]
    device_rows = np.flatnonzero(rows.kind == DEVICE)
    for row in device_rows[by[device_rows] == ""].tolist():
        trace, busy_s = replay.traces[rows.trace[row]], float(rows.busy_s[row])
        kernel = trace.device_name(int(rows.event[row]))
        if (by_name := seconds_ratio(kernel, old.device, new.device)) is not None:
            longer_s = max(busy_s - KERNEL_S, 0.0) * (by_name - 1)
            factor[row], by[row] = 1 + longer_s / busy_s if busy_s > 0 else 1.0, NAME
        elif _PAGEABLE.search(kernel):
            by[row] = HOST
        else:
            by[row] = KEPT
            why = _NO_SHAPES if op_of(replay, row) != NONE else _NO_OP
            if row in calls:
                why = _NO_MODEL if ops[calls[row]] else _UNKNOWN_OP
            reasons = unknown.setdefault(replay.op_of_row(row), {})
            reasons[why] = reasons.get(why, 0.0) + busy_s
    seconds = {one: float(rows.busy_s[by == one].sum()) for one in PRICED_BY}
    total_s = sum(seconds.values())
    notes = []
    if seconds[NAME]:
        named = f"{seconds[NAME] / total_s:.1%} of the device's time goes by its kernels' names"
        notes.append(f"{named} alone: products by the peak of their format, all else by bandwidth")
    if unknown:
        share = f"{seconds[KEPT] / total_s:.1%} of the device's time"
        notes.append(f"{share} is in ops that keep their measured seconds")
    if len(device_rows) and not calls:
        none = "no op has shapes in this trace, so no op can be told"
        notes.append(f"{none}: record with record_shapes=True")
    notes.append("kernels change with the device, what the host takes stays as measured")
    whys = {op: ", ".join(sorted(of, key=lambda one: -of[one])) for op, of in unknown.items()}
    kept_s = {op: sum(of.values()) for op, of in unknown.items()}
    what = f"{new.device.name} for {old.device.name}"
    return Change(what, factor, kept_s, tuple(notes), whys, seconds)


def recorded_on(replay: Replay, model: str = "") -> PerfModel:
    """The model of this name, else the datasheet of the device that a step was recorded on."""
    if model:
        return model_or_datasheet(model)
    recorded = replay.traces[0].device
    known = device_called(recorded)
    if not known:
        nearest = closest(recorded.lower().split(" ", 1)[-1], device_names())
        name = recorded or "the device, which the trace does not name"
        raise InputError(f"no datasheet of {name}; give --from-model NAME{nearest}")
    return PerfModel.datasheet(load_device(known))


def ratios(
    calls: Mapping[RecordedCall, Sequence[OpCall]], models: tuple[PerfModel, PerfModel]
) -> dict[RecordedCall, tuple[float, str]]:
    """Predicted new over old seconds of each list of ops, where both devices can run it, and by
    what; where one of a list goes by datasheets, all of it does.
    """
    able = {key: ops for key, ops in calls.items() if all(_runs(one, ops) for one in models)}
    flat_calls = [call for ops in able.values() for call in ops]
    if not flat_calls:
        return {}
    begins = np.cumsum([0, *(len(ops) for ops in able.values())])[:-1]
    tables = [model.table(flat_calls) for model in models]
    names = [GROUPS[int(call.op.group_index())] for call in flat_calls]
    of = [
        np.array([name in model.groups for name in names]) | (np.asarray(table.correction) != 0)
        for model, table in zip(models, tables, strict=True)
    ]
    measured = np.logical_and.reduceat(of[0] & of[1], begins)
    priced = []
    for model, table in zip(models, tables, strict=True):
        both = (
            np.maximum(one, KERNEL_S)
            for one in (model.roofline_seconds(table), model.op_seconds(table))
        )
        bare_s, own_s = (np.add.reduceat(one, begins) for one in both)
        priced.append(np.where(measured, own_s, bare_s))
    by = np.where(measured, MEASURED, DATASHEET)
    new_over_old = (priced[1] / priced[0]).tolist()
    return dict(zip(able, zip(new_over_old, by.tolist(), strict=True), strict=True))


def _runs(model: PerfModel, ops: Sequence[OpCall]) -> bool:
    try:
        for call in ops:
            model.device.peak(call.op.peak_dtype, call.op.unit)
    except InputError:
        return False
    return True


_PRODUCT = re.compile(
    r"gemm|gemv|cutlass|conv(?!ert)|winograd|fprop|dgrad|wgrad|xmma|nvjet|wgmma|fmha|flash|"
    r"attention|s16816|s1688|h884|h16816|i8816",
    re.I,
)
# Inductor calls a loop after all that it is made of, also after a product whose loop it was
_LOOP = re.compile(r"triton_(poi|red|per)_")
_FORMATS = (  # the first that fits
    ("fp8", re.compile(r"e4m3|e5m2|fp8", re.I)),
    ("bf16", re.compile(r"bf16|bfloat", re.I)),
    ("fp16", re.compile(r"fp16|f16|half|hgemm|h884|h1688|h16816", re.I)),
    ("int8", re.compile(r"i8816|s8_|int8", re.I)),
    ("tf32", re.compile(r"tf32|tensorfloat|s1688", re.I)),
    # tensor cores alone run these, mostly in a format of 16 bits; both of them have one rate
    ("bf16", re.compile(r"nvjet|wgmma|s16816|flash|fmha", re.I)),
)
_SOFTMAX = re.compile(r"(?!.*(flash|fmha|gemm)).*softmax", re.I)  # also one named by its attention
_OVER_A_BUS = re.compile(r"Memcpy (HtoD|DtoH|HtoH|PtoP)", re.I)


def seconds_ratio(kernel: str, old: DeviceSpec, new: DeviceSpec) -> float | None:
    """New over old seconds of a kernel beyond the floor; None where no rate tells."""
    if not kernel or _OVER_A_BUS.search(kernel):
        return None
    if _LOOP.match(kernel) or _SOFTMAX.match(kernel) or not _PRODUCT.search(kernel):
        return old.memory_bytes_per_s / new.memory_bytes_per_s
    dtype = next((name for name, says in _FORMATS if says.search(kernel)), "fp32")
    try:
        return old.peak(dtype, "matrix") / new.peak(dtype, "matrix")
    except InputError:
        return None  # one of the devices does not have this format
