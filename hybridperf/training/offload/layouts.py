"""The layouts of a plan that fit only where part of a rank's memory lies elsewhere, the quickest
first.

    step = step of the plan + what the worst stage's transfers add (`step.py`)

An offload only adds seconds, so layouts are tried in the order of the plan's seconds until no one
left can be among the best. Places of ranks move no bytes: each layout is tried at its quickest.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.model.adapted_steps import Adaptation, Adapted
from hybridperf.training.offload.step import Offload, Tier, offload
from hybridperf.training.plans.arguments import narrowed
from hybridperf.training.plans.costs import SpaceColumns, bytes_of, times
from hybridperf.training.plans.layout_text import layout_words
from hybridperf.training.plans.setup import training_setup
from hybridperf.training.plans.space import space
from hybridperf.workloads.transformer import Layout, TransformerShape

_TRIED = 1000  # layouts, at some milliseconds a stage


@dataclasses.dataclass(frozen=True)
class OffloadedLayout:
    """A layout with what lies elsewhere."""

    layout: Layout
    offload: Offload
    plan_s: float  # of its step without transfers

    @property
    def step_s(self) -> float:
        return self.plan_s + self.offload.cost_s


def offloaded_layouts(
    model: str | TransformerShape, system: str, gpus: int, tiers: Sequence[Tier], *, batch: int,
    count: int = 10, overlap: float = 0.0, seq: int | None = None, device: str | None = None,
    framework: str = "", dtype: str = "bf16", quant: str = "", memory_bytes: float | None = None,
    only: Mapping[str, Any] | None = None, adapted: Adaptation | Adapted | None = None,
) -> list[OffloadedLayout]:  # fmt: skip
    """The quickest layouts that do not fit by themselves and do with slower memories, best first.

    Args:
        model: name of a published model, a file of its sizes, or a shape (`hp.load_shape`).
        system: name of a system, or a .toml file.
        gpus: number of devices.
        tiers: memories beyond a device's own, one device's share of each (`system_tiers`).
        batch: samples of a step over all devices.
        count: how many layouts.
        overlap: share of the computation, 0 to 1, that can hide transfers.
        seq: tokens of a sample; None: the model's own.
        device, framework, dtype, quant, memory_bytes, only, adapted: as those of `hp.plan`.

    Returns:
        Layouts with their offload; none where all layouts fit by themselves.

    Raises:
        InputError: when there are layouts that do not fit and none of them can be made to.
    """
    setup = training_setup(
        model, system, seq=seq, device=device, framework=framework, dtype=dtype, quant=quant,
        memory_bytes=memory_bytes, adapted=adapted,
    ).for_gpus(gpus)  # fmt: skip
    narrow = None if only is None else narrowed(only)
    shape = setup.shape
    legal = space(shape, gpus, setup.gpus_per_node, batch, narrow, setup.strict)
    needed, room = bytes_of(setup, legal.base), sum(tier.bytes for tier in tiers)
    small = needed <= setup.capacity_bytes
    rows = np.flatnonzero((~small & (needed <= setup.capacity_bytes + room))[legal.base_of])
    if not len(rows) and small.all():
        return []
    found: list[OffloadedLayout] = []
    if len(rows):
        parts = times(SpaceColumns.of(setup, legal, rows), setup)
        order = np.argsort(parts.step_s, kind="stable")
        _, quickest = np.unique(legal.base_of[rows[order]], return_index=True)
        for at in order[np.sort(quickest)][:_TRIED]:
            last_s = found[count - 1].step_s if len(found) >= count else math.inf
            if parts.step_s[at] >= last_s:
                break
            layout = legal.layout(int(rows[at]))
            moved = offload(
                shape, layout, setup.capacity_bytes, tiers, float(parts.compute_s[at]),
                overlap=overlap, **setup.memory_terms,
            )  # fmt: skip
            if moved.fits:
                one = OffloadedLayout(layout, moved, float(parts.step_s[at]))
                bisect.insort(found, one, key=lambda known: known.step_s)
    if not found:
        raise InputError(
            f"expected a layout of {shape.name} on {gpus} GPUs that fits with"
            f" {room / 1e9:.0f} GB elsewhere for each, got none of the {_TRIED:,} quickest; take"
            " more GPUs, a smaller batch or more memory beside them"
        )
    return found[:count]


def offloaded_frame(found: Sequence[OffloadedLayout]) -> pd.DataFrame:
    """A row each: the layout's fields, `time_s` with its offload, `plan_s` without, `offload_s`,
    `needed_bytes` of the fullest rank and `moved`, what the costliest stage moves in words.
    """
    return pd.DataFrame({
        "layout": layout_words(one.layout),
        **dataclasses.asdict(one.layout) | {"order": " ".join(one.layout.order)},
        "time_s": one.step_s, "plan_s": one.plan_s, "offload_s": one.offload.cost_s,
        "needed_bytes": max(stage.needed_bytes for stage in one.offload.stages),
        "moved": one.offload.worst.says(),
    } for one in found)  # fmt: skip
