"""Times training steps of recommendation models whose tables lie on several processes here.

One process runs on each core.

    python -m hybridperf_calibration.training_steps.sharded_dlrm --tasks TASKS.json --processes 2
    --out DIR

`sharded_tasks` says what a task is, `sharded_step` what a process runs. All placements of one model
are compiled first and then measured in rounds, each round every placement for a while, so that a
disturbance hits a part of all instead of all of one. A step's seconds on a rank are those between
the ends of two calls, as a training loop runs them, without a barrier; a round's are the median
call of the slower rank, and the quietest round counts. Each pass is measured by processes of its
own, because a connection can be slow for as long as it lives; how far the passes lie apart is the
noise floor. What the phases of a step take is asked by a profile after the timing: least of some
calls, by instruction; a collective's includes waiting for the other ranks.

DIR gets the store (`steps.jsonl`, by which a stopped run is resumed), the table (`steps.csv`: a row
for each task and placement), each rank's compiled programs (`programs/`), the machine's facts
(`steps.machine.json`) and each process's output (`logs/`).

Exit status: 0 all measured, 2 one sentence says what is wrong, a dead process included.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hybridperf.io import InputError, write_json
from hybridperf_calibration.microbench import job, machine
from hybridperf_calibration.microbench.quiet import Yardstick
from hybridperf_calibration.microbench.store import Row, measured_passes, store_of_rank
from hybridperf_calibration.training_steps.sharded_tasks import ShardedTask, read_tasks

if TYPE_CHECKING:
    from hybridperf_calibration.microbench.collectives import Team, Watch

BATCHES = 8  # of data, for the calls to rotate through
FEWEST_CALLS, MOST_CALLS = 6, 200
_LONGEST_WAIT_S = 3.0  # for a disturbed machine, before one round of one step
_WAITED_PER_STEP_S = 3.0  # in all
PROFILED_CALLS = 6
STALLED_S = 60.0
LOSSES = 3  # of the first calls, kept: what a reference can be held against


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m hybridperf_calibration.training_steps.sharded_dlrm", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--tasks", type=Path, required=True, metavar="FILE", help="JSON, see sharded_tasks")
    add("--processes", type=int, default=2)
    add("--out", type=Path, required=True, metavar="DIR", help="created or resumed")
    add("--passes", type=int, default=2)
    add("--rounds", type=int, default=4, help="turns of every placement of a model in each pass")
    add("--seconds", type=float, default=0.3, help="per turn")
    add("--no-profile", action="store_true", help="leave out what the phases take")
    # how this program starts itself
    parser.add_argument("--coordinator", default="", help=argparse.SUPPRESS)
    return job.run(parser, arguments, _start_all, _measure, steady=False)


def _start_all(options: argparse.Namespace) -> int:
    """Check the tasks, then one job after the other, one for each pass."""
    for name in ("passes", "rounds"):
        if getattr(options, name) < 1:
            raise InputError(f"expected --{name} of at least 1, got {getattr(options, name)}")
    tasks = read_tasks(options.tasks, options.processes)
    _check_memory(tasks)
    logs = job.make_folders(options.out, "logs")
    ranks = range(options.processes)
    cores, remark = job.cores_of_processes(len(ranks))
    job.say(job.busy_remark("steps"), remark)

    def measure(last: int) -> int:
        own = {
            "--tasks": options.tasks, "--processes": options.processes, "--out": options.out,
            "--passes": options.passes, "--rounds": options.rounds, "--seconds": options.seconds,
            "--no-profile": options.no_profile or None, "--last-pass": last,
            "--coordinator": f"127.0.0.1:{job.free_port()}",
        }  # fmt: skip
        module = "hybridperf_calibration.training_steps.sharded_dlrm"
        return job.start(job.commands(module, own, ranks, cores), ranks, logs, len(ranks))

    return job.in_passes(measure, 1, options.passes, "step")


def _check_memory(tasks: Sequence[ShardedTask]) -> None:
    """Refuse a model whose placements do not fit together; all are held at once."""
    memory = machine.memory_bytes()
    for name in dict.fromkeys(task.name for task in tasks):
        same = [task for task in tasks if task.name == name]
        # while made: NumPy's, JAX', one on its way
        needed = 3 * sum(table.bytes for task in same for table in task.tables)
        if memory and needed > memory:
            needs = f"tables of {len(same)} placements need about {needed / 2**30:.1f} GiB"
            has = f"this machine has {memory / 2**30:.1f}; give smaller tables or fewer placements"
            raise InputError(f"task {name}: {needs} and {has}")


def _measure(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """One process of the job: everything up to pass `last_pass` that the store does not have."""
    from hybridperf_calibration.microbench.collectives import Team, Watch

    tasks = read_tasks(options.tasks, options.processes)
    team = Team(options.coordinator, options.processes, options.rank)
    settings = {"part": "sharded", "processes": team.n, "pinned": bool(options.cores)}
    fingerprint = machine.fingerprint({**settings, "batches": BATCHES})
    with store_of_rank(options.rank, options.out / "steps.jsonl", fingerprint) as store:
        watch = Watch(store, STALLED_S)
        order = [(task, pass_no) for pass_no in range(1, options.last_pass + 1) for task in tasks]
        todo = team.missing(order, store)
        yardstick = Yardstick(allowance_s=_WAITED_PER_STEP_S * len(todo))
        groups = list(dict.fromkeys((task.name, pass_no) for task, pass_no in todo))
        start_s = time.perf_counter()
        for number, (name, pass_no) in enumerate(groups, start=1):
            same = [task for task, of_pass in todo if (task.name, of_pass) == (name, pass_no)]
            for row in _measure_model(same, team, options, watch, pass_no, yardstick):
                if store is not None:
                    store.append({**row, "pass_no": pass_no})
            left_s = (time.perf_counter() - start_s) / number * (len(groups) - number)
            done = f"model {name} measured, {number} of {len(groups)}"
            say(f"pass {pass_no} of {options.passes}: {done}, {left_s:.0f} s of this pass left")
        if store is not None:
            facts = {**yardstick.facts(), "processes": team.n, "library": team.library()}
            job.write_results(options.out, "steps", table(store.rows), facts)
    return 0


def _measure_model(
    same: Sequence[ShardedTask], team: Team, options: argparse.Namespace, watch: Watch,
    pass_no: int, yardstick: Yardstick,
) -> list[Row]:  # fmt: skip
    """Rows of one model's placements, in turns."""
    programs = options.out / "programs"
    running = [RunningShardedStep(task, team, programs, watch, pass_no) for task in same]
    for _ in range(options.rounds):
        for step in running:
            # each rank looks at its own core, and waits for the others in the next call
            yardstick.wait(_LONGEST_WAIT_S)
            step.measure(options.seconds)
    return [step.result(profile=not options.no_profile) for step in running]


class RunningShardedStep:
    """This process' part of a compiled step between two calls: its arguments and times."""

    def __init__(
        self, task: ShardedTask, team: Team, programs: Path, watch: Watch, pass_no: int
    ) -> None:
        import jax

        from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION, program
        from hybridperf_calibration.training_steps import sharded_step

        self._task, self._team, self._watch, self._pass_no = task, team, watch, pass_no
        self._step = sharded_step.build(task, team, BATCHES)
        self._args = self._step.args
        start_s = time.perf_counter()
        jitted = jax.jit(self._step.fn, donate_argnums=self._step.donate_argnums)
        self._compiled = jitted.lower(*self._args).compile()
        self._compile_s = time.perf_counter() - start_s
        content = program(self._compiled, f"{task.key} rank {team.rank}")
        content["phases"] = sharded_step.phase_of(content["hlo"])
        names = sharded_step.collectives_in(content["hlo"])
        if sorted(names) != sorted(sharded_step.COLLECTIVES):
            expected = f"expected the collectives {sharded_step.COLLECTIVES} in the program"
            raise RuntimeError(f"{task.key}: {expected}, found {names}")
        orders = team.exchange([float(name == "all-reduce") for name in names])
        if (orders != orders[0]).any():
            differ = "the processes' programs run their collectives in different orders"
            raise RuntimeError(f"{task.key}: {differ}; this JAX changes the step")
        self._phase_of = content["phases"]
        self.program = re.sub(r"[^\w.,-]", "_", task.key)
        file = programs / f"{self.program}-rank{team.rank}.json"
        write_json(file, "program", PROGRAM_SCHEMA_VERSION, content)
        self._calls = 0
        self._rounds_s: list[float] = []  # median call of each
        self._wall_s = self._cpu_s = 0.0
        self.losses: list[float] = []
        with self._watched():
            calls_s = [self._call() for _ in range(LOSSES)]
        self._usual_s = float(team.exchange([min(calls_s[1:])]).max())

    def measure(self, seconds: float) -> None:
        """One round: about `seconds` of calls, as many on every rank; the first is dropped."""
        calls = int(np.clip(seconds / self._usual_s, FEWEST_CALLS, MOST_CALLS)) + 1
        with self._watched():
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            calls_s = [self._call() for _ in range(calls)][1:]
            self._cpu_s += time.process_time() - cpu_s
            self._wall_s += time.perf_counter() - wall_s
        self._rounds_s.append(statistics.median(calls_s))
        self._usual_s = float(self._team.exchange([self._rounds_s[-1]]).max())

    def result(self, *, profile: bool) -> Row:
        """The row so far, the same on every rank."""
        rounds_s = self._team.exchange(self._rounds_s)  # [ranks, rounds]
        slower_s = rounds_s.max(axis=0)
        losses = self._team.exchange(self.losses).sum(axis=0)
        row: Row = {
            "key": self._task.key, "task": self._task.name,
            "placement": ",".join(map(str, self._task.placement)), "step_s": float(slower_s.min()),
            "rank_s": rounds_s[:, int(slower_s.argmin())].tolist(), "round_s": slower_s.tolist(),
            "losses": losses.tolist(),
            "cpu_share": self._team.exchange([self._cpu_s / self._wall_s])[:, 0].tolist(),
            "compile_s": self._compile_s, "load": machine.load_1min(), "program": self.program,
        }  # fmt: skip
        if profile:
            row["phases_s"] = self._phases()
        return row

    def _phases(self) -> dict[str, list[float]]:
        """Seconds of each phase on each rank; `other` is what no scope names."""
        from hybridperf_calibration.training_steps import op_times
        from hybridperf_calibration.training_steps.sharded_step import PHASES

        with self._watched():
            op_s = op_times.profile(self._call, PROFILED_CALLS)
        named = (*PHASES, "other")
        mine = dict.fromkeys(named, 0.0)
        for instruction, seconds in op_s.items():
            mine[self._phase_of.get(instruction, "other")] += seconds
        everyone = self._team.exchange([mine[name] for name in named])
        return {name: everyone[:, at].tolist() for at, name in enumerate(named)}

    def _call(self) -> float:
        import jax

        start_s = time.perf_counter()
        outputs = jax.block_until_ready(self._compiled(*self._args))
        self._calls += 1
        self._args = self._step.next_args(self._calls, outputs)
        if len(self.losses) < LOSSES:
            self.losses.append(float(self._team.part(outputs[-1])[0]))
        return time.perf_counter() - start_s

    def _watched(self) -> AbstractContextManager[None]:
        return self._watch.over({"key": self._task.key, "pass_no": self._pass_no})


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """One row per task and placement: of several passes the quietest.

    `noise` is how far the other passes lie above it (empty after one), `rounds_noise` how far a
    usual round of that pass lies above its quietest.
    """
    merged = []
    for passes in measured_passes(rows):
        times_s = [row["step_s"] for row in passes]
        best = passes[int(np.argmin(times_s))]
        out = {name: best[name] for name in ("task", "placement", "step_s")}
        out["noise"] = max(times_s) / min(times_s) - 1 if len(passes) > 1 else np.nan
        out["rounds_noise"] = statistics.median(best["round_s"]) / min(best["round_s"]) - 1
        out |= {f"rank{rank}_s": seconds for rank, seconds in enumerate(best["rank_s"])}
        for phase, of_rank in best.get("phases_s", {}).items():
            out |= {f"{phase}_s_rank{rank}": s for rank, s in enumerate(of_rank)}
        out |= {"passes": len(passes), "cpu_share": min(best["cpu_share"]), "load": best["load"]}
        merged.append({**out, "loss": best["losses"][-1], "program": best["program"]})
    return pd.DataFrame(merged)


if __name__ == "__main__":
    sys.exit(main())
