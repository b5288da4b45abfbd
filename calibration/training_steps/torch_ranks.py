"""Times training steps of PyTorch that processes of this machine run together, joined by gloo.

    python -m hybridperf_calibration.training_steps.torch_ranks --steps SPEC.json --out DIR

SPEC.json lists the steps, ["module:function"]: each returns what `predict --torch` takes, and finds
a process group, so that it may wrap its module (DDP, FSDP2). One process runs on each core. Steps
are measured in rounds, each round every step for a moment, so that a disturbance hits a part of all
instead of all of one.

A call's seconds are those of the rank that works longer, by its core's processor time
(`machine.clock`): processes that wait for each other meet every time slice of other programs on
*either* core. On cores of their own the wall's clock adds the wake-ups of gloo's thread. A step's
time is that of a usual call (the median) in the round that was disturbed least; the least seconds
by the wall's clock are written, too, as `wall_s`.

DIR gets `steps.json` and each process's output (`logs/`). Exit status: 0 all measured, 2 one
sentence says what is wrong, a dead process included.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.io import InputError, write_json
from hybridperf_calibration.microbench import job, machine
from hybridperf_calibration.microbench.quiet import Yardstick
from hybridperf_calibration.training_steps import read_objects
from hybridperf_calibration.training_steps.run import SCHEMA_VERSION

if TYPE_CHECKING:
    from hybridperf_calibration.microbench.torch_team import TorchTeam

FEWEST_CALLS, MOST_CALLS = 4, 200
FIRST_CALLS = 3  # states and buffers are made, DDP orders its buckets again
_LONGEST_WAIT_S = 1.0  # for a disturbed machine, before one round of one step
_WAITED_PER_STEP_S = 5.0  # in all
_MODULE = "hybridperf_calibration.training_steps.torch_ranks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--steps", type=Path, required=True, metavar="FILE", help='["module:function"]')
    add("--processes", type=int, default=2)
    add("--out", type=Path, required=True, metavar="DIR", help="created")
    add("--rounds", type=int, default=12, help="turns of every step, at least two")
    add("--seconds", type=float, default=0.3, help="per turn")
    # how this program starts itself
    add("--coordinator", default="", help=argparse.SUPPRESS)
    add("--library", default="torch", help=argparse.SUPPRESS)
    return job.run(parser, arguments, _start_all, _measure, steady=False)


def _start_all(options: argparse.Namespace) -> int:
    """Check the steps, then start the processes."""
    if options.rounds < 2:
        raise InputError(
            f"expected --rounds of 2 or more, got {options.rounds}: two tell the noise"
        )
    _steps(options.steps)
    logs = job.make_folders(options.out, "logs")
    ranks = range(options.processes)
    cores, remark = job.cores_of_processes(len(ranks))
    job.say(job.busy_remark("steps"), remark)
    own = {
        "--steps": options.steps, "--processes": options.processes, "--out": options.out,
        "--rounds": options.rounds, "--seconds": options.seconds,
        "--coordinator": f"127.0.0.1:{job.free_port()}",
    }  # fmt: skip
    return job.start(job.commands(_MODULE, own, ranks, cores), ranks, logs, len(ranks))


def _steps(path: Path) -> list[str]:
    entries = read_objects(path, 'steps like [{"function": "module:function"}]')
    return [str(entry["function"]) for entry in entries]


def _measure(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """One process of the job."""
    from hybridperf_calibration.microbench.torch_team import TorchTeam

    team = TorchTeam(options.coordinator, options.processes, options.rank)
    yardstick = Yardstick()
    running = [_RunningStep(name, team) for name in _steps(options.steps)]
    yardstick.allowance_s = _WAITED_PER_STEP_S * len(running)
    for round_no in range(1, options.rounds + 1):
        for step in running:
            # each rank looks at its own core, and waits for the others in the next call
            yardstick.wait(_LONGEST_WAIT_S)
            step.measure(options.seconds)
        say(f"round {round_no} of {options.rounds} of {len(running)} steps")
    if not team.rank:
        facts = {**machine.machine_facts("torch"), **yardstick.facts(), "processes": team.n}
        found = {"machine": facts, "steps": [step.result() for step in running]}
        write_json(options.out / "steps.json", "steps", SCHEMA_VERSION, found)
    team.barrier()
    return 0


class _RunningStep:
    """This process' part of a step between two calls, and what calls took."""

    def __init__(self, name: str, team: TorchTeam) -> None:
        from hybridperf_calibration.training_steps.own_torch import RunningTorchStep

        self._name, self._team = name, team
        self._step = RunningTorchStep(name)
        self._rounds_s: list[np.ndarray] = []  # of each, a call's seconds on the slower rank
        self._wall_s = self._cpu_s = 0.0
        self._least_s = math.inf
        for _ in range(FIRST_CALLS):
            self._usual_s = float(team.exchange([self._call()]).max())

    def measure(self, seconds: float) -> None:
        """One round: about `seconds` of calls, as many on every rank; the first is dropped."""
        calls = int(np.clip(seconds / self._usual_s, FEWEST_CALLS, MOST_CALLS))
        self._call()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        calls_s = [self._call() for _ in range(calls)]
        self._cpu_s += time.process_time() - cpu_s
        self._wall_s += time.perf_counter() - wall_s
        self._rounds_s.append(self._team.exchange(calls_s).max(axis=0))
        self._usual_s = float(np.median(self._rounds_s[-1]))

    def _call(self) -> float:
        start_s = time.perf_counter()
        seconds = self._step.call_s()
        self._least_s = min(self._least_s, time.perf_counter() - start_s)
        return seconds

    def result(self) -> dict[str, Any]:
        """As `training_steps.run` writes a step."""
        calls_s, round_s = np.concatenate(self._rounds_s), [*map(np.median, self._rounds_s)]
        return {
            "name": self._name, "config": {"function": self._name},
            "time_s": float(min(round_s)), "least_s": float(calls_s.min()),
            "wall_s": self._least_s,
            "median_s": float(np.median(calls_s)), "repeats": calls_s.size,
            "noise": float(np.median(round_s) / min(round_s) - 1),
            "cpu_share": self._cpu_s / self._wall_s,
            "round_s": [*map(float, round_s)],
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
