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
            ValueError: too few measured groups.
        """
        known = [one for one in groups if np.isfinite(one.together_s)]
        if len(known) < _LEAST_ROWS:
            raise ValueError(f"expected {_LEAST_ROWS} measured groups or more, got {len(known)}")
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
            row["together_s"] = one.together_s
        rows.append(row)
    return pd.DataFrame(rows)


def simulated_s(phases: list[list[tuple[int, float]]]) -> float:
    """Seconds until all tasks end: phases in turn, a resource shared evenly by who is on it."""
    left, now_s = [list(one) for one in phases], 0.0
    while any(left):
        on = [one[0][0] for one in left if one]
        rates = {resource: 1 / on.count(resource) for resource in on}
        step_s = min(one[0][1] / rates[one[0][0]] for one in left if one)
        now_s += step_s
        for one in filter(None, left):
            resource, seconds = one[0]
            seconds -= step_s * rates[resource]
            one[:1] = [(resource, seconds)] if seconds > 1e-12 else []
    return now_s


def simulated_group(name: str, phases: list[list[tuple[int, float]]], resources: int = 3) -> Group:
    """A group of tasks, each of (resource, seconds) in turn, and how long they take together."""
    resource_s = np.zeros((len(phases), resources))
    for at, task in enumerate(phases):
        for resource, seconds in task:
            resource_s[at, resource] += seconds
    return Group(name, resource_s, resource_s.sum(1), simulated_s(phases))


def simulated_groups(count: int, seed: int, resources: int = 3) -> list[Group]:
    """Two to four tasks that alternate between resources, as operators of a service do."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        tasks = []
        for _ in range(rng.integers(2, 5)):
            lasts = rng.lognormal(-4, 0.8, resources) * (rng.random(resources) < 0.8)
            turns = int(rng.integers(2, 12))
            lasts[rng.integers(resources)] += 0.01
            tasks.append([(at, float(s / turns)) for at, s in enumerate(lasts) if s > 0] * turns)
        found.append(simulated_group(f"g{number}", tasks))
    return found
