"""The best of many points, against looking at all of them."""

import numpy as np
import pandas as pd
import pytest

from hybridperf.explore.sweeps.front import BestPoints, BestRule, undominated


def brute_force(values):
    """Positions that no other row is at least as good as in all and better in one; of equal rows
    the first.
    """
    return [
        i
        for i, row in enumerate(values)
        if not any(
            (other <= row).all() and ((other < row).any() or j < i)
            for j, other in enumerate(values)
            if j != i
        )
    ]


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_the_front_is_that_of_all_pairs(objectives):
    rng = np.random.default_rng(objectives)
    for levels in (3, 1000):  # with many equal values, with few
        values = rng.integers(0, levels, (200, objectives)).astype(float)
        assert sorted(undominated(values, np.arange(200))) == brute_force(values)


def test_parts_or_whole_give_the_same():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "point": np.arange(3000),
            "time_s": rng.integers(1, 400, 3000) / 8.0,
            "cost": rng.integers(1, 300, 3000),
        }
    )
    frame["memory"] = rng.uniform(size=3000)
    frame.loc[::7, "time_s"] = np.nan  # not predicted
    best = BestRule(25, "time_s", ("time_s", "cost"), ("memory",))
    kept = BestPoints(best)
    for start in range(0, 3000, 170):
        kept.see(frame.iloc[start : start + 170])
    known = frame.dropna()
    pd.testing.assert_frame_equal(kept.top, known.sort_values(["time_s", "point"]).head(25))
    expected = known.iloc[
        brute_force(np.stack([known["time_s"], known["cost"], -known["memory"]], 1))
    ]
    pd.testing.assert_frame_equal(kept.front.sort_index(), expected)
