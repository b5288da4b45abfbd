"""What sharding found: where every table goes, what each rank does, other candidates, and why; as
files, as text and as a picture.
"""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.explore.sharding import methods
from hybridperf.explore.sharding.cost import (
    MEMORY,
    SENT,
    PlacementCost,
    PlacementParts,
    SplitTables,
)
from hybridperf.io import replacing_in, write_json, write_table
from hybridperf.report.plots import new_figure, save_figure
from hybridperf.report.text import frame_table, quantity, seconds, within

SCHEMA_VERSION = 1
_NOTABLE = 0.01  # of a step, from which on a difference is worth a sentence
FILES = ("shard.json", "placement.csv", "ranks.csv", "candidates.csv")
CANDIDATE_COLUMNS = [
    "method", "step_s", "forward_s", "backward_s", "alltoall_s", "sums_s", "fullest_bytes", "fits",
    "fused", "note",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A placement that one method came to; None: it found none that fits."""

    method: str
    placement: Any  # [T]


class SplitAdvice(NamedTuple):
    """A split that makes the step shorter, as `--split` takes it."""

    how: str
    step_s: float


@dataclasses.dataclass(frozen=True)
class ShardResult:
    """The chosen placement of T tables (or pieces of tables) on R ranks."""

    tables: tuple[str, ...]  # [T] names
    placement: tuple[int, ...]  # [T] ranks
    owners: tuple[str, ...]  # [T] the table that each is, or is a piece of
    ranks: int
    nodes: int
    method: str  # that found it
    step_s: float  # what placement decides of a step: lookups and all-to-alls
    # its 90 % interval; None where the error of its ops or collectives is not known
    low_s: float | None
    high_s: float | None
    parts: PlacementParts
    bound_s: float  # by the sums of tables' lookups no placement takes less
    proven: bool  # that none is better, by branch and bound
    # `rank, node, tables, lookups, forward_s, backward_s, sent_bytes, memory_bytes, memory_share,
    # slowest, names`
    per_rank: pd.DataFrame
    # `table, of, rank, rows, dim, pooling, forward_s, backward_s, sent_bytes, memory_bytes`
    per_table: pd.DataFrame
    # CANDIDATE_COLUMNS, the best first; `fused`: priced kernel by kernel, else by `sums_s`, the
    # sums of tables' lookups
    candidates: pd.DataFrame
    explanation: tuple[str, ...]  # sentences
    # what was assumed, and what the model has not measured, as in `Prediction.notes`
    notes: tuple[str, ...]
    cost: PlacementCost

    def __repr__(self) -> str:
        what = f"{len(self.tables):,} tables on {self.ranks:,} ranks by {self.method}"
        return f"<ShardResult: {what}: {self.step_s:.4g} s a step; notes: {len(self.notes)}>"

    def document(self) -> dict[str, Any]:
        """What `shard.json` says, tables apart."""
        return {
            "placement": dict(zip(self.tables, self.placement, strict=True)), "ranks": self.ranks,
            "nodes": self.nodes, "method": self.method, "step_s": self.step_s,
            "parts": {k: float(v) for k, v in self.parts._asdict().items()},
            "bound_s": self.bound_s, "proven": self.proven, "explanation": list(self.explanation),
            "low_s": self.low_s, "high_s": self.high_s, "notes": list(self.notes),
        }  # fmt: skip

    def save(self, folder: str | Path) -> Path:
        """Write `FILES` into a folder; the path of `shard.json`."""
        folder = Path(folder)
        path = folder / "shard.json"
        with replacing_in(folder) as new:
            write_table(self.per_table, new / "placement.csv")
            write_table(self.per_rank, new / "ranks.csv")
            write_table(self.candidates, new / "candidates.csv")
            write_json(new / path.name, "shard-result", SCHEMA_VERSION, self.document())
        return path


def shard_result(
    made: SplitTables, found: Sequence[Candidate], few: Sequence[Candidate], best: Candidate,
    proven: bool, split_helps: Callable[[str, float], SplitAdvice | None], predicted: Prediction,
    remarks: Sequence[str],
) -> ShardResult:  # fmt: skip
    """Everything about the best of some candidates, of which `few` were priced kernel by kernel.

    `split_helps`: seconds saved by splitting each table further. `predicted`: the best one as a
    step, for its interval. `remarks`: further notes.
    """
    tables, owners, cost, fused = made
    placement = tuple(int(rank) for rank in best.placement)
    owner_of = {table.name: owner for table, owner in zip(tables, owners, strict=True)}
    per_rank = _per_rank(made, placement)
    listed = _candidates(made, found, few)
    parts = fused.parts(placement)
    alone = cost.lookup_seconds(cost.tables)
    apart = cost.step_s(placement) / cost.bound_s() - 1
    best_sums_s = float(listed.loc[listed["fits"], "sums_s"].min())
    proven = proven and cost.step_s(placement) <= best_sums_s * (1 + 1e-9)
    per_table = {
        "table": [table.name for table in tables],
        "of": list(owners),
        "rank": placement,
        **{size: [getattr(table, size) for table in tables] for size in ("rows", "dim", "pooling")},
        "forward_s": alone[0],
        "backward_s": alone[1],
        "sent_bytes": cost.tables[:, SENT] * (cost.ranks - 1),
        "memory_bytes": cost.tables[:, MEMORY],
    }
    judged = best.method, proven, apart
    sentences = _sentences(cost, per_rank, parts, listed, *judged, owner_of, split_helps)
    return ShardResult(
        tables=tuple(table.name for table in tables),
        placement=placement,
        owners=tuple(owners),
        ranks=cost.ranks,
        nodes=cost.nodes,
        method=best.method,
        step_s=predicted.time_s,
        low_s=predicted.low_s,
        high_s=predicted.high_s,
        parts=parts,
        bound_s=cost.bound_s(),
        proven=proven,
        per_rank=per_rank,
        per_table=pd.DataFrame(per_table),
        candidates=listed,
        explanation=tuple(sentences),
        notes=(*remarks, *predicted.notes),
        cost=cost,
    )


def _per_rank(made: SplitTables, placement: Sequence[int]) -> pd.DataFrame:
    tables, _, cost, fused = made
    sums = cost.sums(placement)
    forward_s, backward_s = fused.lookup_seconds(placement)
    slowest = np.full(cost.ranks, "", object)
    by_part = {"forward": forward_s, "backward": backward_s, "all-to-all": sums[:, SENT]}
    for word, values in by_part.items():
        rank = int(values.argmax())
        slowest[rank] = ", ".join(filter(None, (slowest[rank], word)))
    placed = list(zip(tables, placement, strict=True))
    held = [[table for table, at in placed if at == rank] for rank in range(cost.ranks)]
    return pd.DataFrame({
        "rank": np.arange(cost.ranks), "node": np.arange(cost.ranks) // (cost.ranks // cost.nodes),
        "tables": list(map(len, held)),
        "lookups": [sum(table.pooling for table in some) for some in held], "forward_s": forward_s,
        "backward_s": backward_s, "sent_bytes": sums[:, SENT] * (cost.ranks - 1),
        "memory_bytes": sums[:, MEMORY], "memory_share": sums[:, MEMORY] / cost.limit_bytes,
        "slowest": slowest, "names": [" ".join(table.name for table in some) for some in held],
    })  # fmt: skip


def _candidates(
    made: SplitTables, found: Sequence[Candidate], few: Sequence[Candidate]
) -> pd.DataFrame:
    cost, fused, rows = made.cost, made.fused, []
    priced = {tuple(one.placement) for one in few}
    for one in found:
        if one.placement is None:
            note = "found no rank with room for a table"
            rows.append({"method": one.method, "fits": False, "note": note})
            continue
        sums, fits = cost.sums(one.placement), cost.fits(one.placement)
        by_sums = cost.of_ranks(sums)
        parts = fused.parts(one.placement) if tuple(one.placement) in priced else by_sums
        rows.append({
            "method": one.method, "step_s": float(parts.step_s),
            "forward_s": float(parts.forward_s), "backward_s": float(parts.backward_s),
            "alltoall_s": float(parts.alltoall_s), "sums_s": float(by_sums.step_s),
            "fullest_bytes": float(sums[:, MEMORY].max()), "fits": fits,
            "fused": tuple(one.placement) in priced,
            "note": "" if fits else "exceeds the memory of a rank",
        })  # fmt: skip
    frame = pd.DataFrame(rows).reindex(columns=CANDIDATE_COLUMNS)
    frame["fits"], frame["fused"] = frame["fits"].astype(bool), frame["fused"].eq(True)
    order, ascending = ["fits", "fused", "step_s"], [False, False, True]
    return frame.sort_values(order, ascending=ascending, kind="stable").reset_index(drop=True)


def _sentences(
    cost: PlacementCost, per_rank: pd.DataFrame, parts: PlacementParts, listed: pd.DataFrame,
    method: str, proven: bool, apart: float, owner_of: Mapping[str, str],
    split_helps: Callable[[str, float], SplitAdvice | None],
) -> list[str]:  # fmt: skip
    step_s = float(parts.step_s)
    chosen = {name: float(value) for name, value in parts._asdict().items()}
    columns = ("forward_s", "backward_s", "sent_bytes")
    forward, backward, sender = (per_rank.loc[per_rank[name].idxmax()] for name in columns)
    ahead = f"forward {_time(forward['forward_s'])} (rank {forward['rank']})"
    back = f"backward {_time(backward['backward_s'])} (rank {backward['rank']})"
    most = f"rank {sender['rank']} sends the most, {sender['sent_bytes'] / 1e6:.4g} MB"
    lookups = f"the slowest lookup {ahead}, {back}"
    messages = f"two all-to-alls of {_time(chosen['alltoall_s'])}, for which {most}"
    decides = f"What placement decides of a step takes {_time(step_s)}"
    sentences = [f"{decides}: {lookups}, and {messages}."]
    rules = listed[listed["method"].isin(methods.GREEDY) & listed["fits"] & listed["fused"]]
    if len(rules) and method not in methods.GREEDY:
        other = rules.iloc[0]
        later = {
            "its slowest lookup forward": other["forward_s"] - chosen["forward_s"],
            "its slowest lookup backward": other["backward_s"] - chosen["backward_s"],
            "its all-to-alls": 2 * (other["alltoall_s"] - chosen["alltoall_s"]),
        }
        most = max(later, key=lambda name: later[name])
        gain = other["step_s"] / step_s - 1
        rule = f"The best greedy rule, {other['method']}, takes {_time(other['step_s'])}"
        more = f"{gain:.1%} more, most of it by {most} (+{_time(later[most])})"
        sentences.append(f"{rule}, {more if gain > 1e-4 else 'as long'}.")
    by_sums = "By the sums of tables' lookups no placement of whole tables"
    bound = f"takes less than {_time(cost.bound_s())}; this one is within {apart:.1%} of that"
    sentences.append(f"{by_sums} {'is faster: proven by branch and bound' if proven else bound}.")
    apart_s = forward["forward_s"] - per_rank["forward_s"].mean()
    notable_s = max(0.05 * per_rank["forward_s"].mean(), _NOTABLE * step_s)
    if forward["tables"] == 1 and cost.ranks > 1 and apart_s > notable_s:
        advice = split_helps(owner_of[forward["names"]], step_s)
        alone = f"Table {forward['names']} alone makes rank {forward['rank']} the slowest"
        effect = ", and splitting it further does not help."
        if advice:
            less = f"{1 - advice.step_s / step_s:.0%} less"
            effect = f": --split {advice.how} takes {_time(advice.step_s)}, {less}."
        sentences.append(alone + effect)
    if empty := int((per_rank["tables"] == 0).sum()):
        sentences.append(f"{empty} of {cost.ranks} ranks hold no table.")
    fullest = per_rank.loc[per_rank["memory_bytes"].idxmax()]
    held_gb, limit_gb = fullest["memory_bytes"] / 1e9, float(cost.limit_bytes) / 1e9
    of = f"{held_gb:.4g} GB of {limit_gb:.4g} ({fullest['memory_share']:.0%})"
    return [*sentences, f"Rank {fullest['rank']} is the fullest, {of}."]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.4g} µs"


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
    kinds = {name: f"greedy by {name}" for name in methods.GREEDY}
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
