"""Compressed files, unpacked no further than a real one would be: a few kilobytes may hold more
zeros than any memory.
"""

from __future__ import annotations

import io
from typing import Any

_ALWAYS_BYTES = 2**28  # that any file may unpack into
_MOST_TIMES = 100  # what text shrinks by at most; traces by 10 to 30


def most_unpacked(packed_bytes: int) -> int:
    """Bytes that a packed file of a size may hold."""
    return max(_ALWAYS_BYTES, _MOST_TIMES * packed_bytes)


class TooLarge(ValueError):
    """A packed file that holds more than `most` bytes."""

    def __init__(self, most: int):
        beyond = f"it holds more than {most / 2**20:,.0f} MB, over {_MOST_TIMES} times its size"
        super().__init__(f"{beyond}; unpack it yourself if that is what you expect")


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
            raise TooLarge(self._most)
        return found

    read1 = read
