"""What sharding found: where every table goes, what each rank does, other candidates, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd

from hybridperf.explore.sharding.cost import PlacementCost, PlacementParts
from hybridperf.io import replacing_in, write_json, write_table

SCHEMA_VERSION = 1
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
