"""Files that hold traces, opened: JSON, compressed or not, alone, in an archive (tar, tar.gz, zip)
or in a folder.

What a file is, is told from its first bytes, never from its name; within folders and archives,
names choose what to open.
"""

from __future__ import annotations

import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from hybridperf.io import InputError

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_TAR_MARK = slice(257, 262)  # "ustar" stands there in the header of the first member
_OPENED = (".json", ".json.gz", ".tar", ".tar.gz", ".tgz", ".zip")
_DEPTH = 3  # a compressed trace in an archive in a folder; deeper is no collection of traces
_DAMAGED = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    tarfile.TarError,
    zipfile.BadZipFile,
    RuntimeError,
    ValueError,
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class TraceFile:
    """One trace's text, its source, and whether a folder or archive had others."""

    source: str
    text: bytes
    among_others: bool


def trace_files(
    paths: Sequence[str | os.PathLike] | str | os.PathLike,
    endings: Sequence[str] = _OPENED,
    left_out: list[InputError] | None = None,
) -> Iterator[TraceFile]:
    """The traces of files, archives and folders, one at a time.

    Args:
        paths: files, archives and folders.
        endings: lower-case endings of what is opened within folders and archives.
        left_out: takes the error of an archive without traces among other files.

    Raises: InputError: nothing there, nothing in it, or damaged.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not paths:
        raise InputError(
            "expected the file of at least one trace, got none; name files, archives or folders"
        )
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = sorted(
                p
                for p in path.rglob("*")
                if p.is_file() and p.name.lower().endswith(tuple(endings))
            )
            if not inside:
                raise InputError(
                    f"expected traces in the folder {path}, found no file ending in"
                    f" {', '.join(endings)}; check the path"
                )
            for one in inside:
                yield from _of_path(one, endings, True, left_out)
        else:
            yield from _of_path(path, endings, False, left_out)


def _of_path(
    path: Path, endings: Sequence[str], among_others: bool, left_out: list[InputError] | None
) -> Iterator[TraceFile]:
    try:
        with path.open("rb") as handle:
            yield from _opened(str(path), handle, tuple(endings), among_others, left_out, _DEPTH)
    except FileNotFoundError as error:
        raise InputError(f"expected a trace at {path}, found nothing; check the path") from error
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or 'it is damaged'}; restore a copy"
        ) from error


def _opened(
    source: str,
    handle: IO[bytes],
    endings: tuple[str, ...],
    among_others: bool,
    left_out: list[InputError] | None,
    depth: int,
) -> Iterator[TraceFile]:
    """Unpack until text is left. Reading errors of any packer become one sentence."""
    if depth < 0:
        raise InputError(f"{source} is packed into more than {_DEPTH} layers; unpack it first")
    head = _guarded(source, lambda: handle.read(512))
    _guarded(source, lambda: handle.seek(0))
    if head[:2] == _GZIP:
        unpacked = gzip.GzipFile(fileobj=handle, mode="rb")
        yield from _opened(source, unpacked, endings, among_others, left_out, depth - 1)  # type: ignore[arg-type]
    elif head[:4] == _ZIP:
        yield from _of_archive(
            source, _zip_members(source, handle), endings, among_others, left_out, depth
        )
    elif head[_TAR_MARK] == b"ustar":
        yield from _of_archive(
            source, _tar_members(source, handle), endings, among_others, left_out, depth
        )
    else:
        text = _guarded(source, handle.read)
        if not text.strip():
            raise InputError(
                f"expected a trace in {source}, the file is empty; record it again or restore a"
                " copy"
            )
        yield TraceFile(source, text, among_others)


def _of_archive(
    source: str,
    members: Iterator[tuple[str, IO[bytes]]],
    endings: tuple[str, ...],
    among_others: bool,
    left_out: list[InputError] | None,
    depth: int,
) -> Iterator[TraceFile]:
    found = False
    while (member := _guarded(source, lambda: next(members, None))) is not None:
        name, handle = member
        if name.lower().endswith(endings) and not Path(name).name.startswith(
            "._"
        ):  # macOS puts its own files beside
            found = True
            yield from _opened(f"{source}!{name}", handle, endings, True, left_out, depth - 1)
    if not found:
        error = InputError(
            f"expected traces in the archive {source}, found no file ending in"
            f" {', '.join(endings)}; check the path"
        )
        if left_out is None or not among_others:
            raise error
        left_out.append(error)


def _tar_members(source: str, handle: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=handle, mode="r:") as archive:
        for member in archive:
            if member.isfile() and (content := archive.extractfile(member)) is not None:
                yield member.name, content


def _zip_members(source: str, handle: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(handle) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as content:
                    yield info.filename, content


def _guarded(source: str, read: Callable[[], Result]) -> Result:
    """What `read` returns; `InputError` for a file that its packer finds cut off or damaged."""
    try:
        return read()
    except InputError:
        raise
    except (*_DAMAGED, OSError) as error:
        raise InputError(
            f"{source} is cut off or damaged and cannot be unpacked; copy it again"
        ) from error
