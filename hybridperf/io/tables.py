"""Tables of rows: CSV, CSV.GZ or Parquet in, the same out, with checks whose messages name the
file, the column and the row.

Row numbers in messages count data rows from 1, as a spreadsheet without its header line does.

What becomes more than the memory of a reader (`budget.py`) is refused before it does.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from hybridperf.io.budget import TooLarge, Unpacked, budget_bytes, check_budget, most_unpacked
from hybridperf.io.errors import InputError, closest, first_line
from hybridperf.io.files import is_stream, replacing
from hybridperf.io.later import pd
from hybridperf.io.sums import check_sum

FORMATS = ".csv, .csv.gz or .parquet"
_LEAST, _MOST = 1e-12, 1e12  # of what is measured; beyond them units or digits are wrong
_CELL_BYTES = 40  # that a cell of a text takes at most while it is read
_MOST_COLUMNS = 10_000
_ROWS = 2**16  # that are decoded at once
_TIMES_OFF = 100.0  # of what is expected: no machine is so far off, another unit is
_MILLI_OR_MICRO = 3e4  # times too long: between a thousand and a million
_AS_WRITTEN = {"id": str, "name": str}  # "007" and "52e1234567" are no numbers there


def read_table(path: str | os.PathLike) -> pd.DataFrame:
    """Rows of a CSV, CSV.GZ or Parquet file in order; `id` and `name` stay text."""
    path = Path(path)
    if not os.path.isfile(path):
        found = "a folder" if os.path.isdir(path) else "nothing"
        raise InputError(f"expected a table ({FORMATS}) at {path}, found {found}; check the path")
    if not path.name.endswith((".csv", ".csv.gz", ".parquet")):
        expected = f"expected a table ending in {FORMATS}, got {path.name}"
        raise InputError(f"{expected}; rename or convert it")
    check_sum(path)
    try:
        if path.name.endswith(".parquet"):
            frame = _parquet(path)
        else:
            with _opened(path) as handle:
                _check_header(path, handle)
            with _opened(path) as handle:
                _check_cells(handle)
            with _opened(path) as handle:
                frame = pd.read_csv(handle, low_memory=False, dtype=_AS_WRITTEN)
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty; expected a header line and at least one row") from error
    except InputError:
        raise
    except TooLarge as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # parsers raise a dozen types for damaged files; all mean the same
        what = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"cannot read {path} as a table ({what}); check the file") from error
    if frame.empty:
        raise InputError(f"{path} has a header but no rows; expected at least one row")
    return frame


def with_own_text(
    frame: pd.DataFrame, path: str | os.PathLike, read: Iterable[str]
) -> pd.DataFrame:
    """The table with NA, null, nan ... as written in text columns outside `read`, its owner's."""
    known = set(read)
    empty = [name for name in frame if name not in known and frame[name].isna().any()]
    own = [name for name in empty if _may_be_text(frame[name])]
    if not own or not Path(path).name.endswith((".csv", ".csv.gz")):
        return frame
    written = pd.read_csv(path, usecols=own, dtype=str, keep_default_na=False)
    if len(written) != len(frame):
        return frame
    kept = {name: frame[name].notna() | (written[name] == "") for name in own}
    text = {name: frame[name].astype(object).where(kept[name], written[name]) for name in own}
    return frame.assign(**text)


def _may_be_text(column: pd.Series) -> bool:
    return column.isna().all() or not pd.api.types.is_numeric_dtype(column)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a table, unpacked where they are packed."""
    with path.open("rb") as handle:
        if path.name.endswith(".gz"):
            most = most_unpacked(path.stat().st_size)
            yield Unpacked(gzip.GzipFile(fileobj=handle), most)  # type: ignore[misc]
        else:
            yield handle


def _parquet(path: Path) -> pd.DataFrame:
    """The rows of a Parquet file, a batch at a time, for what they become is only known then: one
    value that is repeated costs the file nothing.
    """
    import pyarrow as pa  # later than others: most tables are CSV
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        facts, schema = file.metadata, file.schema_arrow
        _check_columns(facts.num_columns)
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise InputError(
                    f"{path}: column {field.name!r} holds {field.type}; expected numbers or words"
                )
        groups = [facts.row_group(at) for at in range(facts.num_row_groups)]
        chunks = [one.column(at) for one in groups for at in range(one.num_columns)]
        largest = max((one.total_uncompressed_size for one in chunks), default=0)
        check_budget(sum(one.total_uncompressed_size for one in chunks))
        values = sum(one.num_values for one in chunks)  # of 8 bytes, here and in the frame
        check_budget(2 * 8 * values)
        # no value is larger than what holds it
        most = budget_bytes() // 32 // max(largest * max(facts.num_columns, 1), 1)
        batches, taken = [], 0
        for batch in file.iter_batches(min(max(most, 1), _ROWS)):
            taken += batch.nbytes
            check_budget(2 * taken)
            batches.append(batch)
        return pa.Table.from_batches(batches, schema).to_pandas()


def _check_columns(count: int) -> None:
    if count > _MOST_COLUMNS:
        raise InputError(
            f"expected a table of at most {_MOST_COLUMNS:,} columns, got {count:,}; is it turned?"
        )


def _check_cells(handle: IO[bytes]) -> None:
    """`TooLarge` for a CSV text whose cells would take too much."""
    size = cells = 0
    while piece := handle.read(2**20):
        size, cells = size + len(piece), cells + piece.count(b",") + piece.count(b"\n")
        check_budget(2 * size + cells * _CELL_BYTES)


def _check_header(path: Path, handle: IO[bytes]) -> None:
    """`InputError` for a column named twice, which pandas would rename, and for a first row too
    long, whose columns it would shift; later rows that are longer it refuses itself.
    """
    reader = csv.reader(io.TextIOWrapper(handle, encoding="utf-8-sig"))
    header = next((row for row in reader if row), [])
    first = next((row for row in reader if row), [])
    if header and len(first) > len(header):
        counts = f"{len(first)} cells, the header names {len(header)} columns"
        drop = "drop what is too much (a trailing comma?) or name its column"
        raise InputError(f"{path}: line {reader.line_num} has {counts}; {drop}")
    _check_columns(len(header))
    names = Counter(name for name in header if name)
    if twice := [name for name, count in names.items() if count > 1]:
        problem = f"column {twice[0]!r} is named more than once in the header"
        raise InputError(f"{path}: {problem}; rename or drop one")


def read_tables(paths: Sequence[str | os.PathLike]) -> pd.DataFrame:
    """Rows of several tables, one after the other; columns a table lacks are empty there."""
    return pd.concat([read_table(path) for path in paths], ignore_index=True)


def write_table(frame: pd.DataFrame, path: str | os.PathLike) -> None:
    """Write rows in the format that the name's ending asks for, atomically; CSV into a stream."""
    path = check_table_name(path)
    if path.name.endswith(".parquet"):
        with replacing(path, "wb") as handle:
            frame.to_parquet(handle, index=False)
    elif path.name.endswith(".csv.gz"):
        with replacing(path, "wb") as handle:
            frame.to_csv(handle, index=False, compression="gzip")
    else:
        with replacing(path) as handle:
            frame.to_csv(handle, index=False)


def check_table_name(path: str | os.PathLike) -> Path:
    """The path of a table to write; `InputError` where its ending is no format of ours."""
    path = Path(path)
    if not path.name.endswith((".csv", ".csv.gz", ".parquet")) and not is_stream(path):
        raise InputError(
            f"expected an output name ending in {FORMATS}, got {path.name or path}; rename it"
        )
    return path


def require_columns(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """`InputError` naming the first column that is missing, with the nearest name there is."""
    for column in columns:
        if column not in frame.columns:
            more = ", ..." if len(frame.columns) > 12 else ""
            have = ", ".join(map(str, frame.columns[:12])) + more
            missing = f"{what} needs a column {column!r}{closest(column, frame.columns)}"
            raise InputError(f"{missing}; the table has {have}")


def positive_column(frame: pd.DataFrame, column: str, what: str) -> np.ndarray:
    """A column as float64, every value above zero and of a size that is measured; `InputError`
    naming the first row where it is not.

    Rows are named by an integer index, so that some rows of a table keep their places in it.
    """
    values = real_numbers(frame[column])
    bad = ~((values >= _LEAST) & (values <= _MOST))
    if bad.any():
        row = int(np.argmax(bad))
        rule = "must be a number above zero"
        if _LEAST > values[row] > 0 or values[row] > _MOST:
            rule += f" ({_LEAST:g} to {_MOST:g})"
        got = f"row {_place(frame, row)} has {frame[column].iloc[row]}"
        raise InputError(
            f"{what}: column {column!r} {rule}, {got} ({int(bad.sum())} such rows); mend or drop"
            " them"
        )
    return values


def check_seconds(measured_s: np.ndarray, least_s: Any, most_s: Any, column: str) -> None:
    """`InputError` for measured times [N] of another unit: in the median over 100 times shorter
    than the least, or longer than the most, that such work takes by what is known without them.
    """
    with np.errstate(divide="ignore"):
        short, long = (float(np.median(measured_s / one)) for one in (least_s, most_s))
    if short >= 1 / _TIMES_OFF and long <= _TIMES_OFF:
        return
    unit = "microseconds" if long > _MILLI_OR_MICRO else "milliseconds"
    times = f"{long:,.3g} times longer" if long > _TIMES_OFF else f"{1 / short:,.3g} times shorter"
    mend = f"did you mean {unit}?" if long > _TIMES_OFF else "mend it"
    raise InputError(
        f"expected seconds in {column}, got times that are {times}, in the median, than such work"
        f" takes; {mend}"
    )


class Numbers(NamedTuple):
    """What a column may hold: numbers from `least` to `most`; where it is not `needed`, it may lack
    cells or be missing.
    """

    least: float = 0.0
    most: float = 1e15
    whole: bool = False
    needed: bool = True

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.most < Numbers().most:
            return f"{kind} from {self.least:,g} to {self.most:,g}"
        if self.least < 0:
            return kind
        above = 0 < self.least < 1
        return f"{kind} above 0" if above else f"{kind} of {self.least:g} or more"


ABOVE_ZERO, ANY_NUMBER = Numbers(_LEAST), Numbers(-1e15)


def number_columns(
    frame: pd.DataFrame, columns: Mapping[str, Numbers], what: str, text: Sequence[str] = ()
) -> pd.DataFrame:
    """Columns of a table that someone brought, as float64 [N]; not a number where a cell is empty.

    Args:
        frame: the table.
        columns: what each column may hold; other columns are left out.
        what: a row of the table is: "job".
        text: columns that it needs, too.

    Raises:
        InputError: a column is missing, there is no row, or a cell is something else.
    """
    needed = [*text, *(name for name, one in columns.items() if one.needed)]
    if missing := [name for name in needed if name not in frame]:
        raise InputError(
            f"expected columns {', '.join(needed)} in a table of {what}s, got none called"
            f" {', '.join(missing)}; add them"
        )
    if frame.empty:
        raise InputError(f"expected a {what} or more in a table of {what}s, got none; add rows")
    found = {}
    for name in [one for one in columns if one in frame]:
        limits, values = columns[name], real_numbers(frame[name])
        wrong = ~((values >= limits.least) & (values <= limits.most))
        if limits.whole:
            wrong |= values % 1 != 0
        if not limits.needed:
            wrong &= frame[name].notna().to_numpy()
        if wrong.any():
            row = int(np.argmax(wrong))
            unsaid = values[row] > limits.most >= Numbers().most
            most = f", at most {limits.most:,g}," if unsaid else ""
            got = repr(str(frame[name].iloc[row]))
            raise InputError(
                f"expected {limits}{most} in {name} of {what} {row + 1}, got {got}; mend the table"
            )
        found[name] = values
    return pd.DataFrame(found, index=frame.index)


def real_numbers(column: pd.Series) -> np.ndarray:
    """A column as float64, not a number where a cell is none, or a complex one."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":
        return column.to_numpy(np.float64, copy=True)
    if pd.api.types.is_complex_dtype(column):
        return np.full(len(column), np.nan)
    if column.dtype == object:
        column = column.where(~column.map(lambda cell: isinstance(cell, complex)))
    return pd.to_numeric(column, errors="coerce").to_numpy(np.float64)


def _place(frame: pd.DataFrame, row: int) -> int:
    return int(frame.index[row] if pd.api.types.is_integer_dtype(frame.index) else row) + 1
