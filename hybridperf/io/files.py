"""Whole files: written under a temporary name and moved into place, so that a reader never sees
half of one.

Every JSON file of ours says what it is: `{"schema": "hybridperf/<kind>", "schema_version": n,
...}`. A reader refuses another kind and a newer version, each in one sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hybridperf.io.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Open a temporary file for writing; move it to `path` when the block ends without an error."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix, near = f".{path.name}.", path.parent
        # closed below: it is moved after that
        handle = tempfile.NamedTemporaryFile(mode, dir=near, prefix=prefix, delete=False)  # noqa: SIM115
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; choose another place for the output"
        ) from error
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        # a temporary file is private; what we leave behind is ordinary
        os.chmod(handle.name, 0o666 & ~_umask())
        os.replace(handle.name, path)
    except OSError as error:
        _forget(handle.name)
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another"
            " place"
        ) from error
    except BaseException:
        _forget(handle.name)
        raise


def write_json(path: str | os.PathLike, kind: str, version: int, content: dict[str, Any]) -> None:
    """Write `content` as one of our JSON files, atomically."""
    document = {"schema": f"hybridperf/{kind}", "schema_version": version, **content}
    with replacing(path) as handle:
        json.dump(document, handle, indent=1, allow_nan=False)
        handle.write("\n")


def read_json(path: str | os.PathLike, kind: str, version: int) -> dict[str, Any]:
    """Content of one of our JSON files; `InputError` if missing, damaged, another or newer."""
    path = Path(path)
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"expected a file at {path}, found none; check the path") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"expected a hybridperf/{kind} file; {path} is another or is damaged (not JSON:"
            f" {error}); check the path, or make it again"
        ) from error
    found = document.get("schema") if isinstance(document, dict) else None
    if found != f"hybridperf/{kind}":
        raise InputError(
            f"expected a hybridperf/{kind} file at {path}, found {found or 'no schema field'!s};"
            " check the path"
        )
    newer = document.get("schema_version")
    if not isinstance(newer, int) or newer > version:
        raise InputError(
            f"{path} has schema version {newer}, this hybridperf reads up to {version}; upgrade"
            " hybridperf"
        )
    return document


def check_folder_writable(folder: str | os.PathLike) -> None:
    """`InputError` where a folder could not be written into, or not be made; makes nothing."""
    path = Path(folder)
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise InputError(f"cannot write into {path}: {there} is no folder; choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(
            f"cannot write into {path}: permission denied at {there}; choose another --out"
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _forget(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)
