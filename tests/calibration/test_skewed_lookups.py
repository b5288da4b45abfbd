"""The measured families of embedding bags look up what their rows say."""

import math

import numpy as np
import pytest

from hybridperf.ops.embedding import Zipf
from hybridperf.ops.embedding_bag import OPTIMIZERS
from hybridperf_calibration.microbench import cases, families, op_programs
from hybridperf_calibration.microbench.lookups import Lookups

SKEWED = Lookups(rows=20_000, dim=16, bags=400, pooling=10, exponent=1.1, shift=4.0)


def test_indices_follow_the_distribution() -> None:
    drawn = SKEWED.draw(np.random.default_rng(0), (60, 400, 10))
    assert drawn.dtype == np.int32
    assert drawn.min() >= 0
    assert drawn.max() < 20_000
    different = np.mean([len(np.unique(batch)) for batch in drawn])
    assert different == pytest.approx(Zipf(1.1, 4.0).unique_rows(4000, 20_000), rel=0.01)
    _, times = np.unique(drawn, return_counts=True)
    assert times.max() / drawn.size == pytest.approx(
        Zipf(1.1, 4.0).classes(4000, 20_000)[1].max(), rel=0.05
    )


@pytest.mark.parametrize("rows", [1, 2, 7, 1000, 99_991])
def test_hot_rows_are_no_neighbours_and_every_row_has_its_place(rows: int) -> None:
    every = Lookups(rows, 8, 1, 1, 0.0, 0.0).draw(np.random.default_rng(0), (60 * min(rows, 1000),))
    if rows <= 1000:
        assert len(np.unique(every)) == rows
    few = np.unique(Lookups(rows, 8, 1, 1, 4.0, 0.0).draw(np.random.default_rng(0), (100,)))
    if rows > 100:
        assert np.diff(few).min() > 100


def test_the_row_says_what_a_loop_over_its_batches_does() -> None:
    """Few rotating batches touch few rows: nearer together than in an endless stream, farther with
    a second table between.
    """
    once = SKEWED.columns(sets=4, copies=1)
    assert once["op"] == "embedding_bag"
    assert once["unique"] == pytest.approx(float(Zipf(1.1, 4.0).unique_rows(4000, 20_000)))
    assert once["reuse_bytes"] == pytest.approx(once["distance"] * 64)
    assert once["distance"] < SKEWED.columns(sets=400, copies=1)["distance"]
    assert once["distance"] < SKEWED.columns(sets=4, copies=2)["distance"]
    assert all(math.isfinite(value) for value in once.values() if not isinstance(value, str))


@pytest.mark.parametrize(
    "family", ["embedding_bag", "embedding_bag_backward", "embedding_bag_update"]
)
def test_points_become_cases_with_keys_of_their_own(family: str) -> None:
    made = cases.op_cases("full", [family])
    assert len({case.key for case in made}) == len(made) > 100
    (built,) = [one for one in families.FAMILIES if one.name == family]
    programs = [built.build(u) for u in op_programs.points(built, 64, 0)]
    lookups = [program.lookups for program in programs]
    assert {bool(of and of.exponent > 0) for of in lookups} == {False, True}
    assert {bool(of and of.shift > 0) for of in lookups} == {False, True}
    for of in lookups:
        assert of is not None
        assert of.rows * of.dim <= 5e7
        assert of.bags * of.pooling <= 30_000


def test_a_bag_compiles_and_sums_its_rows() -> None:
    import jax

    rng = np.random.default_rng(0)
    for name in ("embedding_bag", "embedding_bag_backward"):
        (family,) = [one for one in families.FAMILIES if one.name == name]
        program = family.build(np.full(8, 0.3))
        of = program.lookups
        assert of is not None
        table = rng.random((of.rows, of.dim), np.float32)
        rows = of.draw(rng, (of.bags, of.pooling))
        if name == "embedding_bag":
            assert np.asarray(jax.jit(program.fn)(table, rows)) == pytest.approx(
                table[rows].sum(1), rel=1e-5
            )
            continue
        gradient = rng.random((of.bags, of.dim), np.float32)
        expected = table.copy()
        np.subtract.at(
            expected, rows.ravel(), np.float32(0.01) * np.repeat(gradient, of.pooling, 0)
        )
        (updated,) = jax.jit(program.fn)(table, rows, gradient)
        assert np.asarray(updated) == pytest.approx(expected, rel=1e-4)


def updated(of: Lookups, table: np.ndarray, state: np.ndarray, rows: np.ndarray,
            gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Table and state after one batch, each different row once."""
    table, state = table.astype(float), state.astype(float)
    met, place = np.unique(rows, return_inverse=True)
    totals = np.zeros((len(met), of.dim))
    np.add.at(totals, place.reshape(rows.shape), gradient[:, None].astype(float))
    if of.optimizer == "sgd":
        table[met] -= 0.01 * totals
        return table, state
    state[met] += totals**2 if of.optimizer == "adagrad" else (totals**2).mean(1)
    root = np.sqrt(state[met] + 1e-8)
    table[met] -= 0.01 * totals / (root if of.optimizer == "adagrad" else root[:, None])
    return table, state


@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_fused_optimizer_updates_each_row_once(library: str, optimizer: str) -> None:
    """By both libraries as by hand, and the row says which optimizer it was."""
    if library == "torch":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
        from hybridperf_calibration.microbench.torch_families import FAMILIES
    else:
        from hybridperf_calibration.microbench.families import FAMILIES
    (family,) = [one for one in FAMILIES if one.name == "embedding_bag_update"]
    u = np.full(9, 0.1)
    for last in np.linspace(0, 0.99, 30):
        u[8] = last
        program = family.build(u)
        of = program.lookups
        if (of.optimizer, of.duplicates) == (optimizer, "merged"):
            break
    rng = np.random.default_rng(0)
    table = rng.random((of.rows, of.dim), np.float32)
    state = rng.random((of.rows, of.dim)[: 2 if optimizer == "adagrad" else 1], np.float32)
    rows, gradient = of.draw(rng, (of.bags, of.pooling)), rng.random((of.bags, of.dim), np.float32)
    tables = [table] if optimizer == "sgd" else [table, state]
    if library == "torch":
        held = [torch.tensor(one) for one in tables]
        program.fn(*held, torch.tensor(rows, dtype=torch.int64), torch.tensor(gradient))
        found = [np.asarray(one) for one in held]
    else:
        import jax

        found = [np.asarray(one) for one in jax.jit(program.fn)(*tables, rows, gradient)]
    for one, expected in zip(found, updated(of, table, state, rows, gradient), strict=False):
        assert one == pytest.approx(expected, rel=1e-3)
    columns = of.columns(sets=2, copies=1)
    assert columns["op"] == "embedding_bag_backward"
    assert columns.get("optimizer", "sgd") == optimizer
    assert columns.get("duplicates", "merged") == "merged"
