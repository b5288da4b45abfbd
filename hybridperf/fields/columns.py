"""A table's columns read as the fields of a question: aliases under the field's name, two columns
that say different things of one field refused by row, names that resemble a field refused at once.

A quantity or a switch of another kind of work is refused, too: a row that has `num_kv_heads` means
it. Of tables that people bring (`strictly`) so is any other name, but for those that are plainly
foreign (`foreign.toml`), that begin with `given_`, or that `keeping` names. What passes is told by
`columns_not_read`. Axes: R rows of a table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import io
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from numbers import Number
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.fields.registry import YES, Field, Fields, fields_of, folded, words_elsewhere
from hybridperf.io import InputError, Numbers, closest, number_columns
from hybridperf.io.later import pd

if TYPE_CHECKING:
    import pandas


# names of columns that say nothing to a question: whoever reads a table tells them here, and
# whoever answers says them with the answer
_PASSED: ContextVar[dict[str, None] | None] = ContextVar("passed", default=None)
_STRICT: ContextVar[bool] = ContextVar("strict", default=False)
_KEPT: ContextVar[frozenset[str]] = ContextVar("kept", default=frozenset())  # folded


@dataclasses.dataclass(frozen=True)
class ReadColumns:
    """A table whose fields have their own names, and the rows that contradict themselves."""

    frame: pandas.DataFrame  # [R]
    refused: Mapping[int, str]  # by a row's place: which columns disagree on what


def said_by(columns: Iterable[object], question: str | Fields) -> dict[str, list[tuple[str, str]]]:
    """(column, which of the field's names it is) of each field that columns say, by its name.

    Raises:
        InputError: for a column that matters and is not read, or resembles a field; `strictly`, for
            any that is not plainly foreign.
    """
    fields, names = _known(question), [str(name) for name in columns]
    kept = _KEPT.get()
    found: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        if call := fields.called(name):
            found.setdefault(call[0].name, []).append((name, call[1]))
    labels = list[str]()  # of fields that another column says
    for field, pairs in found.items():
        said = [pair for pair in pairs if pair[1] not in fields[field].labels]
        found[field] = said or pairs[:1]
        labels += [name for name, called in pairs if (name, called) not in found[field]]
        if twice := [name for name, _ in pairs if names.count(name) > 1]:
            problem = f"expected each column once, got two of {twice[0]!r}"
            raise InputError(f"{problem}; rename one of them")
    for name in names:
        if (why := fields.unread.get(folded(name))) and folded(name) not in kept:
            raise InputError(f"column {name!r} is not read: {why}")
    elsewhere = words_elsewhere(fields.question)
    passed = [name for name in names if not fields.called(name)]
    unkept = [name for name in passed if folded(name) not in kept]
    for name in unkept:
        if folded(name) not in fields.foreign and (other := elsewhere.get(folded(name))):
            raise InputError(
                f"expected columns of {fields.question}, got {name!r}, which says {other[1]} of"
                f" {other[0]} and is not read here; drop it, or call it given_{name}{_keep(name)}"
            )
    wrong = [
        f"{name!r} (did you mean {' or '.join(map(repr, near))}?)"
        for name in unkept
        if (near := fields.resembled(name, found))
    ]
    if wrong:
        raise InputError(
            "expected columns that are read, or others whose names resemble none, got"
            f" {', '.join(wrong)}; rename or drop {'it' if len(wrong) == 1 else 'them'}"
        )
    # of a table without any field its readers say what it lacks
    strict = _STRICT.get() and found
    if strict and (strange := [one for one in unkept if not fields.is_foreign(one)]):
        which = ", ".join(f"{one!r}{fields.nearest(one)}" for one in strange[:_MOST_NAMED])
        more = f" and {len(strange) - _MOST_NAMED} more" if len(strange) > _MOST_NAMED else ""
        raise InputError(
            f"expected columns of {fields.question}, got {which}{more}, not read here; drop"
            f" {'it, or call it' if len(strange) == 1 else 'them, or call them'}"
            f" given_{strange[0]}{_keep(*strange)}"
        )
    pass_by([*passed, *labels])
    return found


def _keep(*names: str) -> str:
    return f" (of a command: --keep {','.join(names[:_MOST_NAMED])})"


_PLAIN = {str, float, bool, type(None)}
_MOST_NAMED = 8  # columns that a sentence names


def _with_plain_cells(frame: pandas.DataFrame) -> pandas.DataFrame:
    """A table whose cells are numbers and words; `InputError` where they hold something else, or
    columns have names of several levels.
    """
    if frame.columns.nlevels > 1:
        raise InputError(
            "expected columns of one name each, got names of several levels; join them"
        )
    changed = {}
    for at, (name, kind) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        if kind.kind != "O":
            continue
        cells = frame.iloc[:, at].tolist()
        if not {*map(type, cells)} <= _PLAIN:
            plain = [_plain_cell(name, cell) for cell in cells]
            changed[at] = pd.Series(plain, frame.index, dtype=object)
    if not changed:
        return frame
    columns = [changed.get(at, frame.iloc[:, at]) for at in range(frame.shape[1])]
    return pd.concat(columns, axis=1, keys=frame.columns)


def _plain_cell(name: object, cell: Any) -> Any:
    """A cell as a number, a word or nothing; numbers that no float holds are infinite."""
    if cell is None or cell is pd.NA or cell is pd.NaT:
        return None
    if isinstance(cell, np.generic):
        return _plain_cell(name, cell.item())
    if isinstance(cell, bool | float | complex):
        return cell
    if isinstance(cell, Number | decimal.Decimal):
        try:
            number = float(cell)  # type: ignore[arg-type]
        except OverflowError:
            return np.inf if cell > 0 else -np.inf  # type: ignore[operator]
        except (TypeError, ValueError):
            return np.nan
        return cell if isinstance(cell, int) and abs(cell) < 2**63 else number
    if isinstance(cell, str | datetime.date | datetime.timedelta):
        return str(cell)
    raise InputError(
        f"column {name!r} holds a {type(cell).__name__}; expected a number or a word in a cell"
    )


def _known(question: str | Fields) -> Fields:
    return question if isinstance(question, Fields) else fields_of(question)


def read_columns(frame: pandas.DataFrame, question: str | Fields) -> ReadColumns:
    """A table's columns under the names of the fields that they say; others stay.

    Raises:
        InputError: for a column that matters and is not read, or resembles a field.
    """
    frame = _with_plain_cells(frame)
    fields = _known(question)
    refused: dict[int, str] = {}
    new, dropped = {}, list[str]()
    said = said_by(frame.columns, fields)
    # labels count where the column of their field says nothing
    empty = [
        name
        for name in said
        if name in frame and fields[name].labels and len(frame) and frame[name].isna().all()
    ]
    if empty:
        said = said_by(frame.columns.drop(empty), fields)
    for name, pairs in said.items():
        if [column for column, _ in pairs] == [name]:
            continue
        field = fields[name]
        told = [(column, _meant(field, frame[column], spelling)) for column, spelling in pairs]
        new[name] = _joined(field, told, refused)
        dropped += [column for column, _ in pairs if column != name]
    if not new:
        return ReadColumns(frame, {})
    return ReadColumns(frame.drop(columns=dropped).assign(**new), refused)


def _meant(field: Field, column: pandas.Series, spelling: str) -> pandas.Series:
    """A column's cells as the field's own values, where its name has words or a unit of its own."""
    if factor := field.scaled.get(spelling):
        numbers = pd.to_numeric(column, errors="coerce") * factor
        unread = numbers.isna() & column.notna()
        return numbers.astype(object).where(~unread, column) if unread.any() else numbers
    if spelling not in field.spelt:
        return column
    codes, values = pd.factorize(column)
    cells: list[str | None] = []
    for text in map(str, values.tolist()):
        meant = field.meant(text, spelling)
        # what is not legal stays as it is, for its row to be refused
        cells.append(text if meant is None else meant or None)
    told = [cells[code] if code >= 0 else None for code in codes.tolist()]
    return pd.Series(told, column.index, dtype=object)


def _open(field: Field, column: pandas.Series) -> pandas.Series:
    """Whether each cell is a word that says nothing."""
    return column.isin([one for one in column.dropna().unique() if field.meant(str(one)) == ""])


def _joined(
    field: Field, told: Sequence[tuple[str, pandas.Series]], refused: dict[int, str]
) -> pandas.Series:
    """One column of several that say the same field; rows in which they differ are refused."""
    if len(told) > 1:
        told = [(name, column.mask(_open(field, column))) for name, column in told]
    first, found = told[0]
    for other, column in told[1:]:
        ours, theirs = found.to_numpy(object), column.to_numpy(object)
        unlike = found.notna().to_numpy() & column.notna().to_numpy() & (ours != theirs)
        for at in np.flatnonzero(unlike).tolist():
            one, two = ours[at], theirs[at]
            if not field.agree(str(one), str(two)):
                refused[at] = (
                    f"expected columns {first} and {other} to say the same {field.name}, got {one}"
                    f" and {two}; keep one of them"
                )
        found = found.astype(object).where(found.notna(), column.astype(object))
    return found


def said_in_texts(record: Mapping[str, object], fields: Fields) -> dict[str, str]:
    """Fields that texts of a row say as NAME=VALUE, parted by semicolons (`Field.in_text`); of two
    that say one, the first.
    """
    said: dict[str, str] = {}
    for text in record.values():
        for part in text.split(";") if isinstance(text, str) and "=" in text else ():
            name, _, value = part.partition("=")
            said.setdefault(name.strip(), value.strip())
    return {one.name: said[one.in_text] for one in fields if said.get(one.in_text)}


def as_given(
    frame: pandas.DataFrame, columns: Sequence[str], ours: Collection[str] = ()
) -> pandas.DataFrame:
    """A table before predictions were added: without them, its own columns under their names.

    Args:
        frame: the table.
        columns: that predictions add.
        ours: those of them that tell a table which has predictions; none: all.
    """
    if not {*frame} >= {*(ours or columns)}:
        return frame
    before = frame.drop(columns=[name for name in (*columns, "assumed") if name in frame])
    given = {f"given_{name}": name for name in columns if f"given_{name}" in frame}
    return before.rename(columns=given)


def kept_as(frame: pandas.DataFrame, columns: Iterable[str]) -> dict[str, str]:
    """New names for a table's own columns that are called as predictions are; numbered if taken."""
    found: dict[str, str] = {}
    for name in columns:
        if name in frame:
            numbered = (f"given_{name}_{number}" for number in itertools.count(2))
            names = itertools.chain([f"given_{name}"], numbered)
            found[name] = next(one for one in names if one not in frame)
    return found


def with_answers(frame: pandas.DataFrame, answers: Mapping[str, Any]) -> pandas.DataFrame:
    """A table with columns of predictions behind its own, which are `kept_as` others if need be."""
    return frame.rename(columns=kept_as(frame, answers)).assign(**answers)


def values_in(record: Mapping[str, object], fields: Fields) -> dict[str, Any]:
    """What a row says, by field: whole numbers, numbers, true and false of flags, words, texts.

    Args:
        record: cells by the names of fields (`read_columns`); others and empty ones count nothing.
        fields: of the question.

    Raises:
        InputError: for a cell that is no value of its field.
    """
    found: dict[str, Any] = {}
    for name, cell in record.items():
        if name in fields and cell is not None and cell is not pd.NA and cell == cell:  # no NaN
            value = _value(fields[name], str(cell).strip())
            found |= {} if value == "" else {name: value}
    return found


def _value(field: Field, text: str) -> Any:
    if not text or field.kind == "text":
        return text
    if field.kind in ("whole", "number"):
        return field.count(text) if field.kind == "whole" else field.number(text)
    word = field.word(text)
    return word == YES if word and field.kind == "flag" else word


def answered(
    frame: pandas.DataFrame, question: str,
    answer: Callable[[Mapping[str, Any]], Mapping[str, Any]], columns: Sequence[str],
    words: Collection[str],
) -> pandas.DataFrame:  # fmt: skip
    """A table whose rows are answered one by one; equal rows once.

    Args:
        frame: R rows.
        question: whose fields they have.
        answer: of what a row says (`values_in`), some of `columns`; an `InputError` is its `note`.
        columns: that are added, numbers but for those of `words`.
        words: text, empty where there is none.
    """
    frame = as_given(frame, columns)
    read, fields = read_columns(frame, question), fields_of(question)
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    rows = list[Mapping[str, Any]]()
    for at, record in enumerate(read.frame.to_dict("records")):
        try:
            if at in read.refused:
                raise InputError(read.refused[at])
            said = values_in({str(name): cell for name, cell in record.items()}, fields)
            key = tuple(said.items())
            if key not in found:
                found[key] = answer(said)
            rows.append(found[key])
        except InputError as error:
            rows.append({"note": str(error)})
    out = pd.DataFrame(rows, columns=[*columns])
    for name in columns:
        text = out[name].astype(object).where(out[name].notna(), "")
        out[name] = text if name in words else out[name].astype(float)
    return with_answers(frame, {name: out[name].to_numpy() for name in columns})


def read_whole(frame: pandas.DataFrame, question: str | Fields) -> pandas.DataFrame:
    """A table under the names of its fields, as `read_columns`; `InputError` too for the first row
    whose columns contradict each other.
    """
    fields = _known(question)
    read = read_columns(frame, fields)
    for at, why in read.refused.items():
        raise InputError(f"{fields.row} {at + 1}: {why}")
    return read.frame


def read_small_table(
    frame: pandas.DataFrame, question: str, most: Mapping[str, float] = MappingProxyType({})
) -> pandas.DataFrame:
    """A table that someone brought, its fields under their own names and its numbers checked.

    Args:
        frame: N rows.
        question: whose fields it has, of `tables.toml`.
        most: of numbers, where the question decides it.

    Returns:
        The table with the fields' columns in place of those that say them; numbers are float64, not
        a number where a row need not say one.

    Raises:
        InputError: a column resembles a field or is missing, columns contradict each other, a
            number is none or out of its range.
    """
    fields = fields_of(question)
    with strictly():
        found = read_whole(frame, fields)
    limits, texts = {}, []
    for field in fields:
        if field.kind in ("whole", "number"):
            highest = most.get(field.name, Numbers().most if field.most is None else field.most)
            whole = field.kind == "whole"
            limits[field.name] = Numbers(field.minimum, highest, whole, field.needed)
        elif field.needed:
            texts.append(field.name)
    return found.assign(**number_columns(found, limits, fields.row, texts))


def row_of(words: Sequence[str], question: str) -> pandas.DataFrame:
    """A table of one row from NAME=VALUE; numbers as a CSV file would have them.

    Raises:
        InputError: for a word that is not NAME=VALUE, and a name that is no field's.
    """
    fields = fields_of(question)
    for word in words:
        name = word.partition("=")[0]
        if "=" not in word or not name:
            raise InputError(f"expected NAME=VALUE such as tp=2, got {word!r}; mend it")
        if not fields.called(name) and folded(name) not in fields.unread:
            near = fields.resembled(name)
            meant = f" (did you mean {near[0]!r}?)" if near else closest(name, fields.by_name)
            raise InputError(
                f"unknown column {name!r}{meant}: `hybridperf {question} --help` lists them"
            )
    named = dict(word.partition("=")[::2] for word in words)
    if len(named) < len(words):
        raise InputError("expected each column once, got one twice; keep one of them")
    written = io.StringIO()
    pd.DataFrame([named]).to_csv(written, index=False)
    return pd.read_csv(io.StringIO(written.getvalue()), dtype={"id": str, "name": str})


def reads(question: str, columns: Iterable[object]) -> list[str]:
    """Those of some columns that say a field."""
    fields: Fields = fields_of(question)
    return [str(name) for name in columns if fields.called(str(name))]


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Refuse meanwhile each column that is neither read, plainly foreign nor kept."""
    token = _STRICT.set(True)
    try:
        yield
    finally:
        _STRICT.reset(token)


@contextlib.contextmanager
def keeping(names: Iterable[str]) -> Iterator[None]:
    """Pass columns of these names meanwhile, whatever they resemble, where no field has them."""
    token = _KEPT.set(frozenset(map(folded, names)))
    try:
        yield
    finally:
        _KEPT.reset(token)


@contextlib.contextmanager
def columns_not_read() -> Iterator[dict[str, None]]:
    """Names of columns of tables read meanwhile that say nothing to their question, in order."""
    passed = dict[str, None]()
    token = _PASSED.set(passed)
    try:
        yield passed
    finally:
        _PASSED.reset(token)
        if (outer := _PASSED.get()) is not None:
            outer.update(passed)


def remark_not_read(names: Collection[str]) -> tuple[str, ...]:
    """A sentence on columns that say nothing, none where there are none."""
    return (f"not read: {', '.join(names)}",) if names else ()


def all_ours() -> None:
    """Tables that were read so far are our own: nobody is told which columns were not read."""
    if (heard := _PASSED.get()) is not None:
        heard.clear()


def pass_by(names: Iterable[str]) -> None:
    """Tell that columns of a table are not read."""
    if (heard := _PASSED.get()) is not None:
        heard.update(dict.fromkeys(names))
