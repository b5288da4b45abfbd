"""Collectives on systems that no fit has seen, or of which it saw few rows: errors next to
baselines, from the data folder.

For each task (see `collective_judge`) and system, a prior of the other systems is adapted to the
rows that the task gives of the system and predicts its other rows; baselines are given the same
rows. An error is |predicted / measured - 1|; its mean over the rows of a group (system, collective,
link, implementation), averaged over draws of rows, is the group's, and a line of the table has the
median over groups.

Trained priors are kept in OUT/priors and finished (task, system) pairs in OUT/parts, and not
computed again while program, data and seed are the same.

Tokens on their way to experts and back (`hybridperf/collectives/experts.py`), by DeepEP's and
TensorRT-LLM's kernels: knobs fitted without a system, or without a number of nodes or ranks, next
to what the datasheet and what the system's NCCL all-to-all of as many bytes say. What the tables
hold: `hybridperf_calibration.published.collectives.read_experts`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims import collective_judge, harness
from benchmarks.claims.collective_baselines import NAMES
from benchmarks.claims.collective_judge import (
    GROUP,
    TASKS,
    CollectiveEffort,
    CollectiveTask,
    MeasuredCollectives,
    read_groups,
)
from benchmarks.claims.harness import Columns, ResultLine
from benchmarks.claims.scores import COLUMN, SEED, best, coverage_band, finite, scikit_learn
from hybridperf.collectives.experts import Exchange
from hybridperf.collectives.fit import collectives_by_name
from hybridperf.io import InputError, write_json, write_table
from hybridperf_calibration.published.collectives import FEW_SHOT, FOLDER, MEASURED
from hybridperf_calibration.ship import experts as expert_fit

SCHEMA_VERSION = 1
_RESAMPLES = 2000
_EXPERTS = "experts"  # other tables, of which nothing is fitted
_QUICK_TASKS = ("per_group",)
_PLOTS = (  # of systems whose half of the rows was fitted
    ("aic_h100_sxm", "all_reduce"), ("aic_l40s", "all_reduce"), ("aic_gb200", "alltoall"),
    ("aic_a100_sxm", "all_reduce"), ("vidur_a100_dgx", "all_reduce"),
    ("xxrjun_example-cluster00", "sendrecv"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CollectiveLine:
    """Groups of a task that stand together in the table."""

    name: str
    task: str
    goal: float | None = None
    systems: Sequence[str] = ()  # all
    only: str = ""  # implementation


LINES = tuple(CollectiveLine(**line) for line in harness.facts("collectives.toml")["lines"])


def run(
    data: Path,
    out: Path,
    quick: bool = False,
    tasks: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
) -> Mapping[str, Any]:
    """Judge; leaves `collectives.json`, `collectives.csv` (a line per task, group and model),
    `results.json` and `bus_<system>_<collective>.png` in `out`.

    `tasks`: names in `collective_judge.TASKS`, or experts (`expert_lines`), all if not given;
    `quick`: one task on the two systems of the fewest rows, from a prior that is trained shortly.
    `InputError` where data or scikit-learn are missing or a task is unknown.
    """
    data, out = Path(data), Path(out)
    names = list(tasks or (_QUICK_TASKS if quick else (*TASKS, _EXPERTS)))
    if unknown := [name for name in names if name not in (*TASKS, _EXPERTS)]:
        raise InputError(f"unknown task {unknown[0]!r}; tasks are {', '.join((*TASKS, _EXPERTS))}")
    of_systems = [name for name in names if name != _EXPERTS]
    if of_systems:
        scikit_learn("ensemble")
        measured = read_groups(data)
    experts = expert_lines(data) if _EXPERTS in names else []
    if not of_systems:
        harness.write_results(out, "collectives", experts)
        say(harness.lines_table(experts, "rows"))
        return {"lines": []}
    names, effort = of_systems, collective_judge.QUICK if quick else CollectiveEffort()
    wanted = [(name, system) for name in names for system in judged(measured, TASKS[name], effort)]
    if not wanted:
        raise InputError(
            f"no group of rows to judge for {', '.join(names)} in {data / FOLDER}; check that its"
            " tables are whole"
        )
    systems = {system for _, system in wanted}
    elsewhere = collective_judge.OtherSystems(
        measured.sweeps, measured.few, effort, out / "priors", systems, say
    )
    jobs, again = {}, []
    # by system, whose prior takes longest: then what is left is guessed well
    for name, system in sorted(wanted, key=lambda job: job[1]):
        of_system = [kind for of, kind in _PLOTS if of == system and name == "half"]
        plots = [(kind, out / f"bus_{system}_{kind}.png") for kind in of_system]
        again += [] if all(plot.is_file() for _, plot in plots) else [(name, system)]
        rows = measured.of(system, TASKS[name].few)
        jobs[name, system] = functools.partial(collective_judge.judge, rows, name, elsewhere, plots)
    paths = [data / FOLDER / name for name in (MEASURED, FEW_SHOT)]
    tables = b"".join(path.read_bytes() for path in paths if path.is_file())
    schema, files = "validate-collectives-part", collective_judge.DEPENDS_ON
    parts = harness.Parts.of(out, schema, files, tables, seed=SEED, effort=repr(effort))
    found = parts.results(jobs, "groups", say, again)
    results = [group for part in found for group in part["results"]]
    known = [line_of(line, results) for line in LINES if line.task in names]
    lines = [line for line in known if line is not None]
    left_out = measured.left_out
    summary = {"version": parts.version, "left_out": left_out, "lines": lines, "groups": results}
    write_json(out / "collectives.json", "validate-collectives", SCHEMA_VERSION, summary)
    write_table(long_table(results), out / "collectives.csv")
    shown = list(map(_result_line, lines))
    harness.write_results(out, "collectives", [*shown, *experts])
    say("\n" + harness.lines_table(shown, "groups"))
    if experts:
        say("\n" + harness.lines_table(experts))
    where = f"collectives.json, collectives.csv and plots are in {out}"
    say("\n" + harness.left_out_text(left_out) + "\n\n" + where)
    return summary


def judged(
    measured: MeasuredCollectives, task: CollectiveTask, effort: CollectiveEffort
) -> list[str]:
    """Systems that a task judges: with groups of enough rows, some of them on the judged side."""
    table = measured.few if task.few else measured.sweeps
    names = []
    for system, rows in table[collective_judge.eligible(table, task)].groupby("system", sort=True):
        fit, test = task.deal(rows, np.random.default_rng(0))
        if len(test) and (len(fit) or not task.gives_rows):
            names.append(str(system))
    if effort.systems is None:
        return names
    size = table["system"].value_counts()
    return sorted(names, key=lambda name: (size[name], name))[: effort.systems]


def line_of(line: CollectiveLine, results: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """A line of the table; None where it has no group.

    Coverage is of rows in range, or where most are out of it (nothing was fitted, or only fewer
    ranks) of all rows; the band is what a share of 90 % of so many independent rows of one draw
    does with a chance of 99 %.
    """
    chosen = [
        one
        for one in results
        if one["task"] == line.task
        and (not line.systems or one["system"] in line.systems)
        and line.only in ("", one["implementation"])
    ]
    if not chosen:
        return None
    columns = [f"{COLUMN}{name}" for name in NAMES]
    groups = pd.DataFrame(chosen).reindex(columns=[*dict.fromkeys([*chosen[0], *columns])])
    errors = groups[columns].astype(float)
    medians, answered = errors.median(), errors.count()
    best_column = best(medians[answered == len(groups)].to_dict())
    near = groups["in_range"].sum() >= 0.5 * groups["tested"].sum()
    rows = round(float(groups["in_range" if near else "tested"].sum()))
    band = coverage_band(rows)
    ours = groups["ours"].to_numpy(np.float64)
    drawn = np.random.default_rng(SEED).integers(0, len(ours), (_RESAMPLES, len(ours)))
    spread = np.quantile(np.median(ours[drawn], axis=1), [0.025, 0.975])
    median = float(np.median(ours))
    return {
        "line": line.name, "task": line.task, "goal": line.goal,
        "met": None if line.goal is None else median <= line.goal, "groups": len(groups),
        "ours": median, "ours_low": float(spread[0]), "ours_high": float(spread[1]),
        **{column: finite(medians[column]) for column in columns},
        **{f"answered_{name}": int(answered[f"{COLUMN}{name}"]) for name in NAMES},
        "best_null": best_column.removeprefix(COLUMN),
        "best_null_wins": int((errors[best_column] < groups["ours"]).sum()),
        "covered": float(groups["inside_in_range" if near else "inside"].sum() / rows),
        "covered_rows": rows, "covered_in_range": bool(near), "band_low": band[0],
        "band_high": band[1], "half_width": finite(groups["half_width"].median()),
    }  # fmt: skip


def _result_line(line: Mapping[str, Any]) -> harness.ResultLine:
    return harness.ResultLine(
        f"{line['line'].strip()} ({line['task']})", line["ours"], line["groups"], line["goal"],
        harness.baselines_in(line), "MAPE, median over groups",
        coverage=line["covered"], half_width=line["half_width"],
    )  # fmt: skip


def long_table(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per task, group and model."""
    frame = pd.DataFrame(results)
    models = [column for column in frame if column == "ours" or str(column).startswith(COLUMN)]
    kept = [column for column in frame if column not in models]
    long = frame.melt(kept, models, "model", "mape")
    return long.assign(model=long["model"].str.removeprefix(COLUMN)).sort_values(
        ["task", *GROUP, "model"], ignore_index=True
    )


_EXPERT_COLUMNS = Columns("time_s", baselines={"datasheet": "roofline_s", "nccl": "nccl_s"})


def expert_lines(data: Path) -> list[ResultLine]:
    """A line for each kernel, direction and what was left out of the fit of its knobs."""
    found = []
    for name, way, kernel, rows in expert_fit.kinds(data):
        for what, part in expert_fit.left_out(rows, kernel):
            said = pd.concat([_unfitted(str(of), some) for of, some in part.groupby("system")])
            half = expert_fit.log_width(name, way)
            said = said.assign(low_s=said["predicted_s"] * np.exp(-half),
                               high_s=said["predicted_s"] * np.exp(half))  # fmt: skip
            line = f"experts: {name}, {way}, {what} left out"
            found.append(_EXPERT_COLUMNS.line(line, said, measure="median APE"))
    return found


def _unfitted(system: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with what the datasheet and NCCL's all-to-all of as many bytes say of them."""
    model = collectives_by_name(system)
    asked = rows.drop(columns=["predicted_s"]).reset_index(drop=True)
    shares = Exchange(asked).sent()
    n = asked["n_gpus"].to_numpy(float)
    places = np.where(asked["n_nodes"] > 1, asked["n_nodes"], n)
    far = np.where(asked["n_nodes"] > 1, shares[1] / (n / asked["n_nodes"]), shares[0])
    sent = np.maximum(asked["bytes"] * far * places / np.maximum(places - 1, 1), 1.0)
    plain = asked.assign(collective="alltoall", lib="nccl", bytes=sent)
    return rows.reset_index(drop=True).assign(
        roofline_s=model.predict(asked)["roofline_s"].to_numpy(),
        nccl_s=model.predict(plain)["predicted_s"].to_numpy(),
    )
