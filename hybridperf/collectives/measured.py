"""Which collectives of a system were measured, and how far others lie from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from hybridperf.collectives.rows import CollectiveRows
from hybridperf.learning.prior.family import SLACK_OCTAVES

# of ranks per node or nodes: doubling either leaves a fiftieth of what was learned
_FADING_OCTAVES = 0.5
_SLACK = 2**SLACK_OCTAVES  # so much beyond what was measured still counts as inside


@dataclasses.dataclass(frozen=True)
class MeasuredSizes:
    """Sizes of one collective, library and link that were measured on one placement of ranks."""

    group: str  # a `CollectiveImplementation` as text
    ranks_per_node: int
    nodes: int
    least_bytes: float
    most_bytes: float

    @staticmethod
    def of(rows: CollectiveRows) -> tuple[MeasuredSizes, ...]:
        """All there are among some rows."""
        sizes: dict[tuple[str, int, int], list[float]] = {}
        for place, size in zip(_places(rows), rows.bytes, strict=True):
            sizes.setdefault(place, []).append(float(size))
        return tuple(
            MeasuredSizes(group, int(g), int(nodes), min(of), max(of))
            for (group, g, nodes), of in sorted(sizes.items())
        )


def _places(rows: CollectiveRows) -> Iterable[tuple[str, int, int]]:
    """Group, ranks per node and nodes of each row."""
    return zip(rows.group, rows.ranks_per_node.astype(int), rows.nodes.astype(int), strict=True)


def nearness(measured: Sequence[MeasuredSizes], kinds: CollectiveRows) -> np.ndarray:
    """1 where a kind's collective, library, link and placement were measured, 0 far from it [C]."""
    octaves = []
    for group, g, nodes in _places(kinds):
        apart = (
            np.hypot(np.log2(g / one.ranks_per_node), np.log2(nodes / one.nodes))
            for one in measured
            if one.group == group
        )
        octaves.append(min(apart, default=np.inf))
    return np.exp(-((np.array(octaves) / _FADING_OCTAVES) ** 2))


def limits_of(
    measured: Sequence[MeasuredSizes], kinds: CollectiveRows
) -> tuple[np.ndarray, np.ndarray]:
    """(least, most bytes [C]) that count as measured of each kind's group on its placement."""
    sizes = {
        (one.group, one.ranks_per_node, one.nodes): (one.least_bytes, one.most_bytes)
        for one in measured
    }
    low, high = np.array([sizes.get(place, (np.inf, 0.0)) for place in _places(kinds)]).T
    return low / _SLACK, high * _SLACK
