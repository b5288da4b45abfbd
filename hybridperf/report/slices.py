"""What runs when: a step's slices, a track for each stream and host, and what its critical path is
made of. Slices are merged where there are more than a page should hold.

Slices shorter than a resolution `r` that follow each other on one track within a cell of length `r`
become one, which says how many it stands for. `r` is zero where all slices fit, otherwise the
smallest power of two times a millionth of the whole with which they do.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.model.calls import CHAIN, KINDS, CallChain

LAUNCHES = "host: launches"
# of several kernels in a row, by what a pipeline's labels begin with: F3 of stage 0
_PASSES = {"F": "forward pass", "B": "backward pass", "W": "gradients of weights"}
_PASS = re.compile(r"([FBW])\d")
_FINEST = 1e-6  # of the whole: the first resolution tried
_NO_LABEL = -1
_CLOCK_S = 2e-6  # recorded slices that cross by less do so because of the clock's resolution


@dataclass(frozen=True, eq=False)
class Track:
    """Slices in one row of a timeline, N of them; where some overlap, the row becomes several."""

    name: str
    start_s: np.ndarray  # [N]
    end_s: np.ndarray  # [N]
    label: np.ndarray  # int [N] index into the timeline's labels
    kind: np.ndarray  # int [N] index into its kinds
    marked: np.ndarray  # bool [N] on the critical path


class Merged(NamedTuple):
    """A track after merging, M slices."""

    start_s: np.ndarray
    end_s: np.ndarray
    label: np.ndarray  # _NO_LABEL where slices with different labels are one
    kind: np.ndarray  # the one with the most seconds
    marked: np.ndarray  # any of them
    members: np.ndarray  # how many slices it stands for
    busy_s: np.ndarray


def lanes(track: Track) -> list[Track]:
    """The track itself; one whose slices overlap as several, each of slices that do not."""
    order = np.argsort(track.start_s, kind="stable")
    start, end = track.start_s[order], track.end_s[order].copy()
    crosses = np.flatnonzero((end[:-1] > start[1:]) & (end[:-1] <= start[1:] + _CLOCK_S))
    end[crosses] = start[crosses + 1]
    columns = [start, end, *(column[order] for column in (track.label, track.kind, track.marked))]
    if not (start[1:] < np.maximum.accumulate(end)[:-1]).any():
        return [Track(track.name, *columns)]
    ends: list[float] = []
    lane = np.zeros(len(order), int)
    for at, (begins, stops) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        free = next((i for i, until in enumerate(ends) if until <= begins), len(ends))
        ends[free:] = [stops, *ends[free + 1 :]]
        lane[at] = free
    return [
        Track(f"{track.name} ({i + 1})" if i else track.name, *(c[lane == i] for c in columns))
        for i in range(len(ends))
    ]


def merged(track: Track, resolution_s: float) -> Merged:
    """A track in order of start with slices shorter than the resolution merged."""
    start, end, label, kind = track.start_s, track.end_s, track.label, track.kind
    n, length = len(start), end - start
    small = length < resolution_s
    cell = np.floor(start / resolution_s) if resolution_s > 0 else np.arange(n)
    apart = np.ones(n, bool)
    apart[1:] = ~(small[1:] & small[:-1] & (cell[1:] == cell[:-1]))
    first = np.flatnonzero(apart)
    count = np.diff(np.append(first, n))
    if len(first) == n:
        return Merged(start, end, label, kind, track.marked, count, length)
    group, kinds = np.repeat(np.arange(len(first)), count), int(kind.max()) + 1
    by_kind = np.bincount(group * kinds + kind, weights=length, minlength=len(first) * kinds)
    most = by_kind.reshape(-1, kinds).argmax(axis=1)
    same = np.minimum.reduceat(label, first) == np.maximum.reduceat(label, first)
    return Merged(
        start[first],
        np.maximum.reduceat(end, first),
        np.where(same, label[first], _NO_LABEL),
        np.where(count > 1, most, kind[first]),
        np.logical_or.reduceat(track.marked, first),
        count,
        np.add.reduceat(length, first),
    )


def merge_all(tracks: Sequence[Track], whole_s: float, most: int) -> tuple[list[Merged], float]:
    """All tracks at the finest resolution [s] that leaves at most `most` slices, if one does."""
    resolution_s = 0.0
    done = [merged(track, resolution_s) for track in tracks]
    while sum(len(one.start_s) for one in done) > most and resolution_s < whole_s:
        resolution_s = resolution_s * 2 or whole_s * _FINEST
        done = [merged(track, resolution_s) for track in tracks]
    return done, resolution_s


def slices(prediction: Prediction, most: int) -> pd.DataFrame:
    """What runs when, at most about so many slices: those that are short and follow each other are
    merged.

    Returns:
        A row each: `track, start_s, end_s, label` ("" where merged), `group` (of several kernels of
            a pipeline's pass, which pass), `critical, members`.
    """
    groups = dict.fromkeys((KINDS[g] for g in prediction.op_group), 0)
    tracks, labels = tracks_of(prediction, groups)
    kinds = [*groups, LAUNCHES, *_PASSES.values()]
    passes = [_PASSES.get(found[1], "") if (found := _PASS.match(one)) else "" for one in labels]
    of_label = np.array([kinds.index(one) if one else -1 for one in passes])
    chain = kinds.index(CHAIN) if CHAIN in kinds else -1
    for at, track in enumerate(tracks):
        own = np.where(track.kind == chain, of_label[track.label], -1)
        tracks[at] = dataclasses.replace(track, kind=np.where(own < 0, track.kind, own))
    done, _ = merge_all(tracks, prediction.time_s, most)
    names = [*labels, ""]  # -1: of several labels
    return pd.concat([
        pd.DataFrame({
            "track": track.name, "start_s": one.start_s, "end_s": one.end_s,
            "label": [names[at] for at in one.label], "group": [kinds[at] for at in one.kind],
            "critical": one.marked, "members": one.members,
        }) for track, one in zip(tracks, done, strict=True)
    ], ignore_index=True)  # fmt: skip


def tracks_of(
    prediction: Prediction, colours: Mapping[str, int]
) -> tuple[list[Track], list[str]]:  # fmt: skip
    """A track for each stream of each rank and each host, and the labels they index."""
    graph, times = prediction.workload.graph, prediction.timeline
    label, labels = pd.factorize(np.array([name or "unnamed" for name in graph.labels], object))
    groups = list(colours)
    kind = np.array([groups.index(KINDS[g]) for g in prediction.op_group], int)
    kind_of_node = np.zeros(len(graph), int)
    runs = graph.row > 0
    kind_of_node[runs] = kind[graph.row[runs] - 1]
    several = bool((graph.rank != graph.rank[0]).any())
    launches = np.flatnonzero((graph.launch_row > 0) & (times.launch_end_s > times.launch_start_s))
    taking = np.flatnonzero(times.end_s > times.start_s)
    streams = len(graph.stream_names) + 1  # a rank's host first
    host_line = graph.rank[launches] * streams
    line = graph.rank[taking] * streams + graph.stream[taking] + 1
    nodes = pd.concat([pd.Series(launches, host_line), pd.Series(taking, line)])
    tracks = []
    for number, of_line in nodes.groupby(level=0):
        at, (rank, stream) = of_line.to_numpy(), divmod(int(number), streams)
        where, kinds = "host", np.full(len(at), len(groups))
        start, end = times.launch_start_s[at], times.launch_end_s[at]
        if stream:
            where, kinds = graph.stream_names[stream - 1], kind_of_node[at]
            start, end = times.start_s[at], times.end_s[at]
        marked = prediction.on_critical_path[at] & (stream > 0)
        name = f"rank {rank} {where}" if several else where
        tracks.append(Track(name, start, end, label[at], kinds, marked))
    return tracks, list(labels)


def critical_seconds(prediction: Prediction) -> tuple[dict[str, float], float]:
    """Seconds of the critical path by group, and what of it the host's launches take."""
    graph = prediction.workload.graph
    on_path = np.flatnonzero(prediction.on_critical_path & (graph.row > 0))
    calls = prediction.workload.calls
    times = np.bincount(graph.row[on_path] - 1, minlength=len(calls)).astype(float)
    for at in np.flatnonzero(times).tolist():
        if isinstance(call := calls[at], CallChain):
            for row, often in call.parts:
                times[row - 1] += often * times[at]
            times[at] = 0.0
    by_kind = np.bincount(
        prediction.op_group, weights=times * prediction.op_s, minlength=len(KINDS)
    )
    left_s = prediction.time_s - float(by_kind.sum())
    launches_s = left_s if left_s > 1e-6 * prediction.time_s else 0.0
    return {KINDS[g]: float(by_kind[g]) for g in np.flatnonzero(by_kind)}, launches_s
