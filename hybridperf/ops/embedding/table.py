"""An embedding table as a model has it: rows of numbers, of which every sample looks up some and
sums them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.io.errors import InputError
from hybridperf.ops.embedding.access import Access, Uniform, is_number, is_real

_LARGEST, _MOST_POOLING = 1e30, 1e15  # sums of them are numbers; memory allows far less


@dataclasses.dataclass(frozen=True)
class Table:
    """An embedding table and how samples look it up.

    JAX may trace the sizes, except `rows` with `Zipf` access.

    Args:
        name: tells the table from others.
        rows: rows of the whole table.
        dim: numbers per row.
        pooling: rows that a sample looks up on average and sums; a fraction where samples differ.
        dtype: number format of the rows.
        access: which rows are looked up: `Uniform()`, `Zipf(exponent, shift)`, `Histogram(shares,
            mean_reuse, lookups)` or `Indices(values)`.

    Raises:
        InputError: when a size or the access is not valid; the message names the table.

    Example:
        Table("clicks", rows=1e7, dim=64, pooling=20, access=Zipf(0.9, 5.0)).unique_rows(batch=4096)
    """

    name: str
    rows: Any
    dim: Any
    pooling: Any
    dtype: str = "fp32"
    access: Access = dataclasses.field(default_factory=Uniform)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"expected a text as name of an embedding table, got {self.name!r}")
        here = f"table {self.name}: expected"
        for field in ("rows", "dim", "pooling"):
            value = getattr(self, field)
            if isinstance(value, jax.core.Tracer):
                continue
            if not is_number(value):
                raise InputError(f"{here} a number of {field}, got {value!r}")
            if not 0 < float(value) < float("inf"):
                leave = "leave the table out if nothing looks into it"
                raise InputError(f"{here} {field} above zero, got {value}; {leave}")
            if float(value) > (most := _MOST_POOLING if field == "pooling" else _LARGEST):
                raise InputError(f"{here} {field} of at most {most:g}, got {value:g}; mend it")
            whole = np.asarray(value).dtype.kind != "f" or float(value) == int(value)
            if field != "pooling" and not whole:
                raise InputError(f"{here} a whole number of {field}, got {value}")
        object.__setattr__(self, "dtype", self._named(lambda: canonical_dtype(self.dtype)))
        if not isinstance(self.access, Access):
            known = "Uniform(), Zipf(...), Histogram(...), Indices(...)"
            raise InputError(f"{here} an access distribution ({known})")
        problem = self.access.problem()
        if not problem and not isinstance(self.rows, jax.core.Tracer):
            problem = self.access.misfit(float(self.rows))
        if problem:
            raise InputError(f"table {self.name}: {problem}")

    @property
    def row_bytes(self) -> Any:
        """Bytes of a row."""
        return self.dim * DTYPE_BYTES[self.dtype]

    @property
    def bytes(self) -> Any:
        """Bytes of the whole table, without an optimizer's state."""
        return self.rows * self.row_bytes

    def lookups(self, batch: Any) -> Any:
        """Lookups of a batch of so many samples; infinitely many: of an endless stream."""
        traced = isinstance(batch, jax.core.Tracer)
        if not traced and not (is_real(batch) and np.all(np.asarray(batch) > 0)):
            expected = "expected a batch of more than zero samples"
            raise InputError(f"table {self.name}: {expected}, got {batch!r}")
        return batch * self.pooling

    def unique_rows(self, batch: Any) -> Any:
        """Expected different rows of a batch."""
        lookups = self.lookups(batch)
        return self._named(lambda: self.access.unique_rows(lookups, self.rows))

    def histogram(self, batch: Any) -> Any:
        """Shares [17] of a batch's different rows by how often they are looked up."""
        lookups = self.lookups(batch)
        return self._named(lambda: self.access.histogram(lookups, self.rows))

    def hits(self, batch: Any, cache_bytes: Any) -> Any:
        """Share of a batch's lookups found in a cache [...] of this table's own, empty at first."""
        held = cache_bytes
        if not isinstance(cache_bytes, jax.core.Tracer):
            held = np.asarray(cache_bytes)
            if not is_real(cache_bytes) or not np.all(held >= 0):
                expected = "expected a cache of zero or more bytes"
                raise InputError(f"table {self.name}: {expected}, got {cache_bytes!r}")
        lookups = self.lookups(batch)
        return self._named(lambda: self.access.hits(lookups, self.rows, held / self.row_bytes))

    def classes(self, batch: Any) -> tuple[Any, Any]:
        """Rows of equal probability (`Access.classes`)."""
        lookups = self.lookups(batch)
        return self._named(lambda: self.access.classes(lookups, self.rows))

    def _named(self, answer: Callable[[], Any]) -> Any:
        """The answer; an `InputError` names the table."""
        try:
            return answer()
        except InputError as error:
            raise InputError(f"table {self.name}: {error}") from error


STATE_BYTES: dict[str, Callable[[Table], float]] = {  # in fp32, of an optimizer
    "sgd": lambda table: 0.0,
    "adagrad": lambda table: 4.0 * table.rows * table.dim,
    "rowwise_adagrad": lambda table: 4.0 * table.rows,
}


def table_bytes(table: Table, optimizer: str) -> float:
    """Memory that a table takes, with the optimizer's state."""
    return float(table.bytes + STATE_BYTES[optimizer](table))


def check_names(tables: Sequence[Table]) -> None:
    """`InputError` where there is no table, or two of one name."""
    if not isinstance(tables, Sequence):
        raise InputError(f"expected a list of embedding tables, got {type(tables).__name__}")
    if not tables:
        raise InputError("expected at least one embedding table, got none")
    for table in tables:
        if not isinstance(table, Table):
            raise InputError(f"expected embedding tables as Table(...), got {table!r}")
    seen: set[str] = set()
    for table in tables:
        if table.name in seen:
            raise InputError(f"table {table.name} is given twice; tables are told apart by name")
        seen.add(table.name)
