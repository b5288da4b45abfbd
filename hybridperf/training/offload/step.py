"""A step whose stages do not fit on the GPU: what must go elsewhere, and what that costs.

A stage that needs D bytes more than the GPU has moves D bytes, of any kinds (`movable.py`), to any
tiers. Moving takes T = sum of traffic / bandwidth while micro-batches are computed (C seconds of
computation) and U during the update. A share o of the computation can hide transfers, the update
hides none:

    step = C + T - o min(C, T) + U                 o = 0: ZeRO-Infinity's efficiency C / (C + T +
                                                   U);  o = 1: max(C, T) + U

What to move is the least of that, a linear program of eight numbers per stage. So more GPU memory,
more room or bandwidth of a tier only widen its choice or lower its costs, and faster computation
lowers C by no less than it uncovers: none can make the best step longer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linprog

from hybridperf.io import InputError
from hybridperf.training.offload.movable import KINDS, Movable, movable
from hybridperf.training.offload.tier import Tier, fastest_first
from hybridperf.workloads.memory import memory
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.shape import TransformerShape

_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
}
_ROUNDING = 1e-9  # of the bytes in question: what a solver leaves over


@dataclasses.dataclass(frozen=True)
class StageOffload:
    """One stage of the pipeline, on one GPU."""

    stage: int
    needed_bytes: float
    capacity_bytes: float
    moved_bytes: dict[
        tuple[str, str], float
    ]  # by (kind, tier); nothing where the stage fits or cannot be made to
    lacking_bytes: float  # that fit nowhere
    compute_s: float
    pass_s: float  # T
    update_s: float  # U
    exposed_s: float  # what the step gets longer

    @property
    def fits(self) -> bool:
        return self.lacking_bytes <= 0

    @property
    def efficiency(self) -> float:
        """Share of the stage's time that it computes."""
        total = self.compute_s + self.exposed_s
        return self.compute_s / total if total else 1.0

    def says(self) -> str:
        """One sentence."""
        start = (
            f"stage {self.stage} needs {_gb(self.needed_bytes)} of the GPU's"
            f" {_gb(self.capacity_bytes)}"
        )
        if not self.fits:
            return (
                f"{start}: {_gb(self.lacking_bytes)} fit nowhere, whatever is offloaded; shard over"
                " more ranks or recompute more"
            )
        if not self.moved_bytes:
            return f"{start} and fits"
        parts = [
            f"{_gb(size)} of {_NAMES[kind]} to {tier}"
            for (kind, tier), size in self.moved_bytes.items()
        ]
        return (
            f"{start}: move {', '.join(parts)}; {self.exposed_s:.3g} s more per step,"
            f" {100 * self.efficiency:.1f}% of it computing"
        )


@dataclasses.dataclass(frozen=True)
class Offload:
    """All stages of a layout."""

    stages: tuple[StageOffload, ...]

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.stages)

    @property
    def worst(self) -> StageOffload:
        """The stage that cannot be made to fit, or that costs most."""
        return max(
            self.stages,
            key=lambda stage: (stage.lacking_bytes, stage.exposed_s, stage.needed_bytes),
        )

    @property
    def cost_s(self) -> float:
        """What the step gets longer: stages wait for the slowest. Infinite where a stage fits
        nowhere.
        """
        return max(stage.exposed_s for stage in self.stages)

    def says(self) -> str:
        """One sentence per stage that does not fit by itself; one for all that do."""
        moved = [stage for stage in self.stages if stage.moved_bytes or not stage.fits]
        return (
            "\n".join(stage.says() for stage in moved)
            or max(self.stages, key=lambda stage: stage.needed_bytes).says()
        )


def offload(
    shape: TransformerShape,
    layout: Layout,
    capacity_bytes: float,
    tiers: Sequence[Tier],
    compute_s: Any,
    *,
    overlap: float = 0.0,
    split: str = "even",
    **options: Any,
) -> Offload:
    """The cheapest offload of each stage.

    `compute_s`: seconds a GPU of a stage computes per step, [S] or one number. `overlap`: share of
    them that can hide transfers. `options`: those of `memory`.
    """
    use = memory(shape, layout, split=split, **options)
    needed = np.broadcast_to(use.stage_bytes, (layout.pp,))
    seconds = np.broadcast_to(np.asarray(compute_s, float), (layout.pp,))
    what = movable(shape, layout, use, split)
    found = []
    for stage in range(layout.pp):
        here = Movable(*(part[:, stage] for part in what))
        found.append(
            stage_offload(
                stage,
                float(needed[stage]),
                capacity_bytes,
                here,
                tiers,
                float(seconds[stage]),
                overlap,
            )
        )
    return Offload(tuple(found))


def stage_offload(
    stage: int,
    needed_bytes: float,
    capacity_bytes: float,
    what: Movable,
    tiers: Sequence[Tier],
    compute_s: float,
    overlap: float = 0.0,
) -> StageOffload:
    """The cheapest offload of one stage; `what` [4] by `KINDS`."""
    if not (0 <= overlap <= 1 and capacity_bytes >= 0 and compute_s >= 0):
        raise InputError(
            "overlap is a share from 0 to 1, capacity and seconds are 0 or more, got overlap"
            f" {overlap}, {capacity_bytes} bytes, {compute_s} s"
        )
    excess = max(needed_bytes - capacity_bytes, 0.0)
    tiers = [tier for tier in fastest_first(tiers) if tier.bytes > 0]
    lacking = excess - min(float(what.bytes.sum()), sum(tier.bytes for tier in tiers))
    if lacking > _ROUNDING * excess:
        return StageOffload(
            stage, needed_bytes, capacity_bytes, {}, lacking, compute_s, 0.0, 0.0, float("inf")
        )
    if not excess:
        return StageOffload(stage, needed_bytes, capacity_bytes, {}, 0.0, compute_s, 0.0, 0.0, 0.0)
    moved = _cheapest(
        min(excess, float(what.bytes.sum()), sum(tier.bytes for tier in tiers)),
        what,
        tiers,
        compute_s,
        overlap,
    )
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
    return StageOffload(
        stage, needed_bytes, capacity_bytes, named, 0.0, compute_s, pass_s, update_s, exposed_s
    )


def _cheapest(
    excess: float, what: Movable, tiers: Sequence[Tier], compute_s: float, overlap: float
) -> np.ndarray:
    """Bytes of each kind to each tier [4, T].

    Unknown are shares of `excess` and the passes' exposed seconds in units of the time that all of
    it takes once through the slowest tier: the exposed part of T is the larger of T - o C and (1 -
    o) T.
    """
    slowest_s = excess / min(tier.bytes_per_s for tier in tiers)
    share_s = excess / np.array([tier.bytes_per_s for tier in tiers]) / slowest_s  # [T]
    kinds, many = len(KINDS), len(tiers)
    passes, updates = (np.outer(times, share_s).ravel() for times in (what.passes, what.updates))
    above = np.array([[*passes, -1.0], [*((1 - overlap) * passes), -1.0]])
    of_kind = np.hstack([np.kron(np.eye(kinds), np.ones(many)), np.zeros((kinds, 1))])
    of_tier = np.hstack([np.kron(np.ones(kinds), np.eye(many)), np.zeros((many, 1))])
    room = np.concatenate([what.bytes, [tier.bytes for tier in tiers]]) / excess
    found = linprog(
        np.array([*updates, 1.0]),
        A_ub=np.vstack([above, of_kind, of_tier]),
        b_ub=np.concatenate([[overlap * compute_s / slowest_s, 0.0], room]),
        A_eq=np.array([[*np.ones(kinds * many), 0.0]]),
        b_eq=[1.0],
        method="highs",
    )
    if found.x is None:
        raise RuntimeError(f"no offload found where there must be one: {found.message}")
    return np.asarray(np.maximum(found.x[:-1], 0.0).reshape(kinds, many) * excess)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
