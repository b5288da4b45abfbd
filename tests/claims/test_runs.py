"""Whole runs beside what was published of them, and a real loop that is killed; no fit."""

import sys

import pytest

from benchmarks.claims import runs
from benchmarks.claims.harness import Found
from hybridperf.io import InputError


def test_published_shares_lie_inside() -> None:
    """Llama 3 405B's effective time and OPT-175B's uptime; Young's loss alone is nowhere near."""
    for line in runs.published().lines:
        assert line.coverage == 1.0, line.name
        assert line.ours < 0.35
    llama = runs.published().lines[0]
    assert llama.ours < 0.05
    assert llama.baselines["Young's loss alone"] > 0.09


def test_bills_need_data(tmp_path) -> None:
    with pytest.raises(InputError, match="expected --data FOLDER for the bills"):
        runs.run(None, tmp_path, say=lambda _: None)


@pytest.mark.slow  # plans of six models, half a minute
def test_five_of_six_bills_lie_inside(data_dir) -> None:
    """Each at one stated number of GPUs; that of Llama 3 8B has more in it than training."""
    bills = runs.bills(data_dir, quick=True).tables["bills"].set_index("bill")
    assert bills["inside"].sum() >= 5, bills
    assert not bills["inside"]["bill-llama3-8b"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills by Linux's CPU clocks")
def test_a_killed_loop_is_predicted() -> None:
    """A slice of claim `runs --tasks here`: SIGKILL at fixed seconds, checkpoints on disk. The
    nearest of three tries: five kills keep six checkpoints of 32 steps or one less, and others may
    begin or end between the loop that is killed and the one that is not.
    """
    effort = runs.Effort((8, 32), kills=5, mean_s=1.2)
    tries: list[Found] = []
    while len(tries) < 3 and not any(map(near, tries)):
        tries.append(runs.killed(effort))
    assert near(tries[-1]), [found.text for found in tries]


def near(found: Found) -> bool:
    return all(one.ours < min(0.15, one.baselines["checkpoints alone"]) for one in found.lines)
