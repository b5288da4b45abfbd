"""A sweep on Dask: chunk numbers and the spec are sent; local workers write their parts themselves,
those of a scheduler, which may be elsewhere, send them back.

A task is as many chunks as a worker does in half a second, so that what Dask does for each task
costs little beside it, and never more than its share of half of what is left. Workers read the
model and the tables of the spec by the same paths as we do, and refuse to work if what they read is
not the same.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Collection, Iterator
from typing import Any

from hybridperf.explore.sweeps.chunk import evaluate
from hybridperf.explore.sweeps.spec import SweepSpec, read_spec
from hybridperf.explore.sweeps.store import SweepStore, parquet_bytes, sweep_identity
from hybridperf.io import InputError
from hybridperf.io import workers as workers_of_dask

_TASK_S = 0.5


def do(
    spec: SweepSpec, todo: Collection[int], store: SweepStore, workers: int | None,
    scheduler: str | None,
) -> Iterator[int]:  # fmt: skip
    """Chunks done by workers and put into the store, each as it is there, in any order."""
    asked, folder = json.dumps(dict(spec.document)), str(spec.folder.resolve())
    shared = asked, folder, store.hash, None if scheduler else str(store.out.resolve())
    tasks = _Tasks(sorted(todo), workers or 1)
    for first, parts in workers_of_dask.each(
        _parts, shared, tasks, f"sweep-{store.hash}", workers, scheduler
    ):
        for chunk, part in parts:
            if isinstance(part, bytes):
                store.write(chunk, part)
            else:
                store.written(chunk, part)
        yield from tasks.finished(first)


class _Tasks:
    """Chunks in tasks of half a second each, by how fast they have been done so far."""

    def __init__(self, chunks: list[int], workers: int):
        self._left, self._workers = chunks, workers
        self._sent: dict[int, list[int]] = {}
        self._done, self._first_s = 0, 0.0

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return self

    def __next__(self) -> tuple[int, list[int]]:
        if not self._left:
            raise StopIteration
        since_s = time.monotonic() - self._first_s
        each = self._done * _TASK_S / since_s / self._workers if self._done else 1
        share = len(self._left) / (2 * self._workers)
        count = max(1, int(min(each, share)))
        task, self._left = self._left[:count], self._left[count:]
        self._sent[task[0]] = task
        return task[0], task

    def finished(self, first: int) -> list[int]:
        """The chunks of a task, from its first."""
        task = self._sent.pop(first)
        if not self._first_s:  # has compiled: no measure
            self._first_s = time.monotonic()
        else:
            self._done += len(task)
        return task


def _parts(
    asked: str, folder: str, expected: str, out: str | None, first: int, chunks: list[int],
    cores: list[int] | None,
) -> list[tuple[int, bytes | str]]:  # fmt: skip
    """On a worker: some chunks with their parts, or with sums of parts that it has stored."""
    del first
    spec, identity = _read_once(asked, folder)  # first: pinned, `here` would be another machine
    workers_of_dask.pin(cores)
    if identity["hash"] != expected:
        differs = "another model, table or version than this machine"
        raise InputError(f"a worker has {differs}; install and copy the same to both")
    parts = ((chunk, parquet_bytes(evaluate(spec, chunk))) for chunk in chunks)
    if out is None:
        return list(parts)
    store = SweepStore(out, identity)
    return [(chunk, store.write(chunk, part)) for chunk, part in parts]


@functools.lru_cache(maxsize=4)
def _read_once(asked: str, folder: str) -> tuple[SweepSpec, dict[str, Any]]:
    spec = read_spec(json.loads(asked), folder)
    return spec, sweep_identity(spec.identity())  # hashes all weights: not for every chunk
