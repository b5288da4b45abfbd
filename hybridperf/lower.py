"""From a graph to the few integer arrays that the evaluator runs: done once per graph, in NumPy.

The evaluator walks a list of *steps* in order. A step reads the ends of at most two earlier steps and writes its own:

    end[i] = max(end[pred_step[i, 0]], end[pred_step[i, 1]]) + durations[row[i]]

Ends live in a handful of reused *slots*, so the working set stays in cache however long the graph. The passes:

1. Steps. An op is a step; so is its launch, unless that is free: then the op reads what the host thread did before. A
   collective is one step, since its ranks start and end together.
2. Reduce. A read of a step that another read already implies is dropped (`_drop_implied`).
3. Split. Zero-duration joins gather the reads beyond two. The last of them gathers all loose ends, so that the end of
   the last step is the makespan.
4. Slots. A step's slot is free again after its last reader, which may write where it reads.
5. Pad. Arrays are lengthened to buckets, so that graphs of similar length share one compiled evaluator.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from hybridperf.graph import Graph

ZERO_SLOT = 0  # never written, always 0 s: what a missing predecessor reads, harmless as no step ends before 0
TRASH_SLOT = 1  # written by padding, read by nobody
NO_STEP = -1
ZERO_ROW = 0  # the row of the duration table that always holds 0 s


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Program:
    """The steps of one graph as int32 arrays, which are inputs of the compiled evaluator, not part of it.

    Axes: S steps, a bucket. Padding comes first, so that the last step's end is always the makespan.
    """

    pred_slot: np.ndarray  # slots holding the ends of its predecessors, ZERO_SLOT where it has fewer than two; [S, 2]
    pred_step: np.ndarray  # the same as steps, for walking back, NO_STEP where it has fewer than two; [S, 2]
    out_slot: np.ndarray  # where it writes its end, TRASH_SLOT for padding; [S]
    row: np.ndarray  # row of the duration table, ZERO_ROW for joins and padding; [S]
    slots: int = field(metadata={"static": True})  # a shape, so static: a bucket


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program and the way back from its steps to the graph's nodes. Axes: N nodes."""

    program: Program
    graph: Graph
    step_of_node: np.ndarray  # the nodes of a collective share one; int32 [N]
    host_step_of_node: np.ndarray  # its launch, or if that is free what the host did before, maybe NO_STEP; int32 [N]


def lower(graph: Graph) -> Lowered:
    """The program that evaluates `graph`."""
    steps = _steps(graph)
    reads = _drop_implied(steps.reads, steps.lane)
    row, pred_step, step_of = _at_most_two_reads(steps.row, reads)
    pred_slot, out_slot, slots = _slots(pred_step)

    padding = _step_bucket(len(row)) - len(row)
    pred_step = np.where(pred_step == NO_STEP, NO_STEP, pred_step + padding)
    in_front = partial(np.pad, mode="constant")
    program = Program(
        pred_slot=in_front(pred_slot, ((padding, 0), (0, 0)), constant_values=ZERO_SLOT).astype(np.int32),
        pred_step=in_front(pred_step, ((padding, 0), (0, 0)), constant_values=NO_STEP).astype(np.int32),
        out_slot=in_front(out_slot, (padding, 0), constant_values=TRASH_SLOT).astype(np.int32),
        row=in_front(row, (padding, 0), constant_values=ZERO_ROW).astype(np.int32),
        slots=_slot_bucket(slots),
    )
    step_of = np.append(step_of + padding, NO_STEP).astype(np.int32)  # the entry at NO_STEP = -1 maps it to itself
    return Lowered(program, graph, step_of[steps.of_node], step_of[steps.host_of_node])


class _Steps(NamedTuple):
    """Launches and ops before reduction, in issue order."""

    row: list[int]
    reads: list[set[int]]  # earlier steps whose end it needs
    lane: list[int]  # where it is in order: a host's launches or a stream; for a collective any one of its streams
    of_node: list[int]
    host_of_node: list[int]


def _steps(graph: Graph) -> _Steps:
    steps = _Steps([], [], [], [], [])
    lane_numbers: dict[tuple[int, int], int] = {}
    stream_at: dict[int, int] = {}  # lane -> its latest step
    host_at: dict[int, int] = {}  # rank -> the step at whose end its host thread is free; absent before the first

    def lane(rank: int, stream: int) -> int:
        return lane_numbers.setdefault((rank, stream), len(lane_numbers))

    def add(row: int, reads: set[int], lane: int) -> int:
        steps.row.append(row)
        steps.reads.append(reads - {NO_STEP})
        steps.lane.append(lane)
        return len(steps.row) - 1

    row, launch_row = graph.row.tolist(), graph.launch_row.tolist()
    rank, stream, blocking = graph.rank.tolist(), graph.stream.tolist(), graph.blocking.tolist()
    launches_of_host = -1  # in place of a stream number
    for nodes in _together(graph.collective.tolist()):
        reads = {steps.of_node[node] for first in nodes[:1] for node in graph.waits_for(first).tolist()}
        for node in nodes:
            host = host_at.get(rank[node], NO_STEP)
            if launch_row[node]:
                host = add(launch_row[node], {host}, lane(rank[node], launches_of_host))
                host_at[rank[node]] = host
            steps.host_of_node.append(host)
            reads |= {host, stream_at.get(lane(rank[node], stream[node]), NO_STEP)}
        lanes = [lane(rank[node], stream[node]) for node in nodes]
        step = add(row[nodes[0]], reads, lanes[0])
        steps.of_node.extend([step] * len(nodes))
        stream_at.update(dict.fromkeys(lanes, step))
        host_at.update({rank[node]: step for node in nodes if blocking[node]})
    return steps


def _together(collective: list[int]) -> list[range]:
    """Runs of nodes that share one step: a collective's nodes, issued one after the other, or a single op."""
    starts = [i for i, first in enumerate(collective) if first in (Graph.NO_COLLECTIVE, i)]
    return list(map(range, starts, [*starts[1:], len(collective)]))


def _drop_implied(reads: list[set[int]], lane: list[int]) -> list[list[int]]:
    """The reads of each step, ascending, without those that another read implies.

    `clock` has per lane the latest step known to end before this step starts; as lanes are in order, all earlier
    ones on it do, too. A read can be implied only by a later step, so visiting the latest first misses none.
    """
    readers = Counter(before for wanted in reads for before in wanted)
    lanes = 1 + max(lane)
    clocks: dict[int, np.ndarray] = {}
    kept: list[list[int]] = []
    for step, wanted in enumerate(reads):
        clock = np.full(lanes, NO_STEP, np.int32)
        keep = []
        for before in sorted(wanted, reverse=True):
            if clock[lane[before]] < before:
                keep.append(before)
                np.maximum(clock, clocks[before], out=clock)
            readers[before] -= 1
            if not readers[before]:
                del clocks[before]  # else memory grows with steps times lanes
        clock[lane[step]] = step
        if readers[step]:
            clocks[step] = clock
        kept.append(keep[::-1])
    return kept


def _at_most_two_reads(row: list[int], reads: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [S] and predecessors [S, 2] with joins put in, and where each step went [steps before]."""
    read = {before for wanted in reads for before in wanted}
    loose_ends = [step for step in range(len(row)) if step not in read]
    if len(loose_ends) > 1:
        row, reads = [*row, ZERO_ROW], [*reads, loose_ends]

    new_row: list[int] = []
    new_reads: list[list[int]] = []
    moved: list[int] = []

    def add(row: int, reads: list[int]) -> int:
        new_row.append(row)
        new_reads.append([*reads, NO_STEP, NO_STEP][:2])
        return len(new_row) - 1

    for step, wanted in enumerate(reads):
        operands = deque(moved[before] for before in wanted)
        while len(operands) > 2:
            # a chain, not a tree: each join frees two slots and takes one, no other waits meanwhile
            operands.appendleft(add(ZERO_ROW, [operands.popleft(), operands.popleft()]))
        moved.append(add(row[step], list(operands)))
    return np.array(new_row), np.array(new_reads), np.array(moved)


def _slots(pred_step: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Slots read [S, 2] and written [S], and how many there are. Every step but the last is read by someone."""
    pairs = pred_step.tolist()
    last_reader = {before: step for step, pair in enumerate(pairs) for before in pair}
    out_slot: list[int] = []
    free: list[int] = []
    slots = TRASH_SLOT + 1
    for step, pair in enumerate(pairs):
        free += [out_slot[before] for before in pair if before != NO_STEP and last_reader[before] == step]
        if not free:
            free, slots = [slots], slots + 1
        out_slot.append(free.pop())
    slot_of = np.array([*out_slot, ZERO_SLOT])  # the entry at NO_STEP = -1
    return slot_of[pred_step], np.array(out_slot), slots


def _step_bucket(steps: int) -> int:
    """64 * 1.25^k, rounded up: at most a quarter of the steps are padding, 11 % on average, for 10 buckets a decade."""
    bucket = 64.0
    while math.ceil(bucket) < steps:
        bucket *= 1.25
    return math.ceil(bucket)


def _slot_bucket(slots: int) -> int:
    """Powers of two from 8: slots cost memory, not time, while they fit in cache."""
    return max(8, 2 ** math.ceil(math.log2(slots)))
