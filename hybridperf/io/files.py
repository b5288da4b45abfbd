"""Whole files: written under a temporary name and moved into place, so that a reader never sees
half of one; and whole folders, whose files change together.

Several files that belong together (a model's knobs and its weights) are written into a new folder
within theirs, which one rename to `.saved` commits; then each moves to its place. A process that
ends before the rename leaves the old files, one that ends after it the new ones: whoever reads or
writes next finishes the moves (`settled`). Temporary files of processes that have ended are
removed by the next writer.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hybridperf.io.errors import InputError
from hybridperf.io.sums import remember, seal

try:
    import fcntl
except ImportError:  # not on Windows, where nothing stops a second writer
    fcntl = None  # type: ignore[assignment]

_TEMPORARY = ".hybridperf-"  # then the process and a random word
_SAVED = ".saved"
MOVED: deque[Path] = deque(maxlen=8)  # the last files and folders that took their places
_OWN_OUTPUT = re.compile(r"/dev/(?:stdout|stderr|fd/(\d+))")
_ELSEWHERE = "choose another place for the output"
_FREE = "free some space or choose another place"


@contextlib.contextmanager
def replacing(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Open a temporary file for writing; move it to `path` when the block ends without an error.

    Of a link, the file that it leads to is replaced. Devices, pipes and `/dev/stdout` are written
    to as they are.
    """
    path = Path(path)
    if is_stream(path):
        with _writing(path, _ELSEWHERE), _opened(path, mode) as handle:
            yield handle
        return
    place = Path(os.path.realpath(path))
    with _writing(path, _ELSEWHERE):
        place.parent.mkdir(parents=True, exist_ok=True)
        _clean(place.parent)
        # closed below: it is moved after that
        handle = tempfile.NamedTemporaryFile(  # noqa: SIM115
            mode.replace("wb", "w+b"), dir=place.parent, delete=False,
            prefix=f"{_prefix()}{place.name[:40]}-", encoding=None if "b" in mode else "utf-8",
        )  # fmt: skip
    try:
        with _writing(path, _FREE), handle:
            _lock(handle.fileno())
            yield handle
            if place.suffix == ".parquet":
                seal(handle)
            handle.flush()
            remember(handle.name)
            # a temporary file is private; what we leave behind is ordinary
            os.chmod(handle.name, 0o666 & ~_umask())
            os.fsync(handle.fileno())
            os.replace(handle.name, place)
            if not place.parent.name.startswith(_TEMPORARY):
                MOVED.append(path)
            _sync(place.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(handle.name)
        raise


@contextlib.contextmanager
def replacing_in(folder: str | os.PathLike) -> Iterator[Path]:
    """A new folder to fill; when the block ends without an error, its files take their places in
    `folder`, all or none. Other files there stay.
    """
    folder = Path(folder)
    with _writing(folder, _ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
        _clean(folder)
        new = Path(tempfile.mkdtemp(dir=folder, prefix=_prefix()))
    try:
        with _held(new, exclusive=True):
            yield new
            # a new folder that another is filled by is ours alone, and held above
            ours = folder.name.startswith(_TEMPORARY)
            alone = contextlib.nullcontext() if ours else _held(folder, exclusive=True)
            with _writing(folder, _FREE), alone:
                _settle(folder)
                os.rename(new, folder / _SAVED)
                _sync(folder)
                _settle(folder)
                if not ours:
                    MOVED.append(folder)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, InputError):  # of a file of `new`, which nobody has heard of
            raise InputError(str(error).replace(str(new), str(folder))) from error
        raise


@contextlib.contextmanager
def settled(folder: str | os.PathLike) -> Iterator[None]:
    """Read the files of a folder while nobody changes them, after what an earlier process committed
    has moved into place.
    """
    folder = Path(folder)
    if (folder / _SAVED).is_dir():
        with _writing(folder, "finish the save that was interrupted where it can be written"):  # noqa: SIM117
            with _held(folder, exclusive=True):
                _settle(folder)
    with _held(folder, exclusive=False):
        yield


def is_stream(path: str | os.PathLike) -> bool:
    """Whether a path is no place for a file but a device, a pipe, or this process's output."""
    path = Path(path)
    named = _OWN_OUTPUT.fullmatch(str(path)) is not None
    there = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return named or there


def check_folder_writable(folder: str | os.PathLike) -> None:
    """`InputError` where a folder could not be written into, or not be made; makes nothing."""
    path = Path(folder)
    there = next(one for one in (path, *path.absolute().parents) if os.path.exists(one))
    if not there.is_dir():
        raise InputError(f"cannot write into {path}: {there} is no folder; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(
            f"cannot write into {path}: permission denied at {there}; choose another place"
        )


@contextlib.contextmanager
def _writing(path: Path, mend: str) -> Iterator[None]:
    """Errors of the file system as one sentence."""
    try:
        yield
    except BrokenPipeError:  # whoever read our output has seen enough
        raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; {mend}") from error


def _opened(path: Path, mode: str) -> IO:
    """A stream, open for writing; our own output where it stands, not from its beginning."""
    if found := _OWN_OUTPUT.fullmatch(str(path)):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        number = {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))
        descriptor = os.dup(int(found[1]) if number is None else number)
        return os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8")
    return open(path, mode, encoding=None if "b" in mode else "utf-8")


def _prefix() -> str:
    return f"{_TEMPORARY}{os.getpid()}-"


def _clean(folder: Path) -> None:
    """Remove what processes that have ended left; of a living one, here or on another host that
    shares the folder, `_lock` or its number tells.
    """
    for path in folder.glob(f"{_TEMPORARY}*-*") if fcntl else ():
        number = path.name.removeprefix(_TEMPORARY).partition("-")[0]
        if not number.isdecimal() or _lives(int(number)):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(descriptor)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _settle(folder: Path) -> None:
    """Move what was committed to its places."""
    saved = folder / _SAVED
    for one in sorted(saved.iterdir()) if saved.is_dir() else ():
        os.replace(one, folder / one.name)
    if saved.is_dir():
        _sync(folder)
        saved.rmdir()


@contextlib.contextmanager
def _held(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold a folder's lock, which the system releases however the process ends."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        _lock(descriptor, exclusive=exclusive)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int, *, exclusive: bool = True) -> None:
    with contextlib.suppress(OSError):  # file systems without locks
        if fcntl:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk, where its file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
