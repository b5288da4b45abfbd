"""Slices of tracks on one clock, merged where there are more than a page should hold.

Slices shorter than a resolution `r` that follow each other on one track within a cell of length `r`
become one, which says how many it stands for. `r` is zero where all slices fit, otherwise the
smallest power of two times a millionth of the whole with which they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

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


def slices_frame(
    tracks: Sequence[Track], labels: Sequence[str], kinds: Sequence[str], most: int
) -> pd.DataFrame:
    """What runs when, at most about so many slices: those that are short and follow each other are
    merged.

    Args:
        tracks: in the order in which they are shown; those without slices are left out.
        labels: names of slices, which tracks index.
        kinds: names of kinds, which tracks index.
        most: slices.

    Returns:
        A row each: `track, start_s, end_s` (from the first start), `label` ("" where merged),
            `group`, `critical, members`.
    """
    shown = [lane for track in tracks if len(track.start_s) for lane in lanes(track)]
    zero_s = min((float(track.start_s.min()) for track in shown), default=0.0)
    last_s = max((float(track.end_s.max()) for track in shown), default=0.0)
    done, _ = merge_all(shown, last_s - zero_s, most)
    names = [*labels, ""]  # -1: of several labels
    return pd.concat([
        pd.DataFrame({
            "track": track.name, "start_s": one.start_s - zero_s, "end_s": one.end_s - zero_s,
            "label": [names[at] for at in one.label], "group": [kinds[at] for at in one.kind],
            "critical": one.marked, "members": one.members,
        }) for track, one in zip(shown, done, strict=True)
    ] or [pd.DataFrame()], ignore_index=True)  # fmt: skip
