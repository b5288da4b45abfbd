"""What is judged on GPUs nobody measured yet (`device_splits.toml`): which devices are left out
together, which rows make a line of the table, and the goals.

A split leaves some devices out of every prior and judges one or more of them. Its kind says how far
the rest are: `near` has a sibling of the same chip in the prior, `new` has none of its generation,
`single` are the single-precision tables, `large` fits on small shapes and is judged on large ones.
A line is a set of rows with its own draws of rows to fit on; a view looks at some of a line's test
rows.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.model.published.ops import DeviceRows
from hybridperf.validate.harness import facts

Chooses = Callable[[DeviceRows], np.ndarray]  # mask [N]

SIZES: tuple[str, ...] = ("0", "20", "50", "200", "10%", "all")  # rows of the new device to fit on
FEW_SIZES = ("0", "50", "200")  # of lines without a goal
_ALL_IS_CHEAP = 3000  # rows


@dataclasses.dataclass(frozen=True)
class Split:
    """Devices no prior may see, and those of them that are judged."""

    name: str
    left_out: Sequence[str]
    judged: Sequence[str]
    kind: str


@dataclasses.dataclass(frozen=True)
class Line:
    """A set of rows that is judged by itself."""

    name: str
    family: str
    chosen: Chooses
    sizes: Sequence[str]
    views: Mapping[str, Chooses]


def _where(columns: Mapping[str, str | list[str]]) -> Chooses:
    """Rows whose `about` columns hold one of these words."""
    wanted = {name: [one] if isinstance(one, str) else one for name, one in columns.items()}
    return lambda rows: rows.about[list(wanted)].isin(wanted).all(axis=1).to_numpy()


def _above_floor(rows: DeviceRows) -> np.ndarray:
    """Rows above twice what the quickest of a device take, whatever they compute."""
    return np.asarray(rows.time_s > 2 * float(np.quantile(rows.time_s, 0.01)))


def _line(name: str, said: Mapping[str, Any]) -> Line:
    views = {
        word: _where({column: word})
        for column, words in said.get("views", {}).items()
        for word in words
    }
    if said.get("above_floor"):
        views["above twice the floor"] = _above_floor
    return Line(name, said["family"], _where(said["where"]), said.get("sizes", FEW_SIZES), views)


_CLAIM = facts("device_splits.toml")
SPLITS = tuple(Split(name, **said) for name, said in _CLAIM["splits"].items())
LINES = tuple(_line(name, said) for name, said in _CLAIM["lines"].items())
FAMILIES = tuple(dict.fromkeys(line.family for line in LINES))
# by line (and view) and kind of split, then by rows fitted on
GOALS: Mapping[tuple[str, str], Mapping[str, float]] = {
    (name, kind): goals for name, kinds in _CLAIM["goals"].items() for kind, goals in kinds.items()
}


def rows_of_size(size: str, pool: int) -> int | None:
    """How many of a pool's rows a size means; None where they are too few, or too many to fit."""
    if size == "all":
        return pool if pool <= _ALL_IS_CHEAP else None
    count = round(0.1 * pool) if size == "10%" else int(size)
    return count if count <= pool else None
