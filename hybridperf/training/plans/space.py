"""All legal layouts of a model on so many devices, in columns.

The ranks are divided into tp x cp x dp x pp, factor by factor, and experts over ep of them. Each
division takes every micro-batch that divides a replica's samples, every number of chunks that
divides a stage's layers, every schedule, recompute mode and ZeRO stage, and sequence parallelism or
not. `rules.legal` tells which of them can run; `places` multiplies each by what lies where.

A base layout is one without its order: memory depends on nothing more. Axes: B base layouts, Q
places of divisions, N layouts.

`Layout.order` is which dimension varies fastest over neighbouring ranks. Dimensions of one rank
can stand anywhere, and many orders put every group on as many nodes as another does: such orders
cost the same, and the first of them in the usual order stands for all (`places`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.io import InputError, unknown
from hybridperf.training.plans.progress import Progress
from hybridperf.workloads.transformer import TransformerShape
from hybridperf.workloads.transformer.columns import INTERLEAVED, RECOMPUTE, SCHEDULES
from hybridperf.workloads.transformer.groups import Span, span
from hybridperf.workloads.transformer.layout import ORDER, Layout, Layouts, Order
from hybridperf.workloads.transformer.rules import legal

# The composition of a step prices zero bubble and Chimera, too (`steps/pipelines.py`), which are
# not planned: the one needs a backward pass cut in two, which few frameworks have; the other,
# priced within 6 %, has a chooser of its own (`studies/chimera.py`)
PLANNED_SCHEDULES = ("1f1b", "gpipe", "interleaved")
FREE = (
    "tp", "cp", "ep", "pp", "vp", "zero", "micro_batch", "recompute", "schedule",
    "sequence_parallel",
)  # fmt: skip
# narrowed once the free ones are put together
FOLLOWING = ("dp", "expert_tp", "shard_ranks", "accumulation")
_NONE = Layouts(*([np.zeros(0, np.int64)] * len(Layouts._fields)))
_DENSE = 2**32
_WORDS = {"recompute": RECOMPUTE, "schedule": PLANNED_SCHEDULES}


_GROUPS = ("tp", "cp", "pp", "data", "ep", "expert_data")
_SHARDED = ("shard", "replica")


class Division(NamedTuple):
    """How ranks are divided: what the nodes of groups depend on, besides the order."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    expert_tp: int
    zero: bool  # whether anything is sharded over data ranks
    shard_ranks: int

    @property
    def columns(self) -> Layouts:
        """As a layout of numbers."""
        return Layouts(
            self.tp, 0, self.pp, 1, self.dp, self.cp, self.ep, self.expert_tp, int(self.zero),
            self.shard_ranks, 1, 1, 0, 0
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Place:
    """One order, how many orders mean the same, and the span of each group."""

    division: Division
    order: Order
    alike: int
    spans: Mapping[str, Span]


@functools.lru_cache(maxsize=65536)
def places(division: Division, gpus_per_node: int) -> tuple[Place, ...]:
    """The orders of a division that differ, the usual one first."""
    columns = division.columns
    wide = tuple(name for name in ORDER if name != "ep" and getattr(columns, name) > 1)
    names = _GROUPS + (_SHARDED if division.zero else ())
    found: dict[tuple[Span, ...], list[Order]] = {}
    for chosen in itertools.permutations(wide):
        order = (*chosen, *(name for name in ORDER if name not in chosen))
        order = ORDER if chosen == wide else order
        spans = tuple(span(columns, name, gpus_per_node, order) for name in names)
        found.setdefault(spans, []).append(order)
    return tuple(
        Place(division, orders[0], len(orders), dict(zip(names, spans, strict=True)))
        for spans, orders in found.items()
    )


@dataclasses.dataclass(frozen=True)
class LayoutSpace:
    """The legal layouts of one model, number of devices and global batch."""

    shape: TransformerShape
    gpus: int
    gpus_per_node: int
    global_batch: int
    base: Layouts  # [B] each
    places: tuple[Place, ...]  # [Q]
    base_of: np.ndarray  # int32 [N]
    place_of: np.ndarray  # int32 [N]
    orders: int  # layouts, if orders that mean the same are counted apart

    def __len__(self) -> int:
        return len(self.base_of)

    def layout(self, row: int) -> Layout:
        """One of the N."""
        x = {name: int(column[self.base_of[row]]) for name, column in self.base._asdict().items()}
        whole = x["shard_ranks"] == x["dp"] * x["cp"]
        words: dict[str, Any] = {
            "sequence_parallel": bool(x["sequence_parallel"]),
            "expert_tp": None if x["expert_tp"] == x["tp"] else x["expert_tp"],
            "shard_ranks": None if whole else x["shard_ranks"],
            "recompute": RECOMPUTE[x["recompute"]],
            "schedule": SCHEDULES[x["schedule"]],
            "order": self.places[self.place_of[row]].order,
        }
        return Layout(**{**x, **words})

    def column(self, name: str) -> np.ndarray:
        """A field of the base layouts, for all layouts [N]."""
        return np.asarray(getattr(self.base, name))[self.base_of]


def space(
    shape: TransformerShape, gpus: int, gpus_per_node: int, global_batch: int,
    only: Mapping[str, Sequence[Any]] | None = None, strict: bool = True,
    progress: Progress | None = None,
) -> LayoutSpace:  # fmt: skip
    """All legal layouts, perhaps none; `InputError` for numbers that fit no cluster.

    `only` narrows fields of a layout to some values; `strict`: heads must divide by tp; `progress`
    is told how far this is.
    """
    progress = progress or Progress()
    check_cluster(gpus, gpus_per_node)
    if global_batch < 1:
        raise InputError(f"expected a global batch of 1 sample or more, got {global_batch}")
    allowed = _allowed(only or {})
    divided, parts = list(_divisions(shape, gpus, allowed)), []
    for ranks in divided:
        parts.append(_of_division(shape, ranks, gpus_per_node, global_batch, allowed))
        progress(f"divisions of {gpus:,} GPUs", len(parts), len(divided))
    tried = _NONE
    if parts:
        tried = Layouts(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    runs = legal(shape, tried, strict)
    for name in allowed.keys() & set(FOLLOWING):
        runs = runs & np.isin(getattr(tried, name), list(allowed[name]))
    base = Layouts(*(column[runs] for column in tried))
    if not len(base.tp):
        return LayoutSpace(shape, gpus, gpus_per_node, global_batch, base, (), base.tp, base.tp, 0)
    names = [name for name in Division._fields if name != "zero"]
    columns = [*(getattr(base, name) for name in names), base.zero > 0]
    first, of = unique_rows(*columns)
    known: list[Place] = []
    starts, counts, alike = [], [], []
    for row in first.tolist():
        divided_by = {name: int(getattr(base, name)[row]) for name in names}
        division = Division(**divided_by, zero=bool(base.zero[row] > 0))
        found = places(division, gpus_per_node)
        starts.append(len(known))
        counts.append(len(found))
        alike.append(sum(place.alike for place in found))
        progress("divisions laid out on nodes", len(starts), len(first))
        known += found
    count = np.array(counts)[of]  # places of each base layout
    base_of = np.repeat(np.arange(len(of), dtype=np.int32), count)
    within = np.arange(len(base_of)) - np.repeat(np.cumsum(count) - count, count)
    place_of = (np.array(starts)[of][base_of] + within).astype(np.int32)
    orders = int(np.array(alike)[of].sum())
    return LayoutSpace(
        shape, gpus, gpus_per_node, global_batch, base, tuple(known), base_of, place_of, orders
    )


def unique_rows(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first row of each different one, which each row is): columns [N] of whole numbers >= 0."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column
        if key.max() > _DENSE:  # before products of many columns run over
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    return first, of.reshape(-1)


def check_cluster(gpus: int, gpus_per_node: int) -> None:
    """`InputError` unless devices fill whole nodes, or an even share of one."""
    if gpus < 1:
        raise InputError(f"expected 1 GPU or more, got {gpus}")
    if gpus <= gpus_per_node and gpus_per_node % gpus:
        below = max(n for n in range(1, gpus) if gpus_per_node % n == 0)
        above = min(n for n in range(gpus, gpus_per_node + 1) if gpus_per_node % n == 0)
        raise InputError(
            f"expected GPUs that divide a node of {gpus_per_node} or fill whole ones, got {gpus};"
            f" {below} or {above} would do"
        )
    if gpus > gpus_per_node and gpus % gpus_per_node:
        below = gpus // gpus_per_node * gpus_per_node
        raise InputError(
            f"expected whole nodes of {gpus_per_node} GPUs, got {gpus} GPUs; {below} or"
            f" {below + gpus_per_node} would do"
        )


def divisors(number: int) -> list[int]:
    """All of them, rising."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def _allowed(only: Mapping[str, Sequence[Any]]) -> dict[str, set[Any]]:
    """Values by field; words as their codes."""
    found: dict[str, set[Any]] = {}
    known = (*FREE, *FOLLOWING)
    for name, values in only.items():
        if name not in known:
            raise unknown("dimension of a layout", name, known, f"known are {', '.join(known)}")
        words = _WORDS.get(name)
        codes = SCHEDULES if name == "schedule" else RECOMPUTE
        lowest = 0 if name in ("zero", "sequence_parallel") else 1
        for value in values:
            if words is not None and value not in words:
                raise InputError(f"{name} can be {', '.join(words)}, got {value!r}")
            whole = isinstance(value, bool | int | np.integer)
            if words is None and not (whole and value >= lowest):
                raise InputError(f"{name} must be a whole number, got {value!r}")
        found[name] = {codes.index(value) if words else int(value) for value in values}
    return found


def _keep(name: str, values: Sequence[int], allowed: Mapping[str, set[Any]]) -> list[int]:
    return [value for value in values if name not in allowed or value in allowed[name]]


def _divisions(
    shape: TransformerShape, gpus: int, allowed: Mapping[str, set[Any]]
) -> Iterator[dict[str, int]]:
    """tp x cp x dp x pp = gpus; ep and how experts are cut."""
    stacks = bool(shape.decoder_layers)  # neither pipelines nor cp over two stacks are modelled
    for tp in _keep("tp", divisors(gpus), allowed):
        if tp > shape.heads:
            continue
        for pp in _keep("pp", divisors(gpus // tp), allowed):
            if pp > shape.depth or (pp > 1 and stacks):
                continue
            for cp in _keep("cp", divisors(gpus // tp // pp), allowed):
                if shape.seq % cp or (cp > 1 and stacks):
                    continue
                x = {"tp": tp, "cp": cp, "dp": gpus // tp // pp // cp, "pp": pp}
                ranks = tp * cp * x["dp"]
                for ep in _keep("ep", divisors(shape.experts) if shape.experts else [1], allowed):
                    for expert_tp in dict.fromkeys((tp, 1)) if shape.experts else (tp,):
                        if ranks % (ep * expert_tp) == 0:
                            yield {**x, "ep": ep, "expert_tp": expert_tp}


def _of_division(
    shape: TransformerShape, x: Mapping[str, int], gpus_per_node: int, global_batch: int,
    allowed: Mapping[str, set[Any]],
) -> Layouts:  # fmt: skip
    """Everything that is free once ranks are divided, as the product of its values."""
    pp = x["pp"]
    samples, remainder = divmod(global_batch, x["dp"])
    micro = [] if remainder else _keep("micro_batch", divisors(samples), allowed)
    chunks, plain = [1], [0]
    if pp > 1:
        whole = shape.depth % pp == 0
        chunks += [v for v in divisors(shape.depth // pp) if v > 1] if whole else []
        plain = [SCHEDULES.index(name) for name in PLANNED_SCHEDULES if name != "interleaved"]
    pipelines = [
        (vp, code)
        for vp in _keep("vp", chunks, allowed)
        for code in _keep("schedule", plain if vp == 1 else [INTERLEAVED], allowed)
    ]
    data = x["dp"] * x["cp"]
    sharded = [ranks for ranks in dict.fromkeys((data, math.gcd(data, gpus_per_node))) if ranks > 1]
    states = [(0, data), *((zero, ranks) for zero in (1, 2, 3) for ranks in sharded)]
    states = [state for state in states if "zero" not in allowed or state[0] in allowed["zero"]]
    recompute = _keep("recompute", range(len(RECOMPUTE)), allowed)
    sequence = _keep("sequence_parallel", (0, 1) if x["tp"] > 1 else (0,), allowed)
    axes: list[Sequence[Any]] = [micro, pipelines, states, recompute, sequence]
    if not all(map(len, axes)):
        return _NONE
    grid = [at.reshape(-1) for at in np.indices([len(axis) for axis in axes])]
    picked = [
        np.array(axis, np.int64).reshape(len(axis), -1)[at]
        for axis, at in zip(axes, grid, strict=True)
    ]
    columns = {name: np.full(len(grid[0]), value) for name, value in x.items()}
    micro_batch = picked[0][:, 0]
    columns |= {"micro_batch": micro_batch, "accumulation": samples // micro_batch}
    columns |= {"vp": picked[1][:, 0], "schedule": picked[1][:, 1]}
    columns |= {"zero": picked[2][:, 0], "shard_ranks": picked[2][:, 1]}
    columns |= {"recompute": picked[3][:, 0], "sequence_parallel": picked[4][:, 0]}
    return Layouts(**columns)
