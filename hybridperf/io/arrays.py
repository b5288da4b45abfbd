"""Arrays in a file of their own (.npz), next to the JSON file that names their hash."""

from __future__ import annotations

import hashlib
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from hybridperf.io.files import replacing

_DAMAGED = (
    OSError, EOFError, ValueError, TypeError, SyntaxError, tokenize.TokenError, RuntimeError,
    NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name, atomically."""
    with replacing(path, "wb") as handle:
        np.savez(handle, **arrays)  # type: ignore[arg-type]  # its stub takes the arrays for the flag


def read_arrays(
    path: str | os.PathLike, expected_hash: str, *, checked: bool = True
) -> dict[str, np.ndarray]:
    """Arrays by name; `ValueError` where the file is missing, damaged, or of another hash.

    `checked`: False for files of versions whose hash knew neither types nor shapes.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise ValueError(f"{path.name} is missing beside it")
    try:
        with zipfile.ZipFile(path) as stored:
            if sum(one.file_size for one in stored.infolist()) > path.stat().st_size:
                raise ValueError("sizes that are not the file's")
            arrays = {
                one.filename.removesuffix(".npy"): _array(stored, one) for one in stored.infolist()
            }
    except _DAMAGED as error:
        raise ValueError(f"{path.name} beside it cannot be read") from error
    if (hash_of(arrays) if checked else _hash_of_bytes(arrays)) != expected_hash:
        raise ValueError(f"{path.name} beside it belongs to another model")
    return arrays


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by their path, "first/kernel": the names of a file's arrays."""
    found: dict[str, Any] = {}
    for name, one in tree.items():
        path = f"{above}{name}"
        found |= flat(one, f"{path}/") if isinstance(one, Mapping) else {path: one}
    return found


def nested(arrays: Mapping[str, Any], between: str = "/") -> dict[str, Any]:
    """The nested mappings of such paths, or of others with a mark between their names."""
    found: dict[str, Any] = {}
    for path, leaf in arrays.items():
        *folders, name = path.split(between)
        at = found
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = leaf
    return found


def _array(stored: zipfile.ZipFile, one: zipfile.ZipInfo) -> np.ndarray:
    """A member as `np.savez` writes it: nothing is allocated that the file does not hold."""
    if one.compress_type != zipfile.ZIP_STORED or one.file_size != one.compress_size:
        raise ValueError("not written by us")
    with stored.open(one) as member:
        version = npy.read_magic(member)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_columns, dtype = read(member)
        content = member.read()
    if dtype.hasobject or dtype.itemsize * int(np.prod(shape, dtype=object)) != len(content):
        raise ValueError("a size that is not the file's")
    return np.frombuffer(bytearray(content), dtype).reshape(shape, order="F" if by_columns else "C")


def hash_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash of names, types, shapes and contents."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(repr((name, array.dtype.str, np.shape(arrays[name]))).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _hash_of_bytes(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:16]
