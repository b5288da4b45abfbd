"""Data-parallel training by real processes, one of which has a smaller share of its core.

    python -m hybridperf_calibration.training_steps.unequal --workers 4 --share 0.25 --out rows.csv

Each process trains a perceptron in NumPy on its own samples; gradients lie in shared memory, and
a step ends when all have added them up and updated. All but the last process lie on one core, the
last one on another, where it is stopped and continued like by `cpulimit`, so that it computes for
`share` of the time. A round times, in turn: each process alone; the first and the last beside each
other, not waiting (cores may share what computes); the last with its share, alone and beside the
first; and all together, without and with it. The table has a row for each step: `phase` (alone,
beside, slowed, slowed_beside, together, together_slowed), `worker` (0 where all are timed),
`round`, `time_s`.

Processes ask for a higher priority, as measuring on a shared machine needs; where they may not have
it they run without.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

WIDTHS = (256, 256, 256, 16)  # few parameters for the work: messages are short beside it
_SAMPLES = 2048  # of each process
PERIOD_S = 0.004  # of stopping and continuing
_PRIORITY = -10
_POLL_S = 3e-4
_RATE = 1e-6  # gradients that a process alone averages with are old: none may grow
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def measure(
    workers: int, share: float, rounds: int, steps: int
) -> list[tuple[str, int, int, float]]:
    """Rows of the table: phase, worker, round, seconds of a step."""
    os.environ |= dict.fromkeys(_THREADS, "1")  # of the processes that start now
    _raise_priority()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise OSError("expected two cores or more to run on, got one")
    context = get_context("spawn")
    parameters = sum((a + 1) * b for a, b in itertools.pairwise(WIDTHS))
    memory = SharedMemory(create=True, size=4 * workers * parameters + 8 * workers)
    ends, processes = [], []
    try:
        for rank in range(workers):
            here, there = context.Pipe()
            core = cores[-1] if rank == workers - 1 else cores[0]
            settings = (rank, workers, core, memory.name, there)
            processes.append(context.Process(target=_train, args=settings, daemon=True))
            processes[-1].start()
            ends.append(here)
        for end in ends:
            end.recv()  # started and warm
        rows: list[tuple[str, int, int, float]] = []

        def ask(
            phase: str, at: int, ranks: Sequence[int], counts: Sequence[int] = (),
            together: bool = False,
        ) -> None:  # fmt: skip
            """Steps of several processes at once, together (one is timed) or each for itself."""
            for rank, count in zip(ranks, counts or [steps] * len(ranks), strict=True):
                ends[rank].send((count, together))
            for rank in ranks:
                times = ends[rank].recv()
                if rank == 0 or not together:
                    rows.extend((phase, rank, at, took) for took in times)

        every, last = range(workers), workers - 1
        slowed = processes[-1].pid
        assert slowed is not None
        for at in range(rounds):
            for rank in every:
                ask("alone", at, [rank])
            ask("beside", at, [0, last])
            with _held_to(slowed, share):
                ask("slowed", at, [last])
            with _held_to(slowed, share):
                # the first goes on for as long as the last
                ask("slowed_beside", at, [0, last], [int(steps / share), steps])
            ask("together", at, every, together=True)
            with _held_to(slowed, share):
                ask("together_slowed", at, every, together=True)
        for end in ends:
            end.send(None)
        return rows
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        memory.close()
        memory.unlink()


@contextlib.contextmanager
def _held_to(process: int, share: float) -> Iterator[None]:
    """A process that runs for a share of each period."""
    done = threading.Event()

    def hold() -> None:
        with contextlib.suppress(OSError):  # else it stops and continues late
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not done.is_set():
            os.kill(process, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - share))
            os.kill(process, signal.SIGCONT)
            time.sleep(PERIOD_S * share)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.kill(process, signal.SIGCONT)


def _raise_priority() -> None:
    """Of this process and those that it starts, where it may.

    Linux shares a core out among sessions first, so that a process' own priority says little.
    """
    with contextlib.suppress(OSError):
        if os.getsid(0) != os.getpid():
            os.setsid()
        Path("/proc/self/autogroup").write_text(str(_PRIORITY))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


def _train(rank: int, workers: int, core: int, memory: str, orders: Any) -> None:
    """A process: trains when it is told to."""
    import numpy as np

    os.sched_setaffinity(0, {core})
    _raise_priority()  # a session's share of one core shrinks with what it runs on another
    shared = SharedMemory(name=memory)
    sizes = list(itertools.pairwise(WIDTHS))
    parameters = sum((a + 1) * b for a, b in sizes)
    gradients = np.ndarray((workers, parameters), np.float32, shared.buf)
    # how often each has met the others: a barrier whose handshakes need no process to run that is
    # stopped just then
    met = np.ndarray(workers, np.int64, shared.buf, 4 * workers * parameters)
    if rank == 0:
        met[:] = 0
    rng = np.random.default_rng(0)
    flat = (0.05 * rng.standard_normal(parameters)).astype(np.float32)
    x = np.random.default_rng(rank).standard_normal((_SAMPLES, WIDTHS[0])).astype(np.float32)
    y = np.random.default_rng(rank).standard_normal((_SAMPLES, WIDTHS[-1])).astype(np.float32)

    def layers() -> Iterator[tuple[int, int, int]]:
        start = 0
        for a, b in sizes:
            yield start, a, b
            start += (a + 1) * b

    def meet() -> None:
        met[rank] += 1
        while met.min() < met[rank]:
            time.sleep(_POLL_S)

    def step(together: bool) -> None:
        values = [x]
        for start, a, b in layers():
            weights = flat[start : start + a * b].reshape(a, b)
            values.append(
                np.maximum(values[-1] @ weights + flat[start + a * b : start + (a + 1) * b], 0)
            )
        slope = (values[-1] - y) / _SAMPLES
        for (start, a, b), before in zip(
            reversed(list(layers())), reversed(values[:-1]), strict=True
        ):
            mine = gradients[rank, start : start + (a + 1) * b]
            mine[: a * b] = (before.T @ slope).ravel()
            mine[a * b :] = slope.sum(axis=0)
            slope = (slope @ flat[start : start + a * b].reshape(a, b).T) * (before > 0)
        if together:
            meet()
        total = gradients.mean(axis=0)
        if together:
            meet()
        flat[:] -= _RATE * total

    step(together=False)
    orders.send("warm")
    while (order := orders.recv()) is not None:
        took = []
        for _ in range(order[0]):
            begun_s = time.perf_counter()
            step(order[1])
            took.append(time.perf_counter() - begun_s)
        orders.send(took)
    shared.close()


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.workers < 2 or not 0 < given.share < 1:
        parser.error("expected --workers of 2 or more and a --share between 0 and 1")
    rows = measure(given.workers, given.share, given.rounds, given.steps)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["phase", "worker", "round", "time_s"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
