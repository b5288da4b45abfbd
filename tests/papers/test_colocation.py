"""Tasks that share a machine: bounds against an event simulation, and what is learned of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.colocation import (
    Interference,
    predicted,
    simulated_group,
    simulated_groups,
    together_s,
)


def test_bounds_by_hand() -> None:
    tasks = [{"compute": 3.0, "memory": 1.0}, {"compute": 1.0, "memory": 4.0}]
    assert together_s(tasks) == (5.0, 9.0)
    assert together_s([{"compute": 3.0, "memory": 4.0}, {"memory": 0.5}]) == (7.0, 7.5)
    assert together_s([]) == (0.0, 0.0)
    assert together_s(tasks[:1]) == (4.0, 4.0)


seconds = st.floats(1e-3, 10.0)
task = st.lists(st.tuples(st.integers(0, 2), seconds), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.lists(task, min_size=1, max_size=5))
def test_simulated_tasks_end_within_their_bounds(phases) -> None:
    one = simulated_group("", phases)
    least_s, most_s = one.bounds_s
    assert least_s * (1 - 1e-9) <= one.together_s <= most_s * (1 + 1e-9)
    if len(phases) == 1:
        assert least_s == pytest.approx(most_s)


def test_what_is_learned_beats_the_bounds_and_their_middle_on_groups_left_out() -> None:
    """Gsight's claim is 1.71 % mean error; the simulated machine is nobody's measurement."""
    known, judged = simulated_groups(60, 0), simulated_groups(120, 1)
    learned = Interference.fitted(known)
    measured_s = np.array([one.together_s for one in judged])
    bounds_s = np.array([one.bounds_s for one in judged])

    def error(found_s: np.ndarray) -> float:
        return float(np.abs(found_s / measured_s - 1).mean())

    ours = error(np.array([learned.seconds(one) for one in judged]))
    others = [error(bounds_s[:, 0]), error(bounds_s[:, 1]), error(np.sqrt(bounds_s.prod(1)))]
    assert ours < 0.06
    assert ours < 0.6 * min(others)
    frame = predicted(judged, learned)
    inside = frame["together_s"].between(frame["low_s"], frame["high_s"]).mean()
    assert 0.8 < inside <= 1.0
    assert (frame["predicted_s"].between(frame["least_s"], frame["most_s"])).all()


def test_more_tasks_fit_within_a_limit_than_one_after_the_other() -> None:
    """Abacus' 29.8 % of throughput, Gsight's 18.8 % of density lie within what bounds allow."""
    gains = []
    for one in simulated_groups(200, 2):
        least_s, most_s = one.bounds_s
        assert most_s / least_s >= most_s / one.together_s >= 1 - 1e-9
        gains.append(most_s / one.together_s - 1)
    assert np.quantile(gains, 0.02) < 0.188 < 0.298 < np.quantile(gains, 0.98)
