"""How far predictions lie from measured times, beside the null models', on one set of rows and
averaged over draws of rows fitted on.

`median`, `mean` and `geomean` are of |predicted / measured - 1|; `excess` is our median minus that
of the null model with the least, with its bootstrap 95 % interval over rows; coverage is apart for
rows inside and outside the sizes that were fitted on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom

from hybridperf.learning.prior import Predicted
from hybridperf.model.fit.device import COVERAGE
from hybridperf.model.published.ops import DeviceRows
from hybridperf.validate import null_models

LEAST_TESTED = 30  # rows, below which a median says nothing
_RESAMPLES = 400
_LEAST_REPEATS = 20


@dataclasses.dataclass(frozen=True)
class Guesses:
    """What ours and the null models say of some rows, for one draw of rows fitted on."""

    ours: Predicted
    nulls: Mapping[str, np.ndarray]  # logs of seconds [N]
    counts: np.ndarray  # [N] rows that were not fitted on


def scores(draws: Sequence[Guesses], time_s: np.ndarray, mask: np.ndarray) -> dict[str, Any] | None:
    """Errors of ours, of knobs alone and of the null models, averaged over draws; None where too
    few rows are left.
    """
    kept = [mask & draw.counts for draw in draws]
    if min(int(keep.sum()) for keep in kept) < LEAST_TESTED:
        return None
    log_time = np.log(time_s)

    def errors(said: Callable[[Guesses], np.ndarray]) -> list[np.ndarray]:
        return [
            np.abs(np.expm1(said(draw)[keep] - log_time[keep]))
            for draw, keep in zip(draws, kept, strict=True)
        ]

    ours, knobs = errors(lambda draw: draw.ours.log_s), errors(lambda draw: draw.ours.closed_log_s)
    nulls = {name: errors(lambda draw, name=name: draw.nulls[name]) for name in draws[0].nulls}  # type: ignore[misc]
    medians = {name: _median(values) for name, values in nulls.items()}
    best = null_models.best(medians)
    low, high = excess(ours, nulls[best])
    far = [draw.ours.outside[keep] > 0 for draw, keep in zip(draws, kept, strict=True)]
    inside = [_inside(draw.ours, log_time)[keep] for draw, keep in zip(draws, kept, strict=True)]
    half = [
        (draw.ours.high_log_s - draw.ours.low_log_s)[keep] / 2
        for draw, keep in zip(draws, kept, strict=True)
    ]
    predicted = [np.exp(draw.ours.log_s[keep]) for draw, keep in zip(draws, kept, strict=True)]
    near_rows, far_rows = (
        int(sum(part.sum() for part in parts)) for parts in ([~f for f in far], far)
    )
    band = binom.interval(0.99, near_rows, COVERAGE) if near_rows else (np.nan, np.nan)
    return {
        "tested": int(np.mean([keep.sum() for keep in kept])),
        "median": _median(ours),
        "mean": float(np.mean([values.mean() for values in ours])),
        "geomean": float(
            np.mean([np.exp(np.log(np.maximum(values, 1e-4)).mean()) for values in ours])
        ),
        "pearson": float(
            np.mean(
                [
                    np.corrcoef(p, time_s[keep])[0, 1]
                    for p, keep in zip(predicted, kept, strict=True)
                ]
            )
        ),
        "knobs": _median(knobs),
        **{f"null_{name}": medians.get(name) for name in null_models.NAMES},
        "best_null": best,
        "excess": _median(ours) - medians[best],
        "excess_low": low,
        "excess_high": high,
        "in_range": near_rows,
        "covered_in_range": _share(inside, [~f for f in far]),
        "band_low": band[0] / near_rows if near_rows else None,
        "band_high": band[1] / near_rows if near_rows else None,
        "out_of_range": far_rows,
        "covered_out_of_range": _share(inside, far),
        "covered": float(np.mean(np.concatenate(inside))),
        "half_width": float(np.mean([np.mean(np.expm1(values)) for values in half])),
        "median_out_of_range": _pooled_median(ours, far),
        "knobs_out_of_range": _pooled_median(knobs, far),
        "roofline_out_of_range": _pooled_median(nulls["roofline"], far),
    }


def excess(
    ours: Sequence[np.ndarray], null: Sequence[np.ndarray], seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval over rows of our median error minus a null model's, averaged over
    draws.
    """
    random = np.random.default_rng(seed)
    apart = np.zeros(_RESAMPLES)
    for mine, other in zip(ours, null, strict=True):
        drawn = random.integers(0, len(mine), (_RESAMPLES, len(mine)))
        apart += (np.median(mine[drawn], axis=1) - np.median(other[drawn], axis=1)) / len(ours)
    return float(np.quantile(apart, 0.025)), float(np.quantile(apart, 0.975))


def repeat_noise(rows: DeviceRows) -> float | None:
    """Median |log ratio| of two measurements of the same op and implementation; None where hardly
    any was measured twice.
    """
    key = pd.util.hash_array(rows.rows.implementation.astype(str)) ^ rows.about["shape"].to_numpy(
        np.uint64
    )
    values = pd.util.hash_pandas_object(
        pd.DataFrame(rows.rows.inputs.values), index=False
    ).to_numpy()
    times = pd.Series(np.log(rows.time_s)).groupby(key ^ values)
    spread = (times.max() - times.min())[times.size() > 1]
    return float(spread.median()) if len(spread) >= _LEAST_REPEATS else None


def _inside(said: Predicted, log_time: np.ndarray) -> np.ndarray:
    return np.asarray((said.low_log_s <= log_time) & (log_time <= said.high_log_s))


def _median(draws: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.median(values) for values in draws]))


def _share(hits: Sequence[np.ndarray], of: Sequence[np.ndarray]) -> float | None:
    some = np.concatenate([hit[mask] for hit, mask in zip(hits, of, strict=True)])
    return float(some.mean()) if len(some) else None


def _pooled_median(values: Sequence[np.ndarray], of: Sequence[np.ndarray]) -> float | None:
    some = np.concatenate([value[mask] for value, mask in zip(values, of, strict=True)])
    return float(np.median(some)) if len(some) >= LEAST_TESTED else None
