"""Knobs of a device from measured rows: robust least squares in log time, a prior per knob.

With t(theta) the calibrated form of `ops.roofline`, over all rows i of all groups at once (memory
levels are shared by the groups),

    minimise   sum_i  huber( log t_i(theta) - log measured_i ; 0.1 )  +  sum_j ((theta_j - prior_j)
               / width_j)^2

theta holds logs of positive knobs, so nothing leaves its range, and a knob that no row speaks of
stays at its prior. Errors of 10 % count in full, larger ones linearly: a handful of disturbed
measurements does not bend the fit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares
from threadpoolctl import threadpool_limits

from hybridperf.hardware import LEVELS, MEMORY, DeviceSpec
from hybridperf.io.namespace import Array
from hybridperf.learning.prior.knobs import huber_data_only
from hybridperf.model import platform as model
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import RooflineKnobs

LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly
# more rows of one group are thinned evenly over their times: five knobs need no more
ROWS_PER_GROUP = 3000
# share of the objective; knobs within a percent or so of the exact optimum, ten times sooner
SOLVED = 1e-4

# Prior of log knobs: (median, width in log). Wide where devices differ by orders of magnitude,
# narrow where they do not.
_PRIOR = {
    "floor_s": (2e-6, 1.5), "compute_efficiency": (0.6, 0.7), "memory_efficiency": (0.7, 0.4),
    "transcendental_flops": (15.0, 1.0), "strided_factor": (1.0, 0.7), "step_s": (1e-10, 2.5),
    "smoothing": (0.7, 2.0),
}  # fmt: skip
_LOOKUPS = (
    "gather", "pooled_gather", "scatter_add", "embedding_bag", "embedding_bag_backward",
    "embedding_bag_scatter",
)  # fmt: skip
# seconds of one step, where a step is more than a loop iteration
_STEP_S = dict.fromkeys(_LOOKUPS, 2e-8) | {
    "batched_gemm": 5e-8, "batched_gemm_transposed": 3e-7, "allocation": 5e-7, "call": 1e-6,
    "loop_trip": 1e-7, "norm": 1e-8, "softmax": 1e-8,
}  # fmt: skip
# of one group or memory level
_OWN_PRIOR = {
    **{("step_s", group): (seconds, 2.5) for group, seconds in _STEP_S.items()},
    # over a plain loop's: the next row of a table is nowhere a prefetcher would look
    **{("strided_factor", group): (5.0, 1.2) for group in _LOOKUPS},
    # bandwidth of a cache over the next level's, less one
    ("level_speedup", "l1"): (0.5, 0.7), ("level_speedup", "l2"): (1.0, 0.7),
    ("level_speedup", "l3"): (1.0, 0.7),
    ("line_s", "l1"): (3e-10, 1.0), ("line_s", "l2"): (1.5e-9, 1.0), ("line_s", "l3"): (8e-9, 1.0),
    ("line_s", "memory"): (2e-8, 1.0),
    ("level_capacity", "l1"): (1.0, 0.3), ("level_capacity", "l2"): (1.0, 0.3),
    ("level_capacity", "l3"): (0.3, 1.0),  # shared with others
}  # fmt: skip


# how far a knob's log is from another CPU's, at least: two that happen to agree are no law
_BETWEEN = {
    "floor_s": 0.4, "compute_efficiency": 0.3, "memory_efficiency": 0.3,
    "transcendental_flops": 0.4, "strided_factor": 0.4, "step_s": 0.5, "smoothing": 0.7,
    "level_speedup": 0.4, "line_s": 0.4, "level_capacity": 0.5,
}  # fmt: skip
# Rows err by 0.3 about the form, not by `LOSS_SCALE`: beside them a belief counts that much more.
# Four calibrations of a CPU of the prior's kind, in other sizes: rows held out err by 0.228, 0.209
# and 0.206 at 1, 0.3 and 0.15 times the widths above.
_BESIDE_ROWS = 0.3

KnownKnobs = Mapping[str, Mapping[str, float]]  # of each machine theta by `KnobVector.names`


@dataclasses.dataclass(frozen=True)
class KnobVector:
    """Places of the knobs of some groups and memory levels in the vector theta."""

    groups: tuple[int, ...]
    levels: tuple[int, ...]  # memory levels this device has
    # groups without a separate step cost: all their rows have the same number of steps
    without_steps: frozenset[int]

    @staticmethod
    def of(table: model.OpTable, device: DeviceSpec) -> KnobVector:
        """The knobs that rows of a device may tell about."""
        levels = tuple(i for i, capacity in enumerate(device.level_bytes()) if capacity > 0)
        groups = tuple(int(g) for g in np.unique(table.group))
        steps = table.work.steps
        alike = frozenset(g for g in groups if np.ptp(steps[table.group == g]) == 0)
        return KnobVector(groups, levels, alike)

    def places(self) -> list[tuple[str, int]]:
        """The knob of each number of theta, and the group or memory level that it belongs to."""
        caches = [level for level in self.levels if level != MEMORY]
        found = [(name, group) for name in model.GROUP_KNOBS for group in self.groups]
        found += [("level_speedup", level) for level in caches]  # the log of its gain less one
        found += [("line_s", level) for level in self.levels]
        return found + [("level_capacity", level) for level in caches]

    def behind(self, level: int) -> int:
        """The next slower memory level."""
        return self.levels[self.levels.index(level) + 1]

    def names(self) -> list[str]:
        """Of each number of theta: `floor_s gemm`, `line_s l3`."""
        return [
            f"{name} {(LEVELS if name in model.LEVEL_KNOBS else GROUPS)[of]}"
            for name, of in self.places()
        ]

    def prior(self, machines: KnownKnobs | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(means, widths) of theta: what other machines' were, else what is believed."""
        found = []
        for key in self.names():
            name, word = key.split()
            told = [theta[key] for theta in (machines or {}).values() if key in theta]
            if told:
                width = _BESIDE_ROWS * float(np.hypot(np.std(told), _BETWEEN[name]))
                found.append((float(np.mean(told)), width))
                continue
            median, width = _OWN_PRIOR.get((name, word)) or _PRIOR[name]
            odds = median / (1 - median) if name == "smoothing" else median
            found.append((math.log(odds), width))
        means, widths = np.array(found).T
        return means, widths

    def knobs(self, theta: Array) -> RooflineKnobs:
        """RooflineKnobs [G], [L] from theta."""
        neutral, places = model.neutral_knobs(), self.places()
        values = {}
        for name in (*model.GROUP_KNOBS, *model.LEVEL_KNOBS):
            mine = [(i, of) for i, (one, of) in enumerate(places) if one == name]
            at, of = np.array(mine, int).reshape(-1, 2).T
            fitted = (jax.nn.sigmoid if name == "smoothing" else jnp.exp)(theta[at])
            if name == "step_s":
                fitted *= jnp.asarray([float(group not in self.without_steps) for group in of])
            if name == "level_speedup":
                fitted = 1.0 + fitted
            values[name] = jnp.asarray(getattr(neutral, name)).at[of].set(fitted)
        gains, fastest = values["level_speedup"], [jnp.asarray(1.0)]
        for level in reversed(range(len(LEVELS))):  # each cache is faster than the level behind it
            fastest.append(fastest[-1] * gains[level])
        return RooflineKnobs(**values | {"level_speedup": jnp.stack(fastest[:0:-1])})

    def solved(self, theta: np.ndarray) -> RooflineKnobs:
        """`knobs` as numbers, in double precision."""
        with jax.enable_x64(True):
            found = self.knobs(jnp.asarray(theta))
        return jax.tree.map(lambda x: np.asarray(x, np.float64), found)

    def log_seconds(
        self, theta: Array, table: model.OpTable, bytes_per_s: Array, level_bytes: Array
    ) -> Array:
        """Logs of the seconds of rows [R] on a memory of that rate, with levels of bytes [L]."""
        platform = model.Platform(bytes_per_s, jnp.ones(()), level_bytes, self.knobs(theta))
        return jnp.log(model.durations(table, platform))


def fit_knobs(
    table: model.OpTable, measured: np.ndarray, device: DeviceSpec,
    left_out: Sequence[np.ndarray] = (), machines: KnownKnobs | None = None,
) -> tuple[RooflineKnobs, list[RooflineKnobs]]:  # fmt: skip
    """(knobs from all rows, knobs from all but the rows of each mask [R] in `left_out`).

    `measured` are seconds [R], `machines` the knobs that others have. The later fits start where
    the first one ended, and share its compiled functions.
    """
    vector, (every, *others) = fit_theta(table, measured, device, left_out, machines)
    return vector.solved(every), [vector.solved(theta) for theta in others]


def fit_theta(
    table: model.OpTable, measured: np.ndarray, device: DeviceSpec,
    left_out: Sequence[np.ndarray] = (), machines: KnownKnobs | None = None,
) -> tuple[KnobVector, list[np.ndarray]]:  # fmt: skip
    """`fit_knobs` as vectors: of all rows, then of all but those of each mask."""
    thin = _thinned(table, measured)
    table, measured = jax.tree.map(lambda x: x[thin], table), measured[thin]
    vector = KnobVector.of(table, device)
    means, widths = vector.prior(machines)
    rows = np.arange(padded_rows(len(thin))) % len(thin)  # more than there are count nothing
    # one thread of linear algebra: the factorisations are small, and on a busy machine threads wait
    # for each other (24 s became 300); float32 steps are too coarse for a least-squares solver's
    # stopping rule
    with threadpool_limits(1, user_api="blas"), jax.enable_x64(True):
        data = (
            jnp.asarray(np.log(measured[rows])),
            model.canonical(jax.tree.map(lambda x: x[rows], table)), jnp.asarray(means),
            jnp.asarray(widths), jnp.asarray(device.memory_bytes_per_s),
            jnp.asarray(device.level_bytes()),
        )  # fmt: skip

        def solve(start: np.ndarray, counts: np.ndarray) -> np.ndarray:
            weights = jnp.asarray(np.pad(counts, (0, len(rows) - len(thin))))

            # SciPy asks for errors at each step that it tries, and for slopes where it stays
            @functools.lru_cache(1)
            def both(theta: bytes) -> tuple[Any, Any]:
                return _slopes_and_errors(vector, np.frombuffer(theta), weights, *data)

            found = least_squares(
                lambda theta: np.asarray(both(theta.tobytes())[1]), start,
                jac=lambda theta: np.asarray(both(theta.tobytes())[0]),
                loss=huber_data_only(len(rows)), max_nfev=60, ftol=SOLVED, xtol=SOLVED,
            )  # fmt: skip
            return found.x

        every = solve(means, np.ones(len(thin)))
        return vector, [every, *(solve(every, 1.0 - mask[thin]) for mask in left_out)]


def padded_rows(rows: int) -> int:
    """A number of rows from 64 on that is not much larger, so that tables of about a size share a
    compiled function: eight or fewer in each octave.
    """
    step = max(1 << max(rows.bit_length() - 3, 0), 64)
    return -(-rows // step) * step


@functools.partial(jax.jit, static_argnums=0)
def _slopes_and_errors(
    vector: KnobVector, theta: Array, weights: Array, log_measured: Array, table: model.OpTable,
    means: Array, widths: Array, bytes_per_s: Array, level_bytes: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Jacobian, and scaled log errors and then pulls to the prior."""

    def errors(theta: Array) -> tuple[Array, Array]:
        log_s = vector.log_seconds(theta, table, bytes_per_s, level_bytes)
        of_rows = weights * (log_s - log_measured) / LOSS_SCALE
        found = jnp.concatenate([of_rows, (theta - means) / widths])
        return found, found

    slopes, found = jax.jacfwd(errors, has_aux=True)(theta)
    return slopes, found


def _thinned(table: model.OpTable, measured: np.ndarray) -> np.ndarray:
    keep = []
    for group in np.unique(table.group):
        at = np.flatnonzero(table.group == group)
        by_time = at[np.argsort(measured[at], kind="stable")]
        evenly = np.linspace(0, len(at) - 1, min(len(at), ROWS_PER_GROUP))
        keep.append(by_time[np.unique(evenly.astype(int))])
    return np.sort(np.concatenate(keep))
