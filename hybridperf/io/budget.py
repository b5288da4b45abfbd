"""How much memory a file may become when it is read: a few kilobytes can hold more than any machine
has, of zeros that are packed, of one value that is repeated, of lists within lists.

What a text or table becomes is reckoned from what stands in it, before anything is made of it. The
limit is 2 GiB; HYBRIDPERF_READ_BYTES sets another.
"""

from __future__ import annotations

import io
import os
from typing import Any

from hybridperf.io.errors import InputError

_USUAL_BYTES = 2**31
_VARIABLE = "HYBRIDPERF_READ_BYTES"
_ALWAYS_BYTES = 2**28  # that any packed file may unpack into
_MOST_TIMES = 100  # what text shrinks by at most; traces by 10 to 30
# bytes that Python takes, upper ones: an object or event, a list, a value
_OBJECT_BYTES, _LIST_BYTES, _VALUE_BYTES = 200, 64, 64


class TooLarge(ValueError):
    """A file that becomes more than may be read."""


def budget_bytes() -> int:
    """Bytes that what is read may become."""
    given = os.environ.get(_VARIABLE, str(_USUAL_BYTES))
    if not given.isdecimal():
        raise InputError(f"expected bytes in {_VARIABLE}, got {given!r}; write such as 8589934592")
    return int(given)


def check_budget(becomes_bytes: float, most: int | None = None) -> None:
    """`TooLarge` for more bytes than may be read, or than `most`."""
    most = budget_bytes() if most is None else most
    if becomes_bytes > most:
        raise TooLarge(
            f"it would take {_size(becomes_bytes)} of memory or more, over the {_size(most)} that"
            f" such a file may; split it, or set {_VARIABLE}"
        )


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"


def check_json(text: str | bytes) -> None:
    """`TooLarge` for a JSON text that would become more than may be read."""
    if isinstance(text, str):
        objects, lists, values = (text.count(mark) for mark in "{[,")
    else:
        objects, lists, values = (text.count(mark) for mark in (b"{", b"[", b","))
    becomes = objects * _OBJECT_BYTES + lists * _LIST_BYTES + values * _VALUE_BYTES
    check_budget(2 * len(text) + becomes)


def most_unpacked(packed_bytes: int) -> int:
    """Bytes that a packed file of a size may hold."""
    return min(max(_ALWAYS_BYTES, _MOST_TIMES * packed_bytes), budget_bytes())


class Unpacked(io.BufferedIOBase):
    """What a packer reads from a packed file, up to a number of bytes; `TooLarge` beyond."""

    def __init__(self, inside: Any, most: int):
        self._inside, self._most = inside, most

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._inside.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inside.seek(offset, whence)

    def tell(self) -> int:
        return self._inside.tell()

    def read(self, size: int | None = -1) -> bytes:
        left = self._most - self._inside.tell()
        asked = left + 1 if size is None or size < 0 else min(size, left + 1)
        found = self._inside.read(max(asked, 1))
        if len(found) > left:
            check_budget(self._inside.tell(), self._most)
        return found

    read1 = read
