"""Which collectives of a system were measured, and how far others lie from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hybridperf.collectives.rows import CollectiveRows
from hybridperf.io.later import pd
from hybridperf.learning.inputs import RANGE_SLACK_OCTAVES
from hybridperf.learning.prior.implementation import unversioned

# of ranks per node or nodes: doubling either leaves a fiftieth of what was learned
_FADING_OCTAVES = 0.5
_SLACK = 2**RANGE_SLACK_OCTAVES  # so much beyond what was measured still counts as inside


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
        frame = pd.DataFrame({
            "group": list(map(unversioned, rows.implementation)),
            "g": rows.ranks_per_node.astype(int), "nodes": rows.nodes.astype(int),
            "bytes": rows.bytes,
        })  # fmt: skip
        return tuple(
            MeasuredSizes(str(group), int(g), int(nodes), float(sizes.min()), float(sizes.max()))
            for (group, g, nodes), sizes in frame.groupby(["group", "g", "nodes"])["bytes"]
        )


def nearness(measured: Sequence[MeasuredSizes], kinds: CollectiveRows) -> np.ndarray:
    """1 where a kind's collective, library, link and placement were measured, 0 far from it [C]."""
    octaves = []
    for slot, g, nodes in zip(kinds.implementation, kinds.ranks_per_node, kinds.nodes, strict=True):
        group = unversioned(slot)
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
    places = zip(kinds.implementation, kinds.ranks_per_node, kinds.nodes, strict=True)
    known = [(unversioned(slot), int(g), int(nodes)) for slot, g, nodes in places]
    low, high = np.array([sizes.get(one, (np.inf, 0.0)) for one in known]).T
    return low / _SLACK, high * _SLACK
