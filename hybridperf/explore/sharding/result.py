"""What sharding found: where every table goes, what each rank does, other candidates, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.explore.sharding import greedy
from hybridperf.explore.sharding.cost import MEMORY, SENT, PlacementCost, PlacementParts
from hybridperf.explore.sharding.fused import SplitTables
from hybridperf.io import replacing_in, write_json, write_table

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
    rules = listed[listed["method"].isin(greedy.GREEDY) & listed["fits"] & listed["fused"]]
    if len(rules) and method not in greedy.GREEDY:
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
