"""Logs that batch jobs leave, as lines without their wrapping, and collective measurements in them.

A launcher or a scheduler puts its own marks before each line (`[1,0]<stdout>:`, `0: `, a host's
name, a time stamp, colours) and other programs write in between. What is left of a damaged line is
never guessed at: a reader skips the line and reports its number.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hybridperf.io import InputError
from hybridperf.io.budget import TooLarge, Unpacked, most_unpacked

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"(?:\[\d+,\s*\d+\]\s*<std\w+>:? ?"  # Open MPI's --tag-output
    r"|\[\d+\] "  # Hydra's -prepend-rank
    r"|\[[A-Za-z_][\w.-]*\]:"  # torchrun's --tee
    r"| {0,4}\d+: "  # srun --label
    # containers' time stamps
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?: std(?:out|err) [FP])? "
    # a host's name: pdsh, clush, kubectl --prefix
    r"|[A-Za-z][\w.-]*: (?=#|\s*\d+\s+\d+\s+[a-z]|\s*COMMS-RES))"
)
DAMAGED = "damaged (cut off, or mixed with other output)"
ALONE = "one rank communicates with nobody"
_NAMED_PLACES = 8  # a remark stays readable; a long log can have thousands of damaged lines


_NO_NUMBER = re.compile(r"\d{300}")  # that Python would read
_BEGINNING_BYTES = 4096
_GZIP = b"\x1f\x8b"  # how a packed file begins (RFC 1952, section 2.3.1)


@dataclasses.dataclass(frozen=True)
class Machines:
    """Where a run was: ranks in all, and hosts, each with the same number of ranks."""

    n_gpus: int
    n_nodes: int


class CallerHints(NamedTuple):
    """What the caller knows where the log does not tell."""

    path: str
    collective: str | None
    machines: Machines | None


class LogReader(NamedTuple):
    """What reads the logs of a program."""

    program: str
    nothing: str  # what a log lacks that has no measurement
    looks_like: Callable[[str], bool]  # whether a text (a file, or its beginning) is such a log
    # (rows of the schema, a sentence for everything skipped) of a log's text; `InputError` where
    # nothing tells what a run was, or where
    read: Callable[[str, CallerHints], tuple[list[dict[str, Any]], list[str]]]


def read_text(path: str | os.PathLike) -> str:
    """A log as it is, unpacked where gzip packed it; bytes that are no text become marks that no
    parser takes.
    """
    try:
        written = Path(path).read_bytes()
        if written.startswith(_GZIP):
            with gzip.GzipFile(fileobj=io.BytesIO(written)) as packed:
                written = Unpacked(packed, most_unpacked(len(written))).read()
    except TooLarge as error:
        raise InputError(f"{path}: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path} is packed by gzip and cut off or damaged; bring it again"
        ) from error
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot read {path}: {why}; check the path") from error
    text = written.decode("utf-8", errors="replace")
    if found := _NO_NUMBER.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(f"{path}, line {line}: a number of hundreds of digits; check the file")
    return text


def beginning(path: str | os.PathLike) -> str:
    """The first line or so of a file, unpacked; "" where it cannot be read or is damaged."""
    try:
        with open(path, "rb") as handle:
            packed = handle.read(2) == _GZIP
            handle.seek(0)
            opened = gzip.GzipFile(fileobj=handle) if packed else handle
            return opened.read(_BEGINNING_BYTES).decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error):
        return ""


def lines_of(text: str) -> list[str]:
    """Lines of a log without launcher prefixes, colours and line ends."""
    return [unwrapped(line) for line in text.split("\n")]


def unwrapped(line: str) -> str:
    """A line without colours and without what launchers put before it."""
    line = _COLOURS.sub("", line.rstrip("\r"))
    for _ in range(3):  # a container's time stamp, before a host's name, before a rank
        match = _PREFIX.match(line)
        if match is None:
            break
        line = line[match.end() :]
    return line


def places(numbers: Iterable[int], what: str = "line") -> str:
    """`line 3`, `lines 3 and 9`, `lines 3, 5, ... (40 in all)`."""
    unique = sorted(set(numbers))
    if len(unique) == 1:
        return f"{what} {unique[0]}"
    if len(unique) > _NAMED_PLACES:
        return f"{what}s {', '.join(map(str, unique[:_NAMED_PLACES]))}, ... ({len(unique)} in all)"
    return f"{what}s {', '.join(map(str, unique[:-1]))} and {unique[-1]}"


def measurement(
    collective: str, n_bytes: int, machines: Machines, time_s: float, **optional: Any
) -> dict[str, Any]:
    """One row of the schema of collective measurements."""
    return {
        "collective": collective, "bytes": n_bytes, "n_gpus": machines.n_gpus,
        "n_nodes": machines.n_nodes, "gpus_per_node": machines.n_gpus // machines.n_nodes,
        "time_s": time_s, "link": "intra" if machines.n_nodes == 1 else "inter", **optional,
    }  # fmt: skip
