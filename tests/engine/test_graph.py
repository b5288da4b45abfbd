"""What a graph holds, and what its builder refuses."""

import numpy as np
import pytest

from hybridperf.engine.graph import Graph, GraphBuilder


def test_nodes_stand_in_issue_order_with_what_was_given_of_them():
    builder = GraphBuilder()
    copy = builder.op(3, label="copy", stream="h2d", blocking=True)
    forward = builder.op(1, label="forward", rank=1, launch_row=7, after=[copy])
    reduced = builder.collective(
        2, label="all-reduce", ranks=[1, 0], after=[forward, copy], launch_row=7
    )
    graph = builder.build()

    assert (copy, forward, reduced) == (0, 1, {1: 2, 0: 3})
    assert len(graph) == 4
    assert graph.rows == 7  # launch rows count
    np.testing.assert_array_equal(graph.row, [3, 1, 2, 2])
    np.testing.assert_array_equal(graph.launch_row, [0, 7, 7, 7])
    np.testing.assert_array_equal(graph.rank, [0, 1, 1, 0])
    np.testing.assert_array_equal(graph.blocking, [True, False, False, False])
    np.testing.assert_array_equal(
        graph.collective, [Graph.NO_COLLECTIVE, Graph.NO_COLLECTIVE, 2, 2]
    )
    assert [graph.stream_names[i] for i in graph.stream] == ["h2d", "compute", "comm", "comm"]
    assert graph.labels == ("copy", "forward", "all-reduce", "all-reduce")
    assert [graph.waits_for(node).tolist() for node in range(4)] == [[], [0], [1, 0], []]


def test_a_built_graph_does_not_change_with_its_builder():
    builder = GraphBuilder()
    builder.op(1)
    graph = builder.build()
    builder.op(2, stream="other")
    assert len(graph) == 1
    assert graph.stream_names == ("compute",)


@pytest.mark.parametrize(
    ("issue", "message"),
    [
        (lambda b: b.op(-1, label="gemm"), r"Node 'gemm' has row -1, expected 0 or more"),
        (
            lambda b: b.op(1, label="gemm", launch_row=-2),
            r"Node 'gemm' has launch_row -2, expected 0 or more",
        ),
        (lambda b: b.op(1, label="gemm", rank=-1), r"Node 'gemm' has rank -1, expected 0 or more"),
        (
            lambda b: b.op(1, label="gemm", after=[1]),
            r"Node 'gemm' waits for node 1, expected one of the 1 issued so far",
        ),
        (
            lambda b: b.op(1, label="gemm", after=[-1]),
            r"Node 'gemm' waits for node -1, expected one of",
        ),
        (
            lambda b: b.collective(1, label="sum", ranks=[]),
            r"Collective 'sum' has no ranks; name at least one",
        ),
        (
            lambda b: b.collective(1, label="sum", ranks=[0, 2, 2]),
            r"Collective 'sum' names rank 2 twice; name every",
        ),
        (
            lambda b: b.collective(1, label="sum", ranks=[0, -3]),
            r"Node 'sum' has rank -3, expected 0 or more",
        ),
        (
            lambda b: b.collective(1, label="sum", ranks=[0], after=[9]),
            r"Node 'sum' waits for node 9, expected one of",
        ),
        (
            lambda b: b.collective(-1, label="sum", ranks=[0]),
            r"Node 'sum' has row -1, expected 0 or more",
        ),
    ],
)
def test_refused_nodes_are_named_and_leave_the_builder_as_it_was(issue, message):
    builder = GraphBuilder()
    builder.op(1, label="first")
    with pytest.raises(ValueError, match=message):
        issue(builder)
    assert builder.build().labels == ("first",)


def test_an_empty_graph_is_refused():
    with pytest.raises(
        ValueError, match=r"no nodes, expected at least one; call op\(\) or collective\(\)"
    ):
        GraphBuilder().build()
