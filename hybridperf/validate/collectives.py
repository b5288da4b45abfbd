"""Collectives on systems that no fit has seen, or of which it saw few rows: errors beside null
models, from the data folder.

For each task (see `collective_tasks`) and system, a prior of the other systems is adapted to the
rows that the task gives of the system and predicts its other rows; null models are given the same
rows. An error is |predicted / measured - 1|; its mean over the rows of a group (system, collective,
link, implementation), averaged over draws of rows, is the group's, and a line of the table has the
median over groups.

Trained priors are kept in OUT/priors and finished (task, system) pairs in OUT/parts, and not
computed again while program, data and seed are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.io import InputError, read_json, write_json, write_table
from hybridperf.model.published.collectives import FEW_SHOT, FOLDER, MEASURED
from hybridperf.validate import collective_nulls
from hybridperf.validate.collective_groups import MeasuredCollectives, read_groups
from hybridperf.validate.collective_judge import QUICK, Effort, Elsewhere, judge, program
from hybridperf.validate.collective_lines import LINES, line_of, lines_table, long_table
from hybridperf.validate.collective_tasks import TASKS, Task, eligible

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

Says = Callable[[str], None]


def run(
    data: Path, out: Path, quick: bool = False, tasks: Sequence[str] | None = None,
    say: Says = print, seed: int = 0
) -> Mapping[str, Any]:  # fmt: skip
    """Judge; leaves `collectives.json`, `collectives.csv` (a line per task, group and model) and
    `bus_<system>_<collective>.png` in `out`.

    `tasks`: names in `collective_tasks.TASKS`, all if not given. `quick`: one task on the two
    systems of the fewest rows, from a prior that is trained shortly. `InputError` where the data
    are missing, a task is unknown, scikit-learn is missing.
    """
    data, out = Path(data), Path(out)
    names = list(tasks or (_QUICK_TASKS if quick else TASKS))
    if unknown := [name for name in names if name not in TASKS]:
        raise InputError(f"unknown task {unknown[0]!r}; tasks are {', '.join(TASKS)}")
    collective_nulls.require_scikit_learn()
    measured = read_groups(data)
    effort = QUICK if quick else Effort()
    version = {"program": program(), "tables": _tables(data), "seed": seed, "effort": repr(effort)}
    wanted = [(name, system) for name in names for system in judged(measured, TASKS[name], effort)]
    jobs = sorted(
        wanted, key=lambda job: job[1]
    )  # by system, whose prior takes longest: then what is left is guessed well
    if not jobs:
        raise InputError(
            f"no group of rows to judge for {', '.join(names)} in {data / FOLDER}; check that its"
            " tables are whole"
        )
    elsewhere = Elsewhere(
        measured.sweeps, effort, seed, out / "priors", {system for _, system in jobs}, say
    )
    begun, results = time.monotonic(), []
    for done, (name, system) in enumerate(jobs):
        path = out / "parts" / f"{name}_{system}.json"
        plots = [
            (kind, out / f"bus_{system}_{kind}.png")
            for of, kind in _PLOTS
            if of == system and name == "half"
        ]
        part = _kept(path, version) if all(plot.is_file() for _, plot in plots) else None
        if part is None:
            table = measured.few if TASKS[name].few else measured.sweeps
            rows = table[table["system"] == system].reset_index(drop=True)
            part = {"version": version, "results": judge(rows, name, elsewhere, plots)}
            write_json(path, "validate-collectives-part", SCHEMA_VERSION, part)
            left = (time.monotonic() - begun) / (done + 1) * (len(jobs) - done - 1)
            say(f"{name} {system}: {len(part['results'])} groups; about {left / 60:.0f} min left")
        results += part["results"]
    lines = [
        found
        for line in LINES
        if line.task in names and (found := line_of(line, results, seed)) is not None
    ]
    summary = {"version": version, "left_out": measured.left_out, "lines": lines, "groups": results}
    write_json(out / "collectives.json", "validate-collectives", SCHEMA_VERSION, summary)
    write_table(long_table(results), out / "collectives.csv")
    say("\n" + lines_table(lines))
    say(
        "\n"
        + _left_out_text(measured.left_out)
        + f"\n\ncollectives.json, collectives.csv and plots are in {out}"
    )
    return summary


def judged(measured: MeasuredCollectives, task: Task, effort: Effort) -> list[str]:
    """Systems that a task judges: those with groups of enough rows, some of which it deals to the
    judged side.
    """
    table = measured.few if task.few else measured.sweeps
    names = []
    for system, rows in table[eligible(table, task)].groupby("system", sort=True):
        fit, test = task.deal(rows, np.random.default_rng(0))
        if len(test) and (len(fit) or not task.gives_rows):
            names.append(str(system))
    size = table["system"].value_counts()
    return (
        names
        if effort.systems is None
        else sorted(names, key=lambda name: (size[name], name))[: effort.systems]
    )


def _kept(path: Path, version: Mapping[str, Any]) -> dict[str, Any] | None:
    """A part that was finished by the same program from the same data."""
    with contextlib.suppress(InputError):
        part = read_json(path, "validate-collectives-part", SCHEMA_VERSION)
        if part.get("version") == version:
            return part
    return None


def _tables(data: Path) -> str:
    paths = (data / FOLDER / name for name in (MEASURED, FEW_SHOT))
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in paths if path.is_file())
    ).hexdigest()[:16]


def _left_out_text(left_out: Mapping[str, Mapping[str, int]]) -> str:
    lines = [
        f"  {name}: {count} rows, {reason}"
        for name, reasons in sorted(left_out.items())
        for reason, count in reasons.items()
    ]
    return "rows left out:\n" + "\n".join(lines) if lines else "no row was left out"
