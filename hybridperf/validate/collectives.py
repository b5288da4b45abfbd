"""Collectives on systems that no fit has seen, or of which it saw few rows: errors next to
baselines, from the data folder.

For each task (see `collective_tasks`) and system, a prior of the other systems is adapted to the
rows that the task gives of the system and predicts its other rows; baselines are given the same
rows. An error is |predicted / measured - 1|; its mean over the rows of a group (system, collective,
link, implementation), averaged over draws of rows, is the group's, and a line of the table has the
median over groups.

Trained priors are kept in OUT/priors and finished (task, system) pairs in OUT/parts, and not
computed again while program, data and seed are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.io import InputError, write_json, write_table
from hybridperf.model.published.collectives import FEW_SHOT, FOLDER, MEASURED
from hybridperf.validate import harness
from hybridperf.validate.baselines import scikit_learn
from hybridperf.validate.collective_judge import (
    DEPENDS_ON,
    QUICK,
    CollectiveEffort,
    OtherSystems,
    judge,
)
from hybridperf.validate.collective_lines import (
    LINES,
    line_of,
    lines_table,
    long_table,
    result_line,
)
from hybridperf.validate.collective_rows import MeasuredCollectives, read_groups
from hybridperf.validate.collective_tasks import TASKS, CollectiveTask, eligible
from hybridperf.validate.parts import Parts, TimeLeft, left_out_text, program_digest

SCHEMA_VERSION = 1
_QUICK_TASKS = ("per_group",)
_PLOTS = (  # of systems whose half of the rows was fitted
    ("aic_h100_sxm", "all_reduce"),
    ("aic_l40s", "all_reduce"),
    ("aic_gb200", "alltoall"),
    ("aic_a100_sxm", "all_reduce"),
    ("vidur_a100_dgx", "all_reduce"),
    ("xxrjun_example-cluster00", "sendrecv"),
)


def run(
    data: Path,
    out: Path,
    quick: bool = False,
    tasks: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
    seed: int = 0,
) -> Mapping[str, Any]:
    """Judge; leaves `collectives.json`, `collectives.csv` (a line per task, group and model),
    `results.json` and `bus_<system>_<collective>.png` in `out`.

    Args:
        data: folder of measured data.
        out: folder for the results; finished parts in it are not computed again.
        quick: one task on the two systems of the fewest rows, from a prior that is trained shortly.
        tasks: names in `collective_tasks.TASKS`, all if not given.
        say: takes what is printed.
        seed: of every draw.

    Raises:
        InputError: data are missing, a task is unknown, scikit-learn is missing.
    """
    data, out = Path(data), Path(out)
    names = list(tasks or (_QUICK_TASKS if quick else TASKS))
    if unknown := [name for name in names if name not in TASKS]:
        raise InputError(f"unknown task {unknown[0]!r}; tasks are {', '.join(TASKS)}")
    scikit_learn("ensemble")
    measured = read_groups(data)
    effort = QUICK if quick else CollectiveEffort()
    program = program_digest(DEPENDS_ON)
    version = {"program": program, "tables": _tables(data), "seed": seed, "effort": repr(effort)}
    wanted = [(name, system) for name in names for system in judged(measured, TASKS[name], effort)]
    # by system, whose prior takes longest: then what is left is guessed well
    jobs = sorted(wanted, key=lambda job: job[1])
    if not jobs:
        raise InputError(
            f"no group of rows to judge for {', '.join(names)} in {data / FOLDER}; check that its"
            " tables are whole"
        )
    systems = {system for _, system in jobs}
    elsewhere = OtherSystems(measured.sweeps, effort, seed, out / "priors", systems, say)
    parts = Parts(out / "parts", "validate-collectives-part", version)
    time_left, results = TimeLeft(len(jobs), say), []
    for name, system in jobs:
        of_system = [kind for of, kind in _PLOTS if of == system and name == "half"]
        plots = [(kind, out / f"bus_{system}_{kind}.png") for kind in of_system]
        drawn = all(plot.is_file() for _, plot in plots)
        part = parts.kept(f"{name}_{system}") if drawn else None
        if part is None:
            table = measured.few if TASKS[name].few else measured.sweeps
            rows = table[table["system"] == system].reset_index(drop=True)
            found = judge(rows, name, elsewhere, plots)
            part = parts.keep(f"{name}_{system}", {"results": found})
            time_left.computed(f"{name} {system}: {len(part['results'])} groups")
        time_left.passed()
        results += part["results"]
    known = [line_of(line, results, seed) for line in LINES if line.task in names]
    lines = [line for line in known if line is not None]
    summary = {"version": version, "left_out": measured.left_out, "lines": lines, "groups": results}
    write_json(out / "collectives.json", "validate-collectives", SCHEMA_VERSION, summary)
    write_table(long_table(results), out / "collectives.csv")
    harness.write_results(out, "collectives", [result_line(line) for line in lines])
    say("\n" + lines_table(lines))
    where = f"collectives.json, collectives.csv and plots are in {out}"
    say("\n" + left_out_text(measured.left_out) + "\n\n" + where)
    return summary


def judged(
    measured: MeasuredCollectives, task: CollectiveTask, effort: CollectiveEffort
) -> list[str]:
    """Systems that a task judges: with groups of enough rows, some of them on the judged side."""
    table = measured.few if task.few else measured.sweeps
    names = []
    for system, rows in table[eligible(table, task)].groupby("system", sort=True):
        fit, test = task.deal(rows, np.random.default_rng(0))
        if len(test) and (len(fit) or not task.gives_rows):
            names.append(str(system))
    if effort.systems is None:
        return names
    size = table["system"].value_counts()
    return sorted(names, key=lambda name: (size[name], name))[: effort.systems]


def _tables(data: Path) -> str:
    paths = (data / FOLDER / name for name in (MEASURED, FEW_SHOT))
    whole = b"".join(path.read_bytes() for path in paths if path.is_file())
    return hashlib.sha256(whole).hexdigest()[:16]
