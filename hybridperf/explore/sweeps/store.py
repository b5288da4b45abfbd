"""Where a sweep keeps finished chunks, so that it can be stopped and continued at any moment.

    OUT.parts/sweep.json                 which sweep the parts are of
    OUT.parts/part-00000012-HASH-SUM.parquet    one finished chunk, moved into place when it is
                                         whole; SUM is of its bytes
    OUT.parts/rows-SUM.parquet           rows that were given as a frame
    OUT                                  all parts in order, a row group each, with the sweep as
                                         metadata; then the parts are removed

HASH is of the spec, the model and the versions: parts of another sweep are never taken for ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

import hybridperf
from hybridperf.io import InputError, is_stream, read_json, replacing, write_json
from hybridperf.io.process import keeping
from hybridperf.io.sums import check_sum, seal

_SCHEMA_VERSION = 1
_KEY = b"hybridperf/sweep"  # of the metadata of OUT
_COMPRESSION = "lz4"  # zstd: a tenth smaller, twice as long to write and to read
_KEPT = "what is done is kept in {} and the same command goes on from there"
_NEW_OUT = "choose another --out, or give --restart to"


def sweep_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep is, with the versions that its numbers may depend on, and the hash of it all."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "pandas", "pyarrow")
    versions = {"hybridperf": hybridperf.__version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in packages}
    whole = {**identity, "versions": versions}
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
    return {**whole, "hash": digest[:16]}


class SweepStore:
    """The files of one sweep. `open` first; one run at a time."""

    def __init__(self, out: str | os.PathLike, identity: Mapping[str, Any]):
        self.out, self.identity, self.hash = _behind(out), identity, str(identity["hash"])
        self.folder = folder_of_parts(out)
        self._again = False  # whether what OUT holds is to be replaced; it stays until then
        self._sums: dict[int, str] = {}  # of the parts that are there, by chunk
        if not self.out.name.endswith(".parquet"):
            expected = "expected an output name ending in .parquet"
            raise InputError(f"{expected}, got {self.out.name}; rename it")
        if self.out.is_dir() or is_stream(self.out):
            what = "a folder" if self.out.is_dir() else "a device or pipe"
            raise InputError(f"{self.out} is {what}; give the name of a file for the output")

    @contextlib.contextmanager
    def open(self, *, restart: bool = False) -> Iterator[None]:
        """Take the folder of parts for this run; `InputError` if it or OUT is of another sweep."""
        self._refuse_others(restart)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        self._again = restart
        with self._alone(), keeping(_KEPT.format(self.folder)):
            if restart:
                for path in self.folder.glob("part-*.parquet"):
                    path.unlink()
            if restart or not (self.is_complete() or self._describes_us()):
                path = self.folder / "sweep.json"
                write_json(path, "sweep-parts", _SCHEMA_VERSION, dict(self.identity))
            for path in self.folder.glob(".*"):  # begun when an earlier run was killed
                if path.name != ".lock":
                    path.unlink()
            yield
        if self.is_complete():
            shutil.rmtree(self.folder, ignore_errors=True)

    def is_complete(self) -> bool:
        """Whether OUT is there and of this sweep."""
        return not self._again and self.out.exists() and _hash_in(self.out) == self.hash

    def done(self, chunks: int) -> set[int]:
        """Chunks whose parts are there with all their bytes; a damaged part is forgotten."""
        for path in self.folder.glob(f"part-*-{self.hash}*.parquet"):
            _, number, _, *sums = path.stem.split("-")
            if sums == [_sum(path.read_bytes())] and int(number) < chunks:
                self.written(int(number), sums[0])
            else:
                path.unlink(missing_ok=True)
        return set(self._sums)

    def part(self, chunk: int) -> bytes:
        return self._part(chunk).read_bytes()

    def write(self, chunk: int, part: bytes) -> str:
        """Keep a part; the sum of its bytes."""
        self.written(chunk, _sum(part))
        with self._kept(), replacing(self._part(chunk), "wb") as handle:
            handle.write(part)
        return self._sums[chunk]

    def written(self, chunk: int, sum_: str) -> None:
        """A part of these bytes is there."""
        self._sums[chunk] = sum_

    def merge(self, chunks: int) -> Iterator[pa.Table]:
        """Put all parts into OUT, in order, giving each on the way."""
        described = {_KEY: json.dumps(self.identity, sort_keys=True).encode()}
        whole = self.folder / "whole.parquet"
        with self._kept(), replacing(whole, "wb") as handle:
            first = pq.read_schema(self._part(0)).with_metadata(described)
            with _writer(handle, first) as writer:
                for chunk in range(chunks):
                    table = read_part(self.part(chunk))
                    if rows := table.num_rows:
                        named = table.replace_schema_metadata(described)
                        writer.write_table(named, row_group_size=rows)
                    yield table
        try:
            os.replace(whole, self.out)
            self._again = False
        except OSError as error:
            raise _cannot_write(self.out, error) from error

    def read(self) -> Iterator[pa.Table]:
        """Row groups of the finished file, one after the other."""
        with pq.ParquetFile(self.out) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)

    def _part(self, chunk: int) -> Path:
        return self.folder / f"part-{chunk:08d}-{self.hash}-{self._sums[chunk]}.parquet"

    def _refuse_others(self, restart: bool) -> None:
        if restart:
            return
        try:
            check_sum(self.out)
        except InputError as error:
            raise InputError(f"{error}; --restart computes it again") from error
        if self.is_complete() or self._begun_over(self.out):
            return
        another = "another sweep: spec, model or versions differ"
        if self.out.exists():
            if _hash_in(self.out) is None:
                what = "is there already and is no sweep"
                raise InputError(f"{self.out} {what}; {_NEW_OUT} replace it")
            raise InputError(f"{self.out} holds {another}; {_NEW_OUT} replace it")
        if (self.folder / "sweep.json").exists() and not self._describes_us():
            raise InputError(f"{self.folder} holds parts of {another}; {_NEW_OUT} begin again")

    def _begun_over(self, out: Path) -> bool:
        """Whether an earlier run was given --restart to replace OUT, and was stopped."""
        described = self.folder / "sweep.json"
        begun = described.exists() and self._describes_us()
        return begun and out.exists() and out.stat().st_mtime_ns < described.stat().st_mtime_ns

    def _describes_us(self) -> bool:
        path = self.folder / "sweep.json"
        if not path.exists():
            return False
        return read_json(path, "sweep-parts", _SCHEMA_VERSION).get("hash") == self.hash

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's lock, which the system releases however the process ends."""
        try:
            import fcntl
        except ImportError:  # not on Windows, where nothing stops a second run
            yield
            return
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                mend = "wait for it or choose another --out"
                raise InputError(f"another run is writing {self.out}; {mend}") from error
            yield

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Errors in writing add that finished chunks are kept."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{error}; {_KEPT.format(self.folder)}") from error


def folder_of_parts(out: str | os.PathLike) -> Path:
    """Where what is done is kept until all is."""
    file = _behind(out)
    return file.with_name(f"{file.name}.parts")


def _sum(part: bytes) -> str:
    return hashlib.blake2b(part, digest_size=8).hexdigest()


def _behind(path: str | os.PathLike) -> Path:
    """The file that a link leads to, so that the link stays."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def _cannot_write(path: Path, error: OSError) -> InputError:
    mend = "choose another place for the output"
    return InputError(f"cannot write {path}: {error.strerror or error}; {mend}")


def parquet_bytes(table: pa.Table) -> bytes:
    """One part as the bytes of its file."""
    buffer = io.BytesIO()
    with _writer(buffer, table.schema) as writer:
        writer.write_table(table)
    seal(buffer)
    return buffer.getvalue()


def read_part(part: bytes, columns: list[str] | None = None) -> pa.Table:
    """All or some columns of a part from its file's bytes; one thread, others use other cores."""
    with pq.ParquetFile(pa.BufferReader(part)) as file:
        return file.read(columns=columns, use_threads=False)


def _writer(target: IO, schema: pa.Schema) -> pq.ParquetWriter:
    words = [field.name for field in schema if pa.types.is_string(field.type)]
    return pq.ParquetWriter(target, schema, use_dictionary=words, compression=_COMPRESSION)


def _hash_in(path: Path) -> str | None:
    """The hash of the sweep that a file holds; None where it is no sweep."""
    try:
        described = (pq.read_metadata(path).metadata or {}).get(_KEY)
        return None if described is None else str(json.loads(described).get("hash"))
    except (OSError, pa.ArrowException, ValueError):
        return None
