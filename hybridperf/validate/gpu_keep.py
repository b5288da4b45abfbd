"""Finished parts of `validate gpu-ops` on disk, which hold as long as program, tables, seed and
effort are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hybridperf
from hybridperf.io import InputError, read_json, write_json
from hybridperf.model.published.ops import FILES, table_path

SCHEMA, SCHEMA_VERSION = "validate-gpu-part", 1
_DEPENDS_ON = (  # what a result depends on, beside the tables
    *("learning/prior", "ops", "model/families.py", "model/published/ops.py"),
    *(f"validate/{name}.py" for name in ("null_models", "gpu_lines", "gpu_scores")),
)


@dataclasses.dataclass(frozen=True)
class Keep:
    """Where trained priors are kept, and what they depend on."""

    folder: Path
    version: Mapping[str, Any]


def kept_part(path: Path, version: Mapping[str, Any]) -> dict[str, Any] | None:
    """A part that was finished by the same program from the same data."""
    if not path.is_file():
        return None
    try:
        part = read_json(path, SCHEMA, SCHEMA_VERSION)
    except InputError:
        return None
    return part if part["version"] == version else None


def keep_part(path: Path, part: dict[str, Any]) -> None:
    """Write a finished part, with its `version`."""
    write_json(path, SCHEMA, SCHEMA_VERSION, part)


def version_of(data: Path, seed: int, effort: Any) -> dict[str, Any]:
    """What a result depends on: program, tables, seed and effort."""
    sizes = {
        name: table_path(data, name).stat().st_size
        for name in FILES
        if table_path(data, name).is_file()
    }
    tables_digest = hashlib.sha256(repr(sorted(sizes.items())).encode()).hexdigest()[:16]
    return {"program": _program(), "tables": tables_digest, "seed": seed, "effort": repr(effort)}


@functools.cache
def _program() -> str:
    """Digest of the files that a result depends on, read once: what runs does not change when they
    do.
    """
    library, digest = Path(hybridperf.__file__).parent, hashlib.sha256()
    for name in _DEPENDS_ON:
        for path in (
            sorted((library / name).rglob("*.py"))
            if (library / name).is_dir()
            else [library / name]
        ):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
