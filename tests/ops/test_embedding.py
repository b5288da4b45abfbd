"""Expected different rows, reuse histograms, cache hits and distances: against counting, against
every row summed, and their limits.
"""

from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridperf.io import InputError, read_table
from hybridperf.ops.embedding import (
    Access,
    Histogram,
    Indices,
    LookupStream,
    Table,
    Uniform,
    Zipf,
    bin_names,
    check_names,
    distances,
    met,
    reuse,
    row_pieces,
    thin,
    uniform_unique_rows,
)


def probabilities(rows: int, exponent: float, shift: float) -> np.ndarray:
    weight = (np.arange(1, rows + 1) + shift) ** -exponent
    return weight / weight.sum()


def drawn(p: np.ndarray, lookups: int, seed: int = 0) -> np.ndarray:
    places = np.searchsorted(np.cumsum(p), np.random.default_rng(seed).random(lookups))
    return np.minimum(places, len(p) - 1)


def counted(p: np.ndarray, lookups: int, trials: int) -> float:
    """Mean number of different rows among `lookups` draws with probabilities `p`."""
    rng, reached = np.random.default_rng(0), np.cumsum(p)
    places = np.searchsorted(reached, rng.random((trials, lookups)))
    return float(np.mean([len(np.unique(row)) for row in places]))


def histogram_of(times: np.ndarray) -> np.ndarray:
    """Shares of rows by their number of lookups, bin by bin."""
    return np.bincount(np.minimum(np.ceil(np.log2(times)), 16).astype(int), minlength=17) / len(
        times
    )


def file_shares(unique: np.ndarray, lookups: np.ndarray, mean_reuse: float) -> np.ndarray:
    """The histogram [17] of a file that gives shares of rows and of lookups, both to a few digits.

    Few rows get very many lookups, so their share of the rows reads 0.000 where that of the lookups
    has three digits: there it is taken from them.
    """
    shares = np.asarray(unique, np.float64).copy()
    per_row = [*map(reuse.mean_between, reuse.LOWER, reuse.HIGH, reuse.slopes_of(shares))]
    from_lookups = np.asarray(lookups) * mean_reuse / np.array(per_row)
    better = shares < 0.1
    shares[better] = from_lookups[better]
    return shares / shares.sum()


# --- different rows -------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "lookups"), [(1000, 100), (1000, 1000), (1000, 5000), (50, 40)])
def test_uniform_access_is_what_counting_gives(rows: int, lookups: int) -> None:
    expected = counted(np.full(rows, 1 / rows), lookups, 2000 if rows < 100 else 100)
    assert float(uniform_unique_rows(lookups, rows)) == pytest.approx(expected, rel=0.01)
    assert float(Uniform().unique_rows(lookups, rows)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.05, 1.5])
@pytest.mark.parametrize("shift", [0.0, 20.0])
@pytest.mark.parametrize(
    ("rows", "lookups"), [(10, 100), (20_000, 1000), (20_000, 50_000), (1_000_000, 50_000)]
)
def test_zipf_access_is_what_counting_gives(
    rows: int, exponent: float, shift: float, lookups: int
) -> None:
    expected = counted(
        probabilities(rows, exponent, shift), lookups, 8 if lookups == 50_000 else 1000
    )
    assert float(Zipf(exponent, shift).unique_rows(lookups, rows)) == pytest.approx(
        expected, rel=0.01
    )


@pytest.mark.parametrize("rows", [10, 1000, 10**7])
@pytest.mark.parametrize("exponent", [0.3, 0.9, 1.5])
def test_zipf_classes_sum_to_what_every_row_gives(rows: int, exponent: float) -> None:
    """No sampling noise: the same sum row by row, over far more rows than classes."""
    missed = np.log1p(-probabilities(rows, exponent, 5.0))
    for lookups in (64, 4096, 200_000):
        expected = -np.expm1(lookups * missed).sum()
        assert float(Zipf(exponent, 5.0).unique_rows(lookups, rows)) == pytest.approx(
            expected, rel=1e-4
        )


@pytest.mark.parametrize(
    "unique",
    [uniform_unique_rows, lambda n, rows: Zipf(0.8).unique_rows(n, rows)],
    ids=["uniform", "zipf"],
)
def test_limits_of_the_formulas(unique) -> None:
    assert float(unique(0, 1000)) == 0.0
    assert float(unique(1, 1000)) == pytest.approx(1.0, rel=1e-4)
    assert float(unique(1, 1e9)) == pytest.approx(1.0, rel=1e-2)
    assert float(unique(1e9, 1000)) == pytest.approx(1000, rel=1e-4)  # every row
    assert float(unique(7, 1)) == pytest.approx(1.0, rel=1e-4)  # the only one
    assert float(unique(100, 1e8)) <= 100 * (1 + 1e-5)
    values = [float(unique(n, 1000)) for n in (1, 10, 100, 1000, 10_000)]
    assert (np.diff(values) > 0).all()


@pytest.mark.parametrize("access", [Uniform(), Zipf(0.9, 10.0)], ids=["uniform", "zipf"])
def test_limits_are_exact(access: Access) -> None:
    assert access.unique_rows(5, 1) == 1  # one row
    assert access.histogram(5, 1).tolist() == [0, 0, 0, 1] + 13 * [0]  # five lookups of it
    assert access.hits(5, 1, 1) == 0.8
    assert access.unique_rows(10**9, 100) == 100  # every row
    everything = 1 - access.unique_rows(3000, 500) / 3000
    # all fits: only first lookups miss
    assert access.hits(3000, 500, 500) == access.hits(3000, 500, 1e9) == everything
    assert access.hits(3000, 500, 0) == 0
    assert access.hits(np.inf, 500, 500) == 1


def test_exponent_zero_is_uniform() -> None:
    for lookups, rows in ((10, 1e7), (5000, 1e4), (1e5, 100)):
        assert Zipf(0.0).unique_rows(lookups, rows) == pytest.approx(
            float(Uniform().unique_rows(lookups, rows)), rel=1e-9
        )
        assert Zipf(0.0).histogram(lookups, rows) == pytest.approx(
            Uniform().histogram(lookups, rows), abs=1e-9
        )


def test_uniform_has_its_closed_form() -> None:
    assert Uniform().unique_rows(500, 1000) == pytest.approx(
        1000 * (1 - (1 - 1e-3) ** 500), rel=1e-12
    )


def test_skew_leaves_fewer_rows() -> None:
    values = [float(Zipf(exponent).unique_rows(5000, 1e5)) for exponent in (0.0, 0.5, 1.0, 1.5)]
    assert (np.diff(values) < 0).all()


# --- histograms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exponent", "shift", "rows", "lookups"),
    [(0.0, 0.0, 2000, 9000), (0.9, 50.0, 30_000, 60_000), (1.4, 0.0, 9000, 40_000)],
)
def test_histogram_is_what_counting_gives(
    exponent: float, shift: float, rows: int, lookups: int
) -> None:
    p = probabilities(rows, exponent, shift)
    counts = [
        histogram_of(np.unique(drawn(p, lookups, seed), return_counts=True)[1])
        for seed in range(60)
    ]
    assert Zipf(exponent, shift).histogram(lookups, rows) == pytest.approx(
        np.mean(counts, 0), abs=0.004
    )


def test_recorded_indices_say_what_they_are() -> None:
    values = np.array([[7, 7, 7], [1, 2, 2]])
    access = Indices(values)
    assert access.unique_rows(6, 100) == 3
    # once, twice, three times
    assert access.histogram(6, 100)[:3].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    # each lookup kept with probability 1/2
    assert access.unique_rows(3, 100) == pytest.approx((1 - 1 / 8) + (1 - 1 / 4) + 1 / 2)
    assert access.hits(6, 100, 100) == pytest.approx(1 - 3 / 6)
    assert access.hits(3, 100, 100) == pytest.approx(1 - access.unique_rows(3, 100) / 3)
    assert access.hits(6, 100, 0) == 0


@pytest.mark.parametrize(("exponent", "shift"), [(0.0, 0.0), (0.9, 100.0), (1.2, 0.0)])
def test_recorded_indices_hit_as_their_batch_does(exponent: float, shift: float) -> None:
    rows, lookups = 20_000, 30_000
    looked_up = drawn(probabilities(rows, exponent, shift), lookups)
    held = np.array([30, 300, 3000, 20_000])
    access = Indices(looked_up)
    assert access.hits(lookups, rows, held) == pytest.approx(
        [simulated(looked_up, int(size)) for size in held], abs=0.01
    )
    part = drawn(probabilities(rows, exponent, shift), lookups // 4, 7)
    assert access.hits(lookups // 4, rows, held) == pytest.approx(
        [simulated(part, int(size)) for size in held], abs=0.015
    )


def test_recorded_indices_lie_apart_as_those_they_were_drawn_like() -> None:
    """Rows that were met once stand for all those of the table that are rarely met."""
    rows, lookups = 100_000, 80_000
    looked_up = drawn(probabilities(rows, 0.9, 5.0), lookups)
    told, recorded = (
        distances([LookupStream(*a.classes(lookups, rows), lookups, 1.0)])
        for a in (Zipf(0.9, 5.0), Indices(looked_up))
    )
    assert np.log(float(recorded[0])) == pytest.approx(np.log(float(told[0])), abs=0.2)


def test_a_histogram_counts_rows_by_its_mean() -> None:
    shares = [0.5, 0.25, 0.25, *14 * [0.0]]
    assert Histogram(shares, mean_reuse=2.0).unique_rows(1000, 1e6) == 500
    # one, two, and three or four: between 1.75 and 2 lookups per row
    assert 1000 / 2.0 < Histogram(shares).unique_rows(1000, 1e6) < 1000 / 1.75


def test_thinning_everything_changes_nothing() -> None:
    shares = Zipf(0.9, 100.0).histogram(200_000, 1e5)
    same = thin(Histogram(shares, 4.0, 200_000), 1.0)
    assert same.shares == pytest.approx(shares, abs=1e-12)
    assert same.mean_reuse == pytest.approx(4.0)
    assert same.lookups == 200_000


@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.01])
def test_thinning_is_what_dropping_lookups_gives(fraction: float) -> None:
    """Counts inside a bin are not known from the histogram: two percent of the rows is what that
    costs.
    """
    rows = drawn(probabilities(50_000, 0.9, 100.0), 400_000)
    _, times = np.unique(rows, return_counts=True)
    whole = Histogram(histogram_of(times), times.mean(), len(rows))
    _, left = np.unique(
        rows[np.random.default_rng(1).random(len(rows)) < fraction], return_counts=True
    )
    batch = thin(whole, fraction)
    assert batch.mean_reuse == pytest.approx(left.mean(), rel=0.02)
    assert batch.shares == pytest.approx(histogram_of(left), abs=0.02)
    exact = Indices(rows)
    assert exact.unique_rows(fraction * len(rows), 50_000) == pytest.approx(len(left), rel=0.01)
    assert exact.histogram(fraction * len(rows), 50_000) == pytest.approx(
        histogram_of(left), abs=0.006
    )
    assert whole.unique_rows(fraction * len(rows), 50_000) == pytest.approx(len(left), rel=0.02)


@pytest.mark.parametrize(
    ("shares", "mean"),
    [
        ([0, 0, 1, *14 * [0]], None),
        ([*9 * [0], 1, *7 * [0]], 260.0),
        ([*9 * [0], 1, *7 * [0]], 500.0),
        ([0.4, 0.3, *13 * [0], 0.2, 0.1], 2e4),
    ],
)
def test_a_thinned_batch_has_no_more_different_rows_than_lookups(
    shares: list[float], mean: float | None
) -> None:
    """Shares, counts inside the bins and the mean agree."""
    whole = Histogram(shares, mean, 1e9)
    for lookups in (1, 50, 1000, 1e5):
        assert float(whole.unique_rows(lookups, 1e9)) <= lookups
    # a single lookup is of a single row
    assert float(whole.unique_rows(1, 1e9)) == pytest.approx(1, rel=0.01)
    assert float(whole.unique_rows(0.999999e9, 1e9)) == pytest.approx(
        1e9 / float(whole._mean()), rel=0.01
    )


@pytest.mark.parametrize(
    ("rows", "lookups", "fraction"),
    [(20_000, 2_000_000, 0.01), (20_000, 2_000_000, 0.001), (5000, 1_000_000, 0.005)],
)
def test_thinning_knows_the_mean_of_rows_that_are_alike(
    rows: int, lookups: int, fraction: float
) -> None:
    """All counts lie in one bin or two; where in them only the mean tells."""
    _, times = np.unique(drawn(np.full(rows, 1 / rows), lookups), return_counts=True)
    whole = Histogram(histogram_of(times), times.mean(), lookups)
    n = fraction * lookups
    assert whole.unique_rows(n, rows) == pytest.approx(rows * (1 - (1 - 1 / rows) ** n), rel=0.01)


def test_thinning_twice_is_thinning_once() -> None:
    whole = Histogram(Zipf(0.8, 30.0).histogram(300_000, 3e4), 12.0)
    once, twice = thin(whole, 0.06), thin(thin(whole, 0.3), 0.2)
    assert twice.shares == pytest.approx(once.shares, abs=0.02)
    assert twice.mean_reuse == pytest.approx(once.mean_reuse, rel=0.03)


def test_histograms_of_a_file_thinned_to_batches(data_dir: Path) -> None:
    """The published statistics of 16 files, against their thinning by others.

    A bin's rows may all stand at its low or all at its high end: no histogram tells, and rows that
    are kept lie between what these two give. Ours do. Theirs lie below at the largest batches: real
    numbers between 1 and 2, and so on, must have stood for the counts of a bin, and with bins that
    begin there theirs lie in the range, too. What nobody can tell apart is 3 % of the rows, 1.5
    points of a share.
    """
    stats = read_table(data_dir / "dlrm_access" / "locality_stats.csv")
    theirs = read_table(data_dir / "dlrm_access" / "rf_thinned_all_tables.csv")
    high_ends = 2.0 ** np.arange(17)
    real_ends = np.concatenate([[1.0], high_ends[:-1]])
    low_ends = np.concatenate([[1.0], high_ends[:-1] + 1])
    for year, files in stats.groupby("year"):
        files = (
            files[files["num_indices"] < 0.9 * files["num_indices"].max()]
            if year == 2021
            else files
        )  # without the one of another kind
        mean = files["num_indices"].sum() / files["num_unique_rows"].sum()
        printed = [
            files[[name for name in files if name.startswith(of)]].mean().to_numpy()
            for of in ("uniq_frac", "index_frac")
        ]
        whole = Histogram(file_shares(*printed, mean), mean)
        whole.check()
        for _, row in theirs[theirs["year"] == year].iterrows():
            fraction = row["batch_size"] / files["batch_size"].iloc[0]
            batch = thin(whole, fraction)
            lowest, low, high = (
                float((whole.shares * (1 - (1 - fraction) ** end)).sum())
                for end in (real_ends, low_ends, high_ends)
            )
            ours_kept, their_kept = (
                fraction * mean / reuse for reuse in (batch.mean_reuse, row["avg_reuse"])
            )
            assert low < ours_kept < high
            assert lowest < their_kept < high
            assert ours_kept == pytest.approx(their_kept, rel=0.03)
            assert batch.shares == pytest.approx(row[bin_names()].to_numpy(float), abs=0.015)


# --- caches ---------------------------------------------------------------------------------------


def simulated(rows: np.ndarray, held: int) -> float:
    """Hits of a cache that gives up what was used least recently."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in rows.tolist():
        if row in cache:
            hits += 1
            cache.move_to_end(row)
            continue
        cache[row] = None
        if len(cache) > held:
            cache.popitem(last=False)
    return hits / len(rows)


@pytest.mark.parametrize(("exponent", "shift"), [(0.0, 0.0), (0.6, 0.0), (0.9, 100.0), (1.2, 0.0)])
def test_hits_are_those_of_a_cache(exponent: float, shift: float) -> None:
    rows, lookups = 20_000, 30_000
    looked_up = drawn(probabilities(rows, exponent, shift), lookups)
    held = np.array([30, 300, 3000, 20_000])
    hits = Zipf(exponent, shift).hits(lookups, rows, held)
    assert hits == pytest.approx([simulated(looked_up, int(size)) for size in held], abs=0.01)
    assert (np.diff(hits) >= 0).all()


def test_uniform_hits_of_a_full_cache_are_its_share_of_the_rows() -> None:
    assert Uniform().hits(np.inf, 1000, np.array([1, 100, 500])) == pytest.approx(
        [0.001, 0.1, 0.5], rel=1e-6
    )


def test_a_histogram_of_a_batch_hits_as_its_rows_do() -> None:
    looked_up = drawn(probabilities(100_000, 1.0, 20.0), 50_000)
    _, times = np.unique(looked_up, return_counts=True)
    access = Histogram(histogram_of(times), times.mean())
    held = np.array([100, 1000, 100_000])
    assert access.hits(50_000, 100_000, held) == pytest.approx(
        [simulated(looked_up, int(size)) for size in held], abs=0.03
    )
    assert access.hits(50_000, 100_000, 1e6) == pytest.approx(1 - len(times) / 50_000)


@pytest.mark.parametrize(("exponent", "most"), [(0.0, 0.015), (0.3, 0.01), (0.6, 0.035)])
def test_counts_are_rates_and_chance(exponent: float, most: float) -> None:
    """Rows that a histogram counted twice are not twice as liked as those it counted once."""
    rows, lookups = 20_000, 20_000
    looked_up = drawn(probabilities(rows, exponent, 0.0), lookups)
    _, times = np.unique(looked_up, return_counts=True)
    access = Histogram(histogram_of(times), times.mean(), lookups)
    held = np.array([500, 2500, 5000])
    for part in (looked_up, looked_up[: lookups // 5]):
        assert access.hits(len(part), rows, held) == pytest.approx(
            [simulated(part, int(size)) for size in held], abs=most
        )


@pytest.mark.parametrize(
    "shares",
    [[1.0, *16 * [0.0]], [0.0, 1.0, *15 * [0.0]], [0.5, 0.0, 0.5, *14 * [0.0]], [*16 * [0.0], 1.0]],
)
@pytest.mark.parametrize("rows", [1.0, 1.02, 1e6])
def test_classes_of_a_histogram_share_all_lookups(shares: list[float], rows: float) -> None:
    access = Histogram(shares)
    lookups = 1e9
    count, p = access.classes(lookups, rows * float(access.unique_rows(lookups, 1e12)))
    assert (p > 0).all()
    assert float(count @ p) == pytest.approx(1)
    assert float(count.sum()) >= float(access.unique_rows(lookups, 1e12)) * (1 - 1e-9)


def test_distances_of_uniform_access_have_a_closed_form() -> None:
    """As far as any number of rows up to all: mean log one below that of all rows, spread one."""
    mean, spread = distances([LookupStream(*Uniform().classes(1000, 1e5), 1000.0, 64.0)])
    assert float(mean) == pytest.approx(64e5 / np.e, rel=0.005)
    assert float(spread) == pytest.approx(1.0, abs=0.005)


def test_distances_are_what_counting_gives() -> None:
    rows, lookups = 3000, 60_000
    looked_up = drawn(probabilities(rows, 1.0, 3.0), lookups).tolist()
    recent: list[int] = []
    logs = []
    for at, row in enumerate(looked_up):
        if row in recent:
            place = recent.index(row)
            if at > lookups // 2:
                logs.append(np.log(max(place, 1)))
            recent.pop(place)
        recent.insert(0, row)
    mean, spread = distances([LookupStream(*Zipf(1.0, 3.0).classes(500, rows), 500.0, 1.0)])
    assert np.log(float(mean)) == pytest.approx(np.mean(logs), abs=0.1)
    assert float(spread) == pytest.approx(np.std(logs), abs=0.1)


def test_other_tables_come_between_batches_only() -> None:
    """A table that fits into nothing beside one that is looked up a hundred times a row."""
    small, large = (
        LookupStream(*Uniform().classes(1e4, 100), 1e4, 8.0),
        LookupStream(*Uniform().classes(1e4, 1e6), 1e4, 8.0),
    )
    alone, _ = distances([small])
    together, _ = distances([small, large])
    assert float(alone) == pytest.approx(800 / np.e, rel=0.02)
    lonely, _ = distances([large])
    assert float(alone) < float(together) < float(lonely)
    # half of the lookups each
    assert float(together) == pytest.approx(np.sqrt(float(alone) * float(lonely)), rel=0.1)


def test_a_loop_over_few_batches_meets_its_own_rows_only() -> None:
    count, p = met(*Zipf(0.8).classes(5000, 1e6), 5000)
    assert float((count * p).sum()) == pytest.approx(1.0)
    assert float(count.sum()) == pytest.approx(float(Zipf(0.8).unique_rows(5000, 1e6)))


def test_less_than_one_lookup_is_of_rows_looked_up_once() -> None:
    for access in (Uniform(), Zipf(1.0)):
        assert Table("t", 1000, 8, 0.3, access=access).histogram(1) == pytest.approx(
            [1.0, *16 * [0.0]]
        )


# --- pieces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exponent", "shift"), [(0.9, 5.0), (1.1, 50.0), (1.3, 0.0)])
def test_pieces_by_row_meet_the_rows_that_dealing_them_out_gives(
    exponent: float, shift: float
) -> None:
    rows, batch, pooling, count = 100_000, 4096, 20, 4
    looked_up = drawn(probabilities(rows, exponent, shift), batch * pooling)  # by rank
    dealt = [looked_up[looked_up % count == at] for at in range(count)]
    different = np.array([len(np.unique(one)) for one in dealt])
    times = np.unique(looked_up, return_counts=True)[1]
    histogram = Histogram(histogram_of(times), times.mean(), batch * pooling)
    for access in (Zipf(exponent, shift), Indices(looked_up), histogram):
        held = row_pieces(Table("t", rows, 64, pooling, access=access), count)
        assert sum(one.rows for one in held) == rows
        assert sum(float(one.pooling) for one in held) == pytest.approx(pooling)
        assert np.mean([float(one.unique_rows(batch)) for one in held]) == pytest.approx(
            different.mean(), rel=0.01
        )
        if access is not histogram:  # it tells no row from another: all pieces are alike
            assert float(held[0].pooling) == pytest.approx(
                pooling * len(dealt[0]) / len(looked_up), rel=0.02
            )
            assert [float(one.unique_rows(batch)) for one in held] == pytest.approx(
                different.tolist(), rel=0.05
            )


def test_a_share_of_the_lookups_goes_where_the_hottest_row_is() -> None:
    weights = np.arange(1, 1001.0) ** -1.3
    held = row_pieces(Table("t", 1000, 64, 10, access=Zipf(1.3)), 3)
    assert [float(one.pooling) for one in held] == pytest.approx(
        [10 * weights[at::3].sum() / weights.sum() for at in range(3)], rel=1e-3
    )
    assert [one.rows for one in held] == [334, 333, 333]
    assert row_pieces(held[1], 1) == [held[1]]


def test_too_few_rows_for_the_pieces_are_named() -> None:
    with pytest.raises(
        InputError, match=r"^table t has 3 rows, expected 1 to 3 pieces of it by row, got 4"
    ):
        row_pieces(Table("t", 3, 64, 10), 4)
    with pytest.raises(
        InputError, match=r"^table t: its recorded lookups are of 2 rows, too few for 3 pieces"
    ):
        row_pieces(Table("t", 100, 64, 1, access=Indices([5, 5, 7])), 3)


@pytest.mark.parametrize(
    ("exponent", "shift"), [(60.0, 0.0), (400.0, 0.0), (400.0, 50.0), (1e4, 0.0), (5.0, 1e300)]
)
def test_extreme_exponents_stay_finite(exponent: float, shift: float) -> None:
    """Nearly all lookups are of the first row: one different row, or as many as the shift leaves
    alike.
    """
    table = Table("t", 1e5, 64, 3, access=Zipf(exponent, shift))
    assert np.isfinite(table.histogram(4096)).all()
    assert 0 <= float(table.hits(4096, 1e4)) <= 1
    assert np.isfinite(distances([LookupStream(*table.classes(4096), 3.0 * 4096, 256.0)])).all()
    if shift == 0:
        assert float(table.unique_rows(4096)) == pytest.approx(1)
    assert np.isfinite([float(one.unique_rows(4096)) for one in row_pieces(table, 4)]).all()


# --- gradients ------------------------------------------------------------------------------------


def test_gradients_against_differences() -> None:
    with jax.enable_x64(True):
        for argument in range(3):
            # lookups, exponent, shift
            values = [jnp.asarray(3000.0), jnp.asarray(0.9), jnp.asarray(5.0)]

            def unique(x, argument=argument, values=values):
                n, exponent, shift = [*values[:argument], x, *values[argument + 1 :]]
                return Zipf(exponent, shift).unique_rows(n, 1e5)

            check_slope(unique, values[argument])


def check_slope(f, x, rel: float = 1e-5) -> None:
    step = 1e-5 * x
    difference = (f(x + step) - f(x - step)) / (2 * step)
    assert float(jax.grad(f)(x)) == pytest.approx(float(difference), rel=rel)


@pytest.mark.parametrize("what", ["histogram", "hits", "distance", "spread"])
@pytest.mark.parametrize("argument", ["exponent", "shift"])
def test_distributions_are_differentiable_in_their_parameters(what: str, argument: str) -> None:
    def answer(x):
        access = Zipf(**({"exponent": 0.9, "shift": 12.0} | {argument: x}))
        if what == "histogram":
            return access.histogram(20_000, 1e5) @ np.arange(1.0, 18.0)
        if what == "hits":
            return access.hits(20_000, 1e5, 900.0)
        return distances([LookupStream(*access.classes(20_000, 1e5), 20_000.0, 64.0)])[
            what == "spread"
        ]

    with jax.enable_x64(True):
        check_slope(answer, {"exponent": 0.9, "shift": 12.0}[argument], rel=1e-4)


def test_thinning_is_differentiable() -> None:
    shares = Zipf(0.9, 100.0).histogram(200_000, 1e5)

    def mean_reuse(fraction):
        return thin(Histogram(shares, 4.0), fraction).mean_reuse

    def once(skew):
        leaning = jnp.asarray(shares) * jnp.exp(-skew * jnp.arange(17.0))
        return thin(Histogram(leaning / leaning.sum()), 0.1).shares[0]

    with jax.enable_x64(True):
        check_slope(mean_reuse, 0.1)
        check_slope(once, 0.3, rel=1e-4)
        check_slope(lambda mean: thin(Histogram(shares, mean), 0.1).mean_reuse, 4.0, rel=1e-4)


def test_numbers_and_tracers_agree() -> None:
    with jax.enable_x64(True):
        for ask in (
            lambda a: a.unique_rows(9000, 3e4),
            lambda a: a.histogram(9000, 3e4),
            lambda a: a.hits(9000, 3e4, 500.0),
        ):
            traced = jax.jit(lambda exponent, ask=ask: ask(Zipf(exponent, 7.0)))(0.8)
            assert np.asarray(traced) == pytest.approx(
                np.asarray(ask(Zipf(0.8, 7.0))), rel=1e-8, abs=1e-12
            )


# --- what is refused ------------------------------------------------------------------------------

GOOD = [1.0, *16 * [0.0]]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pooling": 0}, "table ads: expected pooling above zero, got 0"),
        ({"rows": -5}, "table ads: expected rows above zero, got -5"),
        ({"dim": float("nan")}, "table ads: expected dim above zero, got nan"),
        ({"rows": "many"}, "table ads: expected a number of rows, got 'many'"),
        ({"dtype": "fp33"}, "table ads: unknown dtype 'fp33'"),
        ({"access": 0.9}, "table ads: expected an access distribution"),
        ({"access": Zipf(-0.5)}, "table ads: expected a Zipf exponent of zero or more, got -0.5"),
        (
            {"access": Zipf(0.9, float("inf"))},
            "table ads: expected a Zipf shift of more than -1, got inf",
        ),
        (
            {"access": Histogram([0.5, 0.4, *15 * [0.0]])},
            "table ads: expected a reuse histogram whose shares sum to one, got a sum of 0.9",
        ),
        (
            {"access": Histogram([0.5, 0.5])},
            "table ads: expected a reuse histogram of 17 shares, got 2",
        ),
        (
            {"access": Histogram([1.5, -0.5, *15 * [0.0]])},
            "table ads: expected a reuse histogram of shares of zero or more, got -0.5",
        ),
        (
            {"access": Histogram(GOOD, 0.5)},
            "table ads: expected a mean of one or more lookups per different row, got 0.5",
        ),
        ({"rows": 0.5}, "table ads: expected a whole number of rows, got 0.5"),
        ({"dim": 64.5}, "table ads: expected a whole number of dim, got 64.5"),
        ({"rows": None}, "table ads: expected a number of rows, got None"),
        ({"name": 7}, "expected a text as name of an embedding table, got 7"),
        ({"access": Zipf("steep")}, "table ads: expected a number as Zipf exponent, got 'steep'"),
        (
            {"access": Histogram(GOOD, 500.0)},
            (
                "table ads: expected a mean of 1 to 1 lookups per different row, as the shares say,"
                " got 500"
            ),
        ),
        (
            {"access": Histogram(GOOD, 1.0, 0)},
            "table ads: expected a histogram counted over more than zero lookups, got 0",
        ),
        (
            {"access": Histogram(GOOD, 1.0, 1000)},
            "table ads: expected at most its 100 rows in the histogram, which counted 1000",
        ),
        ({"access": Indices([5, 100])}, "table ads: expected recorded rows of 0 to 99, got 100"),
        ({"access": Indices([])}, "table ads: expected the rows that were looked up, got none"),
        ({"access": Indices([1.5])}, "table ads: expected rows as whole numbers"),
        (
            {"access": Indices([[1, 2], [3]])},
            (
                "table ads: expected rows as whole numbers of zero or more, got lists of different"
                " lengths"
            ),
        ),
        (
            {"access": Histogram("abc")},
            "table ads: expected a reuse histogram of 17 shares, got 'abc'",
        ),
        (
            {"access": Histogram(GOOD, "x")},
            "table ads: expected a number as mean_reuse of a reuse histogram, got 'x'",
        ),
        (
            {"access": Histogram(GOOD, 1.0, True)},
            "table ads: expected a number as lookups of a reuse histogram, got True",
        ),
        (
            {"access": Histogram(GOOD[::-1], float("inf"))},
            "table ads: expected a mean of one or more lookups per different row, got inf",
        ),
        ({"name": ""}, "expected a text as name of an embedding table, got ''"),
    ],
)
def test_bad_tables_are_named(wrong: dict, said: str) -> None:
    with pytest.raises(InputError) as error:
        Table(**{"name": "ads", "rows": 100, "dim": 8, "pooling": 3, **wrong})
    assert str(error.value).startswith(said)


def test_more_lookups_than_were_counted_are_refused() -> None:
    for access in (Indices([1, 2, 3]), Histogram(GOOD, 1.0, lookups=3)):
        table = Table("ads", 100, 8, 2, access=access)
        assert table.unique_rows(1) == pytest.approx(2, rel=0.3)
        with pytest.raises(
            InputError, match=r"table ads: expected at most the 3 lookups .* got 200"
        ):
            table.unique_rows(100)


def test_a_histogram_of_more_rows_than_there_are_is_refused() -> None:
    """Of each batch that is asked for: only with the batch it shows."""
    table = Table("ads", 1000, 8, 20, access=Histogram(GOOD))
    assert table.unique_rows(10) == pytest.approx(200)
    for ask in (
        table.unique_rows,
        table.histogram,
        table.classes,
        lambda batch: table.hits(batch, 100),
    ):
        with pytest.raises(
            InputError,
            match=(
                r"^table ads: expected at most its 1000 rows in the histogram, which makes of 20000"
                r" lookups 20000; say"
            ),
        ):
            ask(1000)
    with pytest.raises(
        InputError,
        match=(
            r"^table ads: expected a histogram with its mean_reuse: shares alone tell about .* too"
            r" few for 1000 rows"
        ),
    ):
        Table("ads", 1000, 8, 20, access=Histogram([*9 * [0.0], 1.0, *7 * [0.0]], None, 480_000))


def test_thinning_goes_one_way() -> None:
    for fraction in (0, 1.5, float("nan")):
        with pytest.raises(
            InputError, match="expected a share of a file above zero and at most one"
        ):
            thin(Histogram(GOOD), fraction)
    with pytest.raises(InputError, match="sum to one"):
        thin(Histogram([0.1] * 17), 0.5)
    with pytest.raises(
        InputError, match="expected a share of a file above zero and at most one, got x"
    ):
        thin(Histogram(GOOD), "x")
    for other in (Zipf(1.0), "x"):
        with pytest.raises(InputError, match=r"^expected a Histogram\(...\) to thin, got "):
            thin(other, 0.5)


@pytest.mark.parametrize("batch", [-5, 0, "x", None, float("nan")])
def test_a_batch_is_a_number_of_samples(batch) -> None:
    table = Table("ads", 100, 8, 3, access=Histogram(GOOD, 1.0, 1000 / 11))
    for ask in (
        table.unique_rows,
        table.histogram,
        table.classes,
        lambda batch: table.hits(batch, 100),
    ):
        with pytest.raises(
            InputError, match=r"^table ads: expected a batch of more than zero samples, got "
        ):
            ask(batch)
    for cache in (-1, "x", None):
        with pytest.raises(
            InputError, match=r"^table ads: expected a cache of zero or more bytes, got "
        ):
            table.hits(10, cache)


def test_tables_are_told_apart_by_name() -> None:
    table = Table("ads", 100, 8, 3)
    with pytest.raises(InputError, match="table ads is given twice"):
        check_names([table, table])
    with pytest.raises(InputError, match="at least one embedding table"):
        check_names([])


def test_a_table_knows_its_bytes() -> None:
    table = Table("ads", 100, 8, 3, dtype="half")
    assert (table.dtype, table.row_bytes, table.bytes, table.lookups(10)) == ("fp16", 16, 1600, 30)
    assert table.hits(10, 1600) == pytest.approx(1 - table.unique_rows(10) / 30)
