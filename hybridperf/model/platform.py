"""The numbers of a machine as one pytree, ops as arrays, and the seconds of the ones on the other.

Axes: U unique ops, G = len(GROUPS) groups of ops that share knobs, L = len(LEVELS) memory levels, B
configurations (last).

`durations(table, platform)` is the function that evaluation, batches and gradients go through; any
leaf of the platform may carry a batch axis behind its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives.traffic import Links
from hybridperf.hardware import Device, DeviceSpec
from hybridperf.io import InputError
from hybridperf.io.namespace import Array, fresh_views
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import RooflineKnobs, Work, op_seconds
from hybridperf.ops.table import OpRows

GROUP_KNOBS = (
    "floor_s", "compute_efficiency", "memory_efficiency", "transcendental_flops", "strided_factor",
    "step_s", "smoothing",
)  # fmt: skip
LEVEL_KNOBS = ("level_speedup", "line_s", "level_capacity")
_CHUNK = 8192  # ops whose parts stay in a core's cache


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Platform:
    """The numbers of one machine."""

    memory_bytes_per_s: Array  # []
    peak_flops_scale: Array  # [] multiplies the peak of every dtype and unit
    level_bytes: Array  # [L]
    knobs: RooflineKnobs  # group knobs [G], level knobs [L]
    # of the system that the device stands in; None: no collectives are known
    links: Links | None = None
    effects: Array = None  # [K] what a training step adds, in the order of `step_effects.NAMES`

    @staticmethod
    def of(device: DeviceSpec, knobs: RooflineKnobs) -> Platform:
        """The numbers of a device's datasheet, float64."""
        rate, scale = np.float64(device.memory_bytes_per_s), np.float64(1.0)
        return Platform(rate, scale, device.level_bytes(), knobs)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OpTable:
    """Unique ops as arrays; what a duration needs of an op and nothing else."""

    work: Work  # [U] each
    peak_flops_per_s: Array  # [U]
    group: Array  # int32 [U] index into GROUPS
    times: Array  # [U] executions in a row
    # [U] launch floors that each execution pays: 1, 0 where the op is compiled into a caller, a
    # part where it is issued apart
    floors: Array
    # [U] learned log correction, see `learning.prior.alone`; 0 leaves the closed form as it is
    correction: Array


def op_table(part: OpRows, floors: float = 1.0) -> OpTable:
    """Rows of one op as arrays, without corrections; `floors`: as `OpTable` has them."""
    n = len(part.rows)
    peak = np.full(n, part.peak_flops_per_s)
    return OpTable(part.work, peak, part.group, np.ones(n), np.full(n, floors), np.zeros(n))


def neutral_knobs() -> RooflineKnobs:
    """RooflineKnobs of all groups that leave the roofline as it is."""
    one = RooflineKnobs.neutral()
    every = {name: np.full(len(GROUPS), float(getattr(one, name))) for name in GROUP_KNOBS}
    return dataclasses.replace(one, **every)


def with_group_knobs(
    knobs: RooflineKnobs, other: RooflineKnobs, at: Sequence[int], **more: Array
) -> RooflineKnobs:
    """Knobs of which those of the groups `at` are another's, with `more` fields replaced."""
    arrays = {name: np.array(getattr(knobs, name)) for name in GROUP_KNOBS}
    for name, values in arrays.items():
        values[list(at)] = np.asarray(getattr(other, name))[list(at)]
    return dataclasses.replace(knobs, **arrays, **more)


def durations(table: OpTable, platform: Platform, xp: ModuleType = jnp) -> Array:
    """Seconds of each op [U] on one platform, or [B, U] on B whose leaves have a first axis; pure,
    in JAX differentiable in every leaf of both.
    """
    if xp is jnp:  # traced groups pick from knobs
        table, platform = jax.tree.map(jnp.asarray, fresh_views((table, platform)))
    knobs = {name: getattr(platform.knobs, name)[..., table.group] for name in GROUP_KNOBS}
    knobs["floor_s"] = table.floors * knobs["floor_s"]
    knobs |= {name: getattr(platform.knobs, name)[..., None, :] for name in LEVEL_KNOBS}
    scale, rate = (
        xp.asarray(getattr(platform, name))[..., None]
        for name in ("peak_flops_scale", "memory_bytes_per_s")
    )
    level_bytes = xp.asarray(platform.level_bytes)[..., None, :]
    device = Device(table.peak_flops_per_s * scale, rate, level_bytes)
    seconds = op_seconds(table.work, device, dataclasses.replace(platform.knobs, **knobs), xp)
    return table.times * seconds * xp.exp(table.correction)


def canonical(tree: Any) -> Any:
    """Float leaves as arrays of JAX' default precision.

    A Python float where an array was would compile again.
    """

    precision = jnp.result_type(float)

    def array(x: Array) -> Array:
        if not hasattr(x, "aval"):  # NumPy's: rounded here, JAX would compile it for each shape
            x = np.asarray(x)
            x = x if x.dtype.kind == "i" else x.astype(precision)
        return jnp.asarray(x) if x.dtype.kind == "i" else jnp.asarray(x, precision)

    return jax.tree.map(array, fresh_views(tree))


def padded(tree: Any, length: int) -> Any:
    """Leaves [length, ...] with their last row repeated up to one of a few sizes: tables of any
    length share some compiled functions.
    """
    size = 64
    while size < length:
        size *= 8
    return jax.tree.map(
        lambda leaf: np.concatenate([leaf, np.repeat(leaf[-1:], size - length, 0)]), tree
    )


def seconds(table: OpTable, platform: Platform) -> np.ndarray:
    """`durations` as numbers [U], in NumPy: a first prediction has nothing to compile."""
    length = len(table.group)
    if length and (at := int(np.max(table.group))) >= len(platform.knobs.floor_s):
        raise InputError(
            f"expected knobs of {GROUPS[at]}, a group of ops that was registered after the model"
            " was loaded; load the model again"
        )
    table, platform = jax.tree.map(np.asarray, (table, platform))
    found = np.empty(length)
    for start in range(0, length, _CHUNK):
        part = slice(start, start + _CHUNK)
        some = jax.tree.map(lambda leaf, at=part: leaf[at], table)
        found[part] = durations(some, platform, np)
    return found
