"""Rows of measurements in a file that survives whatever ends the run: kill -9, a full disk, a
pulled plug.

A store is a text file of JSON lines. The first is the header, each other one is a measured row:

    {"hybridperf_rows": 1, "fingerprint": {"cpu_model": ..., "jax": ...}}
    {"key": "gemm f32 64x64x64", "pass_no": 1, "op": "gemm", "m": 64, ..., "time_s": 1.2e-05, ...}

Each line ends with the sum (CRC-32) of what stands before, `"sum": "0a1b2c3d"`; a line of another
sum is damaged. Files without any are of an earlier version and are read as they are.

A row is appended in one piece and is on the disk (fsync) before the next case starts. A run that
ends in the middle of a line leaves a line without its newline: the next run drops it and measures
that case again. A row is known by its case's `key` and its `pass_no`, so a resumed run measures
nothing twice. (Not "pass": conv tables have such a column.)
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows: two runs on one file are not noticed there
    fcntl = None  # type: ignore[assignment]

SCHEMA_VERSION = 2  # from 2 on time_s is a median, not a minimum
Row = dict[str, Any]

_VERSION_FIELD = "hybridperf_rows"
_SUM = re.compile(rb', "sum": "[0-9a-f]{8}"\}$')
# EFBIG (a file-size limit) and EDQUOT (a quota) are full disks to the user, too.
_NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def measured_passes(rows: Sequence[Row]) -> list[list[Row]]:
    """The passes of each case that succeeded, cases in the order first measured."""
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row:
            by_key.setdefault(row["key"], []).append(row)
    return list(by_key.values())


class StoreError(RuntimeError):
    """A store that cannot be read or written, in one sentence for the user."""


class RowStore(contextlib.AbstractContextManager["RowStore"]):
    """An open store, created or resumed: `rows` as in the file, `has` and `append`.

    `dropped` is the text of an incomplete last line that was cut off, or "".
    """

    def __init__(self, path: str | Path, fingerprint: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.rows: list[Row] = []
        self.dropped = ""
        try:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._file = os.open(self.path, flags, 0o644)
        except OSError as error:
            why = f"cannot open {self.path} for measurements: {error.strerror}."
            raise StoreError(why) from error
        try:
            self._resume(_plain(fingerprint))
        except BaseException:
            self.close()
            raise
        self._known = {(row["key"], row["pass_no"]) for row in self.rows}

    def has(self, key: str, pass_no: int) -> bool:
        """Whether that case was measured in that pass (a failed measurement counts)."""
        return (key, pass_no) in self._known

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row (with "key" and "pass_no") so that it is on the disk when this returns."""
        name = (row["key"], row["pass_no"])
        if name in self._known:
            raise ValueError(f"row {name} is already in {self.path}.")
        row = _plain(row)
        self._write_line(row)
        self.rows.append(row)
        self._known.add(name)

    def close(self) -> None:
        """Close the file and let other processes open it; closing twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __exit__(self, *error: object) -> None:
        self.close()

    def _resume(self, fingerprint: dict[str, Any]) -> None:
        if fcntl:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"another process is measuring into {self.path}; wait for it or use another"
                    " --out."
                ) from None
            except OSError:
                pass  # a file system without locks (some network ones): measure all the same
        content = self.path.read_bytes()
        header, self.rows, good_bytes = _parse(self.path, content)
        self.dropped = content[good_bytes:].decode("utf-8", errors="replace")
        self._size_bytes = good_bytes
        if self.dropped:
            os.ftruncate(self._file, good_bytes)
        os.lseek(self._file, good_bytes, os.SEEK_SET)
        if header is None:
            self._write_line({_VERSION_FIELD: SCHEMA_VERSION, "fingerprint": fingerprint})
        elif header["fingerprint"] != fingerprint:
            difference = _difference(header["fingerprint"], fingerprint)
            raise StoreError(
                f"{self.path} holds measurements of something else ({difference}); use another"
                " --out or delete the file."
            )

    def _write_line(self, values: dict[str, Any]) -> None:
        line = _with_sum(json.dumps(values, allow_nan=False).encode()) + b"\n"
        written = 0
        try:
            while written < len(line):  # on a nearly full disk a write may take only a part
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            # Cut the part that went in, so that the file ends in a whole row whoever reads it next.
            os.ftruncate(self._file, self._size_bytes)
            os.lseek(self._file, self._size_bytes, os.SEEK_SET)
            reason = "the disk is full" if error.errno in _NO_SPACE else error.strerror
            raise StoreError(
                f"cannot write to {self.path}: {reason}; its {len(self.rows)} rows are kept, so"
                " make room and run the same command again."
            ) from error
        self._size_bytes += len(line)


@contextlib.contextmanager
def store_of_rank(
    rank: int, path: str | Path, fingerprint: Mapping[str, Any]
) -> Iterator[RowStore | None]:
    """The store of a job's rank 0; None on the others."""
    if rank:
        yield None
        return
    with RowStore(path, fingerprint) as store:
        yield store


def _parse(path: Path, content: bytes) -> tuple[dict[str, Any] | None, list[Row], int]:
    """Header (None in a new file), rows, and bytes up to the end of the last whole line."""
    *lines, tail = content.split(b"\n")  # a whole line ends in a newline: what is left over is none
    other = StoreError(f"{path} is not a file of hybridperf measurements; use another --out.")
    if not lines:
        start = f'{{"{_VERSION_FIELD}"'.encode()
        if not (tail.startswith(start) or start.startswith(tail)):
            raise other  # neither a cut-off header nor an empty file
        return None, [], 0
    summed = any(_SUM.search(line) for line in lines)
    header = _json_object(lines[0], summed)
    version = header.get(_VERSION_FIELD)
    if not isinstance(version, int) or not isinstance(header.get("fingerprint"), dict):
        raise other
    if version != SCHEMA_VERSION:
        newer = version > SCHEMA_VERSION
        advice = "update hybridperf" if newer else "measure again"
        advice += " or use another --out" if newer else " into another --out"
        raise StoreError(
            f"{path} has rows of schema version {version} and this hybridperf reads version"
            f" {SCHEMA_VERSION}; {advice}."
        )
    rows = []
    good_bytes = len(lines[0]) + 1
    for number, line in enumerate(lines[1:], start=2):
        row = _json_object(line, summed)
        if "key" not in row or "pass_no" not in row:
            if number == len(lines) and not tail:
                break  # a garbled last line: what a crash leaves behind
            raise StoreError(
                f"line {number} of {path} is damaged; remove that line or use another --out."
            )
        rows.append(row)
        good_bytes += len(line) + 1
    return header, rows, good_bytes


def _with_sum(line: bytes) -> bytes:
    """The JSON object on a line, its last field the sum of the others' text."""
    return line[:-1] + f', "sum": "{zlib.crc32(line):08x}"}}'.encode()


def _json_object(line: bytes, summed: bool) -> dict[str, Any]:
    """The JSON object on a line; empty if there is none, or `summed` and its sum is another."""
    if summed:
        content = _SUM.sub(b"}", line)
        if _with_sum(content) != line:
            return {}
        line = content
    try:
        value = json.loads(line)
    except ValueError:  # also undecodable bytes
        return {}
    return value if isinstance(value, dict) else {}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON gives them back: tuples become lists, NumPy numbers Python's."""
    return json.loads(json.dumps(dict(values), allow_nan=False, default=_plain_number))


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"expected numbers, strings or lists of them in a row, got {type(value).__name__}."
    )


def _difference(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    differing = [name for name in {**stored, **now} if stored.get(name) != now.get(name)]
    pairs = [f"{one}: {stored.get(one)!r} there, {now.get(one)!r} here" for one in differing]
    return ", ".join(pairs)
