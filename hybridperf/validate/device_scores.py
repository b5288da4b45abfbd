"""How far predictions lie from measured times, next to the baselines', on one set of rows and
averaged over draws of rows fitted on.

`median`, `mean` and `geomean` are of |predicted / measured - 1|; `excess` is our median minus that
of the best baseline, with its bootstrap 95 % interval over rows; coverage is apart for rows inside
and outside the sizes that were fitted on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.learning.prior import Predicted
from hybridperf.model.published.ops import DeviceRows
from hybridperf.validate import device_baselines
from hybridperf.validate.baselines import COLUMN, best
from hybridperf.validate.scores import coverage_band, excess, pearson_of_logs

LEAST_TESTED = 30  # rows, below which a median means nothing
RESAMPLES = 400
_LEAST_REPEATS = 20


@dataclasses.dataclass(frozen=True)
class DrawPredictions:
    """Predictions of some rows by ours and the baselines, for one draw of rows fitted on."""

    ours: Predicted
    baselines: Mapping[str, np.ndarray]  # logs of seconds [N]
    counts: np.ndarray  # [N] rows that were not fitted on


def device_scores(
    draws: Sequence[DrawPredictions], time_s: np.ndarray, mask: np.ndarray
) -> dict[str, Any] | None:
    """Errors of ours, knobs alone and baselines, means over draws; None of too few rows."""
    each = [(draw, mask & draw.counts) for draw in draws]
    if min(int(keep.sum()) for _, keep in each) < LEAST_TESTED:
        return None
    log_time = np.log(time_s)

    def errors(log_s: Callable[[DrawPredictions], np.ndarray]) -> list[np.ndarray]:
        return [np.abs(np.expm1(log_s(draw)[keep] - log_time[keep])) for draw, keep in each]

    ours, knobs = errors(lambda draw: draw.ours.log_s), errors(lambda draw: draw.ours.closed_log_s)
    others: dict[str, list[np.ndarray]] = {}
    for name in draws[0].baselines:
        others[name] = errors(lambda draw, name=name: draw.baselines[name])  # type: ignore[misc]
    medians = {name: _median(values) for name, values in others.items()}
    best_name = best(medians)
    low, high = excess(ours, others[best_name], np.random.default_rng(0), RESAMPLES)
    far = [draw.ours.outside[keep] > 0 for draw, keep in each]
    near = [~one for one in far]
    inside = [_inside(draw.ours, log_time)[keep] for draw, keep in each]
    half = [(draw.ours.high_log_s - draw.ours.low_log_s)[keep] / 2 for draw, keep in each]
    predicted = [(np.exp(draw.ours.log_s[keep]), time_s[keep]) for draw, keep in each]
    near_rows, far_rows = (int(sum(part.sum() for part in parts)) for parts in (near, far))
    band = coverage_band(near_rows) if near_rows else (None, None)
    geomeans = [np.exp(np.log(np.maximum(values, 1e-4)).mean()) for values in ours]
    return {
        "tested": int(np.mean([keep.sum() for _, keep in each])),
        "median": _median(ours),
        "mean": float(np.mean([values.mean() for values in ours])),
        "geomean": float(np.mean(geomeans)),
        "pearson": float(np.mean([np.corrcoef(p, measured)[0, 1] for p, measured in predicted])),
        "pearson_logs": float(np.mean([pearson_of_logs(m, p) for p, m in predicted])),
        "knobs": _median(knobs),
        **{f"{COLUMN}{name}": medians.get(name) for name in device_baselines.NAMES},
        "best_null": best_name,
        "excess": _median(ours) - medians[best_name],
        "excess_low": low,
        "excess_high": high,
        "in_range": near_rows,
        "covered_in_range": _share(inside, near),
        "band_low": band[0],
        "band_high": band[1],
        "out_of_range": far_rows,
        "covered_out_of_range": _share(inside, far),
        "covered": float(np.mean(np.concatenate(inside))),
        "half_width": float(np.mean([np.mean(np.expm1(values)) for values in half])),
        "median_out_of_range": _pooled_median(ours, far),
        "knobs_out_of_range": _pooled_median(knobs, far),
        "roofline_out_of_range": _pooled_median(others["roofline"], far),
    }


def repeat_noise(rows: DeviceRows) -> float | None:
    """Median |log ratio| of two measurements of one op; None where hardly any were repeated."""
    key = pd.util.hash_array(rows.rows.implementation.astype(str)) ^ rows.about["shape"].to_numpy(
        np.uint64
    )
    inputs = pd.DataFrame(rows.rows.inputs.values)
    values = pd.util.hash_pandas_object(inputs, index=False).to_numpy()
    times = pd.Series(np.log(rows.time_s)).groupby(key ^ values)
    spread = (times.max() - times.min())[times.size() > 1]
    return float(spread.median()) if len(spread) >= _LEAST_REPEATS else None


def _inside(predicted: Predicted, log_time: np.ndarray) -> np.ndarray:
    return np.asarray((predicted.low_log_s <= log_time) & (log_time <= predicted.high_log_s))


def _median(draws: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.median(values) for values in draws]))


def _chosen(values: Sequence[np.ndarray], of: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([value[mask] for value, mask in zip(values, of, strict=True)])


def _share(hits: Sequence[np.ndarray], of: Sequence[np.ndarray]) -> float | None:
    some = _chosen(hits, of)
    return float(some.mean()) if len(some) else None


def _pooled_median(values: Sequence[np.ndarray], of: Sequence[np.ndarray]) -> float | None:
    some = _chosen(values, of)
    return float(np.median(some)) if len(some) >= LEAST_TESTED else None
