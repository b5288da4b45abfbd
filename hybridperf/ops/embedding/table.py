"""An embedding table as a model has it: rows of numbers, of which every sample looks up some and
sums them; and what a table is whose rows are dealt out in pieces.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.io.errors import InputError
from hybridperf.ops.embedding.access import Access, Uniform, is_number, is_real, traced

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
            if traced(value):
                continue
            if not is_number(value):
                raise InputError(f"{here} a number of {field}, got {value!r}")
            if not 0 < float(value) < float("inf"):
                leave = "leave the table out if nothing looks into it"
                raise InputError(f"{here} {field} above zero, got {value}; {leave}")
            if float(value) > (most := _MOST_POOLING if field == "pooling" else _LARGEST):
                raise InputError(f"{here} {field} of at most {most:g}, got {value:g}; mend it")
            if field != "pooling" and float(value) != int(value):
                raise InputError(f"{here} a whole number of {field}, got {value}")
        object.__setattr__(self, "dtype", self._named(canonical_dtype, self.dtype))
        if not isinstance(self.access, Access):
            known = "Uniform(), Zipf(...), Histogram(...), Indices(...)"
            raise InputError(f"{here} an access distribution ({known})")
        self._named(self.access.check, None if traced(self.rows) else float(self.rows))

    @property
    def row_bytes(self) -> Any:
        """Bytes of a row of the table."""
        return self.dim * DTYPE_BYTES[self.dtype]

    @property
    def bytes(self) -> Any:
        """Bytes of the whole table, without an optimizer's state."""
        return self.rows * self.row_bytes

    def lookups(self, batch: Any) -> Any:
        """Lookups of a batch of so many samples; infinitely many: of an endless stream."""
        if not traced(batch) and not (is_real(batch) and np.all(np.asarray(batch) > 0)):
            expected = "expected a batch of more than zero samples"
            raise InputError(f"table {self.name}: {expected}, got {batch!r}")
        return batch * self.pooling

    def unique_rows(self, batch: Any) -> Any:
        """Expected different rows of a batch."""
        return self._named(self.access.unique_rows, self.lookups(batch), self.rows)

    def histogram(self, batch: Any) -> Any:
        """Shares [17] of a batch's different rows by how often they are looked up."""
        return self._named(self.access.histogram, self.lookups(batch), self.rows)

    def hits(self, batch: Any, cache_bytes: Any) -> Any:
        """Share of a batch's lookups found in a cache [...] of this table's own, empty at first."""
        held = cache_bytes
        if not traced(cache_bytes):
            held = np.asarray(cache_bytes)
            if not is_real(cache_bytes) or not np.all(held >= 0):
                expected = "expected a cache of zero or more bytes"
                raise InputError(f"table {self.name}: {expected}, got {cache_bytes!r}")
        held_rows = held / self.row_bytes
        return self._named(self.access.hits, self.lookups(batch), self.rows, held_rows)

    def classes(self, batch: Any) -> tuple[Any, Any]:
        """Rows of equal probability (`Access.classes`)."""
        return self._named(self.access.classes, self.lookups(batch), self.rows)

    def _named(self, ask: Callable[..., Any], *values: Any) -> Any:
        """The answer; an `InputError` names the table."""
        try:
            return ask(*values)
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
    for name, times in collections.Counter(table.name for table in tables).items():
        if times > 1:
            raise InputError(f"table {name} is given twice; tables are told apart by name")


def row_pieces(table: Table, count: int) -> list[Table]:
    """`count` tables with a table's rows between them, dealt out in the order of how often they are
    looked up: piece j of k (from 1) holds the rows of rank j, j + k, j + 2k, ...

    Each row keeps its lookups, so all pieces together meet as many different rows as the whole
    table, and the first piece, with the hottest row, has the most lookups.
    """
    if not 1 <= count <= table.rows:
        expected = f"expected 1 to {table.rows:g} pieces of it by row, got {count}"
        raise InputError(f"table {table.name} has {table.rows:g} rows, {expected}")
    if count == 1:
        return [table]
    whole = float(table.rows)
    rows = [whole // count + float(at < whole % count) for at in range(count)]
    return [
        dataclasses.replace(table, rows=n, pooling=table.pooling * share, access=access)
        for n, (share, access) in zip(rows, table._named(table.access.pieces, rows), strict=True)
    ]
