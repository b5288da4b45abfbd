"""Each table's lookup in parts that add up when a rank looks up all its tables in one fused kernel.

The calibrated form of `roofline.py` prices a kernel by floor + pnorm(core, memory) + serial. Core
(compute, scattered lines), memory (bytes at the level their reuse finds them) and serial seconds of
several tables in one kernel add up; the floor is paid once. What was learned beyond the closed form
of a table's lookup multiplies its parts.

Axes: T tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.hardware import Device
from hybridperf.model import GROUP_KNOBS, OpTable, PerfModel, Platform, canonical
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import Direction, lookup_calls
from hybridperf.ops.roofline import Work, op_parts

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class LookupParts:
    """One direction's lookups of some tables."""

    parts: np.ndarray  # [T, 3] core, memory and serial seconds
    floor_s: float
    smoothing: float  # q of the p-norm


def lookups(
    model: PerfModel, tables: Sequence[Table], batch: float, direction: Direction, optimizer: str
) -> LookupParts:
    """Each table's lookup of `batch` bags on the model's device."""
    of = options(model, direction, optimizer)
    calls = [lookup_calls([table], batch, direction, in_step=True, **of) for table in tables]
    table, platform = model.table(calls), model.platform()
    parts = np.stack(_parts(canonical(table), canonical(platform)), -1).astype(np.float64)
    parts *= np.exp(table.correction)[:, None]
    group = int(table.group[0])
    knobs = platform.knobs
    return LookupParts(parts, float(knobs.floor_s[group]), float(knobs.smoothing[group]))


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
