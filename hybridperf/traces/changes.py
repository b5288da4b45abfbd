"""Changes to a recorded step: factors on what its kernels or collectives take.

Axes: U rows of the replay.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives.model import CollectiveModel
from hybridperf.io import InputError, closest
from hybridperf.model import PerfModel
from hybridperf.ops import GROUPS, OpCall
from hybridperf.traces.events import NONE, Message, RankTrace
from hybridperf.traces.kernel_kinds import seconds_ratio
from hybridperf.traces.ranks import kind_of, pair_of, rank_numbers
from hybridperf.traces.recorded.arguments import RecordedArguments, arguments, recorded_op
from hybridperf.traces.replay import Replay
from hybridperf.traces.replay_graph import DEVICE, HOST, WIRE
from hybridperf.workloads.torch.calls import flat

LATENCY_S = 20e-6  # of a collective's seconds at most so many do not depend on its size
_NO_SHAPES, _NO_OP = "no shapes recorded", "launched outside of ops"
_UNKNOWN_OP, _NO_MODEL = "unknown op", "no rate of one of the devices"
KERNEL_S = 2e-6  # no kernel takes less, whatever a datasheet's rates make of few bytes


@dataclass(frozen=True)
class Change:
    """A factor on what each row's kernel or collective takes, and what could not be changed."""

    description: str  # for people: what is changed
    factor: np.ndarray  # [U]
    # seconds by op of what keeps its measured time
    unknown: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)  # of the unknown: why


def faster(replay: Replay, pattern: str, times: float) -> Change:
    """Kernels of the ops that a pattern (`aten::*norm*`) names, made `times` faster.

    Kernels go by their own names, too. An op's kernels are all that were launched within it, so
    `aten::linear` stands for the `aten::addmm` inside. `host` is the host's work.
    """
    if not (np.isfinite(times) and times > 0):
        expected = "expected how many times faster as a number above 0"
        raise InputError(f"{expected}, got {times} for {pattern!r}; 2 halves the time")
    rows, fits = replay.rows, re.compile(fnmatch.translate(pattern)).match
    kinds = rows.kind.tolist()
    runs = [row for row, kind in enumerate(kinds) if kind in (DEVICE, WIRE)]
    hit = np.zeros(len(rows), bool)
    hit[[row for row in runs if any(map(fits, _names(replay, row)))]] = True
    if pattern == "host":
        hit |= [kind == HOST and replay.op_of_row(row) == "host" for row, kind in enumerate(kinds)]
    if not hit.any():
        known = sorted({replay.op_of_row(row) for row in runs})
        none = f"no op or kernel of this step is called {pattern!r}{closest(pattern, known)}"
        raise InputError(f"{none}; `*` stands for any letters")
    speed = f"{times:g} times faster" if times >= 1 else f"{1 / times:g} times slower"
    return Change(f"{pattern} {speed}", np.where(hit, 1 / times, 1.0))


def links_scaled(replay: Replay, times: float) -> Change:
    """Collectives over links of `times` the bandwidth; their latency stays.

    The latency is the shortest collective of the step, at most `LATENCY_S`.
    """
    if not (np.isfinite(times) and times > 0):
        expected = "expected the bandwidth of the links as a factor above 0"
        raise InputError(f"{expected}, got {times}; 2 doubles it")
    rows = replay.rows
    wire = (rows.kind == WIRE) & (rows.busy_s > 0)
    floor_s = min(LATENCY_S, float(rows.busy_s[wire].min(initial=LATENCY_S)))
    with np.errstate(divide="ignore", invalid="ignore"):
        new_s = floor_s + (rows.busy_s - floor_s) / times
        factor = np.where(wire & (rows.busy_s > floor_s), new_s / rows.busy_s, 1.0)
    return Change(f"links of {times:g} times the bandwidth", factor, notes=_of_links(replay))


def other_links(replay: Replay, old: CollectiveModel, new: CollectiveModel) -> Change:
    """Collectives of known kind and size times predicted new over predicted old.

    They run over the ranks of their group, which fill the nodes of each system in order.
    """
    rows = replay.rows
    wire = [_OnWire.of(replay, int(row)) for row in np.flatnonzero(rows.kind == WIRE)]
    wire = [one for one in wire if one.ranks != 1]  # one rank sends nothing
    at = np.array([one.row for one in wire], int)
    factor = np.ones(len(rows))
    unknown: dict[str, float] = {}
    if len(at):
        listed = [(one.kind, one.bytes, float(one.ranks)) for one in wire]
        frame = pd.DataFrame(listed, columns=["collective", "bytes", "n_gpus"])
        predicted = []
        for model in (old, new):
            nodes = [float(one.nodes(model.system.accelerators_per_node)) for one in wire]
            predicted.append(model.predict(frame.assign(n_nodes=nodes))["predicted_s"])
        ratio = (predicted[1] / predicted[0]).to_numpy()
        factor[at] = np.where(np.isfinite(ratio), ratio, 1.0)
        for row in at[~np.isfinite(ratio)].tolist():
            name = replay.op_of_row(row)
            unknown[name] = unknown.get(name, 0.0) + float(rows.busy_s[row])
    what = f"links of {new.system.id} for those of {old.system.id}"
    return Change(what, factor, unknown, _of_links(replay))


def other_device(replay: Replay, old: PerfModel, new: PerfModel) -> Change:
    """Kernels of ops with recorded shapes times predicted new over predicted old; others by what
    their names tell (`kernel_kinds.py`).
    """
    rows, factor, by_name_s = replay.rows, np.ones(len(replay.rows)), 0.0
    keys: dict[tuple[str, str, str], list[int]] = {}
    kept: dict[str, dict[str, float]] = {}  # op -> why -> seconds

    def keep(op: str, why: str, members: Sequence[int]) -> None:
        nonlocal by_name_s
        for row in members:
            busy_s = float(rows.busy_s[row])
            found = _by_name(replay, row, busy_s, old, new)
            if found is not None:
                factor[row], by_name_s = found, by_name_s + busy_s
                continue
            reasons = kept.setdefault(op, {})
            reasons[why] = reasons.get(why, 0.0) + busy_s

    device_rows = np.flatnonzero(rows.kind == DEVICE).tolist()
    for row in device_rows:
        key = _recorded(replay, row)
        if key is None:
            why = _NO_SHAPES if _op_of(replay, row) != NONE else _NO_OP
            keep(replay.op_of_row(row), why, [row])
        else:
            keys.setdefault(key, []).append(row)
    calls = {key: _calls(*key) for key in keys}
    ratio = _ratios({key: ops for key, ops in calls.items() if ops}, old, new)
    for key, members in keys.items():
        if key in ratio:
            factor[members] = ratio[key]
        else:
            keep(key[0], _NO_MODEL if calls[key] else _UNKNOWN_OP, members)
    unknown = {op: sum(reasons.values()) for op, reasons in kept.items()}
    total_s = float(rows.busy_s[device_rows].sum())
    share = sum(unknown.values()) / total_s if total_s > 0 else 0.0
    notes = []
    if by_name_s:
        named = f"{by_name_s / total_s:.1%} of the device's time goes by its kernels' names alone"
        notes.append(f"{named}: products by the peak of their format, all else by bandwidth")
    if unknown:
        notes.append(f"{share:.1%} of the device's time is in ops that keep their measured seconds")
    if device_rows and not keys:
        none = "no op has shapes in this trace, so no op can be told"
        notes.append(f"{none}: record with record_shapes=True")
    notes.append("kernels change with the device, what the host takes stays as measured")
    whys = {op: ", ".join(sorted(of, key=lambda one: -of[one])) for op, of in kept.items()}
    return Change(f"{new.device.name} for {old.device.name}", factor, unknown, tuple(notes), whys)


def _by_name(
    replay: Replay, row: int, busy_s: float, old: PerfModel, new: PerfModel
) -> float | None:
    """Factor on a row's seconds by its kernel's name; None where that tells nothing."""
    kernel = replay.traces[replay.rows.trace[row]].device_name(int(replay.rows.event[row]))
    ratio = seconds_ratio(kernel, old.device, new.device)
    if ratio is None or busy_s <= KERNEL_S:
        return None if ratio is None else 1.0
    return (KERNEL_S + (busy_s - KERNEL_S) * ratio) / busy_s


def _of_links(replay: Replay) -> tuple[str, ...]:
    met = {int(event) for meeting in replay.meetings for event in meeting.collective.event}
    alone = (replay.rows.kind == WIRE) & ~np.isin(replay.rows.event, list(met))
    note = "collectives of one rank include waiting for the others: links save at most this"
    return (note,) if alone.any() else ()


def _names(replay: Replay, row: int) -> set[str]:
    """Names that a pattern may mean for a row: its kernel's, and those around its launch."""
    trace, call = replay.traces[replay.rows.trace[row]], int(replay.rows.call[row])
    around = itertools.islice(trace.host.around(call), 1, None)
    kernel = trace.device_name(int(replay.rows.event[row]))
    return {kernel, replay.op_of_row(row), *map(trace.host_name, around)}


def _op_of(replay: Replay, row: int) -> int:
    """The innermost op around the call that launched a row's kernel, NONE where there is none."""
    call = int(replay.rows.call[row])
    return replay.traces[replay.rows.trace[row]].op_of_call(call) if call != NONE else NONE


def _recorded(replay: Replay, row: int) -> tuple[str, str, str] | None:
    """Name, shapes and types (JSON) of the op that launched a row's kernel; None without."""
    trace, op = replay.traces[replay.rows.trace[row]], _op_of(replay, row)
    shape = int(trace.host.shapes[op]) if op != NONE else NONE
    if shape == NONE:
        return None
    types = trace.types[shape] if shape < len(trace.types) else ""
    return trace.host_name(op), trace.shapes[shape], types


def _calls(name: str, shapes: str, types: str) -> tuple[OpCall, ...] | None:
    try:
        given = RecordedArguments(json.loads(shapes), json.loads(types) if types else ())
        return recorded_op(name, given)
    except (ValueError, TypeError, KeyError, IndexError, InputError):
        return None  # shapes that do not fit the op: nobody knows it


def _ratios(
    calls: Mapping[Any, Sequence[OpCall]], old: PerfModel, new: PerfModel
) -> dict[Any, float]:
    """Predicted new over old seconds of each list of ops, where both devices can run it.

    An op that only one of the models has measurements of goes by both datasheets: the two would not
    err alike.
    """
    able = {key: ops for key, ops in calls.items() if _runs(old, ops) and _runs(new, ops)}
    flat_calls = [call for ops in able.values() for call in ops]
    if not flat_calls:
        return {}
    groups = [GROUPS[int(call.op.group_index())] for call in flat_calls]
    measured = np.array([group in old.groups and group in new.groups for group in groups])
    priced = []
    for model in (old, new):
        table = model.table(flat_calls)
        seconds = np.where(measured, model.op_seconds(table), model.roofline_seconds(table))
        priced.append(np.maximum(seconds, KERNEL_S))
    bounds = np.cumsum([0, *(len(ops) for ops in able.values())])
    parts = [slice(*ends) for ends in itertools.pairwise(bounds)]
    ratios = (float(priced[1][part].sum() / priced[0][part].sum()) for part in parts)
    return dict(zip(able, ratios, strict=True))


def _runs(model: PerfModel, ops: Sequence[OpCall]) -> bool:
    try:
        for call in ops:
            model.device.peak(call.op.peak_dtype, call.op.unit)
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class _OnWire:
    """A row's collective as tables of collectives count them."""

    row: int
    kind: str | None
    bytes: float
    ranks: int
    members: tuple[int, ...]  # which ranks; () where not recorded

    @classmethod
    def of(cls, replay: Replay, row: int) -> _OnWire:
        rows = replay.rows
        trace, event, call = replay.traces[rows.trace[row]], int(rows.event[row]), rows.call[row]
        kind, message = kind_of(trace, np.array([event]))[0], trace.messages.get(event, Message())
        ranks, members = message.size or trace.world or len(replay.traces), message.ranks
        if kind in ("send", "recv"):
            members = pair_of(trace, event, int(rank_numbers(replay.traces)[rows.trace[row]])) or ()
            ranks, kind = 2, "sendrecv" if members else None  # unknown ranks: unknown links
        size = float(trace.device_events.bytes[event])
        if not np.isfinite(size):
            size = _input_bytes(trace, int(call))
        if kind == "all_gather":  # tables count the whole output
            size = message.out_bytes if np.isfinite(message.out_bytes) else size * ranks
        return cls(row, kind, size, ranks, members)

    def nodes(self, per_node: int) -> int:
        """How many nodes its ranks are on."""
        if self.members:
            return len({rank // per_node for rank in self.members})
        return -(-self.ranks // per_node)


def _input_bytes(trace: RankTrace, call: int) -> float:
    """Bytes of the tensors given to the innermost op around a call with shapes, else NaN."""
    for around in itertools.islice(trace.host.around(call), 1, None):
        shape = int(trace.host.shapes[around])
        if shape != NONE and shape < len(trace.types):
            dims, types = trace.shapes[shape], trace.types[shape] or "[]"
            try:
                tensors = flat(arguments(json.loads(dims), json.loads(types)))
            except (ValueError, TypeError):
                tensors = []
            if tensors:
                return float(sum(tensor.bytes for tensor in tensors))
    return np.nan
