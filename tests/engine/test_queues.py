"""Closed forms of queues: textbook limits, and queues simulated request by request."""

import jax
import numpy as np
import pytest

from hybridperf.engine.queues import (
    erlang_b,
    falling_root,
    sources_wait,
)


def test_sources_that_begin_anywhere_wait_by_erlang_s_loss() -> None:
    """Where their periods differ by far more than a service no order remains."""
    for others, period in ((1, 3.0), (4, 5.0), (30, 25.0), (200, 260.0)):
        lost = erlang_b(others, period)
        wait = float(sources_wait(float(others), period, 1e9))
        assert wait == pytest.approx(float(1.0 / lost - 1.0) / 2.0, rel=1e-5)


def test_a_root_has_the_slope_of_what_it_solves() -> None:
    """x + x^2 / 10 = a, beside the slope of the implicit function."""
    root = lambda a: falling_root(lambda x: a - x - x * x / 10.0, 0.0 * a)  # noqa: E731
    value, slope = jax.value_and_grad(root)(2.0)
    exact = 5.0 * (1.8**0.5 - 1.0)
    assert float(value) == pytest.approx(exact, rel=1e-5)
    assert float(root(np.float64(2.0))) == pytest.approx(exact, rel=1e-9)
    assert float(slope) == pytest.approx(1.0 / (1.0 + exact / 5.0), rel=1e-3)
