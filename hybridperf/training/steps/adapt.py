"""Step effects and block times from measured steps: one Gaussian conditioning, repeated where the
composition bends.

The log of a step's time is a known function of the logs theta of the step effects and of
corrections of the logs of block times, three per cell x = (log2 hidden, log2 tp, log2 tokens of a
micro-batch, log2 sequence): of a layer, of its GPU beyond that, of embedding and LM head:

    log measured_i = log step_i(theta, d(x_i)) + noise_i
    theta ~ N(theta_0, widths^2),    d_b ~ GP(0, s_b^2 Matern32(|x - x'| / l_b))

Rows of several published sources have a bias of each, N(0, 0.06^2), among z: what one source alone
shows moves no effect far.

With z = (theta, d at the cells of the rows), A its slopes and R the noise, linearised at z:

    S = (P0^-1 + A^T R^-1 A)^-1,    z <- z0 + S A^T R^-1 (log measured - log step + A (z - z0))

Rows of one cell share its corrections, so a hundred of them do not drown the beliefs; an effect
that no row shows stays where it was; what an effect explains everywhere costs less than as many
corrections. Rows that are far off count linearly (Huber), so a handful of disturbed ones bends
nothing. S tells how sure a prediction is, and S, P0 and what is left how likely the rows are
(Laplace), by which assumptions are compared. Corrections are bounded: none carries a block beyond a
factor of 1.6.

Axes: n rows learned from, N rows to predict, K effects, C cells of the rows, X = 4 inputs, B = 3
blocks. All in NumPy, float64, slopes by differences: a fit takes less time than compiling its
derivative would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import scipy

from hybridperf.engine.closed import whole_seconds
from hybridperf.engine.step_features import StepFeatures
from hybridperf.hardware import Host
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model.adapted_steps import (
    BETWEEN_SOURCES,
    BLOCKS,
    JITTER,
    MOST_CORRECTION,
    NOISE,
    SPREAD,
    WITHIN_SOURCE,
    Adapted,
    beliefs,
    correlation,
    logs_of,
)
from hybridperf.model.step_effects import NAMES, effects_of
from hybridperf.training.steps.cross_node import with_stalled

_FAR = 0.05  # in logs; beyond it a row counts linearly. 0.1 errs the same on the same draws
# Share of rows that lie within so many deviations. Four in five say how noisy rows are that scatter
# more than NOISE, for a fit that does not heed the wild ones; nine in ten how far the next one may
# lie, which is what an interval promises
_MOST, _NINE = (0.8, 1.28), (0.9, NINE_OF_TEN)
_CLEARLY_NOISIER = 2.0
_STEP = 1e-4  # in logs, of differences
_AT_ONCE = 1 << 14  # numbers in an array of steps moved by one effect each: stays in the cache
_ROUNDS, _DAMPING, _LONGEST_STEP = 40, 0.6, 0.5
_FARTHEST = 3.0  # in logs, from what is believed: no machine is further off, wrong units are
_GAIN = 0.02  # of twice the log likelihood, below which a round is the last one
_NOISE_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class StepPrediction:
    """Prediction of each row [N]."""

    log_s: np.ndarray
    deviation: np.ndarray  # of its log
    # corrections [N] each, as the composition takes them
    logs: tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class FitLimits:
    """Whose beliefs a fit starts from, and limits of one that may not go as far as usual."""

    corrections: float = 1.0  # times SPREAD
    widths: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of knobs, by name
    group: str = ""  # "framework on architecture"
    sources: tuple[str, ...] = ()  # of each row; () where all are of one


def predict(
    adapted: Adapted, f: StepFeatures, cells: np.ndarray, deviates: bool = True
) -> StepPrediction:
    """Log seconds of rows and how sure they are.

    Without `deviates` the deviation, which takes ten times as long as the rest, is left at zero.
    """
    corrections = adapted.of_cells(cells)[0]
    if deviates:
        log_s, by_theta, by_block = slopes(f, adapted.theta, corrections)
        deviation = np.sqrt(adapted.variance(by_theta, by_block, cells, f.unmeasured_widths))
    else:
        log_s = _log_s(f, adapted.theta, corrections)
        deviation = np.zeros(len(log_s))
    return StepPrediction(log_s + adapted.offset, deviation, logs_of(corrections))


def fit(
    f: StepFeatures, cells: np.ndarray, measured_s: np.ndarray, host: Host | None = None,
    limits: FitLimits | None = None,
) -> Adapted:  # fmt: skip
    """Step effects and corrections after rows that took `measured_s` [n].

    Rows of one run of a machine agree to a percent. Those of a sweep over many nodes and days do
    not: their own scatter, where it is larger, becomes the noise, so that corrections do not chase
    it. Rows that turn out to have stalled are fitted again as such.
    """
    limits = limits or FitLimits()
    if len(set(limits.sources)) == 1:  # nothing tells its bias from what effects do
        limits = dataclasses.replace(limits, sources=())
    adapted = _fit_noise(f, cells, measured_s, host, limits)
    expected_s = np.exp(predict(adapted, f, cells).log_s)
    marked = with_stalled(f, adapted.effects, expected_s, measured_s)
    if (marked.stalls == f.stalls).all():
        return adapted
    return _fit_noise(marked, cells, measured_s, host, limits)


def _fit_noise(
    f: StepFeatures, cells: np.ndarray, measured_s: np.ndarray, host: Host | None, limits: FitLimits
) -> Adapted:
    """What rows show, at the noise that they show."""
    usual = WITHIN_SOURCE if limits.sources else NOISE
    adapted, error = _fit(f, cells, measured_s, host, limits, usual)
    for _ in range(_NOISE_ROUNDS):
        scatter = _scatter(error, *_MOST)
        clearly = adapted.noise != usual or scatter >= _CLEARLY_NOISIER * usual
        if scatter <= adapted.noise or not clearly:
            break
        adapted, error = _fit(f, cells, measured_s, host, limits, scatter)
    if adapted.noise == usual:
        return adapted
    return dataclasses.replace(adapted, noise=max(adapted.noise, _scatter(error, *_NINE)))


def _scatter(error: np.ndarray, share: float, deviations: float) -> float:
    """Deviation of errors, if that share of them lies within so many."""
    return float(np.quantile(np.abs(error), share)) / deviations


def _fit(
    f: StepFeatures, cells: np.ndarray, measured_s: np.ndarray, host: Host | None,
    limits: FitLimits, noise_log: float,
) -> tuple[Adapted, np.ndarray]:  # fmt: skip
    """(what rows show at one noise, errors [n] in logs that it leaves)."""
    theta_0, widths = beliefs(host, limits.group)
    pairs = zip(NAMES, widths, strict=True)
    widths = np.array([limits.widths.get(name, width) for name, width in pairs])
    effects = len(theta_0)
    known, of = np.unique(cells, axis=0, return_inverse=True)
    of = of.reshape(-1)
    some = len(known)
    sources, source_of = np.unique(np.array(limits.sources, str), return_inverse=True)
    blocks = effects + BLOCKS * some  # what sources differ by comes behind
    prior = np.zeros((blocks + len(sources),) * 2)
    prior[:effects, :effects] = np.diag(widths**2)
    prior[blocks:, blocks:] = BETWEEN_SOURCES**2 * np.eye(len(sources))
    places = [effects + at * some + np.arange(some) for at in range(BLOCKS)]
    for block, place in enumerate(places):
        alike = correlation(known, known, block) + JITTER * np.eye(some)
        prior[np.ix_(place, place)] = (limits.corrections * SPREAD[block]) ** 2 * alike
    factor = scipy.linalg.cho_factor(prior, lower=True)
    pull = scipy.linalg.cho_solve(factor, np.eye(len(prior)))
    log_measured = np.log(measured_s)
    z_0 = np.concatenate([theta_0, np.zeros(len(prior) - effects)])
    z, rows, damping, least = z_0.copy(), np.arange(len(of)), _DAMPING, np.inf
    best, step = z, np.zeros(len(z))
    most = np.where(np.arange(len(z)) < effects, _FARTHEST, MOST_CORRECTION)
    for _ in range(_ROUNDS):
        corrections = z[effects:blocks].reshape(BLOCKS, some)[:, of]
        found = log_measured - _log_s(f, z[:effects], corrections)
        if len(sources):
            found -= z[blocks + source_of]
        spread = noise_log**2 * np.maximum(1.0, np.abs(found) / _FAR)
        if len(sources):  # of a source that is far off its bias counts linearly, too
            far = np.maximum(1.0, np.abs(z[blocks:]) / BETWEEN_SOURCES)
            pull[blocks:, blocks:] = np.diag(1 / (BETWEEN_SOURCES**2 * far))
        loss = (found**2 / spread).sum() + np.log(spread).sum() + (z - z_0) @ pull @ (z - z_0)
        if loss >= least:  # too far: half as far from the best
            damping *= 0.5
            z = best + damping * step
            continue
        damping = min(2 * damping, 1.0) if np.isfinite(least) else damping
        gained, least, best, error, noise = least - loss, loss, z, found, spread
        _, by_theta, by_block = slopes(f, z[:effects], corrections)
        a = np.zeros((len(of), len(z)))
        a[:, :effects] = by_theta
        for place, slope in zip(places, by_block, strict=True):
            a[rows, place[of]] = slope
        if len(sources):
            a[rows, blocks + source_of] = 1.0
        weighted = a.T / noise
        covariance = np.linalg.inv(pull + weighted @ a)
        wanted = z_0 + covariance @ (weighted @ (error + a @ (z - z_0)))
        step = np.clip(wanted - z, -_LONGEST_STEP, _LONGEST_STEP)
        step = np.clip(z + step, z_0 - most, z_0 + most) - z
        if gained < _GAIN:
            break
        z = z + damping * step
    z = best
    log_likelihood = -0.5 * least
    log_likelihood += 0.5 * np.linalg.slogdet(covariance)[1] - np.log(np.diag(factor[0])).sum()
    corrections, evidence = z[effects:blocks].reshape(BLOCKS, some), float(log_likelihood)
    biases = dict(zip(sources.tolist(), z[blocks:].tolist(), strict=True))
    covariance = covariance[:blocks, :blocks]
    adapted = Adapted(
        z[:effects], known, corrections, covariance, len(of), noise_log, evidence, biases
    )
    return adapted, error


def slopes(
    f: StepFeatures, theta: np.ndarray, corrections: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(log seconds [N], slopes over theta [N, K] and over each block's correction [B, N])."""
    knobs = len(theta)
    # first: none; what no row has anything of moves none
    some = np.flatnonzero([True, *_counting(f), *[True] * BLOCKS])
    steps = np.vstack([np.zeros(knobs + BLOCKS), _STEP * np.eye(knobs + BLOCKS)])[some]
    at_once = max(1, _AT_ONCE // max(1, corrections.shape[-1]))
    parts = [
        _log_s(
            f,
            theta[:, None, None] + some.T[:knobs, :, None],
            corrections[:, None] + some.T[knobs:, :, None],
        )
        for some in np.split(steps, range(at_once, len(steps), at_once))
    ]
    here, *moved = np.concatenate(parts)
    slope = np.zeros((knobs + BLOCKS, len(here)))
    slope[some[1:] - 1] = (np.stack(moved) - here) / _STEP
    return here, slope[:knobs].T, slope[knobs:]


# Columns of rows or blocks without which an effect changes no second; others always count
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "experts": ("experts_s",), "tp": ("tp_s",), "tp_arrival_s": ("tp_calls",),
    "exchange": ("exchange_s", "ring_s"),
    "gather": ("gather_s", "scatter_s", "summed_s", "gather_inside_s"),
    "gather_shown": ("gather_inside_s",), "p2p": ("sends_s",), "stall_s": ("stalls",),
    "crossing_tp_s": ("crossing",), "layer_gather_s": ("gathered_layers",),
}  # fmt: skip
_ACROSS = ("tp_across", "tp_across_node_s", "ring_wait_s")  # of groups on several nodes


def _counting(f: StepFeatures) -> list[bool]:
    """Of each step effect, by `NAMES`, whether it may change the seconds of some row."""

    def any_of(name: str) -> bool:
        owners = (f.layer, f.embedding, f.head) if hasattr(f.layer, name) else (f,)
        return any(np.any(getattr(one, name)) for one in owners)

    across = bool(np.any(f.tp_nodes > 1))
    return [
        across if name in _ACROSS else name not in _NEEDED or any(map(any_of, _NEEDED[name]))
        for name in NAMES
    ]


def _log_s(f: StepFeatures, theta: np.ndarray, corrections: np.ndarray) -> np.ndarray:
    return np.log(whole_seconds(f, effects_of(theta), *logs_of(corrections)))
