"""Which GPUs of a topology a job gets, what links it has there, and what its steps take.

    naive        the free GPUs with the lowest numbers
    aware        the free GPUs whose all-reduce is quickest; of equals, those that leave the other
                 free GPUs the best links
    preserving   `aware` for jobs that suffer from slow links, for the others the GPUs that leave
                 the rest the best links (MAPA's Preserve: Ranganath et al., SC 2021)

A set is judged by the collective model at the links it has to itself (`collectives/subset.py`); a
step is its calls, priced and composed by the engine: a Transformer's, or given computation and then
an all-reduce. `place_stream` runs a stream of jobs under a policy, first come first served, with
the steps of those that share a leaf's uplinks or a host's links at the rates left for them.

Candidates: in a node, all sets of its free GPUs (of many, those grown from each GPU by its widest
links); over nodes, the fullest nodes of each leaf and of the cluster, with the same places in each
where they are free.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives.subset import Share, by_node, ring, share, share_model
from hybridperf.collectives.traffic import bus_factor
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.fields import fields_of
from hybridperf.fields.columns import read_small_table
from hybridperf.hardware.topology import Topology
from hybridperf.io import InputError
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.calls import Call, CollectiveCall, GivenSeconds
from hybridperf.model.price import price
from hybridperf.model.variance import ends
from hybridperf.runs.broadcast import WAYS, broadcast
from hybridperf.runs.job_stream import Given, StreamResult, run_stream
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.step import transformer

POLICIES = ("naive", "aware", "preserving")
SUFFERS = 0.05  # a job that is so much slower on ways through the host suffers from slow links
_MOST_SETS = 20_000  # of a node's free GPUs that are all looked at


@dataclasses.dataclass(frozen=True)
class PlacedStep:
    """A data-parallel step on n ranks: a Transformer's, or given seconds and then an all-reduce."""

    compute_s: float = 0.0
    all_reduce_bytes: float = 256e6
    shape: TransformerShape | None = None
    micro_batch: int = 1  # samples of each rank, of a shape

    def workload(self, ranks: int, nodes: int) -> Workload:
        if self.shape is not None:
            layout = Layout(dp=ranks, micro_batch=self.micro_batch)
            per_node = -(-ranks // nodes)
            return transformer(TransformerConfig(self.shape, layout, gpus_per_node=per_node))
        builder = GraphBuilder()
        done = builder.op(1, label="computation")
        calls: list[Call] = [GivenSeconds(self.compute_s, "computation")]
        if ranks > 1 and self.all_reduce_bytes:
            builder.collective(2, label="all-reduce", ranks=[0], after=[done])
            calls.append(CollectiveCall("all_reduce", self.all_reduce_bytes, ranks, nodes))
        return Workload("step", builder.build(), tuple(calls))


@dataclasses.dataclass(frozen=True)
class Seconds:
    """A predicted time and its 90 % interval; None where nobody knows the error."""

    time_s: float
    low_s: float | None
    high_s: float | None


@dataclasses.dataclass(frozen=True)
class Placer:
    """A topology with the prices of what runs on it, kept."""

    topology: Topology
    device: PerfModel
    _kept: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(topology: Topology, device: str = "") -> Placer:
        """Of a topology, whose GPUs go by their calibration or datasheet."""
        name = device or topology.system.device
        if not name:
            raise InputError(
                f"expected --device NAME with {topology.system.id}, whose accelerator is no known"
                " device, got none; `hybridperf devices` lists them"
            )
        return Placer(topology, model_or_datasheet(name))

    def all_reduce(self, found: Share, bytes: float) -> tuple[Seconds, float]:
        """Seconds of an all-reduce, and its bus bandwidth in bytes/s; nothing among one."""
        if found.ranks < 2:
            return Seconds(0.0, 0.0, 0.0), np.inf
        if (found, bytes) not in self._kept:
            model = self.device.with_collectives(share_model(self.topology, found))
            prices = price(model, [CollectiveCall("all_reduce", bytes, found.ranks, found.nodes)])
            time_s, ends_s = float(prices.seconds[0]), ends(prices.seconds, prices.spread)
            low_s, high_s = (None if np.isnan(end_s[0]) else float(end_s[0]) for end_s in ends_s)
            bus = bytes / time_s * bus_factor("all_reduce", found.ranks)
            self._kept[found, bytes] = Seconds(time_s, low_s, high_s), float(bus)
        kept: tuple[Seconds, float] = self._kept[found, bytes]
        return kept

    def step(self, step: PlacedStep, found: Share) -> Seconds:
        """A step of a job on such links."""
        if (step, found) not in self._kept:
            model = self.device.with_collectives(share_model(self.topology, found))
            one = predict(model, step.workload(found.ranks, found.nodes))
            self._kept[step, found] = Seconds(one.time_s, one.low_s, one.high_s)
        kept: Seconds = self._kept[step, found]
        return kept

    def bandwidth(self, gpus: Sequence[int], bytes: float) -> float:
        """Bus bandwidth of an all-reduce of so many bytes among some GPUs alone, in bytes/s."""
        return self.all_reduce(share(self.topology, gpus), bytes)[1]

    def choose(
        self, free: Sequence[int], count: int, policy: str, step: PlacedStep
    ) -> tuple[int, ...] | None:
        """The GPUs that a policy gives a job, of those that are free; None where too few are."""
        if len(free) < count:
            return None
        if policy == "naive":
            return tuple(sorted(free)[:count])
        found = candidates(self.topology, free, count)
        speeds = [self.all_reduce(share(self.topology, one), step.all_reduce_bytes)[0].time_s
                  for one in found] if count > 1 else [0.0] * len(found)  # fmt: skip
        if policy == "preserving" and not self.suffers(step, found):
            spare = [-self.left_over(free, one) for one in found]
            return found[min(range(len(found)), key=lambda at: (spare[at], speeds[at], found[at]))]
        least = min(speeds) * (1 + 1e-9)
        best = [one for one, seconds in zip(found, speeds, strict=True) if seconds <= least]
        return min(best, key=lambda one: (-self.left_over(free, one), one))

    def suffers(self, step: PlacedStep, found: Iterable[Sequence[int]]) -> bool:
        """Whether a step is much slower on the worst of some sets than on the best."""
        times = {self.step(step, one).time_s for one in {share(self.topology, x) for x in found}}
        return max(times) > (1 + SUFFERS) * min(times)

    def left_over(self, free: Iterable[int], taken: Sequence[int]) -> float:
        """Bytes/s of links that the other free GPUs have to each other."""
        rest = by_node(self.topology, [one for one in free if one not in set(taken)])
        rates = np.where(self.topology.through_host, 0.0, self.topology.rates)
        # squares: a whole node that is left is worth more than two halves
        most = float(rates.max(initial=0.0))
        return sum(
            float(rates[np.ix_(local, local)].sum()) / 2 + len(local) ** 2 * 1e-3 * most
            for local in rest.values()
        )


def candidates(topology: Topology, free: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Sets of free GPUs that one of is best."""
    g, nodes = topology.gpus_per_node, by_node(topology, free)
    found: dict[tuple[int, ...], None] = {}
    for node, local in nodes.items():
        if len(local) >= count:
            for some in _of_node(topology, local, count):
                found[tuple(node * g + one for one in some)] = None
    if not found:
        leaves: dict[int, list[int]] = {}
        for node in nodes:
            leaves.setdefault(topology.leaf_of(node), []).append(node)
        for group in (*leaves.values(), list(nodes)):
            if sum(len(nodes[node]) for node in group) >= count:
                found[_over_nodes(nodes, group, count, g)] = None
    return list(found)


def _of_node(topology: Topology, local: tuple[int, ...], count: int) -> Iterable[tuple[int, ...]]:
    if topology.switched:
        return [local[:count]]
    if math.comb(len(local), count) <= _MOST_SETS:
        return itertools.combinations(local, count)
    grown = []
    for start in local:
        some = [start]
        while len(some) < count:
            left = [one for one in local if one not in some]
            some.append(max(left, key=lambda one: ring(topology, [*some, one]).bytes_per_s))
        grown.append(tuple(sorted(some)))
    return grown


def _over_nodes(
    nodes: Mapping[int, tuple[int, ...]], group: Sequence[int], count: int, g: int
) -> tuple[int, ...]:
    """The fewest nodes that have enough, the fullest first; alike in each where that works."""
    fullest = sorted(group, key=lambda node: (-len(nodes[node]), node))
    most = np.cumsum([len(nodes[node]) for node in fullest])
    taken = fullest[: int(np.searchsorted(most, count)) + 1]
    each, left = count // len(taken), count % len(taken)
    common = sorted(set.intersection(*(set(nodes[node]) for node in taken)))
    if not left and len(common) >= each:
        return tuple(sorted(node * g + one for node in taken for one in common[:each]))
    all_free = [node * g + one for node in taken for one in nodes[node]]
    return tuple(sorted(all_free[:count]))


@dataclasses.dataclass(frozen=True)
class PlacedJob:
    """A job of a stream: data-parallel, so many steps on so many GPUs."""

    name: str
    arrival_s: float
    gpus: int
    steps: float
    step: PlacedStep


@dataclasses.dataclass(frozen=True)
class PlacedStream:
    """What became of a stream under one policy."""

    policy: str
    result: StreamResult
    gpus: tuple[tuple[int, ...], ...]  # of each job
    step_s: np.ndarray  # mean of each job's steps, with what others took from its links [J]
    best_s: np.ndarray  # of its steps on the best GPUs of the empty cluster [J]

    @property
    def slow_down(self) -> np.ndarray:
        """Of each job's steps over the best GPUs of the empty cluster [J]."""
        return self.step_s / self.best_s


def place_stream(placer: Placer, jobs: Sequence[PlacedJob], policy: str) -> PlacedStream:
    """A stream of jobs, first come first served, each on the GPUs that a policy gives it."""
    topology, everywhere = placer.topology, range(placer.topology.gpus)
    where: dict[int, tuple[int, ...]] = {}

    def schedule(
        waiting: Sequence[int], running: Mapping[int, Given], *_: object
    ) -> dict[int, Given]:
        given = dict(running)
        taken = {gpu for job in running for gpu in where[job]}
        for job in waiting:
            free = [gpu for gpu in everywhere if gpu not in taken]
            found = placer.choose(free, jobs[job].gpus, policy, jobs[job].step)
            if found is None:
                break  # first come first served
            where[job] = found
            given[job] = found
            taken |= set(found)
        return given

    def rates(given: Mapping[int, Given]) -> dict[int, float]:
        talk = {job: where[job] for job in given if jobs[job].gpus > 1}
        found = {}
        for job in given:
            others = [gpus for other, gpus in talk.items() if other != job]
            links = share(topology, where[job], others)
            found[job] = 1.0 / placer.step(jobs[job].step, links).time_s
        return found

    arrival_s = np.array([job.arrival_s for job in jobs])
    steps = np.array([job.steps for job in jobs])
    result = run_stream(arrival_s, steps, schedule, rates)
    best = []
    for job in jobs:
        some = placer.choose(list(everywhere), job.gpus, "aware", job.step)
        assert some is not None
        best.append(placer.step(job.step, share(topology, some)).time_s)
    step_s = (result.end_s - result.start_s) / steps
    return PlacedStream(
        policy, result, tuple(where[at] for at in range(len(jobs))), step_s, np.array(best)
    )


def read_placed_jobs(frame: pd.DataFrame, topology: Topology) -> list[PlacedJob]:
    """Jobs of a table with the fields `placed_jobs` of `fields/tables.toml`."""
    read = read_small_table(frame, "placed_jobs", {"gpus": topology.gpus})
    numbers = read[[*fields_of("placed_jobs").by_name]].astype({"name": str})
    return [
        PlacedJob(row.name, row.arrival_s, int(row.gpus), row.steps,
                  PlacedStep(row.compute_s, row.all_reduce_bytes))
        for row in numbers.sort_values("arrival_s", kind="stable").itertuples()
    ]  # fmt: skip


WORST = "worst"


def placements(
    placer: Placer, gpus: int, step: PlacedStep, busy: Sequence[int] = ()
) -> pd.DataFrame:
    """The GPUs that each policy gives a job of so many, and the slowest set among the candidates.

    Args:
        placer: of the topology.
        gpus: how many.
        step: what the job repeats.
        busy: GPUs that others have.

    Returns:
        A row per policy: `policy, gpus, bandwidth_bytes_per_s, low_bytes_per_s, high_bytes_per_s,
        step_s, low_s, high_s, slow_down, low_slow_down, high_slow_down`; slow-downs are over the
        best GPUs of the empty topology, with the same error of what both have in common.
    """
    topology = placer.topology
    free = [gpu for gpu in range(topology.gpus) if gpu not in set(busy)]
    best = placer.choose(list(range(topology.gpus)), gpus, "aware", step)
    if best is None:
        raise InputError(f"expected at most {topology.gpus} GPUs, got {gpus}; ask for fewer")
    chosen = {policy: placer.choose(free, gpus, policy, step) for policy in POLICIES}
    if gpus > 1:
        sets = [*candidates(topology, free, gpus), tuple(free[:gpus])]
        slowest = min(sets, key=lambda one: placer.bandwidth(one, step.all_reduce_bytes))
        chosen[WORST] = slowest
    elif step.shape is None and not step.compute_s:
        raise InputError(
            "expected a shape or seconds of computation for one GPU, which reduces nothing, got"
            " neither; give one of them"
        )
    least = placer.step(step, share(topology, best))
    rows = []
    for policy, some in chosen.items():
        assert some is not None
        links = share(topology, some)
        seconds, bandwidth = placer.all_reduce(links, step.all_reduce_bytes)
        own = placer.step(step, links)
        low_s, high_s = own.low_s or np.nan, own.high_s or np.nan
        ends = [seconds.time_s / (end or np.nan) for end in (seconds.high_s, seconds.low_s)]
        # one error of the links for both: the low ends belong together, and the high ends
        apart = [low_s / (least.low_s or np.nan), high_s / (least.high_s or np.nan)]
        middle = own.time_s / least.time_s
        rows.append({
            "policy": policy, "gpus": " ".join(map(str, some)),
            "bandwidth_bytes_per_s": bandwidth, "low_bytes_per_s": bandwidth * ends[0],
            "high_bytes_per_s": bandwidth * ends[1], "step_s": own.time_s, "low_s": low_s,
            "high_s": high_s, "slow_down": middle, "low_slow_down": min(middle, *apart),
            "high_slow_down": max(middle, *apart),
        })  # fmt: skip
    return pd.DataFrame(rows)


def broadcasts(placer: Placer, found: pd.DataFrame, bytes: float) -> pd.DataFrame:
    """Seconds of each way to send weights from one to all GPUs of the `aware` row: `way, time_s,
    low_s, high_s`.
    """
    some = [int(one) for one in found.set_index("policy").loc["aware", "gpus"].split()]
    links = share(placer.topology, some)
    model = placer.device.with_collectives(share_model(placer.topology, links))
    rows = []
    for way in WAYS:
        one = predict(model, broadcast(bytes, links.ranks, links.nodes, way))
        rows.append({"way": way, "time_s": one.time_s, "low_s": one.low_s, "high_s": one.high_s})
    return pd.DataFrame(rows)
