"""Slices of a timeline: what is short becomes one, nothing is lost, what overlaps gets a row."""

import dataclasses

import numpy as np
import pytest

from hybridperf.report.slices import Track, lanes, merge_all, merged, slices_frame


def track(*slices, name="stream", kind=0, marked=False) -> Track:
    """Slices (start, end) in seconds, each with a label of its own."""
    start, end = np.array(slices, float).reshape(-1, 2).T
    n = len(slices)
    return Track(name, start, end, np.arange(n), np.full(n, kind), np.full(n, marked))


def test_a_small_timeline_is_whole():
    slices = [(0.5, 1.0), (1.0, 1.0 + 2e-6), (1.5, 2.5)]
    found = slices_frame([track(*slices)], ["a", "b", "c"], ["k"], 100)
    # time begins with the first slice
    np.testing.assert_allclose(found[["start_s", "end_s"]], np.array(slices) - 0.5)
    assert found["label"].tolist() == ["a", "b", "c"]
    assert found["group"].tolist() == ["k"] * 3
    assert not len(slices_frame([], [], [], 100))


def test_merging_keeps_seconds_counts_marks_and_what_is_long():
    rng = np.random.default_rng(0)
    length = np.where(rng.random(5000) < 0.01, 1e-2, 1e-6) * rng.uniform(0.5, 1, 5000)
    start = np.cumsum(np.append(0, length[:-1] + rng.exponential(1e-6, 4999)))
    one = Track(
        "t",
        start,
        start + length,
        np.arange(5000) % 7,
        np.arange(5000) % 3,
        rng.random(5000) < 0.001,
    )
    for resolution_s in (0.0, 1e-6, 1e-5, 1e-4, 1.0):
        found = merged(one, resolution_s)
        assert found.members.sum() == 5000
        assert found.busy_s.sum() == pytest.approx(length.sum())
        assert (found.start_s[1:] >= found.end_s[:-1] - 1e-12).all()
        assert found.marked.sum() <= one.marked.sum()
        assert one.marked.any() == found.marked.any()
        whole = found.members == 1
        assert np.isin(start[length >= resolution_s], found.start_s[whole]).all()
        assert (found.end_s[~whole] - found.start_s[~whole] <= 2 * resolution_s).all()
    assert len(merged(one, 0.0).members) == 5000
    assert len(merged(one, 1e-4).members) < 500


def test_the_kind_of_merged_slices_is_the_one_with_the_most_seconds():
    one = Track(
        "t",
        np.array([0, 1, 2.0]),
        np.array([0.1, 1.1, 2.9]),
        np.array([4, 4, 4]),
        np.array([0, 0, 1]),
        np.zeros(3, bool),
    )
    found = merged(one, 10.0)
    assert (found.kind.tolist(), found.label.tolist(), found.members.tolist()) == ([1], [4], [3])
    assert merged(dataclasses.replace(one, label=np.array([4, 5, 4])), 10.0).label.tolist() == [-1]


def test_a_large_timeline_stays_small():
    rng = np.random.default_rng(1)
    start = np.sort(rng.uniform(0, 1, (25, 10_000)), axis=1)
    end = np.minimum(start + 1e-6, np.append(start[:, 1:], np.ones((25, 1)), axis=1))
    label, kind = rng.integers(0, 50, (2, 25, 10_000))
    unmarked = np.zeros(10_000, bool)
    tracks = [Track(str(i), start[i], end[i], label[i], kind[i] % 4, unmarked) for i in range(25)]
    done, resolution_s = merge_all(tracks, 1.0, 20_000)
    assert sum(len(one.start_s) for one in done) <= 20_000
    assert sum(len(merged(one, resolution_s / 2).start_s) for one in tracks) > 20_000
    found = slices_frame(tracks, [f"op {i}" for i in range(50)], list("abcd"), 20_000)
    assert found["members"].sum() == 250_000
    assert (found["label"][found["members"] > 5] == "").any()


def test_slices_that_overlap_get_rows_of_their_own():
    one = track((0, 10), (2, 3), (4, 5), (4.5, 12), (10, 11))
    found = lanes(one)
    assert [lane.name for lane in found] == ["stream", "stream (2)", "stream (3)"]
    assert sorted(np.concatenate([lane.label for lane in found]).tolist()) == [0, 1, 2, 3, 4]
    for lane in found:
        assert (lane.start_s[1:] >= lane.end_s[:-1]).all()
    (same,) = lanes(track((0, 1.0000005), (1, 2)))  # a clock of whole microseconds
    assert same.end_s.tolist() == [1, 2]
