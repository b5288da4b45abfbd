"""Arrays in a file of their own (.npz), next to the JSON file that names their hash."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hybridperf.io.files import replacing


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name, atomically."""
    with replacing(path, "wb") as handle:
        np.savez(handle, **arrays)  # type: ignore[arg-type]  # its stub takes the arrays for the flag


def read_arrays(path: str | os.PathLike, expected_hash: str) -> dict[str, np.ndarray]:
    """Arrays by name; `ValueError` where the file is missing, damaged, or of another hash."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path.name} is missing beside it")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} beside it cannot be read") from error
    if hash_of(arrays) != expected_hash:
        raise ValueError(f"{path.name} beside it belongs to another model")
    return arrays


def hash_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Short hash of names and contents."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:16]
