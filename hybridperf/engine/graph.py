"""One step as a graph: operations on streams of ranks, issued in order by host threads.

A node is one op on one rank. It knows no flops and no bytes, only which *row* of a duration table
holds its seconds, so one graph serves every machine and every configuration that shares its
structure. Rows count from 1; row 0 always holds zero seconds. What the graph means, with `D[row]`
the seconds of a row, node by node in issue order:

    launch_end_i = host_r + D[launch_row_i]
    start_i      = max(launch_end_i, end of the op before it on its stream, ends of all `after`)
    end_i        = start_i + D[row_i]
    host_r       = end_i if the op is blocking, else launch_end_i

The host thread of rank r issues one op at a time; a blocking op, such as a copy, holds it up.

A stream belongs to one rank: "comm" on rank 0 and "comm" on rank 1 are two streams. The nodes of a
collective, one per rank, start together at the latest of their own starts, and so end together. The
makespan is the latest end.

A host that waits for a stream or an event is a blocking op of row 0: on that stream, or `after`
that event.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index

import numpy as np

COMPUTE, COMM = "compute", "comm"  # streams of a rank: all but the first communicate


@dataclass(frozen=True, eq=False)  # eq=False: arrays have no single truth value to compare by
class Graph:
    """Nodes in issue order, a topological order. Axes: N nodes, A entries of all `after`."""

    # row of the duration table that holds the node's seconds, 0 = takes no time; int32 [N]
    row: np.ndarray
    launch_row: np.ndarray  # row that holds the host's seconds to launch it, 0 = free; int32 [N]
    rank: np.ndarray  # int32 [N]
    stream: np.ndarray  # index into `stream_names`; int32 [N]
    blocking: np.ndarray  # the host thread waits for the node's end; bool [N]
    # first node of the collective it belongs to, NO_COLLECTIVE for an op; int32 [N]
    collective: np.ndarray
    # node i waits for after[after_start[i]:after_start[i + 1]]; int32 [N + 1]
    after_start: np.ndarray
    # earlier nodes waited for; a collective's stand with its first node; int32 [A]
    after: np.ndarray
    labels: tuple[str, ...]  # for people: error messages, timelines; [N]
    stream_names: tuple[str, ...]

    NO_COLLECTIVE = -1

    def __len__(self) -> int:
        return len(self.row)

    @property
    def rows(self) -> int:
        """Highest row any node points to: the duration table needs at least as many."""
        return int(max(self.row.max(), self.launch_row.max()))

    def user_of(self, row: int) -> str:
        """In words, the first node that points to a row of the duration table."""
        users = np.flatnonzero((self.row == row) | (self.launch_row == row))
        if not len(users):
            return "used by no node"
        return f"first used by node {users[0]} {self.labels[users[0]]!r}"

    def waits_for(self, node: int) -> np.ndarray:
        """The `after` nodes of one node."""
        return self.after[self.after_start[node] : self.after_start[node + 1]]


@dataclass
class GraphBuilder:
    """Collects nodes in issue order; `op` and `collective` return node ids, `build` the frozen
    graph.

    >>> builder = GraphBuilder()
    >>> forward = builder.op(1, label="forward", launch_row=3)
    >>> gradients = builder.collective(2, label="all-reduce", ranks=[0], after=[forward])
    >>> graph = builder.build()
    """

    # Graph's first six fields
    _nodes: list[tuple[int, int, int, int, bool, int]] = field(default_factory=list)
    _after: list[tuple[int, ...]] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)
    _streams: dict[str, int] = field(default_factory=dict)

    def op(
        self,
        row: int,
        *,
        label: str = "",
        rank: int = 0,
        stream: str = COMPUTE,
        after: Sequence[int] = (),
        launch_row: int = 0,
        blocking: bool = False,
    ) -> int:
        """Id of a new op, issued now, that runs when its stream and all of `after` are done.

        Args:
            row: row of the duration table that holds its seconds, from 1; 0 takes no time.
            label: for people.
            rank: the rank that it runs on.
            stream: the queue of that rank.
            after: ids of nodes that it waits for.
            launch_row: row that holds the host's seconds to launch it; 0 is free.
            blocking: the rank's host waits for the op to end before it launches anything else.
        """
        waits, alone = self._known(after, label), Graph.NO_COLLECTIVE
        return self._add(row, label, rank, stream, waits, launch_row, blocking, alone)

    def collective(
        self,
        row: int,
        *,
        label: str,
        ranks: Sequence[int],
        stream: str = COMM,
        after: Sequence[int] = (),
        launch_row: int = 0,
    ) -> dict[int, int]:
        """New node ids by rank. All start together, when each rank has launched and is ready.

        A rank is ready when its stream and all of `after`, which may be on any rank, are done.
        """
        what = f"Collective {label!r}"
        if len(ranks) == 0:
            raise ValueError(f"{what} has no ranks; name at least one rank that takes part.")
        for rank, times in Counter(ranks).items():
            if times > 1:
                mend = "name every rank that takes part once"
                raise ValueError(f"{what} names rank {rank} twice; {mend}.")
        # before the first node is added: a refused collective leaves the builder as it was
        for rank in ranks:
            _count(rank, "rank", label)
        waits, first, nodes = self._known(after, label), len(self._nodes), {}
        for rank in ranks:
            nodes[rank] = self._add(row, label, rank, stream, waits, launch_row, False, first)
            waits = ()
        return nodes

    def build(self) -> Graph:
        """The graph of all nodes so far."""
        if not self._nodes:
            expected = "expected at least one; call op() or collective() before build()"
            raise ValueError(f"The graph has no nodes, {expected}.")
        row, launch_row, rank, stream, blocking, collective = zip(*self._nodes, strict=True)
        return Graph(
            row=np.array(row, np.int32),
            launch_row=np.array(launch_row, np.int32),
            rank=np.array(rank, np.int32),
            stream=np.array(stream, np.int32),
            blocking=np.array(blocking, bool),
            collective=np.array(collective, np.int32),
            after_start=np.cumsum([0, *map(len, self._after)], dtype=np.int32),
            after=np.array([node for waits in self._after for node in waits], np.int32),
            labels=tuple(self._labels),
            stream_names=tuple(self._streams),
        )

    def _add(
        self, row: int, label: str, rank: int, stream: str, after: tuple[int, ...],
        launch_row: int, blocking: bool, collective: int,
    ) -> int:  # fmt: skip
        row, launch_row = _count(row, "row", label), _count(launch_row, "launch_row", label)
        rank = _count(rank, "rank", label)
        stream_index = self._streams.setdefault(stream, len(self._streams))
        self._nodes.append((row, launch_row, rank, stream_index, bool(blocking), collective))
        self._after.append(after)
        self._labels.append(label)
        return len(self._nodes) - 1

    def _known(self, after: Sequence[int], label: str) -> tuple[int, ...]:
        nodes = tuple(map(index, after))
        for node in nodes:
            if not 0 <= node < len(self._nodes):
                raise ValueError(
                    f"Node {label!r} waits for node {node}, expected one of the {len(self._nodes)}"
                    " issued so far, which count from 0; issue a node before those that wait for"
                    " it and pass the id that op() returned."
                )
        return nodes


def _count(value: int, name: str, label: str) -> int:
    if index(value) < 0:
        expected = f"expected 0 or more; number every {name} from 0 upwards"
        raise ValueError(f"Node {label!r} has {name} {value}, {expected}.")
    return index(value)
