"""From a graph to the few integer arrays that the evaluator runs: done once per graph, in NumPy.

The evaluator walks a list of *steps* in order. A step launches on one host and reads the ends of at
most two earlier steps:

    clock[host[i]] = clock[host[i]] + durations[launch_row[i]]
    end[i]         = max(clock[host[i]], end[pred_step[i, 0]], end[pred_step[i, 1]]) +
                   durations[row[i]]

Ends live in a handful of reused *slots*, so the working set stays in cache however long the graph.
The passes:

1. Fold. Ranks that do the same at the same time, whatever the durations, become one (`_twins`).
2. Steps. An op is a step with its launch. A collective, whose ranks start and end together, is a
   chain of one step per rank that launches it, the last of which takes its time. A host that has
   waited for a blocking op has no clock from then on: its launches are steps of their own, unless
   free.
3. Reduce. A read of a step that another read already implies is dropped (`_drop_implied`).
4. Split. Zero-duration joins gather the reads beyond two. The last of them gathers all loose ends,
   so that the end of the last step is the makespan.
5. Slots. A step's slot is free again after its last reader, which may write where it reads.
6. Pad. Arrays are lengthened to buckets, so that graphs of similar length share one compiled
   evaluator.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from hybridperf.engine.graph import Graph
from hybridperf.io import InputError

MOST_NODES = 20_000_000  # of a graph: twenty minutes and 25 GB; a million takes 50 s and 1.4 GB
ZERO_SLOT = 0  # never written, always 0 s: what a missing predecessor reads
TRASH_SLOT = 1  # written by padding, read by nobody
NO_HOST = 0  # its clock stays at 0 s: for joins, padding and the ops of a host that has waited
NO_STEP = -1
ZERO_ROW = 0  # the row of the duration table that always holds 0 s
COUNT_BITS = 5  # of a row in a count: those of lead, launch and row stand in one number of 16 bits
MOST_USES = 2**COUNT_BITS - 1
SUM, LESSER = range(2)  # how rows in front of the table come from two others, see `contraction`


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class StepProgram:
    """The steps of one graph as int32 arrays, inputs of the compiled evaluator.

    Axes: S steps, a bucket. Padding comes first, so that the last step's end is the makespan.
    """

    # slots holding the ends of its predecessors, ZERO_SLOT where it has fewer than two; [S, 2]
    pred_slot: np.ndarray
    # the same as steps, for walking back, NO_STEP where it has fewer than two; [S, 2]
    pred_step: np.ndarray
    out_slot: np.ndarray  # where it writes its end, TRASH_SLOT for padding; [S]
    row: np.ndarray  # row of the duration table, ZERO_ROW for joins and padding; [S]
    host: np.ndarray  # whose clock it launches by, NO_HOST if none; [S]
    launch_row: np.ndarray  # row of the launch on that host, ZERO_ROW if free; [S]
    # the step before it on that host, for walking back, NO_STEP for the first; [S]
    host_step: np.ndarray
    first: np.ndarray  # the first step that is no padding: the evaluator begins there; []
    # row of how much before the end of its launch it may begin, ZERO_ROW if it is no run; [S]
    lead_row: np.ndarray
    # M rows in front of ZERO_ROW, for which all others move up: the two rows that each is made of,
    # and whether it is their SUM or the LESSER of them; padding first; [M, 3]
    made: np.ndarray
    first_made: np.ndarray  # the first that is no padding; []
    # where the way back counts each step, and the lead, launch and row that each of K counts is of:
    # steps of the same three share one, MOST_USES of them; padding first; [S], [K, 3]
    count: np.ndarray
    counted: np.ndarray
    first_counted: np.ndarray  # the first that is no padding; []
    slots: int = field(metadata={"static": True})  # a shape, so static: a bucket
    hosts: int = field(metadata={"static": True})  # the same; NO_HOST counts


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program and the way back from its steps to the graph's nodes. Axes: N nodes."""

    program: StepProgram
    graph: Graph
    # the nodes of a collective share one, and those of folded ranks; int32 [N]
    step_of_node: np.ndarray
    # with its launch; if that is free maybe what the host did before or NO_STEP; int32 [N]
    host_step_of_node: np.ndarray
    # the host launches it by its clock, in `host_step_of_node`, and not as a step; bool [N]
    on_clock: np.ndarray


def lower(graph: Graph, *, fold_ranks: bool = True) -> Lowered:
    """The program that evaluates `graph`. `fold_ranks` only reduces the number of steps."""
    if len(graph.rank) > MOST_NODES:
        raise InputError(
            f"expected a graph of at most {MOST_NODES:,} nodes, got {len(graph.rank):,}, each of"
            " which takes 1.1 kB and 50 µs to predict; predict parts of it, or fewer micro-batches"
        )
    _check_order(graph)
    steps = _steps(graph, _twins(graph) if fold_ranks else graph.rank.tolist())
    split = _split(steps, _drop_implied(steps.reads, steps.lane))
    program = program_of(split.row, split.launch_row, split.pred_step, split.host)
    padding = int(program.first)
    step_of = [*split.step_of, NO_STEP]  # the entry at NO_STEP = -1 maps it to itself
    launches = zip(steps.host_of_node, steps.launch_of_node, strict=True)
    launched_in = [
        step_of[step] if launch == NOT_ON_CLOCK else split.launch_of[step][launch]
        for step, launch in launches
    ]
    return Lowered(
        program=program,
        graph=graph,
        step_of_node=_moved([step_of[step] for step in steps.of_node], padding),
        host_step_of_node=_moved(launched_in, padding),
        on_clock=np.not_equal(steps.launch_of_node, NOT_ON_CLOCK),
    )


def program_of(
    row: np.ndarray, launch_row: np.ndarray, pred_step: np.ndarray, host: np.ndarray,
    lead_row: np.ndarray | None = None, made: np.ndarray | None = None,
) -> StepProgram:  # fmt: skip
    """Steps in order with slots for their ends, padded; see `StepProgram` for the arguments."""
    pred_slot, out_slot, slots = _slots(pred_step)
    padding = step_bucket(len(row)) - len(row)

    def padded(array: np.ndarray, value: int) -> np.ndarray:
        widths = [(padding, 0)] + [(0, 0)] * (array.ndim - 1)
        return np.pad(array, widths, constant_values=value).astype(np.int32)

    made = np.zeros((0, 3)) if made is None else made
    lead_row = np.zeros_like(row) if lead_row is None else lead_row
    count, counted = _counts(np.stack([lead_row, launch_row, row], axis=1))
    more_counts = row_bucket(len(counted)) - len(counted)
    return StepProgram(
        pred_slot=padded(pred_slot, ZERO_SLOT),
        pred_step=padded(_moved(pred_step, padding), NO_STEP),
        out_slot=padded(out_slot, TRASH_SLOT),
        row=padded(row, ZERO_ROW),
        host=padded(host, NO_HOST),
        launch_row=padded(launch_row, ZERO_ROW),
        host_step=padded(_moved(_before_on_host(host), padding), NO_STEP),
        first=np.array(padding, np.int32),
        lead_row=padded(lead_row, ZERO_ROW),
        made=made.astype(np.int32),
        first_made=np.array((~made.any(axis=1)).sum(), np.int32),
        count=padded(count + more_counts, 0),
        counted=np.pad(counted, ((more_counts, 0), (0, 0))).astype(np.int32),
        first_counted=np.array(more_counts, np.int32),
        slots=power_bucket(slots),
        hosts=power_bucket(1 + int(host.max())),
    )


def _moved(step: ArrayLike, by: int) -> np.ndarray:
    return np.where(np.equal(step, NO_STEP), NO_STEP, np.add(step, by)).astype(np.int32)


def _check_order(graph: Graph) -> None:
    """Refuse a graph whose waits point forward: in issue order every cycle has one that does."""
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.after_start))
    wrong = np.flatnonzero((graph.after >= waiting) | (graph.after < 0))
    if len(wrong):
        node, wanted = int(waiting[wrong[0]]), int(graph.after[wrong[0]])
        raise ValueError(
            f"Node {node} {graph.labels[node]!r} waits for node {wanted}, expected an earlier one;"
            " nodes stand in issue order and may not wait in a circle, which a graph made with"
            " GraphBuilder never does."
        )


def _twins(graph: Graph) -> list[int]:
    """Rank of each node [N]; for a rank that always does what an earlier one does, that rank.

    Launches and ends are numbered by what they are computed from: the same number is the same time,
    whatever the durations. Ranks whose nodes have equal numbers one by one are twins, such as
    replicas.
    """
    numbers: dict[tuple, int] = {}
    host_at: dict[int, int] = {}
    stream_at: dict[tuple[int, int], int] = {}
    ends: list[int] = []
    history: dict[int, list[tuple[int, int, int]]] = {}
    row, launch_row, waits = graph.row.tolist(), graph.launch_row.tolist(), graph.after.tolist()
    rank, stream = graph.rank.tolist(), graph.stream.tolist()
    blocking, start = graph.blocking.tolist(), graph.after_start.tolist()

    for nodes in _together(graph.collective.tolist()):
        first = nodes[0]
        reads = {ends[other] for other in waits[start[first] : start[first + 1]]}
        for node in nodes:
            host = host_at.get(rank[node], NO_STEP)
            if launch_row[node]:
                launch = (host, launch_row[node])
                host = host_at[rank[node]] = numbers.setdefault(launch, len(numbers))
            reads |= {host, stream_at.get((rank[node], stream[node]), NO_STEP)}
        end = numbers.setdefault((frozenset(reads), row[first]), len(numbers))
        for node in nodes:
            entry = host_at.get(rank[node], NO_STEP), end, stream[node]
            history.setdefault(rank[node], []).append(entry)
            stream_at[rank[node], stream[node]] = end
            if blocking[node]:
                host_at[rank[node]] = end
        ends += [end] * len(nodes)

    first_with: dict[tuple, int] = {}
    twin = {one: first_with.setdefault(tuple(done), one) for one, done in history.items()}
    return [twin[one] for one in rank]


NOT_ON_CLOCK = -1


class _UnsplitSteps(NamedTuple):
    """Steps before reduction, in issue order, with any number of reads and launches each."""

    row: list[int]
    reads: list[set[int]]  # earlier steps whose end it needs
    # where it is in order: a host's launches or a stream (any one of a collective's)
    lane: list[int]
    launches: list[list[tuple[int, int]]]  # host and row of each launch by a clock
    of_node: list[int]
    host_of_node: list[int]
    # which of the launches of that step, NOT_ON_CLOCK if the step itself is meant
    launch_of_node: list[int]


def _steps(graph: Graph, twin: list[int]) -> _UnsplitSteps:
    steps = _UnsplitSteps([], [], [], [], [], [], [])
    lane_numbers: dict[tuple[int, int], int] = {}
    stream_at: dict[int, int] = {}  # lane -> its latest step
    # rank -> the step at whose end its host is free; absent until it has waited
    host_at: dict[int, int] = {}

    def lane(rank: int, stream: int) -> int:
        return lane_numbers.setdefault((rank, stream), len(lane_numbers))

    def add(row: int, reads: set[int], lane: int, launches: list[tuple[int, int]]) -> int:
        steps.row.append(row)
        steps.reads.append(reads - {NO_STEP})
        steps.lane.append(lane)
        steps.launches.append(launches)
        return len(steps.row) - 1

    row, launch_row = graph.row.tolist(), graph.launch_row.tolist()
    stream, blocking = graph.stream.tolist(), graph.blocking.tolist()
    after, after_start = graph.after.tolist(), graph.after_start.tolist()
    launching = dict.fromkeys(np.array(twin)[graph.launch_row > 0].tolist())
    clocks = {rank: NO_HOST + number for number, rank in enumerate(launching, start=1)}
    launches_of_host = -1  # in place of a stream number
    # nth node of a rank -> its entries of_node to launch_of_node
    done: dict[tuple[int, int], tuple[int, int, int]] = {}
    runs = _together(graph.collective.tolist())
    for nodes, places in zip(runs, _places(graph, twin), strict=True):
        pairs = reversed([*zip(places, nodes, strict=True)])
        new = {place: node for place, node in pairs if place not in done}
        if new:
            # Twins in several collectives may meet other ranks in each: the end is known then, but
            # not yet those ranks' place in order. They launch in a step of their own that reads it.
            known = next((done[place][0] for place in places if place in done), NO_STEP)
            waits = after[after_start[nodes[0]] : after_start[nodes[0] + 1]]
            reads = {steps.of_node[node] for node in waits} if known == NO_STEP else {known}
            launches: list[tuple[int, int]] = []
            # step and which of its launches; a clock's step comes last
            launched: dict[tuple[int, int], tuple[int, int]] = {}
            for (rank, nth), node in new.items():
                reads.add(stream_at.get(lane(rank, stream[node]), NO_STEP))
                if rank in clocks and rank not in host_at:
                    launched[rank, nth] = NO_STEP, len(launches)
                    launches.append((clocks[rank], launch_row[node]))
                    continue
                host = host_at.get(rank, NO_STEP)
                if launch_row[node]:
                    own_lane = lane(rank, launches_of_host)
                    host = host_at[rank] = add(launch_row[node], {host}, own_lane, [])
                launched[rank, nth] = host, NOT_ON_CLOCK
                reads.add(host)
            lanes = [lane(rank, stream[node]) for (rank, _), node in new.items()]
            step = add(row[nodes[0]] if known == NO_STEP else ZERO_ROW, reads, lanes[0], launches)
            end = step if known == NO_STEP else known
            for place, (host, launch) in launched.items():
                done[place] = end, (host if launch == NOT_ON_CLOCK else step), launch
            stream_at.update(dict.fromkeys(lanes, step))
            host_at.update({rank: step for (rank, _), node in new.items() if blocking[node]})
        columns = (steps.of_node, steps.host_of_node, steps.launch_of_node)
        for place in places:
            for entries, entry in zip(columns, done[place], strict=True):
                entries.append(entry)
    return steps


def _places(graph: Graph, twin: list[int]) -> Iterator[list[tuple[int, int]]]:
    """For each run of nodes that go together: the twin, and which of its rank's nodes each is."""
    counts: Counter[int] = Counter()
    rank = graph.rank.tolist()
    for nodes in _together(graph.collective.tolist()):
        yield [(twin[node], counts[rank[node]]) for node in nodes]
        counts.update(rank[node] for node in nodes)


def _together(collective: list[int]) -> list[range]:
    """Runs of nodes that share one step: the consecutive nodes of a collective, or a single op."""
    starts = [i for i, first in enumerate(collective) if first in (Graph.NO_COLLECTIVE, i)]
    return list(map(range, starts, [*starts[1:], len(collective)]))


def _drop_implied(reads: list[set[int]], lane: list[int]) -> list[list[int]]:
    """The reads of each step, ascending, without those that another read implies.

    `clock` has per lane the latest step known to end before this step starts; as lanes are in
    order, all earlier ones on it do, too. A read can be implied only by a later step, so visiting
    the latest first misses none.
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


class _Split(NamedTuple):
    """Steps that read at most two others and launch on at most one host."""

    row: np.ndarray  # [S] each
    pred_step: np.ndarray  # NO_STEP where it has fewer than two; [S, 2]
    host: np.ndarray
    launch_row: np.ndarray
    step_of: list[int]  # where each step before went
    launch_of: list[list[int]]  # and where each of its launches


def _split(steps: _UnsplitSteps, reads: list[list[int]]) -> _Split:
    read = {before for wanted in reads for before in wanted}
    loose_ends = [step for step in range(len(reads)) if step not in read]
    row, all_launches = steps.row, steps.launches
    if len(loose_ends) > 1:
        row, all_launches, reads = [*row, ZERO_ROW], [*all_launches, []], [*reads, loose_ends]

    split: list[tuple[int, int, int, int, int]] = []
    step_of: list[int] = []
    launch_of: list[list[int]] = []

    def add(row: int, reads: list[int], launch: tuple[int, int]) -> int:
        first, second = [*reads, NO_STEP, NO_STEP][:2]
        split.append((row, first, second, *launch))
        return len(split) - 1

    no_launch = (NO_HOST, ZERO_ROW)
    for step, wanted in enumerate(reads):
        operands, launches = deque(step_of[before] for before in wanted), deque(all_launches[step])
        launch_of.append([])
        while len(operands) > 2 or len(launches) > 1:
            # a chain, not a tree: each join frees two slots and takes one, no other waits meanwhile
            taken = [operands.popleft() for _ in range(min(2, len(operands)))]
            if len(launches) > 1:
                launch_of[-1].append(len(split))
                operands.appendleft(add(ZERO_ROW, taken, launches.popleft()))
            else:
                operands.appendleft(add(ZERO_ROW, taken, no_launch))
        launch_of[-1].append(len(split))
        step_of.append(add(row[step], list(operands), launches[0] if launches else no_launch))
    new_row, first, second, host, launch_row = np.array(split, np.int64).T
    return _Split(new_row, np.stack([first, second], axis=1), host, launch_row, step_of, launch_of)


def _before_on_host(host: np.ndarray) -> np.ndarray:
    """The step before each on the same host [S]; NO_STEP for a host's first, or without a host."""
    before = np.full(len(host), NO_STEP)
    for number in set(host.tolist()) - {NO_HOST}:
        on_host = np.flatnonzero(host == number)
        before[on_host[1:]] = on_host[:-1]
    return before


def _counts(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The count of each step [S], and the rows of each count [K, 3], from those of steps [S, 3]."""
    _, triple = np.unique(rows, axis=0, return_inverse=True)
    order = np.argsort(triple.ravel(), kind="stable")
    begins = np.diff(triple.ravel()[order], prepend=-1) != 0
    starts = np.flatnonzero(begins)
    use = np.arange(len(order)) - starts[np.cumsum(begins) - 1]
    new = use % MOST_USES == 0
    count = np.empty(len(order), np.int64)
    count[order] = np.cumsum(new) - 1
    return count, rows[order[new]]


def _slots(pred_step: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Slots read [S, 2] and written [S], and their number. Every step but the last has a reader."""
    pairs = pred_step.tolist()
    last_reader = {before: step for step, pair in enumerate(pairs) for before in pair}
    out_slot: list[int] = []
    free: list[int] = []
    slots = TRASH_SLOT + 1
    for step, pair in enumerate(pairs):
        ended = [before for before in pair if before != NO_STEP and last_reader[before] == step]
        free += [out_slot[before] for before in ended]
        if not free:
            free, slots = [slots], slots + 1
        out_slot.append(free.pop())
    slot_of = np.array([*out_slot, ZERO_SLOT])  # the entry at NO_STEP = -1
    return slot_of[pred_step], np.array(out_slot), slots


def step_bucket(steps: int) -> int:
    """64, 256, 512, 1024, 2048, 4096 and from there on 4096 * 1.25^k, rounded up: padding costs
    memory only, of which a small graph takes little.

    At least one step is padding: the evaluator's first turn writes there what came before it.
    """
    bucket = 64.0
    while math.ceil(bucket) <= steps:
        bucket *= 4 if bucket == 64 else 2 if bucket < 4096 else 1.25
    return math.ceil(bucket)


def row_bucket(rows: int) -> int:
    """32, 128, 512, ... : as few as tell a small table from a large one."""
    return 32 * 4 ** max(math.ceil(math.log(max(rows, 1) / 32, 4)), 0)


def power_bucket(rows: int) -> int:
    """Powers of two from 8: rows cost memory, not time, while they fit in cache."""
    return max(8, 2 ** math.ceil(math.log2(rows)))
