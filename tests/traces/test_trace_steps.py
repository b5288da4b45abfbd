"""Steps by the host's marks: what belongs to which, one for all that repeat, and the same steps
over ranks.
"""

import numpy as np
import pytest

from hybridperf.io import InputError
from hybridperf.traces.events import (
    CALL,
    KERNEL,
    MARK,
    NONE,
    OP,
    DeviceEvents,
    HostEvents,
    RankTrace,
)
from hybridperf.traces.steps import common_steps, periods_s, steps, typical


def trace_of(host, device, rank=0, world=1, source="a.json"):
    """From (name, kind, thread, start, end) of the host and (name, stream, start, end, call) of the
    device, in order of start.
    """
    names = tuple(dict.fromkeys([h[0] for h in host] + [d[0] for d in device]))

    def column(rows, at, dtype):
        return np.array([row[at] for row in rows], dtype)

    h, d = len(host), len(device)
    host_events = HostEvents(
        np.array([names.index(row[0]) for row in host], np.int32), column(host, 1, np.int8),
        column(host, 2, np.int32), column(host, 3, float), column(host, 4, float),
        np.full(h, NONE, np.int32), np.full(h, NONE, np.int32),
    )  # fmt: skip
    device_events = DeviceEvents(
        np.array([names.index(row[0]) for row in device], np.int32), np.full(d, KERNEL, np.int8),
        column(device, 1, np.int64), column(device, 2, float), column(device, 3, float),
        column(device, 4, np.int32), np.full(d, np.nan), np.zeros(d, bool),
    )  # fmt: skip
    return RankTrace(
        source, rank, world, "", 0.0, names, ("main", "autograd"), (), host_events, device_events
    )


def repeated(kernels_by_step, lengths_s, **named):
    """Steps one after the other, each with its kernels launched by one call each."""
    host, device, at = [], [], 0.0
    for number, (kernels, length_s) in enumerate(zip(kernels_by_step, lengths_s, strict=True)):
        host.append((f"ProfilerStep#{number}", MARK, 0, at, at + length_s))
        for i, kernel in enumerate(kernels):
            start_s = at + length_s * (i + 1) / (len(kernels) + 2)
            device.append((kernel, 7, start_s + 0.01, start_s + 0.02, len(host)))
            host.append(("cudaLaunchKernel", CALL, 0, start_s, start_s))
        at += length_s
    return trace_of(host, device, **named)


def test_events_belong_to_the_step_in_which_the_host_began_them():
    host = [
        ("before", OP, 0, 0.0, 1.5),
        ("ProfilerStep#1", MARK, 0, 1.0, 2.0),
        ("cudaLaunchKernel", CALL, 0, 1.0, 1.1),
        ("cudaLaunchKernel", CALL, 1, 1.9, 2.5),
        ("ProfilerStep#2", MARK, 0, 2.0, 3.0),
        ("cudaLaunchKernel", CALL, 0, 2.0, 2.1),
        ("after", OP, 0, 3.0, 3.1),
    ]
    device = [
        ("at once", 7, 1.1, 1.2, 2),
        ("no call, in the second", 7, 2.2, 2.3, NONE),
        ("of the second", 7, 2.4, 2.5, 5),
        ("late, of the first's backward pass", 7, 2.9, 4.0, 3),
        ("no call, after all", 7, 3.5, 4.5, NONE),
    ]
    first, second = steps(trace_of(host, device))
    assert (first.name, first.start_s, first.end_s) == ("ProfilerStep#1", 1.0, 2.0)
    assert first.host.tolist() == [1, 2, 3]
    assert first.device.tolist() == [0, 3]
    assert second.host.tolist() == [4, 5]
    assert second.device.tolist() == [2]
    alone = steps(trace_of([host[0], host[4], *host[5:]], [*device[1:2]]))
    assert [one.device.tolist() for one in alone] == [[0]]  # of one step alone: where it starts
    amid = [*device[:1], ("no call, amid the first", 7, 1.3, 1.4, NONE), *device[3:]]
    assert steps(trace_of(host, amid))[0].device.tolist() == [0, 1, 2]  # between two of it
    nothing_known = [(*event[:4], NONE) for event in device]
    first, second = steps(trace_of(host, nothing_known))
    assert (first.device.tolist(), second.device.tolist()) == ([0], [1, 2, 3])


def test_a_period_is_from_one_end_on_the_device_to_the_next():
    lengths_s = [9.0, 3.0, 1.0]
    trace = repeated([["a"], ["a"], ["a"]], lengths_s)
    found = periods_s(trace)
    # a step's kernel starts a third into it and runs for 0.01 s, 0.01 s late
    assert found["ProfilerStep#1"] == pytest.approx(9.0 + 1.0 - 3.0)
    assert found["ProfilerStep#2"] == pytest.approx(3.0 + 1 / 3 - 1.0)
    assert np.isnan(found["ProfilerStep#0"])
    names = ("ProfilerStep#0", "ProfilerStep#7", "ProfilerStep#8")  # some were not recorded
    marks = [(name, MARK, 0, float(at), at + 1.0) for at, name in enumerate(names)]
    calls = [("launch", CALL, 0, at + 0.1, at + 0.2) for at in range(3)]
    host = [event for pair in zip(marks, calls, strict=True) for event in pair]
    device = [("k", 7, at + 0.3, at + 0.4, 2 * at + 1) for at in range(3)]
    found = periods_s(trace_of(host, device))
    assert np.isnan(found["ProfilerStep#7"])
    assert found["ProfilerStep#8"] == pytest.approx(1.0)


def test_without_marks_the_whole_trace_is_the_step():
    (whole,) = steps(
        trace_of([("a", OP, 0, 1.0, 4.0), ("b", OP, 0, 2.0, 3.0)], [("k", 7, 0.5, 9.0, NONE)])
    )
    assert (whole.name, whole.start_s, whole.end_s) == ("whole", 0.5, 4.0)
    assert (whole.host.tolist(), whole.device.tolist()) == ([0, 1], [0])
    (of_the_device,) = steps(trace_of([], [("k", 7, 0.5, 9.0, NONE)]))
    assert (of_the_device.start_s, of_the_device.end_s) == (0.5, 9.0)


def test_nothing_belongs_to_two_steps_even_where_marks_overlap():
    host = [
        ("ProfilerStep#1", MARK, 0, 0.0, 2.0),
        ("ProfilerStep#9", MARK, 1, 0.5, 1.5),
        ("ProfilerStep#2", MARK, 0, 1.8, 3.0),
        ("ProfilerStep#2", MARK, 0, 3.0, 3.0),
        ("ProfilerStep#2", MARK, 0, 3.0, 4.0),
    ]
    found = steps(trace_of(host, []))
    assert [(step.name, step.start_s, step.end_s) for step in found] == [
        ("ProfilerStep#1", 0.0, 2.0), ("ProfilerStep#2", 2.0, 3.0),
        ("ProfilerStep#2 (2)", 3.0, 4.0),
    ]  # fmt: skip
    assert len(np.unique(np.concatenate([step.host for step in found]))) == sum(
        len(step.host) for step in found
    )


def test_one_step_stands_for_all_with_the_same_kernels():
    trace = repeated(
        [["warm", "a"], ["a", "b"], ["a", "b"], ["a", "b"], ["b", "a"]], [9.0, 3.0, 1.0, 2.0, 2.5]
    )
    chosen = typical(trace, steps(trace))
    assert chosen.name == "ProfilerStep#3"
    assert chosen.note.startswith("ProfilerStep#3 stands for 3 steps with the same kernels")
    assert chosen.note.endswith("other kernels ran in ProfilerStep#0, ProfilerStep#4")
    alone = repeated([["a"]], [1.0])
    assert typical(alone, steps(alone)).note == ""
    unlike = repeated([["a"], ["b"], ["c"]], [3.0, 1.0, 2.0])
    assert typical(unlike, steps(unlike)).name == "ProfilerStep#2"
    assert "no two of 3 steps" in typical(unlike, steps(unlike)).note


def test_steps_of_several_ranks_are_matched_and_what_is_missing_is_said():
    two = {"kernels_by_step": [["a"], ["a"]], "lengths_s": [1.0, 1.0]}
    three = {"kernels_by_step": [["a"]] * 3, "lengths_s": [1.0] * 3}
    ranks = [
        repeated(**two, rank=0, world=4, source="r0"),
        repeated(**three, rank=2, world=4, source="r2"),
    ]
    found = common_steps(ranks)
    assert [step.name for step in found] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert [len(step.steps) for step in found] == [2, 2]
    assert found[0].note == "left out for not being in every rank: ProfilerStep#2"
    assert common_steps([repeated(**two, rank=None, world=None)])[0].note == ""


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([(1, 2, 0), (1, 2, 0)], "r0 and r1 are both of rank 1"),
        ([(None, None, 0), (None, None, 0)], "name no rank"),
        ([(0, 2, 0), (None, None, 0)], "r1 names none"),
        ([(0, 2, 0), (1, 4, 0)], "ranks of runs of 2, 4 ranks"),
        (
            [(0, 2, 0), (1, 2, 5)],
            (
                "expected the same steps of every rank, got ProfilerStep#0 in r0 and ProfilerStep#5"
                " in r1"
            ),
        ),
        ([(0, 2, 0), (1, 2, None)], "got ProfilerStep#0 in r0 and whole in r1"),
        ([], "got none"),
    ],
)
def test_ranks_that_cannot_be_put_together_are_refused_in_one_sentence(ranks, said):
    traces = [
        trace_of(
            [(f"ProfilerStep#{step}" if step is not None else "a", MARK, 0, 0.0, 1.0)],
            [],
            rank,
            world,
            f"r{i}",
        )
        for i, (rank, world, step) in enumerate(ranks)
    ]
    with pytest.raises(InputError) as error:
        common_steps(traces)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
