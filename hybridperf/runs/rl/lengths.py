"""How long answers are, and how they are packed into micro-batches.

Answers are log-normal and end at the longest that is allowed: `spread` is the deviation of the log,
the median is what gives the mean. A batch is told by its quantiles, and its longest one is the
expected maximum of all that are generated, whoever generates it: the step ends with it.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

_ROUNDS = 60  # of halving, for the median


def answer_lengths(count: int, of: int, mean: float, longest: int, spread: float) -> np.ndarray:
    """Tokens of answers, rising, int [count].

    Args:
        count: how many, of one engine or one batch.
        of: how many there are in all; the longest of these is the last.
        mean: tokens of an answer.
        longest: tokens that an answer may have; what would be longer ends there.
        spread: standard deviation of the log before that.
    """
    normal = ndtri((np.arange(count) + 0.5) / count)
    low, high = np.log(mean) - 5.0, np.log(longest) + 10.0 * spread + 5.0
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        short = np.minimum(np.exp(middle + spread * normal), longest).mean() < mean
        low, high = (middle, high) if short else (low, middle)
    found = np.minimum(np.exp(low + spread * normal), longest)
    found[-1] = min(np.exp(low + spread * ndtri((of - 0.5) / of)), longest)
    return np.clip(found.round(), 1, longest).astype(int)


def packed(lengths: np.ndarray, room: int) -> int:
    """Micro-batches of so many tokens that samples fill, the longest first into the first that has
    room for it (first-fit decreasing).
    """
    free: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        for at, left in enumerate(free):
            if left >= length:
                free[at] -= length
                break
        else:
            free.append(room - length)
    return len(free)
