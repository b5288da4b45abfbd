"""Which rows of a table a batch looks up: distributions, and what follows from them.

All answer the same questions for `lookups` draws from `rows` rows: `unique_rows`, `histogram` (17
shares), `hits` in a cache that holds so many rows, and the classes of rows of equal probability
that the rest is computed from. Parameters may be traced by JAX: answers are differentiable in them.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.io.errors import InputError
from hybridperf.io.namespace import array_module
from hybridperf.ops.embedding import distance, reuse

# shares of three digits leave the mean, which hangs on the rarest bins, open by so much
_MEAN_SLACK = 0.05
_LEAST_RATE = 1e-15  # lookups to expect of a row that none is told of, where JAX keeps it
_LEAST_SHARE = 1e-12  # a piece that nobody looks into is a table all the same
_SUM_SLACK = 0.01  # a printed histogram of 17 shares with three digits sums to one so exactly
_EXACT_RANKS = 64  # ranks taken one by one: the head carries most of a skewed distribution
_BINS = 512  # geometric bins for all other ranks: mean probability within 1 % of the row's own
_LEAST_P = 1e-25  # of a row, next to the first one's: no number of lookups meets it


class Access(abc.ABC):
    """One table's access distribution."""

    @abc.abstractmethod
    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        """(rows of each class, probability of each row) [K]; the sum of count * p is 1."""

    def unique_rows(self, lookups: Any, rows: Any) -> Any:
        """Expected number of different rows among so many lookups."""
        return distance.distinct(*self.classes(lookups, rows), lookups)

    def histogram(self, lookups: Any, rows: Any) -> Any:
        """Shares [17] of different rows by how often they are looked up (`reuse.py`)."""
        count, p = self.classes(lookups, rows)
        return reuse.binned(p, count, lookups)

    def hits(self, lookups: Any, rows: Any, held_rows: Any) -> Any:
        """Share of a batch's lookups found in a cache that holds `held_rows` [...] rows of the
        table and starts empty; of infinitely many lookups, in a full one.
        """
        return distance.hits(*self.classes(lookups, rows), lookups, held_rows)

    def pieces(self, rows: Sequence[float]) -> Sequence[tuple[Any, Access]]:
        """(share of the lookups, how they fall) of each piece of so many rows (`row_pieces`); where
        rows are not told apart, that of its rows.
        """
        return [(n / sum(rows), self) for n in rows]

    def check(self, rows: float | None = None) -> None:  # noqa: B027  nothing is wrong by default
        """`InputError` for a wrong parameter, or one that fits no table of so many rows."""


@dataclasses.dataclass(frozen=True)
class Uniform(Access):
    """Access to an embedding table in which every row is equally likely."""

    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        module = array_module(rows)
        rows = module.reshape(module.asarray(rows, float), (1,))
        return rows, 1.0 / rows


@dataclasses.dataclass(frozen=True)
class Zipf(Access):
    """Access to an embedding table by a Zipf-Mandelbrot law: p ~ (rank + shift)^-exponent. JAX may
    trace both parameters, but not the table's number of rows.
    """

    exponent: Any  # 0 or more; 0: all rows equally likely
    shift: Any = 0.0  # above -1; larger values flatten the most popular rows

    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        count, weight = self._weights(float(rows))
        module = array_module(weight)
        # none vanishes, so that all stays finite
        return count, module.maximum(weight / module.sum(weight * count), _LEAST_P)

    def pieces(self, rows: Sequence[float]) -> Sequence[tuple[Any, Access]]:
        """(j + i k + shift)^-s for i = 0, 1, ... is k^-s (1 + i + shift_j)^-s with shift_j = (j +
        shift) / k - 1: Zipf-Mandelbrot again; shares are those of the sum of these weights.
        """
        k = len(rows)
        parts = [Zipf(self.exponent, (j + self.shift) / k - 1) for j in range(1, k + 1)]
        weights = []
        for n, part in zip(rows, parts, strict=True):
            count, weight = part._weights(n)
            module = array_module(weight)
            first = (1.0 + module.asarray(part.shift)) / (1.0 + parts[0].shift)
            total = module.sum(weight * count)
            weights.append(total * module.exp(-self.exponent * module.log(first)))
        shares = [weight / sum(weights) + _LEAST_SHARE for weight in weights]
        return list(zip(shares, parts, strict=True))

    def _weights(self, rows: float) -> tuple[Any, Any]:
        """(rows of each class, weight of each of its rows as a share of the first row's) [K]: the
        first ranks one by one, the others in geometric bins of the rank.
        """
        exact = int(min(rows, _EXACT_RANKS))
        edges = np.arange(1, exact + 2, dtype=np.float64)
        if rows > exact:
            others = np.unique(np.round(np.geomspace(exact + 1, rows + 1, _BINS + 1)))
            edges = np.concatenate([edges, others[1:]])
        first, count = edges[:-1], np.diff(edges)
        module = array_module(self.exponent, self.shift)
        middle, start = first + (count - 1) / 2 + self.shift, 1.0 + module.asarray(self.shift)
        return count, module.exp(-self.exponent * (module.log(middle) - module.log(start)))

    def check(self, rows: float | None = None) -> None:
        for name, least in (("exponent", "zero or more"), ("shift", "more than -1")):
            value = getattr(self, name)
            if traced(value):
                continue
            _expect(is_number(value), f"a number as Zipf {name}", repr(value))
            inside = value < np.inf and (value >= 0 if name == "exponent" else value > -1)
            _expect(inside, f"a Zipf {name} of {least}", value)


@dataclasses.dataclass(frozen=True)
class Histogram(Access):
    """Access to an embedding table, counted: how many rows a batch looks up once, twice, ...; for
    batches with fewer lookups than were counted, thinned binomially.
    """

    # [17] shares of the different rows looked up 1, 2, 3 to 4, 5 to 8, ... times; they sum to 1
    shares: Sequence[float] | Any
    mean_reuse: Any = None  # mean lookups per different row; None: estimated from the shares
    lookups: Any = None  # lookups that were counted; None: the histogram holds for every batch

    def thinned(self, fraction: Any) -> Histogram:
        """That of a random part of the counted lookups (binomial thinning)."""
        shares, mean = reuse.thinned(self._shares(), self._mean(), fraction)
        return Histogram(shares, mean, None if self.lookups is None else self.lookups * fraction)

    def pieces(self, rows: Sequence[float]) -> Sequence[tuple[Any, Access]]:
        if self.lookups is None:
            return super().pieces(rows)
        shares = [n / sum(rows) for n in rows]
        return [(x, dataclasses.replace(self, lookups=self.lookups * x)) for x in shares]

    def _mean(self) -> Any:
        return reuse.mean_of(self._shares()) if self.mean_reuse is None else self.mean_reuse

    def _shares(self) -> Any:
        module = array_module(self.shares)
        shares = module.asarray(self.shares, float)
        return shares / module.sum(shares)

    def _at(self, lookups: Any, rows: Any) -> Histogram:
        """The histogram of a batch of so many lookups."""
        self._check_batch(lookups, rows)
        if self.lookups is None:
            return self
        fraction = lookups / self.lookups
        return self.thinned(array_module(fraction).minimum(fraction, 1.0))

    def _check_batch(self, lookups: Any, rows: Any) -> None:
        """`InputError` for more lookups than were counted, or more different rows than exist."""
        if traced(self.shares, self.mean_reuse, self.lookups, lookups, rows):
            return
        if self.lookups is None:
            makes = f"makes of {lookups:g} lookups"
            self._check_fits(rows, lookups, makes, "; say over how many it was counted (lookups=)")
        elif lookups / self.lookups > 1 + 1e-9:
            most = f"the {self.lookups:g} lookups that the histogram was counted over"
            raise InputError(f"expected at most {most}, got {lookups:g}; thinning goes one way")

    def _check_fits(self, rows: Any, lookups: Any, makes: str, more: str = "") -> None:
        """`InputError` where so many lookups are of more different rows than there are."""
        mean = float(self._mean())
        if lookups / mean <= rows * (1 + _MEAN_SLACK):
            return
        if self.mean_reuse is None and lookups / reuse.mean_range(self._shares())[1] <= rows:
            tell = f"shares alone tell about {mean:.3g} lookups a row, too few for {rows:g} rows"
            raise InputError(f"expected a histogram with its mean_reuse: {tell}")
        expected = f"expected at most its {rows:g} rows in the histogram"
        raise InputError(f"{expected}, which {makes} {lookups / mean:.0f}{more}")

    def unique_rows(self, lookups: Any, rows: Any) -> Any:
        minimum = array_module(lookups, rows, self.mean_reuse, self.shares).minimum
        return minimum(lookups / self._at(lookups, rows)._mean(), rows)

    def histogram(self, lookups: Any, rows: Any) -> Any:
        return self._at(lookups, rows)._shares()

    def hits(self, lookups: Any, rows: Any, held_rows: Any) -> Any:
        """As `Access.hits`; where everything fits it follows the counted rows exactly."""
        module = array_module(self.shares, self.mean_reuse, lookups, held_rows)
        count, p = self.classes(lookups, rows)
        found = distance.hits(count, p, lookups, held_rows)
        if not traced(lookups) and np.isinf(lookups):
            return found
        drawn = 1.0 - distance.distinct(count, p, lookups) / lookups
        counted = 1.0 - self.unique_rows(lookups, rows) / lookups
        return module.where(drawn > 0, counted * found / module.where(drawn > 0, drawn, 1.0), 0.0)

    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        """Rows by the rates that their counts tell (`reuse.rates`), unmet ones included."""
        endless = not traced(lookups) and np.isinf(lookups)
        if not endless:
            self._check_batch(lookups, rows)
        # of the rows that were counted; of an endless stream only the ratios count
        if endless or self.lookups is not None:
            lookups = self.lookups or rows
        module = array_module(self.shares, self.mean_reuse, self.lookups, lookups, rows)
        shares, mean = self._shares(), self._mean()
        times, weight = reuse.counts(shares, mean)
        met = lookups / mean * weight
        unmet = module.maximum(rows - lookups / mean, 0.0)
        rates = reuse.rates(shares, times, met, unmet)
        count = module.concatenate([module.reshape(unmet, (1,)), met])
        if module is np:
            kept = (count > 0) & (rates > 0)
            count, rates = count[kept], rates[kept]
        rates = module.maximum(rates, _LEAST_RATE)
        return count, rates / module.sum(count * rates)

    def check(self, rows: float | None = None) -> None:
        mean, lookups = self.mean_reuse, self.lookups
        for name, value in (("mean_reuse", mean), ("lookups", lookups)):
            number = value is None or traced(value) or is_number(value)
            _expect(number, f"a number as {name} of a reuse histogram", repr(value))
        if traced(self.shares):
            return
        try:
            shares = np.asarray(self.shares, np.float64)
        except (TypeError, ValueError):
            got = f"got {self.shares!r:.60}"
            raise InputError(f"expected a reuse histogram of {reuse.BINS} shares, {got}") from None
        expected = "a reuse histogram"
        _expect(shares.shape == (reuse.BINS,), f"{expected} of {reuse.BINS} shares", shares.size)
        _expect((shares >= 0).all(), f"{expected} of shares of zero or more", f"{shares.min():g}")
        total = shares.sum()
        summed = f"{expected} whose shares sum to one"
        _expect(abs(total - 1) <= _SUM_SLACK, summed, f"a sum of {total:g}")
        if mean is not None and not traced(mean):
            per_row = "lookups per different row"
            _expect(1 <= mean < np.inf, f"a mean of one or more {per_row}", mean)
            low, high = reuse.mean_range(shares / total)
            inside = low * (1 - _MEAN_SLACK) <= mean <= high * (1 + _MEAN_SLACK)
            expected = f"a mean of {low:.4g} to {high:.4g} {per_row}, as the shares say"
            _expect(inside, expected, f"{mean:g}")
        if lookups is not None and not traced(lookups):
            counted = "a histogram counted over more than zero lookups"
            _expect(0 < lookups < np.inf, counted, lookups)
            if rows is not None and not traced(mean):
                self._check_fits(rows, lookups, "counted")


@dataclasses.dataclass(frozen=True, eq=False)
class Indices(Access):
    """Access to an embedding table, recorded: the rows that were looked up, in any order; for
    batches with fewer lookups, each is kept with equal chance.
    """

    values: Any  # row numbers from 0, whole, of any shape

    def _times(self) -> tuple[np.ndarray, np.ndarray]:
        """(lookups of a row, how many rows have so many)."""
        _, times = np.unique(np.asarray(self.values).ravel(), return_counts=True)
        each, rows = np.unique(times, return_counts=True)
        return each.astype(np.float64), rows.astype(np.float64)

    def _fraction(self, lookups: Any) -> float:
        fraction = float(lookups) / np.size(self.values)
        if fraction > 1 + 1e-9:
            most = f"at most the {np.size(self.values)} lookups that were recorded"
            raise InputError(f"expected {most}, got {lookups:g}; give more indices")
        return min(fraction, 1.0)

    def unique_rows(self, lookups: Any, rows: Any) -> float:
        each, how_many = self._times()
        return float((how_many * (1.0 - (1.0 - self._fraction(lookups)) ** each)).sum())

    def histogram(self, lookups: Any, rows: Any) -> np.ndarray:
        found: np.ndarray = reuse.kept(*self._times(), self._fraction(lookups))
        return found / found.sum()

    def hits(self, lookups: Any, rows: Any, held_rows: Any) -> Any:
        """As `Access.hits`, of the recorded lookups in random order."""
        if np.isinf(lookups):
            return super().hits(lookups, rows, held_rows)
        return distance.recorded_hits(*self._times(), self._fraction(lookups), held_rows)

    def classes(self, lookups: Any, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows that were looked up once stand for all rows that are rarely met."""
        each, how_many = self._times()
        p = each / np.size(self.values)
        if each[0] == 1 and (rare := float(rows) - how_many[1:].sum()) > how_many[0]:
            p[0], how_many[0] = p[0] * how_many[0] / rare, rare
        return how_many, p

    def pieces(self, rows: Sequence[float]) -> Sequence[tuple[Any, Access]]:
        """The recorded lookups of each piece, its rows numbered again from zero."""
        met, place, times = np.unique(self.values, return_inverse=True, return_counts=True)
        if len(met) < len(rows):
            few = f"its recorded lookups are of {len(met)} rows, too few for {len(rows)} pieces"
            raise InputError(f"{few} by row; split it in fewer")
        rank = np.empty(len(met), np.int64)
        rank[np.argsort(-times, kind="stable")] = np.arange(len(met))
        of = rank[place.ravel()]
        masks = [of % len(rows) == at for at in range(len(rows))]
        return [(mine.mean(), Indices(of[mine] // len(rows))) for mine in masks]

    def check(self, rows: float | None = None) -> None:
        whole = "expected rows as whole numbers of zero or more"
        try:
            values = np.asarray(self.values)
        except (TypeError, ValueError):
            raise InputError(f"{whole}, got lists of different lengths") from None
        if values.size == 0:
            raise InputError("expected the rows that were looked up, got none")
        if values.dtype.kind not in "iu" or values.min() < 0:
            raise InputError(whole)
        if rows is not None:
            last, mend = int(values.max()), "give the table's rows or mend the indices"
            _expect(last < rows, f"recorded rows of 0 to {rows - 1:.0f}", f"{last}; {mend}")


def is_real(value: Any) -> bool:
    """A number or an array of such, not a flag, text or nothing."""
    return np.asarray(value).dtype.kind in "iuf"


def is_number(value: Any) -> bool:
    """Whether a value is one real number and no array."""
    return is_real(value) and not np.ndim(value)


def traced(*values: Any) -> bool:
    """Whether JAX traces one of some values."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def _expect(good: Any, expected: str, got: Any) -> None:
    if not good:
        raise InputError(f"expected {expected}, got {got}")


def thin(histogram: Histogram, fraction: Any) -> Histogram:
    """The histogram that a random part of the counted lookups would show (binomial thinning).

    Args:
        histogram: what was counted.
        fraction: share of the lookups that is kept, above 0 and at most 1.

    Raises:
        InputError: when the histogram or the fraction is not valid.
    """
    if not isinstance(histogram, Histogram):
        expected = f"expected a Histogram(...) to thin, got {histogram!r:.60}"
        raise InputError(f"{expected}; other accesses know batches of any size")
    share = traced(fraction) or (is_number(fraction) and 0 < fraction <= 1)
    _expect(share, "a share of a file above zero and at most one", fraction)
    histogram.check()
    return histogram.thinned(fraction)
