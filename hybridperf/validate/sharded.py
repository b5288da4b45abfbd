"""Recommendation models sharded over two processes of this machine, one on each core: predicted,
and run for real.

Random models (`sharded_tasks`) run as `hybridperf_calibration.training_steps.sharded_dlrm` runs
them, with a real all-to-all and all-reduce, and their placements compete. Three ways to predict:

    programs   the very programs that ran, rank by rank, met in their collectives
               (`importers.rank_programs`), lookups with their access
    graph      sizes alone, as an eager framework would run them (`hp.dlrm`)
    cost       what decides placements: lookups and all-to-alls (`hp.shard`); no step, so it only
               chooses

The model must be of this machine and know its collectives: `hybridperf calibrate` and `hybridperf
calibrate --collectives` into one folder.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.prediction import Prediction, predict
from hybridperf.engine.workload import Workload
from hybridperf.explore.sharding.fused import Fused
from hybridperf.explore.sharding.greedy import GREEDY, RULES, by_rule
from hybridperf.explore.sharding.run import shard
from hybridperf.io import InputError, read_json, write_json, write_table
from hybridperf.model import PerfModel
from hybridperf.model.fit.programs import default_backend
from hybridperf.ops import GROUPS
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import lookup_calls
from hybridperf.report import plots, text
from hybridperf.validate import harness, sharded_phases, sharded_scores
from hybridperf.validate.baselines import best_factors
from hybridperf.validate.measured_steps import measure_sharded
from hybridperf.validate.sharded_scores import Contest
from hybridperf.validate.sharded_tasks import (
    DLRMS,
    TO_SHARD,
    Task,
    distinct_placements,
    random_models,
    random_placement,
    tables_of,
)
from hybridperf.workloads import DlrmConfig, Placement, dlrm
from hybridperf.workloads.jax.program import load_content
from hybridperf.workloads.jax.rank_programs import from_rank_programs
from hybridperf.workloads.jax.table_access import RankTables

RANKS = 2
PLACEMENTS = 9  # of a model that is to be sharded, at least
BAR, NOISES = (
    0.08,
    1.5,
)  # errors are to stay below the larger of both: a share, and so many noise floors
_SAME_SEEDS = {"models": 11, "shard": 23}
_SUMMARY_SCHEMA_VERSION = 1
_WAYS = ("programs", "graph", "cost")
OURS = "ours"
_MOST_RANDOM = 100  # placements drawn until there are enough different ones


def run(
    model: PerfModel,
    out: str | os.PathLike,
    *,
    tasks: int = 30,
    to_shard: int = 28,
    passes: int = 2,
    shard_passes: int = 1,
    say: Callable[[str], None] = print,
) -> Mapping[str, Any]:
    """Measure `tasks` models and `to_shard` models on several placements each, predict all, leave
    tables and `summary.json` in `out`.

    What an earlier run into `out` measured is not measured again.
    """
    out, start_s = Path(out), time.perf_counter()
    harness.refuse_other_backend(model.device, default_backend())
    if model.collectives is None:
        raise InputError(
            "the model knows no collectives and sharded steps have three; run `hybridperf calibrate"
            " --collectives` with its folder as --out"
        )
    summary: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "model": harness.model_record(model),
    }
    if not knows_access(model):
        say(
            "note: the model was calibrated without embedding bags, so lookups are predicted as if"
            " all rows of a table were alike"
        )
    if tasks:
        summary["steps"] = _steps(model, out / "models", tasks, passes, say)
    if to_shard:
        summary["placements"] = _placements(model, out / "placements", to_shard, shard_passes, say)
    summary["elapsed_s"] = time.perf_counter() - start_s
    write_json(out / "summary.json", "validate-sharded", _SUMMARY_SCHEMA_VERSION, summary)
    harness.write_results(out, "sharded", result_lines(summary))
    say(
        f"\nsummary.json, steps.csv and placements.csv are in {out}; {summary['elapsed_s']:.0f} s"
        " in all"
    )
    return summary


def result_lines(summary: Mapping[str, Any]) -> list[harness.ResultLine]:
    """As `results.json` keeps them."""
    lines = []
    if found := summary.get("steps"):
        scaled, models = found["scaled_roofline"], found["models"]
        others = {
            "hp.dlrm, sizes alone": found["graph"]["mean"],
            "roofline x best constant of the others": None if scaled is None else scaled["mean"],
        }
        ours, inside = found["programs"]["mean"], found["inside"] / models
        name = "steps of sharded models"
        lines.append(harness.ResultLine(name, ours, models, found["bar"], others, coverage=inside))
    if found := summary.get("placements"):
        ways = {way: score["mean_loss"] for way, score in found["ways"].items()}
        others = {rule: score["mean_loss"] for rule, score in found["rules"].items()}
        name, measure = "placement predicted best", "mean loss to the fastest"
        chosen = harness.ResultLine(name, ways["programs"], found["counted"], None, others, measure)
        lines.append(chosen)
    return lines


@dataclasses.dataclass(frozen=True)
class Compared:
    """One model on one placement: measured, and predicted in the ways that give a step."""

    task: Task
    placement: tuple[int, ...]
    measured_s: float
    noise: float
    programs: Prediction
    phases: pd.DataFrame  # see `sharded_phases`
    graph_s: float

    def record(self) -> dict[str, Any]:
        p = self.programs
        return {
            "task": self.task["name"], "placement": ",".join(map(str, self.placement)),
            "batch": self.task["batch"], "tables": len(self.task["tables"]),
            "lookups": self.task["batch"] * sum(t["pooling"] for t in self.task["tables"]),
            "measured_s": self.measured_s, "noise": self.noise, "predicted_s": p.time_s,
            "low_s": p.low_s, "high_s": p.high_s, "error": p.time_s / self.measured_s - 1,
            "graph_s": self.graph_s, "graph_error": self.graph_s / self.measured_s - 1,
            "roofline_s": p.roofline_s, "notes": "; ".join(p.notes),
        }  # fmt: skip


def compare(model: PerfModel, folder: Path, tasks: Sequence[Task]) -> list[Compared]:
    """Every measured placement of tasks, in their order; `folder` is what `measure_sharded` left.
    `InputError` where one is missing.
    """
    rows = pd.read_csv(folder / "steps.csv", dtype={"placement": str}).set_index(
        ["task", "placement"]
    )
    found = []
    for task in tasks:
        for placement in task["placements"]:
            key = task["name"], ",".join(map(str, placement))
            if key not in rows.index:
                raise InputError(
                    f"{folder} has no measurement of task {key[0]} on {key[1]}; its rows in"
                    " steps.jsonl say why"
                )
            row = rows.loc[key]
            contents = [
                load_content(folder / "programs" / f"{row['program']}-rank{rank}.json")
                for rank in range(RANKS)
            ]
            predicted = predict(model, workload_of(contents, task, placement, knows_access(model)))
            split = sharded_phases.phases(predicted, contents, row.to_dict())
            noise = float(row["noise"] if math.isfinite(row["noise"]) else row["rounds_noise"])
            graph_s = predict(model, eager(task, placement)).time_s
            found.append(
                Compared(
                    task, tuple(placement), float(row["step_s"]), noise, predicted, split, graph_s
                )
            )
    return found


def knows_access(model: PerfModel) -> bool:
    """Whether the model was calibrated on embedding bags of skewed access, forward and as XLA
    scatters gradients.
    """
    tables = [Table("any", 2, 1, 1)]
    calls = (
        lookup_calls(tables, 1, "forward"),
        lookup_calls(tables, 1, "backward", duplicates="each"),
    )
    return all(GROUPS[int(call.op.group_index())] in model.groups for call in calls)


def workload_of(
    contents: Sequence[Mapping[str, Any]],
    task: Mapping[str, Any],
    placement: Sequence[int],
    access: bool,
) -> Workload:
    """The programs of all ranks that ran a task; `access`: lookups as they were drawn, not as if
    all rows were alike.
    """
    tables, batch = tables_of(task), float(task["batch"])
    held = [
        RankTables([t for t, at in zip(tables, placement, strict=True) if at == rank], batch)
        for rank in range(RANKS)
    ]
    return from_rank_programs(contents, name=task["name"], tables=held if access else ())


def eager(task: Mapping[str, Any], placement: Sequence[int]) -> Workload:
    """The same step as sizes alone."""
    return dlrm(
        DlrmConfig(
            batch=task["batch"],
            dense_features=task["dense_features"],
            bottom_mlp=tuple(task["bottom_mlp"]),
            top_mlp=tuple(task["top_mlp"]),
            tables=tuple(tables_of(task)),
            interaction=task["interaction"],
            ranks=RANKS,
            duplicates="each",  # as XLA scatters them
            placement=tuple(Placement("table", (rank,)) for rank in placement),
        )
    )


def with_candidates(
    model: PerfModel, task: Task, seed: int
) -> tuple[Task, dict[tuple[int, ...], list[str]], dict[tuple[int, ...], float]]:
    """A task with the placements that compete, their names, and what each costs as `hp.shard`
    prices its final few.
    """
    tables, batch = tables_of(task), task["batch"]
    best = shard(tables, RANKS, model=model, batch=batch, seed=seed)
    by_rules = [(rule, by_rule(rule, best.cost, tables, batch, seed)) for rule in RULES]
    named = [
        (OURS, list(best.placement)),
        *((rule, placement.tolist()) for rule, placement in by_rules if placement is not None),
    ]
    more = 0
    while len(distinct := distinct_placements(named)) < PLACEMENTS and more < _MOST_RANDOM:
        more += 1
        named.append((f"random {more}", random_placement(task, RANKS, seed + more)))
    fused = Fused(best.cost, tables, model, batch, "sgd")
    cost_s = {placement: float(fused.parts(placement).step_s) for placement in distinct}
    return {**task, "placements": [list(placement) for placement in distinct]}, distinct, cost_s


def _steps(
    model: PerfModel, folder: Path, count: int, passes: int, say: Callable[[str], None]
) -> dict[str, Any]:
    tasks = random_models(count, DLRMS, _SAME_SEEDS["models"])
    for task in tasks:
        task["placements"] = [random_placement(task, RANKS, _SAME_SEEDS["models"])]
    say(f"running {count} sharded models on two cores, {passes} times each")
    _measure(folder, tasks, passes, profile=True)
    compared = compare(model, folder, tasks)
    write_table(pd.DataFrame([c.record() for c in compared]), folder.parent / "steps.csv")
    measured_s = [c.measured_s for c in compared]
    roofline_s = [c.programs.roofline_s for c in compared]
    factors = best_factors(roofline_s, measured_s)
    found: dict[str, Any] = {
        "programs": sharded_scores.errors([c.programs.time_s for c in compared], measured_s),
        "graph": sharded_scores.errors([c.graph_s for c in compared], measured_s),
        "scaled_roofline": (
            None
            if factors is None
            else sharded_scores.errors(list(factors * np.asarray(roofline_s)), measured_s)
        ),
        "noise": _mean_noise(compared),
        "inside": sum(
            c.programs.low_s is not None
            and c.programs.low_s <= c.measured_s <= (c.programs.high_s or 0)
            for c in compared
        ),
        "models": count,
    }
    found["bar"] = max(BAR, NOISES * (found["noise"] or 0.0))
    found["held"] = found["programs"]["mean"] <= found["bar"]
    split = sharded_phases.summary([c.phases for c in compared], measured_s)
    found["phases"] = {
        row.pop("phase"): {k: v if math.isfinite(v) else None for k, v in row.items()}
        for row in split.to_dict("records")
    }
    say("\n" + _steps_text(compared, found) + "\n\n" + sharded_phases.summary_text(split))
    names = [f"{c.task['name']}: {len(c.task['tables'])} tables" for c in compared]
    intervals = [(c.programs.low_s, c.programs.high_s) for c in compared]
    plots.measured_plot(
        names,
        measured_s,
        [c.programs.time_s for c in compared],
        folder.parent / "steps.png",
        intervals,
    )
    return found


def _placements(
    model: PerfModel, folder: Path, count: int, passes: int, say: Callable[[str], None]
) -> dict[str, Any]:
    drawn = random_models(count, TO_SHARD, _SAME_SEEDS["shard"], heavy=True, prefix="s")
    made = [with_candidates(model, task, _SAME_SEEDS["shard"]) for task in drawn]
    tasks = [task for task, _, _ in made]
    say(
        f"\nrunning {sum(len(task['placements']) for task in tasks)} placements of {count} models"
        f" on two cores, {passes} times each"
    )
    _measure(folder, tasks, passes, profile=False)
    compared = compare(model, folder, tasks)
    write_table(pd.DataFrame([c.record() for c in compared]), folder.parent / "placements.csv")
    contests = []
    for task, distinct, cost_s in made:
        of_task = [c for c in compared if c.task["name"] == task["name"]]
        predicted = (
            [c.programs.time_s for c in of_task],
            [c.graph_s for c in of_task],
            [cost_s[c.placement] for c in of_task],
        )
        contests.append(
            Contest(
                task["name"],
                tuple(c.placement for c in of_task),
                tuple(tuple(distinct[c.placement]) for c in of_task),
                np.array([c.measured_s for c in of_task]),
                {way: np.array(values) for way, values in zip(_WAYS, predicted, strict=True)},
            )
        )
    found = sharded_scores.judge(contests)
    found["noise"] = _mean_noise(compared)
    found["programs"] = sharded_scores.errors(
        [c.programs.time_s for c in compared], [c.measured_s for c in compared]
    )
    found["spreads"] = {contest.model: contest.spread for contest in contests}
    say("\n" + _placements_text(found))
    return found


def _mean_noise(compared: Sequence[Compared]) -> float | None:
    """Noise floor; None after a single pass."""
    known = [c.noise for c in compared if math.isfinite(c.noise)]
    return float(np.mean(known)) if known else None


def _measure(folder: Path, tasks: Sequence[Task], passes: int, *, profile: bool) -> None:
    path = folder / "tasks.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(tasks, indent=1))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    measure_sharded(folder, path, processes=RANKS, passes=passes, profile=profile)
    read_json(folder / "steps.machine.json", "machine", 1)  # what ran has left its facts


def _steps_text(compared: Sequence[Compared], found: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{c.task['name']}: {len(c.task['tables'])} tables, batch {c.task['batch']}",
            text.seconds(c.measured_s),
            text.percent(c.noise),
            text.seconds(c.programs.time_s),
            text.percent(c.programs.time_s / c.measured_s - 1),
            text.seconds(c.graph_s),
            text.percent(c.graph_s / c.measured_s - 1),
        ]
        for c in compared
    ]
    errors = [
        [name, *(text.percent(found[way][of]) for of in ("mean", "geomean", "signed", "worst"))]
        for name, way in (
            ("programs that ran", "programs"),
            ("hp.dlrm, sizes alone", "graph"),
            ("roofline x best constant of the others", "scaled_roofline"),
        )
        if found[way] is not None
    ]
    return "\n".join(
        [
            text.table(
                ["model", "measured", "noise floor", "programs", "error", "hp.dlrm", "error"], rows
            ),
            "",
            text.table(
                [
                    f"errors of {found['models']} sharded models",
                    "mean",
                    "geomean",
                    "with sign",
                    "worst",
                ],
                errors,
            ),
            (
                f"geomean error {text.percent(found['programs']['geomean'])}; Lin et al. on four"
                f" GPUs {text.percent(sharded_scores.LIN_GEOMEAN)}"
            ),
            (
                f"noise floor {text.percent(found['noise'])}; mean error"
                f" {text.percent(found['programs']['mean'])} against at most"
                f" {text.percent(found['bar'])}: {'held' if found['held'] else 'not held'};"
                f" {found['inside']} of {found['models']} inside the 90 % interval"
            ),
        ]
    )


def _placements_text(found: Mapping[str, Any]) -> str:
    def line(name: str, score: Mapping[str, Any]) -> list[str]:
        return [
            name,
            *(text.percent(score[of]) for of in ("success", "mean_loss", "worst_loss")),
            str(score["models"]),
        ]

    said = {
        "programs": "predicted best, programs that ran",
        "graph": "predicted best, hp.dlrm",
        "cost": "predicted best, hp.shard",
    }
    rows = [line(said[way], score) for way, score in found["ways"].items()]
    greedy = {
        rule: score
        for rule, score in found["rules"].items()
        if rule in GREEDY and score["success"] is not None
    }
    if greedy:
        best = max(greedy, key=lambda rule: (greedy[rule]["success"], -greedy[rule]["mean_loss"]))
        rows.append(line(f"best greedy rule ({best})", greedy[best]))
    rows += [line(rule, score) for rule, score in found["rules"].items()]
    rows.append(line("any of the placements", found["any"]))
    return "\n".join(
        [
            text.table(
                [
                    (
                        f"{found['counted']} of {found['models']} models differ by"
                        f" {sharded_scores.DIFFER} times"
                    ),
                    "success",
                    "mean loss",
                    "worst loss",
                    "models",
                ],
                rows,
            ),
            (
                "success: fastest or within 10 % of it; Lin et al."
                f" {text.percent(sharded_scores.LIN_SUCCESS)} of 20; steps of all placements"
                f" predicted with a mean error of {text.percent(found['programs']['mean'])}, noise"
                f" floor {text.percent(found['noise'])}"
            ),
        ]
    )
