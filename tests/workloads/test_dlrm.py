"""A DLRM step over ranks: what it is made of, who waits for whom, and what no model can be."""

import dataclasses

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.traced import AllToAll
from hybridperf.engine.batches import BatchPredictor
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.hardware import Host, Overhead, Spread, load_device, load_system
from hybridperf.io import InputError
from hybridperf.model import PerfModel, load_model
from hybridperf.model.calls import CollectiveCall, GivenSeconds
from hybridperf.ops import Gemm, OpCall
from hybridperf.ops.embedding import Table
from hybridperf.ops.rows import KERNEL_S
from hybridperf.workloads.dlrm import DlrmConfig
from hybridperf.workloads.placement import Placement, shards, traffic
from hybridperf.workloads.programs.eager import Eager, loop

TABLES = tuple(Table(f"t{i}", 1e6, 64, 20) for i in range(8))
ONE = DlrmConfig(512, 128, (256, 64), (256, 1), TABLES)
EIGHT = dataclasses.replace(ONE, batch=4096, ranks=8)


@pytest.fixture(scope="module")
def model() -> PerfModel:
    return PerfModel.datasheet(load_device("v100_sxm2")).with_collectives(
        CollectiveModel.datasheet(load_system("dgx_v100"))
    )


def seconds_of(prediction, kind):
    found = prediction.breakdown().set_index("group")["seconds"]
    return float(found[kind]) if kind in found.index else 0.0


def test_rows_of_three_kinds_by_hand(model):
    """Compute, then a collective of unequal bytes, then a host's seconds: the makespan is their
    sum.
    """
    pairs = ((0.0, 1e8), (3e8, 0.0))
    builder = GraphBuilder()
    first = [builder.op(1, rank=rank) for rank in range(2)]
    meet = builder.collective(2, label="bags", ranks=[0, 1], after=first)
    builder.op(3, rank=0, stream="copy", after=[meet[0]])
    calls = (
        OpCall(Gemm("fp32", 4096.0, 1024.0, 1024.0)),
        CollectiveCall.between(pairs),
        GivenSeconds(0.25),
    )
    workload = Workload("three", builder.build(), calls)
    prediction = hp.predict(model, workload)
    gemm = 2 * 4096 * 1024 * 1024 / model.device.peak("fp32", "matrix")
    travel = float(AllToAll.of(model.collectives, 2, 2).seconds(np.array(pairs), xp=np))
    assert prediction.time_s == pytest.approx(gemm + travel + 0.25, rel=1e-5)
    assert prediction.op_s == pytest.approx([gemm, travel, 0.25], rel=1e-5)
    assert prediction.ops()["group"].tolist() == ["gemm", "gemm", "alltoall", "alltoall", "given"]
    equal = dataclasses.replace(
        workload, calls=(calls[0], CollectiveCall("alltoall", 4e8, 2), calls[2])
    )
    even = dataclasses.replace(
        workload, calls=(calls[0], CollectiveCall.between(((0.0, 2e8), (2e8, 0.0))), calls[2])
    )
    assert hp.predict(model, even).time_s == pytest.approx(
        hp.predict(model, equal).time_s, rel=1e-6
    )


def test_links_may_be_varied_and_have_exact_slopes(model):
    workload = hp.dlrm(EIGHT)
    rate = float(model.platform().links.intra_bytes_per_s)
    steps = BatchPredictor(model, workload)(intra_bytes_per_s=[rate, rate / 10, rate])
    assert steps[0] == pytest.approx(hp.predict(model, workload).time_s, rel=1e-5)
    assert steps[1] > steps[0] == steps[2]
    slope = hp.step_function(model, workload).slopes()["links"]["intra_bytes_per_s"]
    around = BatchPredictor(model, workload)(intra_bytes_per_s=[rate * 0.98, rate * 1.02])
    assert slope == pytest.approx((around[1] - around[0]) / (0.04 * rate), rel=0.05)
    assert slope < 0
    with pytest.raises(
        InputError, match="has no collectives, so intra_bytes_per_s changes nothing"
    ):
        BatchPredictor(model, hp.dlrm(ONE))(intra_bytes_per_s=[1e9])


def test_a_model_without_collectives_says_so():
    with pytest.raises(
        InputError,
        match=r"expected a model with collectives for a step with an alltoall over 8 ranks",
    ):
        hp.predict(PerfModel.datasheet(load_device("v100_sxm2")), hp.dlrm(EIGHT))


def test_one_rank_has_no_collectives_and_all_flops(model):
    workload = hp.dlrm(ONE)
    prediction = hp.predict(model, workload)
    assert not any(isinstance(call, CollectiveCall) for call in workload.calls)
    layers = [(128, 256), (256, 64), (64 + 36, 256), (256, 1)]
    # the first layer's inputs need no gradient
    flops = 2 * 512 * sum(i * o * (3 if at else 2) for at, (i, o) in enumerate(layers))
    nodes = workload.graph.row[workload.graph.row > 0] - 1
    counted = sum(
        workload.calls[row].op.work().flops
        for row in nodes
        if isinstance(workload.calls[row].op, Gemm)
    )
    assert counted == pytest.approx(flops)
    assert prediction.time_s == pytest.approx(
        prediction.breakdown()["seconds"].sum(), rel=1e-5
    )  # one stream, no host


PLACEMENTS = {
    "table": (), "one rank": (Placement("table", (0,)),) * 8, "column": (Placement("column"),) * 8,
    "row": (Placement("row"),) * 8, "data": (Placement("data"),) * 8,
    "some ranks": (Placement("row", (0, 1, 2)),) * 4 + (Placement("table", (3,)),) * 4,
}  # fmt: skip


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_moves_what_it_must(model, name):
    config = dataclasses.replace(EIGHT, placement=PLACEMENTS[name])
    workload = hp.dlrm(config)
    kinds = {call.collective for call in workload.calls if isinstance(call, CollectiveCall)}
    expected = {"data": {"all_reduce"}, "row": {"all_reduce", "reduce_scatter", "all_gather"}}
    assert kinds == expected.get(name, {"all_reduce", "alltoall"})
    reduced = sum(
        call.bytes
        for row in workload.graph.row[workload.graph.rank == 0]
        if row
        and isinstance(call := workload.calls[row - 1], CollectiveCall)
        and call.collective == "all_reduce"
    )
    dense = 4 * sum(o * (i + 1) for i, o in [(128, 256), (256, 64), (100, 256), (256, 1)])
    assert reduced == pytest.approx(dense + (8 * 1e6 * 64 * 4 if name == "data" else 0))
    assert hp.predict(model, workload).time_s > 0


def test_table_row_stays_in_its_node():
    held = shards(TABLES[:1], [Placement("table_row", (4, 5, 6, 7))], 8, 2)
    sent = traffic(held, 4096, 8, 2, 4.0)
    assert [shard.table.rows for shard in held] == [250_000] * 4
    assert sent.node_bytes == (0.0, 4096 * 64 * 4)  # the node's partial sums are scattered over it
    # rank 5 then holds whole sums of the samples of ranks 1 and 5, and sends them there
    assert np.flatnonzero(sent.pairs[5]).tolist() == [1, 5]
    assert sent.pairs.sum() == pytest.approx(4096 * 64 * 4)
    kinds = {
        call.collective: call.ranks
        for call in hp.dlrm(
            dataclasses.replace(
                EIGHT, nodes=2, placement=(Placement("table_row", (4, 5, 6, 7)),) * 8
            )
        ).calls
        if isinstance(call, CollectiveCall)
    }
    assert kinds == {"reduce_scatter": 4, "all_gather": 4, "alltoall": 8, "all_reduce": 8}


def test_bytes_of_the_exchange_by_hand():
    """Each sample's bags reach its owner once, however the tables lie."""
    for place in (
        [Placement("table", (i,)) for i in range(8)],
        [Placement("column")] * 8,
        [Placement("table", (0,))] * 8,
    ):
        sent = traffic(shards(TABLES, place, 8, 1), 4096, 8, 1, 4.0)
        assert sent.pairs.sum() == pytest.approx(4096 * 8 * 64 * 4)
        assert sent.pairs.sum(0) == pytest.approx(4096 * 8 * 64 * 4 / 8)


def test_ranks_leave_a_collective_together_and_the_late_one_does_not_wait(model):
    config = dataclasses.replace(EIGHT, load_s=(0.0,) * 7 + (0.05,))
    prediction = hp.predict(model, hp.dlrm(config))
    graph = prediction.workload.graph
    for first in np.unique(graph.collective[graph.collective >= 0]):
        ends = prediction.timeline.end_s[graph.collective == first]
        assert np.ptp(ends) == 0
    alike = hp.predict(model, hp.dlrm(EIGHT))
    assert prediction.time_s == pytest.approx(alike.time_s + 0.05, rel=1e-5)


def test_the_bottom_mlp_hides_the_all_to_all(model):
    """With links that slow, bags come last: only what the bottom MLP does not hide is exposed."""
    slow = model.collectives.system.model_copy(update={"intra_bytes_per_s": 1e9})
    there = model.with_collectives(CollectiveModel.datasheet(slow))
    first = hp.predict(there, hp.dlrm(EIGHT)).time_s
    last = hp.predict(there, hp.dlrm(dataclasses.replace(EIGHT, lookup_first=False))).time_s
    assert first < last


def test_tables_that_exceed_the_devices_memory_are_named(model):
    def notes(rows, **changes):
        tables = tuple(hp.Table(f"t{at}", rows if at == 1 else 1e6, 64, 5) for at in range(4))
        config = hp.DlrmConfig(256, 13, (64,), (64, 1), tables, ranks=2, **changes)
        return [note for note in hp.predict(model, hp.dlrm(config)).notes if "fit" in note]

    assert notes(5e7) == []
    rows = 1.3e8  # 33.28 GB of fp32 beside t3's 0.256
    assert notes(rows) == [
        "does not fit: rank 1 holds tables, MLPs and bags of 33.54 GB (the largest table t1, 33.28"
        " GB), v100_sxm2 has 16.95 GB"
    ]
    places = tuple(hp.Placement("table", (rank,)) for rank in (1, 0, 1, 0))
    fullest = notes(1e8, optimizer="adagrad", placement=places)[0]
    assert (
        "rank 0 holds tables, MLPs and bags of 51.71 GB (the largest table t1, 51.2 GB)" in fullest
    )


def test_memory_counts_gradients_of_copies_and_what_is_no_table():
    """A copied table's gradient is dense and as large; MLPs and bags need their place."""

    def held(**changes):
        return hp.dlrm(dataclasses.replace(EIGHT, **changes)).peak_memory.bytes

    copied = (Placement("data"),) * 8
    each = 1e6 * 64 * 4
    dense = sum(o * (i + 1) for i, o in [(128, 256), (256, 64), (100, 256), (256, 1)])
    layers = 2 * 4 * dense + 4 * 512 * (
        128 + 256 + 64 + 100 + 256 + 1
    )  # weights and gradients, activations
    bags = 4 * 64 * 512 * 8  # eight of 512 samples, or one of all 4096 on its way
    assert held() == pytest.approx(each + layers + 2 * bags)
    assert held(placement=copied) == pytest.approx(8 * 2 * each + layers + bags)
    assert held(placement=copied, optimizer="rowwise_adagrad") == pytest.approx(
        8 * 3 * each + layers + 4 * dense + bags
    )  # as the MLPs
    assert held(placement=copied, ranks=1) == held(ranks=1)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_on_one_rank_all_placements_are_one(model, optimizer):
    here = [Placement(kind, (0,)) for kind in ("table", "row", "column", "data", "table_row")]
    steps = [
        hp.predict(
            model, hp.dlrm(dataclasses.replace(ONE, optimizer=optimizer, placement=(one,) * 8))
        ).time_s
        for one in here
    ]
    assert steps == steps[:1] * 5
    alone = [
        hp.predict(
            model, hp.dlrm(dataclasses.replace(EIGHT, placement=(Placement(kind, (3,)),) * 8))
        ).time_s
        for kind in ("table", "row")
    ]
    assert alone[0] == alone[1]


def test_a_copied_table_is_updated_once():
    """Its lookups add to a gradient, which the optimizer takes when all ranks have added theirs."""
    workload = hp.dlrm(
        dataclasses.replace(EIGHT, optimizer="adagrad", placement=(Placement("data"),) * 8)
    )
    ops = [call.op for call in workload.calls if isinstance(call, OpCall)]
    assert {op.optimizer for op in ops if hasattr(op, "optimizer")} == {"sgd"}


def test_more_ranks_in_a_node_than_it_has_are_said(model):
    def notes(**changes):
        return [
            note
            for note in hp.predict(model, hp.dlrm(dataclasses.replace(EIGHT, **changes))).notes
            if "accelerators in a node" in note
        ]

    said = model.collectives.crowded_remark
    assert said.startswith(f"{model.collectives.system.id} has 8 accelerators in a node")
    assert notes(ranks=64) == [said]
    assert notes(ranks=64, nodes=8) == notes() == []


def test_lookups_without_measured_caches_say_so(model):
    """A table of ten rows costs what one of ten million does: nobody measured the caches that would
    hold it.
    """

    def predicted(rows):
        return hp.predict(
            model, hp.dlrm(dataclasses.replace(ONE, tables=(Table("t", rows, 64, 20),)))
        )

    small, large = predicted(10), predicted(1e7)
    assert seconds_of(small, "embedding_bag") == pytest.approx(seconds_of(large, "embedding_bag"))
    assert any(
        "no cache of v100_sxm2 was measured: embedding rows come from its memory" in note
        for note in small.notes
    )
    quick = dataclasses.replace(
        model, knobs=dataclasses.replace(model.knobs, level_speedup=np.array([1.0, 4.0, 3.0, 1.0]))
    )
    assert not any("no cache" in note for note in hp.predict(quick, small.workload).notes)
    builder = GraphBuilder()
    builder.op(1)
    product = Workload("product", builder.build(), (OpCall(Gemm("fp32", 64.0, 64.0, 64.0)),))
    assert not any("no cache" in note for note in hp.predict(model, product).notes)


def test_small_buckets_leave_early(model):
    counts = [
        len(
            {
                c
                for c in hp.dlrm(dataclasses.replace(EIGHT, bucket_bytes=size)).graph.collective
                if c >= 0
            }
        )
        for size in (1e9, 1e5, 1.0)
    ]
    assert counts == [
        2 + 1,
        2 + 2,
        2 + 8,
    ]  # bags there and back; one bucket, two, one for each of eight tensors


def _host(**seconds: float) -> Host:
    def spread(name):
        value = seconds.get(name, 0.0)
        return Spread(mean_s=value, std_s=0.0, median_s=value, count=10)

    kinds = (
        "before_launch_s",
        "after_launch_s",
        "launch_call_s",
        "between_launches_s",
        "without_launch_s",
    )
    return Host(
        source="made up", profiler_s=0.0, between_ops_s=spread("between_ops_s"),
        **{name: Overhead(shared=spread(name), by_kind={}) for name in kinds},
    )  # fmt: skip


def test_a_slow_host_is_what_the_step_takes(model):
    """Ops of 100 ms of host each: launches add up, kernels hide behind them."""
    host = _host(
        before_launch_s=0.1,
        between_launches_s=0.2,
        after_launch_s=0.3,
        between_ops_s=0.4,
        launch_call_s=0.01,
        without_launch_s=0.7,
    )
    workload = hp.dlrm(ONE, host)
    graph = workload.graph
    ops = sum(1 for label in _ops_in_order(workload))
    kernels = int((graph.row > 0).sum())
    silent = 8  # gradients that are only kept launch nothing
    expected = (
        ops * (0.1 + 0.3 + 0.4) + kernels * 0.01 + (kernels - ops) * 0.2 + silent * (0.4 + 0.7)
    )
    assert hp.predict(model, workload).time_s == pytest.approx(expected, rel=1e-3)


def test_a_launch_is_paid_once():
    """NeuSight's V100 takes 28 us and more for any small loop, launch included: where a host issues
    it, the kernel alone counts.
    """
    v100 = load_model("v100_pcie_32g")
    calls = [
        loop("fp32", "add", 1, 64),
        loop("fp32", "add", 2**17, 1024),
        OpCall(Gemm("fp32", 512.0, 256.0, 256.0)),
    ]
    repeated = v100.op_seconds(v100.table(calls))
    alone = v100.op_seconds(
        v100.table([dataclasses.replace(call, issued_apart=True) for call in calls])
    )
    assert repeated[0] > 25e-6
    assert alone[0] == pytest.approx(KERNEL_S, rel=0.01)
    assert alone[1:] == pytest.approx(repeated[1:], rel=1e-3)  # long loops and products as they are
    free = hp.predict(v100, hp.dlrm(ONE, _host(launch_call_s=4e-6)))
    relu = free.ops().query("label == 'aten::relu'")["seconds"]
    assert len(relu) > 0
    assert (relu < 5e-6).all()
    assert all(call.issued_apart for call in free.workload.calls if isinstance(call, OpCall))


def test_without_a_host_no_launch_is_paid():
    """As a replayed CUDA graph: what a small loop took when it was measured, its launch included,
    is not what it takes here.
    """
    v100 = load_model("v100_pcie_32g")
    graph = hp.predict(v100, hp.dlrm(ONE))
    relu = graph.ops().query("label == 'aten::relu'")["seconds"]
    assert (relu < 5e-6).all()
    assert graph.time_s == pytest.approx(
        hp.predict(v100, hp.dlrm(ONE, _host())).time_s, rel=1e-6
    )  # a host that costs nothing
    assert any("CUDA graph" in note for note in graph.notes)


def test_a_groups_floor_is_at_most_a_kernels_where_issued_apart():
    """A group's own floor, without a prior: floor + bytes / bandwidth."""
    bare = PerfModel.datasheet(load_device("v100_sxm2"))
    slow = dataclasses.replace(
        bare, knobs=dataclasses.replace(bare.knobs, floor_s=np.full_like(bare.knobs.floor_s, 20e-6))
    )
    call = loop("fp32", "add", 1024, 1024)
    bytes_s = bare.op_seconds(bare.table([call]))[0]
    given = [
        call,
        dataclasses.replace(call, issued_apart=True),
        dataclasses.replace(call, issued_apart=True, inlined=True),
    ]
    assert slow.op_seconds(slow.table(given)) == pytest.approx(
        [20e-6 + bytes_s, KERNEL_S + bytes_s, bytes_s], rel=1e-5
    )
    assert bare.op_seconds(bare.table(given)) == pytest.approx(
        [bytes_s] * 3
    )  # a datasheet knows no launch


def _ops_in_order(workload):
    """One entry for each of the framework's ops that launches, told by a longer wait than between
    kernels.
    """
    graph = workload.graph
    launches = [workload.calls[row - 1].value for row in graph.launch_row[graph.row > 0]]
    return [value for value in launches if value > 0.2 + 0.01 + 1e-9]


def test_reading_the_loss_makes_the_host_wait(model):
    host = _host(launch_call_s=1e-6)
    waits = hp.dlrm(dataclasses.replace(ONE, reads_loss=True), host).graph
    assert waits.blocking.sum() == 1
    assert hp.dlrm(ONE, host).graph.blocking.sum() == 0


def test_batches_are_copied_before_they_are_used(model):
    config = dataclasses.replace(ONE, host_bytes_per_s=1e9, blocking_copies=False)
    plain, copied = (hp.predict(model, hp.dlrm(one)).time_s for one in (ONE, config))
    carried = (
        512 * 128 * 4 + 512 * 8 * 20 * 8 + 512 * 8 * 8 + 512 * 4
    ) / 1e9  # dense features, indices, where bags begin, labels
    assert copied == pytest.approx(plain + carried, rel=1e-5)


def test_old_pytorch_launches_more():
    old = hp.dlrm(dataclasses.replace(ONE, eager=Eager("fp32", bias_copy=True, accumulates=True)))
    assert len(old.graph) > len(hp.dlrm(ONE).graph) + 20


def test_grouped_backward_launches_the_same_kernels_in_fewer_ops():
    """PyTorch of 2022 sums gradients within an op of its backward pass: the same kernels, fewer
    times between ops.
    """
    host = _host(between_ops_s=1.0)
    apart, within = (
        hp.dlrm(dataclasses.replace(ONE, eager=Eager("fp32", grouped=grouped)), host)
        for grouped in (False, True)
    )
    kernels = [
        sorted(repr(one.calls[row - 1]) for row in one.graph.row if row > 0)
        for one in (apart, within)
    ]
    assert kernels[0] == kernels[1]
    spent_s = [
        sum(one.calls[row - 1].value for row in one.graph.launch_row if row > 0)
        for one in (apart, within)
    ]
    assert spent_s[0] - spent_s[1] == pytest.approx(
        len(ONE.bottom_mlp) + len(ONE.top_mlp)
    )  # sums of biases are no ops any more


def test_pairs_from_the_host_make_it_wait():
    """Two lists, copied in the forward and in the backward pass."""
    waits = hp.dlrm(
        dataclasses.replace(ONE, eager=Eager("fp32", host_pairs=True)), _host(launch_call_s=1e-6)
    ).graph
    assert waits.blocking.sum() == 4


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"tables": ()}, "at least one table"),
        ({"batch": 0}, "batch must be a whole number of 1 or more, got 0"),
        ({"ranks": 7}, "whole samples per rank"),
        ({"interaction": "sum"}, "unknown interaction 'sum'"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'"),
        ({"bottom_mlp": (256, 32)}, "table t0 has 64 columns and the bottom MLP ends in 32"),
        ({"top_mlp": ()}, "top_mlp needs at least one width"),
        ({"placement": (Placement("table", (0,)),)}, "a placement for each of the 8 tables, got 1"),
        ({"placement": (Placement("table", (8,)),) * 8}, r"table t0 is placed on ranks \[8\]"),
        (
            {"placement": (Placement("table"),) * 8},
            "table t0 is placed whole on 8 ranks, expected one",
        ),
        ({"placement": (Placement("data", (0, 1)),) * 8}, "table t0 is copied to 2 of 8 ranks"),
        (
            {"placement": (Placement("column", (0, 1, 2)),) * 8},
            "table t0 has 64 columns, which do not divide into 3 ranks",
        ),
        (
            {"placement": (Placement("table_row", (0, 1)),) * 8},
            r"table t0 is dealt out over ranks \[0, 1\], expected all 8 of one node",
        ),
        ({"placement": (Placement("else"),) * 8}, "table t0 is placed 'else'"),
        ({"load_s": (1.0, 2.0)}, "load_s of one number or of each of 8 ranks, got 2"),
        ({"load_s": -1.0}, "load_s must be seconds of 0 or more"),
        ({"host_bytes_per_s": 0.0}, "host_bytes_per_s must be above zero or None"),
        ({"bucket_bytes": 0.0}, "bucket_bytes must be above zero"),
        ({"dtype": "fp99"}, "fp99"),
        ({"dtype": "int64"}, "dtype must be a floating-point format"),
        ({"tables": TABLES[:1] * 2}, "table t0 is given twice"),
        ({"tables": ("t0",)}, r"tables must be a tuple of Table\(...\)"),
        ({"placement": ("table",) * 8}, r"placement must be a tuple of Placement\(...\)"),
        ({"placement": (Placement("row", ("a",)),) * 8}, r"table t0 is placed on ranks \['a'\]"),
        ({"top_mlp": (256, 7)}, r"top_mlp must end in 1, the logit of a sample, got \(256, 7\)"),
        ({"bottom_mlp": (256, 64.5)}, "bottom_mlp needs at least one width, each a whole number"),
        ({"bottom_mlp": 64}, "bottom_mlp needs at least one width"),
        ({"batch": True}, "batch must be a whole number of 1 or more, got True"),
        ({"index_bytes": 0.0}, "index_bytes must be above zero, got 0.0"),
        ({"index_bytes": float("nan")}, "index_bytes must be above zero, got nan"),
        ({"bucket_bytes": "x"}, "bucket_bytes must be above zero, got 'x'"),
        ({"load_s": "x"}, "load_s must be seconds of 0 or more, of all ranks or of each, got x"),
        (
            {"load_s": np.zeros((8, 2))},
            "load_s must be seconds of 0 or more, of all ranks or of each",
        ),
        (
            {"load_s": ((0, 1), (2,))},
            "load_s must be seconds of 0 or more, of all ranks or of each",
        ),
        (
            {"load_s": True},
            "load_s must be seconds of 0 or more, of all ranks or of each, got True",
        ),
        ({"host_bytes_per_s": True}, "host_bytes_per_s must be above zero or None, got True"),
        ({"bucket_bytes": True}, "bucket_bytes must be above zero, got True"),
        ({"index_bytes": float("inf")}, "index_bytes must be above zero, got inf"),
        ({"blocking_copies": "no"}, "blocking_copies must be True or False, got 'no'"),
        ({"lookup_first": "no"}, "lookup_first must be True or False, got 'no'"),
        ({"exchange_indices": 3}, "exchange_indices must be True or False, got 3"),
        ({"eager": "x"}, r"eager must be an Eager\(...\) or None, got 'x'"),
        ({"placement": (Placement("row", (True,)),) * 8}, r"table t0 is placed on ranks \[True\]"),
        (
            {"placement": (Placement("table", 3),) * 8},
            "table t0 is placed on ranks 3, expected a tuple of them",
        ),
        (
            {"placement": (Placement("else", "x"),) * 8},
            "table t0 is placed on ranks 'x', expected a tuple of them",
        ),
        (
            {
                "tables": tuple(dataclasses.replace(one, rows=2) for one in TABLES),
                "placement": (Placement("row"),) * 8,
            },
            "table t0 has 2 rows, expected 1 to 2 pieces of it by row, got 8",
        ),
    ],
)
def test_what_makes_no_model_is_said_in_one_sentence(changed, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        hp.dlrm(dataclasses.replace(EIGHT, **changed))
    assert "\n" not in str(refused.value)


def test_what_is_no_config_host_or_workload_is_said_in_one_sentence(model):
    with pytest.raises(InputError, match=r"^expected a DlrmConfig\(...\), got \{'batch': 3\}$"):
        hp.dlrm({"batch": 3})
    with pytest.raises(InputError, match=r"^expected host as a Host\(...\) or None, got 'a100'"):
        hp.dlrm(ONE, host="a100")
    with pytest.raises(InputError, match=r"^expected a workload, got DlrmConfig; hp"):
        hp.predict(model, ONE)


@pytest.mark.parametrize("load_s", [np.zeros(8), np.array(0.0), np.float32(0), [0] * 8])
def test_load_s_may_be_an_array(load_s):
    assert hp.dlrm(dataclasses.replace(EIGHT, load_s=load_s)).calls == hp.dlrm(EIGHT).calls


def test_bags_travel_in_the_models_format_or_in_their_tables(model):
    """As `hp.shard` says of the same tables."""
    halves = tuple(dataclasses.replace(table, dtype="fp16") for table in TABLES)
    for dtype, each in ((None, 2), ("fp32", 4)):
        workload = hp.dlrm(dataclasses.replace(EIGHT, tables=halves, dtype=dtype))
        sent = next(
            call.bytes
            for call in workload.calls
            if isinstance(call, CollectiveCall) and call.collective == "alltoall"
        )
        assert sent == pytest.approx(
            512 * 64 * 8 * each
        )  # a rank's table, its samples, to all eight
        found = hp.shard(halves, 8, model=model, batch=4096, method="naive", dtype=dtype)
        assert found.per_rank["sent_bytes"].tolist() == pytest.approx([sent * 7 / 8] * 8)


def test_tables_of_two_formats_are_looked_up_by_two_kernels(model):
    mixed = tuple(
        dataclasses.replace(table, dtype="fp16" if at < 2 else "fp32")
        for at, table in enumerate(TABLES)
    )
    prediction = hp.predict(model, hp.dlrm(dataclasses.replace(ONE, tables=mixed)))
    found = prediction.ops().query("op == 'embedding_bag'")
    assert found[["dtype", "tables"]].to_numpy().tolist() == [["fp16", 2.0], ["fp32", 6.0]]


def test_help_explains_every_field():
    for thing in (DlrmConfig, Table):
        lines = (thing.__doc__ or "").splitlines()
        starts = [line.strip().split("  ")[0].split(":")[0] for line in lines]
        named = {name.strip() for start in starts for name in start.split(",")}
        assert {field.name for field in dataclasses.fields(thing)} <= named
    assert (hp.Eager, hp.Host) == (Eager, Host)
