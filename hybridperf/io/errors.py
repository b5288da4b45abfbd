"""The one kind of error a user can mend: a sentence that says what was expected, what came and what
to do.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
from collections.abc import Iterable, Iterator

_LONGEST_WORD, _LONGEST = 300, 2000  # characters of a word (a path has as many), of a sentence


class InputError(ValueError):
    """Input that cannot be used; the command line prints its text and exits with 2.

    Thousands of characters of a file, where a sentence quotes it, are cut short.
    """

    def __init__(self, message: str):
        words = (_shortened(word, _LONGEST_WORD) for word in message.split(" "))
        super().__init__(_shortened(" ".join(words), _LONGEST))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 3]}...{text[-most // 3 :]}"


class OldFile(UserWarning):
    """A remark on a file that an earlier version wrote; the command line prints its text."""


def closest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the known name nearest to `name`, or the empty string."""
    names = {plain(one): one for one in reversed(list(known))}  # of two that are alike the first
    match = difflib.get_close_matches(plain(str(name)), filter(None, names), n=1)
    return f" (did you mean {names[match[0]]!r}?)" if match else ""


def first_line(error: BaseException) -> str:
    """What an error says first: of a checked record the first field; else, if nothing, its type."""
    if type(error) is KeyError:
        return f"{error} is missing"
    if callable(errors := getattr(error, "errors", None)):
        first = errors()[0]
        return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def undamaged(path: str | os.PathLike, mend: str) -> Iterator[None]:
    """Content of a file of ours is read: `InputError` where it is not what we write."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({first_line(error)}); {mend}") from error


@functools.lru_cache(65536)
def plain(name: str) -> str:
    """In lower case, other characters as one underscore: what names are compared by."""
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_")


def unknown(what: str, name: str, known: Iterable[str], where: str) -> InputError:
    """The error for an unknown name: suggests the nearest, tells where the list is."""
    return InputError(f"unknown {what} {name!r}{closest(name, known)}: {where}")
