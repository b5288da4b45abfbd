"""Measures collectives between processes: the program that `hybridperf calibrate --collectives` starts.

    python -m hybridperf_calibration.measure_collectives --processes 2 --setting quick --out DIR
    python -m hybridperf_calibration.measure_collectives --processes 16 --process-ids 8-15 --coordinator host0:8476 --out DIR

The first line measures this machine: it starts all processes here. The second is one machine's share of a job on several: run it on each
with its own numbers; the coordinator is a free port of the machine that has process 0, and the results are left there.

Each process has one device: an accelerator where JAX sees one (process i of those started here takes number i), else the CPU. Each is
pinned to two cores of its own where there are enough, else to none: gloo receives in a thread of its own, which on a single core waits
for the caller's time slice to end (with other programs running, medians were 2 to 50 times those of unpinned processes).

DIR gets the store (`collectives.jsonl`, by which a stopped run is resumed), the table (`collectives.csv`), the machine's facts
(`collectives.machine.json`) and each process's output (`collectives_logs/`).

The processes end with this program, however it ends: each has a pipe from it, whose other end closes then.

Exit status: 0 all measured, 4 the time budget ran out first, 2 one sentence says what is wrong, 5 (on several machines only) a collective
did not return: start all again to go on with the others.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hybridperf.io import InputError, write_json, write_table
from hybridperf_calibration.microbench import machine
from hybridperf_calibration.microbench.collective_cases import SIZES, collective_cases

if TYPE_CHECKING:
    from hybridperf_calibration.microbench.collectives import Team
    from hybridperf_calibration.microbench.store import RowStore

PASSES = {"quick": 1, "full": 2, "long": 3}
BUDGET_S = {"quick": 50.0, "full": 330.0, "long": None}  # between two processes the sizes of `full` take less; starting takes seconds
BUDGET_RAN_OUT = 4  # exit statuses
SENTENCE_SAID = 2
STALLED = 5  # of process 0, see microbench.collectives
BUSY = 0.3  # of a core; where others keep more of it busy, small collectives meet their time slices
CORES_EACH = 2  # one for the caller, one for the library's thread
_DEATHS_EVERY_S = 0.02  # looked for
_AFTER_DEATH_S = 0.3  # an error in one process is an error in the others a moment later: this long after it, the first is found to be first
_BUSY_SAMPLE_S = 0.3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(prog="hybridperf_calibration.measure_collectives")
    parser.add_argument("--out", required=True, help="folder for store, table, facts and logs, created or resumed")
    parser.add_argument("--processes", type=int, required=True, help="of the whole job, one device each")
    parser.add_argument("--setting", default="quick", choices=list(PASSES))
    parser.add_argument("--passes", type=int, default=None)
    parser.add_argument("--budget-s", type=float, default=None)
    parser.add_argument("--only", default="", help="collectives, separated by commas")
    parser.add_argument("--sizes", default="", help="bytes, separated by commas, instead of the setting's")
    parser.add_argument("--coordinator", default="", help="host:port of process 0, for a job on several machines")
    parser.add_argument("--process-ids", default="", help="those to start here, such as 8-15; all if not given")
    parser.add_argument("--unpinned", action="store_true", help="let every process use all cores")
    for name in ("--rank", "--local-device", "--last-pass"):  # how this program starts itself
        parser.add_argument(name, type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--cores", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        return _be_one(options)
    try:
        return _start_all(options)
    except (RuntimeError, ValueError) as error:
        print(f"hybridperf: {error}", file=sys.stderr)
        return SENTENCE_SAID
    except KeyboardInterrupt:
        return 130  # the command that started this program says so


@dataclass(frozen=True)
class _Process:
    rank: int
    popen: subprocess.Popen
    log: Path


def _start_all(options: argparse.Namespace) -> int:
    """Start this machine's processes and wait for them; returns their exit status."""
    if options.processes < 2:
        raise InputError(f"expected --processes of at least 2, got {options.processes}; a collective is between several")
    try:
        ranks = machine.parse_cores(options.process_ids) if options.process_ids else tuple(range(options.processes))
    except ValueError as error:
        raise InputError(f"expected --process-ids like 8-15, got {options.process_ids!r}") from error
    if not all(rank < options.processes for rank in ranks) or len(set(ranks)) < len(ranks):
        raise InputError(f"expected each of --process-ids once and below --processes {options.processes}, got {options.process_ids!r}")
    if len(ranks) < options.processes and not options.coordinator:
        raise InputError("expected --coordinator HOST:PORT, the machine of process 0, with --process-ids of a part of the job; got none")
    collective_cases(options.processes, "cpu", _sizes(options), _names(options.only))  # refuses wrong names and sizes here, once
    logs = _folders(Path(options.out))
    cores, remark = _cores(len(ranks), unpinned=options.unpinned)
    for line in (remark, _busy_remark()):
        if line:
            _say(line)
    budget_s = BUDGET_S[options.setting] if options.budget_s is None else options.budget_s
    start_s = time.perf_counter()
    passes = options.passes or PASSES[options.setting]
    last = passes if options.coordinator else 1  # new processes for each pass; where other machines take part, they would all have to agree
    while True:
        left_s = None if budget_s is None else max(budget_s - (time.perf_counter() - start_s), 0.0)
        status = _job(options, ranks, cores, logs, last, left_s)
        if status == STALLED and not options.coordinator:
            _say("a collective did not return (its row says which); starting the processes again to go on with the others")
        elif status == 0 and last < passes:
            last += 1
        else:
            return status


def _job(options: argparse.Namespace, ranks: Sequence[int], cores: Sequence[str], logs: Path, last: int, budget_s: float | None) -> int:
    """Start the processes once, to measure up to pass `last`, and wait for them; returns their exit status."""
    coordinator = options.coordinator or f"127.0.0.1:{_free_port()}"
    with _killed_in_the_end() as processes:
        for local, (rank, share) in enumerate(zip(ranks, cores, strict=True)):
            log = logs / f"process-{rank}.log"
            command = [sys.executable, "-m", "hybridperf_calibration.measure_collectives", *_own_arguments(options, budget_s)]
            command += ["--coordinator", coordinator, "--last-pass", str(last), "--rank", str(rank), "--local-device", str(local)]
            command += ["--cores", share] if share else []
            with log.open("wb") as handle:
                # What rank 0 has to tell goes straight to our output; gloo's own lines, in its log, would not be understood.
                output = sys.stderr if rank == 0 else handle
                popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=handle, start_new_session=True, env=_quiet())
            processes.append(_Process(rank, popen, log))
        return _wait(processes, options.processes)


def _wait(processes: Sequence[_Process], n: int) -> int:
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


def _death(process: _Process, status: int | None, n: int) -> str:
    lines = [line for line in process.log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "(nothing)"
    if status == SENTENCE_SAID and last.startswith("hybridperf: "):
        return last.removeprefix("hybridperf: ")
    how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
    return (
        f"process {process.rank} of {n} {how}, its last line was: {last[:300]}; what was measured is kept, all it said is in {process.log}"
    )


@contextlib.contextmanager
def _killed_in_the_end() -> Iterator[list[_Process]]:
    """A list of processes, none of which outlives the block. A request to terminate ends the block, too."""
    processes: list[_Process] = []

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


def _be_one(options: argparse.Namespace) -> int:
    """One process of the job."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    progress = os.fdopen(os.dup(1), "w")  # what we have to tell; gloo writes to the standard output, which joins the log
    os.dup2(2, 1)
    status = 1
    try:
        if options.cores:
            machine.pin(machine.parse_cores(options.cores))
        machine.steady_cpu()
        status = _measure(options, progress)
    except (InputError, RuntimeError, OSError) as error:
        # JAX raises subclasses of RuntimeError, some with several lines; what the user can mend comes from us.
        text = " ".join(str(error).split())
        ours = isinstance(error, InputError) or type(error).__module__.startswith("hybridperf") or type(error) is RuntimeError
        status = SENTENCE_SAID if ours else 1
        print(f"hybridperf: {text}" if ours else f"{type(error).__name__}: {text}", file=sys.stderr, flush=True)
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


def _measure(options: argparse.Namespace, progress: Any) -> int:
    from hybridperf_calibration.microbench import collectives
    from hybridperf_calibration.microbench.store import RowStore

    def say(line: str) -> None:
        print(f"hybridperf: {line}", file=progress, flush=True)

    start_s = time.perf_counter()
    team = collectives.Team(options.coordinator, options.processes, options.rank, options.local_device)
    nodes = team.nodes()
    pinned = team.exchange([float(bool(options.cores))]).min() > 0
    cases = collective_cases(team.n, team.platform, _sizes(options), _names(options.only))
    budget_s = None if options.budget_s is None else options.budget_s - (time.perf_counter() - start_s)
    with contextlib.ExitStack() as stack:
        store: RowStore | None = None
        if options.rank == 0:
            # neither the setting nor the list of cases is part of the fingerprint: a full run goes on where a quick one stopped
            settings = {"part": "collectives", "processes": team.n, "nodes": nodes, "pinned": bool(pinned)}
            store = stack.enter_context(RowStore(Path(options.out) / "collectives.jsonl", machine.fingerprint(settings)))
        passes = options.passes or PASSES[options.setting]
        report = collectives.run(cases, team, store, passes=passes, last=options.last_pass, budget_s=budget_s, say=say)
        if store is not None:
            _leave(Path(options.out), store, team, nodes, pinned=bool(pinned))
            if report.stopped or options.last_pass == passes:
                say(report.sentence())
    return BUDGET_RAN_OUT if report.stopped else 0


def _leave(folder: Path, store: RowStore, team: Team, nodes: int, *, pinned: bool) -> None:
    """Write the table and the machine's facts."""
    import jax

    from hybridperf_calibration.microbench.collectives import table

    common = {
        "n_gpus": team.n,
        "n_nodes": nodes,
        "gpus_per_node": team.n // nodes,
        "lib": team.library(),
        "lib_version": jax.__version__,
        "variant": "jax",
        "system": "here",
        "link": "intra" if nodes == 1 else "inter",
    }
    rows = table(store.rows, common)
    if rows.empty:
        raise RuntimeError(f"none of the collectives could be measured; the rows in {store.path} say why.")
    write_table(rows, folder / "collectives.csv")
    facts = {
        **machine.machine_facts(),
        "processes": team.n,
        "nodes": nodes,
        "pinned": pinned,
        "library": team.library(),
        "dispatch_s": team.dispatch_s,
    }
    facts["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_json(folder / "collectives.machine.json", "machine", 1, facts)


def _die_with_parent() -> None:
    """End this process at once when the one that started it has ended, however that was."""
    while os.read(0, 1):  # returns nothing when the pipe's other end closes
        pass
    os._exit(1)


def _cores(n: int, *, unpinned: bool) -> tuple[list[str], str]:
    """Cores for each of this machine's `n` processes as `machine.parse_cores` reads them, "" for all of them, and a sentence about that."""
    if unpinned or not hasattr(os, "sched_getaffinity"):
        return [""] * n, "the processes are not pinned to cores"
    usable = sorted(os.sched_getaffinity(0))
    if n > len(usable):
        return [""] * n, f"{n} processes share {len(usable)} cores here: they wait for each other, which is part of what is measured"
    if CORES_EACH * n > len(usable):
        return [""] * n, f"{n} processes share {len(usable)} cores here and are not pinned: each would want {CORES_EACH} of its own"
    return [",".join(map(str, usable[CORES_EACH * i : CORES_EACH * (i + 1)])) for i in range(n)], ""


def _busy_remark() -> str:
    """A sentence if other programs use the cores that are to be measured, or "". Empty where the system does not say (not Linux)."""
    try:
        before = _idle_s()
        time.sleep(_BUSY_SAMPLE_S)
        busy = machine.cores_available() - (_idle_s() - before) / _BUSY_SAMPLE_S
    except (OSError, KeyError, ValueError):
        return ""
    if busy <= BUSY:
        return ""
    return f"other programs keep {busy:.1f} of {machine.cores_available()} cores busy: collectives can come out many times too long"


def _idle_s() -> float:
    """Seconds that the usable cores were idle since the machine started, together (proc(5): /proc/stat, fifth and sixth word)."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    idle = {words[0]: float(words[4]) + float(words[5]) for words in lines if words[0].startswith("cpu")}
    return sum(idle[f"cpu{core}"] for core in os.sched_getaffinity(0)) / os.sysconf("SC_CLK_TCK")


def _folders(folder: Path) -> Path:
    """Make the folder of results and that of logs, which is returned."""
    logs = folder / "collectives_logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "process-0.log").touch()
    except OSError as error:
        raise InputError(f"cannot write into the folder {folder}: {error.strerror}; choose another --out") from error
    return logs


def _sizes(options: argparse.Namespace) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in options.sizes.split(",")) if options.sizes else SIZES[options.setting]
    except ValueError as error:
        raise InputError(f"expected --sizes in bytes like 256,65536, got {options.sizes!r}") from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _own_arguments(options: argparse.Namespace, budget_s: float | None) -> list[str]:
    """What a process of the job needs to know of our own command line."""
    arguments = ["--out", options.out, "--processes", str(options.processes), "--setting", options.setting]
    arguments += ["--only", options.only, "--sizes", options.sizes]
    arguments += ["--passes", str(options.passes)] if options.passes is not None else []
    arguments += ["--budget-s", str(budget_s)] if budget_s is not None else []
    return arguments


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _quiet() -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}


def _say(line: str) -> None:
    print(f"hybridperf: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
