"""Recommendation models sharded over two processes of this machine, one on each core: predicted,
and run for real.

Random models (`sharded_tasks`) run as `hybridperf_calibration.training_steps.sharded_dlrm` runs
them, with a real all-to-all and all-reduce, and their placements compete. Three ways to predict:

    programs   the very programs that ran, rank by rank, met in their collectives
               (`rank_programs.py`), lookups with their access
    graph      sizes alone, as an eager framework would run them (`hp.dlrm`)
    cost       what decides placements: lookups and all-to-alls (`hp.shard`); no step, so it only
               chooses

The model must be of this machine and know its collectives: `hybridperf calibrate` and `hybridperf
calibrate --collectives` into one folder.
"""

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

from benchmarks.claims import harness, sharded_scores, sharded_tasks
from benchmarks.claims.rank_programs import RankTables, from_rank_programs
from benchmarks.claims.scores import by_the_others, finite
from benchmarks.claims.sharded_tasks import Task, random_models, random_placement, tables_of
from hybridperf.engine.prediction import predict
from hybridperf.engine.workload import Workload
from hybridperf.explore.sharding.cost import KernelPricer
from hybridperf.explore.sharding.methods import RULES, by_rule
from hybridperf.explore.sharding.run import shard
from hybridperf.io import InputError, read_json, replacing, write_json, write_table
from hybridperf.model import PerfModel
from hybridperf.model.fit.programs import default_backend, run_program
from hybridperf.ops import GROUPS
from hybridperf.ops.embedding import Table
from hybridperf.ops.embedding_bag import lookup_calls
from hybridperf.report import plots, text
from hybridperf.workloads.dlrm import dlrm
from hybridperf.workloads.dlrm_config import DlrmConfig
from hybridperf.workloads.placement import Placement
from hybridperf.workloads.programs.jax.program import load_content

RANKS = 2
PLACEMENTS = 9  # of a model that is to be sharded, at least
# errors are to stay below the larger of both: a share, and so many noise floors
BAR, NOISES = 0.08, 1.5
_SAME_SEEDS = {"models": 11, "shard": 23}
_SUMMARY_SCHEMA_VERSION = 1
OURS = "ours"
_MOST_RANDOM = 100  # placements drawn until there are enough different ones


def run(
    model: PerfModel,
    out: str | os.PathLike,
    *,
    tasks: int = 30,
    to_shard: int = 28,
    passes: int = 2,
    say: Callable[[str], None] = print,
) -> Mapping[str, Any]:
    """Measure models and predict them; leaves tables, `summary.json` and `results.json` in `out`;
    what an earlier run measured there is not measured again.

    `tasks` models run on one placement each, `passes` times; `to_shard` on several placements each,
    once. `InputError` where the model is of another machine, or knows no collectives.
    """
    out, start_s = Path(out), time.perf_counter()
    harness.refuse_other_backend(model.device, default_backend())
    if model.collectives is None:
        raise InputError(
            "the model knows no collectives and sharded steps have three; run `hybridperf calibrate"
            " --collectives` with its folder as --out"
        )
    today = datetime.date.today().isoformat()
    summary: dict[str, Any] = {"date": today, "model": harness.model_record(model)}
    if not knows_access(model):
        say(
            "note: the model was calibrated without embedding bags, so lookups are predicted as if"
            " all rows of a table were alike"
        )
    if tasks:
        summary["steps"] = _steps(model, out / "models", tasks, passes, say)
    if to_shard:
        summary["placements"] = _placements(model, out / "placements", to_shard, say)
    summary["elapsed_s"] = time.perf_counter() - start_s
    write_json(out / "summary.json", "validate-sharded", _SUMMARY_SCHEMA_VERSION, summary)
    harness.write_results(out, "sharded", result_lines(summary))
    took = f"{summary['elapsed_s']:.0f} s in all"
    say(f"\nsummary.json, steps.csv and placements.csv are in {out}; {took}")
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


def compare(
    model: PerfModel, folder: Path, tasks: Sequence[Task]
) -> tuple[list[dict[str, Any]], list[pd.DataFrame]]:
    """(a record, the phases) of every placement of tasks that was measured into `folder`;
    `InputError` if missing.
    """
    rows = pd.read_csv(folder / "steps.csv", dtype={"placement": str})
    rows = rows.set_index(["task", "placement"])
    found, split, access = [], [], knows_access(model)
    for task in tasks:
        for placement in task["placements"]:
            key = task["name"], ",".join(map(str, placement))
            if key not in rows.index:
                raise InputError(
                    f"{folder} has no measurement of task {key[0]} on {key[1]}; its rows in"
                    " steps.jsonl say why"
                )
            row = rows.loc[key]
            files = [f"{row['program']}-rank{rank}.json" for rank in range(RANKS)]
            contents = [load_content(folder / "programs" / name) for name in files]
            p = predict(model, workload_of(contents, task, placement, access))
            split.append(sharded_scores.phases(p, contents, row.to_dict()))
            noise = float(row["noise"] if math.isfinite(row["noise"]) else row["rounds_noise"])
            graph_s, step_s = predict(model, eager(task, placement)).time_s, float(row["step_s"])
            found.append({
                "task": key[0], "placement": key[1], "batch": task["batch"],
                "tables": len(task["tables"]),
                "lookups": task["batch"] * sum(t["pooling"] for t in task["tables"]),
                "measured_s": step_s, "noise": noise, "predicted_s": p.time_s, "low_s": p.low_s,
                "high_s": p.high_s, "error": p.time_s / step_s - 1, "graph_s": graph_s,
                "graph_error": graph_s / step_s - 1, "roofline_s": p.roofline_s,
                "notes": "; ".join(p.notes),
            })  # fmt: skip
    return found, split


def knows_access(model: PerfModel) -> bool:
    """Whether the model was calibrated on embedding bags of skewed access, both directions."""
    tables = [Table("any", 2, 1, 1)]
    forward = lookup_calls(tables, 1, "forward")
    backward = lookup_calls(tables, 1, "backward", duplicates="each")
    return all(GROUPS[int(call.op.group_index())] in model.groups for call in (forward, backward))


def workload_of(
    contents: Sequence[Mapping[str, Any]],
    task: Mapping[str, Any],
    placement: Sequence[int],
    access: bool,
) -> Workload:
    """The programs of all ranks that ran a task; `access`: with lookups as they were drawn."""
    tables, batch = tables_of(task), float(task["batch"])
    held = [
        RankTables([t for t, at in zip(tables, placement, strict=True) if at == rank], batch)
        for rank in range(RANKS)
    ]
    return from_rank_programs(contents, name=task["name"], tables=held if access else ())


def eager(task: Mapping[str, Any], placement: Sequence[int]) -> Workload:
    """The same step as sizes alone."""
    config = DlrmConfig(
        batch=task["batch"], dense_features=task["dense_features"],
        bottom_mlp=tuple(task["bottom_mlp"]), top_mlp=tuple(task["top_mlp"]),
        tables=tuple(tables_of(task)), interaction=task["interaction"], ranks=RANKS,
        duplicates="each",  # as XLA scatters them
        placement=tuple(Placement("table", (rank,)) for rank in placement),
    )  # fmt: skip
    return dlrm(config)


def with_candidates(
    model: PerfModel, task: Task, seed: int
) -> tuple[Task, dict[tuple[int, ...], list[str]], dict[tuple[int, ...], float]]:
    """A task with the placements that compete, their names, and their costs by `hp.shard`."""
    tables, batch = tables_of(task), task["batch"]
    best = shard(tables, RANKS, model=model, batch=batch, seed=seed)
    by_rules = [(rule, by_rule(rule, best.cost, tables, batch, seed)) for rule in RULES]
    named, more = [(OURS, list(best.placement))], 0
    named += [(rule, placement.tolist()) for rule, placement in by_rules if placement is not None]
    while (
        len(distinct := sharded_tasks.distinct_placements(named)) < PLACEMENTS
        and more < _MOST_RANDOM
    ):
        more += 1
        named.append((f"random {more}", random_placement(task, RANKS, seed + more)))
    fused = KernelPricer(best.cost, tables, model, batch, "sgd")
    cost_s = {placement: float(fused.parts(placement).step_s) for placement in distinct}
    return {**task, "placements": [list(placement) for placement in distinct]}, distinct, cost_s


def _steps(
    model: PerfModel, folder: Path, count: int, passes: int, say: Callable[[str], None]
) -> dict[str, Any]:
    tasks = random_models(count, sharded_tasks.DLRMS, _SAME_SEEDS["models"])
    for task in tasks:
        task["placements"] = [random_placement(task, RANKS, _SAME_SEEDS["models"])]
    say(f"running {count} sharded models on two cores, {passes} times each")
    _measure(folder, tasks, passes, profile=True)
    steps, phases = compare(model, folder, tasks)
    frame = pd.DataFrame(steps)
    write_table(frame, folder.parent / "steps.csv")
    columns = ("measured_s", "low_s", "high_s")
    measured_s, low_s, high_s = (frame[name].astype(float) for name in columns)
    scaled_s, scaled = by_the_others([frame["roofline_s"]], measured_s), None
    if scaled_s is not None:
        scaled = sharded_scores.errors(scaled_s.tolist(), measured_s)
    found: dict[str, Any] = {
        "programs": sharded_scores.errors(frame["predicted_s"], measured_s),
        "graph": sharded_scores.errors(frame["graph_s"], measured_s),
        "scaled_roofline": scaled,
        "noise": _mean_noise(steps),
        "inside": int(measured_s.between(low_s, high_s).sum()),
        "models": count,
    }
    found["bar"] = max(BAR, NOISES * (found["noise"] or 0.0))
    found["held"] = found["programs"]["mean"] <= found["bar"]
    split = sharded_scores.phase_shares(phases, measured_s)
    found["phases"] = {
        row.pop("phase"): {name: finite(share) for name, share in row.items()}
        for row in split.to_dict("records")
    }
    say("\n" + _steps_text(frame, found) + "\n\n" + text.frame_table(split))
    names = [f"{c['task']}: {c['tables']} tables" for c in steps]
    ends = [(c["low_s"], c["high_s"]) for c in steps]
    picture = folder.parent / "steps.png"
    plots.measured_plot(names, measured_s, frame["predicted_s"], picture, ends)
    return found


def _placements(
    model: PerfModel, folder: Path, count: int, say: Callable[[str], None]
) -> dict[str, Any]:
    seed = _SAME_SEEDS["shard"]
    drawn = random_models(count, sharded_tasks.TO_SHARD, seed, heavy=True, prefix="s")
    made = [with_candidates(model, task, seed) for task in drawn]
    tasks = [task for task, _, _ in made]
    runs = sum(len(task["placements"]) for task in tasks)
    say(f"\nrunning {runs} placements of {count} models on two cores, 1 times each")
    _measure(folder, tasks, 1, profile=False)
    steps, _ = compare(model, folder, tasks)
    frame = pd.DataFrame(steps)
    write_table(frame, folder.parent / "placements.csv")
    candidates = [(names, cost_s[at]) for _, by, cost_s in made for at, names in by.items()]
    contests = frame.assign(
        names=[names for names, _ in candidates], cost=[cost_s for _, cost_s in candidates]
    ).rename(columns={"predicted_s": "programs", "graph_s": "graph"})
    found = sharded_scores.judge(contests, ("programs", "graph", "cost"))
    found["noise"] = _mean_noise(steps)
    found["programs"] = sharded_scores.errors(frame["predicted_s"], frame["measured_s"])
    step_s = frame.groupby("task", sort=False)["measured_s"]
    found["spreads"] = (step_s.max() / step_s.min()).to_dict()
    say("\n" + _placements_text(found))
    return found


def _mean_noise(steps: Sequence[Mapping[str, Any]]) -> float | None:
    """Noise floor; None after a single pass."""
    known = [one["noise"] for one in steps if math.isfinite(one["noise"])]
    return float(np.mean(known)) if known else None


def _measure(folder: Path, tasks: Sequence[Task], passes: int, *, profile: bool) -> None:
    """Run sharded models on as many cores as they have ranks; leaves `steps.csv` and the programs
    in `folder`. Resumes.

    `hybridperf_calibration.training_steps.sharded_tasks` says what a task is.
    """
    with replacing(folder / "tasks.json") as handle:
        json.dump(tasks, handle, indent=1)
    options = ["--tasks", str(folder / "tasks.json"), "--out", str(folder)]
    options += ["--processes", str(RANKS), "--passes", str(passes)]
    options += [] if profile else ["--no-profile"]
    run_program("hybridperf_calibration.training_steps.sharded_dlrm", options)
    read_json(folder / "steps.machine.json", "machine", 1)  # what ran has left its facts


def _steps_text(steps: pd.DataFrame, found: Mapping[str, Any]) -> str:
    ways = {
        "programs that ran": found["programs"], "hp.dlrm, sizes alone": found["graph"],
        "roofline x best constant of the others": found["scaled_roofline"],
    }  # fmt: skip
    errors = pd.DataFrame([{"errors of": name, **one} for name, one in ways.items() if one])
    held = "held" if found["held"] else "not held"
    shown = ["task", "tables", "batch", "measured_s", "noise", "predicted_s", "error", "graph_s"]
    mean, bar, noise = map(text.percent, (found["programs"]["mean"], found["bar"], found["noise"]))
    return (
        f"{text.frame_table(steps[[*shown, 'graph_error']])}\n\n{text.frame_table(errors)}\n"
        f"Lin et al. on four GPUs: geomean {text.percent(sharded_scores.LIN_GEOMEAN)}\n"
        f"noise floor {noise}; mean error {mean} against at most {bar}: {held};"
        f" {found['inside']} of {found['models']} inside the 90 % interval"
    )


def _placements_text(found: Mapping[str, Any]) -> str:
    ways = {"programs": "programs that ran", "graph": "hp.dlrm", "cost": "hp.shard"}
    chosen = {f"predicted best, {ways[way]}": score for way, score in found["ways"].items()}
    scores = chosen | found["rules"] | {"any of the placements": found["any"]}
    frame = pd.DataFrame([{"placement": name, **score} for name, score in scores.items()])
    lin_success, noise = text.percent(sharded_scores.LIN_SUCCESS), text.percent(found["noise"])
    return (
        f"{found['counted']} of {found['models']} models differ by {sharded_scores.DIFFER} times\n"
        f"{text.frame_table(frame)}\n"
        f"success: fastest or within 10 % of it; Lin et al. {lin_success} of 20; steps of all"
        f" placements predicted with a mean error of {text.percent(found['programs']['mean'])},"
        f" noise floor {noise}"
    )
