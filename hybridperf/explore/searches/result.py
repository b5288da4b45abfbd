"""What a search found, and how sure one can be of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd

from hybridperf.explore.sweeps.prices import UnitPrice
from hybridperf.io import write_json

SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True)
class OptimalKnob:
    """One knob at the optimum."""

    name: str
    value: float
    least: float
    most: float
    integer: bool
    # d log objective / d log knob (of a whole number: as if it were not); d objective where that
    # can be zero or less
    elasticity: float

    @property
    def at(self) -> str:
        """Which of its bounds it stands at, or the empty string."""
        close = 1e-6
        if self.value <= self.least * (1 + close):
            return "min"
        return "max" if self.value >= self.most * (1 - close) else ""


@dataclasses.dataclass(frozen=True)
class ActiveConstraint:
    """A constraint that holds the optimum back."""

    name: str
    text: str
    less: float  # its two sides at the optimum
    more: float
    # the side that no knob moves; None where knobs move both, or where it is zero
    limit: str | None
    what_if: str  # one percent more of the limit, or a constraint loosened by one percent
    multiplier: float  # percent of the objective (its scale, where it can be zero or less) for that
    objective_then: float  # with that, searched again from here
    knobs_then: dict[str, float]


@dataclasses.dataclass(frozen=True)
class BlockingConstraint:
    """A constraint that forbids a better whole number, the other knobs as they are."""

    name: str
    text: str
    less: float  # its two sides with that number
    more: float
    knob: str
    value: float  # the nearest number that would be better
    objective: float  # with it


@dataclasses.dataclass(frozen=True)
class TargetTrust:
    """How far to trust the target's seconds at the optimum."""

    low_s: float | None  # 90 % interval; None where nothing measured tells its width
    high_s: float | None
    in_range: bool
    note: str


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The optimum of a search, and what holds it back; what `hp.search` returns."""

    objective_name: str
    maximise: bool
    objective: float  # exact, as evaluated at `knobs`
    knobs: tuple[OptimalKnob, ...]  # values, bounds and elasticities at the optimum
    # every column at the optimum, evaluated by the exact functions that a sweep uses
    columns: dict[str, float]
    active: tuple[ActiveConstraint, ...]  # constraints that hold continuous knobs back
    stops: tuple[BlockingConstraint, ...]  # constraints that hold whole-number knobs back
    # range of each knob over which the objective stays the same, other knobs as they are
    plateaus: dict[str, tuple[float, float]]
    trust: TargetTrust | None  # None: no target
    notes: tuple[str, ...]  # what to know before trusting the optimum
    # before knobs were rounded to whole numbers; None where none had to be
    relaxed_objective: float | None
    # `phase, step, evaluations, objective` (best so far that meets the constraints), `violation`
    convergence: pd.DataFrame
    prices: dict[str, UnitPrice]  # rates that formulas named
    evaluations: int  # points that were predicted, with or without gradient
    seconds: float  # that the search took

    def __repr__(self) -> str:
        sense = "most" if self.maximise else "least"
        at = ", ".join(f"{knob.name} {knob.value:.4g}" for knob in self.knobs)
        return f"<SearchResult: {sense} {self.objective_name} {self.objective:.4g} at {at}>"

    def save(self, folder: str | Path) -> Path:
        """Write `search.json` into a folder, atomically; its path."""
        path = Path(folder) / "search.json"
        write_json(path, "search-result", SCHEMA_VERSION, self.document())
        return path

    def document(self) -> dict[str, Any]:
        """What `search.json` says."""
        knobs: dict[str, dict[str, Any]] = {}
        for one in self.knobs:
            knobs[one.name] = dataclasses.asdict(one) | {"at": one.at}
            del knobs[one.name]["name"]
        rows = self.convergence.to_dict(orient="records")
        objective = {"name": self.objective_name, "maximise": self.maximise}
        found = {"value": self.objective, "relaxed": self.relaxed_objective}
        return {
            "objective": objective | found,
            "knobs": knobs,
            "columns": self.columns,
            "active": [dataclasses.asdict(one) for one in self.active],
            "stops": [dataclasses.asdict(one) for one in self.stops],
            "plateaus": {n: {"from": low, "to": high} for n, (low, high) in self.plateaus.items()},
            "trust": None if self.trust is None else dataclasses.asdict(self.trust),
            "notes": list(self.notes),
            "prices": {name: price.model_dump() for name, price in self.prices.items()},
            "evaluations": self.evaluations,
            "convergence": [{k: None if pd.isna(v) else v for k, v in r.items()} for r in rows],
        }
