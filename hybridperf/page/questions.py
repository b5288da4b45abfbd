"""A view's fields -> the arguments of a command.

Only what `views.toml` lists can be asked, each value checked by its kind, so that no value becomes
an option and no option writes a file. Kinds: `whole`, `number`, `choice`, `flag`, `text` (numbers
and names), `formula` (of fields), `words` (several of them, separated by spaces), `name` (a model,
device or system, or a file that was dropped), `file`, `times` (NAME=NUMBER, separated by spaces).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from hybridperf.fields import fields_of
from hybridperf.fields.registry import shipped_words
from hybridperf.io import InputError

_TEXT = re.compile(r"[\w.,:+*/= -]{0,200}")
_FORMULA = re.compile(r"[\w.,+*/%=<>!() -]{0,200}")
_WORD = re.compile(r"[\w.+-]{1,80}")
_FILE = "file:"  # before the id of one that was dropped
Found = Callable[[str], tuple[Path, str]]


@functools.cache
def views() -> dict[str, Any]:
    """The page's views by name, as `views.toml` has them, their fields with what it leaves to the
    registry of fields.
    """
    found = tomllib.loads(resources.files(__package__).joinpath("views.toml").read_text("utf-8"))
    for view in found.values():
        columns = view.pop("columns", "")
        view["fields"] = [{"choices": [], **_input(columns, one)} for one in view["fields"]]
        for asked in view["questions"].values():
            asked["fields"] = [
                field["name"]
                for field in view["fields"]
                if field.get("as") != "none"
                and {field["name"], f"@{field.get('group', 'main')}"} & {*asked["fields"]}
            ]
    return found


def _input(columns: str, field: dict[str, Any]) -> dict[str, Any]:
    """A field of a view, with what it does not say of the column that it is named as."""
    if "words_from" in field:
        field = {**field, "choices": shipped_words(**field.pop("words_from"))}
    call = fields_of(columns).called(field["name"]) if columns else None
    if call is None:
        return field
    known, found = call[0], dict[str, Any]()
    if known.unit:
        found["unit"] = known.unit
    if known.legal:
        found |= {"kind": "choice", "choices": known.legal.split(", ")}
    elif known.kind in ("whole", "number"):
        found |= {"kind": known.kind, "least": int(known.minimum)}
    return found | field


@dataclasses.dataclass(frozen=True)
class Question:
    """A command to ask: its arguments, the same as a reader would type them, and who answers."""

    arguments: list[str]
    typed: list[str]
    process: str
    folder_option: str = ""  # of a command that writes files: where to
    names: tuple[tuple[str, str], ...] = ()  # of dropped files: where we have it, its owner's name

    @property
    def command(self) -> str:
        return shlex.join(["hybridperf", *self.typed])

    @property
    def python(self) -> str:
        """The same in Python: a row of a table by its function, other commands by `hp.ask`."""
        command, *rest = self.typed
        if command == "steps":
            cells = (word.partition("=")[::2] for word in rest)
            row = {name: int(value) if value.isdecimal() else value for name, value in cells}
            return f"import hybridperf as hp\n\nanswer = hp.predict_steps([{row!r}])"
        words = ", ".join(repr(word) for word in self.typed)
        return f"import hybridperf as hp\n\nanswer = hp.ask({words})"


def question(view: str, name: str, values: Mapping[str, Any], found: Found) -> Question:
    """What to ask for a view's values.

    Args:
        view: its name.
        name: which of its questions.
        values: by field; one that is missing or empty is left out.
        found: path and name of a dropped file by its id.

    Raises:
        InputError: there is no such question, or a value is not of its field's kind.
    """
    if view not in views() or name not in views()[view]["questions"]:
        raise InputError(f"expected a question of the page, got {view!r} {name!r}; load it again")
    asked = views()[view]["questions"][name]
    fields = {one["name"]: one for one in views()[view]["fields"]}
    if unknown := [one for one in values if one not in fields]:
        raise InputError(f"expected fields of {view}, got {unknown[0]!r}; load the page again")
    arguments, typed, names = list(asked["command"]), list(asked["command"]), []
    for field in fields.values():
        if field["name"] not in asked["fields"]:
            continue
        for here, theirs in _words(field, values.get(field["name"]), found):
            if here != theirs:
                names += [(here, theirs), (Path(here).name, theirs)]
            arguments += _argument(field, here)
            typed += _argument(field, theirs)
    typed += [*asked.get("options", []), *asked.get("typed", [])]
    arguments += asked.get("options", [])
    return Question(arguments, typed, asked["process"], asked.get("folder", ""), tuple(names))


def beside(view: str, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Values that a reader may ask for after these: half and twice of the field that a question
    names as `ahead`.
    """
    asked = views()[view]["questions"][name].get("ahead")
    field = next((one for one in views()[view]["fields"] if one["name"] == asked), None)
    if field is None or not str(values.get(asked, "")).isdecimal():
        return []
    near = (int(values[asked]) * 2, int(values[asked]) // 2)
    return [{**values, asked: one} for one in near if field["least"] <= one <= field["most"]]


def _argument(field: Mapping[str, Any], word: str) -> list[str]:
    """A value as its field's command takes it: NAME=VALUE, an option, or alone."""
    as_ = field.get("as", "")
    if field["kind"] == "flag":
        return [as_]
    if as_.startswith("--"):
        # one word, so that no value is read as an option
        return [f"{as_}={word}"] if "{" not in as_ else as_.format(word).split(" ", 1)
    return [word] if as_ == "alone" else [f"{as_ or field['name']}={word}"]


def _words(field: Mapping[str, Any], value: Any, found: Found) -> list[tuple[str, str]]:
    """A value in words: as we give it, and as a reader would type it; none where it is empty."""
    kind, label = field["kind"], field["label"]
    if value is None or value == "":
        if field.get("needed"):
            raise InputError(f"expected a value of {label}, got none; fill it in")
        return []
    if kind == "flag":
        return [("", "")] if value in (True, "yes") else []
    text = str(value).strip()
    if kind == "times":
        return [(one, one) for one in text.split() if _known_times(one, label)]
    if kind == "words":
        return [(_plain(one, _TEXT, label),) * 2 for one in text.split()]
    if kind in ("whole", "number"):
        return [(_number(field, text),) * 2]
    if kind == "choice" and text not in field["choices"]:
        known = ", ".join(field["choices"])
        raise InputError(f"expected one of {known} in {label}, got {text!r}; choose one")
    if kind in ("name", "file") and text.startswith(_FILE):
        path, name = found(text.removeprefix(_FILE))
        return [(str(path), name)]
    if kind == "file":
        raise InputError(f"expected a file in {label}, got {text!r}; drop one")
    pattern = {"name": _WORD, "formula": _FORMULA}.get(kind, _TEXT)
    return [(_plain(text, pattern, label),) * 2]


def _plain(text: str, pattern: re.Pattern[str], label: str) -> str:
    if not pattern.fullmatch(text) or text.startswith("-"):
        raise InputError(f"expected letters, digits and signs in {label}, got {text!r}; mend it")
    return text


def _known_times(word: str, label: str) -> bool:
    name, equals, number = word.partition("=")
    try:
        good = bool(equals and _WORD.fullmatch(name)) and 0 < float(number) < math.inf
    except ValueError:
        good = False
    if not good:
        raise InputError(f"expected NAME=NUMBER in {label}, got {word!r}; mend it")
    return True


def _number(field: Mapping[str, Any], text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    low, high = field.get("least", 0), field.get("most", math.inf)
    whole = field["kind"] == "whole"
    if not low <= number <= high or (whole and number != int(number)):
        what = "a whole number" if whole else "a number"
        limit = f" from {low} to {high}" if high < math.inf else f" of {low} or more"
        raise InputError(f"expected {what}{limit} in {field['label']}, got {text!r}; mend it")
    return str(int(number)) if whole else f"{number:.12g}"
