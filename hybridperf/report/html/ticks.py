"""Where an axis has ticks: round numbers, few enough to be read."""

from __future__ import annotations

import math

import numpy as np


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Powers of ten from `low` to `high`, every second or third where there are many; 1, 2, 5 where
    there are hardly any.
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 1:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [
            f * 10.0**p
            for p in powers
            for f in (1, 2, 5)
            if low * (1 - 1e-9) <= f * 10.0**p <= high * (1 + 1e-9)
        ]
        return found or [low]
    every = math.ceil((last - first + 1) / most)
    return [10.0**p for p in range(first, last + 1) if p % every == 0] or [10.0**first]


def limits(values: np.ndarray, log: bool) -> tuple[float, float]:
    """Ends of an axis: a little beyond the values, or around zero where there are none."""
    good = values[np.isfinite(values) & ((values > 0) if log else True)]
    if not len(good):
        return (0.1, 10.0) if log else (0.0, 1.0)
    low, high = float(good.min()), float(good.max())
    if log:
        beyond = max((high / low) ** 0.06, 1.5)
        return low / beyond, high * beyond
    low = min(low, 0.0) if low < 0.5 * high else low  # zero is shown unless all lie far from it
    beyond = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (low - beyond if low else 0.0), high + beyond
