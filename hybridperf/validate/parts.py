"""Finished parts of a claim on disk: not computed again while program, tables, seed and effort are
the same.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hybridperf
from hybridperf.io import InputError, read_json, write_json

SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts of one claim in a folder: files of a schema, each with the `version` it was made by."""

    folder: Path
    schema: str
    version: Mapping[str, Any]

    def kept(self, name: str) -> dict[str, Any] | None:
        """A part that the same program finished from the same data."""
        path = self.folder / f"{name}.json"
        try:
            part = read_json(path, self.schema, SCHEMA_VERSION)
        except InputError:
            return None
        return part if part.get("version") == self.version else None

    def keep(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a finished part; returns it with its version."""
        part = {"version": self.version, **content}
        write_json(self.folder / f"{name}.json", self.schema, SCHEMA_VERSION, part)
        return part


class TimeLeft:
    """Says how long the jobs that are left may take."""

    def __init__(self, jobs: int, say: Callable[[str], None]) -> None:
        self.jobs, self.say, self.done, self.begun_s = jobs, say, 0, time.monotonic()

    def computed(self, what: str) -> None:
        """Say that a job was computed; call `self.passed()` after it, as after those found done."""
        took_s = (time.monotonic() - self.begun_s) / (self.done + 1)
        left_s = took_s * (self.jobs - self.done - 1)
        self.say(f"{what}; about {left_s / 60:.0f} min left")

    def passed(self) -> None:
        self.done += 1


@functools.cache
def program_digest(names: tuple[str, ...]) -> str:
    """Digest of program files and folders under `hybridperf/`, read once: what runs stays as is."""
    library, digest = Path(hybridperf.__file__).parent, hashlib.sha256()
    for name in names:
        folder = library / name
        for path in sorted(folder.rglob("*.*")) if folder.is_dir() else [folder]:
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def left_out_text(left_out: Mapping[str, Mapping[str, int]]) -> str:
    """Rows of each table that could not be used, by reason."""
    lines = [
        f"  {name}: {count} rows, {reason}"
        for name, reasons in sorted(left_out.items())
        for reason, count in reasons.items()
    ]
    return "rows left out:\n" + "\n".join(lines) if lines else "no row was left out"
