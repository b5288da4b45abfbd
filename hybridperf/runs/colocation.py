"""Tasks that share a machine: bounds on how long they take together, and what rows say of them.

A task needs seconds of each resource and alone `alone_s` in all, its resources in turn. Together,
whatever runs beside what, G tasks end

    no sooner than  max( longest task alone, busiest resource's sum over tasks )
    no later than   sum of the tasks alone

if no resource idles while a task waits for it (Abacus, SC 2021, groups operators so; Gsight, SC
2021, functions). Where in between hangs on how they overlap. `Interference` learns that from
measured groups: the place between the bounds, a number from 0 to 1, as a logistic function of what
the bounds are made of, shrunk towards the rows' mean. So no fit leaves the bounds, and a group
whose bounds are one is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.fields.columns import read_small_table, read_whole
from hybridperf.io import InputError, Numbers, number_columns

MEASURED = "together_s"
_SHRINKAGE = 1.0  # of a weight of standardised features, in rows
_EDGE = 0.02  # places nearer to a bound count as this near: a logit must end
_LEAST_ROWS = 8
_SHARE = 0.9  # of the rows left out that intervals hold

Task = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Group:
    """Tasks that run at once: seconds of each on each resource, and of each alone."""

    name: str
    resource_s: np.ndarray  # [tasks, resources]
    alone_s: np.ndarray  # [tasks]
    together_s: float = np.nan  # measured

    @property
    def bounds_s(self) -> tuple[float, float]:
        """Least and most seconds that the group's tasks take together."""
        busiest_s = float(self.resource_s.sum(0).max(initial=0.0))
        return max(float(self.alone_s.max(initial=0.0)), busiest_s), float(self.alone_s.sum())

    def features(self) -> np.ndarray:
        """What tells where between its bounds a group ends [F]: all free of units."""
        least_s, most_s = self.bounds_s
        sums_s = self.resource_s.sum(0)
        longest = self.alone_s.max() / least_s
        busiest, total = sums_s.max() / least_s, sums_s.sum() / least_s
        return np.array([np.log(most_s / least_s), longest, busiest, np.log(total)])


def together_s(tasks: Sequence[Task]) -> tuple[float, float]:
    """Least and most seconds of tasks that share a machine, by their seconds on each resource."""
    names = sorted({name for task in tasks for name in task})
    seconds = np.array([[task.get(name, 0.0) for name in names] for task in tasks])
    seconds = seconds.reshape(len(tasks), len(names))
    return Group("", seconds, seconds.sum(1)).bounds_s


def read_groups(frame: pd.DataFrame) -> list[Group]:
    """Groups of a table with a row for each task.

    Columns: group; a column NAME_s for each resource; if known alone_s (the sum of the resources'
    if not) and together_s (the group's, the same in all its rows).

    Raises:
        InputError: no group, no resource, seconds that are none, a task quicker than its busiest
            resource.
    """
    frame, known = read_whole(frame, "tasks"), {"alone_s", MEASURED}
    resources = [name for name in frame if str(name).endswith("_s") and name not in known]
    if "group" not in frame or not resources or not len(frame):
        raise InputError(
            "expected columns group and NAME_s for each resource (such as compute_s) in a table of"
            f" tasks, got {', '.join(map(str, frame)) or 'none'}; add them"
        )
    if frame["group"].isna().any():
        raise InputError("expected a group for each task, got an empty cell; fill it in")
    numbers = number_columns(frame, dict.fromkeys(resources, Numbers()), "task")
    told = read_small_table(frame, "tasks").reindex(columns=sorted(known)).astype(float)
    if (numbers.sum(axis=1) <= 0).any():
        raise InputError("expected tasks that need some resource, got one of 0 s; leave it out")
    alone_s = told["alone_s"].fillna(numbers.sum(axis=1))
    if (alone_s < numbers.max(axis=1) * (1 - 1e-9)).any():
        raise InputError(
            "expected alone_s of at least a task's busiest resource, got less; mend the table"
        )
    found = []
    for name, at in frame.groupby("group", sort=False).indices.items():
        seconds = told[MEASURED].iloc[at].dropna()
        if seconds.nunique() > 1:
            raise InputError(
                f"expected one together_s of group {name}, got several; mend the table"
            )
        measured = float(seconds.iloc[0]) if len(seconds) else np.nan
        found.append(
            Group(str(name), numbers.to_numpy(float)[at], alone_s.to_numpy(float)[at], measured)
        )
    return found


@dataclasses.dataclass(frozen=True)
class Interference:
    """Where between their bounds groups end, learned from measured ones."""

    centre: np.ndarray  # [F] of the features
    scale: np.ndarray  # [F]
    weights: np.ndarray  # [F + 1], the constant last
    half_width: float  # in logs of seconds, of a group that was left out
    rows: int

    @classmethod
    def fitted(cls, groups: Sequence[Group]) -> Interference:
        """By ridge on the logit; the interval by leaving each group out.

        Raises:
            InputError: too few measured groups.
        """
        known = [one for one in groups if np.isfinite(one.together_s)]
        if len(known) < _LEAST_ROWS:
            raise InputError(
                f"expected {_LEAST_ROWS} groups or more with a measured together_s, got"
                f" {len(known)}; measure more or ask for the bounds alone"
            )
        whole, errors = cls._ridge(known), []
        for at, left_out in enumerate(known):
            other = cls._ridge([*known[:at], *known[at + 1 :]])
            errors.append(abs(np.log(other.seconds(left_out) / left_out.together_s)))
        at = min(int(np.ceil((len(known) + 1) * _SHARE)), len(known)) - 1
        return dataclasses.replace(whole, half_width=float(np.sort(errors)[at]))

    @classmethod
    def _ridge(cls, groups: Sequence[Group]) -> Interference:
        features = np.array([one.features() for one in groups])
        centre, scale = features.mean(0), features.std(0)
        scale = np.where(scale > 1e-9, scale, 1.0)
        rows = np.column_stack([(features - centre) / scale, np.ones(len(groups))])
        shrink = _SHRINKAGE * np.diag([*np.ones(len(centre)), 0.0])
        # where between its bounds each group ended
        least_s, most_s = np.array([one.bounds_s for one in groups]).T
        measured_s = np.array([one.together_s for one in groups])
        share = (measured_s - least_s) / np.maximum(most_s - least_s, 1e-300)
        share = np.clip(share, _EDGE, 1 - _EDGE)
        logit = np.log(share / (1 - share))
        weights = np.linalg.solve(rows.T @ rows + shrink, rows.T @ logit)
        return cls(centre, scale, weights, np.inf, len(groups))

    def seconds(self, group: Group) -> float:
        """Seconds of a group, within its bounds."""
        least_s, most_s = group.bounds_s
        features = (group.features() - self.centre) / self.scale
        logit = float(features @ self.weights[:-1] + self.weights[-1])
        return least_s + (most_s - least_s) / (1 + float(np.exp(-logit)))


def predicted(groups: Sequence[Group], learned: Interference | None = None) -> pd.DataFrame:
    """A row for each group: least_s, most_s; predicted_s, low_s, high_s if something was learned.

    Without rows the middle (geometric) of the bounds is no prediction, so predicted_s stays empty.
    """
    rows = []
    for one in groups:
        least_s, most_s = one.bounds_s
        row = {"group": one.name, "tasks": len(one.alone_s), "least_s": least_s, "most_s": most_s}
        if learned is not None:
            seconds, spread = learned.seconds(one), np.exp(learned.half_width)
            row |= {
                "predicted_s": seconds, "low_s": max(seconds / spread, least_s),
                "high_s": min(seconds * spread, most_s),
            }  # fmt: skip
        if np.isfinite(one.together_s):
            row[MEASURED] = one.together_s
        rows.append(row)
    return pd.DataFrame(rows)
