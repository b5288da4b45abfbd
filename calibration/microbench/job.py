"""Processes that measure together: started by a program on one machine, watched, and none of them
outlives it.

`run` is the main of a program that starts itself: with `--rank` it is one of its processes, else it
starts them.

`start` runs a module several times over, one process per rank, and waits until all ended well or
the first one did not: that one's sentence is the program's. `be_one` is what such a process does
around its measuring: pins itself, tells rank 0's progress from the chatter of the libraries, ends
at once when the program that started it does (each has a pipe from it, whose other end closes
then), and ends on its own error without waiting for the others, who would wait for it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hybridperf.io import InputError
from hybridperf_calibration.microbench import machine
from hybridperf_calibration.microbench.collectives import STALLED

BUDGET_RAN_OUT = 4  # exit statuses
SENTENCE_SAID = 2
BUSY = 0.3  # of a core; where others keep more of it busy, small collectives meet their time slices
_DEATHS_EVERY_S = 0.02  # looked for
# an error in one process is an error in the others a moment later: this long after it, the first is
# found to be first
_AFTER_DEATH_S = 0.3
_BUSY_SAMPLE_S = 0.3


@dataclass(frozen=True)
class Process:
    """One process of a job, started here."""

    rank: int
    popen: subprocess.Popen
    log: Path


def run(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    start_all: Callable[[argparse.Namespace], int],
    measure: Callable[[argparse.Namespace, Callable[[str], None]], int],
    *,
    steady: bool = True,
) -> int:
    """The exit status of a program that starts itself: `start_all(options)`, or `measure(options,
    say)` as one of its processes.

    The parser has `--processes`, and gets what such a process is told besides: `--rank`,
    `--last-pass`, `--cores`.
    """
    for name in ("--rank", "--last-pass"):
        parser.add_argument(name, type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--cores", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        return be_one(lambda say: measure(options, say), options.cores, steady=steady)
    try:
        if options.processes < 2:
            raise InputError(
                f"expected --processes of at least 2, got {options.processes}; one alone has nobody"
                " to talk to"
            )
        return start_all(options)
    except (RuntimeError, ValueError) as error:
        print(f"hybridperf: {error}", file=sys.stderr)
        return SENTENCE_SAID
    except KeyboardInterrupt:
        return 130  # the command that started this program says so


def start(commands: Sequence[Sequence[str]], ranks: Sequence[int], logs: Path, n: int) -> int:
    """Run one command for each of `ranks`, of a job of `n`; returns the highest of their exit
    statuses, or `STALLED`.

    RuntimeError, in a sentence, for the first process that ended otherwise. What each said is in
    `logs`.
    """
    with _killed_in_the_end() as processes:
        for rank, command in zip(ranks, commands, strict=True):
            log = logs / f"process-{rank}.log"
            with log.open("wb") as handle:
                # What rank 0 has to tell goes straight to our output; gloo's own lines, in its log,
                # would not be understood.
                output = sys.stderr if rank == 0 else handle
                popen = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=handle,
                    start_new_session=True,
                    env=_quiet(),
                )
            processes.append(Process(rank, popen, log))
        return _wait(processes, n)


def be_one(
    measure: Callable[[Callable[[str], None]], int], cores: str, *, steady: bool = True
) -> int:
    """`measure(say)` as one process of a job, on `cores` (text; "" for all); returns its status, or
    ends the process with another.
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
        ours = (
            isinstance(error, InputError)
            or type(error).__module__.startswith("hybridperf")
            or type(error) is RuntimeError
        )
        status = SENTENCE_SAID if ours else 1
        print(
            f"hybridperf: {text}" if ours else f"{type(error).__name__}: {text}",
            file=sys.stderr,
            flush=True,
        )
    except Exception:
        import traceback

        traceback.print_exc()
    if status in (0, BUDGET_RAN_OUT):
        import jax

        jax.distributed.shutdown()  # waits for the others
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


def busy_remark(what: str) -> str:
    """A sentence if other programs use the cores that `what` is to be measured on, or ""; empty
    also off Linux.
    """
    try:
        before = _idle_s()
        time.sleep(_BUSY_SAMPLE_S)
        busy = machine.cores_available() - (_idle_s() - before) / _BUSY_SAMPLE_S
    except (OSError, KeyError, ValueError):
        return ""
    if busy <= BUSY:
        return ""
    return (
        f"other programs keep {busy:.1f} of {machine.cores_available()} cores busy: {what} can come"
        " out many times too long"
    )


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
    if status == SENTENCE_SAID and last.startswith("hybridperf: "):
        return last.removeprefix("hybridperf: ")
    how = (
        f"was killed by signal {-status}"
        if status is not None and status < 0
        else f"ended with status {status}"
    )
    return (
        f"process {process.rank} of {n} {how}, its last line was: {last[:300]}; what was measured"
        f" is kept, all it said is in {process.log}"
    )


@contextlib.contextmanager
def _killed_in_the_end() -> Iterator[list[Process]]:
    """A list of processes, none of which outlives the block. A request to terminate ends the block,
    too.
    """
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
    """Seconds that the usable cores were idle since the machine started, together (proc(5):
    /proc/stat, fifth and sixth word).
    """
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    idle = {
        words[0]: float(words[4]) + float(words[5]) for words in lines if words[0].startswith("cpu")
    }
    return sum(idle[f"cpu{core}"] for core in os.sched_getaffinity(0)) / os.sysconf("SC_CLK_TCK")


def _quiet() -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
