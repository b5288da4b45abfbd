"""A placement of embedding tables as people read it: who does what, what else was tried, and a
picture of both.
"""

from __future__ import annotations

import os
import textwrap
from typing import Any

import numpy as np

from hybridperf.explore.sharding import greedy
from hybridperf.explore.sharding.result import ShardResult
from hybridperf.report.plots import new_figure, save_figure
from hybridperf.report.text import percent, quantity, seconds, table

_MOST_RANKS, _MOST_NAMES = 64, 40  # shown
_LINE = 170  # letters under a picture
_ABOVE: dict[str, Any] = {
    "fontsize": 7,
    "loc": "lower center",
    "bbox_to_anchor": (0.5, 1.0),
    "ncols": 2,
    "frameon": False,
}  # off the bars


def shard_report(result: ShardResult) -> str:
    """The whole answer as text."""
    frame = result.per_rank.head(_MOST_RANKS)
    rows = [
        [
            str(row.rank),
            str(row.tables),
            f"{row.lookups:.4g}",
            seconds(row.forward_s),
            seconds(row.backward_s),
            quantity(row.sent_bytes, "B"),
            quantity(row.memory_bytes, "B"),
            percent(row.memory_share),
            row.slowest,
            _short(row.names),
        ]
        for row in frame.itertuples()
    ]
    headers = [
        "rank",
        "tables",
        "lookups",
        "forward",
        "backward",
        "sent",
        "memory",
        "of limit",
        "slowest",
        "which",
    ]
    interval = (
        ""
        if result.low_s is None
        else f" (90 %: {seconds(result.low_s)} to {seconds(result.high_s)})"
    )
    lines = [
        f"placement by {result.method}: {seconds(result.step_s)} of a step{interval}",
        "",
        table(headers, rows),
    ]
    if len(result.per_rank) > _MOST_RANKS:
        lines.append(f"... {len(result.per_rank) - _MOST_RANKS} more ranks")
    lines += [
        "",
        table(
            ["candidate", "step", "forward", "backward", "all-to-all", "fullest rank", "note"],
            [
                [
                    row.method,
                    seconds(row.step_s),
                    seconds(row.forward_s),
                    seconds(row.backward_s),
                    seconds(row.alltoall_s),
                    quantity(row.fullest_bytes, "B"),
                    row.note or ("" if row.fused else "not priced as one kernel"),
                ]
                for row in result.candidates.itertuples()
            ],
        ),
    ]
    return "\n".join([*lines, "", *result.explanation, *(f"note: {note}" for note in result.notes)])


def shard_plot(result: ShardResult, path: str | os.PathLike) -> None:
    """Lookup seconds, bytes sent and memory of each rank; step seconds of every candidate."""
    figure, ((above, right), (below, last)) = new_figure(10, 6, lines=2, columns=2)
    frame = result.per_rank
    rank = frame["rank"]
    above.bar(rank, frame["forward_s"] * 1e3, label="forward", color="C0")
    above.bar(
        rank,
        frame["backward_s"] * 1e3,
        bottom=frame["forward_s"] * 1e3,
        label="backward",
        color="C1",
    )
    above.set(ylabel="lookups, ms", xlabel="rank")
    above.legend(**_ABOVE)
    below.bar(rank, frame["memory_bytes"] / 1e9, color="C2")
    limit = float(result.cost.limit_bytes)
    near = limit < 2 * frame["memory_bytes"].max()  # else the line would press the bars flat
    if near:
        below.axhline(limit / 1e9, color="black", lw=0.8, ls="--")
    below.set(ylabel="memory, GB", xlabel="rank")
    below.set_title(f"limit {quantity(limit, 'B')}{', dashed' if near else ''}", fontsize=8)
    last.bar(rank, frame["sent_bytes"] / 1e6, color="C3")
    last.set(ylabel="sent all-to-all, MB", xlabel="rank")
    shown = result.candidates.dropna(subset=["step_s"])
    place = np.arange(len(shown))[::-1]
    start = np.zeros(len(shown))
    parts = (
        ("forward_s", 1, "forward"),
        ("backward_s", 1, "backward"),
        ("alltoall_s", 2, "two all-to-alls"),
    )
    for colour, (name, times, label) in zip(("C0", "C1", "C3"), parts, strict=True):
        width = times * shown[name].to_numpy() * 1e3
        right.barh(place, width, left=start, color=colour, label=label)
        start = start + width
    right.axvline(
        result.bound_s * 1e3,
        color="black",
        lw=0.8,
        ls="--",
        label="by sums no placement of whole tables is faster",
    )
    kinds = {name: f"greedy by {name}" for name in greedy.GREEDY}
    words = [
        kinds.get(row.method, row.method) + ("" if row.fits else " (does not fit)")
        for row in shown.itertuples()
    ]
    right.set_yticks(place, words, fontsize=7)
    right.set(xlabel="slowest lookups and all-to-alls, ms")
    right.legend(**_ABOVE)
    for axes in (above, below, last):
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in (above, right, below, last):
        axes.grid(alpha=0.2)
    figure.supxlabel("\n".join(textwrap.fill(note, _LINE) for note in result.notes), fontsize=7)
    save_figure(figure, path)


def _short(names: str) -> str:
    return (
        names if len(names) <= _MOST_NAMES else names[: _MOST_NAMES - 3].rsplit(" ", 1)[0] + " ..."
    )
