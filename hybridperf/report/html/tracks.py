"""Timelines: slices packed for the page's script, which draws them and zooms; merged where there
are more than a page should hold.

Slices shorter than a resolution `r` that follow each other on one track within a cell of length `r`
become one, which says how many it stands for. `r` is zero where all slices fit, else the least
power of two times a millionth of the whole with which they do.

Times are packed as whole ticks, each slice as the gap before it and its length: small numbers,
exact sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.report.html.bars import legend_html
from hybridperf.report.html.blocks import table_html
from hybridperf.report.html.cells import count_cell, share_cell, time_cell
from hybridperf.report.html.document import OTHER, Rows, Table, Timeline, Track
from hybridperf.report.html.words import clean, escaped, json_in_script
from hybridperf.report.text import seconds

_FINEST = 1e-6  # of the whole: the first resolution tried
_TICKS = 1e9  # in the whole
_NO_LABEL = -1
_CLOCK_S = 2e-6  # recorded slices that cross by less do so because of the clock's resolution
_LONGEST = 12  # labels listed beneath


class Merged(NamedTuple):
    """A track after merging, M slices."""

    start_s: np.ndarray
    end_s: np.ndarray
    label: np.ndarray  # _NO_LABEL where several slices with different labels are one
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
    parts = [np.flatnonzero(lane == i) for i in range(len(ends))]
    names = [track.name, *(f"{track.name} ({i + 1})" for i in range(1, len(parts)))]
    return [
        Track(name, *(column[part] for column in columns))
        for name, part in zip(names, parts, strict=True)
    ]


def merged(track: Track, resolution_s: float) -> Merged:
    """Slices shorter than the resolution merged with their like."""
    order = np.argsort(track.start_s, kind="stable")
    start, end, label, kind, marked = (
        getattr(track, name)[order] for name in ("start_s", "end_s", "label", "kind", "marked")
    )
    n = len(start)
    if not n:
        return Merged(start, end, label, kind, marked, np.zeros(0, int), start)
    length = end - start
    small = length < resolution_s
    cell = np.floor(start / resolution_s) if resolution_s > 0 else np.arange(n)
    apart = np.ones(n, bool)
    apart[1:] = ~(small[1:] & small[:-1] & (cell[1:] == cell[:-1]))
    first = np.flatnonzero(apart)
    count = np.diff(np.append(first, n))
    if len(first) == n:
        return Merged(start, end, label, kind, marked, count, length)
    group = np.repeat(np.arange(len(first)), count)
    kinds = int(kind.max()) + 1
    by_kind = np.bincount(
        group * kinds + kind, weights=length, minlength=len(first) * kinds
    ).reshape(-1, kinds)
    same = np.minimum.reduceat(label, first) == np.maximum.reduceat(label, first)
    return Merged(
        start[first],
        np.maximum.reduceat(end, first),
        np.where(same, label[first], _NO_LABEL),
        np.where(count > 1, by_kind.argmax(axis=1), kind[first]),
        np.logical_or.reduceat(marked, first),
        count,
        np.add.reduceat(length, first),
    )


def merge_all(tracks: Sequence[Track], whole_s: float, most: int) -> tuple[list[Merged], float]:
    """All tracks at the finest resolution [s] with which they have at most `most` slices, or as
    many as any resolution leaves.
    """
    resolution_s = 0.0
    done = [merged(track, resolution_s) for track in tracks]
    while sum(len(one.start_s) for one in done) > most and resolution_s < whole_s:
        resolution_s = resolution_s * 2 or whole_s * _FINEST
        done = [merged(track, resolution_s) for track in tracks]
    return done, resolution_s


def timeline_html(block: Timeline) -> str:
    """The drawing, its buttons, what was merged, and what of it can be read as a table."""
    tracks = [lane for track in block.tracks if len(track.start_s) for lane in lanes(track)]
    if not tracks:
        return '<p class="quiet">Nothing takes any time.</p>'
    shown = tracks[: block.most_tracks]
    zero_s = min(float(track.start_s.min()) for track in shown)
    whole_s = max(float(track.end_s.max()) for track in shown) - zero_s
    moved = [
        Track(t.name, t.start_s - zero_s, t.end_s - zero_s, t.label, t.kind, t.marked)
        for t in shown
    ]
    done, resolution_s = merge_all(moved, whole_s, block.most_slices)
    any_marked = bool(block.marked) and any(one.marked.any() for one in done)
    used = sorted({int(kind) for one in done for kind in np.unique(one.kind)})
    data = _packed(block, moved, done, whole_s)
    choice = (
        f'<label><input type="checkbox" class="only"> {escaped(block.marked)} only</label>'
        if any_marked
        else ""
    )
    named = f"timeline of {len(shown)} tracks"
    keys = (
        "Drag to move; Ctrl and wheel, the buttons or + and - to zoom; arrow keys move; 0 shows"
        " all; click a slice to keep its words."
    )
    return (
        f"<figure><figcaption>{escaped(_said(tracks, shown, done, resolution_s, block))}</figcaption>"
        f"{legend_html([block.kinds[kind] for kind in used])}"
        '<div class="timeline"><div class="controls" hidden>'
        '<button type="button" data-do="in">zoom in</button><button type="button"'
        ' data-do="out">zoom out</button>'
        '<button type="button" data-do="left" aria-label="earlier">◀</button>'
        '<button type="button" data-do="right" aria-label="later">▶</button>'
        f'<button type="button" data-do="all">all</button>{choice}</div>'
        f'<div class="canvas"><canvas tabindex="0" role="img" aria-label="{named};'
        f' {escaped(keys)}"></canvas></div>'
        f'<output class="detail" aria-live="polite">{escaped(keys)}</output>'
        '<noscript><p class="quiet">Drawing it takes JavaScript; the tables below need'
        " none.</p></noscript>"
        f'<script type="application/json">{json_in_script(data)}</script></div></figure>'
        f"{_tables(block, moved, whole_s)}"
    )


def _packed(
    block: Timeline, tracks: Sequence[Track], done: Sequence[Merged], whole_s: float
) -> dict[str, Any]:
    tick_s = (whole_s or 1.0) / _TICKS
    used = sorted({int(at) for one in done for at in np.unique(one.label)} - {_NO_LABEL})
    place = {at: i for i, at in enumerate(used)} | {_NO_LABEL: _NO_LABEL}
    packed = []
    for track, one in zip(tracks, done, strict=True):
        start, end = (np.rint(edge / tick_s).astype(np.int64) for edge in (one.start_s, one.end_s))
        gap = start - np.concatenate([[0], end[:-1]])
        several = np.flatnonzero(one.members > 1)
        packed.append(
            {
                "name": clean(track.name),
                "gap": gap.tolist(),
                "length": (end - start).tolist(),
                "kind": one.kind.tolist(),
                "label": [place[int(at)] for at in one.label],
                "marked": np.flatnonzero(one.marked).tolist(),
                "several": [
                    [int(i), int(one.members[i]), round(float(one.busy_s[i]) / tick_s)]
                    for i in several
                ],
            }
        )
    kinds = [[clean(name), colour] for name, colour in block.kinds]
    labels = [clean(block.labels[at]) for at in used]
    return {
        "tick": tick_s,
        "whole": int(_TICKS),
        "kinds": kinds,
        "labels": labels,
        "marked": clean(block.marked),
        "tracks": packed,
    }


def _said(
    tracks: Sequence[Track],
    shown: Sequence[Track],
    done: Sequence[Merged],
    resolution_s: float,
    block: Timeline,
) -> str:
    all_slices, drawn = (
        sum(len(track.start_s) for track in shown),
        sum(len(one.start_s) for one in done),
    )
    several = sum(int(one.members[one.members > 1].sum()) for one in done)
    said = [
        f"{all_slices:,} {'slice' if all_slices == 1 else 'slices'} on {len(shown)}"
        f" {'track' if len(shown) == 1 else 'tracks'}."
    ]
    if len(tracks) > len(shown):
        said.append(f"The first {len(shown)} of {len(tracks):,} tracks are shown.")
    if several:
        said.append(
            f"{several:,} slices shorter than {seconds(resolution_s)} are merged with their"
            f" neighbours, which leaves {drawn:,} to draw (hatched; each says how many it stands"
            " for)."
        )
    if block.more and (several or len(tracks) > len(shown)):
        said.append(block.more)
    return " ".join(said)


def _tables(block: Timeline, tracks: Sequence[Track], whole_s: float) -> str:
    """What the drawing shows, for those who read it: how busy each track is, which labels take the
    longest.
    """
    rows: Rows = [
        [
            track.name,
            time_cell(track.busy_s),
            share_cell(track.busy_s / whole_s if whole_s else 0.0, OTHER),
            count_cell(len(track.start_s)),
        ]
        for track in tracks
    ]
    together = np.zeros(len(block.labels))
    times = np.zeros(len(block.labels), int)
    for track in tracks:
        together += np.bincount(
            track.label, weights=track.end_s - track.start_s, minlength=len(block.labels)
        )
        times += np.bincount(track.label, minlength=len(block.labels))
    longest = [
        at for at in np.argsort(-together, kind="stable")[:_LONGEST].tolist() if together[at] > 0
    ]
    names: Rows = [
        [block.labels[at], time_cell(float(together[at])), count_cell(int(times[at]))]
        for at in longest
    ]
    busy = table_html(Table(["track", "busy", "share of the whole", "slices"], rows))
    taking = table_html(
        Table(["what takes the longest, all tracks together", "seconds", "slices"], names)
    )
    return f"<details><summary>The timeline as tables</summary>{busy}{taking}</details>"
