"""Busy streams and exposed communication of one configuration, by intervals: a reference."""

from typing import NamedTuple

import numpy as np

from hybridperf.engine.evaluate import timeline
from hybridperf.engine.lower import Lowered


class Occupancy(NamedTuple):
    """Axes: L streams in use, by rank; R ranks in use."""

    rank: np.ndarray  # of each stream; int [L]
    stream: np.ndarray  # index into `Graph.stream_names`; int [L]
    busy_s: np.ndarray  # [L]
    ranks: np.ndarray  # int [R]
    exposed_s: np.ndarray  # communication while nothing computes on that rank; [R]


def busy_and_exposed(lowered: Lowered, durations: np.ndarray) -> Occupancy:
    """From seconds per row `durations` [U]; all streams but "compute" communicate."""
    graph, times = lowered.graph, timeline(lowered, durations)
    streams = np.stack([graph.rank, graph.stream])
    lanes, lane_of_node = np.unique(streams, axis=1, return_inverse=True)
    busy_s = np.bincount(lane_of_node.ravel(), weights=times.end_s - times.start_s)
    computes = graph.stream == graph.stream_names.index("compute")
    ranks = np.unique(graph.rank)
    exposed_s = []
    for rank in ranks:
        some = [graph.rank == rank, (graph.rank == rank) & computes]
        every_s, compute_s = (_covered_s(times.start_s[at], times.end_s[at]) for at in some)
        exposed_s.append(every_s - compute_s)
    return Occupancy(lanes[0], lanes[1], busy_s, ranks, np.maximum(exposed_s, 0.0))


def _covered_s(start_s: np.ndarray, end_s: np.ndarray) -> float:
    """Seconds that lie in at least one of the intervals."""
    order = np.argsort(start_s)
    start_s, reached_s = start_s[order], np.maximum.accumulate(end_s[order])
    new_from_s = np.maximum(start_s, np.append(0.0, reached_s)[:-1])
    return float(np.maximum(reached_s - new_from_s, 0.0).sum())
