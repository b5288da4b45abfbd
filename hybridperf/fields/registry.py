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
    in_text    NAME of NAME=VALUE in texts of other columns that say it, too, parts of which are
               separated by semicolons: how published tables have what they have no column for
    prose      free text, which no other column is taken to misspell
    least, most  of a number, where they are not those of its kind
    default    what counts where a row says nothing and nothing else decides it
    needed     of a small table (`tables.toml`): whether a row must say it
    numbered   how many of the name and a number there are, from 0: rf_0, rf_1, ...
    words_from where other words stand that are legal, too: `folder`, each of whose TOML files is
               one, or `file` and its `table` of them

and `[columns]` has `row`, what a row is called, `foreign`, names that are nobody's misspelling,
`unread`, names that matter and are not read, each with what to write in its place, and `of`, fields
of other questions, whose `foreign` and `unread` names count, too. Small tables stand in one file,
`tables.toml`, a table of fields each. Names that are foreign to every question are those of
`foreign.toml`.

Light to import: the command line shows this before it loads anything.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Literal

Kind = Literal["whole", "number", "flag", "word", "text"]
YES, NO = "yes", "no"
FLAG_WORDS = {
    YES: ("1", "true", "on", "enabled"), NO: ("0", "false", "off", "none", "disabled"),
    "": ("unknown", "recipe", "submission"),
}  # fmt: skip
_ALIKE, _LONG = 0.85, 7  # of difflib's ratio, of names of so many letters: "microbtach_sise"
_NEAR = 0.6  # of difflib's ratio, of the nearest name to one that is not read
_BEFORE = ("n", "num", "nr", "no_of", "number_of", "total", "my", "the")
_BEHIND = ("size", "degree", "count", "num", "number", "ranks", "type", "mode", "value", "dim")
_MOST_OFFERED = 3
_LARGEST = 1e9  # of numbers that say no limit of their own


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
    in_text: str = ""
    default: str | float | None = None
    least: float | None = None
    most: float | None = None
    needed: bool = True

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
        """Legal values of the field, as a sentence lists them."""
        if self.kind == "flag":
            return f"{YES}, {NO}"
        return ", ".join(filter(None, self.words))

    @property
    def minimum(self) -> float:
        """The least that a number may be."""
        return (1.0 if self.kind == "whole" else 0.0) if self.least is None else self.least

    @property
    def written(self) -> tuple[str, ...]:
        """All words that are legal, as they are listed."""
        words = FLAG_WORDS if self.kind == "flag" else self.words
        return tuple(filter(None, (one for word in words for one in (word, *words[word]))))

    def meant(self, text: str, name: str = "") -> str | None:
        """The value that a text means, "" where it says nothing; None where it is not legal.

        Args:
            text: what a cell says.
            name: of its column, where that is an alias with words of its own.
        """
        return _meant(self, text, name)

    def word(self, text: str) -> str:
        """One of the listed words, "" for nothing; `InputError` for another."""
        found = self.meant(text)
        if found is None:
            flag = f"{YES} or {NO} in {self.name}"
            raise _wrong(
                flag if self.kind == "flag" else f"a {self.name} of {self.legal}", repr(text)
            )
        return found

    def count(self, said: Any) -> int:
        """A whole number of `minimum` or more; `InputError` for anything else."""
        return _count(self, said)

    def number(self, said: Any) -> float:
        """A number of `minimum` or more, at most `most`; `InputError` for anything else."""
        least, most = self.minimum, _LARGEST if self.most is None else self.most
        if not least <= (found := _float(said)) < most:
            over = f" and below {most:g}" if found >= most else ""
            got = repr(said) if math.isnan(found) else f"{found:g}"
            raise _wrong(f"a number of {least or 'zero'} or more{over} in {self.name}", got)
        return found

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


def _wrong(expected: str, got: str) -> ValueError:
    """The `InputError` of a value that is not legal."""
    from hybridperf.io import InputError  # with pandas: only where something is wrong

    return InputError(f"expected {expected}, got {got}")


def _float(said: Any) -> float:
    try:
        return float(said)
    except (TypeError, ValueError):
        return math.nan


@functools.lru_cache(65536)
def _count(field: Field, said: Any) -> int:
    value, least = _float(said), field.minimum
    most = math.inf if field.most is None else field.most
    if not math.isfinite(value) or not least <= value <= most or value != int(value):
        got = repr(said) if math.isnan(value) else str(said).removesuffix(".0")
        over = f", {most:,g} at most," if value > most else ""
        raise _wrong(f"a whole number of {least:g} or more{over} in {field.name}", got)
    return int(value)


@functools.lru_cache(65536)
def _meant(field: Field, text: str, name: str) -> str | None:
    text = text.strip()
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
    return {folded(one): word for word, others in FLAG_WORDS.items() for one in (word, *others)}


@dataclasses.dataclass(frozen=True, eq=False)
class Fields:
    """The fields of one question, by name, alias and resemblance."""

    question: str
    by_name: Mapping[str, Field]
    foreign: frozenset[str]  # folded
    unread: Mapping[str, str]  # by folded name: what to write in its place
    row: str = "row"  # what a row is called
    small: bool = False  # a table whose rows must say what is `needed`

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
        found = {folded(name): (field, name) for field in self for name in field.names}
        alike = Counter(folded(name) for field in self for name in field.names)
        return {name: one for name, one in found.items() if alike[name] == 1}

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
            folded(name): field.name
            for field in self
            if field.priced and not field.prose and field.name not in said
            for name in field.names
            if len(folded(name)) > 1  # any letter is a slip of any other
        }
        near = [open_[name] for name in open_ if one_slip(text, name)]
        near = near or [open_[stem] for stem in _stems(column) if stem in open_]
        if not near and len(text) >= _LONG:
            near = [open_[one] for one in difflib.get_close_matches(text, open_, 1, _ALIKE)]
        own = [name for name in near if one_slip(text, folded(name))]
        return list(dict.fromkeys(own or near))[:_MOST_OFFERED]

    def is_foreign(self, column: str) -> bool:
        """Whether a name says plainly that it is none of the question's: a result, where a row
        comes from; of ops, messages and small tables a field of another table, too, as these are
        often of something.
        """
        names, starts, ends = _foreign()
        text = plain(column)
        if folded(column) in self.foreign | names or text.startswith(starts) or text.endswith(ends):
            return True
        others = () if self.question in _OF_WORDS else questions()
        return any(fields_of(other).called(column) for other in others)

    def nearest(self, column: str) -> str:
        """`" (the nearest that is read is 'x')"`, or the empty string where none is near."""
        known = {folded(name): field.name for field in self for name in field.names}
        near = difflib.get_close_matches(folded(column), known, 1, _NEAR)
        return f" (the nearest that is read is {known[near[0]]!r})" if near else ""


@functools.cache
def _foreign() -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """Names that are foreign to every question, folded; beginnings and ends of such."""
    found = tomllib.loads(resources.files(__package__).joinpath("foreign.toml").read_text("utf-8"))
    return (
        frozenset(folded(name) for part in found["names"].values() for name in part),
        tuple(found["begin"]), tuple(found["end"]),
    )  # fmt: skip


@functools.cache
def fields_of(question: str) -> Fields:
    """The registry of a question, "steps", "serve", "ops", "collectives", "plans", "runs", or of
    a small table of `tables.toml`.
    """
    folder = resources.files(__package__)
    own = folder.joinpath(f"{question}.toml")
    if own.is_file():
        tables: dict[str, Any] = tomllib.loads(own.read_text("utf-8"))
    else:
        tables = dict(tomllib.loads(folder.joinpath("tables.toml").read_text("utf-8"))[question])
    columns = tables.pop("columns", {})
    others = {fields_of(other): names for other, names in columns.get("of", {}).items()}
    found = [other[name] for other, names in others.items() for name in names]
    found += [one for name, table in tables.items() for one in _fields(name, table)]
    by_name = {one.name: one for one in found}
    named = {folded(name) for one in found for name in one.names}
    foreign = {folded(name) for name in columns.get("foreign", ())}
    unread = {folded(name): why for name, why in columns.get("unread", {}).items()}
    for other in others:
        foreign |= other.foreign
        unread = {**other.unread, **unread}
    return Fields(
        question, by_name, frozenset(foreign - named),
        {name: why for name, why in unread.items() if name not in named},
        columns.get("row", "row"), not own.is_file(),
    )  # fmt: skip


@functools.cache
def questions() -> tuple[str, ...]:
    """All that have fields: questions of their own file, then small tables."""
    files = (one.name for one in resources.files(__package__).iterdir())
    own = sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    small = tomllib.loads(resources.files(__package__).joinpath("tables.toml").read_text("utf-8"))
    return (*(one for one in own if one not in ("tables", "foreign")), *small)


_OF_WORK = ("steps", "serve", "ops", "collectives")
_OF_WORDS = ("steps", "serve", "plans", "runs", "rl")  # whose rows mean any word of work


@functools.cache
def words_elsewhere(question: str) -> Mapping[str, tuple[str, str]]:
    """(question, field) of names, folded, that say a quantity, a word or a switch of another kind
    of work than a row of steps, plans, runs or operating points is asked of. Tables of ops and
    messages name the models that these are of, and small ones tell of other things: none. Sizes of
    ops in one word (step, groups) are anybody's.
    """
    if question not in _OF_WORDS:
        return {}
    own = fields_of(question)
    return {
        folded(name): (other, field.name)
        for other in reversed(_OF_WORK)  # the first that has a word names it
        if other != question
        for field in fields_of(other)
        if field.priced and field.kind != "text"
        for name in field.names
        if len(folded(name)) > 2 and (other in ("steps", "serve") or "_" in name)
        if not own.called(name)
    }


def shipped_words(folder: str = "", file: str = "", table: str = "") -> list[str]:
    """Words that stand elsewhere in the package: names of a folder's TOML files, or of the entries
    of a file's table.
    """
    package = resources.files("hybridperf")
    if folder:
        names = (one.name for one in package.joinpath(folder).iterdir())
        return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))
    return [*tomllib.loads(package.joinpath(file).read_text("utf-8"))[table]]


def _fields(name: str, table: Mapping[str, Any]) -> Iterable[Field]:
    """The fields of a table: itself, and the same of each of some things."""
    apart = ("prefixes", "words_from", "numbered")
    own = {key: value for key, value in table.items() if key not in apart}
    shipped = shipped_words(**table["words_from"]) if "words_from" in table else []
    words = {**dict.fromkeys(shipped, ()), **own.get("words", {})}
    own["words"] = {word: tuple(others) for word, others in words.items()}
    spelt = own.get("spelt", {}).items()
    own["spelt"] = {
        alias: {folded(text): value for text, value in words.items()} for alias, words in spelt
    }
    for number in range(table.get("numbered", 0)):
        yield Field(f"{name}_{number}", **own)
    if "numbered" in table:
        return
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
