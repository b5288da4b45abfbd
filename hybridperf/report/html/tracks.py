"""Timelines: slices of tracks on one clock, merged where there are more than a page should hold.

Slices shorter than a resolution `r` that follow each other on one track within a cell of length `r`
become one, which says how many it stands for. `r` is zero where all slices fit, otherwise the
smallest power of two times a millionth of the whole with which they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource

from hybridperf.report.html import document as doc
from hybridperf.report.html.figures import HUES, LIGHT, hover, row_axis, timeline_figure
from hybridperf.report.text import seconds

_FINEST = 1e-6  # of the whole: the first resolution tried
_NO_LABEL = -1
_CLOCK_S = 2e-6  # recorded slices that cross by less do so because of the clock's resolution
_LONGEST = 12  # labels listed beneath
_MOST_SLICES, _MOST_TRACKS = 20_000, 96


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


def timeline(
    tracks: Sequence[Track], labels: Sequence[str], kinds: Sequence[tuple[str, int]],
    more: str = "", most_slices: int = _MOST_SLICES, most_tracks: int = _MOST_TRACKS,
) -> list[doc.Block]:  # fmt: skip
    """The figure of a timeline, of at most so many slices and tracks (the first on top), and its
    tables.

    `labels`, `kinds`: names of slices, names and colours of kinds, which tracks index; `more`: a
    sentence that names where every slice is, for a page that merges some.
    """
    all_lanes = [lane for track in tracks if len(track.start_s) for lane in lanes(track)]
    if not all_lanes:
        return [doc.Text("Nothing takes any time.")]
    shown = all_lanes[:most_tracks]
    zero_s = min(float(track.start_s.min()) for track in shown)
    whole_s = max(float(track.end_s.max()) for track in shown) - zero_s
    shown = [replace(t, start_s=t.start_s - zero_s, end_s=t.end_s - zero_s) for t in shown]
    done, resolution_s = merge_all(shown, whole_s, most_slices)
    frames = [pd.DataFrame(one._asdict()).assign(row=row) for row, one in enumerate(done)]
    slices = pd.concat(frames, ignore_index=True)
    drawn, scale, unit = timeline_figure(len(shown), whole_s)
    names = [doc.clean(track.name) for track in shown]
    row_axis(drawn, names)
    labels = [doc.clean(label) for label in labels]
    words = [*labels, "different slices"]
    columns = {
        "left": slices["start_s"] / scale,
        "right": slices["end_s"] / scale,
        "y": slices["row"],
        "words": [words[at] for at in slices["label"]],
        "track": [names[at] for at in slices["row"]],
        "kind": [kinds[at][0] for at in slices["kind"]],
        "colour": [HUES[kinds[at][1]] for at in slices["kind"]],
        "took": list(map(_took, slices.itertuples())),
        "path": np.where(slices["marked"], ", critical path", ""),
    }
    columns = {name: np.asarray(column) for name, column in columns.items()}
    several = slices["members"].to_numpy() > 1
    renderers, edge = [], LIGHT["page"]
    for some, hatch in ((~several, None), (several, "right_diagonal_line")):
        source = ColumnDataSource(_chosen(columns, some))
        style: dict[str, Any] = {"hatch_scale": 6, "hatch_pattern": hatch, "hatch_color": edge}
        style |= {"fill_color": "colour", "line_color": edge, "line_width": 0.5}
        bars = drawn.hbar("y", left="left", right="right", height=0.75, source=source, **style)
        renderers.append(bars)
    legend = [("■", *kinds[at][::-1]) for at in np.unique(slices["kind"])]
    if slices["marked"].any():
        some = slices["marked"].to_numpy()
        edges = {name: columns[name][some] for name in ("left", "right")}
        source = ColumnDataSource({**edges, "y": columns["y"][some] + 0.42})
        drawn.hbar("y", left="left", right="right", height=0.12, source=source, color=LIGHT["mark"])
        legend.append(("▁", "m", "critical path"))
    tip = f"@words: @took, from @left{{0,0.[000000]}} {unit} (@track; @kind@path)"
    hover(drawn, renderers, tip)
    caption = _caption(all_lanes, shown, done, resolution_s, more)
    tables = doc.Folded("The timeline as tables", _tables(shown, labels, whole_s))
    return [doc.Figure(drawn, caption, legend), tables]


def _chosen(columns: dict[str, np.ndarray], some: np.ndarray) -> dict[str, np.ndarray | list[str]]:
    chosen = {name: column[some] for name, column in columns.items()}
    return {n: c.tolist() if c.dtype.kind in "OU" else c for n, c in chosen.items()}


def _took(one: Any) -> str:
    length = seconds(one.end_s - one.start_s)
    busy = f"{one.members} slices, busy for {seconds(one.busy_s)} of {length}"
    return length if one.members == 1 else busy


def _caption(
    every: Sequence[Track], shown: Sequence[Track], done: Sequence[Merged], resolution_s: float,
    more: str,
) -> str:  # fmt: skip
    all_slices = sum(len(track.start_s) for track in shown)
    several = sum(int(one.members[one.members > 1].sum()) for one in done)
    parts = [f"Slices: {all_slices:,}; tracks: {len(shown):,}. Ctrl and wheel or a box zoom."]
    if len(every) > len(shown):
        parts.append(f"The first {len(shown)} of {len(every):,} tracks are shown.")
    if several:
        drawn = sum(len(one.start_s) for one in done)
        parts.append(
            f"{several:,} slices shorter than {seconds(resolution_s)} are merged with their"
            f" neighbours, which leaves {drawn:,} to draw (hatched; each tells its number)."
        )
    if more and (several or len(every) > len(shown)):
        parts.append(more)
    return " ".join(parts)


def _tables(tracks: Sequence[Track], labels: Sequence[str], whole_s: float) -> list[doc.Block]:
    """How busy each track is, and which labels take the longest."""
    slices = pd.concat([
        pd.DataFrame({"track": at, "label": track.label, "s": track.end_s - track.start_s})
        for at, track in enumerate(tracks)
    ])  # fmt: skip
    busy = slices.groupby("track")["s"].agg(sum_s="sum", count="count").reset_index()
    busy["share"] = busy["sum_s"] / whole_s if whole_s else 0.0
    busy["name"] = [doc.clean(tracks[at].name) for at in busy["track"]]
    longest = slices.groupby("label")["s"].agg(sum_s="sum", count="count").reset_index()
    longest = longest.sort_values("sum_s", ascending=False, kind="stable").head(_LONGEST)
    longest["name"] = [labels[at] for at in longest["label"]]
    taken = {"sum_s": "seconds", "count": "slices"}
    columns = {"name": "track", **taken, "share": "share of the whole"}
    return [
        doc.frame_table(busy, columns, {"share": doc.OTHER}),
        doc.frame_table(longest, {"name": "longest, all tracks together", **taken}),
    ]
