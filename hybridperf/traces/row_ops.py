"""Which recorded op launched a kernel, and what that op is to us.

The gradient of FBGEMM's pooled lookups has one input, the gradient of its result; what it sorts and
updates stands with the lookup: the last one before it of its optimizer whose tables and samples fit
and whose own gradient has not been seen.

Axes: U rows of the replay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hybridperf.io import InputError
from hybridperf.ops import OpCall
from hybridperf.traces.events import NONE, RankTrace
from hybridperf.traces.recorded import graph
from hybridperf.traces.replay import Replay
from hybridperf.traces.replay_graph import DEVICE
from hybridperf.workloads.programs.torch.calls import flat
from hybridperf.workloads.programs.torch.tables import lookup_update

_LOOKUP_GRADIENT = re.compile(r"torch::autograd::CppNode<SplitLookupFunction_(\w+)_Op>")
_OFFSETS = {True: 8, False: 12}  # where a lookup's offsets stand, of a dense one and others


class RecordedCall(NamedTuple):
    """An op with its arguments, as JSON; of a lookup's gradient those of the lookup."""

    name: str
    shapes: str
    types: str
    lookup: str = ""  # name of the lookup that this is the gradient of
    gradient: str = ""  # shapes of its gradient


def op_of(replay: Replay, row: int) -> int:
    """The innermost op around the call that launched a row's kernel, NONE where there is none."""
    call = int(replay.rows.call[row])
    return replay.traces[replay.rows.trace[row]].op_of_call(call) if call != NONE else NONE


def recorded_calls(replay: Replay) -> dict[int, RecordedCall]:
    """By row of computation, the op that launched it, where its shapes are recorded."""
    found: dict[int, RecordedCall] = {}
    lookups = []  # of each trace, its pooled lookups by their host event, in order
    for trace in replay.traces:
        pooled = trace.host_named(lambda name: "codegen_lookup" in name)
        at_events = np.flatnonzero(pooled & (trace.host.shapes != NONE)).tolist()
        lookups.append({op: _recorded(trace, op) for op in at_events})
    gradients: dict[tuple[int, int], RecordedCall] = {}
    device_rows = np.flatnonzero(replay.rows.kind == DEVICE).tolist()
    for row in sorted(device_rows, key=lambda row: int(replay.rows.call[row])):
        at, op = int(replay.rows.trace[row]), op_of(replay, row)
        trace = replay.traces[at]
        if op == NONE or trace.host.shapes[op] == NONE:
            continue
        if (at, op) not in gradients and (named := _LOOKUP_GRADIENT.match(trace.host_name(op))):
            gradients[at, op] = _of_lookup(trace, op, named[1], lookups[at])
        found[row] = gradients.get((at, op)) or _recorded(trace, op)
    return found


def our_ops(call: RecordedCall) -> tuple[OpCall, ...] | None:
    """What a recorded op is to us; None where nobody knows it, or its shapes say too little."""
    try:
        given = graph.RecordedArguments(
            json.loads(call.shapes), json.loads(call.types) if call.types else ()
        )
        if not call.lookup:
            return graph.recorded_op(call.name, given)
        result = graph.RecordedArguments((json.loads(call.gradient)[0],), ("float",))
        return lookup_update(call.lookup, graph.recorded_op(call.lookup, given, result))
    except (ValueError, TypeError, KeyError, IndexError, InputError):
        pass  # shapes that do not fit the op
    return None


def rows_by_call(calls: Mapping[int, RecordedCall]) -> dict[RecordedCall, list[int]]:
    """The rows of each recorded op."""
    found: dict[RecordedCall, list[int]] = {}
    for row, call in calls.items():
        found.setdefault(call, []).append(row)
    return found


def _recorded(trace: RankTrace, op: int) -> RecordedCall:
    shape = int(trace.host.shapes[op])
    types = trace.types[shape] if shape < len(trace.types) else ""
    return RecordedCall(trace.host_name(op), trace.shapes[shape], types)


def _of_lookup(
    trace: RankTrace, op: int, optimizer: str, lookups: dict[int, RecordedCall]
) -> RecordedCall:
    """A lookup's gradient as a call with the lookup's arguments, which it takes out of the rest."""
    gradient = _recorded(trace, op)
    (samples, _), *_ = dims_of(gradient.shapes)
    for at, one in reversed([(at, one) for at, one in lookups.items() if at < op]):
        dense = one.name.split("::")[-1].startswith("dense")
        shapes = dims_of(one.shapes)
        offsets = shapes[_OFFSETS[dense]] if len(shapes) > _OFFSETS[dense] else [0]
        tables = (offsets[0] - 1) // max(samples, 1) if offsets else 0
        widths = shapes[2 if dense else 6]
        fits = widths == [tables + 1] and offsets == [tables * samples + 1]
        if fits and optimizer.lower().split("_")[0] in one.name:
            del lookups[at]
            return gradient._replace(
                shapes=one.shapes, types=one.types, lookup=one.name, gradient=gradient.shapes
            )
    return gradient


def dims_of(shapes: str) -> list[list[Any]]:
    """Sizes of a call's tensors; of other arguments none."""
    return [one if isinstance(one, list) else [] for one in json.loads(shapes)]


def input_bytes(trace: RankTrace, call: int) -> float:
    """Bytes of the tensors given to the innermost op around a call with shapes, else NaN."""
    for around in list(trace.host.around(call))[1:]:
        shape = int(trace.host.shapes[around])
        if shape != NONE and shape < len(trace.types):
            dims, types = trace.shapes[shape], trace.types[shape] or "[]"
            try:
                tensors = flat(graph.arguments(json.loads(dims), json.loads(types)))
            except (ValueError, TypeError):
                tensors = []
            if tensors:
                return float(sum(tensor.bytes for tensor in tensors))
    return np.nan
