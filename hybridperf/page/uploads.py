"""Files that a reader dropped on the page: bounded, under names of ours, gone with the server."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from hybridperf.io import InputError

FOLDER = "hybridperf-page-"  # then the server's process, whose end may leave it behind
MOST_BYTES = 512 << 20  # of one file
_MOST_FILES = 32  # the oldest goes first
_ENDINGS = (".json.gz", ".csv.gz", ".json", ".csv", ".parquet", ".pt2", ".toml", ".zip", ".gz")
_ID = re.compile(r"[0-9a-f]{16}")


class Uploads:
    """Files dropped on the page of one server, in a folder that goes with it."""

    def __init__(self) -> None:
        _remove_left()
        self._folder = tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-")
        self._files: dict[str, tuple[Path, str]] = {}

    async def add(self, name: str, chunks: AsyncIterator[bytes]) -> str:
        """Keep a file; the id that it is asked for by.

        Raises:
            InputError: it is too large, or of no kind that a command reads.
        """
        ending = next((one for one in _ENDINGS if name.lower().endswith(one)), None)
        if ending is None:
            kinds = ", ".join(_ENDINGS)
            raise InputError(f"expected a file ending in {kinds}, got {name!r}; rename it")
        key = secrets.token_hex(8)
        path, size = Path(self._folder.name) / f"{key}{ending}", 0
        try:
            with path.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > MOST_BYTES:
                        most = f"{MOST_BYTES >> 20} MiB"
                        raise InputError(
                            f"expected a file of at most {most}, got more; use the command"
                        )
                    file.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._files[key] = (path, Path(name).name)
        while len(self._files) > _MOST_FILES:
            oldest = next(iter(self._files))
            self._files.pop(oldest)[0].unlink(missing_ok=True)
        return key

    def get(self, key: str) -> tuple[Path, str]:
        """Where a file is, and what its owner calls it.

        Raises:
            InputError: there is none.
        """
        if not _ID.fullmatch(key) or key not in self._files:
            raise InputError("expected a file that was dropped here, got none; drop it again")
        return self._files[key]

    def close(self) -> None:
        self._folder.cleanup()


def _remove_left() -> None:
    """Remove what servers that were killed have left: folders of processes that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        number = folder.name.removeprefix(FOLDER).partition("-")[0]
        if number.isdecimal() and not _runs(int(number)):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays


def _runs(process: int) -> bool:
    try:
        with contextlib.suppress(PermissionError, OverflowError):
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
