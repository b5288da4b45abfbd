"""Which rows of a table a batch looks up: distributions, and what follows from them.

`Uniform()`                      every row alike
`Zipf(exponent, shift)`          the row of rank i in proportion to (i + shift)^-exponent
`Histogram(shares, mean_reuse)`  how many rows a batch looked up once, twice, ... (`reuse.py`)
`Indices(values)`                the rows that were looked up

All answer the same questions for `lookups` draws from `rows` rows: `unique_rows`, `histogram` (17
shares), `hits` in a cache that holds so many rows, and the classes of rows of equal probability
that the rest is computed from. Parameters may be traced by JAX: answers are differentiable in them.
`problem` says in words what is wrong with an access, for the error that names its table.
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
from hybridperf.ops.embedding.unique import distinct, zipf_classes

# shares of three digits leave the mean, which hangs on the rarest bins, open by so much
_MEAN_SLACK = 0.05
_LEAST_RATE = 1e-15  # lookups to expect of a row that none is told of, where JAX keeps it
_SUM_SLACK = 0.01  # a printed histogram of 17 shares with three digits sums to one so exactly


class Access(abc.ABC):
    """One table's access distribution."""

    @abc.abstractmethod
    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        """(rows of each class, probability of each row) [K]; the sum of count * p is 1."""

    def unique_rows(self, lookups: Any, rows: Any) -> Any:
        """Expected different rows."""
        return distinct(*self.classes(lookups, rows), lookups)

    def histogram(self, lookups: Any, rows: Any) -> Any:
        """Shares [17] of different rows by how often they are looked up (`reuse.py`)."""
        count, p = self.classes(lookups, rows)
        return reuse.binned(p, count, lookups)

    def hits(self, lookups: Any, rows: Any, held_rows: Any) -> Any:
        """Share of a batch's lookups found in a cache that holds `held_rows` [...] rows of the
        table and starts empty.

        `lookups` infinite: of an endless stream, the cache full.
        """
        return distance.hits(*self.classes(lookups, rows), lookups, held_rows)

    def problem(self) -> str:
        """What is wrong, in words that follow "table NAME: "; empty where nothing is."""
        return ""

    def misfit(self, rows: float) -> str:
        """What is wrong for a table of so many rows, in the same words."""
        del rows
        return ""


@dataclasses.dataclass(frozen=True)
class Uniform(Access):
    """Access to an embedding table in which every row is equally likely."""

    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        del lookups
        module = array_module(rows)
        rows = module.reshape(module.asarray(rows, float), (1,))
        return rows, 1.0 / rows


@dataclasses.dataclass(frozen=True)
class Zipf(Access):
    """Access to an embedding table by a Zipf-Mandelbrot law: p ~ (rank + shift)^-exponent.

    JAX may trace both parameters, but not the table's number of rows.
    """

    exponent: Any  # 0 or more; 0: all rows equally likely
    shift: Any = 0.0  # above -1; larger values flatten the most popular rows

    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        del lookups
        return zipf_classes(float(rows), self.exponent, self.shift)

    def problem(self) -> str:
        for name, least in (("exponent", "zero or more"), ("shift", "more than -1")):
            value = getattr(self, name)
            if isinstance(value, jax.core.Tracer):
                continue
            if not is_number(value):
                return f"expected a number as Zipf {name}, got {value!r}"
            if not (value < np.inf and (value >= 0 if name == "exponent" else value > -1)):
                return f"expected a Zipf {name} of {least}, got {value}"
        return ""


@dataclasses.dataclass(frozen=True)
class Histogram(Access):
    """Access to an embedding table, counted: how many rows a batch looks up once, twice, ...

    For batches with fewer lookups than were counted, the histogram is thinned binomially.
    """

    # [17] shares of the different rows looked up 1, 2, 3 to 4, 5 to 8, ... times; they sum to 1
    shares: Sequence[float] | Any
    mean_reuse: Any = None  # mean lookups per different row; None: estimated from the shares
    lookups: Any = None  # lookups that were counted; None: the histogram holds for every batch

    def _mean(self) -> Any:
        return reuse.mean_of(self._shares()) if self.mean_reuse is None else self.mean_reuse

    def _shares(self) -> Any:
        module = array_module(self.shares)
        shares = module.asarray(self.shares, float)
        return shares / module.sum(shares)

    def _at(self, lookups: Any, rows: Any) -> Histogram:
        """The histogram of a batch of so many lookups."""
        self._check(lookups, rows)
        if self.lookups is None:
            return self
        fraction = lookups / self.lookups
        fraction = array_module(fraction).minimum(fraction, 1.0)
        return Histogram(*reuse.thinned(self._shares(), self._mean(), fraction))

    def _check(self, lookups: Any, rows: Any) -> None:
        """`InputError` for more lookups than were counted, or more different rows than exist."""
        if _traced(self.shares, self.mean_reuse, self.lookups, lookups, rows):
            return
        if self.lookups is None and (problem := self._beyond(rows, lookups)):
            raise InputError(problem)
        if self.lookups is not None and lookups / self.lookups > 1 + 1e-9:
            most = f"the {self.lookups:g} lookups that the histogram was counted over"
            raise InputError(f"expected at most {most}, got {lookups:g}; thinning goes one way")

    def _beyond(self, rows: Any, lookups: Any) -> str:
        """What is wrong where so many lookups are of more different rows than there are."""
        mean = float(self._mean())
        if lookups / mean <= rows * (1 + _MEAN_SLACK):
            return ""
        if self.mean_reuse is None and lookups / reuse.mean_range(self._shares())[1] <= rows:
            tell = f"shares alone tell about {mean:.3g} lookups a row, too few for {rows:g} rows"
            return f"expected a histogram with its mean_reuse: {tell}"
        of = "counted" if self.lookups is not None else f"makes of {lookups:g} lookups"
        more = "" if self.lookups is not None else "; say over how many it was counted (lookups=)"
        expected = f"expected at most its {rows:g} rows in the histogram"
        return f"{expected}, which {of} {lookups / mean:.0f}{more}"

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
        if not isinstance(lookups, jax.core.Tracer) and np.isinf(lookups):
            return found
        drawn = 1.0 - distinct(count, p, lookups) / lookups
        counted = 1.0 - self.unique_rows(lookups, rows) / lookups
        return module.where(drawn > 0, counted * found / module.where(drawn > 0, drawn, 1.0), 0.0)

    def classes(self, lookups: Any, rows: Any) -> tuple[Any, Any]:
        """Rows by the rates that their counts tell (`reuse.rates`), unmet ones included."""
        endless = not isinstance(lookups, jax.core.Tracer) and np.isinf(lookups)
        if not endless:
            self._check(lookups, rows)
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

    def problem(self) -> str:
        mean, lookups = self.mean_reuse, self.lookups
        for name, value in (("mean_reuse", mean), ("lookups", lookups)):
            if value is not None and not _traced(value) and not is_number(value):
                return f"expected a number as {name} of a reuse histogram, got {value!r}"
        if _traced(self.shares):
            return ""
        expected = "expected a reuse histogram"
        try:
            shares = np.asarray(self.shares, np.float64)
        except (TypeError, ValueError):
            return f"{expected} of {reuse.BINS} shares, got {self.shares!r:.60}"
        if shares.shape != (reuse.BINS,):
            return f"{expected} of {reuse.BINS} shares, got {shares.size}"
        if not (shares >= 0).all():
            return f"{expected} of shares of zero or more, got {shares.min():g}"
        if abs(shares.sum() - 1) > _SUM_SLACK:
            return f"{expected} whose shares sum to one, got a sum of {shares.sum():g}"
        if mean is not None and not _traced(mean):
            if not 1 <= mean < np.inf:
                return f"expected a mean of one or more lookups per different row, got {mean}"
            low, high = reuse.mean_range(shares / shares.sum())
            if not low * (1 - _MEAN_SLACK) <= mean <= high * (1 + _MEAN_SLACK):
                expected = f"expected a mean of {low:.4g} to {high:.4g} lookups per different row"
                return f"{expected}, as the shares say, got {mean:g}"
        if lookups is not None and not _traced(lookups) and not 0 < lookups < np.inf:
            return f"expected a histogram counted over more than zero lookups, got {lookups}"
        return ""

    def misfit(self, rows: float) -> str:
        if self.lookups is None or _traced(self.shares, self.mean_reuse, self.lookups):
            return ""
        return self._beyond(rows, self.lookups)


@dataclasses.dataclass(frozen=True, eq=False)
class Indices(Access):
    """Access to an embedding table, recorded: the rows that were looked up, in any order.

    For batches with fewer lookups than were recorded, each is kept with equal chance.
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
        del rows
        each, how_many = self._times()
        fraction = self._fraction(lookups)
        return float((how_many * (1.0 - (1.0 - fraction) ** each)).sum())

    def histogram(self, lookups: Any, rows: Any) -> np.ndarray:
        del rows
        each, how_many = self._times()
        more = reuse.more_than(each, np.full(len(each), self._fraction(lookups)))
        inside = np.concatenate([more[:, :-1] - more[:, 1:], more[:, -1:]], 1)
        found = how_many @ inside
        return found / found.sum()

    def hits(self, lookups: Any, rows: Any, held_rows: Any) -> Any:
        """As `Access.hits`, of the recorded lookups in random order."""
        if np.isinf(lookups):
            return super().hits(lookups, rows, held_rows)
        return distance.recorded_hits(*self._times(), self._fraction(lookups), held_rows)

    def classes(self, lookups: Any, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows that were looked up once stand for all rows that are rarely met."""
        del lookups
        each, how_many = self._times()
        p = each / np.size(self.values)
        if each[0] == 1 and (rare := float(rows) - how_many[1:].sum()) > how_many[0]:
            p[0], how_many[0] = p[0] * how_many[0] / rare, rare
        return how_many, p

    def problem(self) -> str:
        try:
            values = np.asarray(self.values)
        except (TypeError, ValueError):
            return "expected rows as whole numbers of zero or more, got lists of different lengths"
        if values.size == 0:
            return "expected the rows that were looked up, got none"
        if values.dtype.kind not in "iu" or values.min() < 0:
            return "expected rows as whole numbers of zero or more"
        return ""

    def misfit(self, rows: float) -> str:
        last = int(np.asarray(self.values).max())
        if last < rows:
            return ""
        expected = f"expected recorded rows of 0 to {rows - 1:.0f}, got {last}"
        return f"{expected}; give the table's rows or mend the indices"


def is_real(value: Any) -> bool:
    """A number, or an array of them."""
    return not isinstance(value, str | bool) and np.asarray(value).dtype.kind in "iuf"


def is_number(value: Any) -> bool:
    """A single number."""
    return is_real(value) and not np.ndim(value)


def _traced(*values: Any) -> bool:
    """Whether JAX traces one of some values."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


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
    if not _traced(fraction) and not (is_number(fraction) and 0 < fraction <= 1):
        raise InputError(f"expected a share of a file above zero and at most one, got {fraction}")
    if problem := histogram.problem():
        raise InputError(problem)
    shares, mean = reuse.thinned(histogram._shares(), histogram._mean(), fraction)
    lookups = None if histogram.lookups is None else histogram.lookups * fraction
    return Histogram(shares, mean, lookups)
