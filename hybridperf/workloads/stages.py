"""Work that goes through stages in chunks: loaders, slicing, transfers, computation, simulation as
streams of one graph.

    serial      n chunks, one stage after the other     sum over i of (n f_i + S_i)
    pipelined   a stream a stage, t_i = f_i + S_i / n   sum t_i + (n - 1) max t_i

S_i seconds of all items in stage i, f_i of every chunk again. Equal jobs through machines in a row
take exactly that, whatever waits between them. With overhead f in the longest stage M alone it is
S / n + (1 - 1 / n) M + n f, least at n = sqrt((S - M) / f) (Li et al., streaming parallelism,
2020). Stages that share a stream (one CPU samples and slices) take turns, and only the graph tells
how long they take.

A loader that prefetches works on the next batch while a step computes: their longest decides
(`with_loader`); without prefetching the step waits for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np

from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model.calls import Call, GivenSeconds, StepPlace

_NODES = 200_000


@dataclasses.dataclass(frozen=True)
class Stage:
    """What one stage does with a chunk.

    Args:
        name: of the stage.
        fixed_s: seconds of every chunk, however small.
        item_s: seconds of each item.
        calls: of each chunk, too, in order: ops and collectives that a machine prices; they belong
            to a chunk as it is, so the number of chunks is their maker's choice.
        stream: what it runs on; stages with the same stream take turns. Its own if not given.
        workers: so many do it side by side, each a chunk.
    """

    name: str
    fixed_s: float = 0.0
    item_s: float = 0.0
    calls: tuple[Call, ...] = ()
    stream: str = ""
    workers: int = 1

    def chunk_s(self, items: float) -> float:
        """Given seconds of a chunk of so many items."""
        return self.fixed_s + self.item_s * items


def stages(
    some: Sequence[Stage], items: float, chunks: int = 1, buffers: int | None = None,
    pipelined: bool = True,
) -> Workload:  # fmt: skip
    """Items that go through stages in equal chunks, as a workload.

    Args:
        some: the stages, in order.
        items: of all chunks.
        chunks: how many.
        buffers: between two stages, each held from the begin of one to the end of the other (2:
            double buffering); None: any number.
        pipelined: False: one stage at a time, as without threads and streams.

    Raises:
        InputError: no stage, sizes that make no work, or too many chunks.
    """
    _check(some, items, chunks)
    if buffers is not None and buffers < 1:
        raise InputError(f"expected 1 buffer between stages or more, got {buffers}")
    builder, rows = GraphBuilder(), dict[Call, int]()
    done: list[list[int]] = []  # of each chunk, its last node of each stage
    for chunk in range(chunks):
        before: list[int] = done[-1][-1:] if done and not pipelined else []
        ends: list[int] = []
        for at, stage in enumerate(some):
            after = list(before)
            if buffers is not None and at + 1 < len(some) and chunk >= buffers:
                after.append(done[chunk - buffers][at + 1])
            worker = f" {chunk % stage.workers}" if stage.workers > 1 else ""
            stream = (stage.stream or stage.name) + worker
            given = GivenSeconds(round(stage.chunk_s(items / chunks), 15), stage.name)
            for call in (given, *stage.calls):
                row = rows.setdefault(call, len(rows) + 1)
                after = [builder.op(row, label=stage.name, stream=stream, after=after)]
            before = after
            ends += after
        done.append(ends)
    name = f"{' > '.join(one.name for one in some)}, {chunks} chunks"
    return Workload(name, builder.build(), tuple(rows))


def with_loader(
    workload: Workload, loader: Sequence[Stage], items: float = 1.0, prefetch: bool = True
) -> Workload:
    """A step whose batches a loader brings.

    Args:
        workload: the step.
        loader: stages that bring a batch to each rank; with `workers` several batches at a time.
        items: of a rank's batch.
        prefetch: True: the next batch is brought while the step runs, each stage a stream of its
            own; False: the step begins when its batch is there.

    Raises:
        InputError: stages that make no work.
    """
    _check(loader, items, 1)
    graph, calls = workload.graph, list(workload.calls)
    if any(stage.calls for stage in loader):
        raise InputError("expected a loader of given seconds, got calls; give fixed_s and item_s")
    ranks = np.unique(graph.rank)
    builder = GraphBuilder()
    for rank in ranks.tolist():
        for at, stage in enumerate(loader):
            # a host that waits for its batch launches nothing before it is there
            builder.op(
                len(calls) + 1 + at, label=stage.name, rank=rank,
                stream=f"{stage.stream or stage.name}" if prefetch else "loader",
                blocking=not prefetch,
            )  # fmt: skip
    calls += [
        GivenSeconds(stage.chunk_s(items) / (stage.workers if prefetch else 1), stage.name)
        for stage in loader
    ]
    in_step = workload.in_step
    if in_step is not None:
        places = (*in_step.places, *(StepPlace() for _ in loader))
        in_step = dataclasses.replace(in_step, places=places)
    return dataclasses.replace(
        workload, name=f"{workload.name}, loaded", calls=tuple(calls), in_step=in_step,
        graph=_in_front(builder.build(), graph),
    )  # fmt: skip


def _in_front(first: Graph, then: Graph) -> Graph:
    """The nodes of both, one graph issued before the other; streams of a name are the same."""
    names = tuple(dict.fromkeys([*then.stream_names, *first.stream_names]))
    kept, count = then.collective == Graph.NO_COLLECTIVE, len(first)
    own = np.array([names.index(name) for name in first.stream_names], np.int32)

    def both(name: str) -> np.ndarray:
        return np.concatenate([getattr(first, name), getattr(then, name)])

    return Graph(
        row=both("row"), launch_row=both("launch_row"), rank=both("rank"),
        stream=np.concatenate([own[first.stream], then.stream]), blocking=both("blocking"),
        collective=np.concatenate([
            first.collective, np.where(kept, Graph.NO_COLLECTIVE, then.collective + count),
        ]).astype(np.int32),
        after_start=np.concatenate([first.after_start, first.after_start[-1]
                                    + then.after_start[1:]]).astype(np.int32),
        after=np.concatenate([first.after, then.after + count]).astype(np.int32),
        labels=(*first.labels, *then.labels), stream_names=names,
    )  # fmt: skip


def _check(some: Sequence[Stage], items: float, chunks: int) -> None:
    if not some:
        raise InputError("expected one stage or more, got none")
    for stage in some:
        sizes = (stage.fixed_s, stage.item_s)
        known = all(isinstance(one, Real) and 0 <= one < math.inf for one in sizes)
        if not (known and isinstance(stage.workers, Integral) and stage.workers >= 1):
            raise InputError(
                f"expected seconds of zero or more and one worker or more of stage {stage.name!r},"
                f" got fixed_s {stage.fixed_s}, item_s {stage.item_s}, workers {stage.workers}"
            )
    if not (math.isfinite(items) and items > 0) or chunks < 1:
        raise InputError(f"expected items above zero in one chunk or more, got {items:g}, {chunks}")
    if chunks * len(some) > _NODES:
        raise InputError(
            f"expected at most {_NODES:,} chunks of all stages, got {chunks * len(some):,}; give"
            " fewer chunks: time per chunk is steady long before"
        )
