"""Steps of graph networks: what they are made of, what a cut graph sends, what cannot be."""

import dataclasses
import math

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.calls import CollectiveCall
from hybridperf.ops import Gather, Gemm, OpCall, SpMM
from hybridperf.workloads.gnn import blocks

GRAPH = hp.GraphShape(nodes=10_000, edges=200_000)
ONE = hp.GnnConfig(GRAPH, (100, 64, 16))


@pytest.fixture(scope="module")
def model() -> PerfModel:
    return PerfModel.datasheet(load_device("v100_sxm2")).with_collectives(
        CollectiveModel.datasheet(load_system("dgx_v100"))
    )


def ops(config: hp.GnnConfig, kind: type) -> list:
    """Ops of one rank's step, as often as they run."""
    work = hp.gnn(config)
    rows = np.asarray(work.graph.row)[np.asarray(work.graph.rank) == 0]
    calls = [work.calls[row - 1] for row in rows.tolist() if row > 0]
    return [call.op for call in calls if isinstance(call, OpCall) and isinstance(call.op, kind)]


def messages(config: hp.GnnConfig, name: str = "alltoall") -> list[CollectiveCall]:
    work = hp.gnn(config)
    rows = np.asarray(work.graph.row)[np.asarray(work.graph.rank) == 0]
    calls = [work.calls[row - 1] for row in rows.tolist() if row > 0]
    return [one for one in calls if isinstance(one, CollectiveCall) and one.collective == name]


@pytest.mark.parametrize(
    ("network", "widths"),
    [
        # GCN aggregates what it made, forward and backward; the others what came in, whose
        # gradient the first layer needs not
        ("gcn", [64, 16, 16, 64]), ("graphsage", [100, 64, 64]), ("gin", [100, 64, 64]),
    ],
)  # fmt: skip
def test_sparse_products_of_a_step(network: str, widths: list[int]) -> None:
    found = ops(dataclasses.replace(ONE, model=network), SpMM)
    assert [one.n for one in found] == widths
    loops = 10_000 if network == "gcn" else 0
    assert all(one.nnz == 200_000 + loops for one in found)


def test_dense_products_of_gcn_by_hand() -> None:
    """Forward, then gradients of inputs (not the first layer's) and of weights."""
    found = [(one.m, one.n, one.k) for one in ops(ONE, Gemm)]
    n = 10_000.0
    forward, backward = [(n, 64, 100), (n, 16, 64)], [(n, 64, 16), (16, 64, n), (64, 100, n)]
    assert sorted(found) == sorted([*forward, *backward])


def test_a_random_cut_by_degrees() -> None:
    """DistGNN's replication factor: a node of one edge is on one rank, of many on all."""
    assert hp.replication(4, [1.0]) == pytest.approx(1.0)
    assert hp.replication(4, [2.0]) == pytest.approx(4 * (1 - 0.75**2))
    assert hp.replication(4, [1e6]) == pytest.approx(4.0)
    assert hp.replication(1, [7.0]) == 1.0
    spread = dataclasses.replace(GRAPH, cv_degree=2.0, max_degree=4000)
    even, uneven = hp.replication(64, graph=GRAPH), hp.replication(64, graph=spread)
    assert 1 < uneven < even < 20


@pytest.mark.parametrize("cut", ["vertex", "edge"])
def test_clones_are_what_travels(cut: str) -> None:
    """(RF - 1) V rows an aggregation, of all ranks together; a vertex cut sends them twice."""
    config = dataclasses.replace(ONE, ranks=8, cut=cut, replication=3.0)
    widths = [64, 16, 16, 64]
    each = [2 * 10_000 * width * 4 / 8 for width in widths]
    expected = [size for size in each for _ in range(2 if cut == "vertex" else 1)]
    assert [one.bytes for one in messages(config)] == pytest.approx(expected)
    numbers = 100 * 64 + 64 * 16 + 64 + 16
    assert [one.bytes for one in messages(config, "all_reduce")] == [4 * numbers]


def test_delayed_messages_are_fewer_and_nobody_waits(model: PerfModel) -> None:
    """DistGNN: 0c without messages is a lower bound, cd-5 between it and cd-0."""
    slow = dataclasses.replace(
        ONE, graph=hp.GraphShape(1e6, 2e7), ranks=8, replication=4.0, widths=(100, 256, 64)
    )
    times = [
        hp.predict(model, hp.gnn(dataclasses.replace(slow, delay=delay))).time_s
        for delay in (0.0, 5.0, math.inf)
    ]
    assert times[0] > 1.2 * times[1]
    assert times[1] >= times[2]
    five, every = (dataclasses.replace(slow, delay=delay) for delay in (5.0, 0.0))
    assert messages(five)[0].bytes == pytest.approx(messages(every)[0].bytes / 5)
    assert not messages(dataclasses.replace(slow, delay=math.inf))


def test_a_full_graph_scales_as_its_cut_lets_it(model: PerfModel) -> None:
    big = dataclasses.replace(ONE, graph=hp.GraphShape(1e6, 1e8), loss_wait_s=0.0)

    def speedup(replication: float) -> float:
        eight = dataclasses.replace(big, ranks=8, replication=replication)
        return hp.predict(model, hp.gnn(big)).time_s / hp.predict(model, hp.gnn(eight)).time_s

    assert speedup(8.0) < speedup(2.0) < 8.0


def test_sampled_blocks_by_hand() -> None:
    """SALIENT: each node of a batch draws its neighbours, and they theirs."""
    config = dataclasses.replace(ONE, model="graphsage", fanouts=(5, 10), batch=100)
    first, last = blocks(config)
    assert (last.rows, last.edges) == (100, 500)
    met = 10_000 * (1 - (1 - 1e-4) ** 500)
    assert last.cols == pytest.approx(100 + met, rel=1e-6)
    assert (first.rows, first.edges) == (last.cols, last.cols * 10)
    (features,) = ops(config, Gather)
    assert (features.rows, features.cols) == (first.cols, 100)
    drawn = ops(dataclasses.replace(config, samples_on_device=True), Gather)
    assert [one.cols for one in drawn] == [1.0, 1.0, 100.0]
    # no more neighbours than there are
    assert blocks(dataclasses.replace(config, fanouts=(50, 50)))[1].edges == 100 * 20


def test_sampled_batches_of_ranks_share_gradients_alone() -> None:
    config = dataclasses.replace(ONE, fanouts=(5, 10), batch=100, ranks=4)
    assert not messages(config)
    assert len(messages(config, "all_reduce")) == 1


def test_features_copied_from_the_host_are_waited_for(model: PerfModel) -> None:
    config = dataclasses.replace(ONE, fanouts=(15, 10), batch=1000)
    fast, slow = (
        hp.predict(model, hp.gnn(dataclasses.replace(config, host_bytes_per_s=rate))).time_s
        for rate in (12e9, 1.2e9)
    )
    cols = blocks(config)[0].cols
    assert slow - fast == pytest.approx(cols * 100 * 4 * (1 / 1.2e9 - 1 / 12e9), rel=0.01)


def test_snapshots_are_turned_by_messages_of_a_fixed_volume() -> None:
    """Dynamic graph networks: what all ranks send together does not grow with their number."""
    config = dataclasses.replace(ONE, snapshots=16)
    assert not messages(config)
    volume = {}
    for ranks in (4, 8):
        sent = messages(dataclasses.replace(config, ranks=ranks))
        assert len(sent) == 4  # there and back, forward and backward
        volume[ranks] = sum(one.bytes for one in sent) * ranks
    assert volume[4] == pytest.approx(volume[8])
    assert volume[4] == pytest.approx(4 * 16 * 10_000 * 16 * 4)


def test_the_loss_of_many_nodes_is_one_warp_of_work(model: PerfModel) -> None:
    large = dataclasses.replace(ONE, graph=hp.GraphShape(320_000, 1e6))
    alone = dataclasses.replace(large, loss_wait_s=0.0)
    waits = hp.predict(model, hp.gnn(large)).time_s - hp.predict(model, hp.gnn(alone)).time_s
    assert waits == pytest.approx(3 * 5e-7 * 320_000 / 32, rel=1e-3)
    believed = hp.predict("h100_sxm", hp.gnn(large))  # nearly all of it is that wait
    assert believed.low_s is not None
    assert believed.high_s is not None
    assert 2 < believed.high_s / believed.low_s < 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "gat"}, "gat"), ({"widths": (10,)}, "widths"), ({"ranks": 0}, "ranks"),
        ({"widths": (10, 2.5)}, "widths"), ({"fanouts": (5,)}, "fanouts must be 2"),
        ({"fanouts": (5, 5)}, "batch"), ({"snapshots": 3, "ranks": 2}, "multiple"),
        ({"fanouts": (5, 5), "batch": 8, "snapshots": 2}, "not both"),
        ({"replication": 0.5}, "replication"), ({"delay": -1.0}, "delay"),
        ({"dtype": "int8"}, "dtype"),
        ({"graph": hp.GraphShape(0, 10)}, "nodes"), ({"graph": 7}, "GraphShape"),
        ({"cut": "both"}, "both"), ({"nodes": 2}, "rank on every node"),
        ({"host_bytes_per_s": 0.0}, "host_bytes_per_s"), ({"loss_wait_s": -1.0}, "loss_wait_s"),
        ({"batch": 8}, "batch needs fanouts"), ({"delay": "a"}, "delay"),
        ({"replication": "a"}, "replication"),
        ({"graph": hp.GraphShape(10, 50, 0, 2)}, "mean degree"),
    ],
)  # fmt: skip
def test_what_is_no_network_is_refused_in_a_sentence(changes: dict, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        hp.gnn(dataclasses.replace(ONE, **changes))
    assert "\n" not in str(refused.value)


def test_lists_are_as_good_as_tuples() -> None:
    lists = dataclasses.replace(ONE, widths=list(ONE.widths), fanouts=[5, 5], batch=8)
    tuples = dataclasses.replace(lists, widths=ONE.widths, fanouts=(5, 5))
    assert hp.gnn(lists).calls == hp.gnn(tuples).calls


@pytest.mark.parametrize("degrees", [[], [-3.0, 2.0], [math.nan]])
def test_degrees_that_are_none_are_refused(degrees: list[float]) -> None:
    with pytest.raises(InputError, match="a degree of zero or more for every node"):
        hp.replication(4, degrees)


def test_other_things_are_refused() -> None:
    with pytest.raises(InputError, match="GnnConfig"):
        hp.gnn(GRAPH)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="degrees"):
        hp.replication(4)
    with pytest.raises(InputError, match="1 or more, got 0"):
        hp.replication(0, graph=GRAPH)


def test_an_epoch_of_salient_is_near_on_one_gpu_and_on_sixteen() -> None:
    """Kaler et al., 2022: GraphSAGE on papers100M, fanouts 15, 10, 5: 2.0 s an epoch on 16 GPUs,
    eight times as quick as one, where nearly nothing but the GPU's work is left (V100: recalled).
    """
    graph = hp.GraphShape(nodes=111_059_956, edges=2 * 1_615_685_872)
    config = hp.GnnConfig(graph, (128, 256, 256, 172), "graphsage", fanouts=(15, 10, 5), batch=1024)
    links = CollectiveModel.datasheet(load_system("aws_p3dn_v100"))
    model = hp.load_model("v100_sxm2").with_collectives(links)
    for ranks, published_s in ((1, 16.0), (16, 2.0)):
        each = dataclasses.replace(config, ranks=ranks, nodes=max(ranks // 2, 1))
        step, batches = hp.predict(model, hp.gnn(each)), 1_207_179 / 1024 / ranks
        assert batches * step.low_s < published_s < batches * step.high_s
