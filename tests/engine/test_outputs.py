"""Several outputs of a batch at once: each configuration as if it were alone."""

import jax
import numpy as np
import pytest
from support.occupancy import busy_and_exposed

from hybridperf.engine.evaluate import critical_path, timeline
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.lower import lower
from hybridperf.engine.outputs import OUTPUTS, batch_outputs, outputs_of
from hybridperf.io import InputError

ROWS = 9
GROUPS = ("gemm", "norm", "copy") * 3  # of each row


def worked_out(
    graph: Graph, durations: np.ndarray, asked=OUTPUTS, groups=GROUPS
) -> dict[str, np.ndarray]:
    """Columns [B] by name, in float64."""
    lowered = lower(graph)
    plan = outputs_of(lowered, groups, asked)
    with jax.enable_x64(True):
        columns = np.asarray(
            jax.jit(batch_outputs)(plan, lowered.program, np.asarray(durations, np.float64))
        )
    assert columns.shape == (len(plan.columns), durations.shape[1])
    return dict(zip(plan.columns, columns, strict=True))


def a_graph(seed: int, ranks: int) -> Graph:
    """Compute and up to three other streams, launches, waits, blocking copies and collectives."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    builder.op(1)
    for issued in range(1, 40):
        after = rng.integers(0, issued, rng.integers(0, 3)).tolist()
        row, launch_row = (
            int(rng.integers(0, ROWS + 1)),
            int(rng.integers(0, ROWS + 1) * (rng.random() < 0.3)),
        )
        if ranks > 1 and rng.random() < 0.2:
            some = rng.choice(ranks, rng.integers(2, ranks + 1), replace=False).tolist()
            builder.collective(
                row,
                label="sum",
                ranks=some,
                stream=["comm", "pipe"][rng.integers(2)],
                after=after,
                launch_row=launch_row,
            )
        else:
            stream = ["compute", "compute", "comm", "d2h"][rng.integers(4)]
            rank, blocking = int(rng.integers(ranks)), bool(rng.random() < 0.1)
            builder.op(
                row, rank=rank, stream=stream, after=after, launch_row=launch_row, blocking=blocking
            )
    return builder.build()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_every_configuration_as_by_itself(seed: int, ranks: int) -> None:
    graph = a_graph(seed, ranks)
    lowered = lower(graph)
    durations = np.random.default_rng(seed).exponential(1.0, (ROWS, 7))
    durations[:, 4:] = np.floor(durations[:, 4:] * 2)  # ties, and ops that take no time
    columns = worked_out(graph, durations)
    several = len(np.unique(graph.rank)) > 1
    for b in range(durations.shape[1]):
        table = durations[:, b]
        assert columns["time_s"][b] == pytest.approx(timeline(lowered, table).end_s.max())
        alone = busy_and_exposed(lowered, table)
        for rank, stream, busy_s in zip(alone.rank, alone.stream, alone.busy_s, strict=True):
            name = (f"rank{rank}_" if several else "") + graph.stream_names[stream]
            assert columns[f"busy_{name}_s"][b] == pytest.approx(busy_s, abs=1e-12)
        for rank, exposed_s in zip(alone.ranks, alone.exposed_s, strict=True):
            assert columns[f"exposed_rank{rank}_s" if several else "exposed_s"][b] == pytest.approx(
                exposed_s, abs=1e-12
            )
        path = critical_path(lowered, table)
        rows = np.where(path.is_launch, graph.launch_row[path.node], graph.row[path.node])
        seconds = np.append(0.0, table)[rows]
        of_row = np.array(["", *GROUPS])[rows]
        parts = {
            name: values[b] for name, values in columns.items() if name.startswith("critical_")
        }
        assert sum(parts.values()) == pytest.approx(columns["time_s"][b])
        if len({round(value, 9) for value in table}) == ROWS:  # no ties: there is one longest path
            assert parts == {
                name: pytest.approx(seconds[of_row == name[9:-2]].sum(), abs=1e-9) for name in parts
            }


def overlapping() -> Graph:
    """Two products; between them an all-reduce of both ranks, under which the second product of
    rank 0 runs.
    """
    builder = GraphBuilder()
    first = [builder.op(1, rank=0), builder.op(2, rank=1)]
    builder.collective(3, label="sum", ranks=[0, 1], after=first)
    builder.op(1, rank=0)
    return builder.build()


def test_by_hand() -> None:
    columns = worked_out(
        overlapping(),
        np.array([[3.0, 1.0], [5.0, 1.0], [4.0, 2.0]]),
        groups=("gemm", "gemm", "reduce"),
    )
    assert {name: values.tolist() for name, values in columns.items()} == {
        "time_s": [9, 3], "busy_rank0_comm_s": [4, 2], "busy_rank0_compute_s": [6, 2],
        "busy_rank1_comm_s": [4, 2], "busy_rank1_compute_s": [5, 1], "exposed_rank0_s": [3, 1],
        "exposed_rank1_s": [4, 2], "critical_gemm_s": [5, 1], "critical_reduce_s": [4, 2],
    }  # fmt: skip


def test_blocks_do_not_show() -> None:
    """More configurations than one block holds, in float32 as batches are."""
    graph = a_graph(3, 2)
    lowered = lower(graph)
    durations = np.random.default_rng(0).exponential(1.0, (ROWS, 3000)).astype(np.float32)
    plan = outputs_of(lowered, GROUPS, OUTPUTS)
    columns = dict(
        zip(
            plan.columns,
            np.asarray(jax.jit(batch_outputs)(plan, lowered.program, durations)),
            strict=True,
        )
    )
    for b in (0, 1279, 1280, 1300, 2999):
        alone = busy_and_exposed(lowered, durations[:, b])
        np.testing.assert_allclose(
            [columns[f"exposed_rank{r}_s"][b] for r in alone.ranks], alone.exposed_s, atol=1e-5
        )
        np.testing.assert_allclose(
            columns["time_s"][b], timeline(lowered, durations[:, b]).end_s.max(), rtol=1e-6
        )
    parts = sum(values for name, values in columns.items() if name.startswith("critical_"))
    np.testing.assert_allclose(parts, columns["time_s"], rtol=1e-5)


def test_hidden_communication_is_exactly_nothing() -> None:
    builder = GraphBuilder()
    builder.op(1)
    builder.op(2, stream="comm")
    builder.op(3, stream="comm")
    durations = np.array([[1.0], [0.1], [0.2]])
    assert worked_out(builder.build(), durations, ["exposed_s"])["exposed_s"].tolist() == [0.0]


def test_alike_ranks_are_merged_once() -> None:
    builder = GraphBuilder()
    for rank in range(8):
        builder.op(1, rank=rank)
        builder.op(2, rank=rank, stream="comm")
    plan = outputs_of(lower(builder.build()), GROUPS, ["exposed_s"])
    assert len(plan.ranks) == 1
    assert plan.columns == tuple(f"exposed_rank{rank}_s" for rank in range(8))


def test_what_is_refused() -> None:
    lowered = lower(overlapping())
    with pytest.raises(InputError, match="did you mean 'busy_s'"):
        outputs_of(lowered, GROUPS, ["bussy_s"])
    with pytest.raises(InputError, match="at least one output"):
        outputs_of(lowered, GROUPS, [])
    builder = GraphBuilder()
    builder.op(1, stream="gpu")
    with pytest.raises(InputError, match="stream named compute, the step has gpu"):
        outputs_of(lower(builder.build()), GROUPS, ["exposed_s"])
    assert outputs_of(lower(builder.build()), GROUPS, ["busy_s"]).columns == ("busy_gpu_s",)
