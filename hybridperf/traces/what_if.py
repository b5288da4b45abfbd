"""What a recorded step would take on another device, over other links, or with faster ops.

A replay is a graph and seconds for its rows; a `Change` is a factor on the seconds of
some rows, and the graph says what becomes of them. Only what kernels and collectives take is
changed: the host's seconds, launch latencies and gaps stay as they were measured.

Axes: U rows of the replay.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.evaluate import last_ends
from hybridperf.io import InputError, closest
from hybridperf.traces.events import NONE, Message
from hybridperf.traces.idle import covered_s, merged
from hybridperf.traces.ranks import kind_of, pair_of, rank_numbers
from hybridperf.traces.replay import UNRECORDED, Replay
from hybridperf.traces.replay_graph import DEVICE, HOST, IDLE, WIRE
from hybridperf.traces.row_ops import input_bytes

HELPS = 0.01  # an op whose whole time is worth less than this share of the step does not help
_ROUNDS = 200  # of the search for a fixed point
_SETTLED_S = 1e-9
_GROUPS = 120  # ops whose best possible saving is computed, those with most time


@dataclass(frozen=True)
class WhatIf:
    """A replay before and after some changes."""

    before: Replay
    after: Replay
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    # ends of the interval of `after`, where a change has one: all factors at their ends at once
    ends: tuple[Replay, Replay] | None = None


def what_if(
    replay: Replay, changes: Sequence[Change] = (), overlap_slowdown: float = 1.0
) -> WhatIf:
    """The replay with all changes, and with computation slowed down under collectives.

    `overlap_slowdown`: how much longer computation takes while a collective of its rank runs, on
    top of what the measured times hold.
    """
    rows = replay.rows

    def changed(end: str) -> tuple[Replay, str]:
        of_ends = (getattr(change, end) for change in changes)
        factors = [
            change.factor if at_end is None else at_end
            for change, at_end in zip(changes, of_ends, strict=True)
        ]
        factor = np.prod([np.ones(len(rows)), *factors], axis=0)
        after = replay.with_seconds(replay.seconds + rows.busy_s * (factor - 1))
        if overlap_slowdown == 1.0:
            return after, ""
        return _slowed(after, rows.busy_s * factor, overlap_slowdown)

    after, unsettled = changed("factor")
    notes = [note for change in changes for note in change.notes]
    ends = None
    if any(change.low is not None for change in changes):
        ends = changed("low")[0], changed("high")[0]
    return WhatIf(replay, after, tuple(changes), (*notes, *filter(None, [unsettled])), ends)


def step_table(results: Sequence[WhatIf], measured: Sequence[Replay]) -> pd.DataFrame:
    """A row per step and rank: `step, rank, measured_s, replayed_s, before_s, after_s`, and
    `low_s, high_s` where a change has an interval.
    """
    rows = [
        {
            "step": one.steps[at].name, "rank": trace.rank, "measured_s": one.measured_s[at],
            "replayed_s": one.replayed_s[at], "before_s": result.before.step_s[at],
            "after_s": result.after.step_s[at],
            **_interval(result, at),
        }
        for result, one in zip(results, measured, strict=True)
        for at, trace in enumerate(one.traces)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _interval(result: WhatIf, at: int) -> dict[str, float]:
    if result.ends is None:
        return {}
    return {"low_s": result.ends[0].step_s[at], "high_s": result.ends[1].step_s[at]}


def best_savings(replay: Replay) -> pd.DataFrame:
    """What each op could save if it took no time: `op, seconds, critical_s, saves_s, helps`.

    `seconds` over all ranks; `critical_s` on the critical path; `helps`: at least 1 %. The 120 ops
    with most time are evaluated in one batch; an op saves no more than its own seconds.
    """
    kinds = enumerate(replay.rows.kind.tolist())
    names = [replay.op_of_row(row) if kind != IDLE else "" for row, kind in kinds]
    changeable_s = replay.seconds - replay.rows.fixed_s
    by_op = pd.Series(changeable_s).groupby(pd.Series(names)).sum()
    by_op = by_op.drop(["", UNRECORDED], errors="ignore").nlargest(_GROUPS)
    place = {name: at for at, name in enumerate(by_op.index)}
    which = np.array([place.get(name, NONE) for name in names])
    table = np.repeat(replay.seconds[:, None], len(by_op) + 1, axis=1)
    known = np.flatnonzero(which != NONE)
    table[known, which[known] + 1] -= changeable_s[known]
    seconds = np.maximum(table, 0.0).astype(np.float32)
    ends = last_ends(replay.lowered.program, seconds)
    rounding_s = 4 * float(np.finfo(np.float32).eps) * ends[0]
    if replay.shorter is not None:
        ends = ends - last_ends(replay.shorter.program, seconds)
    saves_s = ends[0] - ends[1:]
    critical_s = critical_by_op(replay).set_index("op")["seconds"]
    frame = pd.DataFrame({
        "op": by_op.index, "seconds": by_op.to_numpy(),
        "critical_s": critical_s.reindex(by_op.index).fillna(0.0).to_numpy(),
        "saves_s": np.where(saves_s > rounding_s, saves_s, 0.0),
    })  # fmt: skip
    frame["helps"] = frame["saves_s"] >= HELPS * ends[0]
    return frame.sort_values(["saves_s", "seconds"], ascending=False, ignore_index=True)


def critical_by_op(replay: Replay) -> pd.DataFrame:
    """The critical path by op, `op, seconds, share, times`, longest first."""
    graph, path = replay.graph, replay.critical
    row = np.where(path.is_launch, graph.launch_row[path.node], graph.row[path.node]) - 1
    row = row[row >= 0]
    seconds = replay.seconds[row]
    if replay.shorter is not None:  # the part of the path that lies in the last turn
        before_s = float(replay.timeline.end_s[replay.nodes.turn < replay.nodes.turn.max()].max())
        until_s = np.cumsum(seconds)
        seconds = np.minimum(seconds, np.maximum(until_s - before_s, 0.0))
        row, seconds = row[seconds > 0], seconds[seconds > 0]
    idle, before = replay.rows.kind[row] == IDLE, "idle before the first event"
    listed = zip(row.tolist(), idle, strict=True)
    names = [before if is_idle else replay.op_of_row(one) for one, is_idle in listed]
    frame = pd.DataFrame({"op": names, "seconds": seconds})
    summed = frame.groupby("op").agg(seconds=("seconds", "sum"), times=("seconds", "size"))
    out = summed.reset_index()
    out.insert(2, "share", out["seconds"] / max(out["seconds"].sum(), 1e-30))
    return out.sort_values("seconds", ascending=False, ignore_index=True)


def _slowed(replay: Replay, busy_s: np.ndarray, slowdown: float) -> tuple[Replay, str]:
    """Computation that runs under a collective of its rank takes `slowdown` times as long there.

    With d seconds of its own and o of its new length under a collective: length = d + o (1 - 1 /
    slowdown), to a fixed point, since what overlaps depends on the result.
    """
    if not (np.isfinite(slowdown) and slowdown >= 1):
        wanted = "expected an overlap slow-down of 1 or more"
        raise InputError(f"{wanted}, got {slowdown}; 1.2 adds a fifth")
    rows = replay.rows
    nodes = replay.nodes
    last_turn = nodes.turn == nodes.turn.max()
    own = np.flatnonzero((nodes.row != NONE) & ~nodes.carried & last_turn)
    computes = own[rows.kind[nodes.row[own]] == DEVICE]
    at, extra_s = replay, np.zeros(len(rows))
    for turn in range(_ROUNDS):
        wanted_s = np.zeros(len(rows))
        wanted_s[nodes.row[computes]] = _under_collectives(at, computes) * (1 - 1 / slowdown)
        change_s = float(np.abs(wanted_s - extra_s).max(initial=0.0))
        if change_s < _SETTLED_S:
            return at, ""
        # half a step where whole ones swing to and fro
        extra_s += (wanted_s - extra_s) * (1.0 if turn < _ROUNDS // 4 else 0.5)
        at = replay.with_seconds(replay.rows.fixed_s + busy_s + extra_s)
    off_us = f"{1e6 * change_s:.1f} µs an op"
    return at, f"what overlaps did not settle: computation is off by up to {off_us}"


def _under_collectives(replay: Replay, nodes: np.ndarray) -> np.ndarray:
    """Seconds that each of some nodes runs at the same time as a collective of its rank."""
    starts_s, ends_s = replay.timeline.start_s, replay.end_s
    has_row = np.flatnonzero(replay.nodes.row != NONE)
    wires = has_row[replay.rows.kind[replay.nodes.row[has_row]] == WIRE]
    out = np.zeros(len(nodes))
    for rank in range(len(replay.traces)):
        mine, theirs = replay.graph.rank[nodes] == rank, wires[replay.graph.rank[wires] == rank]
        if not mine.any() or not len(theirs):
            continue
        held = merged(starts_s[theirs], ends_s[theirs])
        out[mine] = covered_s(held, starts_s[nodes[mine]], ends_s[nodes[mine]])
    return out


LATENCY_S = 20e-6  # of a collective's seconds at most so many do not depend on its size


@dataclass(frozen=True)
class Change:
    """A factor on what each row's kernel or collective takes, and what could not be changed."""

    description: str  # for people: what is changed
    factor: np.ndarray  # [U]
    # seconds by op of what keeps its measured time
    unknown: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)  # of the unknown: why
    by: Mapping[str, float] = field(default_factory=dict)  # seconds by what prices them
    low: np.ndarray | None = None  # ends of the factor's interval [U]; None: none is known
    high: np.ndarray | None = None


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
    factor, unknown = np.ones(len(replay.rows)), dict[str, float]()
    if wires := on_wires(replay):
        at = np.array([one.row for one in wires])
        before_s, after_s = (predicted(model, wires)["predicted_s"] for model in (old, new))
        ratio = (after_s / before_s).to_numpy()
        factor[at] = np.where(np.isfinite(ratio), ratio, 1.0)
        unknown = seconds_by_op(replay, at[~np.isfinite(ratio)])
    what = f"links of {new.system.id} for those of {old.system.id}"
    return Change(what, factor, unknown, _of_links(replay))


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


@dataclass(frozen=True)
class OnWire:
    """A row's collective as tables of collectives count them."""

    row: int
    kind: str | None
    bytes: float
    ranks: int
    members: tuple[int, ...]  # which ranks; () where not recorded

    @classmethod
    def of(cls, replay: Replay, row: int) -> OnWire:
        rows = replay.rows
        trace, event, call = replay.traces[rows.trace[row]], int(rows.event[row]), rows.call[row]
        kind, message = kind_of(trace, np.array([event]))[0], trace.messages.get(event, Message())
        ranks, members = message.size or trace.world or len(replay.traces), message.ranks
        if kind in ("send", "recv"):
            members = pair_of(trace, event, int(rank_numbers(replay.traces)[rows.trace[row]])) or ()
            ranks, kind = 2, "sendrecv" if members else None  # unknown ranks: unknown links
        size = float(trace.device_events.bytes[event])
        if not np.isfinite(size):
            size = input_bytes(trace, int(call))
        if kind == "all_gather":  # tables count the whole output
            size = message.out_bytes if np.isfinite(message.out_bytes) else size * ranks
        return cls(row, kind, size, ranks, members)

    def nodes(self, per_node: int) -> int:
        """How many nodes its ranks are on."""
        if self.members:
            return len({rank // per_node for rank in self.members})
        return -(-self.ranks // per_node)


def on_wires(replay: Replay) -> list[OnWire]:
    """Collectives that send something: one rank sends nothing."""
    every = (OnWire.of(replay, int(row)) for row in np.flatnonzero(replay.rows.kind == WIRE))
    return [one for one in every if one.ranks != 1]


def predicted(model: CollectiveModel, wires: Sequence[OnWire]) -> pd.DataFrame:
    """What a system's links take for collectives, whose ranks fill its nodes in order."""
    nodes = [float(one.nodes(model.system.accelerators_per_node)) for one in wires]
    listed = [(one.kind, one.bytes, float(one.ranks)) for one in wires]
    frame = pd.DataFrame(listed, columns=["collective", "bytes", "n_gpus"])
    return model.predict(frame.assign(n_nodes=nodes))


def seconds_by_op(replay: Replay, rows: np.ndarray) -> dict[str, float]:
    """Measured seconds of some rows by what launched them."""
    found: dict[str, float] = {}
    for row in rows.tolist():
        name = replay.op_of_row(row)
        found[name] = found.get(name, 0.0) + float(replay.rows.busy_s[row])
    return found
