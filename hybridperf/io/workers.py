"""Work shared among processes by Dask: local ones, or those of a scheduler elsewhere.

Our own scheduler and workers listen on 127.0.0.1 alone, without dashboard: whoever reaches a Dask
scheduler runs code as its user. One's own cluster, with a dashboard, is `--scheduler`'s.

A worker that dies costs the task it was at, which another does again. Local workers take one core
each.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hybridperf.io.errors import InputError

_RETRIES = 3
_AHEAD = 3  # tasks on their way per worker: enough to keep it busy, few enough to hold
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
