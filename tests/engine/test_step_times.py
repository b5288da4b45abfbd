"""Steps of a serving engine between the sizes that were composed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf.engine.step_times import StepTimes, between

SIZES = 2.0 ** np.arange(0, 15, 2)


def power_laws() -> StepTimes:
    """Tables of power laws, which lines in logs hold exactly."""
    return StepTimes(
        tokens=SIZES, products_s=1e-4 * SIZES**0.5, sequences=SIZES, keys=SIZES,
        decode_s=1e-8 * SIZES[:, None] * SIZES, chunk=SIZES, chunk_keys=SIZES,
        prefill_s=1e-9 * SIZES[:, None] * SIZES, host_s=1e-3,
    )  # fmt: skip


def test_power_laws_are_exact_between_and_beyond_the_points() -> None:
    times = power_laws()
    found = times.seconds(np.array([3.0, 7.0]), 1000.0, np.array([0.0, 50000.0]), 700.0)
    one = 1e-4 * 3**0.5 + 1e-8 * 3 * 1000 + 1e-3
    two = 1e-4 * 50007**0.5 + 1e-8 * 7 * 1000 + 1e-9 * 50000 * 700 + 1e-3
    assert found == pytest.approx([one, two], rel=1e-12)


def test_stacked_engines_take_what_each_does() -> None:
    one = power_laws()
    other = dataclasses.replace(
        one, products_s=3.0 * one.products_s, decode_s=one.decode_s**0.9,
        beside_s=2.0 * one.decode_s**0.9,
    )  # fmt: skip
    both = StepTimes.stacked([one, other]).of(np.array([1, 0, 1]))
    sizes = np.array([3.0, 7.0, 90.0]), 1000.0, np.array([[10.0], [0.0], [50.0]]), 700.0
    sequences, keys, chunk, chunk_keys = sizes
    found = both.seconds(sequences[:, None], keys, chunk * [1.0, 2.0], chunk_keys)
    for row, times in enumerate((other, one, other)):
        alone = dataclasses.replace(times, host_s=0.0)
        expected = alone.seconds(sequences[row], keys, chunk[row] * [1.0, 2.0], chunk_keys)
        assert found[row] == pytest.approx(expected, rel=1e-12)


def test_steps_of_known_numbers_are_the_same() -> None:
    """As a simulation asks for them: of any load, with all that a framework adds, also of tables
    with an axis of one point.
    """
    rng, one = np.random.default_rng(0), power_laws()
    flat = dataclasses.replace(one, chunk_keys=SIZES[:1], prefill_s=one.prefill_s[:, :1])
    of_framework = {"slower": 1.1, "gaps_s": 1e-4, "sequence_s": 1e-5, "ahead_s": 1e-3}
    for at in range(400):
        times = dataclasses.replace(
            (one, flat)[at % 2], beside_s=(None, 1.3 * one.decode_s)[at // 2 % 2],
            messages_s=(None, rng.uniform(0.5, 2.0) * one.products_s)[at // 4 % 2],
            launched_s=rng.choice([0.0, 1e-2]), eager=rng.choice([0.0, 1.0]), **of_framework,
        )  # fmt: skip
        sequences, chunk = int(rng.choice([0, 1, 17, 3000])), rng.choice([0.0, 1.0, 333.0, 5e4])
        keys = 10 ** rng.uniform(-1, 6) + np.arange(rng.choice([1, 2, 50]))
        load = (float(chunk), float(10 ** rng.uniform(-1, 6)), bool(rng.random() < 0.5))
        for context in (keys, float(keys[0])):
            found = times.known.seconds(sequences, context, *load)
            expected = times.seconds(sequences, context, *load)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_an_empty_step_takes_no_time() -> None:
    assert power_laws().seconds(0.0, 100.0) == 0.0


def test_gradients_are_those_of_finite_differences() -> None:
    times = power_laws()

    def seconds(sequences: jax.Array, scale: jax.Array) -> jax.Array:
        scaled = jax.tree.map(lambda leaf: leaf * scale, times.products_s)
        return dataclasses.replace(times, products_s=scaled).seconds(sequences, 100.0, 20.0, 30.0)

    slopes = jax.grad(seconds, (0, 1))(jnp.float32(5.3), jnp.float32(1.0))
    by_hand = 0.5e-4 * 25.3**-0.5 + 1e-8 * 100, 1e-4 * 25.3**0.5
    assert slopes == pytest.approx(by_hand, rel=1e-4)


def test_below_the_least_size_its_value_counts() -> None:
    assert between(((SIZES, np.array([0.1])),), SIZES)[0] == 1.0


def test_an_axis_of_one_point_is_flat_in_the_shape_of_the_others() -> None:
    one = np.ones(1)
    sizes, seconds = np.array([1.0, 4.0]), np.array([1e-3, 4e-3])
    times = StepTimes(one, 2e-3 * one, sizes, one, seconds[:, None], one, one, one[:, None] * 3e-3)
    keys = np.arange(1.0, 7.0)
    np.testing.assert_allclose(times.seconds(2.0, keys), np.full(6, 4e-3))
    np.testing.assert_allclose(
        times.seconds(np.zeros(3), 0.0, np.arange(3.0), 9.0), [0, 5e-3, 5e-3]
    )
    found = jax.vmap(lambda at: times.seconds(4.0, at))(jnp.asarray(keys))
    np.testing.assert_allclose(found, np.full(6, 6e-3), rtol=1e-5)
