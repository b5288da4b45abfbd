"""What the streams of each rank do during a step: how long they are busy, and how much
communication nothing hides.

A stream is busy while one of its nodes runs; waiting for another rank is not running, as the nodes
of a collective start together. Communication is *exposed* while a communication stream of a rank is
busy and none of its compute streams is:

    exposed = |communication or compute| - |compute|        |.| seconds during which at least one
                                                            such node runs
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridperf.engine.evaluate import timeline
from hybridperf.engine.lower import Lowered


class Occupancy(NamedTuple):
    """Seconds of one configuration. Axes: L streams in use, by rank and then as
    `Graph.stream_names`; R ranks in use.
    """

    rank: np.ndarray  # of each stream; int [L]
    stream: np.ndarray  # index into `Graph.stream_names`; int [L]
    busy_s: np.ndarray  # [L]
    ranks: np.ndarray  # int [R]
    exposed_s: np.ndarray  # communication that compute on that rank does not hide; [R]


def busy_and_exposed(
    lowered: Lowered, durations: ArrayLike, *, compute: Collection[str] = ("compute",)
) -> Occupancy:
    """Busy streams and exposed communication in one configuration, from seconds per row `durations`
    [U].

    `compute` names the compute streams; all others count as communication, copies to and from the
    host among them.
    """
    graph = lowered.graph
    missing = sorted(set(compute) - set(graph.stream_names))
    if missing:
        raise ValueError(
            f"The graph has no stream {missing[0]!r}, expected names among"
            f" {', '.join(graph.stream_names)}."
        )
    times = timeline(lowered, durations)
    lanes, lane_of_node = np.unique(
        np.stack([graph.rank, graph.stream]), axis=1, return_inverse=True
    )
    busy_s = np.bincount(lane_of_node.ravel(), weights=times.end_s - times.start_s)
    computes = np.isin(graph.stream, [graph.stream_names.index(name) for name in compute])
    ranks = np.unique(graph.rank)
    exposed_s = [
        _covered_s(times.start_s[on_rank], times.end_s[on_rank])
        - _covered_s(times.start_s[on_rank & computes], times.end_s[on_rank & computes])
        for on_rank in (graph.rank == rank for rank in ranks)
    ]
    # rounding may leave less than nothing
    return Occupancy(lanes[0], lanes[1], busy_s, ranks, np.maximum(exposed_s, 0.0))


def _covered_s(start_s: np.ndarray, end_s: np.ndarray) -> float:
    """Seconds that lie in at least one of the intervals."""
    order = np.argsort(start_s)
    start_s, reached_s = start_s[order], np.maximum.accumulate(end_s[order])
    new_from_s = np.maximum(start_s, np.append(0.0, reached_s)[:-1])
    return float(np.maximum(reached_s - new_from_s, 0.0).sum())
