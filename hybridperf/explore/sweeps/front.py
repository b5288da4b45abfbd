"""The best of many points, kept while they pass: the top K by one column, and the Pareto front.

Both are the same however the points are cut into parts: of equal points the one with the lowest
index is kept.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa

from hybridperf.engine.pareto import undominated

_ORDER = "point"  # column of a point's index


@dataclasses.dataclass(frozen=True)
class BestRule:
    """What to keep: `count` points by a column (0: none), and the front of some columns."""

    count: int
    by: str
    minimise: tuple[str, ...]
    maximise: tuple[str, ...]

    def columns(self) -> list[str]:
        """Names of the columns that decide which points are kept."""
        by = [self.by] if self.count else []
        return list(dict.fromkeys([_ORDER, *by, *self.minimise, *self.maximise]))

    def top(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The `count` rows with the smallest numbers of a column, smallest first."""
        values = frame[self.by].to_numpy(np.float64)
        candidate = np.isfinite(values)
        # all are sorted through for the last that counts, those up to it put in order
        if candidate.sum() > self.count:
            candidate &= values <= np.partition(values[candidate], self.count - 1)[self.count - 1]
        return frame[candidate].sort_values([self.by, _ORDER], kind="stable").head(self.count)

    def front(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows that no other dominates, by their first objective."""
        least = [1.0 * frame[column].to_numpy(np.float64) for column in self.minimise]
        most = [-1.0 * frame[column].to_numpy(np.float64) for column in self.maximise]
        values = np.stack([*least, *most], 1)
        rows = np.flatnonzero(np.isfinite(values).all(axis=1))
        return frame.iloc[rows[undominated(values[rows], frame[_ORDER].to_numpy()[rows])]]


@dataclasses.dataclass
class BestPoints:
    """The best of what was seen so far."""

    best: BestRule
    top: pd.DataFrame | None = None
    front: pd.DataFrame | None = None

    def summary(self) -> str:
        """In a few words, for a person who waits."""
        words = []
        if self.top is not None and len(self.top):
            by, first = self.best.by, self.top.iloc[0]
            words.append(f"least {by} {first[by]:.4g} at point {int(first[_ORDER]):,}")
        if self.front is not None:
            words.append(f"{len(self.front):,} on the front")
        return ", ".join(words)

    def see_table(self, table: pa.Table) -> None:
        """More points, of which only the best come out of Arrow whole."""
        frame = table.select(self.best.columns()).to_pandas()
        found = [self.best.top(frame).index] if self.best.count else []
        found += [self.best.front(frame).index] if self.best.minimise or self.best.maximise else []
        if found and len(frame):
            self.see(table.take(np.unique(np.concatenate(found))).to_pandas())

    def see(self, frame: pd.DataFrame) -> None:
        best = self.best
        if best.count:
            self.top = best.top(frame if self.top is None else pd.concat([self.top, frame]))
        if best.minimise or best.maximise:
            front = frame if self.front is None else pd.concat([self.front, frame])
            self.front = best.front(front)
