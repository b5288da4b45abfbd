"""Collectives of several ranks: wire time, waits, who was late; made-up ranks, then eight real
ones.
"""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from support.made_traces import made_trace

from hybridperf.traces.events import Message
from hybridperf.traces.ranks import kind_of, match
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.steps import steps
from hybridperf.traces.summary import summaries

REDUCE, GATHER = "ncclKernel_AllReduce_RING", "ncclKernel_AllGather_RING"


def rank_of(number, device, world=2, host=()):
    """A rank whose device runs these, each launched by a call of its own in this order."""
    calls = [("call", f"launch {at}", at, at + 0.5) for at in range(len(device))]
    return made_trace(
        [*calls, *host],
        [(*event, f"launch {at}") for at, event in enumerate(device)],
        rank=number,
        world=world,
    )


def matched(*traces):
    return match(traces, [steps(trace)[0] for trace in traces])


def test_the_last_to_come_waits_for_nobody():
    early = rank_of(0, [(REDUCE, 20, 100, 200), (REDUCE, 20, 300, 310)])
    late = rank_of(1, [(REDUCE, 20, 170, 200), (REDUCE, 20, 250, 310)])
    first, second = matched(early, late).collectives
    assert (str(first), first.rank.tolist()) == ("all_reduce #0", [0, 1])
    assert first.wire_s == pytest.approx(30e-6)
    assert first.wait_s == pytest.approx([70e-6, 0])
    assert first.late_rank == 1
    assert second.wait_s == pytest.approx([0, 50e-6])
    assert (second.late_rank, second.order) == (0, 1)


def test_clocks_of_the_ranks_need_not_agree():
    early, late = rank_of(0, [(REDUCE, 20, 100, 200)]), rank_of(1, [(REDUCE, 20, 5170, 5200)])
    found = matched(early, dataclasses.replace(late, origin_us=1e9))
    assert found.collectives[0].wait_s == pytest.approx([70e-6, 0])
    assert "ranks 0, 1 end their collectives 1e+06 ms apart" in found.notes[0]
    assert not matched(
        early, dataclasses.replace(late, origin_us=-5000.0)
    ).notes  # the same clock, counted from elsewhere


def test_the_order_of_the_traces_does_not_matter():
    a, b = rank_of(0, [(REDUCE, 20, 100, 200)]), rank_of(1, [(REDUCE, 20, 170, 200)])
    (one,), (other,) = matched(a, b).collectives, matched(b, a).collectives
    assert (one.late_rank, one.wire_s) == (other.late_rank, other.wire_s)
    assert dict(zip(one.rank, one.wait_s, strict=True)) == dict(
        zip(other.rank, other.wait_s, strict=True)
    )


def test_groups_have_streams_of_their_own():
    """Stream numbers differ from rank to rank; which comes first on the device may, too."""
    a = rank_of(0, [(REDUCE, 20, 10, 50), (GATHER, 24, 20, 40), (REDUCE, 20, 60, 90)])
    b = rank_of(1, [(REDUCE, 33, 30, 50), (GATHER, 34, 10, 40), (REDUCE, 33, 50, 90)])
    found = matched(a, b)
    assert [one.kind for one in found.collectives] == ["all_reduce", "all_gather", "all_reduce"]
    assert [one.late_rank for one in found.collectives] == [1, 0, 0]
    assert not found.notes


def test_ranks_that_ran_different_collectives_are_not_matched_with_each_other():
    a, b, c = (rank_of(at, [(REDUCE, 20, 10 * at, 50)], world=3) for at in range(3))
    odd = rank_of(2, [(GATHER, 20, 10, 50)], world=3)
    found = matched(a, b, odd)
    assert [(one.kind, one.rank.tolist()) for one in found.collectives] == [
        ("all_reduce", [0, 1]),
        ("all_gather", [2]),
    ]
    assert found.notes == (
        (
            "only ranks that ran the same collectives in the same order are matched: in"
            " communication stream 1 ranks 0, 1 ran 1 all_reduce; rank 2 ran 1 all_gather"
        ),
    )
    assert np.isnan(found.collectives[1].wait_s).all()
    assert not matched(a, b, c).notes


def test_missing_ranks_are_said():
    a, b = (
        rank_of(0, [(REDUCE, 20, 100, 200)], world=4),
        rank_of(2, [(REDUCE, 20, 170, 200)], world=4),
    )
    assert matched(a, b).notes == (
        "no traces of ranks 1, 3 of 4: waiting for them counts as wire time",
    )
    (alone,) = matched(a).collectives
    assert np.isnan(alone.wait_s).all()  # nobody knows
    assert "one rank of 4" in matched(a).notes[0]


def in_groups(number, device, messages, world=4, host=()):
    """The same rank with what each kernel says of its group."""
    trace = rank_of(number, device, world, host)
    return dataclasses.replace(trace, messages=dict(enumerate(messages)))


@pytest.mark.parametrize("by", ["ranks", "name"])
def test_ranks_wait_for_members_of_their_group_only(by):
    """Two groups run the same on the same streams, one of them much shorter."""
    ranks = []
    for rank, long_us in enumerate((200, 230, 100, 120)):
        group = (0, 1) if rank < 2 else (2, 3)
        said = (
            Message(ranks=group, size=2)
            if by == "ranks"
            else Message(group=f"tp{rank // 2}", size=2)
        )
        ranks.append(in_groups(rank, [(REDUCE, 20, 500 - long_us, 500)], [said]))
    found = matched(*ranks)
    assert [one.rank.tolist() for one in found.collectives] == [[0, 1], [2, 3]]
    assert np.concatenate([one.wait_s for one in found.collectives]) == pytest.approx(
        [0, 30e-6, 0, 20e-6]
    )
    assert len({str(one) for one in found.collectives}) == 2
    assert not found.notes
    said = summaries(ranks, [[steps(trace)[0] for trace in ranks]])[0]
    assert said.rows["waiting_s"].tolist() == pytest.approx([0, 30e-6, 0, 20e-6])
    strangers = [ranks[0], ranks[2]]
    said = summaries(strangers, [[steps(trace)[0] for trace in strangers]])[0]
    assert said.rows["waiting_s"].isna().all()
    assert said.matched.notes == (
        (
            "no traces of ranks 1, 3 of 4: what others waited in collectives with only them is not"
            " known"
        ),
    )
    assert matched(*ranks[:2]).notes == ("no traces of ranks 2, 3 of 4",)  # which does no harm


def test_groups_of_the_same_ranks_are_told_apart_by_name():
    """Each rank starts one group's first; in the order of launch they would be taken for each
    other.
    """
    one, other = Message(ranks=(0, 1), group="a"), Message(ranks=(0, 1), group="b")
    a = in_groups(0, [(REDUCE, 20, 10, 50), (REDUCE, 24, 20, 90)], [one, other], world=2)
    b = in_groups(1, [(REDUCE, 24, 10, 90), (REDUCE, 20, 20, 50)], [other, one], world=2)
    waits = [found.wait_s for found in matched(a, b).collectives]
    assert np.concatenate(waits) == pytest.approx([10e-6, 0, 0, 10e-6])
    c = in_groups(
        1,
        [(REDUCE, 24, 10, 50), (REDUCE, 20, 20, 90)],
        [dataclasses.replace(one, group="c")] * 2,
        world=2,
    )
    assert [len(found.trace) for found in matched(a, c).collectives] == [
        2,
        2,
    ]  # names that differ tell nothing


def test_more_ranks_than_a_group_has_are_not_matched():
    ranks = [rank_of(at, [(REDUCE, 20, 10 * at, 50)], world=4) for at in range(4)]
    ranks = [dataclasses.replace(trace, messages={0: Message(size=2)}) for trace in ranks]
    found = matched(*ranks)
    assert found.collectives
    assert all(np.isnan(one.wait_s).all() for one in found.collectives)
    assert found.notes == (
        (
            "ranks 0, 1, 2, 3 ran collectives of groups of 2 ranks without saying which: what they"
            " waited is not known"
        ),
    )


@pytest.mark.parametrize("group", [(), (0, 1), (4, 6)])
def test_sends_and_receives_are_pairs(group):
    """Ranks in marks count within the group, where its ranks are recorded."""
    kernel = "ncclDevKernel_SendRecv"
    first, second = group or (0, 1)
    said = [Message("send", ranks=group, size=2)]
    a = in_groups(first, [(kernel, 20, 100, 120)], said, 8, [("mark", "nccl:send 0->1", 0, 0.8)])
    b = in_groups(second, [(kernel, 20, 100, 400)], said, 8, [("mark", "nccl:recv 1<-0", 0, 0.8)])
    (found,) = matched(a, b).collectives
    assert str(found) == f"send {first}->{second} #0"
    assert found.wait_s == pytest.approx([0, 280e-6])
    (alone,) = matched(b).collectives
    assert np.isnan(alone.wait_s).all()
    if group == (4, 6):  # without the group's ranks nobody knows who 0 and 1 are
        lost = [
            dataclasses.replace(trace, messages={0: Message("send", size=2)}) for trace in (a, b)
        ]
        assert all(np.isnan(one.wait_s).all() for one in matched(*lost).collectives)


@pytest.mark.parametrize(
    ("mark", "said", "kernel", "kind"),
    [
        ("nccl:all_gather_into_tensor_coalesced", "", "AllGather_RING", "all_gather"),
        ("nccl:all_reduce_barrier", "allreduce", "AllReduce_RING", "all_reduce"),
        ("nccl:reduce_scatter_tensor_coalesced", "", "ReduceScatter_RING", "reduce_scatter"),
        ("nccl:coalesced", "", "ReduceScatter_RING", "reduce_scatter"),
        ("nccl:coalesced", "", "SendRecv", "messages"),
        ("step", "_reduce_scatter_base", "Generic_1", "reduce_scatter"),
        ("step", "all_to_allv", "SendRecv", "all_to_all"),
        ("nccl:recv 1<-0", "recv", "SendRecv", "recv"),
    ],
)
def test_words_for_collectives(mark, said, kernel, kind):
    trace = in_groups(
        0, [(f"ncclDevKernel_{kernel}", 20, 5, 9)], [Message(said)], host=[("mark", mark, 0, 0.8)]
    )
    assert kind_of(trace, np.arange(1)) == [kind]


def test_the_frameworks_mark_names_the_collective():
    """A kernel that sends and receives may be any of several."""
    host = [("op", "record_param_comms", 0, 0.9), ("mark", "nccl:_reduce_scatter_base", 0, 0.8)]
    names = ("SendRecv", "SendRecv", "Reduce_RING", "ReduceScatter_RING", "Broadcast_RING", "X")
    kernels = [
        (f"ncclDevKernel_{name}", 20, 5 + 10 * at, 9 + 10 * at) for at, name in enumerate(names)
    ]
    trace = rank_of(0, [*kernels, ("gemm", 7, 90, 95)], host=host)
    kinds = [
        "reduce_scatter",
        "all_to_all",
        "reduce",
        "reduce_scatter",
        "broadcast",
        "collective",
        None,
    ]
    assert kind_of(trace, np.arange(7)) == kinds


def test_exposed_waiting_has_a_rank_to_blame():
    early = rank_of(0, [(REDUCE, 20, 100, 200), ("gemm", 7, 90, 140)])
    late = rank_of(1, [(REDUCE, 20, 170, 200), ("gemm", 7, 90, 165)])
    said = summaries([early, late], [[steps(trace)[0] for trace in (early, late)]])[0]
    assert said.rows["waiting_s"].tolist() == pytest.approx(
        [30e-6, 0]
    )  # 100 to 140 was computing, 170 to 200 the wire
    loss = next(loss for loss in said.losses.itertuples() if loss.reason == "waiting")
    assert (loss.rank, loss.detail) == (0, "for rank 1 at all_reduce #0")


def test_a_rank_of_many_without_any_collective_is_told():
    host, device = [("call", "launch", 0, 1)], [("my_exchange", 7, 10, 60, "launch")]
    trace = made_trace(host, device, world=16)
    (note,) = match([trace], [steps(trace)[0]]).notes
    assert note.startswith("rank 0 of 16 ran no kernel that is known to communicate")
    named = trace.with_communication(re.compile("exchange"))
    assert not any("no kernel" in one for one in match([named], [steps(named)[0]]).notes)
    alone = made_trace(host, device, world=1)
    assert match([alone], [steps(alone)[0]]).notes == ()


def test_one_rank_of_several_does_not_know_its_waits():
    trace = rank_of(0, [(REDUCE, 20, 100, 200)])
    assert np.isnan(summaries([trace], [[steps(trace)[0]]])[0].rows["waiting_s"][0])


def test_eight_real_ranks(data_dir):
    """Against the collectives that were worked out from the same traces by others: all 64
    durations, minima and waits.
    """
    expected = pd.read_csv(data_dir / "lin" / "param_dlrm_8xv100" / "collectives.csv")
    traces = read_traces([data_dir / "traces" / "param_dlrm_8xV100_kineto.tar.gz"])
    found = match(traces, [steps(trace)[0] for trace in traces]).collectives
    assert len(found) == expected["index"].nunique() == 8
    for at, one in enumerate(found):
        rows = expected[expected["index"] == at].set_index("rank")
        assert {f"nccl:{one.kind}"} == set(rows["op"])
        assert one.input_dims == rows["input_dims"].iloc[0]
        assert sorted(one.rank) == list(range(8))
        rows = rows.loc[one.rank]
        np.testing.assert_allclose(one.end_s - one.start_s, rows["dur_us"] * 1e-6, atol=1e-9)
        assert one.wire_s == pytest.approx(rows["min_dur_us"].iloc[0] * 1e-6, abs=1e-9)
        np.testing.assert_allclose(one.wait_s, rows["wait_us"] * 1e-6, atol=1e-9)
        origin_us = np.array([traces[trace].origin_us for trace in one.trace])
        assert np.ptp(one.end_s + (origin_us - origin_us[0]) * 1e-6) == pytest.approx(
            rows["end_spread_us"].iloc[0] * 1e-6, abs=1e-9
        )
