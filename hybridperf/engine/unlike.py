"""A step whose ranks differ: each with its own device, host, links, work, and slow-down.

A worker is what stands for one replica of data parallelism: its own workload (its own share of the
batch) on a machine of its own; or on one for each rank of the workload's graph, as the stages of a
pipeline and the ranks of a DLRM are. Workers meet where data-parallel ranks exchange gradients or
sharded weights (step roles `reduction`, `gather`): the k-th such message of each is one collective
of all, as long as it takes on the slowest of their links. Every other message waits for the ranks
that take part, at the price of the slowest of theirs.

    seconds of a row on rank r   price on r's machine x slower_r             calls, one price
    seconds of a step            longest path through the joined graph       one composition

Axes: R ranks of all workers in turn, B draws or configurations.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from hybridperf.engine.evaluate import check_durations, critical_path, last_ends, timeline
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.interval import (
    UNKNOWN_SHARE,
    StepSlopes,
    of_effects,
    step_deviation,
    step_ends,
    step_slopes,
    times_on_path,
    unsure,
)
from hybridperf.engine.lower import Lowered, lower
from hybridperf.engine.prediction import check_backend
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.adapted_steps import Adapted
from hybridperf.model.calls import CollectiveCall
from hybridperf.model.price import Prices, price
from hybridperf.model.step_effects import vector
from hybridperf.model.step_table import in_step_seconds
from hybridperf.model.unmeasured import Unmeasured
from hybridperf.model.variance import Components

_MEETING = ("reduction", "gather")  # roles of messages among data-parallel ranks
_NO_TIME = 1e-9  # of a worker's own, where only the others count
_Member = tuple[int, int, int]  # worker, rank of its workload, row from 0


@dataclasses.dataclass(frozen=True)
class Worker:
    """One replica of a step on machines of its own."""

    workload: Workload  # its share of the step
    model: PerfModel | Sequence[PerfModel]  # one machine, or one for each rank of the workload
    slower: ArrayLike = 1.0  # factor on all it computes and launches; one number, or one a rank
    name: str = ""


@dataclasses.dataclass(frozen=True)
class UnlikeStep:
    """A step on unlike ranks, priced; what `hp.unlike` returns."""

    graph: Graph
    lowered: Lowered
    row_s: np.ndarray  # seconds of each row [U]
    row_rank: np.ndarray  # rank whose slow-downs it shares, -1 for messages; int [U]
    rank_worker: np.ndarray  # worker of each rank; int [R]
    names: tuple[str, ...]  # of workers
    time_s: float
    waits_s: np.ndarray  # seconds in which the device of each rank computes nothing [R]
    parts: tuple[_Part, ...]  # of each worker
    # of each row, whose seconds it has: the slowest, then the others that it may be [U]
    row_members: tuple[tuple[_Member, ...], ...]

    def __repr__(self) -> str:
        return f"<UnlikeStep: {len(self.names)} workers, {self.time_s:.4g} s>"

    @functools.cached_property
    def interval_s(self) -> tuple[float, float] | None:
        """90 % interval; None where a machine has no measurements to take it from.

        As of one step (`interval.py`), each machine's components its own and shared by all its
        ranks, along the critical path of all.
        """
        path = critical_path(self.lowered, self.row_s)
        times = times_on_path(self.graph, path, len(self.row_s))
        on_path: dict[int, tuple[_Priced, np.ndarray]] = {}
        for row in np.flatnonzero(times).tolist():
            part, rank, at = self.row_members[row][0]
            of, slower = self.parts[part].of_rank[rank], self.parts[part].factor(rank, at)
            counts = on_path.setdefault(id(of), (of, np.zeros(len(of.row_s))))[1]
            counts[at] += times[row] * slower
        machines: dict[int, list[tuple[_Priced, StepSlopes]]] = {}
        unknown_s, variance = 0.0, 0.0
        for of, counts in on_path.values():
            if of.missing is None:
                unknown_s += float((counts * of.row_s)[unsure(of.prices)].sum())
            slopes = step_slopes(
                of.prices, of.adapted, of.workload.in_step, of.row_s, counts, self.time_s
            )
            machines.setdefault(id(of.model), []).append((of, slopes))
        if unknown_s > UNKNOWN_SHARE * self.time_s:
            return None
        for priced in machines.values():
            of, places = priced[0][0], np.cumsum([0, *(len(one.row_s) for one, _ in priced)])
            components = Components.placed(int(places[-1]), [
                (range(first, first + len(one.row_s)), one.prices.components)
                for first, (one, _) in zip(places.tolist(), priced, strict=False)
            ])  # fmt: skip
            slopes = functools.reduce(operator.add, (each for _, each in priced))
            variance += step_deviation(
                slopes, components, of.adapted, of.workload.in_step, of.missing
            ) ** 2  # fmt: skip
        deviation, ends = float(np.sqrt(variance)), []
        for of, _ in on_path.values():
            known = of.model.device, of.adapted, of.workload.in_step
            ends.append(step_ends(*known, self.time_s, deviation))
        return max(low_s for low_s, _ in ends), max(high_s for _, high_s in ends)

    @functools.cached_property
    def worker_waits_s(self) -> np.ndarray:
        """Seconds that each worker waits for the others: by how much the step would be shorter if
        their own work took no time; its own launches and messages do not count [workers].
        """
        many = len(self.names)
        alone = np.where(np.eye(many, dtype=bool), 1.0, _NO_TIME)
        ends_s = self.times(np.hstack([alone, np.ones((many, 1))]))
        return np.maximum(ends_s[-1] - ends_s[:-1], 0.0)

    def times(self, factors: ArrayLike) -> np.ndarray:
        """Seconds of the step [B] where each worker's own work takes so many times as long.

        Args:
            factors: one for each worker [workers, B], or for each rank [R, B]; above zero.
        """
        factors = np.asarray(factors, float)
        if factors.ndim != 2 or len(factors) not in (len(self.names), len(self.rank_worker)):
            raise InputError(
                f"expected factors [{len(self.names)} workers, B] or [{len(self.rank_worker)}"
                f" ranks, B], got shape {list(factors.shape)}"
            )
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise InputError("expected factors above zero, got others; a slow worker's is above 1")
        of_rank = factors
        if len(factors) != len(self.rank_worker):
            of_rank = factors[self.rank_worker]
        of_row = np.concatenate([of_rank, np.ones((1, of_rank.shape[1]))])[self.row_rank]
        return last_ends(self.lowered.program, self.row_s[:, None] * of_row)


def while_both_work(alone_s: ArrayLike, beside_s: ArrayLike) -> np.ndarray:
    """What two workers that share a processor take over what each takes alone [2, B], for
    `UnlikeStep.times`: each goes on at its pace beside the other until one has nothing left to do.

    Args:
        alone_s: seconds of each worker's own work, nothing beside it [2, B].
        beside_s: the same work while the other works all the time [2, B].
    """
    alone, beside = (np.asarray(one, float) for one in (alone_s, beside_s))
    first_s = beside.min(axis=0)
    ends_s = np.where(beside == first_s, first_s, first_s + (1 - first_s / beside) * alone)
    return np.asarray(ends_s / alone)


def unlike(workers: Sequence[Worker]) -> UnlikeStep:
    """A synchronous step of workers that differ.

    Args:
        workers: each with its workload, machine and slow-down; their workloads exchange gradients
            equally often.

    Raises:
        InputError: no worker, numbers of machines or slow-downs that do not fit a workload's ranks,
            workers that meet at different points, or calls that a machine cannot price.
    """
    if not workers:
        raise InputError("expected one worker or more, got none")
    prices: dict[tuple[int, int], _Priced] = {}  # of a machine and a workload, priced once
    parts = [_Part.of(worker, at, prices) for at, worker in enumerate(workers)]
    meets = [len([*part.meetings()]) for part in parts]
    if len({*meets}) > 1:
        raise InputError(
            f"expected workers that exchange gradients equally often, got {meets} exchanges a step;"
            " give all of them the same layout but for micro_batch and accumulation"
        )
    join = _Join(parts)
    graph = join.graph()
    lowered = lower(graph)
    row_s = check_durations(lowered, np.array(join.seconds or [0.0]))
    times = timeline(lowered, row_s)
    rank_worker = np.repeat(np.arange(len(parts)), [part.ranks for part in parts])
    of_ranks = np.array(join.row_rank or [-1])
    return UnlikeStep(
        graph, lowered, row_s, of_ranks, rank_worker,
        tuple(worker.name or str(at) for at, worker in enumerate(workers)),
        float(times.end_s.max()), _waits(graph, times.start_s, times.end_s, of_ranks),
        tuple(parts), tuple(join.members or [((0, 0, 0),)]),
    )  # fmt: skip


def _waits(graph: Graph, start_s: np.ndarray, end_s: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Seconds of the step in which no node of a rank's own runs [R]."""
    ranks = int(graph.rank.max()) + 1
    own = (graph.row > 0) & (np.append(of, -1)[graph.row - 1] >= 0)
    total, waits = end_s.max(), np.empty(ranks)
    for rank in range(ranks):
        mine = own & (graph.rank == rank)
        order = np.argsort(start_s[mine])
        start, end = start_s[mine][order], end_s[mine][order]
        before = np.maximum.accumulate(np.concatenate([[0.0], end]))[:-1]
        waits[rank] = total - np.maximum(end - np.maximum(start, before), 0.0).sum()
    return waits


def _models(worker: Worker) -> list[PerfModel]:
    """The machine of each rank of a worker."""
    ranks = int(worker.workload.graph.rank.max()) + 1
    if isinstance(worker.model, PerfModel):
        return [worker.model] * ranks
    models = list(worker.model)
    if len(models) != ranks:
        raise InputError(
            f"expected one machine, or one for each of the {ranks} ranks of"
            f" {worker.workload.name}, got {len(models)}"
        )
    return models


@dataclasses.dataclass(frozen=True)
class _Priced:
    """A workload on a machine."""

    model: PerfModel
    workload: Workload
    prices: Prices
    adapted: Adapted
    row_s: np.ndarray  # in its place in the step [U]
    missing: Unmeasured | None  # as `of_effects` has it

    @staticmethod
    def of(model: PerfModel, workload: Workload) -> _Priced:
        check_backend(model, workload)
        in_step = workload.in_step
        prices = price(model, workload.calls, in_step)
        adapted = model.adapted("" if in_step is None else in_step.framework)
        row_s = in_step_seconds(prices.table, prices.seconds, vector(adapted.effects))
        return _Priced(
            model,
            workload,
            prices,
            adapted,
            row_s,
            of_effects(model, in_step, model.measured.groups),
        )


@dataclasses.dataclass(frozen=True)
class _Part:
    """One worker, priced. Axes: U rows of its workload, r its ranks."""

    at: int
    workload: Workload
    of_rank: tuple[_Priced, ...]  # [r]
    slower: np.ndarray  # [r]
    meeting: np.ndarray  # whether a row is exchanged by all workers; bool [U]
    message: np.ndarray  # whether a row is a collective; bool [U]

    @property
    def ranks(self) -> int:
        return len(self.of_rank)

    @functools.cached_property
    def seconds(self) -> np.ndarray:
        """Of each row on each rank [r, U]."""
        row_s = np.stack([of.row_s for of in self.of_rank])
        return row_s * np.where(self.message, 1.0, self.slower[:, None])

    def factor(self, rank: int, row: int) -> float:
        """By which a row takes longer on a rank than on its machine."""
        return 1.0 if self.message[row] else float(self.slower[rank])

    @classmethod
    def of(cls, worker: Worker, at: int, prices: dict[tuple[int, int], _Priced]) -> _Part:
        workload = worker.workload
        if not isinstance(workload, Workload):
            raise InputError(f"expected a workload of worker {at}, got {workload!r:.60}")
        models = _models(worker)
        try:
            slower = np.broadcast_to(np.asarray(worker.slower, float), len(models))
        except ValueError as error:
            raise InputError(
                f"expected one slow-down, or one for each of {len(models)} ranks, got"
                f" {worker.slower!r:.60}"
            ) from error
        if not (np.isfinite(slower) & (slower > 0)).all():
            raise InputError(f"expected slow-downs above zero, got {worker.slower!r:.60}")
        message = np.array([isinstance(call, CollectiveCall) for call in workload.calls])
        places = () if workload.in_step is None else workload.in_step.places
        meeting = message & np.array([place.role in _MEETING for place in places] or False)
        for model in models:
            if (id(model), id(workload)) not in prices:
                prices[id(model), id(workload)] = _Priced.of(model, workload)
        of_rank = tuple(prices[id(model), id(workload)] for model in models)
        return cls(at, workload, of_rank, slower, meeting, message)

    def groups(self) -> Iterator[list[int]]:
        """Nodes in issue order, those of a collective together."""
        of = self.workload.graph.collective.tolist()
        group: list[int] = []
        for node, first in enumerate(of):
            if group and not (first >= 0 and first == of[group[0]]):
                yield group
                group = []
            group.append(node)
        if group:
            yield group

    def meetings(self) -> Iterator[list[int]]:
        """Groups that all workers exchange."""
        return (group for group in self.groups() if self.meets(group))

    def meets(self, group: list[int]) -> bool:
        row = self.workload.graph.row[group[0]]
        return bool(row) and bool(self.meeting[row - 1])


class _Join:
    """One graph of several workers, whose ranks are numbered in turn."""

    def __init__(self, parts: Sequence[_Part]):
        self.parts = parts
        self.first = np.cumsum([0, *(part.ranks for part in parts)])[:-1].tolist()
        self.builder = GraphBuilder()
        self.rows: dict[_Member | tuple[str, frozenset[_Member]], int] = {}
        self.seconds: list[float] = []
        self.row_rank: list[int] = []
        self.members: list[tuple[_Member, ...]] = []
        # node of the joined graph by worker and its own number
        self.nodes: list[dict[int, int]] = [{} for _ in parts]

    def graph(self) -> Graph:
        ahead = [part.groups() for part in self.parts]
        while True:
            waiting = []
            for part, groups in zip(self.parts, ahead, strict=True):
                for group in groups:
                    if part.meets(group):
                        waiting.append(group)
                        break
                    self.alone(part, group)
            if not waiting:
                return self.builder.build()
            self.together(waiting)

    def alone(self, part: _Part, group: list[int]) -> None:
        """Nodes of one worker alone."""
        graph, first = part.workload.graph, group[0]
        if graph.collective[first] >= 0:
            self.collective([(part, group)])
            return
        rank = int(graph.rank[first])
        self.nodes[part.at][first] = self.builder.op(
            self.row(part, rank, int(graph.row[first])), label=graph.labels[first],
            rank=self.first[part.at] + rank, stream=self.stream(part, first),
            after=self.after(part, first),
            launch_row=self.row(part, rank, int(graph.launch_row[first])),
            blocking=bool(graph.blocking[first]),
        )  # fmt: skip

    def together(self, groups: list[list[int]]) -> None:
        """The same message of all workers."""
        self.collective(list(zip(self.parts, groups, strict=True)))

    def collective(self, members: list[tuple[_Part, list[int]]]) -> None:
        part, group = members[0]
        ranks, after = [], []
        messages: list[tuple[float, _Member]] = []
        launches: list[tuple[float, _Member]] = []
        for one, nodes in members:
            graph, row = one.workload.graph, int(one.workload.graph.row[nodes[0]])
            mine = [int(graph.rank[node]) for node in nodes]
            ranks += [self.first[one.at] + rank for rank in mine]
            after += self.after(one, nodes[0])
            for found, at in ((messages, row), (launches, int(graph.launch_row[nodes[0]]))):
                if at:
                    of_rank = one.seconds[:, at - 1]
                    found += [(float(of_rank[rank]), (one.at, rank, at - 1)) for rank in mine]
        # a host that launches later than the others holds all of them up
        made = self.builder.collective(
            self.slowest("message", messages), label=part.workload.graph.labels[group[0]],
            ranks=ranks, stream=self.stream(part, group[0]), after=after,
            launch_row=self.slowest("launch", launches),
        )  # fmt: skip
        for one, nodes in members:
            for node in nodes:
                rank = self.first[one.at] + int(one.workload.graph.rank[node])
                self.nodes[one.at][node] = made[rank]

    def stream(self, part: _Part, node: int) -> str:
        return part.workload.graph.stream_names[part.workload.graph.stream[node]]

    def after(self, part: _Part, node: int) -> list[int]:
        return [self.nodes[part.at][one] for one in part.workload.graph.waits_for(node).tolist()]

    def row(self, part: _Part, rank: int, row: int) -> int:
        """Row of the joined table for a row of a worker on one of its ranks."""
        if not row:
            return 0
        member, seconds = (part.at, rank, row - 1), float(part.seconds[rank, row - 1])
        whose = -1 if part.message[row - 1] else self.first[part.at] + rank
        return self.row_of(member, seconds, whose, (member,))

    def slowest(self, what: str, times: list[tuple[float, _Member]]) -> int:
        """Row for the longest of what several ranks take; 0 for none."""
        falling = sorted(times, key=operator.itemgetter(0), reverse=True)
        if not falling or not falling[0][0]:
            return 0
        members = tuple(member for _, member in falling)
        return self.row_of((what, frozenset(members)), falling[0][0], -1, members)

    def row_of(
        self, key: _Member | tuple[str, frozenset[_Member]], seconds: float, rank: int,
        members: tuple[_Member, ...],
    ) -> int:  # fmt: skip
        if key not in self.rows:
            self.rows[key] = len(self.rows) + 1
            self.seconds.append(seconds)
            self.row_rank.append(rank)
            self.members.append(members)
        return self.rows[key]
