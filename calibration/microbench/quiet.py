"""Waiting for a machine shared with others to be itself again.

Neighbours on the same processor can take a third of its speed for half a minute, which no number of
repeats in a row can see. A yardstick can: two small pieces of work of our own, one arithmetic, one
copying, whose good times so far (the tenth percentile: the very best is luck) tell how fast the
machine is when it is left alone. Before something is measured, wait for a limited time until the
yardstick is near them.

What shares our *core* comes and goes within milliseconds: on a virtual machine the other hardware
thread of a core may be somebody else's. No clock shows it, and what it costs depends on the op (on
an AMD EPYC: copies within the first cache take 1.9 times as long, exponentials 1.3, products 1.05
times). `Sibling` sees it by a microsecond of integer sums, which touches no memory.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

# beyond a good time; on the shared machine this was made on, a quiet yardstick varies by 15 %, a
# disturbed one adds 40
TOLERANCE = 0.25
_GOOD = 0.1  # quantile of the times so far
_SIDE = 192  # of the matrices multiplied: 0.1 to 0.2 ms
_COPIED = 2**21  # numbers copied: 8 MiB, past the second-level cache, 0.5 to 1 ms
_TRIES = 6
_PAUSE_S = 0.1
_REMEMBERED = 2000  # readings
_SUMS = range(200)
_BUSY = 1.25  # of the time of sums on a core of one's own; another thread makes them 1.3 to 1.9
_FORGOTTEN = 1e-5  # of that time, with each reading: the clock may slow down for good
_FIRST_READINGS = 2000


class Sibling:
    """Whether another hardware thread is at work on this core right now."""

    def __init__(self) -> None:
        self._least_s = math.inf
        for _ in range(_FIRST_READINGS):
            self.busy()

    def busy(self) -> bool:
        """By a few microseconds of integer sums."""
        took_s = min(_sums_s(), _sums_s())
        self._least_s = min(self._least_s * (1 + _FORGOTTEN), took_s)
        return took_s > _BUSY * self._least_s


@functools.cache
def sibling() -> Sibling:
    """This process' own, pinned to one core by now."""
    return Sibling()


def _sums_s() -> float:
    start_s = time.perf_counter()
    sum(_SUMS)
    return time.perf_counter() - start_s


class Yardstick:
    """The machine's speed against its good times; it makes us wait for `allowance_s` in all."""

    def __init__(self, allowance_s: float = 300.0) -> None:
        # on a pinned core several threads would wait for each other: 60 times slower
        threadpool_limits(1, user_api="blas")
        self.allowance_s = allowance_s
        self.waited_s = 0.0
        self._a = np.full((_SIDE, _SIDE), 0.5, np.float32)
        self._product = np.empty_like(self._a)
        self._from = np.ones(_COPIED, np.float32)
        self._to = np.zeros_like(self._from)
        self._seen_s: list[list[float]] = []
        for _ in range(20):
            self.slowness()

    def slowness(self) -> float:
        """How much longer the slower of the two takes now than at good times, as a share."""
        self._seen_s.append(
            [min(times) for times in zip(*(self._once_s() for _ in range(_TRIES)), strict=True)]
        )
        return float(np.max(self._seen_s[-1] / self._good_s())) - 1.0

    def wait(self, limit_s: float, meanwhile: Callable[[], bool] = lambda: False) -> float:
        """Wait at most `limit_s` until the machine is quiet; returns the slowness then.

        `meanwhile` does a piece of work that needs no quiet machine; False: there is none left, and
        the wait is spent idle. Only that counts against the allowance.
        """
        limit_s = min(limit_s, self.allowance_s - self.waited_s)
        start_s = time.perf_counter()
        slowness = self.slowness()
        while slowness > TOLERANCE and time.perf_counter() - start_s < limit_s:
            if not meanwhile():
                time.sleep(_PAUSE_S)
                self.waited_s += _PAUSE_S
            slowness = self.slowness()
        return slowness

    def facts(self) -> dict[str, float]:
        """Good times of the yardstick [s], by which measurements of two days can be told apart."""
        product_s, copy_s = self._good_s()
        return {
            "yardstick_product_s": float(product_s),
            "yardstick_copy_s": float(copy_s),
            "waited_s": self.waited_s,
        }

    def _good_s(self) -> np.ndarray:
        return np.quantile(self._seen_s[-_REMEMBERED:], _GOOD, axis=0)

    def _once_s(self) -> tuple[float, float]:
        start_s = time.perf_counter()
        np.matmul(self._a, self._a, out=self._product)
        between_s = time.perf_counter()
        np.copyto(self._to, self._from)
        return between_s - start_s, time.perf_counter() - between_s
