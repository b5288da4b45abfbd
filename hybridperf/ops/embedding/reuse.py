"""Reuse histograms: how many of a batch's different rows were looked up once, twice, three or four
times, ...

Bin k of the 17 holds rows of (2^(k-1), 2^k] lookups, the first those of one, the last all beyond
2^15 (Lin et al. 2024, and the locality statistics of facebookresearch/dlrm_datasets). A histogram
is the shares of the *different rows*; with the mean lookups per row it also tells how many
different rows there are.

**Thinning.** A batch of a share f of a file's samples keeps each of a row's c lookups with
probability f, so a row is looked up Binomial(c, f) times in it, and not at all with (1 - f)^c.
Inside a bin counts are spread as c^-a, `a` from the slope between the bins' neighbours; the mean of
the last bin, which has no end, is what is left of the mean lookups per row, and what it cannot make
good is added to all powers alike: shares, counts and mean agree, so that a batch never has more
different rows than lookups.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import scipy

from hybridperf.io.namespace import array_module

BINS = 17
_UPPER = 2.0 ** np.arange(BINS - 1)  # most lookups of a row of each bin but the last
LOWER = np.concatenate([[1.0], _UPPER + 1])  # fewest
# where nothing tells, the last bin ends at eight times its beginning
HIGH = np.append(_UPPER, 8.0 * LOWER[-1])
_NODES = 24  # counts that stand for a bin, at most
_STEEPEST = 200.0  # power of the count that leaves a bin's rows at one of its ends
_HALVINGS = 30  # of twice that: to a millionth
# of a mean in the power, as a share of it, where there is room in the bins to move it
_LEAST_SLOPE = 1e-5


def bin_names() -> list[str]:
    """Columns of a histogram in a table: `rf_0` to `rf_16`."""
    return [f"rf_{k}" for k in range(BINS)]


def binned(p: Any, count: Any, lookups: Any) -> Any:
    """The histogram [17] of a batch of `lookups` draws from classes of `count` rows of probability
    `p` [K]; differentiable in all.

    Where JAX traces the lookups they are Poisson: binomial ones have no slope in their number.
    """
    module = array_module(p, count, lookups)
    if isinstance(lookups, jax.core.Tracer):
        met = module.asarray(p)[:, None] * lookups
        inside = _inside(jax.scipy.special.gammainc(module.array(LOWER), met), module)
    else:
        # of less than one lookup, too, each row is looked up once at most
        inside = _chances(max(lookups, 1.0), p)
    rows = module.sum(module.asarray(count)[:, None] * inside, 0)
    return rows / module.sum(rows)


def kept(times: Any, count: Any, fraction: Any) -> Any:
    """Rows [17] of each bin where a `fraction` is kept of the lookups of `count` rows [K] that were
    looked up `times` [K].
    """
    module = array_module(count, fraction)
    return module.sum(count[:, None] * _chances(times, fraction + 0.0 * times), 0)


def _chances(trials: Any, p: Any) -> Any:
    """Probability [K, 17] that the successes in `trials` [K or none] trials of probability `p` [K]
    fall in each bin.

    `trials` are numbers, not traced: the incomplete beta function has a slope in `p` only.
    """
    module = array_module(p)
    trials = np.broadcast_to(np.asarray(trials, np.float64), np.shape(p))[:, None]
    possible = trials >= LOWER  # fewer trials than successes: never, and no such beta function
    rest = np.where(possible, trials - LOWER + 1.0, 1.0)
    beta = scipy.special.betainc if module is np else jax.scipy.special.betainc
    chance = beta(LOWER + 0 * rest, rest, module.asarray(p)[:, None])
    return _inside(module.where(possible, chance, 0.0), module)


def _inside(at_least: Any, module: Any) -> Any:
    """Probability of each bin from those of at least its fewest lookups."""
    return at_least - module.concatenate([at_least[:, 1:], 0 * at_least[:, :1]], 1)


def counts(shares: Any, mean_reuse: Any = None) -> tuple[np.ndarray, Any]:
    """(lookups of a row, share of the different rows that have so many), both [M], of a histogram.

    Their mean is `mean_reuse` where it is given: the last bin takes what the others leave of it
    (where nothing is traced; otherwise it goes on to 2^18), and what it cannot take leans the
    counts inside all bins by one power, as far as the bins' ends.
    """
    module = array_module(shares, mean_reuse)
    slopes, high = slopes_of(shares), HIGH.copy()
    if mean_reuse is not None and module is np and shares[-1] > 0:
        below = shares[:-1] @ [*map(mean_between, LOWER[:-1], HIGH[:-1], slopes[:-1])]
        high[-1] = _end_of_tail((mean_reuse - below) / shares[-1], float(slopes[-1]))
    nodes = [_nodes(*ends) for ends in zip(LOWER, high, strict=True)]
    at, width = (np.concatenate(one) for one in zip(*nodes, strict=True))
    of = np.repeat(np.arange(BINS), [len(places) for places, _ in nodes])
    member = (of == np.arange(BINS)[:, None]).astype(float)

    def weight(lean: Any) -> Any:
        power = (lean - slopes)[of]
        ratio = at / module.where(power > 0, high[of], LOWER[of])  # at most one, to whatever power
        spread = width * module.exp(power * module.log(ratio))
        return (module.asarray(shares) / (member @ spread))[of] * spread

    if mean_reuse is None:
        return at, weight(0.0)
    low, most = -_STEEPEST, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (low + most) / 2
        below = module.sum(at * weight(middle)) < mean_reuse
        low, most = module.where(below, middle, low), module.where(below, most, middle)
    lean = (low + most) / 2
    here = weight(lean)
    inside = (member @ (here * np.log(at))) / module.maximum(module.asarray(shares), 1e-30)
    apart = np.log(at) - inside[of]
    # of the mean in the lean; a last step of Newton's makes the answer differentiable
    slope = module.sum(here * at * apart)
    firm = slope > _LEAST_SLOPE * mean_reuse
    step = (module.sum(at * here) - mean_reuse) / module.where(firm, slope, 1.0)
    return at, weight(lean - module.where(firm, step, 0.0))


def rates(shares: Any, times: np.ndarray, met: Any, unmet: Any) -> Any:
    """Lookups to expect [1 + M] of a row that was not looked up, or `times` [M], where `met` [M]
    and `unmet` rows were.

    Counts are rates and chance: where few rows are looked up twice, those that were are no more
    liked than others. Of rows of c lookups (Good 1953, Robbins 1956; n_c rows, whatever their
    rates)

        rate = (c + 1) n_(c+1) / n_c,   about (c + 1) exp(-a / c) where n falls as c^-a,

    `a` by the densities of the bins next to c's, and not further from c + 1 than the chance of its
    count, exp(1 / sqrt(c)).
    """
    module = array_module(shares, met, unmet)
    slopes = slopes_of(shares, np.inf)[np.searchsorted(_UPPER, times)]
    chance = 1 / np.sqrt(times)
    more = module.log(times + 1.0) - module.clip(slopes / times, -chance, chance)
    alone = module.where(unmet > 0, met[0] / module.where(unmet > 0, unmet, 1.0), 1.0)
    once = module.where(met[0] > 0, 2.0 * met[1] / module.where(met[0] > 0, met[0], 1.0), 1.0)
    # a row that was met is no rarer than one that was not
    once = module.maximum(once, module.minimum(alone, 1.0))
    first = module.stack([module.minimum(alone, once), once])
    return module.concatenate([first, module.exp(more[1:])])


def thinned(shares: Any, mean_reuse: Any, fraction: Any) -> tuple[Any, Any]:
    """(shares [17], mean reuse) of a `fraction` of the samples."""
    times, weight = counts(shares, mean_reuse)
    rows, module = kept(times, weight, fraction), array_module(shares, mean_reuse, fraction)
    met = module.sum(rows)
    return rows / met, fraction * module.sum(times * weight) / met


def mean_of(shares: Any) -> Any:
    """Mean lookups per different row that a histogram alone tells."""
    times, weight = counts(shares)
    return array_module(weight).sum(times * weight)


def mean_range(shares: np.ndarray) -> tuple[float, float]:
    """Least and most mean lookups per different row; the last bin has no upper end."""
    most = np.append(_UPPER, np.inf)
    return float(shares @ LOWER), float(shares[shares > 0] @ most[shares > 0])


def lookups_within(shares: Any, most: float) -> Any:
    """Lookups of rows that have at most `most` (up to 32), per different row of all."""
    times, weight = counts(shares)
    return array_module(weight).sum(times * weight * (times <= most))


def mean_between(low: float, high: float, slope: float) -> float:
    """Mean of counts from low to high that are spread as c^-slope."""
    at, width = _nodes(low, high)
    weight = width * at**-slope
    return float((at * weight).sum() / weight.sum())


@functools.lru_cache(4096)
def _nodes(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """(counts that stand for the whole numbers from low to high, how many each stands for)."""
    edges = np.unique(np.round(np.geomspace(low, high + 1, min(int(high - low) + 2, _NODES + 1))))
    edges[-1] = high + 1
    found = (edges[1:] + edges[:-1] - 1) / 2, np.diff(edges)
    for one in found:  # which many share
        one.setflags(write=False)
    return found


def slopes_of(shares: Any, steepest: float = 4.0) -> Any:
    """a of c^-a inside each bin [17], from the densities of the neighbouring bins."""
    module = array_module(shares)
    density = module.log(module.maximum(module.asarray(shares), 1e-9) / (HIGH - LOWER + 1))
    centre, k = np.log(np.sqrt(LOWER * HIGH)), np.arange(BINS)
    before, after = np.maximum(k - 1, 0), np.minimum(k + 1, BINS - 1)
    slope = (density[before] - density[after]) / (centre[after] - centre[before])
    return module.clip(slope, 0.0 if steepest < np.inf else -np.inf, steepest)


def _end_of_tail(mean: float, slope: float) -> float:
    """Largest count of the last bin so that its mean is `mean`; at least the bin's beginning."""
    low, high = LOWER[-1], LOWER[-1] * 1e4
    for _ in range(40):
        middle = np.sqrt(low * high)
        below = mean_between(LOWER[-1], middle, slope) < mean
        low, high = (middle, high) if below else (low, middle)
    return float(np.sqrt(low * high))
