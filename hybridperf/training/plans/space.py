"""All legal layouts of a model on so many devices, in columns.

The ranks are divided into tp x cp x dp x pp, factor by factor, and experts over ep of them. Each
division takes every micro-batch that divides a replica's samples, every number of chunks that
divides a stage's layers, every schedule, recompute mode and ZeRO stage, and sequence parallelism or
not. `rules.legal` says which of them can run. What lies where (`places.py`) multiplies each by a
few.

A base layout is one without its order: memory depends on nothing more. Axes: B base layouts, Q
places of divisions, N layouts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.io import InputError, unknown
from hybridperf.training.plans.placements import Division, Place, places
from hybridperf.training.plans.progress import Progress
from hybridperf.workloads.transformer import TransformerShape
from hybridperf.workloads.transformer.codes import INTERLEAVED, RECOMPUTE, SCHEDULES
from hybridperf.workloads.transformer.layout import Layout, Layouts
from hybridperf.workloads.transformer.rules import legal

# The composition of a step prices zero bubble and Chimera, too (`steps/pipelines.py`), which are
# not planned: the one needs a backward pass cut in two, which few frameworks have; the other,
# priced within 6 %, has a chooser of its own (`choices/pipeline.py`)
PLANNED_SCHEDULES = ("1f1b", "gpipe", "interleaved")
FREE = (
    "tp",
    "cp",
    "ep",
    "pp",
    "vp",
    "zero",
    "micro_batch",
    "recompute",
    "schedule",
    "sequence_parallel",
)
FOLLOWING = (
    "dp",
    "expert_tp",
    "shard_ranks",
    "accumulation",
)  # narrowed once the free ones are put together
_NONE = Layouts(*([np.zeros(0, np.int64)] * len(Layouts._fields)))
_DENSE = 2**32
_WORDS = {"recompute": RECOMPUTE, "schedule": PLANNED_SCHEDULES}


@dataclasses.dataclass(frozen=True)
class Space:
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
        return Layout(
            tp=x["tp"],
            sequence_parallel=bool(x["sequence_parallel"]),
            pp=x["pp"],
            vp=x["vp"],
            dp=x["dp"],
            cp=x["cp"],
            ep=x["ep"],
            expert_tp=None if x["expert_tp"] == x["tp"] else x["expert_tp"],
            zero=x["zero"],  # type: ignore[arg-type]
            shard_ranks=None if whole else x["shard_ranks"],
            micro_batch=x["micro_batch"],
            accumulation=x["accumulation"],
            recompute=RECOMPUTE[x["recompute"]],  # type: ignore[arg-type]
            schedule=SCHEDULES[x["schedule"]],
            order=self.places[self.place_of[row]].order,
        )

    def column(self, name: str) -> np.ndarray:
        """A field of the base layouts, for all layouts [N]."""
        return np.asarray(getattr(self.base, name))[self.base_of]


def space(
    shape: TransformerShape, gpus: int, gpus_per_node: int, global_batch: int,
    only: Mapping[str, Sequence[Any]] | None = None, strict: bool = True,
    progress: Progress | None = None,
) -> Space:  # fmt: skip
    """All legal layouts; `only` narrows fields of a layout to some values. May be empty.
    `InputError` for numbers that fit no cluster.
    """
    progress = progress or Progress()
    check_cluster(gpus, gpus_per_node)
    if global_batch < 1:
        raise InputError(f"expected a global batch of 1 sample or more, got {global_batch}")
    allowed = _allowed(only or {})
    divided, parts = list(_divisions(shape, gpus, allowed)), []
    for division in divided:
        parts.append(_of_division(shape, division, gpus_per_node, global_batch, allowed))
        progress(f"divisions of {gpus:,} GPUs", len(parts), len(divided))
    tried = (
        Layouts(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        if parts
        else _NONE
    )
    runs = legal(shape, tried, strict)
    for name in allowed.keys() & set(FOLLOWING):
        runs = runs & np.isin(getattr(tried, name), list(allowed[name]))
    base = Layouts(*(column[runs] for column in tried))
    if not len(base.tp):
        return Space(shape, gpus, gpus_per_node, global_batch, base, (), base.tp, base.tp, 0)
    names = [name for name in Division._fields if name != "zero"]
    columns = [*(getattr(base, name) for name in names), base.zero > 0]
    first, of = unique_rows(*columns)
    known: list[Place] = []
    starts, counts, alike = [], [], []
    for row in first.tolist():
        said: dict[str, Any] = {
            name: int(column[row]) for name, column in zip([*names, "zero"], columns, strict=True)
        }
        found = places(Division(**{**said, "zero": bool(said["zero"])}), gpus_per_node)
        starts.append(len(known))
        counts.append(len(found))
        alike.append(sum(place.alike for place in found))
        progress("divisions laid out on nodes", len(starts), len(first))
        known += found
    count = np.array(counts)[of]  # places of each base layout
    base_of = np.repeat(np.arange(len(of), dtype=np.int32), count)
    within = np.arange(len(base_of)) - np.repeat(np.cumsum(count) - count, count)
    place_of = (np.array(starts)[of][base_of] + within).astype(np.int32)
    return Space(
        shape,
        gpus,
        gpus_per_node,
        global_batch,
        base,
        tuple(known),
        base_of,
        place_of,
        int(np.array(alike)[of].sum()),
    )


def unique_rows(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the first row of each different one, which of them each row is): columns [N] of whole
    numbers from zero.
    """
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column
        if key.max() > _DENSE:  # before products of many columns run over
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    return first, of.reshape(-1)


def check_cluster(gpus: int, gpus_per_node: int) -> None:
    """`InputError` with the nearest numbers that work, unless devices fill whole nodes, or an even
    share of one.
    """
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
    for name, values in only.items():
        if name not in (*FREE, *FOLLOWING):
            raise unknown(
                "dimension of a layout",
                name,
                (*FREE, *FOLLOWING),
                f"known are {', '.join((*FREE, *FOLLOWING))}",
            )
        words = _WORDS.get(name)
        codes = SCHEDULES if name == "schedule" else RECOMPUTE
        for value in values:
            if words is not None and value not in words:
                raise InputError(f"{name} can be {', '.join(words)}, got {value!r}")
            if words is None and not (
                isinstance(value, bool | int | np.integer)
                and value >= (1 if name not in ("zero", "sequence_parallel") else 0)
            ):
                raise InputError(f"{name} must be a whole number, got {value!r}")
        found[name] = {codes.index(value) if words else int(value) for value in values}
    return found


def _keep(name: str, values: Sequence[int], allowed: Mapping[str, set[Any]]) -> list[int]:
    return [value for value in values if name not in allowed or value in allowed[name]]


def _divisions(
    shape: TransformerShape, gpus: int, allowed: Mapping[str, set[Any]]
) -> Iterator[dict[str, int]]:
    """tp x cp x dp x pp = gpus; ep and how experts are cut."""
    for tp in _keep("tp", divisors(gpus), allowed):
        if tp > shape.heads:
            continue
        for pp in _keep("pp", divisors(gpus // tp), allowed):
            if pp > shape.depth or (
                pp > 1 and shape.decoder_layers
            ):  # pipelines over two stacks are not modelled: `parts.py`
                continue
            for cp in _keep("cp", divisors(gpus // tp // pp), allowed):
                if shape.seq % cp or (
                    cp > 1 and shape.decoder_layers
                ):  # attention to an encoder is not divided: `parallel.py`
                    continue
                dp = gpus // tp // pp // cp
                for ep in _keep("ep", divisors(shape.experts) if shape.experts else [1], allowed):
                    for expert_tp in dict.fromkeys((tp, 1)) if shape.experts else (tp,):
                        if (tp * cp * dp) % (ep * expert_tp) == 0:
                            yield {
                                "tp": tp,
                                "cp": cp,
                                "dp": dp,
                                "pp": pp,
                                "ep": ep,
                                "expert_tp": expert_tp,
                            }


def _of_division(
    shape: TransformerShape,
    x: Mapping[str, int],
    gpus_per_node: int,
    global_batch: int,
    allowed: Mapping[str, set[Any]],
) -> Layouts:
    """Everything that is free once ranks are divided, as the product of its values."""
    samples, remainder = divmod(global_batch, x["dp"])
    micro = [] if remainder else _keep("micro_batch", divisors(samples), allowed)
    chunks = [1] + (
        [v for v in divisors(shape.depth // x["pp"]) if v > 1]
        if x["pp"] > 1 and shape.depth % x["pp"] == 0
        else []
    )
    plain = (
        [SCHEDULES.index(name) for name in PLANNED_SCHEDULES if name != "interleaved"]
        if x["pp"] > 1
        else [0]
    )
    pipelines = [
        (vp, code)
        for vp in _keep("vp", chunks, allowed)
        for code in _keep("schedule", plain if vp == 1 else [INTERLEAVED], allowed)
    ]
    data = x["dp"] * x["cp"]
    sharded = [data] if data == 1 else list(dict.fromkeys((data, math.gcd(data, gpus_per_node))))
    states = [(0, data)] + (
        [(zero, ranks) for zero in (1, 2, 3) for ranks in sharded if ranks > 1] if data > 1 else []
    )
    states = [state for state in states if "zero" not in allowed or state[0] in allowed["zero"]]
    axes: list[Sequence[Any]] = [
        micro, pipelines, states, _keep("recompute", range(len(RECOMPUTE)), allowed),
        _keep("sequence_parallel", (0, 1) if x["tp"] > 1 else (0,), allowed),
    ]  # fmt: skip
    if not all(map(len, axes)):
        return _NONE
    grid = [at.reshape(-1) for at in np.indices([len(axis) for axis in axes])]
    picked = [
        np.array(axis, np.int64).reshape(len(axis), -1)[at]
        for axis, at in zip(axes, grid, strict=True)
    ]
    rows = len(grid[0])
    whole = {name: np.full(rows, value) for name, value in x.items()}
    micro_batch = picked[0][:, 0]
    return Layouts(
        whole["tp"], picked[4][:, 0], whole["pp"], picked[1][:, 0], whole["dp"], whole["cp"],
        whole["ep"], whole["expert_tp"], picked[2][:, 0], picked[2][:, 1], micro_batch,
        samples // micro_batch, picked[3][:, 0], picked[1][:, 1],
    )  # fmt: skip
