"""A sweep on Dask: chunk numbers and the spec are sent; local workers write their parts themselves,
those of a scheduler, which may be elsewhere, send them back.

Our own scheduler and workers listen on 127.0.0.1 alone, without dashboard: whoever reaches a Dask
scheduler runs code as its user. One's own cluster, with a dashboard, is `--scheduler`'s.

A task is as many chunks as a worker does in half a second, so that what Dask does for each task
costs little beside it, and never more than its share of half of what is left. A worker that dies
costs the task it was at, which another does again. Workers read the model and
the tables of the spec by the same paths as we do, and refuse to work if what they read is not the
same. Local workers take one core each.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from hybridperf.explore.sweeps.chunk import evaluate
from hybridperf.explore.sweeps.spec import SweepSpec, read_spec
from hybridperf.explore.sweeps.store import SweepStore, parquet_bytes, sweep_identity
from hybridperf.io import InputError

_RETRIES = 3
_AHEAD = 3  # tasks on their way per worker: enough to keep it busy, few enough to hold
_TASK_S = 0.5
_PATIENCE_S = 10
_Result = TypeVar("_Result")


def check_workers(workers: int | None, scheduler: str | None) -> None:
    """`InputError` for workers that cannot be."""
    if workers is not None and scheduler is not None:
        raise InputError("expected one of --workers and --scheduler, got both")
    if workers is not None and workers < 1:
        raise InputError(f"expected --workers of 1 or more, got {workers}")
    asked = workers is not None or scheduler is not None
    if asked and importlib.util.find_spec("distributed") is None:
        install = "pip install 'hybridperf[distributed]'"
        raise InputError(f"--workers and --scheduler need Dask: {install}")


def do(
    spec: SweepSpec, todo: Collection[int], store: SweepStore, workers: int | None,
    scheduler: str | None,
) -> Iterator[int]:  # fmt: skip
    """Chunks done by workers and put into the store, each as it is there, in any order."""
    document, folder = json.dumps(dict(spec.document)), str(spec.folder.resolve())
    shared = document, folder, store.hash, None if scheduler else str(store.out.resolve())
    tasks = _Tasks(sorted(todo), workers or 1)
    for first, parts in each(_parts, shared, tasks, f"sweep-{store.hash}", workers, scheduler):
        for chunk, part in parts:
            store.write(chunk, part)
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


def each(
    work: Callable[..., _Result], shared: tuple[Any, ...], tasks: Iterator[tuple[Any, ...]],
    name: str, workers: int | None, scheduler: str | None, *, large: bool = False,
) -> Iterator[tuple[int, _Result]]:  # fmt: skip
    """What work gives of tasks on workers, each with its number, as it comes, in any order.

    Args:
        work: called on a worker with `*shared`, `*task`, and the cores that workers `pin` to.
        shared: what all tasks need.
        tasks: of each its number, and what else it needs; asked for when a worker is free.
        name: of this work on the cluster.
        workers: local processes.
        scheduler: address of a scheduler, instead of them.
        large: whether what is shared is sent to each worker once, not with each task.
    """
    from distributed import KilledWorker, as_completed

    with _client(workers, scheduler) as (client, cores):
        several = max(1, len(client.scheduler_info()["workers"])) * _AHEAD
        if large:
            shared = tuple(client.scatter(one, broadcast=True) for one in shared)

        def send(task: tuple[Any, ...]) -> Any:
            options = {"key": f"{name}-{task[0]}", "retries": _RETRIES, "pure": False}
            return client.submit(work, *shared, *task, cores, **options)

        sent = {send(task): task[0] for task in itertools.islice(tasks, several)}
        coming = as_completed(list(sent), loop=client.loop)
        for future in coming:
            number = sent.pop(future)
            try:
                result = future.result()
            except KilledWorker as error:
                died = f"{error.allowed_failures + 1} workers ended at chunk {number}"
                mend = "perhaps for want of memory; take a smaller chunk"
                raise InputError(f"{died}, {mend}") from error
            future.release()  # or the cluster would hold every part until the end
            yield number, result  # before the next: what is found may end the tasks
            more = next(tasks, None)
            if more is not None:
                after = send(more)
                sent[after] = more[0]
                coming.add(after)


def _parts(
    document: str, folder: str, expected: str, out: str | None, first: int, chunks: list[int],
    cores: list[int] | None,
) -> list[tuple[int, bytes]]:  # fmt: skip
    """On a worker: some chunks with their parts; none where the store of `out` has them now."""
    del first
    spec, identity = _read_once(document, folder)  # first: pinned, `here` would be another machine
    pin(cores)
    if identity["hash"] != expected:
        differs = "another model, table or version than this machine"
        raise InputError(f"a worker has {differs}; install and copy the same to both")
    parts = ((chunk, parquet_bytes(evaluate(spec, chunk))) for chunk in chunks)
    if out is None:
        return list(parts)
    store = SweepStore(out, identity)
    for chunk, part in parts:
        store.write(chunk, part)
    return []


@functools.lru_cache(maxsize=4)
def _read_once(document: str, folder: str) -> tuple[SweepSpec, dict[str, Any]]:
    spec = read_spec(json.loads(document), folder)
    return spec, sweep_identity(spec.identity())  # hashes all weights: not for every chunk


def pin(cores: list[int] | None) -> None:
    """Keep this worker on its own of some cores: threads it has and those that JAX will start."""
    if not cores:
        return
    from distributed import get_worker

    name = str(get_worker().name)
    core = {cores[int(name) % len(cores)]} if name.isdecimal() else None
    if core and hasattr(os, "sched_setaffinity") and os.sched_getaffinity(0) != core:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.sched_setaffinity(int(thread), core)


def _check_answers(scheduler: str) -> None:
    """`InputError` where no scheduler listens, before Dask's client complains of it."""
    scheme, _, rest = scheduler.rpartition("://")
    if scheme not in ("", "tcp", "tls"):  # Dask checks the others
        return
    host, _, port = rest.rpartition(":")
    if not host or not port.isdecimal():
        expected = "expected --scheduler HOST:PORT, such as tcp://10.0.0.1:8786"
        raise InputError(f"{expected}, got {scheduler!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise _no_answer(scheduler, error) from error


def _no_answer(scheduler: str, error: Exception) -> InputError:
    why = type(error).__name__
    return InputError(f"no Dask scheduler answers at {scheduler} ({why}); check the address")


@contextlib.contextmanager
def _client(workers: int | None, scheduler: str | None) -> Iterator[tuple[Any, list[int] | None]]:
    """A cluster, and the cores that its workers share if it is our own."""
    import dask
    from distributed import Client, LocalCluster

    logging.getLogger("distributed").setLevel(logging.ERROR)
    if scheduler is not None:
        _check_answers(scheduler)
        try:
            client = Client(scheduler, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise _no_answer(scheduler, error) from error
        with client:
            try:
                client.wait_for_workers(1, timeout=_PATIENCE_S)
            except TimeoutError as error:
                mend = f"start one with `dask worker {scheduler}`"
                none = f"the Dask scheduler at {scheduler} has no workers"
                raise InputError(f"{none}; {mend}") from error
            yield client, None
        return
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    # What Dask samples many times a second, in each of its processes, is shown on the dashboard
    # alone: without its profiler a third less of a scheduler's work, with the rest seldom (and a
    # look at memory each second) 0.9 % of a core for two workers, which were 2.0 to 2.5 %
    quietly = {
        "distributed.worker.daemon": True, "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "500ms",
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.worker.memory.monitor-interval": "1s",
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="hybridperf-") as scratch,
        dask.config.set(quietly),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.ERROR,
            local_directory=scratch,
        ) as cluster,  # fmt: skip
        Client(cluster, set_as_default=False) as client,
    ):
        yield client, cores
