"""Expected unique rows against counting them, and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf.embedding import reuse_distance_bytes, uniform_unique_rows, zipf_unique_rows


def counted(p: np.ndarray, lookups: int, trials: int = 40) -> float:
    """Mean number of different rows among `lookups` draws with probabilities `p`."""
    rng = np.random.default_rng(0)
    return float(np.mean([len(np.unique(rng.choice(len(p), lookups, p=p))) for _ in range(trials)]))


@pytest.mark.parametrize(("rows", "lookups"), [(1000, 100), (1000, 1000), (1000, 5000), (50, 40)])
def test_uniform_access_is_what_counting_gives(rows: int, lookups: int) -> None:
    trials = 400 if rows < 100 else 40
    expected = counted(np.full(rows, 1 / rows), lookups, trials)
    assert float(uniform_unique_rows(lookups, rows)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.05, 1.5])
@pytest.mark.parametrize("shift", [0.0, 20.0])
@pytest.mark.parametrize("lookups", [200, 5000])
def test_zipf_access_is_what_counting_gives(exponent: float, shift: float, lookups: int) -> None:
    weight = (np.arange(1, 20_001) + shift) ** -exponent
    expected = counted(weight / weight.sum(), lookups)
    assert float(zipf_unique_rows(lookups, 20_000, exponent, shift)) == pytest.approx(expected, rel=0.01)


def test_zipf_bins_sum_to_what_every_row_gives() -> None:
    """No sampling noise: the same sum row by row, over more rows than bins."""
    weight = np.arange(1, 1_000_001, dtype=np.float64) ** -0.9
    expected = (-np.expm1(50_000 * np.log1p(-weight / weight.sum()))).sum()
    assert float(zipf_unique_rows(50_000, 1e6, 0.9)) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("unique", [uniform_unique_rows, lambda n, rows: zipf_unique_rows(n, rows, 0.8)], ids=["uniform", "zipf"])
def test_limits(unique) -> None:
    assert float(unique(0, 1000)) == 0.0
    assert float(unique(1, 1000)) == pytest.approx(1.0, rel=1e-4)
    assert float(unique(1, 1e9)) == pytest.approx(1.0, rel=1e-2)
    assert float(unique(1e9, 1000)) == pytest.approx(1000, rel=1e-4)  # every row
    assert float(unique(7, 1)) == pytest.approx(1.0, rel=1e-4)  # the only one
    assert float(unique(100, 1e8)) <= 100 * (1 + 1e-5)
    values = [float(unique(n, 1000)) for n in (1, 10, 100, 1000, 10_000)]
    assert (np.diff(values) > 0).all()


def test_exponent_zero_is_uniform() -> None:
    assert float(zipf_unique_rows(500, 1000, 0.0)) == pytest.approx(float(uniform_unique_rows(500, 1000)), rel=1e-4)


def test_skew_leaves_fewer_rows() -> None:
    values = [float(zipf_unique_rows(5000, 1e5, exponent)) for exponent in (0.0, 0.5, 1.0, 1.5)]
    assert (np.diff(values) < 0).all()


def test_gradients_against_differences() -> None:
    with jax.enable_x64(True):
        for argument in range(3):
            values = [jnp.asarray(3000.0), jnp.asarray(0.9), jnp.asarray(5.0)]  # lookups, exponent, shift

            def unique(x, argument=argument, values=values):
                n, exponent, shift = [*values[:argument], x, *values[argument + 1 :]]
                return zipf_unique_rows(n, 1e5, exponent, shift)

            x, step = values[argument], 1e-5 * values[argument]
            difference = (unique(x + step) - unique(x - step)) / (2 * step)
            assert float(jax.grad(unique)(x)) == pytest.approx(float(difference), rel=1e-5)


def test_distance_is_the_footprint_of_rows_in_use() -> None:
    assert float(reuse_distance_bytes(250.0, 128.0)) == 32_000
