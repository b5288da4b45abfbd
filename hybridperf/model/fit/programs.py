"""The calibration package's programs, started on this machine.

They are programs and not calls because they pin themselves to cores and set up memory before JAX
starts, and because what is measured must not share a process with what predicts.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from hybridperf.io import InputError, progress
from hybridperf.io.process import keeping

_LOOP, _LOOKED_S = range(200), 0.2
_BUDGET_RAN_OUT = 4  # exit statuses of the measuring programs
_ERROR_PRINTED = 2


class AlreadyReported(InputError):
    """An error whose sentence the program that met it has printed itself."""


@functools.cache
def usable_core() -> str:
    """The core among those this process may run on that is least busy with others' work now, as
    text for the measuring programs.
    """
    if not hasattr(os, "sched_getaffinity"):
        return "0"
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return str(cores[0])
    try:
        return str(max(cores, key=_loops))
    finally:
        os.sched_setaffinity(0, cores)


def _loops(core: int) -> int:
    """Loops that this thread gets done on a core within `_LOOKED_S`."""
    os.sched_setaffinity(0, {core})
    done, end_s = 0, time.perf_counter() + _LOOKED_S
    while time.perf_counter() < end_s:
        sum(_LOOP)
        done += 1
    return done


def default_backend() -> str:
    """`cpu`, `gpu` or `tpu`: asked in a process of its own, JAX takes most of a GPU at once."""
    asked = subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.default_backend())"],
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        raise InputError(
            "JAX does not start here:"
            f" {(asked.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    return asked.stdout.split()[-1]


_KEPT = "what was measured is kept, the same command goes on from there"


def run_program(
    module: str, arguments: Sequence[str], what: str = "measuring", kept: str = _KEPT
) -> bool:
    """Run one of the calibration package's programs; whether it did everything it was asked to.

    `what` it does: stands beside the bar that shows how far it is; `kept`: what is said where it is
    stopped.
    """
    with keeping(kept):
        status = _status_of([sys.executable, "-m", module, *arguments], what)
    if status == _ERROR_PRINTED:
        raise AlreadyReported(f"{module} refused its input")
    if status not in (0, _BUDGET_RAN_OUT):
        raise InputError(
            f"{module} was stopped (status {status}); what it measured is kept, run the same"
            " command again to go on"
        )
    return status == 0


def _status_of(command: Sequence[str], what: str) -> int:
    """Run a program, show how far it is, and pass on what else it says to standard error."""
    # a full disk costs the compilation cache, which is no news: what is measured says so itself
    ignored = (os.environ.get("PYTHONWARNINGS", ""), "ignore:Error writing persistent compilation")
    environment = {**os.environ, "PYTHONWARNINGS": ",".join(filter(None, ignored))}
    environment[progress.READ] = "1"
    with (
        progress.shown(what) as show,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=_errors(), text=True, env=environment
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                now = progress.read(line)
                if now is not None:
                    show(now)
                elif line.startswith(progress.SAID):
                    progress.say(line.removeprefix(progress.SAID).rstrip())
                else:
                    print(line, end="", file=sys.stderr, flush=True)
        except BaseException:  # interrupted: as subprocess.run does
            process.kill()
            raise
    return process.returncode


def _errors() -> Any:
    """Where a program's standard error goes: to ours, or the way of its output if that is no file,
    as in a notebook.
    """
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError):
        return subprocess.STDOUT
    return subprocess.STDOUT if progress.in_notebook() else sys.stderr
