"""Sums of files that we write, by which a bit that has flipped since is seen when they are read.

A Parquet file holds its own, in a line before its footer, where other readers do not look, so that
copies have it, too. Every file that `replacing` writes has one as an attribute of the file system,
which goes where the file is moved; a copy by most programs has none, and is not checked. A file of
another length than it was written with is another file, or an edited one, and not checked either.
JSON of ours has its checksum among its fields (`documents.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import IO

from hybridperf.io.errors import InputError

_ATTRIBUTE = "user.hybridperf.sum"
_MARK = b"hybridperf-sum:"
_LINE_BYTES = len(_MARK) + 32
_TAIL_BYTES = 2**20  # where a sum is looked for if the length of the footer is damaged
_PIECE_BYTES = 2**20
_MEND = "restore it, or make it again; where the change is yours, copy it to another name"


def seal(handle: IO[bytes]) -> None:
    """Put the sum of a Parquet file, open for reading and writing, before its footer."""
    size = handle.seek(0, os.SEEK_END)
    start = _footer_at(handle, size)
    if start is None or _line_at(handle, start - _LINE_BYTES):
        return
    digest = _digest(handle, size)
    handle.seek(start)
    footer = handle.read()
    handle.seek(start)
    handle.write(_MARK + digest + footer)


def remember(path: str | os.PathLike) -> None:
    """Keep a file's length and sum as its attribute, where the file system has any."""
    with open(path, "rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        known = b"%d %s" % (size, _digest(handle, size))
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has these
        os.setxattr(path, _ATTRIBUTE, known)


def check_sum(path: str | os.PathLike) -> None:
    """`InputError` where a file that we wrote has other bytes now; a missing one is no error."""
    with contextlib.suppress(OSError, AttributeError), open(path, "rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        known = b""
        with contextlib.suppress(OSError, AttributeError):
            known = os.getxattr(path, _ATTRIBUTE)
        length, _, digest = known.partition(b" ")
        changed = length == b"%d" % size and _digest(handle, size) != digest
        if os.fspath(path).endswith(".parquet") and (start := _line_in(handle, size)) is not None:
            changed |= _line_at(handle, start) != _digest(handle, size, start)
        if changed:
            raise InputError(f"{path} was damaged or changed since it was written; {_MEND}")


def _footer_at(handle: IO[bytes], size: int) -> int | None:
    """Where the footer of a Parquet file begins; None where that cannot be."""
    if size < 12 + _LINE_BYTES:
        return None
    handle.seek(size - 8)
    length, mark = int.from_bytes(handle.read(4), "little"), handle.read(4)
    start = size - 8 - length
    return start if mark == b"PAR1" and start >= 4 else None


def _line_in(handle: IO[bytes], size: int) -> int | None:
    """Where a Parquet file's sum stands; None where it has none."""
    start = (_footer_at(handle, size) or 0) - _LINE_BYTES
    if start > 0 and _line_at(handle, start):
        return start
    begin = max(size - _TAIL_BYTES, 0)
    handle.seek(begin)
    found = handle.read().rfind(_MARK)
    return None if found < 0 else begin + found


def _line_at(handle: IO[bytes], start: int) -> bytes:
    """The sum that stands at a place; empty where none does."""
    handle.seek(max(start, 0))
    line = handle.read(_LINE_BYTES)
    return line.removeprefix(_MARK) if line.startswith(_MARK) else b""


def _digest(handle: IO[bytes], size: int, line_at: int | None = None) -> bytes:
    """The sum of a file's bytes without the line of its own sum."""
    digest = hashlib.blake2b(digest_size=16)
    parts = [(0, size)] if line_at is None else [(0, line_at), (line_at + _LINE_BYTES, size)]
    for start, end in parts:
        handle.seek(start)
        while start < end and (piece := handle.read(min(_PIECE_BYTES, end - start))):
            digest.update(piece)
            start += len(piece)
    return digest.hexdigest().encode()
