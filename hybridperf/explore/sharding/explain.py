"""Why a placement was chosen: tables of numbers per rank and per table, and a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction
from hybridperf.explore.sharding import greedy
from hybridperf.explore.sharding.cost import MEMORY, SENT, PlacementCost, PlacementParts
from hybridperf.explore.sharding.fused import KernelPricer
from hybridperf.explore.sharding.result import CANDIDATE_COLUMNS, Candidate, ShardResult
from hybridperf.explore.sharding.splits import SplitAdvice
from hybridperf.ops.embedding import Table

_NOTABLE = 0.01  # of a step, from which on a difference is worth a sentence


def result(
    cost: PlacementCost, fused: KernelPricer, tables: Sequence[Table], owners: Sequence[str],
    found: Sequence[Candidate], few: Sequence[Candidate], best: Candidate, proven: bool,
    split_helps: Callable[[str, float], SplitAdvice | None], predicted: Prediction,
    remarks: Sequence[str],
) -> ShardResult:  # fmt: skip
    """Everything about the best of some candidates, of which `few` were priced kernel by kernel.

    `split_helps`: seconds saved by splitting each table further. `predicted`: the best one as a
    step, for its interval. `remarks`: further notes.
    """
    placement = tuple(int(rank) for rank in best.placement)
    owner_of = {table.name: owner for table, owner in zip(tables, owners, strict=True)}
    per_rank = _per_rank(cost, fused, tables, placement)
    listed = _candidates(cost, fused, found, few)
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


def _per_rank(
    cost: PlacementCost, fused: KernelPricer, tables: Sequence[Table], placement: Sequence[int]
) -> pd.DataFrame:
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
    cost: PlacementCost, fused: KernelPricer, found: Sequence[Candidate], few: Sequence[Candidate]
) -> pd.DataFrame:
    rows = []
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
