"""Real processes of one step, one of them slowed: the composition by hand, and a short run."""

import os

import numpy as np
import pandas as pd
import pytest

from hybridperf.engine.unlike import while_both_work
from hybridperf.validate.unequal import measured, of


def test_two_busy_cores_by_hand() -> None:
    # 1 s of work that takes 2 s beside the other; 3 s that take 4: the first ends at 2 s, when half
    # of the other is done
    longer = while_both_work([[1.0], [3.0]], [[2.0], [4.0]])
    assert longer.ravel().tolist() == [2.0, (2.0 + 0.5 * 3.0) / 3.0]
    # cores that do not disturb each other
    assert while_both_work([[1.0], [3.0]], [[1.0], [3.0]]).ravel().tolist() == [1.0, 1.0]


def test_steps_that_were_made_are_predicted() -> None:
    """Two processes on a core in turn, a third on another, which is slowed down to a fifth."""
    rows = []
    for phase, worker, time_s in (
        ("alone", 0, 1.0), ("alone", 1, 1.0), ("alone", 2, 1.0), ("beside", 0, 1.0),
        ("beside", 2, 1.0), ("slowed", 2, 5.0), ("slowed_beside", 0, 1.0),
        ("slowed_beside", 2, 5.0), ("together", 0, 2.0), ("together_slowed", 0, 5.0),
    ):  # fmt: skip
        rows += [(phase, worker, at, time_s) for at in range(3)]
    lines = of(pd.DataFrame(rows, columns=["phase", "worker", "round", "time_s"]), 3)
    assert [line.ours for line in lines] == pytest.approx([0.0, 0.0])
    assert lines[0].baselines["slowest alone"] == pytest.approx(0.5)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core"
)
def test_a_short_run_on_this_machine(tmp_path) -> None:
    """A slice of `hybridperf validate here --tasks workers`: what was slowed is slower, and all
    wait for it. How close the prediction comes is the command's to say: here other programs run.
    """
    rows = measured(tmp_path, 2, rounds=1)
    assert (rows.time_s > 0).all()
    median = rows.groupby(["phase", "worker"]).time_s.median()
    assert median["slowed", 1] > 1.2 * median["alone", 1]
    assert median["together_slowed", 0] > 1.2 * median["alone", 0]
    assert len(of(rows, 2)) == 2
    assert np.isfinite([line.ours for line in of(rows, 2)]).all()
