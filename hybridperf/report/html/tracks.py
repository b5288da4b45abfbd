"""Timelines: slices of tracks (`report/slices.py`) drawn on one clock."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource

from hybridperf.report.html import document as doc
from hybridperf.report.html.figures import HUES, LIGHT, hover, row_axis, timeline_figure
from hybridperf.report.slices import Merged, Track, lanes, merge_all
from hybridperf.report.text import percent, seconds

_LONGEST = 12  # labels listed beneath
_MOST_SLICES, _MOST_TRACKS = 20_000, 96


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
    length = doc.time_words(one.end_s - one.start_s)
    busy = f"{one.members} slices, busy for {doc.time_words(one.busy_s)} of {length}"
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
    busy = slices.groupby("track")["s"].agg(["sum", "count"]).reset_index()
    busy["share"] = busy["sum"] / whole_s if whole_s else 0.0
    busy["name"] = [doc.clean(tracks[at].name) for at in busy["track"]]
    longest = slices.groupby("label")["s"].agg(["sum", "count"]).reset_index()
    longest = longest.sort_values("sum", ascending=False, kind="stable").head(_LONGEST)
    longest["name"] = [labels[at] for at in longest["label"]]
    taken = [doc.Column("sum", "seconds", doc.time_words)]
    taken.append(doc.Column("count", "slices", doc.count_words))
    share = doc.Column("share", "share of the whole", percent, doc.OTHER)
    return [
        doc.frame_table(busy, [doc.Column("name", "track"), *taken, share]),
        doc.frame_table(longest, [doc.Column("name", "longest, all tracks together"), *taken]),
    ]
