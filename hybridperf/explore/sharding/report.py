"""A placement of embedding tables: what each rank does, what else was tried, a picture of both."""

import os
import textwrap
from typing import Any

import numpy as np

from hybridperf.explore.sharding import greedy
from hybridperf.explore.sharding.result import ShardResult
from hybridperf.report.plots import new_figure, save_figure
from hybridperf.report.text import frame_table, quantity, seconds, within

_MOST_RANKS, _MOST_NAMES = 64, 40  # shown
_LINE = 170  # letters under a picture
# a legend off the bars
_ABOVE: dict[str, Any] = {"fontsize": 7, "loc": "lower center", "ncols": 2, "frameon": False}
_ABOVE["bbox_to_anchor"] = (0.5, 1.0)


def shard_report(result: ShardResult) -> str:
    """The answer of `hybridperf shard` as text: placement, seconds, why, notes."""
    took = f"{seconds(result.step_s)} of a step{within(result.low_s, result.high_s)}"
    lines = [f"placement by {result.method}: {took}", ""]
    ranks = result.per_rank.head(_MOST_RANKS)
    lines.append(frame_table(ranks.assign(names=ranks["names"].map(_short))))
    if len(result.per_rank) > _MOST_RANKS:
        lines.append(f"... {len(result.per_rank) - _MOST_RANKS} more ranks")
    lines += ["", frame_table(result.candidates), "", *result.explanation]
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def shard_plot(result: ShardResult, path: str | os.PathLike) -> None:
    """Lookup seconds, bytes sent and memory of each rank; step seconds of every candidate."""
    figure, ((above, right), (below, last)) = new_figure(10, 6, lines=2, columns=2)
    frame = result.per_rank
    rank = frame["rank"]
    above.bar(rank, frame["forward_s"] * 1e3, label="forward", color="C0")
    forward_ms, backward_ms = frame["forward_s"] * 1e3, frame["backward_s"] * 1e3
    above.bar(rank, backward_ms, bottom=forward_ms, label="backward", color="C1")
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
    bars = [("forward_s", 1, "forward", "C0"), ("backward_s", 1, "backward", "C1")]
    for name, times, label, colour in [*bars, ("alltoall_s", 2, "two all-to-alls", "C3")]:
        width = times * shown[name].to_numpy() * 1e3
        right.barh(place, width, left=start, color=colour, label=label)
        start = start + width
    bound = "by sums no placement of whole tables is faster"
    right.axvline(result.bound_s * 1e3, color="black", lw=0.8, ls="--", label=bound)
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
    figure.supxlabel("\n".join(textwrap.fill(note, _LINE) for note in result.notes), fontsize=7)
    save_figure(figure, path)


def _short(names: str) -> str:
    if len(names) <= _MOST_NAMES:
        return names
    return names[: _MOST_NAMES - 3].rsplit(" ", 1)[0] + " ..."
