"""State elsewhere: published efficiencies, the counts behind them, what goes where, and that more
of anything never hurts.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.training import offload as tiers
from hybridperf.training.offload.movable import Movable
from hybridperf.training.offload.step import stage_offload
from hybridperf.workloads.memory import ModelStates, memory
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.zoo import load_shape

PEAK = 70e12
GPT = load_shape("gpt3-175b")
TWO = (tiers.Tier("CPU memory", 90e9, 3e9), tiers.Tier("NVMe", 1.75e12, 1.6e9))


@pytest.mark.parametrize(
    ("intensity", "bytes_per_s", "expected"),
    [
        (tiers.parameter_intensity(1, 1024), 70e9, 0.506),
        (tiers.optimizer_intensity(2, 1024), 1.5e12, 0.916),
        (tiers.activation_intensity(2048), 2e9, 0.584),
        (tiers.activation_intensity(4096, 2), 1e9, 0.737),
    ],
)
def test_efficiencies_as_worked_in_formulas_4_6(intensity, bytes_per_s, expected) -> None:
    """FLOPs per byte 1024, 512, 49152 and 196608."""
    found = tiers.efficiency(intensity, bytes_per_s, PEAK)
    assert round(found, 3) == expected
    assert tiers.needed_bytes_per_s(found, intensity, PEAK) == pytest.approx(bytes_per_s)


def test_counts_are_those_of_the_model_itself() -> None:
    """GPT-3 175B: the formulas leave out biases, embeddings and attention's own products, which its
    shape counts exactly.
    """
    layers, hidden, tokens = GPT.layers, GPT.hidden, 2 * GPT.seq
    blocks = 96 * 12 * 12288**2
    assert blocks == pytest.approx(GPT.layer_parameters * layers, rel=2e-4)
    assert tiers.model_state_bytes(layers, hidden) == 20 * blocks
    products = 4 * 2 * blocks * tokens  # forward, again, and backward twice as long
    assert tiers.step_flops(2, GPT.seq, layers, hidden) == products
    full = GPT.model_flops(tokens) * 4 / 3
    attention_and_head = 1 + GPT.seq / (6 * hidden) + GPT.vocab / (12 * layers * hidden)
    assert products * attention_and_head == pytest.approx(full)
    assert (
        products / tiers.parameter_intensity(2, GPT.seq) == 8 * blocks
    )  # bytes of weights and gradients moved
    assert products / tiers.optimizer_intensity(2, GPT.seq) == 32 * blocks
    assert products / tiers.activation_intensity(hidden, 3) == 2 * tiers.checkpoint_bytes(
        2, GPT.seq, hidden, layers, 3
    )
    assert (
        tiers.checkpoint_bytes(2, 2048, 12288, 96, 3) == 3 * 2**30
    )  # 2 x 2048 x 12288 x 32 checkpoints in 2 bytes


def test_what_stays_on_the_gpu() -> None:
    assert tiers.weight_working_bytes(8192) == 2**30
    assert (
        tiers.activation_working_bytes(1, 1024, 8192, 64) == 2**28
    )  # 2^27 each of what grows with hidden and with heads x seq
    assert tiers.activation_working_bytes(2, 1024, 8192, 64, 3) == 6 * 2**28


def test_bandwidth_needed_grows_as_peaks_do() -> None:
    assert tiers.needed_bytes_per_s(0.5, 1024, 10 * PEAK) == pytest.approx(
        10 * tiers.needed_bytes_per_s(0.5, 1024, PEAK)
    )


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
    found = stage_offload(0, 50e9, 20e9, what, TWO[:1], 10.0)
    flops = 10.0 * PEAK
    assert found.moved_bytes == {("optimizer", "CPU memory"): pytest.approx(30e9)}
    assert found.exposed_s == pytest.approx(20.0)
    assert found.efficiency == pytest.approx(tiers.efficiency(flops / 60e9, 3e9, PEAK))


def test_the_seldom_moved_go_first_and_the_often_moved_go_near() -> None:
    what = Movable(np.array([10e9, 0, 40e9, 0]), np.array([6.0, 0, 0, 0]), np.array([0.0, 0, 2, 0]))
    near = tiers.Tier("near", 5e9, 10e9), tiers.Tier("far", 1e12, 1e9)
    some = stage_offload(0, 60e9, 30e9, what, near, 1.0)
    assert {kind for kind, _ in some.moved_bytes} == {"optimizer"}
    more = stage_offload(0, 60e9, 15e9, what, near, 1.0)
    assert more.moved_bytes == {
        ("weights", "near"): pytest.approx(5e9),
        ("optimizer", "far"): pytest.approx(40e9),
    }
    hidden = stage_offload(0, 60e9, 59e9, what, near, 1.0, overlap=1.0)
    assert hidden.moved_bytes == {
        ("weights", "near"): pytest.approx(1e9)
    }  # 0.6 s behind 1 s of computation
    assert hidden.exposed_s == pytest.approx(0.0, abs=1e-9)


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
            + stage_offload(
                0, sum(amounts) + 5e9, capacity, what, levels, compute_s, overlap
            ).exposed_s
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
    states = tiers.model_state_bytes(128, 25600)
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
    assert nvme.bytes_per_s == 3e9  # what lies there passes CPU memory
    with pytest.raises(InputError, match="bandwidth above 0"):
        tiers.Tier("tape", 1e15, 0.0)
    with pytest.raises(InputError, match="overlap is a share"):
        tiers.offload(GPT, Layout(tp=8, pp=8), 40e9, TWO, 1.0, overlap=2.0)
