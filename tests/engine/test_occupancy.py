"""Busy streams and exposed communication, against counting second by second."""

import numpy as np
import pytest

from hybridperf.engine.evaluate import timeline
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.lower import lower
from hybridperf.engine.occupancy import busy_and_exposed


def two_ranks():
    """Rank 1 computes for longer, then both reduce while rank 0 computes again."""
    builder = GraphBuilder()
    short, long, reduce, copy = 1, 2, 3, 4
    first = [builder.op(short, rank=0), builder.op(long, rank=1)]
    builder.collective(reduce, label="sum", ranks=[0, 1], after=first)
    builder.op(short, rank=0)
    builder.op(copy, rank=0, stream="d2h", after=[0])
    return lower(builder.build())


def test_two_ranks_by_hand():
    got = busy_and_exposed(two_ranks(), [3.0, 5.0, 4.0, 2.0])
    # rank 0 computes from 0 to 6 and copies from 3 to 5, both ranks reduce from 5 to 9, rank 1
    # computes until 5
    assert list(zip(got.rank.tolist(), got.stream.tolist(), got.busy_s.tolist(), strict=True)) == [
        (0, 0, 6.0), (0, 1, 4.0), (0, 2, 2.0), (1, 0, 5.0), (1, 1, 4.0),
    ]  # fmt: skip
    assert got.ranks.tolist() == [0, 1]
    assert got.exposed_s.tolist() == [3.0, 4.0]


def test_all_streams_may_compute():
    assert busy_and_exposed(
        two_ranks(), np.ones(4), compute=["compute", "comm", "d2h"]
    ).exposed_s.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(50))
def test_seconds_are_those_counted_one_by_one(seed: int):
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    for node in range(30):
        rank, stream = int(rng.integers(3)), ["compute", "comm", "copy"][rng.integers(3)]
        after = rng.integers(0, node, rng.integers(0, 3)).tolist() if node else []
        builder.op(
            int(rng.integers(0, 6)),
            rank=rank,
            stream=stream,
            after=after,
            launch_row=int(rng.integers(0, 3)),
        )
    lowered, durations = lower(builder.build()), rng.integers(0, 5, 6).astype(float)
    graph, times = lowered.graph, timeline(lowered, durations)
    got = busy_and_exposed(lowered, durations)
    compute = graph.stream == graph.stream_names.index("compute")
    for rank, exposed_s in zip(got.ranks, got.exposed_s, strict=True):
        counted = 0
        for second in range(int(times.end_s.max())):
            runs = (graph.rank == rank) & (times.start_s <= second) & (second < times.end_s)
            counted += (runs & ~compute).any() and not (runs & compute).any()
        assert exposed_s == counted
    for rank, stream, busy_s in zip(got.rank, got.stream, got.busy_s, strict=True):
        assert (
            busy_s
            == np.append(durations, 0.0)[
                graph.row[(graph.rank == rank) & (graph.stream == stream)] - 1
            ].sum()
        )


def test_an_unknown_stream_is_refused():
    with pytest.raises(
        ValueError, match=r"no stream 'gpu', expected names among compute, comm, d2h"
    ):
        busy_and_exposed(two_ranks(), np.ones(4), compute=["gpu"])
