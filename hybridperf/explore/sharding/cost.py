"""Seconds that a placement decides: the slowest rank's lookups, and all-to-alls of unequal bytes.

    step = max_r forward_r + a2a + a2a + max_r backward_r
    forward_r = floor + pnorm(sum core, sum memory) + sum serial

Sums are over the tables of rank r, looked up in one fused kernel; every rank leaves a collective
when the last one has come. Core (compute, scattered lines), memory (bytes at the level their reuse
finds them) and serial seconds are the parts of the calibrated form of `roofline.py`; what was
learned beyond it of a table's lookup multiplies its parts. The floor is paid once.

Rank r sends the pooled rows of its tables for every other rank's share of the batch, s_r = sum_t
dim_t x bytes x batch / R to each of them, and gets their gradients back the same way. In the words
of `collectives/traced.py` what the busiest link carries is then

    inside = (g - 1) max_r s_r,   across = (n - g) max_node sum_r s_r        (nobody receives more
                                  than the busiest sends)

so a placement is judged by four maxima. What is the same for all placements (MLPs, interaction,
their all-reduce) is left out.

These sums are for the search alone: they take each table's reuse as if it were alone, while in one
kernel the rows of the others come between. What the search comes to is priced kernel by kernel, as
its ranks run it (`KernelPricer`): one fused kernel over a rank's tables, sharing caches; on a CPU
one table after the other, as XLA does it. Of 200 tables on 16 ranks a search weighs a move in 0.3
us by the sums. By the price, which needs the access distributions of all tables that share a
kernel, it takes 0.1 s (2026-11, one core of an EPYC).

Axes: B placements, T tables, R ranks, C = len(COLUMNS). Everything takes NumPy (float64) or JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from hybridperf.collectives.traced import AllToAll
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import PeakMemory, Workload
from hybridperf.hardware import DTYPE_BYTES, Device, canonical_dtype
from hybridperf.io import InputError
from hybridperf.model import GROUP_KNOBS, OpTable, PerfModel, Platform, canonical
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.model.step_table import row_seconds
from hybridperf.ops import OpCall
from hybridperf.ops.embedding import Table, table_bytes
from hybridperf.ops.embedding_bag import Direction, lookup_calls
from hybridperf.ops.roofline import Work, op_parts, roof_s

COLUMNS = (
    "forward_core_s", "forward_memory_s", "forward_serial_s",
    "backward_core_s", "backward_memory_s", "backward_serial_s", "sent_bytes", "memory_bytes",
)  # fmt: skip
SENT, MEMORY = COLUMNS.index("sent_bytes"), COLUMNS.index("memory_bytes")
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
_BLOCK_NUMBERS = 1 << 22  # one-hot numbers at once: 16 MB
Most = Callable[[Any], Any]  # [..., N] -> [...]: a maximum, sharp or smooth


class PlacementParts(NamedTuple):
    """What a step's seconds are made of, [...] each."""

    forward_s: Any
    backward_s: Any
    alltoall_s: Any  # of one of both

    @property
    def step_s(self) -> Any:
        return self.forward_s + self.backward_s + 2 * self.alltoall_s


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PlacementCost:
    """All that scoring a placement needs, as arrays."""

    tables: Any  # [T, C] what each table adds to its rank
    floors: Any  # [2] seconds of a kernel forward and backward, paid by ranks that hold a table
    limit_bytes: Any  # [] memory of each rank
    alltoall: AllToAll | None  # None: one rank
    ranks: int = dataclasses.field(metadata={"static": True})
    nodes: int = dataclasses.field(metadata={"static": True})
    smoothing: tuple[float, float] = dataclasses.field(metadata={"static": True})

    def lookup_seconds(self, sums: Any, xp: ModuleType = np) -> tuple[Any, Any]:
        """(forward, backward) [...] of ranks whose tables add up to `sums` [..., C]."""
        out = []
        for at, (start, q) in enumerate(zip((0, 3), self.smoothing, strict=True)):
            core, memory, serial = (sums[..., start + part] for part in range(3))
            some = xp.where(core + memory + serial > 0, self.floors[at], 0.0)
            out.append(roof_s(some, (core, memory), q, serial, xp))
        return out[0], out[1]

    def parts(
        self, forward_s: Any, backward_s: Any, sent: Any, node_sent: Any, xp: ModuleType = np
    ) -> PlacementParts:
        """Parts of a step from maxima [...]: two lookups' seconds, bytes of a rank and a node."""
        if self.alltoall is None:
            return PlacementParts(forward_s, backward_s, 0.0 * forward_s)
        g = self.ranks // self.nodes
        talking = xp.clip(xp.where(sent > 0, node_sent, g) / xp.where(sent > 0, sent, 1), 1.0, g)
        inside, across = (g - 1) * sent, (self.ranks - g) * node_sent
        alltoall_s = self.alltoall.of_traffic(inside, across, talking, xp=xp)
        return PlacementParts(forward_s, backward_s, alltoall_s)

    def of_ranks(self, sums: Any, most: Most | None = None, xp: ModuleType = np) -> PlacementParts:
        """Parts of a step from `sums` [..., R, C] of ranks; `most` replaces the maximum."""
        most = most or (lambda values: values.max(-1))
        columns = *self.lookup_seconds(sums, xp), sums[..., SENT], self.by_node(sums)
        forward_s, backward_s, sent, node_sent = map(most, columns)
        return self.parts(forward_s, backward_s, sent, node_sent, xp)

    def by_node(self, sums: Any) -> Any:
        """Bytes that nodes send [..., N], from `sums` [..., R, C] of ranks."""
        sent = sums[..., SENT]
        return sent.reshape(*sent.shape[:-1], self.nodes, self.ranks // self.nodes).sum(-1)

    def sums(self, placement: Sequence[int] | np.ndarray) -> np.ndarray:
        """What each rank holds [R, C], from ranks by table [T]."""
        out = np.zeros((self.ranks, len(COLUMNS)))
        np.add.at(out, np.asarray(placement, int), self.tables)
        return out

    def over_bytes(self, sums: Any) -> Any:
        """Bytes [...] by which ranks exceed their memory, from what each holds [..., C]."""
        return np.maximum(sums[..., MEMORY] - self.limit_bytes * (1 + 1e-9), 0.0)

    def fits(self, placement: Sequence[int] | np.ndarray) -> bool:
        """Whether no rank holds more than its memory."""
        return not self.over_bytes(self.sums(placement)).any()

    def step_s(self, placement: Sequence[int] | np.ndarray) -> float:
        """Seconds of one placement, float64."""
        return float(self.of_ranks(self.sums(placement)).step_s)

    def bound_s(self) -> float:
        """Lower bound: the largest table alone, or an even share (p-norms are convex)."""
        even = self.tables.sum(0) / self.ranks
        each = self.lookup_seconds(self.tables)
        shared = self.lookup_seconds(even)
        sent = max(self.tables[:, SENT].max(), even[SENT])
        by_node = max(self.tables[:, SENT].max(), even[SENT] * (self.ranks // self.nodes))
        pairs = zip(each, shared, strict=True)
        forward_s, backward_s = (np.float64(max(one.max(), even_s)) for one, even_s in pairs)
        parts = self.parts(forward_s, backward_s, np.float64(sent), np.float64(by_node))
        return float(parts.step_s)


def placement_seconds(cost: PlacementCost, placements: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Seconds [B] of placements [B, T], compiled; bytes [B] beyond the fullest rank's memory."""
    placements = np.asarray(placements, np.int32)
    seconds, over = _scored(canonical(cost), placements)
    return np.asarray(seconds, np.float64), np.asarray(over, np.float64)


@jax.jit
def _scored(cost: PlacementCost, placements: Any) -> tuple[Any, Any]:
    def one(placement: Any) -> tuple[Any, Any]:
        held = jax.nn.one_hot(placement, cost.ranks, dtype=cost.tables.dtype)  # [T, R]
        sums = jnp.matmul(held.T, cost.tables, precision=jax.lax.Precision.HIGHEST)
        over = jnp.maximum(sums[:, MEMORY].max() - cost.limit_bytes, 0)
        return cost.of_ranks(sums, xp=jnp).step_s, over

    block = max(1, min(len(placements), _BLOCK_NUMBERS // (cost.ranks * len(cost.tables))))
    return jax.lax.map(one, placements, batch_size=block)


def cost_of(
    tables: Sequence[Table], ranks: int, *, model: PerfModel, batch: float, memory_bytes: float,
    nodes: int = 1, optimizer: str = "sgd", dtype: str | None = None,
) -> PlacementCost:  # fmt: skip
    """The cost of placing tables on `ranks` of the model's devices.

    `batch`: bags looked up in a step by all ranks together. `dtype`: number format in which bags
    travel, default each table's own.
    """
    if ranks > 1 and model.collectives is None:
        expected = f"expected a model of {model.device.id} that knows collectives"
        mend = "name the system (--system NAME) or fit its collectives into the model's folder"
        raise InputError(f"{expected} for its all-to-all, got one that knows none; {mend}")
    ways = [_lookups(model, tables, batch, way, optimizer) for way in DIRECTIONS]
    parts, floors, smoothing = zip(*ways, strict=True)
    widths = [DTYPE_BYTES[canonical_dtype(dtype or table.dtype)] for table in tables]
    sent = [table.dim * width * batch / ranks for table, width in zip(tables, widths, strict=True)]
    own = np.array([sent, [table_bytes(table, optimizer) for table in tables]]).T
    fabric = model.collectives
    return PlacementCost(
        tables=np.concatenate([*parts, own], 1),
        floors=np.array(floors),
        limit_bytes=np.float64(memory_bytes),
        alltoall=AllToAll.of(fabric, ranks, ranks // nodes) if ranks > 1 and fabric else None,
        ranks=ranks,
        nodes=nodes,
        smoothing=smoothing,
    )


def _lookups(
    model: PerfModel, tables: Sequence[Table], batch: float, direction: Direction, optimizer: str
) -> tuple[np.ndarray, float, float]:
    """(core, memory and serial seconds of each table's lookup [T, 3], floor, q of the p-norm)."""
    of = options(model, direction, optimizer)
    calls = [lookup_calls([table], batch, direction, in_step=True, **of) for table in tables]
    table, platform = model.table(calls), model.platform()
    parts = np.stack(_parts(canonical(table), canonical(platform)), -1).astype(np.float64)
    parts *= np.exp(table.correction)[:, None]
    group, knobs = int(table.group[0]), platform.knobs
    return parts, float(knobs.floor_s[group]), float(knobs.smoothing[group])


def options(model: PerfModel, direction: Direction, optimizer: str) -> dict[str, Any]:
    """Further arguments of `lookup_calls`.

    XLA on a CPU adds every lookup's gradient separately; fused GPU kernels first merge those of a
    row.
    """
    duplicates = "each" if model.device.kind == "cpu" and optimizer == "sgd" else "merged"
    return {"optimizer": optimizer, "duplicates": duplicates} if direction == "backward" else {}


@jax.jit
def _parts(table: OpTable, platform: Platform) -> Any:
    """Core, memory and serial seconds of each row, [U] each, by the closed form alone."""

    def one(work: Work, peak: Any, group: Any) -> Any:
        of_group = {name: getattr(platform.knobs, name)[group] for name in GROUP_KNOBS}
        knobs = dataclasses.replace(platform.knobs, **of_group)
        peak = peak * platform.peak_flops_scale
        device = Device(peak, platform.memory_bytes_per_s, platform.level_bytes)
        return op_parts(work, device, knobs)

    return jax.vmap(one)(table.work, table.peak_flops_per_s, table.group)


class KernelPricer:
    """Prices placements kernel by kernel; a rank that holds the same tables is priced once."""

    def __init__(
        self, cost: PlacementCost, tables: Sequence[Table], model: PerfModel, batch: float,
        optimizer: str,
    ):  # fmt: skip
        self._cost, self._tables, self._model = cost, list(tables), model
        self._batch, self._optimizer = batch, optimizer
        self._known: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, 0.0)}

    def lookup_seconds(self, placement: Sequence[int] | np.ndarray) -> np.ndarray:
        """Forward and backward of each rank [2, R]."""
        held = self._held(placement)
        if new := [some for some in dict.fromkeys(held) if some not in self._known]:
            self._price(new)
        return np.array([self._known[some] for some in held]).T

    def parts(self, placement: Sequence[int] | np.ndarray) -> PlacementParts:
        """Seconds of a step by part under a placement (rank of each table)."""
        forward_s, backward_s = self.lookup_seconds(placement)
        sums = self._cost.sums(placement)
        maxima = forward_s, backward_s, sums[:, SENT], self._cost.by_node(sums)
        return self._cost.parts(*map(np.max, maxima))

    def workload(self, placement: Sequence[int] | np.ndarray) -> Workload:
        """The same as a step for `predict`, which gives its interval."""
        ranks, build, calls = range(self._cost.ranks), GraphBuilder(), list[Call]()
        sums = self._cost.sums(placement)

        def look_up(direction: Direction, after: Mapping[int, int]) -> list[int]:
            nodes = []
            for rank, some in enumerate(self._held(placement)):
                waits, label = [after[rank]] if after else [], f"lookups {direction}"
                for call in self._calls(some, direction):
                    calls.append(call)
                    nodes.append(build.op(len(calls), label=label, rank=rank, after=waits))
            return nodes

        last = look_up("forward", {})
        met: dict[int, int] = {}
        if self._cost.alltoall is not None:
            pairs = np.repeat(sums[:, SENT, None], len(ranks), 1)
            for what, sizes in (("bags", pairs), ("gradients", pairs.T)):
                pair_bytes, label = tuple(map(tuple, sizes.tolist())), f"all-to-all of {what}"
                calls.append(CollectiveCall.between(pair_bytes, self._cost.nodes))
                met = build.collective(len(calls), label=label, ranks=ranks, after=last)
                last = []
        look_up("backward", met)
        fullest = int(sums[:, MEMORY].argmax())
        held = PeakMemory(float(sums[fullest, MEMORY]), f"rank {fullest} holds tables of")
        name = "what placement decides of a step"
        return Workload(name, build.build(), tuple(calls), peak_memory=held)

    def _held(self, placement: Sequence[int] | np.ndarray) -> list[tuple[int, ...]]:
        at = np.asarray(placement)
        return [tuple(np.flatnonzero(at == rank).tolist()) for rank in range(self._cost.ranks)]

    def _calls(self, some: Sequence[int], direction: Direction) -> list[OpCall]:
        """The kernels that look up some tables of a rank."""
        of, calls = options(self._model, direction, self._optimizer), []
        for tables in self._kernels(some):
            beside = [self._tables[at] for at in some if self._tables[at] not in tables]
            of_step = {"beside": beside, "in_step": True, **of}
            calls.append(lookup_calls(tables, self._batch, direction, **of_step))
        return calls

    def _kernels(self, some: Sequence[int]) -> list[list[Table]]:
        """Tables that one kernel looks up together: of one number format."""
        if self._model.device.kind == "cpu":
            return [[self._tables[at]] for at in some]
        by_dtype: dict[str, list[Table]] = {}
        for at in some:
            by_dtype.setdefault(self._tables[at].dtype, []).append(self._tables[at])
        return list(by_dtype.values())

    def _price(self, held: Sequence[tuple[int, ...]]) -> None:
        calls, owner = [], []
        for number, some in enumerate(held):
            for way, direction in enumerate(DIRECTIONS):
                new = self._calls(some, direction)
                calls += new
                owner += [(number, way)] * len(new)
        out = np.zeros((len(held), len(DIRECTIONS)))
        seconds = row_seconds(self._model, calls)
        np.add.at(out, tuple(np.array(owner).T), seconds)
        for some, (forward_s, backward_s) in zip(held, out.tolist(), strict=True):
            self._known[some] = forward_s, backward_s


class SplitTables(NamedTuple):
    """Tables in pieces, and what placements of them cost."""

    pieces: Sequence[Table]
    owners: Sequence[str]
    cost: PlacementCost
    fused: KernelPricer
