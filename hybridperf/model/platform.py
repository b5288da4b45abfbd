"""The numbers of a machine as one pytree, ops as arrays, and the seconds of the ones on the other.

Axes: U unique ops, G = len(GROUPS) groups of ops that share knobs, L = len(LEVELS) memory levels, B
configurations (last).

`durations(table, platform)` is the function that evaluation, batches and gradients go through; any
leaf of the platform may carry a batch axis behind its own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives.links import Links
from hybridperf.hardware import Device
from hybridperf.io.namespace import fresh_views
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import RooflineKnobs, Work, op_seconds
from hybridperf.ops.table import OpRows

GROUP_KNOBS = (
    "floor_s",
    "compute_efficiency",
    "memory_efficiency",
    "transcendental_flops",
    "strided_factor",
    "step_s",
    "smoothing",
)
LEVEL_KNOBS = ("level_speedup", "line_s", "level_capacity")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["memory_bytes_per_s", "peak_flops_scale", "level_bytes", "knobs", "links"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Platform:
    """The numbers of one machine."""

    memory_bytes_per_s: Any  # []
    peak_flops_scale: Any  # [] multiplies the peak of every dtype and unit
    level_bytes: Any  # [L]
    knobs: RooflineKnobs  # group knobs [G], level knobs [L]
    links: Links | None = (
        None  # of the system that the device stands in; None: no collectives are known
    )


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["work", "peak_flops_per_s", "group", "times", "floors", "correction"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class OpTable:
    """Unique ops as arrays; what a duration needs of an op and nothing else."""

    work: Work  # [U] each
    peak_flops_per_s: Any  # [U]
    group: Any  # int32 [U] index into GROUPS
    times: Any  # [U] executions in a row
    # [U] launch floors that each execution pays: 1, 0 where the op is compiled into a caller, a
    # part where it is issued apart
    floors: Any
    correction: (
        Any  # [U] learned log correction, see residual.py; 0 leaves the closed form as it is
    )


def op_table(part: OpRows) -> OpTable:
    """Rows of one op as arrays."""
    n = len(part.rows)
    return OpTable(
        part.work,
        np.full(n, part.peak_flops_per_s),
        part.group,
        np.ones(n),
        np.ones(n),
        np.zeros(n),
    )


def neutral_knobs() -> RooflineKnobs:
    """Knobs of all groups that leave the roofline as it is."""
    one = RooflineKnobs.neutral()
    return dataclasses.replace(
        one, **{name: np.full(len(GROUPS), float(getattr(one, name))) for name in GROUP_KNOBS}
    )


def durations(table: OpTable, platform: Platform) -> Any:
    """Seconds of each op [U] on one platform; pure, differentiable in every leaf of both."""
    table, platform = jax.tree.map(
        jnp.asarray, fresh_views((table, platform))
    )  # traced groups pick from knobs

    def one(work: Work, peak: Any, group: Any, times: Any, floors: Any, correction: Any) -> Any:
        knobs = platform.knobs
        picked = dataclasses.replace(
            knobs, **{name: getattr(knobs, name)[group] for name in GROUP_KNOBS}
        )
        picked = dataclasses.replace(picked, floor_s=floors * picked.floor_s)
        device = Device(
            peak * platform.peak_flops_scale, platform.memory_bytes_per_s, platform.level_bytes
        )
        return times * op_seconds(work, device, picked) * jnp.exp(correction)

    return jax.vmap(one)(
        table.work, table.peak_flops_per_s, table.group, table.times, table.floors, table.correction
    )


_durations = jax.jit(durations)


def canonical(tree: Any) -> Any:
    """Float leaves as arrays of JAX' default precision: a Python float where an array was would
    compile again.
    """
    return jax.tree.map(
        lambda x: jnp.asarray(
            x, None if np.asarray(x).dtype.kind == "i" else jnp.result_type(float)
        ),
        fresh_views(tree),
    )


def seconds(table: OpTable, platform: Platform) -> np.ndarray:
    """`durations` as numbers [U], of a table padded to the next power of two: tables of any length
    share a few compiled functions.
    """
    length = len(table.group)
    size = max(64, 1 << (length - 1).bit_length())
    padded = jax.tree.map(lambda x: np.pad(x, (0, size - length), mode="edge"), table)
    return np.asarray(_durations(canonical(padded), canonical(platform)), np.float64)[:length]
