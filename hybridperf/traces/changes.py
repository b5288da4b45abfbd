"""Changes to a recorded step: factors on what its kernels or collectives take.

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
from hybridperf.io import InputError, closest
from hybridperf.traces.events import Message
from hybridperf.traces.ranks import kind_of, pair_of, rank_numbers
from hybridperf.traces.replay import Replay
from hybridperf.traces.replay_graph import DEVICE, HOST, WIRE
from hybridperf.traces.row_ops import input_bytes

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
