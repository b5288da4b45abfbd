"""Times whole training steps on this machine.

    python -m hybridperf_calibration.training_steps.run SPEC.json --out STEPS.json --cores 0

With `--programs DIR` each step's compiled program is kept as a file that `hybridperf predict
--program` takes. With `--profile` each step is run a few times more when all timing is done, and
what each of its instructions took is kept.

SPEC.json lists the steps: [{"workload": "dlrm", "config": {"batch": 512}}, {"workload": "gpt",
"config": {}}]. All are compiled first and then measured in rounds, each round every step a few
times: repeats of a step are spread over the run, and a disturbance hits a few repeats of several
steps instead of all of one. The time is that of a usual call (the median) in the round that was
disturbed least.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from hybridperf.io import InputError, plain, write_json
from hybridperf.io.progress import Progress, Show, told
from hybridperf_calibration.microbench import machine, quiet, timer
from hybridperf_calibration.microbench.quiet import Yardstick
from hybridperf_calibration.training_steps import (
    STRICT,
    Step,
    checked,
    op_times,
    read_objects,
)

# JAX is imported inside functions: the program has to pin itself first.

SCHEMA_VERSION = 2  # from 2 on time_s is a median, not the least of all calls
BATCHES = 16  # of data, for the calls to rotate through
_LONGEST_WAIT_S = 3.0  # for a disturbed machine, before a round of a step
_WAITED_PER_STEP_S = 1.0  # in all: the best of several rounds counts anyway
_PROFILE_S = 0.3  # of calls of one step, roughly
CONFIGS = {
    "dlrm": "DlrmConfig",
    "gpt": "GptConfig",
    "own": "OwnConfig",
    "own_torch": "OwnTorchConfig",
}  # module of this folder -> its config class


@dataclass(frozen=True)
class StepMeasurement:
    """Seconds of one training step, from calling it until its outputs are there.

    `noise` is how far apart two measurements of the step would be: the median over the rounds of
    (time of the round) / time_s - 1.
    """

    time_s: float  # least of round_s
    round_s: tuple[float, ...]  # median call of each round
    noise: float | None  # a share of time_s; None: a single round
    least_s: float  # of all calls; median_s: over all of them, too
    median_s: float
    repeats: int
    first_call_s: float  # tracing and compilation included
    last_loss: float  # not finite: the step did not train, its time may not be that of real numbers
    load: float | None  # of the machine, see machine.load_1min
    preemptions: int  # of this process during the repeats
    # processor seconds of this process per second of the repeats: far below 1, others had the core
    cpu_share: float
    # by instruction, see op_times.profile; None: not profiled
    op_s: Mapping[str, float] | None = field(repr=False)
    # what was run, see hybridperf.workloads.programs.jax.program.program; None: op by op
    program: Mapping[str, Any] | None = field(repr=False)
    peak_bytes: float | None  # the most that was allocated at once; None: not asked


def measure_steps(
    steps: Sequence[Step], *, rounds: int = 4, repeats: int = 5, min_seconds: float = 0.3,
    profile: bool = False, yardstick: Yardstick | None = None,
    show: Show = lambda now: None,
) -> list[StepMeasurement]:  # fmt: skip
    """Repeat several steps in turn, several rounds of each.

    Args:
        steps: what to measure; their donated arguments are used up.
        rounds: turns of each step.
        repeats: calls of a turn, at least.
        min_seconds: of a turn, at least.
        profile: also what each instruction takes, asked after the last round.
        yardstick: waits a while before each turn until the machine is quiet.
        show: how far it is: each step's first call, then its turns.
    """
    running: list[RunningStep] = []
    done, total = itertools.count(1), len(steps) * (1 + rounds + profile)

    def tell(doing: str) -> None:
        show(Progress(next(done), total, doing))

    for one in steps:
        running.append(RunningStep(one))
        tell(one.name)
    yardstick = yardstick or Yardstick(allowance_s=_WAITED_PER_STEP_S * len(running))
    for _ in range(rounds):
        for step in running:
            yardstick.wait(_LONGEST_WAIT_S)
            step.measure(repeats, min_seconds)
            tell(step.name)
    for step in running if profile else ():
        step.profile()
        tell(f"profile of {step.name}")
    return [step.result() for step in running]


class RunningStep:
    """A started step between two calls: its next arguments, and the times so far."""

    def __init__(self, step: Step) -> None:
        self.name = step.name
        self._rounds_s: list[list[float]] = []
        self._op_s: dict[str, float] | None = None
        self._preemptions = 0
        self._cpu_s = self._wall_s = 0.0
        start_s = time.perf_counter()
        self._running = step.started()
        self._call = self._running.call_s
        self._call()
        self.first_call_s = time.perf_counter() - start_s
        self._call()  # the first call also touched the memory for the first time

    def measure(self, repeats: int, min_seconds: float) -> float:
        """One round of timed calls; returns its median in seconds."""
        machine.give_back_freed()
        self._call()  # takes back what it will keep
        preemptions_before = machine.preemptions()
        start_s, cpu_before_s = time.perf_counter(), time.process_time()
        beside = quiet.sibling().busy if timer.one_core() else timer.nobody
        budget = timer.Budget(min_seconds, min_seconds, repeats, repeats)
        _, calls_s = timer.repeat_until_settled(self._running, budget, beside)
        self._cpu_s += time.process_time() - cpu_before_s
        self._wall_s += time.perf_counter() - start_s
        self._preemptions += machine.preemptions() - preemptions_before
        self._rounds_s.append(calls_s)
        return statistics.median(calls_s)

    def profile(self) -> None:
        """Make a few calls more (more of a short step) and keep what each instruction took."""
        typical_s = statistics.median(self._rounds_s[-1])
        calls = min(max(round(_PROFILE_S / typical_s), 5), 40)
        self._op_s = op_times.profile(self._call, calls)

    def result(self) -> StepMeasurement:
        """The measurement so far."""
        calls_s = [call_s for calls_s in self._rounds_s for call_s in calls_s]
        round_s = tuple(statistics.median(round_s) for round_s in self._rounds_s)
        return StepMeasurement(
            time_s=min(round_s),
            least_s=min(calls_s),
            round_s=round_s,
            noise=statistics.median(round_s) / min(round_s) - 1 if len(round_s) > 1 else None,
            median_s=statistics.median(calls_s),
            repeats=len(calls_s),
            first_call_s=self.first_call_s,
            last_loss=float(self._running.loss),
            load=machine.load_1min(),
            preemptions=self._preemptions,
            cpu_share=self._cpu_s / self._wall_s,
            op_s=self._op_s,
            program=self._running.program,
            peak_bytes=self._running.peak_bytes,
        )


@pydantic_dataclass(frozen=True, config=STRICT)
class StepSpec:
    """One step to measure."""

    workload: Literal["dlrm", "gpt", "own", "own_torch"]  # module of this folder
    config: dict[str, Any] = field(default_factory=dict)
    seed: NonNegativeInt = 0


def read_spec(path: Path) -> list[StepSpec]:
    """The steps of a spec file, with workloads that exist; configs are unchecked."""
    entries = read_objects(path, 'steps like [{"workload": "dlrm", "config": {"batch": 512}}]')
    numbered = enumerate(entries, start=1)
    return [checked(StepSpec, entry, f"step {number} of {path}") for number, entry in numbered]


def build_steps(spec: Sequence[StepSpec], path: Path) -> list[tuple[Any, Step]]:
    """Config and step of each entry; all configs are checked before the first array is made."""
    configs = []
    for number, entry in enumerate(spec, start=1):
        name = entry.workload
        module = importlib.import_module(f"hybridperf_calibration.training_steps.{name}")
        kind, where = getattr(module, CONFIGS[name]), f"step {number} of {path} ({name})"
        configs.append((module, checked(kind, entry.config, where), entry.seed))
    return [(config, module.build(config, seed, BATCHES)) for module, config, seed in configs]


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status: 0, or 2 after one sentence about what to do."""
    parser = argparse.ArgumentParser(
        prog="python -m hybridperf_calibration.training_steps.run", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("spec", type=Path, metavar="SPEC.json")
    add("--out", type=Path, required=True, metavar="FILE.json")
    add("--programs", type=Path, metavar="DIR", help="folder to keep the compiled programs in")
    add("--profile", action="store_true", help="also keep what each instruction of a step took")
    add("--cores", help="cores to run on, like 0 or 0-3; all if not given")
    add("--rounds", type=_positive_int, default=4, help="times that every step has its turn")
    add("--repeats", type=_positive_int, default=5, help="calls per turn, at least")
    add("--seconds", type=float, default=0.3, help="seconds per turn, at least")
    options = parser.parse_args(arguments)
    return machine.exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    folder = options.out.parent
    if not folder.is_dir():  # before minutes of measuring, not after
        raise InputError(f"cannot write {options.out}: the folder {folder} does not exist.")
    spec = read_spec(options.spec)
    if options.cores is not None:
        machine.pin(machine.parse_cores(options.cores))
    configs, steps = zip(*build_steps(spec, options.spec), strict=True)
    yardstick = Yardstick(allowance_s=_WAITED_PER_STEP_S * len(steps))
    with told("running steps") as show:
        measured = measure_steps(
            steps, rounds=options.rounds, repeats=options.repeats, min_seconds=options.seconds,
            profile=options.profile, yardstick=yardstick, show=show,
        )  # fmt: skip
    from hybridperf.workloads.programs.jax.program import PROGRAM_SCHEMA_VERSION

    results = []
    every = zip(spec, configs, steps, measured, strict=True)
    for number, (entry, config, step, measurement) in enumerate(every):
        taken = {name: value for name, value in vars(measurement).items() if name != "program"}
        named = {"workload": entry.workload, "config": dataclasses.asdict(config)}
        result = {**named, "seed": entry.seed, "name": step.name, **plain(taken)}
        if options.programs and measurement.program is not None:
            result["program"] = f"step{number}.json"
            file, content = options.programs / result["program"], dict(measurement.program)
            write_json(file, "program", PROGRAM_SCHEMA_VERSION, content)
        results.append(result)
    library = "torch" if any(entry.workload == "own_torch" for entry in spec) else "jax"
    facts = {**machine.machine_facts(library), **yardstick.facts()}
    write_json(options.out, "steps", SCHEMA_VERSION, {"machine": facts, "steps": results})
    return 0


def _positive_int(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
