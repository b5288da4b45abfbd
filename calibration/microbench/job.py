"""Processes that measure together: a program starts and watches them, and none outlives it.

`run` is the main of a program that starts itself: with `--rank` it is one of its processes, else it
starts them, in `commands` of their own, `in_passes` until all is measured.

`start` runs these commands, one process per rank, and waits until all ended well or the first one
did not: that one's sentence is the program's. `be_one` is what such a process does
around its measuring: pins itself, tells rank 0's progress from the chatter of the libraries, ends
at once when the program that started it does (each has a pipe from it, whose other end closes
then), and ends on its own error without waiting for the others, who would wait for it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from hybridperf.io import InputError, write_json, write_table
from hybridperf_calibration.microbench import machine
from hybridperf_calibration.microbench.collectives import STALLED
from hybridperf_calibration.microbench.machine import SENTENCE_PRINTED

BUDGET_RAN_OUT = 4  # exit status
BUSY = 0.3  # of a core; where others keep more of it busy, small collectives meet their time slices
_DEATHS_EVERY_S = 0.02  # looked for
# an error in one process is one in the others a moment later: so long after it, the first is known
_AFTER_DEATH_S = 0.3
_BUSY_SAMPLE_S = 0.3


@dataclass(frozen=True)
class Process:
    """One process of a job, started here."""

    rank: int
    popen: subprocess.Popen
    log: Path


def run(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None,
    start_all: Callable[[argparse.Namespace], int],
    measure: Callable[[argparse.Namespace, Callable[[str], None]], int], *, steady: bool = True,
) -> int:  # fmt: skip
    """Exit status of a program that starts itself: `start_all(options)`, or `measure` in a process.

    The parser has `--processes`, and `--library` where it is not JAX' alone; processes are also
    told `--rank`, `--last-pass` and `--cores`.
    """
    for name in ("--rank", "--last-pass"):
        parser.add_argument(name, type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--cores", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        library = getattr(options, "library", "jax")
        one = lambda say: measure(options, say)  # noqa: E731
        return be_one(one, options.cores, steady=steady, library=library)

    def start_checked() -> int:
        if options.processes < 2:
            why = "one alone has nobody to talk to"
            raise InputError(f"expected --processes of at least 2, got {options.processes}; {why}")
        return start_all(options)

    return machine.exit_status(start_checked)


def commands(
    module: str, options: Mapping[str, object], ranks: Sequence[int], cores: Sequence[str]
) -> list[list[str]]:
    """The command of each rank: the program's own module with `options` (None: left out)."""
    common = [sys.executable, "-m", module]
    for name, value in options.items():
        common += [name] if value is True else [] if value is None else [name, str(value)]
    pairs = zip(ranks, cores, strict=True)
    own = [["--rank", str(rank), *(["--cores", of] if of else [])] for rank, of in pairs]
    return [[*common, *rest] for rest in own]


def in_passes(measure: Callable[[int], int], first: int, passes: int, what: str = "") -> int:
    """Start new processes for each pass, `measure(last pass)`; returns their last exit status.

    Where `what` they measure is named, they are started again after one that did not return.
    """
    last = first
    while True:
        status = measure(last)
        if status == STALLED and what:
            stalled = f"a {what} did not return (its row says which)"
            say(f"{stalled}; starting the processes again to go on with the others")
        elif status == 0 and last < passes:
            last += 1
        else:
            return status


def write_results(
    folder: Path, name: str, rows: pd.DataFrame, facts: Mapping[str, Any], library: str = "jax"
) -> None:
    """Write the table NAME.csv and the machine's facts, NAME.machine.json."""
    if rows.empty:
        store = folder / f"{name}.jsonl"
        raise RuntimeError(f"none of the {name} could be measured; the rows in {store} say why.")
    write_table(rows, folder / f"{name}.csv")
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = {**machine.machine_facts(library), **facts, "date": date}
    write_json(folder / f"{name}.machine.json", "machine", 1, content)


def start(commands: Sequence[Sequence[str]], ranks: Sequence[int], logs: Path, n: int) -> int:
    """Run one command per rank of a job of `n`; returns their highest status, or `STALLED`.

    Raises: RuntimeError: a process ended otherwise. What each printed is in `logs`.
    """
    with _killed_in_the_end() as processes:
        for rank, command in zip(ranks, commands, strict=True):
            log = logs / f"process-{rank}.log"
            with log.open("wb") as handle:
                # rank 0's progress goes straight to our output; gloo's own lines go into its log
                output = sys.stderr if rank == 0 else handle
                popen = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=output, stderr=handle,
                    start_new_session=True, env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
                )  # fmt: skip
            processes.append(Process(rank, popen, log))
        return _wait(processes, n)


def be_one(
    measure: Callable[[Callable[[str], None]], int], cores: str, *, steady: bool = True,
    library: str = "jax",
) -> int:  # fmt: skip
    """`measure(say)` as one process of a job; returns its status, or ends the process.

    `steady`: under the settings of single ops; `library`: that joins the processes.
    """
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # what we have to tell; gloo writes to the standard output, which joins the log
    progress = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    status = 1
    try:
        if cores:
            machine.pin(machine.parse_cores(cores))
        machine.wake_in_turn()
        if steady:
            machine.steady_cpu()
        status = measure(lambda line: print(f"hybridperf: {line}", file=progress, flush=True))
    except (InputError, RuntimeError, OSError) as error:
        # JAX raises subclasses of RuntimeError, some with several lines; what the user can mend
        # comes from us.
        text = " ".join(str(error).split())
        plain = isinstance(error, InputError) or type(error) is RuntimeError
        ours = plain or type(error).__module__.startswith("hybridperf")
        status = SENTENCE_PRINTED if ours else 1
        who = "hybridperf" if ours else type(error).__name__
        print(f"{who}: {text}", file=sys.stderr, flush=True)
    except Exception:
        import traceback

        traceback.print_exc()
    if status in (0, BUDGET_RAN_OUT):
        if library == "jax":
            import jax

            jax.distributed.shutdown()  # waits for the others
        else:
            import torch

            torch.distributed.destroy_process_group()
        return status
    sys.stderr.flush()
    if status == 1:
        time.sleep(_AFTER_DEATH_S)
    os._exit(status)  # not through the interpreter's end, where JAX waits for the other processes


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cores_of_processes(n: int, each: int = 1) -> tuple[list[str], str]:
    """Cores of each of `n` processes here, as `machine.parse_cores` reads them, and a remark."""
    if not hasattr(os, "sched_getaffinity"):
        return [""] * n, "the processes are not pinned to cores"
    usable = sorted(os.sched_getaffinity(0))
    crowded = f"{n} processes share {len(usable)} cores here"
    if n > len(usable):
        return [""] * n, f"{crowded}: they wait for each other, which is part of what is measured"
    if each * n > len(usable):
        return [""] * n, f"{crowded} and are not pinned: each would want {each} of its own"
    return [",".join(map(str, usable[each * i : each * (i + 1)])) for i in range(n)], ""


def busy_remark(what: str) -> str:
    """A sentence if other programs use the cores to measure `what` on, else "" (also off Linux)."""
    try:
        before = _idle_s()
        time.sleep(_BUSY_SAMPLE_S)
        busy = machine.cores_available() - (_idle_s() - before) / _BUSY_SAMPLE_S
    except (OSError, KeyError, ValueError):
        return ""
    if busy <= BUSY:
        return ""
    others = f"other programs keep {busy:.1f} of {machine.cores_available()} cores busy"
    return f"{others}: {what} can come out many times too long"


def make_folders(folder: Path, logs: str) -> Path:
    """Make the folder of results and, in it, that of logs, which is returned."""
    try:
        (folder / logs).mkdir(parents=True, exist_ok=True)
        (folder / logs / "process-0.log").touch()
    except OSError as error:
        raise InputError(
            f"cannot write into the folder {folder}: {error.strerror}; choose another --out"
        ) from error
    return folder / logs


def say(*lines: str) -> None:
    """Progress from the program that starts the processes; empty lines are left out."""
    for line in filter(None, lines):
        print(f"hybridperf: {line}", file=sys.stderr, flush=True)


def _wait(processes: Sequence[Process], n: int) -> int:
    """Until all ended well, or the first one did not: then its sentence."""
    while True:
        statuses = [process.popen.poll() for process in processes]
        if STALLED in statuses:
            return STALLED
        for process, status in zip(processes, statuses, strict=True):
            if status not in (None, 0, BUDGET_RAN_OUT):
                raise RuntimeError(_death(process, status, n))
        if None not in statuses:
            return max(status for status in statuses if status is not None)
        time.sleep(_DEATHS_EVERY_S)


def _death(process: Process, status: int | None, n: int) -> str:
    lines = [line for line in process.log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "(nothing)"
    if status == SENTENCE_PRINTED and last.startswith("hybridperf: "):
        return last.removeprefix("hybridperf: ")
    killed = status is not None and status < 0
    how = f"was killed by signal {-(status or 0)}" if killed else f"ended with status {status}"
    return (
        f"process {process.rank} of {n} {how}, its last line was: {last[:300]}; what was measured"
        f" is kept, all it printed is in {process.log}"
    )


@contextlib.contextmanager
def _killed_in_the_end() -> Iterator[list[Process]]:
    """A list of processes that are killed when the block ends, also by SIGTERM."""
    processes: list[Process] = []

    def terminate(signal_no: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield processes
    finally:
        for process in processes:
            if process.popen.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.popen.pid, signal.SIGKILL)  # each leads a group of its own
        for process in processes:
            process.popen.wait()
            if process.popen.stdin:
                process.popen.stdin.close()
        signal.signal(signal.SIGTERM, before)


def _die_with_parent() -> None:
    """End this process at once when the one that started it has ended, however that was."""
    while os.read(0, 1):  # returns nothing when the pipe's other end closes
        pass
    os._exit(1)


def _idle_s() -> float:
    """Seconds that the usable cores were idle since the machine started (proc(5): /proc/stat)."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    cpus = (words for words in lines if words[0].startswith("cpu"))
    idle = {words[0]: float(words[4]) + float(words[5]) for words in cpus}
    return sum(idle[f"cpu{core}"] for core in os.sched_getaffinity(0)) / os.sysconf("SC_CLK_TCK")
