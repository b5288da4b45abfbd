"""The roofline by hand, its calibrated form's limits, directions and gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.hardware import LEVELS, Device, load_device
from hybridperf.ops.roofline import RooflineKnobs, Work, level_shares, op_seconds, pnorm

SIZES = st.floats(1, 1e12)
SECONDS = st.just(0.0) | st.floats(1e-12, 1e9)
DEVICE = Device(
    peak_flops_per_s=1e13, memory_bytes_per_s=1e12, level_bytes=np.array([32e3, 1e6, 32e6, np.inf])
)
FITTED = RooflineKnobs(
    floor_s=2e-6,
    compute_efficiency=0.7,
    memory_efficiency=0.8,
    transcendental_flops=12.0,
    strided_factor=1.3,
    step_s=1e-10,
    smoothing=0.3,
    level_speedup=np.array([9.0, 4.0, 2.0, 1.0]),
    line_s=np.array([3e-10, 1e-9, 5e-9, 2e-8]),
    level_capacity=np.array([0.9, 0.8, 0.3, 1.0]),
)
WORK = Work(
    flops=3e9,
    transcendentals=2e7,
    bytes=4e8,
    reuse_bytes=5e6,
    strided_reads=1e4,
    strided_bytes=2e5,
    scattered_reads=3e3,
    steps=1e5,
)
RIDGE = 1e13 / 1e12  # flops per byte

works = st.builds(
    Work,
    flops=SIZES,
    transcendentals=SIZES,
    instructions=SIZES,
    bytes=SIZES,
    reuse_bytes=SIZES,
    strided_reads=SIZES,
    strided_bytes=SIZES,
    steps=SIZES,
)


def seconds(work: Work, knobs: RooflineKnobs = FITTED) -> float:
    return float(_op_seconds(work, DEVICE, knobs))


def roofline_s(work: Work, device: Device) -> jax.Array:
    """Seconds by the datasheet: the larger of arithmetic at peak and traffic at bandwidth."""
    arithmetic = work.flops + work.transcendentals + 2.0 * work.instructions
    return jnp.maximum(arithmetic / device.peak_flops_per_s, work.bytes / device.memory_bytes_per_s)


_op_seconds = jax.jit(op_seconds)
_roofline_s = jax.jit(roofline_s)


def test_roofline_by_hand() -> None:
    assert float(roofline_s(Work(flops=1e13, bytes=1e3), DEVICE)) == 1.0  # compute-bound
    assert float(roofline_s(Work(flops=1e3, bytes=1e12), DEVICE)) == 1.0  # memory-bound
    # a transcendental is one flop at least
    assert float(roofline_s(Work(flops=4e12, transcendentals=6e12), DEVICE)) == 1.0


@given(works)
@settings(max_examples=100, deadline=None)
def test_neutral_knobs_are_the_roofline_to_the_bit(work: Work) -> None:
    assert float(_op_seconds(work, DEVICE, RooflineKnobs.neutral())) == float(
        _roofline_s(work, DEVICE)
    )


def test_calibrated_form_by_hand() -> None:
    """All data in memory, sharp corner: 2 us + 3e9/(0.7e13) s against 4e8/(0.8e12) s."""
    knobs = dataclasses.replace(FITTED, smoothing=0.0, step_s=0.0, line_s=np.zeros(4))
    work = Work(flops=3e9, bytes=4e8, reuse_bytes=1e15)
    assert seconds(work, knobs) == pytest.approx(2e-6 + max(3e9 / 0.7e13, 4e8 / 0.8e12), rel=1e-5)
    # all data in l1, nine times as fast: now compute-bound
    cached = dataclasses.replace(work, reuse_bytes=1e3)
    assert seconds(cached, knobs) == pytest.approx(2e-6 + 3e9 / 0.7e13, rel=1e-5)
    assert seconds(dataclasses.replace(cached, flops=0.0), knobs) == pytest.approx(
        2e-6 + 4e8 / 0.8e12 / 9, rel=1e-4
    )


def test_strided_reads_and_steps_by_hand() -> None:
    knobs = dataclasses.replace(FITTED, smoothing=0.0)
    assert seconds(Work(strided_reads=1e6, strided_bytes=1e15), knobs) == pytest.approx(
        2e-6 + 1.3 * 1e6 * 2e-8, rel=1e-4
    )
    assert seconds(Work(steps=1e6), knobs) == pytest.approx(2e-6 + 1e6 * 1e-10, rel=1e-5)


def test_an_instruction_takes_as_long_as_two_flops() -> None:
    knobs = dataclasses.replace(FITTED, smoothing=0.0)
    assert seconds(Work(instructions=1e9), knobs) == seconds(Work(flops=2e9), knobs)
    assert roofline_s(Work(instructions=1e9), DEVICE) == roofline_s(Work(flops=2e9), DEVICE)


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.3, 1.0])
@given(
    works,
    st.sampled_from(
        [
            "flops",
            "transcendentals",
            "instructions",
            "bytes",
            "reuse_bytes",
            "strided_reads",
            "strided_bytes",
            "steps",
        ]
    ),
    SIZES,
)
@settings(max_examples=50, deadline=None)
def test_more_work_is_never_faster(smoothing: float, work: Work, field: str, more: float) -> None:
    knobs = dataclasses.replace(FITTED, smoothing=smoothing)
    larger = dataclasses.replace(work, **{field: getattr(work, field) + more})
    assert seconds(larger, knobs) >= seconds(work, knobs) * (1 - 2e-6)  # float32


def test_strictly_more_flops_and_bytes_take_longer() -> None:
    for field in ("flops", "bytes"):
        times = [
            seconds(dataclasses.replace(WORK, **{field: getattr(WORK, field) * factor}))
            for factor in (1, 1.5, 2, 4, 8)
        ]
        assert (np.diff(times) > 0).all()


def test_limits_of_the_rates() -> None:
    """With bandwidth to infinity the compute roof is left, and the other way round."""
    knobs = dataclasses.replace(FITTED, line_s=np.zeros(4), step_s=0.0, floor_s=0.0)
    no_memory = dataclasses.replace(DEVICE, memory_bytes_per_s=1e30)
    compute_s = (WORK.flops + 12 * WORK.transcendentals) / 0.7e13
    assert float(op_seconds(WORK, no_memory, knobs)) == pytest.approx(compute_s, rel=1e-5)
    no_compute = dataclasses.replace(DEVICE, peak_flops_per_s=1e30)
    far = dataclasses.replace(WORK, reuse_bytes=1e15)
    assert float(op_seconds(far, no_compute, knobs)) == pytest.approx(WORK.bytes / 0.8e12, rel=1e-5)


@given(SECONDS, SECONDS, st.floats(0.01, 1.0))
@settings(max_examples=200, deadline=None)
def test_pnorm_lies_between_maximum_and_sum(a: float, b: float, q: float) -> None:
    value, slack = float(pnorm(a, b, q)), 1 + 1e-5
    assert max(a, b) / slack <= value <= (a + b) * slack
    assert value == pytest.approx(float(pnorm(b, a, q)), rel=1e-6)


def test_pnorm_limits() -> None:
    assert float(pnorm(3.0, 4.0, 0.0)) == 4.0
    assert float(pnorm(3.0, 4.0, 1.0)) == pytest.approx(7.0)
    assert float(pnorm(3.0, 4.0, 0.5)) == pytest.approx(5.0)  # Pythagoras
    assert float(pnorm(3.0, 4.0, 1e-3)) == pytest.approx(4.0)
    assert float(pnorm(0.0, 4.0, 0.5)) == 4.0
    assert float(pnorm(0.0, 0.0, 0.5)) == 0.0


@pytest.mark.parametrize(
    ("a", "b", "q"),
    [(0.0, 4.0, 0.5), (0.0, 0.0, 0.5), (3.0, 4.0, 0.0), (1e-12, 4.0, 0.01), (4.0, 4.0, 0.3)],
)
def test_pnorm_gradient_is_finite_at_its_corners(a: float, b: float, q: float) -> None:
    assert np.isfinite(jax.grad(pnorm, argnums=(0, 1, 2))(a, b, q)).all()


@given(st.floats(0, 1e15))
@settings(max_examples=100, deadline=None)
def test_level_shares_sum_to_one(distance: float) -> None:
    shares = np.asarray(level_shares(distance, DEVICE.level_bytes))
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1.0, abs=1e-6)


def test_level_shares_move_outwards_with_distance() -> None:
    held = np.array(
        [np.cumsum(level_shares(d, DEVICE.level_bytes)) for d in np.geomspace(1, 1e12, 60)]
    )
    assert (np.diff(held, axis=0) <= 1e-6).all()  # what the first n levels hold only shrinks
    assert held[0, 0] == pytest.approx(1.0)
    np.testing.assert_allclose(held[-1, :3], 0.0, atol=1e-6)
    # a distance of just the capacity
    assert float(level_shares(1e6, DEVICE.level_bytes)[:2].sum()) == pytest.approx(0.5)


def test_missing_levels_hold_nothing() -> None:
    level_bytes = load_device("a100").level_bytes()
    assert level_bytes[LEVELS.index("l1")] == level_bytes[LEVELS.index("l3")] == 0
    shares = np.asarray(level_shares(1.0, level_bytes))
    assert shares[LEVELS.index("l1")] == shares[LEVELS.index("l3")] == 0
    assert shares[LEVELS.index("l2")] == pytest.approx(1.0)


@given(works)
@settings(max_examples=50, deadline=None)
def test_float32_agrees_with_float64(work: Work) -> None:
    single = float(op_seconds(jax.tree.map(jnp.float32, work), DEVICE, FITTED))
    with jax.enable_x64(True):
        double = float(op_seconds(work, DEVICE, FITTED))
    assert single == pytest.approx(double, rel=1e-4)


# by hand: far from caches and close to them, both sides of the ridge, sharp and smooth corner
@pytest.mark.parametrize("smoothing", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("intensity", [0.3, 0.95, 3.0])
@pytest.mark.parametrize("reuse_bytes", [3e4, 2e6, 1e9])
def test_gradient_of_every_knob_against_differences(
    smoothing: float, intensity: float, reuse_bytes: float
) -> None:
    work = dataclasses.replace(WORK, flops=intensity * RIDGE * WORK.bytes, reuse_bytes=reuse_bytes)
    with jax.enable_x64(True):
        knobs = jax.tree.map(jnp.asarray, dataclasses.replace(FITTED, smoothing=smoothing))
        leaves, tree = jax.tree.flatten(knobs)

        def of(leaves: list) -> jax.Array:
            return op_seconds(work, DEVICE, jax.tree.unflatten(tree, leaves))

        gradients = jax.grad(of)(leaves)
        for i, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
            for at in np.ndindex(leaf.shape):
                step = 1e-5 * float(leaf[at])
                up, down = (
                    [*leaves[:i], leaf.at[at].add(sign * step), *leaves[i + 1 :]]
                    for sign in (1, -1)
                )
                difference = float(of(up) - of(down)) / (2 * step)
                assert float(gradient[at]) == pytest.approx(
                    difference, rel=1e-5, abs=1e-9 * float(of(leaves)) / float(leaf[at])
                )
