"""What a question's words mean: fields by name, the names that others give them, and legal values.

A table of a file here is a field:

    meaning    one clause for help and docs
    kind       whole (a number of 1 or more), number (of zero or more), flag (yes, no), word, text
    unit       of a number
    example    a value, for docs and tests
    part       what of its question it says; "row": of the row alone, so it enters no price
    aliases    names that others give it
    labels     names that count only where no other column says the field
    words      legal values, each with other spellings of it; "" is what says nothing
    open       words that are not listed pass as they are
    spelt      by alias, what that alias' own values mean (use_distributed_optimizer: yes is zero1)
    scaled     by alias, the factor from its unit to the field's
    prefixes   of the same field of several things: prefill_tp_size, decode_tp_size; "" is itself
    prose      free text, which no other column is taken to misspell

and `[columns]` has `foreign`, names that are nobody's misspelling, `unread`, names that matter and
are not read, each with what to write in its place, and `of`, fields that other questions define.

Light to import: the command line shows this before it loads anything.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Literal

Kind = Literal["whole", "number", "flag", "word", "text"]
YES, NO = "yes", "no"
_FLAG = {
    YES: ("1", "true", "on", "enabled"), NO: ("0", "false", "off", "none", "disabled"),
    "": ("unknown", "recipe", "submission"),
}  # fmt: skip
_ALIKE, _LONG = 0.85, 7  # of difflib's ratio, of names of so many letters: "microbtach_sise"
_BEFORE = ("n", "num", "nr", "no_of", "number_of", "total", "my", "the")
_BEHIND = ("size", "degree", "count", "num", "number", "ranks", "type", "mode", "value", "dim")
_MOST_OFFERED = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """One field of a question; the file's docstring says what each attribute is."""

    name: str
    meaning: str
    kind: Kind = "text"
    unit: str = ""
    example: str = ""
    part: str = ""
    aliases: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    words: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    open: bool = False
    spelt: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    scaled: Mapping[str, float] = dataclasses.field(default_factory=dict)
    prose: bool = False

    @property
    def priced(self) -> bool:
        """Whether it enters a price."""
        return self.part != "row"

    @property
    def names(self) -> tuple[str, ...]:
        """All names of it, its own first."""
        return (self.name, *self.aliases, *self.spelt, *self.scaled, *self.labels)

    @property
    def legal(self) -> str:
        """Its values in words."""
        if self.kind == "flag":
            return f"{YES}, {NO}"
        return ", ".join(filter(None, self.words))

    def meant(self, text: str, name: str = "") -> str | None:
        """The value that a text means, "" where it says nothing; None where it is not legal.

        Args:
            text: what a cell says.
            name: of its column, where that is an alias with words or a unit of its own.
        """
        return _meant(self, text, name)

    @functools.cached_property
    def spellings(self) -> Mapping[str, str]:
        """The value of each listed word, folded."""
        if self.kind == "flag":
            return _flag_words()
        return {folded(one): word for word, others in self.words.items() for one in (word, *others)}

    def _same(self, text: str) -> str:
        """What two texts that mean the same have in common."""
        value = self.meant(text)
        if value is None or self.kind in ("word", "flag"):
            return value or ("" if value == "" else text)
        try:
            return f"{float(value):.9g}"
        except ValueError:
            return plain(value)

    def agree(self, text: str, other: str) -> bool:
        """Whether two texts mean the same value."""
        return self._same(text) == self._same(other)


@functools.lru_cache(65536)
def _meant(field: Field, text: str, name: str) -> str | None:
    text = text.strip()
    if name in field.scaled:
        try:
            return repr(float(text) * field.scaled[name])
        except ValueError:
            return text
    spelling = folded(re.sub(r"(\d)\.0+$", r"\1", text))
    own = field.spelt.get(name, {})
    for key in (spelling, _flag_words().get(spelling, "")):
        if key and key in own:
            return own[key]
    if field.kind == "flag" or field.words:
        if spelling in field.spellings:
            return field.spellings[spelling]
        return text if field.open or not text else None
    return text


@functools.cache
def _flag_words() -> Mapping[str, str]:
    return {folded(one): word for word, others in _FLAG.items() for one in (word, *others)}


@dataclasses.dataclass(frozen=True, eq=False)
class Fields:
    """The fields of a question."""

    question: str
    by_name: Mapping[str, Field]
    foreign: frozenset[str]  # folded
    unread: Mapping[str, str]  # by folded name: what to write in its place

    def __iter__(self) -> Iterator[Field]:
        return iter(self.by_name.values())

    def __getitem__(self, name: str) -> Field:
        return self.by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def of(self, *parts: str) -> tuple[str, ...]:
        """Names of the fields that say some part of the question."""
        return tuple(one.name for one in self if one.part in parts)

    @functools.cached_property
    def _called(self) -> Mapping[str, tuple[Field, str]]:
        return {folded(name): (field, name) for field in self for name in field.names}

    def called(self, column: str) -> tuple[Field, str] | None:
        """(the field that a column says, which of its names the column has); None: none does."""
        if column in self.by_name:
            return self.by_name[column], column
        return self._called.get(folded(column))

    def resembled(self, column: str, said: Collection[str] = ()) -> list[str]:
        """Names of the fields that a column which says none of them may be meant for.

        Args:
            column: its name.
            said: fields that other columns say, which it is not taken for.
        """
        text = folded(column)
        if len(text) < 2 or text in self.foreign:
            return []
        open_ = {
            name: field.name
            for name, (field, _) in self._called.items()
            if field.priced and not field.prose and field.name not in said
        }
        near = [open_[name] for name in open_ if one_slip(text, name)]
        near = near or [open_[stem] for stem in _stems(column) if stem in open_]
        if not near and len(text) >= _LONG:
            near = [open_[one] for one in difflib.get_close_matches(text, open_, 1, _ALIKE)]
        own = [name for name in near if one_slip(text, folded(name))]
        return list(dict.fromkeys(own or near))[:_MOST_OFFERED]


@functools.cache
def fields_of(question: str) -> Fields:
    """The registry of a question: "steps", "serve", "plans", "runs"."""
    text = resources.files(__package__).joinpath(f"{question}.toml").read_text()
    tables: dict[str, Any] = tomllib.loads(text)
    columns = tables.pop("columns", {})
    others = columns.get("of", {}).items()
    found = [fields_of(other)[name] for other, names in others for name in names]
    found += [one for name, table in tables.items() for one in _fields(name, table)]
    return Fields(
        question, {one.name: one for one in found},
        frozenset(map(folded, columns.get("foreign", ()))),
        {folded(name): why for name, why in columns.get("unread", {}).items()},
    )  # fmt: skip


def _fields(name: str, table: Mapping[str, Any]) -> Iterable[Field]:
    """The fields of a table: itself, and the same of each of some things."""
    own = {key: value for key, value in table.items() if key != "prefixes"}
    own["words"] = {word: tuple(others) for word, others in own.get("words", {}).items()}
    spelt = own.get("spelt", {}).items()
    own["spelt"] = {
        alias: {folded(text): value for text, value in words.items()} for alias, words in spelt
    }
    for prefix in table.get("prefixes", ("",)):
        called = {
            kind: tuple(f"{prefix}{one}" for one in own.get(kind, ()))
            for kind in ("aliases", "labels")
        }
        whose = f", of workers that {prefix.rstrip('_')}" if prefix else ""
        yield Field(f"{prefix}{name}", **{**own, **called, "meaning": own["meaning"] + whose})


@functools.lru_cache(65536)
def plain(text: str) -> str:
    """In lower case, other characters as one underscore: what words are compared by."""
    return re.sub(r"[^a-z0-9]+", "_", str(text).lower()).strip("_")


@functools.lru_cache(65536)
def folded(text: str) -> str:
    """A name without case and separators: MicroBatch, micro-batch and micro_batch are one."""
    return plain(text).replace("_", "")


def one_slip(one: str, other: str) -> bool:
    """Whether words differ by a letter at most, changed, missing or added, or by two neighbours
    that are swapped (optimal string alignment of 1).
    """
    if abs(len(one) - len(other)) > 1:
        return False
    pairs = zip(one, other, strict=False)
    start = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    a, b = one[start:], other[start:]
    swapped = a[:2] == b[1::-1] and a[2:] == b[2:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or swapped


def _stems(column: str) -> Iterator[str]:
    """A name without a usual word before or behind it, folded."""
    text = plain(column)
    cut = [text[len(one) + 1 :] for one in _BEFORE if text.startswith(f"{one}_")]
    whole = [text, *cut]
    ends = [one[: -len(end) - 1] for one in whole for end in _BEHIND if one.endswith(f"_{end}")]
    return map(folded, (*cut, *ends))


def columns_help(question: str, indent: int = 2, width: int = 94) -> str:
    """The columns of a question and their meanings as lines of help."""
    import textwrap

    lines = []
    for field in fields_of(question):
        start = " " * indent + field.name.ljust(20) + " "
        lines += textwrap.wrap(
            described(field), width, initial_indent=start, subsequent_indent=" " * (indent + 21),
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
    return "\n".join(lines)


def described(field: Field) -> str:
    """A field's meaning, unit and legal values in one line."""
    values = f" ({field.legal})" if field.kind == "flag" or field.words else ""
    return f"{field.meaning}{f', {field.unit}' if field.unit else ''}{values}"
