"""Measures collectives between processes; `hybridperf calibrate --collectives` starts it.

    python -m hybridperf_calibration.measure_collectives --processes 2 --setting quick --out DIR
    python -m hybridperf_calibration.measure_collectives --processes 16 --process-ids 8-15
    --coordinator host0:8476 --out DIR

The first line measures this machine: it starts all processes here. The second is one machine's
share of a job on several: run it on each with its own numbers; the coordinator is a free port of
the machine that has process 0, and the results are left there.

Each process has one device: an accelerator where JAX sees one, or `--device` names one for PyTorch
(process i of those started here takes number i), else the CPU. Each is pinned to two cores of its
own where there are enough, else to none: gloo receives in a thread of its own, which on a single
core waits for the caller's time slice to end (with other programs running, medians were 2 to 50
times those of unpinned processes).
`--cores-each 1` pins each to one all the same: what a training step meets that runs on one core per
process.

DIR gets the store (`collectives.jsonl`, by which a stopped run is resumed), the table
(`collectives.csv`), the machine's facts (`collectives.machine.json`) and each process's output
(`collectives_logs/`).

The processes end with this program, however it ends: each has a pipe from it, whose other end
closes then.

Exit status: 0 all measured, 4 the time budget ran out first, 2 one sentence says what is wrong, 5
(on several machines only) a collective did not return: start all again to go on with the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.io import InputError
from hybridperf_calibration.microbench import accelerator, job, machine
from hybridperf_calibration.microbench.collective_cases import SIZES, collective_cases

if TYPE_CHECKING:
    from hybridperf_calibration.microbench.collectives import Job
    from hybridperf_calibration.microbench.store import RowStore

PASSES = {"quick": 1, "full": 2, "long": 3}
# between two processes the sizes of `full` take less; starting takes seconds
BUDGET_S = {"quick": 50.0, "full": 330.0, "long": None}
CORES_EACH = 2  # one for the caller, one for the library's thread


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(prog="hybridperf_calibration.measure_collectives")
    add = parser.add_argument
    add("--out", required=True, help="folder for store, table, facts and logs, created or resumed")
    add("--processes", type=int, required=True, help="of the whole job, one device each")
    parser.add_argument("--setting", default="quick", choices=list(PASSES))
    parser.add_argument("--passes", type=int, default=None)
    parser.add_argument("--budget-s", type=float, default=None)
    add("--library", default="jax", choices=["jax", "torch"], help="that joins the processes")
    add("--device", default="cpu", choices=accelerator.KINDS, help="of --library torch")
    parser.add_argument("--only", default="", help="collectives, separated by commas")
    add("--sizes", default="", help="bytes, separated by commas, instead of the setting's")
    add("--coordinator", default="", help="host:port of process 0, for a job on several machines")
    add("--process-ids", default="", help="those to start here, such as 8-15; all if not given")
    add("--cores-each", type=int, default=CORES_EACH, help="of every process, where it is pinned")
    # how this program starts itself
    parser.add_argument("--local-device", type=int, default=None, help=argparse.SUPPRESS)
    return job.run(parser, arguments, _start_all, _measure)


def _start_all(options: argparse.Namespace) -> int:
    """Start this machine's processes and wait for them; returns their exit status."""
    ids = options.process_ids
    try:
        ranks = machine.parse_cores(ids) if ids else tuple(range(options.processes))
    except ValueError as error:
        raise InputError(f"expected --process-ids like 8-15, got {ids!r}") from error
    if not all(rank < options.processes for rank in ranks) or len(set(ranks)) < len(ranks):
        expected = f"each of --process-ids once and below --processes {options.processes}"
        raise InputError(f"expected {expected}, got {ids!r}")
    if options.cores_each < 1:
        raise InputError(f"expected --cores-each of at least 1, got {options.cores_each}")
    if len(ranks) < options.processes and not options.coordinator:
        expected = "expected --coordinator HOST:PORT, the machine of process 0"
        raise InputError(f"{expected}, with --process-ids of a part of the job; got none")
    # refuses wrong names and sizes here, once
    names = _names(options.only)
    collective_cases(options.processes, options.device, _sizes(options), names, options.library)
    if options.library == "torch":
        accelerator.hide("torch", options.device)  # from the processes that are started here
    logs = job.make_folders(Path(options.out), "collectives_logs")
    cores, remark = job.cores_of_processes(len(ranks), options.cores_each)
    job.say(remark, job.busy_remark("collectives"))
    budget_s = BUDGET_S[options.setting] if options.budget_s is None else options.budget_s
    start_s = time.perf_counter()
    passes = options.passes or PASSES[options.setting]

    def measure(last: int) -> int:
        left_s = None if budget_s is None else max(budget_s - (time.perf_counter() - start_s), 0.0)
        own = {
            "--out": options.out, "--processes": options.processes, "--setting": options.setting,
            "--library": options.library, "--device": options.device, "--only": options.only,
            "--sizes": options.sizes, "--passes": options.passes,
            "--budget-s": left_s, "--last-pass": last,
            "--coordinator": options.coordinator or f"127.0.0.1:{job.free_port()}",
        }  # fmt: skip
        commands = job.commands("hybridperf_calibration.measure_collectives", own, ranks, cores)
        for local, command in enumerate(commands):
            command += ["--local-device", str(local)]
        return job.start(commands, ranks, logs, options.processes)

    # new processes for each pass; where other machines take part, they would all have to agree
    if options.coordinator:
        return job.in_passes(measure, passes, passes)
    return job.in_passes(measure, 1, passes, "collective")


def _measure(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """One process of the job."""
    from hybridperf_calibration.microbench import collectives
    from hybridperf_calibration.microbench.store import store_of_rank

    start_s = time.perf_counter()
    team = _team(options)
    nodes = team.nodes()
    pinned = team.exchange([float(bool(options.cores))]).min() > 0
    sizes, only = _sizes(options), _names(options.only)
    cases = collective_cases(team.n, team.platform, sizes, only, options.library)
    gone_s, budget_s = time.perf_counter() - start_s, options.budget_s
    left_s = None if budget_s is None else budget_s - gone_s
    # neither the setting nor the list of cases is part of the fingerprint: a full run goes on where
    # a quick one stopped
    settings = {"part": "collectives", "processes": team.n, "nodes": nodes, "pinned": bool(pinned)}
    file = Path(options.out) / "collectives.jsonl"
    fingerprint = machine.fingerprint(settings, options.library)
    with store_of_rank(options.rank, file, fingerprint) as store:
        passes = options.passes or PASSES[options.setting]
        report = collectives.run(
            cases, team, store, passes=passes, last=options.last_pass, budget_s=left_s, say=say
        )
        if store is not None:
            _write(options, store, team, nodes, pinned=bool(pinned))
            if not report.complete or options.last_pass == passes:
                say(report.sentence())
    return 0 if report.complete else job.BUDGET_RAN_OUT


def _team(options: argparse.Namespace) -> Job:
    """This process in the job."""
    from hybridperf_calibration.microbench import collectives, torch_team

    place = options.coordinator, options.processes, options.rank
    if options.library == "torch":
        on_cpu = options.device == "cpu"
        return torch_team.TorchTeam(*place, None if on_cpu else options.local_device)
    return collectives.Team(*place, options.local_device)


def _write(
    options: argparse.Namespace, store: RowStore, team: Job, nodes: int, *, pinned: bool
) -> None:
    """Write the table and the machine's facts."""
    from hybridperf_calibration.microbench.collectives import table

    common = {
        "n_gpus": team.n, "n_nodes": nodes, "gpus_per_node": team.n // nodes,
        "lib": team.library(), "lib_version": team.version(), "variant": options.library,
        "system": "here", "link": "intra" if nodes == 1 else "inter",
    }  # fmt: skip
    facts = {
        "processes": team.n, "nodes": nodes, "pinned": pinned, "library": team.library(),
        "dispatch_s": team.dispatch_s,
    }  # fmt: skip
    folder, rows = Path(options.out), table(store.rows, common)
    job.write_results(folder, "collectives", rows, facts, options.library)


def _sizes(options: argparse.Namespace) -> tuple[int, ...]:
    if not options.sizes:
        return SIZES[options.setting]
    try:
        return tuple(int(size) for size in options.sizes.split(","))
    except ValueError as error:
        wrong = f"expected --sizes in bytes like 256,65536, got {options.sizes!r}"
        raise InputError(wrong) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


if __name__ == "__main__":
    sys.exit(main())
