"""State elsewhere: published efficiencies, the counts behind them, what goes where, and that more
of anything never hurts.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hybridperf.cli.app import main
from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.training.offload import step as tiers
from hybridperf.training.offload.layouts import offloaded_layouts
from hybridperf.training.offload.step import Movable, StageOffload, stage_offload
from hybridperf.training.plans.run import plan
from hybridperf.workloads.memory import ModelStates, memory
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.zoo import load_shape

PEAK = 70e12
GPT = load_shape("gpt3-175b")
TWO = (tiers.Tier("CPU memory", 90e9, 3e9), tiers.Tier("NVMe", 1.75e12, 1.6e9))


def one_stage(needed_bytes, capacity_bytes, what, levels, compute_s, overlap=0.0):
    stage = StageOffload(0, needed_bytes, capacity_bytes, compute_s)
    return stage_offload(stage, what, levels, overlap)


def test_what_a_step_moves_is_what_the_intensities_count() -> None:
    """One micro-batch, everything computed again, 2 + 2 + 16 bytes per weight, of which the
    update's 16 hold a gradient of their own.
    """
    layout = Layout(recompute="full")
    use = memory(GPT, layout, states=ModelStates(2.0, 2.0, 16.0))
    what = tiers.movable(GPT, layout, use)
    weights, gradients, optimizer, _ = what.passes[:, 0] * [2, 2, 16, 0] + what.updates[:, 0] * [
        0,
        0,
        16,
        0,
    ]
    assert weights + gradients == 8
    assert optimizer == 32
    assert what.passes[3, 0] == 2
    assert (
        what.bytes
        <= np.stack(
            [use.weights_bytes, use.gradients_bytes, use.optimizer_bytes, use.activations_bytes]
        )
    ).all()


def test_nothing_overlapped_is_the_efficiency_formula() -> None:
    what = Movable(np.array([0.0, 0, 30e9, 0]), np.zeros(4), np.array([0.0, 0, 2, 0]))
    found = one_stage(50e9, 20e9, what, TWO[:1], 10.0)
    assert found.moved_bytes == {("optimizer", "CPU memory"): pytest.approx(30e9)}
    assert found.exposed_s == pytest.approx(20.0)
    assert found.efficiency == pytest.approx(10 / (10 + 20))


def test_the_seldom_moved_go_first_and_the_often_moved_go_near() -> None:
    what = Movable(np.array([10e9, 0, 40e9, 0]), np.array([6.0, 0, 0, 0]), np.array([0.0, 0, 2, 0]))
    near = tiers.Tier("near", 5e9, 10e9), tiers.Tier("far", 1e12, 1e9)
    some = one_stage(60e9, 30e9, what, near, 1.0)
    assert {kind for kind, _ in some.moved_bytes} == {"optimizer"}
    more = one_stage(60e9, 15e9, what, near, 1.0)
    assert more.moved_bytes == {
        ("weights", "near"): pytest.approx(5e9),
        ("optimizer", "far"): pytest.approx(40e9),
    }
    hidden = one_stage(60e9, 59e9, what, near, 1.0, overlap=1.0)
    assert hidden.moved_bytes == {
        ("weights", "near"): pytest.approx(1e9)
    }  # 0.6 s behind 1 s of computation
    assert hidden.exposed_s == pytest.approx(0.0, abs=1e-9)


def test_no_linear_program_is_cheaper() -> None:
    """The least of U + max(T - o C, (1 - o) T) over bytes of each kind in each tier."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        m, overlap, compute_s = rng.integers(1, 9), rng.choice([0.0, 1.0, 0.4]), rng.uniform(0, 60)
        passes = np.array([2.0 * m, 2 * m - 1, 0, 2 * m / rng.uniform(1, 4)])
        what = Movable(rng.uniform(0, 50e9, 4), passes, np.array([0.0, 1, 2, 0]))
        levels = tuple(
            tiers.Tier(str(at), rng.uniform(20e9, 90e9), 10 ** rng.uniform(9, 10.8))
            for at in (0, 1)
        )
        excess = 0.9 * min(what.bytes.sum(), sum(one.bytes for one in levels))
        found = one_stage(excess + 1e9, 1e9, what, levels, compute_s, overlap)
        each_s = np.array([excess / one.bytes_per_s for one in levels])
        pass_s, update_s = (np.outer(times, each_s).ravel() for times in what[1:])
        sides = [[*pass_s, -1.0], [*((1 - overlap) * pass_s), -1.0]]
        room = np.vstack([np.kron(np.eye(4), [1, 1]), np.kron([1, 1, 1, 1], np.eye(2))])
        limits = np.concatenate([what.bytes, [one.bytes for one in levels]]) / excess
        best = linprog(
            [*update_s, 1.0], np.vstack([sides, np.column_stack([room, np.zeros(6)])]),
            [overlap * compute_s, 0.0, *limits], [[*np.ones(8), 0.0]], [1.0],
        )  # fmt: skip
        assert found.exposed_s == pytest.approx(best.fun, rel=1e-6, abs=1e-6)


AMOUNTS = st.lists(st.floats(0.0, 50e9), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    AMOUNTS, st.integers(1, 8), st.floats(0.0, 120e9), st.floats(1e8, 6e10), st.floats(1e8, 2e10),
    st.floats(0.0, 30.0), st.floats(0, 1), st.floats(1.0, 3.0),
)  # fmt: skip
def test_more_memory_bandwidth_or_compute_is_never_worse(
    amounts, m, capacity, near, far, compute_s, overlap, more
) -> None:
    what = Movable(
        np.array(amounts), np.array([2.0 * m, 2 * m - 1, 0, 2]), np.array([0.0, 1, 2, 0])
    )

    def step_s(capacity=capacity, room=20e9, near=near, far=far, compute_s=compute_s):
        levels = tiers.Tier("CPU", room, near), tiers.Tier("NVMe", 4 * room, far)
        return (
            compute_s
            + one_stage(sum(amounts) + 5e9, capacity, what, levels, compute_s, overlap).exposed_s
        )

    base = step_s()
    for better in (
        step_s(capacity=capacity * more), step_s(room=20e9 * more), step_s(near=near * more),
        step_s(far=far * more), step_s(compute_s=compute_s / more),
    ):  # fmt: skip
        assert better <= base * (1 + 1e-6) + 1e-6


def test_a_stage_says_what_must_go_and_what_it_costs() -> None:
    layout = Layout(tp=8, pp=8, dp=2, accumulation=8, recompute="full")
    use = memory(GPT, layout)
    found = tiers.offload(GPT, layout, 40e9, TWO, 20.0)
    assert found.fits
    assert sum(found.worst.moved_bytes.values()) == pytest.approx(float(use.peak_bytes) - 40e9)
    assert found.cost_s == found.worst.exposed_s > 0
    assert "optimizer state to CPU memory" in found.says()
    roomy = tiers.offload(GPT, layout, 80e9, TWO, 20.0)
    assert roomy.cost_s == 0
    assert roomy.says().endswith("and fits")


def test_what_fits_nowhere_is_said() -> None:
    found = tiers.offload(GPT, Layout(), 40e9, (), 1.0)
    assert not found.fits
    assert found.cost_s == float("inf")
    assert "fit nowhere" in found.says()


def test_a_trillion_parameters_on_a_node_of_16_with_nvme() -> None:
    """20 bytes per parameter: 20 TB, more than any GPU or CPU memory of the node, less than 28 TB
    of drives.
    """
    states = 20 * 12 * 128 * 25600**2
    assert states == pytest.approx(20e12, rel=0.01)
    levels = tiers.node_tiers(16, 12e9, cpu_bytes=1.5e12, nvme_bytes=28e12, nvme_bytes_per_s=25.6e9)
    assert levels[0].bytes * 16 < states < levels[1].bytes * 16
    assert levels[1].bytes_per_s == 1.6e9


def test_tiers_of_known_systems_and_refusals() -> None:
    cpu, nvme = tiers.system_tiers(
        load_system("dgx2"),
        cpu_bytes=1.6e12,
        cpu_bytes_per_s=48e9,
        nvme_bytes=16e12,
        nvme_bytes_per_s=100e9,
    )
    assert (cpu.bytes, cpu.bytes_per_s) == (100e9, 3e9)
    named = tiers.system_tiers("dgx2", cpu_bytes=1.6e12, cpu_bytes_per_s=48e9)
    assert named == (cpu,)
    with pytest.raises(InputError, match=r"unknown system 'dgx22'.*dgx2"):
        tiers.system_tiers("dgx22", cpu_bytes=1.6e12)
    assert nvme.bytes_per_s == 3e9  # what lies there passes CPU memory
    with pytest.raises(InputError, match="bandwidth above 0"):
        tiers.Tier("tape", 1e15, 0.0)
    with pytest.raises(InputError, match="overlap is a share"):
        tiers.offload(GPT, Layout(tp=8, pp=8), 40e9, TWO, 1.0, overlap=2.0)


def test_layouts_of_a_plan_that_fit_only_with_state_elsewhere() -> None:
    asked = ("gpt3-6.7b", "aic_a100_sxm", 1)
    with pytest.raises(InputError, match=r"no layout of gpt3-6\.7b fits"):
        plan(*asked, batch=8)
    room = tiers.system_tiers("aic_a100_sxm", cpu_bytes=8e12)
    found = offloaded_layouts(*asked, room, batch=8, count=3)
    assert [one.step_s for one in found] == sorted(one.step_s for one in found)
    best = found[0]
    stage = best.offload.worst
    over = stage.needed_bytes - stage.capacity_bytes
    assert stage.moved_bytes == {("optimizer", "CPU memory"): pytest.approx(over)}
    # the optimizer's state goes to and fro once a step, over the GPU's own link
    assert best.offload.cost_s == pytest.approx(2 * over / room[0].bytes_per_s)
    roomy = plan(*asked, batch=8, memory_bytes=200e9)
    assert best.plan_s == pytest.approx(
        next(
            roomy.step_s(roomy.choice(rank))
            for rank in range(len(roomy))
            if roomy.layout(roomy.choice(rank)) == best.layout
        )
    )
    assert offloaded_layouts(*asked, room, batch=8, memory_bytes=900e9) == []
    with pytest.raises(InputError, match="fits with 1 GB elsewhere for each, got none"):
        offloaded_layouts(*asked, (tiers.Tier("CPU memory", 1e9, 3e9),), batch=8)


def test_a_plan_says_what_offload_would_allow(capsys, tmp_path) -> None:
    asked = ["plan", "--shape", "gpt3-6.7b", "--system", "aic_a100_sxm", "--gpus", "1"]
    asked += ["--out", str(tmp_path / "plan.csv")]
    with pytest.raises(SystemExit) as done:
        main([*asked, "--batch", "8", "--offload", "8e12", "--top", "2"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert "none fits without" in text
    assert "optimizer state to CPU memory" in text
    frame = pd.read_csv(tmp_path / "plan_offload.csv")
    assert len(frame) == 2
    assert np.allclose(frame["time_s"], frame["plan_s"] + frame["offload_s"])
    drives = ["--offload", "1e12", "--nvme", "28e12", "--nvme-bandwidth", "25.6e9"]
    with pytest.raises(SystemExit) as done:
        main([*asked, "--batch", "8", *drives, "--memory-bytes", "30e9", "--top", "1"])
    assert done.value.code == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        main([*asked, "--batch", "8", *drives[:4]])
    assert done.value.code == 2
    assert "--nvme-bandwidth together" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        main([*asked, "--offload", "8e12"])
    assert done.value.code == 2
    assert "one in --batch with --offload" in capsys.readouterr().err
