"""All legal layouts of a model on so many devices, in columns.

The ranks are divided into tp x cp x dp x pp, factor by factor, and experts over ep of them. Each
division takes every micro-batch that divides a replica's samples, every number of chunks that
divides a stage's layers, every schedule, recompute mode and ZeRO stage, and sequence parallelism or
not. `rules.legal` tells which of them can run; `places` multiplies each by what lies where.

A base layout is one without its order: memory depends on nothing more. A partial layout leaves
schedule, chunks and ZeRO stage open, too: what a layer takes depends on nothing more, but for the
nodes that its groups lie on (`bounds.py`). Axes: G partial layouts, B base layouts, Q places of
divisions, N layouts.

`Layout.order` is which dimension varies fastest over neighbouring ranks. Dimensions of one rank
can stand anywhere, and many orders put every group on as many nodes as another does: such orders
cost the same, and the first of them in the usual order stands for all (`places`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.io import InputError, unknown
from hybridperf.training.plans.progress import Progress
from hybridperf.workloads.transformer import TransformerShape
from hybridperf.workloads.transformer.columns import (
    FOLDED,
    FULL,
    INTERLEAVED,
    NONE,
    RECOMPUTE,
    SCHEDULES,
    SPLITS_BACKWARD,
    TWO_PIPES,
    legal,
)
from hybridperf.workloads.transformer.groups import Span, span
from hybridperf.workloads.transformer.layout import ORDER, Layout, Layouts, Order

# Of every framework. Some need a backward pass cut in two: `schedules` of a framework that has them
# (`fields/frameworks/`), or whoever asks for them by name. Chimera, priced within 6 %, has a
# chooser of its own (`studies/chimera.py`)
PLANNED_SCHEDULES = ("1f1b", "gpipe", "interleaved")
_BY_NAME = (*PLANNED_SCHEDULES, *(SCHEDULES[code] for code in SPLITS_BACKWARD))
# what may be narrowed; the last four follow from the others
DIMENSIONS = (
    "tp", "cp", "ep", "pp", "vp", "zero", "micro_batch", "recompute", "schedule",
    "sequence_parallel", "dp", "expert_tp", "shard_ranks", "accumulation",
)  # fmt: skip
_DENSE = 2**32
_WORDS = {"recompute": RECOMPUTE, "schedule": _BY_NAME}


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
        """The division of ranks as `Layouts` of numbers."""
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
def places(
    division: Division, gpus_per_node: int, groups: tuple[str, ...] = _GROUPS
) -> tuple[Place, ...]:
    """The orders of a division that differ for some groups, the usual one first."""
    columns = division.columns
    wide = tuple(name for name in ORDER if name != "ep" and getattr(columns, name) > 1)
    names = groups + (_SHARDED if division.zero else ())
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

    def __len__(self) -> int:
        return len(self.base_of)

    def layout(self, row: int) -> Layout:
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

    def nodes(self, groups: Sequence[str], rows: Any = slice(None)) -> np.ndarray:
        """On how many nodes groups of some layouts lie, int [groups, n]."""
        spans = [[place.spans[name].nodes for name in groups] for place in self.places]
        return np.array(spans, int)[self.place_of[rows]].T

    def column(self, name: str) -> np.ndarray:
        """A field of the base layouts, for all layouts [N]."""
        return np.asarray(getattr(self.base, name))[self.base_of]


@dataclasses.dataclass(frozen=True)
class PartialLayouts:
    """The partial layouts of one model, number of devices and global batch that have a legal
    completion.
    """

    shape: TransformerShape
    gpus: int
    gpus_per_node: int
    global_batch: int
    columns: Layouts  # [G] each; of 1F1B without chunks, nothing sharded
    allowed: Mapping[str, set[Any]]  # values by field
    pipelines: np.ndarray  # int [n, 2] (vp, schedule) that are legal, of one after the other
    first: np.ndarray  # int [G] of each its first pipeline
    counts: np.ndarray  # int [G] and how many it has

    def __len__(self) -> int:
        return len(self.first)

    @functools.cached_property
    def completions(self) -> np.ndarray:
        """How many base layouts complete each [G]."""
        rows = np.repeat(np.arange(len(self)), self.counts)
        keys, of = np.unique(self._sharded_as(rows, self.pipelines[:, 1]), return_inverse=True)
        states = np.array([len(self._states(one)) for one in keys.tolist()], int)[of]
        return np.add.reduceat(states, self.first) if len(self) else states

    @functools.cached_property
    def most_chunks(self) -> np.ndarray:
        """Chunks of a stage in the pipeline of each that has most [G], as `bounding_chunks`."""
        chunks = bounding_chunks(self.pipelines[:, 0], self.pipelines[:, 1])
        return np.maximum.reduceat(chunks, self.first)

    @property
    def orders(self) -> int:
        """Layouts that complete them, each order of their dimensions counted apart."""
        x = self.columns
        wide = sum((one > 1).astype(int) for one in (x.tp, x.cp, x.dp, x.pp))
        alike = np.array([math.factorial(count) for count in range(5)])[wide]
        return int((self.completions * alike).sum())

    def bases(self, at: np.ndarray) -> Layouts:
        """The base layouts that complete some of them, in their order."""
        rows, pipelines = _spread(self.counts[at], self.first[at])
        one = {name: column[at[rows]] for name, column in self.columns._asdict().items()}
        one["vp"], one["schedule"] = self.pipelines[pipelines].T
        more, states = crossed(self._sharded_as(at[rows], one["schedule"]), self._states, 2)
        one = {name: column[more] for name, column in one.items()}
        one["zero"], one["shard_ranks"] = states.T
        return Layouts(**one)

    @property
    def all_bases(self) -> Layouts:
        """The base layouts that complete any of them."""
        return self.bases(np.arange(len(self)))

    def _sharded_as(self, rows: np.ndarray, schedule: np.ndarray) -> np.ndarray:
        """What decides how partial layouts with such schedules can be sharded, as one number."""
        most = np.where(np.isin(schedule, SPLITS_BACKWARD), 2, 3)
        most = np.where(np.isin(schedule, TWO_PIPES), 0, most)
        return 4 * (self.columns.dp * self.columns.cp)[rows] + most

    def _states(self, sharded_as: int) -> list[tuple[int, int]]:
        """(ZeRO stage, over how many ranks) that layouts can have, by `_sharded_as`."""
        data_ranks, most = divmod(sharded_as, 4)
        shards = dict.fromkeys((data_ranks, math.gcd(data_ranks, self.gpus_per_node)))
        stages = range(1, most + 1)  # as `columns.py` and `step.py` have it
        found = [(0, data_ranks), *((zero, n) for zero in stages for n in shards if n > 1)]
        zeros, ranks = self.allowed.get("zero"), self.allowed.get("shard_ranks")
        return [
            (zero, n)
            for zero, n in found
            if (zeros is None or zero in zeros) and (ranks is None or n in ranks)
        ]


def partial_layouts(
    shape: TransformerShape, gpus: int, gpus_per_node: int, global_batch: int,
    only: Mapping[str, Sequence[Any]] | None = None, strict: bool = True,
    schedules: Sequence[str] = PLANNED_SCHEDULES,
) -> PartialLayouts:  # fmt: skip
    """All partial layouts, perhaps none; `InputError` for numbers that fit no cluster.

    `only` narrows fields of a layout to some values; `strict`: heads must divide by tp; `schedules`
    of the framework, to which `only` adds those it names.
    """
    check_cluster(gpus, gpus_per_node)
    if global_batch < 1:
        raise InputError(f"expected a global batch of 1 sample or more, got {global_batch}")
    allowed = _allowed(only or {})

    def micro_batches(dp: int) -> list[tuple[int]]:
        samples, remainder = divmod(global_batch, dp)
        sizes = [] if remainder else divisors(samples)
        return [(size,) for size in _keep("micro_batch", sizes, allowed)]

    def cuts(tp: int) -> list[tuple[int, int]]:
        modes = _keep("recompute", range(len(RECOMPUTE)), allowed)
        sequence = _keep("sequence_parallel", (0, 1) if tp > 1 else (0,), allowed)
        return list(itertools.product(modes, sequence))

    divided = np.array(list(_divisions(shape, gpus, allowed)), np.int64).reshape(-1, 6)
    x = dict(zip(("tp", "pp", "cp", "dp", "ep", "expert_tp"), divided.T, strict=True))
    rows, micro = crossed(x["dp"], micro_batches, 1)
    x = {name: column[rows] for name, column in x.items()} | {"micro_batch": micro[:, 0]}
    rows, modes = crossed(x["tp"], cuts, 2)
    x = {name: column[rows] for name, column in x.items()}
    nothing, one = np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64)
    columns = Layouts(
        **x, accumulation=global_batch // x["dp"] // x["micro_batch"], recompute=modes[:, 0],
        sequence_parallel=modes[:, 1], vp=one, schedule=nothing, zero=nothing,
        shard_ranks=x["dp"] * x["cp"],
    )  # fmt: skip
    runs = legal(shape, columns, strict) & np.ones(len(rows), bool)
    for name in allowed.keys() & {"dp", "expert_tp", "accumulation"}:
        runs &= np.isin(getattr(columns, name), list(allowed[name]))
    columns = Layouts(*(column[runs] for column in columns))
    codes = sorted({SCHEDULES.index(name) for name in schedules} | allowed.get("schedule", set()))
    rows, pipelines = crossed(columns.pp, lambda pp: _pipelines(shape, pp, allowed, codes), 2)
    tried = Layouts(*(column[rows] for column in columns))
    runs = legal(shape, tried._replace(vp=pipelines[:, 0], schedule=pipelines[:, 1]), strict)
    rows, pipelines = rows[runs], pipelines[runs]
    counts = np.bincount(rows, minlength=len(columns.tp))
    some, first = counts > 0, np.cumsum(counts) - counts
    columns = Layouts(*(column[some] for column in columns))
    return PartialLayouts(
        shape, gpus, gpus_per_node, global_batch, columns, allowed, pipelines, first[some],
        counts[some],
    )  # fmt: skip


def space(
    shape: TransformerShape, gpus: int, gpus_per_node: int, global_batch: int,
    only: Mapping[str, Sequence[Any]] | None = None, strict: bool = True,
) -> LayoutSpace:  # fmt: skip
    """All legal layouts, perhaps none; arguments and errors as those of `partial_layouts`."""
    found = partial_layouts(shape, gpus, gpus_per_node, global_batch, only, strict)
    return laid_out(found, found.all_bases)


def laid_out(
    partial: PartialLayouts, base: Layouts, progress: Progress | None = None,
    groups: tuple[str, ...] = _GROUPS,
) -> LayoutSpace:  # fmt: skip
    """Base layouts that complete some partial ones, in every order that differs for some groups."""
    progress, per_node = progress or Progress(), partial.gpus_per_node
    names = [name for name in Division._fields if name != "zero"]
    columns = [*(getattr(base, name) for name in names), base.zero > 0]
    first, of = unique_rows(*columns) if len(base.tp) else (base.tp, base.tp)
    known: list[Place] = []
    starts, counts = [], []
    for row in first.tolist():
        divided_by = {name: int(getattr(base, name)[row]) for name in names}
        found = places(Division(**divided_by, zero=bool(base.zero[row] > 0)), per_node, groups)
        starts.append(len(known))
        counts.append(len(found))
        progress("divisions laid out on nodes", len(starts), len(first))
        known += found
    base_of, place_of = _spread(np.array(counts, int)[of], np.array(starts, int)[of])
    return LayoutSpace(
        partial.shape, partial.gpus, per_node, partial.global_batch, base, tuple(known),
        base_of.astype(np.int32), place_of.astype(np.int32),
    )  # fmt: skip


def joined(parts: Sequence[tuple[LayoutSpace, np.ndarray]]) -> LayoutSpace:
    """Some rows of each of some spaces of one model and cluster, one after the other."""
    bases, known = list[Layouts](), list[Place]()
    base_of, place_of, held = list[np.ndarray](), list[np.ndarray](), 0
    for space, rows in parts:
        own, of = np.unique(space.base_of[rows], return_inverse=True)
        on, at = np.unique(space.place_of[rows], return_inverse=True)
        base_of.append((held + of).astype(np.int32))
        place_of.append((len(known) + at).astype(np.int32))
        bases.append(Layouts(*(column[own] for column in space.base)))
        known += [space.places[one] for one in on.tolist()]
        held += len(own)
    base = Layouts(*map(np.concatenate, zip(*bases, strict=True)))
    return dataclasses.replace(
        parts[0][0], base=base, places=tuple(known), base_of=np.concatenate(base_of),
        place_of=np.concatenate(place_of),
    )  # fmt: skip


def bounding_chunks(chunks: np.ndarray, schedule: np.ndarray) -> np.ndarray:
    """Chunks of a stage that fill and drain no longer than a schedule: some may not wait."""
    return np.where(np.isin(schedule, SPLITS_BACKWARD), np.inf, chunks)


def by_rule_of_thumb(x: Layouts, gpus_per_node: int) -> np.ndarray:
    """Places of the layouts that are nearest to the rule of thumb (`explain.NAIVE`), if any are."""
    plain = (x.cp == 1) & (x.ep == 1) & (x.vp == 1) & (x.micro_batch == 1)
    plain = plain & (x.sequence_parallel == 0) & (x.schedule == 0)
    for mode, zero in ((FULL, 0), (FULL, 1), (NONE, 0), (NONE, 1)):
        here = np.flatnonzero(plain & (x.recompute == mode) & (x.zero == zero))
        if len(here):
            inside = np.where(x.tp[here] <= gpus_per_node, x.tp[here], -x.tp[here])
            here = here[inside == inside.max()]
            return here[x.pp[here] == x.pp[here].min()]
    return np.zeros(0, int)


def _spread(counts: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every row with each of its `counts` options from `first` on: (rows [n], options [n])."""
    rows = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, first[rows] + within


def crossed(
    key: np.ndarray, options: Callable[[int], Sequence[tuple[int, ...]]], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Every row with each option of its key: (rows [n], options [n, width])."""
    known, of = np.unique(key, return_inverse=True)
    each = [options(one) for one in known.tolist()]
    counts = np.array([len(one) for one in each], int)
    table = np.array([*itertools.chain.from_iterable(each)], np.int64).reshape(-1, width)
    rows, at = _spread(counts[of], (np.cumsum(counts) - counts)[of])
    return rows, table[at]


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
    """All divisors of a number in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def _allowed(only: Mapping[str, Sequence[Any]]) -> dict[str, set[Any]]:
    """Values by field; words as their codes."""
    found: dict[str, set[Any]] = {}
    for name, values in only.items():
        if name not in DIMENSIONS:
            known = f"known are {', '.join(DIMENSIONS)}"
            raise unknown("dimension of a layout", name, DIMENSIONS, known)
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
) -> Iterator[tuple[int, ...]]:
    """(tp, pp, cp, dp, ep, ranks that each expert is cut over): tp x cp x dp x pp = gpus."""
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
                ranks = gpus // pp
                for ep in _keep("ep", divisors(shape.experts) if shape.experts else [1], allowed):
                    for expert_tp in dict.fromkeys((tp, 1)) if shape.experts else (tp,):
                        if ranks % (ep * expert_tp) == 0:
                            yield tp, pp, cp, ranks // tp // cp, ep, expert_tp


def _pipelines(
    shape: TransformerShape, pp: int, allowed: Mapping[str, set[Any]], codes: Sequence[int]
) -> list[tuple[int, int]]:
    """(chunks, schedule) of so many stages, of the schedules of some codes."""
    chunks, plain = [1], [0]
    if pp > 1:
        whole = shape.depth % pp == 0
        chunks += [v for v in divisors(shape.depth // pp) if v > 1] if whole else []
        plain = [code for code in codes if code not in (INTERLEAVED, *FOLDED)]
    several = [INTERLEAVED], [INTERLEAVED, *(code for code in codes if code in FOLDED)]
    return [
        (vp, code)
        for vp in _keep("vp", chunks, allowed)
        for code in _keep("schedule", plain if vp == 1 else several[vp == 2], allowed)
    ]
