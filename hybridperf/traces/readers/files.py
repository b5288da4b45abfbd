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
from typing import IO, Any, TypeVar

from hybridperf.io import InputError
from hybridperf.io.budget import TooLarge, Unpacked, check_budget, check_json, most_unpacked

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_TAR_MARK = slice(257, 262)  # "ustar" stands there in the header of the first member
_OPENED = (".json", ".json.gz", ".sqlite", ".tar", ".tar.gz", ".tgz", ".zip")
_DEPTH = 3  # a compressed trace in an archive in a folder; deeper is no collection of traces
_DAMAGED = (
    EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile,
    RuntimeError, ValueError, OSError,
)  # fmt: skip

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

    `endings`: of what is opened within folders and archives, lower-case; `left_out` takes the error
    of an archive without traces among other files.

    Raises: InputError: nothing there, nothing in it, or damaged.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not paths:
        mend = "name files, archives or folders"
        raise InputError(f"expected the file of at least one trace, got none; {mend}")
    opener = _Opener(tuple(endings), left_out)
    for given in paths:
        path = Path(given)
        if not path.is_dir():
            yield from opener.of_path(path, False)
            continue
        files = (one for one in path.rglob("*") if one.is_file())
        inside = sorted(one for one in files if one.name.lower().endswith(opener.endings))
        if not inside:
            raise opener.nothing_in(f"the folder {path}")
        for one in inside:
            yield from opener.of_path(one, True)


@dataclass(frozen=True)
class _Opener:
    """Opens what has one of some endings."""

    endings: tuple[str, ...]
    left_out: list[InputError] | None

    def nothing_in(self, place: str) -> InputError:
        found = f"found no file ending in {', '.join(self.endings)}"
        return InputError(f"expected traces in {place}, {found}; check the path")

    def of_path(self, path: Path, among_others: bool) -> Iterator[TraceFile]:
        try:
            with path.open("rb") as handle:
                most = most_unpacked(path.stat().st_size)
                yield from self.unpacked(str(path), handle, among_others, _DEPTH, most)
        except FileNotFoundError as error:
            expected = f"expected a trace at {path}"
            raise InputError(f"{expected}, found nothing; check the path") from error
        except OSError as error:
            why = error.strerror or "it is damaged"
            raise InputError(f"cannot read {path}: {why}; restore a copy") from error

    def unpacked(
        self, source: str, handle: IO[bytes], among_others: bool, depth: int, most: int
    ) -> Iterator[TraceFile]:
        """Unpack until text is left, up to `most` bytes. Reading errors of any packer become one
        sentence.
        """
        if depth < 0:
            raise InputError(f"{source} is packed into more than {_DEPTH} layers; unpack it first")
        head = _guarded(source, lambda: handle.read(512))
        _guarded(source, lambda: handle.seek(0))
        if head[:2] == _GZIP:
            inside: Any = Unpacked(gzip.GzipFile(fileobj=handle, mode="rb"), most)
            yield from self.unpacked(source, inside, among_others, depth - 1, most)
        elif head[:4] == _ZIP or head[_TAR_MARK] == b"ustar":
            members = (_zip_members if head[:4] == _ZIP else _tar_members)(handle, most)
            found = False
            while (member := _guarded(source, lambda: next(members, None))) is not None:
                name, content = member
                # macOS puts its own files beside
                mine = not Path(name).name.startswith("._")
                if name.lower().endswith(self.endings) and mine:
                    found = True
                    yield from self.unpacked(f"{source}!{name}", content, True, depth - 1, most)
            if found:
                return
            error = self.nothing_in(f"the archive {source}")
            if self.left_out is None or not among_others:
                raise error
            self.left_out.append(error)
        else:
            text = _guarded(source, handle.read)
            if not text.strip():
                mend = "record it again or restore a copy"
                raise InputError(f"expected a trace in {source}, the file is empty; {mend}")
            if text.lstrip()[:1] in (b"{", b"["):
                _guarded(source, lambda: check_json(text))
            yield TraceFile(source, text, among_others)


def _tar_members(handle: IO[bytes], most: int) -> Iterator[tuple[str, IO[bytes]]]:
    del most  # a tar is as long as what it holds
    with tarfile.open(fileobj=handle, mode="r:") as archive:
        for member in archive:
            if member.isfile() and (content := archive.extractfile(member)) is not None:
                yield member.name, content


def _zip_members(handle: IO[bytes], most: int) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(handle) as archive:
        check_budget(sum(info.file_size for info in archive.infolist()), most)
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
    except TooLarge as error:
        raise InputError(f"{source}: {error}") from error
    except _DAMAGED as error:
        damaged = f"{source} is cut off or damaged and cannot be unpacked"
        raise InputError(f"{damaged}; copy it again") from error
