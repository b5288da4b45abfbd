"""Seconds of one piece of work on one device: the roofline, and the smooth form that calibration
bends to measurements.

The roofline (Williams, Waterman, Patterson 2009) needs two counts and two rates:

    t = max( flops / peak,  bytes / memory bandwidth )

Real devices keep more than two resources busy, and a measured time rounds the corner. The
calibrated form has the same limits:

    compute = (flops + c * transcendentals + 2 * instructions) / (e_c * peak)
    memory  = sum over levels l of  bytes * f_l(reuse distance) / (e_m * s_l * memory bandwidth)
    strided = g * sum over levels l of  (strided reads * f_l(strided span) + scattered reads *
                                        f_l(reuse distance)) * line_l
    t       = floor + pnorm(compute + strided, memory; q) + steps * step

`f_l` is the share of accesses that finds its data in level l: a cache of C bytes (what others leave
of it: a knob) still holds what was last touched `d` bytes of other traffic ago with the smooth
probability 1 / (1 + (d/C)^4), a flatter curve where distances scatter (rows of a table, some looked
up all the time and others never again). `pnorm(a, b; q) = (a^(1/q) + b^(1/q))^q` is max(a, b) at q
= 0 and a + b at q = 1. With neutral knobs (`RooflineKnobs.neutral()`) the second form is the first.

Families of GPU ops (`learning.prior.form`) keep the floor, both efficiencies and q, and add up
by `roof_s`, too. Everything here takes one op on one device, or arrays of ops [...] and of their
knobs; memory levels [L] come last. By JAX, or by NumPy (`xp`) in its own precision.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.hardware import LEVELS, Device
from hybridperf.io.namespace import Array, fresh_views

# exponent of the residency curve: 6 % resident at twice the capacity, 94 % at half
_CACHE_SHARPNESS = 4.0
_FLOPS_PER_INSTRUCTION = 2.0  # the peak counts a product and a sum in each


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Work:
    """What an op does on any device."""

    flops: Array = 0.0  # arithmetic operations
    transcendentals: Array = 0.0  # exp, log, tanh, sqrt, ...: counted apart, as XLA does
    # of lanes, for what is no arithmetic of its numbers: places to compute, and waiting for them
    instructions: Array = 0.0
    bytes: Array = 0.0  # compulsory traffic: each input read once, each output written once
    # distance of that traffic: bytes of other traffic since the same data was last touched
    reuse_bytes: Array = 0.0
    strided_reads: Array = 0.0  # element reads that each touch a cache line of their own
    strided_bytes: Array = 0.0  # memory spanned between reading a line and its neighbours' turn
    # element reads at random places, a line each, last touched `reuse_bytes` ago: rows looked up
    scattered_reads: Array = 0.0
    steps: Array = 0.0  # serial steps: table rows updated, comparisons, pages, thread-block waves
    # how far distances scatter around `reuse_bytes`: standard deviation of their natural log
    reuse_spread: Array = 0.0


def streamed(moved: Array, **counts: Array) -> Work:
    """Work that moves its data once: repeated, everything lies between two uses of a byte."""
    return Work(bytes=moved, reuse_bytes=moved, **counts)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RooflineKnobs:
    """Knobs of one group of ops (first seven) and of the device's memory. L = len(LEVELS)."""

    floor_s: Array  # least time of any op of the group
    compute_efficiency: Array  # share of peak FLOP/s reached on large work
    memory_efficiency: Array  # share of the device's bandwidth reached by this group
    transcendental_flops: Array  # flops that one transcendental costs
    strided_factor: Array  # g: cost of this group's strided reads over a plain loop's
    step_s: Array  # seconds of one serial step
    smoothing: Array  # q of the p-norm: 0 a sharp corner, 1 a plain sum
    level_speedup: Array  # [L] bandwidth of each level over the datasheet's memory bandwidth
    line_s: Array  # [L] seconds of one strided read served by each level
    # [L] share of each cache's capacity that is ours: the last one is shared with other cores and
    # machines
    level_capacity: Array

    @staticmethod
    def neutral() -> RooflineKnobs:
        """Knobs that leave the textbook roofline as it is."""
        one, none = np.ones(len(LEVELS)), np.zeros(len(LEVELS))
        return RooflineKnobs(
            floor_s=0.0, compute_efficiency=1.0, memory_efficiency=1.0, transcendental_flops=1.0,
            strided_factor=1.0, step_s=0.0, smoothing=0.0, level_speedup=one, line_s=none,
            level_capacity=one.copy(),
        )  # fmt: skip


def op_seconds(work: Work, device: Device, knobs: RooflineKnobs, xp: ModuleType = jnp) -> Array:
    """Seconds by the calibrated form (module docstring)."""
    *overlapping, serial_s = op_parts(work, device, knobs, xp)
    return roof_s(knobs.floor_s, overlapping, knobs.smoothing, serial_s, xp)


def roof_s(
    floor_s: Array, overlapping: Sequence[Array], q: Array, serial_s: Array = 0.0,
    xp: ModuleType = jnp,
) -> Array:  # fmt: skip
    """Seconds of a floor, of parts that overlap (their p-norm), and of what comes after them."""
    return floor_s + functools.reduce(lambda a, b: pnorm(a, b, q, xp), overlapping) + serial_s


def op_parts(
    work: Work, device: Device, knobs: RooflineKnobs, xp: ModuleType = jnp
) -> tuple[Array, Array, Array]:
    """(compute + strided, memory, steps x step): each adds up over works of one kernel."""
    if xp is jnp:
        work, device, knobs = fresh_views((work, device, knobs))
    arithmetic = work.flops + knobs.transcendental_flops * work.transcendentals
    arithmetic = arithmetic + _FLOPS_PER_INSTRUCTION * work.instructions
    compute_s = arithmetic / (knobs.compute_efficiency * device.peak_flops_per_s)
    # what a faster level saves is subtracted, not shares added up, so that neutral knobs give bytes
    # / bandwidth to the bit
    level_bytes = xp.asarray(device.level_bytes)
    bounded = xp.isfinite(level_bytes)  # main memory need not be, and infinity has no gradient
    held_bytes = xp.where(
        bounded, xp.where(bounded, level_bytes, 1.0) * knobs.level_capacity, level_bytes
    )
    at_reuse = level_shares(work.reuse_bytes, held_bytes, work.reuse_spread, xp)
    saved = xp.sum(at_reuse * (1.0 - 1.0 / knobs.level_speedup), -1)
    memory_s = work.bytes / (knobs.memory_efficiency * device.memory_bytes_per_s) * (1.0 - saved)
    at_stride = level_shares(work.strided_bytes, held_bytes, xp=xp)
    line_s, scattered_line_s = (xp.sum(at * knobs.line_s, -1) for at in (at_stride, at_reuse))
    strided_s = knobs.strided_factor * (
        work.strided_reads * line_s + work.scattered_reads * scattered_line_s
    )
    return compute_s + strided_s, memory_s, work.steps * knobs.step_s


def level_shares(
    distance_bytes: Array, level_bytes: Array, spread: Array = 0.0, xp: ModuleType = jnp
) -> Array:
    """Share of accesses [..., L] that each memory level serves at a reuse distance [...]."""
    capacity = xp.asarray(level_bytes)
    caches, has = capacity[..., :-1], capacity[..., :-1] > 0
    distance = xp.log(xp.maximum(distance_bytes, 1.0))[..., None]
    # a logistic curve averaged over a normal distribution is nearly a flatter logistic curve
    flatter = 1.0 + (math.pi / 8) * (_CACHE_SHARPNESS * xp.asarray(spread)[..., None]) ** 2
    octaves = xp.log(xp.where(has, caches, 1.0)) - distance
    resident = xp.where(has, _logistic(_CACHE_SHARPNESS / xp.sqrt(flatter) * octaves, xp), 0.0)
    # nearer levels hold a subset of farther ones
    nested = np.maximum.accumulate if xp is np else jax.lax.cummax
    held = nested(resident, axis=resident.ndim - 1)
    none = xp.zeros_like(held[..., :1])
    return xp.diff(xp.concatenate([none, held, none + 1.0], -1))


def _logistic(x: Array, xp: ModuleType) -> Array:
    return 1.0 / (1.0 + np.exp(-x)) if xp is np else jax.nn.sigmoid(x)


def pnorm(a: Array, b: Array, q: Array, xp: ModuleType = jnp) -> Array:
    """(a^(1/q) + b^(1/q))^q for a, b >= 0: max(a, b) at q = 0, a + b at q = 1. In NumPy (`xp`) of
    complex numbers, too, which count by their real parts.
    """
    a, b, q = xp.asarray(a), xp.asarray(b), xp.asarray(q)
    high, low = xp.maximum(a, b), xp.minimum(a, b)
    usable = (low > 0) & (q > 0)  # the other branch of a where still has a gradient: keep it finite
    ratio = xp.where(usable, low / xp.where(high > 0, high, 1.0), 1.0)
    power = xp.where(q > 0, q, 1.0)
    more = xp.exp(power * xp.log1p(xp.exp(xp.log(ratio) / power)))
    return xp.where(usable, high * more, high)
