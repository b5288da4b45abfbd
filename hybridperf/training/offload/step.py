"""A step whose stages do not fit on the GPU: what must go elsewhere, and what that costs.

A stage that needs D bytes more than the GPU has moves D bytes, of any kinds (`movable`), to any
tiers. Moving takes T = sum of traffic / bandwidth while micro-batches are computed (C seconds of
computation) and U during the update. A share o of the computation can hide transfers, the update
hides none:

    step = C + T - o min(C, T) + U                 o = 0: ZeRO-Infinity's efficiency C / (C + T +
                                                   U);  o = 1: max(C, T) + U

What to move minimises that, in closed form (`_cheapest`). So more GPU memory,
more room or bandwidth of a tier only widen its choice or lower its costs, and faster computation
lowers C by no less than it uncovers: none can make the best step longer.

What of a rank's memory may lie elsewhere, and how often a step moves it (`movable`), of m
micro-batches per step, a stage of l layers, f micro-batches in flight:

    weights       read in each pass of each micro-batch, 2 m times, 3 m where everything is computed
                  again; two layers stay on the GPU
    gradients     written by each micro-batch, read by all but the first, 2 m - 1; read once more by
                  the update; one layer stays
    optimizer     read and written by the update: 2
    activations   each micro-batch's are written and read: 2 m / f of those held at a time; two
                  layers of one micro-batch stay

With m = 1 and full recompute that is ZeRO-Infinity's count. Buffers, the embedding, the LM head and
what libraries take stay where they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from hybridperf.hardware import SystemSpec, load_system
from hybridperf.io import InputError
from hybridperf.workloads.memory import MemoryKnobs, MemoryUse, ModelStates, in_flight, memory
from hybridperf.workloads.transformer.columns import FULL
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.shape import TransformerShape, stage_layers

KINDS = ("weights", "gradients", "optimizer", "activations")
_NAMES = {kind: kind for kind in KINDS} | {"optimizer": "optimizer state"}
_ROUNDING = 1e-9  # of the bytes in question: what sums of floats leave over
_HALVINGS = 50  # of the share of transfers that is exposed: to the last bit


@dataclasses.dataclass(frozen=True)
class Tier:
    """One GPU's share of a memory beyond its own: CPU memory or NVMe drives."""

    name: str
    bytes: float  # capacity, of one GPU's share
    bytes_per_s: float  # bandwidth to or from the GPU, one direction at a time

    def __post_init__(self) -> None:
        if not (self.bytes >= 0 and self.bytes_per_s > 0):
            raise InputError(
                f"tier {self.name!r} needs 0 or more bytes and a bandwidth above 0, got"
                f" {self.bytes} bytes, {self.bytes_per_s} bytes/s"
            )


def node_tiers(
    gpus_per_node: int, link_bytes_per_s: float, *, cpu_bytes: float,
    cpu_bytes_per_s: float | None = None, nvme_bytes: float = 0.0, nvme_bytes_per_s: float = 0.0,
) -> tuple[Tier, ...]:  # fmt: skip
    """One GPU's shares of its node's CPU memory and NVMe drives, for `hp.offload`.

    Args:
        gpus_per_node: GPUs that share the node's memories.
        link_bytes_per_s: bandwidth between the CPU and one GPU.
        cpu_bytes: CPU memory of the node.
        cpu_bytes_per_s: bandwidth of the node's CPU memory; None: only the links limit.
        nvme_bytes: capacity of the node's drives; 0: none.
        nvme_bytes_per_s: bandwidth of the node's drives, whose data passes CPU memory and link.

    Raises:
        InputError: when there is no GPU, or a size or bandwidth is out of range.
    """
    if gpus_per_node < 1:
        raise InputError(f"a node has 1 or more GPUs, got {gpus_per_node}")
    to_cpu = link_bytes_per_s
    if cpu_bytes_per_s is not None:
        to_cpu = min(to_cpu, cpu_bytes_per_s / gpus_per_node)
    tiers = [Tier("CPU memory", cpu_bytes / gpus_per_node, to_cpu)]
    if nvme_bytes > 0:
        to_nvme = min(to_cpu, nvme_bytes_per_s / gpus_per_node)
        tiers.append(Tier("NVMe", nvme_bytes / gpus_per_node, to_nvme))
    return tuple(tiers)


def system_tiers(
    system: SystemSpec | str, *, cpu_bytes: float, cpu_bytes_per_s: float | None = None,
    nvme_bytes: float = 0.0, nvme_bytes_per_s: float = 0.0,
) -> tuple[Tier, ...]:  # fmt: skip
    """`node_tiers` with the GPUs per node and host links of a known system.

    Args:
        system: its name, a .toml file, or its facts (`hp.load_system`).
        cpu_bytes: CPU memory of a node.
        cpu_bytes_per_s: bandwidth of a node's CPU memory; None: only the links limit.
        nvme_bytes: capacity of a node's drives; 0: none.
        nvme_bytes_per_s: bandwidth of a node's drives.

    Raises:
        InputError: when nobody knows a system of that name, or a number is out of its range.
    """
    system = load_system(system) if isinstance(system, str) else system
    return node_tiers(
        system.accelerators_per_node, system.host_link_bytes_per_s, cpu_bytes=cpu_bytes,
        cpu_bytes_per_s=cpu_bytes_per_s, nvme_bytes=nvme_bytes, nvme_bytes_per_s=nvme_bytes_per_s,
    )  # fmt: skip


class Movable(NamedTuple):
    """Of each kind [4] on each stage [4, S]."""

    bytes: np.ndarray  # that may be offloaded
    passes: np.ndarray  # times each byte is moved while micro-batches are computed
    updates: np.ndarray  # and while weights are updated


def movable(
    shape: TransformerShape, layout: Layout, use: MemoryUse, split: str = "even"
) -> Movable:
    """What may be moved of the memory that `memory(shape, layout)` found."""
    columns, stage = layout.columns, np.arange(layout.pp)
    stages = layout.pp * (2 if layout.kind.folded else 1)
    dealt = stage_layers(shape.depth, stages, np.arange(stages), split, shape.head_layers)
    layers = np.asarray(dealt, float)
    if layout.kind.folded or layout.kind.pipes > 1:
        layers = layers + layers[::-1]
    layers = np.maximum(layers[: layout.pp], 1.0)
    own, second = in_flight(columns.schedule, columns.pp, columns.vp, columns.accumulation, stage)
    # of folded chunks both are of one micro-batch
    own = own + (0 if layout.kind.folded else second)
    held = np.maximum(np.broadcast_to(own, stage.shape), 1.0)
    m, ones = float(layout.accumulation), np.ones(layout.pp)
    stays = np.stack([2 / layers, 1 / layers, 0 * ones, 2 / (layers * held)])
    states = (use.weights_bytes, use.gradients_bytes, use.optimizer_bytes)
    have = np.stack([*states, use.activations_bytes + 0 * ones])
    reads = 3.0 if columns.recompute == FULL else 2.0
    passes = np.stack([reads * m * ones, (2 * m - 1) * ones, 0 * ones, 2 * m / held])
    updates = np.stack([0 * ones, ones, 2 * ones, 0 * ones])
    return Movable(have * np.maximum(1 - stays, 0.0), passes, updates)


@dataclasses.dataclass(frozen=True)
class StageOffload:
    """One stage of the pipeline, on one GPU."""

    stage: int
    needed_bytes: float
    capacity_bytes: float
    compute_s: float
    # by (kind, tier); nothing where the stage fits or cannot be made to
    moved_bytes: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    lacking_bytes: float = 0.0  # that fit nowhere
    pass_s: float = 0.0  # T
    update_s: float = 0.0  # U
    exposed_s: float = 0.0  # what the step gets longer

    @property
    def fits(self) -> bool:
        return self.lacking_bytes <= 0

    @property
    def efficiency(self) -> float:
        """Share of the stage's time that it computes."""
        total = self.compute_s + self.exposed_s
        return self.compute_s / total if total else 1.0

    def says(self) -> str:
        """What is offloaded where, and what it costs, in a sentence."""
        needed, capacity = _gb(self.needed_bytes), _gb(self.capacity_bytes)
        start = f"stage {self.stage} needs {needed} of the GPU's {capacity}"
        if not self.fits:
            return (
                f"{start}: {_gb(self.lacking_bytes)} fit nowhere, whatever is offloaded; shard over"
                " more ranks or recompute more"
            )
        if not self.moved_bytes:
            return f"{start} and fits"
        moved = self.moved_bytes.items()
        parts = [f"{_gb(size)} of {_NAMES[kind]} to {tier}" for (kind, tier), size in moved]
        return (
            f"{start}: move {', '.join(parts)}; {self.exposed_s:.3g} s more per step,"
            f" {100 * self.efficiency:.1f}% of it computing"
        )


@dataclasses.dataclass(frozen=True)
class Offload:
    """Offloading of all pipeline stages of a layout."""

    stages: tuple[StageOffload, ...]

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.stages)

    @property
    def worst(self) -> StageOffload:
        """The stage that cannot be made to fit, or that costs most."""
        return max(
            self.stages, key=lambda one: (one.lacking_bytes, one.exposed_s, one.needed_bytes)
        )

    @property
    def cost_s(self) -> float:
        """Seconds that the step gets longer; infinite where a stage fits nowhere."""
        return max(stage.exposed_s for stage in self.stages)

    def says(self) -> str:
        """One sentence per stage that does not fit by itself; one for all that do."""
        moved = [stage for stage in self.stages if stage.moved_bytes or not stage.fits]
        fullest = max(self.stages, key=lambda stage: stage.needed_bytes)
        return "\n".join(stage.says() for stage in moved or [fullest])


def offload(
    shape: TransformerShape, layout: Layout, capacity_bytes: float, tiers: Sequence[Tier],
    compute_s: float | np.ndarray, *, overlap: float = 0.0, split: str = "even",
    dtype: str = "bf16", grad_bytes: float | None = None, optimizer: str = "adam",
    attention: Literal["fused", "unfused"] = "fused", dropout: bool = False,
    states: ModelStates | None = None, knobs: MemoryKnobs | None = None,
) -> Offload:  # fmt: skip
    """The cheapest way to keep what does not fit on each GPU of a pipeline in slower memories.

    A closed form per stage, with the efficiency model of ZeRO-Infinity (Rajbhandari et al.,
    SC21).

    Args:
        shape: the model.
        layout: how its step is spread over ranks; S = `layout.pp` stages.
        capacity_bytes: memory of one GPU, bytes.
        tiers: memories beyond it, one GPU's share of each (`node_tiers`, `system_tiers`).
        compute_s: seconds per step that a GPU of each stage computes, [S] or one number for all.
        overlap: share of that computation, 0 to 1, that can hide transfers.
        split: how layers are split over stages, "even" or "cost", as in `hp.memory`.
        dtype: number format of activations and weights.
        grad_bytes: bytes of one gradient; None: as the weights.
        optimizer: "adam", "momentum" or "sgd".
        attention: "unfused" where attention scores are written to memory.
        dropout: whether dropout masks are kept for the backward pass.
        states: bytes per parameter, instead of what `dtype`, `grad_bytes` and `optimizer` give.
        knobs: memory that cannot be counted from sizes, as in `hp.memory`.

    Returns:
        An `Offload`: per stage the bytes moved to each tier and the seconds that adds to a step.

    Raises:
        InputError: when the layout cannot be run, or a number is out of its range.
    """
    use = memory(
        shape, layout, dtype=dtype, grad_bytes=grad_bytes, optimizer=optimizer,
        attention=attention, dropout=dropout, split=split, states=states, knobs=knobs,
    )  # fmt: skip
    needed = np.broadcast_to(use.stage_bytes, (layout.pp,))
    seconds = np.broadcast_to(np.asarray(compute_s, float), (layout.pp,))
    what = movable(shape, layout, use, split)
    stages = []
    for stage in range(layout.pp):
        here = Movable(*(part[:, stage] for part in what))
        fits_not = StageOffload(stage, float(needed[stage]), capacity_bytes, float(seconds[stage]))
        stages.append(stage_offload(fits_not, here, tiers, overlap))
    return Offload(tuple(stages))


def stage_offload(
    stage: StageOffload, what: Movable, tiers: Sequence[Tier], overlap: float = 0.0
) -> StageOffload:
    """A stage, of which nothing is moved yet, with its cheapest offload; `what` [4] by `KINDS`."""
    capacity_bytes, compute_s = stage.capacity_bytes, stage.compute_s
    if not (0 <= overlap <= 1 and capacity_bytes >= 0 and compute_s >= 0):
        raise InputError(
            "overlap is a share from 0 to 1, capacity and seconds are 0 or more, got overlap"
            f" {overlap}, {capacity_bytes} bytes, {compute_s} s"
        )
    excess = max(stage.needed_bytes - capacity_bytes, 0.0)
    by_speed = sorted(tiers, key=lambda tier: -tier.bytes_per_s)
    tiers = [tier for tier in by_speed if tier.bytes > 0]
    most = min(float(what.bytes.sum()), sum(tier.bytes for tier in tiers))
    if excess - most > _ROUNDING * excess:
        return dataclasses.replace(stage, lacking_bytes=excess - most, exposed_s=float("inf"))
    if not excess:
        return stage
    moved = _cheapest(min(excess, most), what, tiers, compute_s, overlap)
    per_byte_s = 1 / np.array([tier.bytes_per_s for tier in tiers])
    pass_s = float((moved * np.outer(what.passes, per_byte_s)).sum())
    update_s = float((moved * np.outer(what.updates, per_byte_s)).sum())
    named = {
        (kind, tier.name): float(moved[k, t])
        for k, kind in enumerate(KINDS)
        for t, tier in enumerate(tiers)
        if moved[k, t] > _ROUNDING * excess
    }
    exposed_s = pass_s - overlap * min(compute_s, pass_s) + update_s
    return dataclasses.replace(
        stage, moved_bytes=named, pass_s=pass_s, update_s=update_s, exposed_s=exposed_s
    )


def _cheapest(
    excess: float, what: Movable, tiers: Sequence[Tier], compute_s: float, overlap: float
) -> np.ndarray:
    """Bytes of each kind to each tier [4, T], tiers by falling bandwidth.

    Where a byte of a pass costs a share r of its seconds, the least moves go first (r passes +
    updates, kind by kind until enough lies elsewhere), and of these the most to the fastest tier.
    Exposed is the larger of T - o C and (1 - o) T: r is 1 where T > C however much is hidden, 1 - o
    where T < C; between, both ways that a step from one r to the next leaves, mixed so that T = C.
    """
    per_byte_s = 1 / np.array([tier.bytes_per_s for tier in tiers])
    room = np.array([tier.bytes for tier in tiers])

    def moved(exposed: float) -> np.ndarray:
        times = exposed * what.passes + what.updates
        seldom = np.argsort(times, kind="stable")
        up_to = np.minimum(np.cumsum(what.bytes[seldom]), excess)
        taken = np.diff(up_to, prepend=0.0)
        often = seldom[::-1]
        ends = [np.cumsum(taken[::-1]), np.minimum(np.cumsum(room), excess)]
        begins = [np.concatenate([[0.0], end[:-1]]) for end in ends]
        shared = np.minimum.outer(*ends) - np.maximum.outer(*begins)
        found = np.zeros((len(KINDS), len(tiers)))
        found[often] = np.maximum(shared, 0.0)
        return found

    def pass_s(found: np.ndarray) -> float:
        return float(what.passes @ found @ per_byte_s)

    most, least = 1 - overlap, 1.0  # the exposed share at which T is largest, smallest
    above, below = moved(most), moved(least)
    if pass_s(above) <= compute_s:
        return above
    if pass_s(below) >= compute_s:
        return below
    for _ in range(_HALVINGS):
        middle = (most + least) / 2
        found = moved(middle)
        if pass_s(found) > compute_s:
            most, above = middle, found
        else:
            least, below = middle, found
    share = (compute_s - pass_s(below)) / (pass_s(above) - pass_s(below))
    return below + share * (above - below)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
