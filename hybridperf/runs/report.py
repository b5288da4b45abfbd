"""A whole training run as people read it."""

from __future__ import annotations

from hybridperf.engine.economy import DAY_S, HOUR_S
from hybridperf.report import text
from hybridperf.runs.elastic import MOST_WORKERS, Elastic
from hybridperf.runs.training_run import TrainingRun

_LINES = {  # what each line of a run's table is called, and how it is written
    "days": ("time", lambda value: f"{value:,.3g} days"), "goodput": ("goodput", text.percent),
    "uptime": ("uptime", text.percent), "failures": ("failures", lambda value: f"{value:,.0f}"),
    "gpu_hours": ("GPU hours", lambda value: f"{value:,.0f}"),
    "usd": ("money", lambda value: f"{value:,.0f} USD"), "energy_j": ("energy", text.energy),
}  # fmt: skip
_LOST = {
    "checkpoints": "checkpoints", "redone": "work done again", "detection": "finding out, waiting",
    "restart": "restarts", "planned": "planned stops", "evaluation": "evaluation",
    "stalls": "stalls",
}  # fmt: skip

_WAITS = 0.02  # share of the time from which on waiting for a node is said


def run_report(run: TrainingRun) -> str:
    """What it takes, where its time goes, how it is kept alive, what was believed."""
    rows = [
        [_LINES[what][0], *map(_LINES[what][1], three)]
        for what, *three in run.table.itertuples(index=False)
    ]
    lost = [[_LOST[name], text.percent(share)] for name, share in run.lost.items()
            if name in _LOST and share > 0]  # fmt: skip
    cycle = run.cycle
    every = f"a checkpoint every {text.seconds(float(cycle.interval_s))} of useful work"
    if float(cycle.checkpoints_per_write) > 1:
        every += f", every {float(cycle.checkpoints_per_write):.0f}th to storage"
    fails = 1 / float(cycle.failures_per_s) / HOUR_S
    each = f"{text.seconds(float(cycle.checkpoint_s))} of standing still each"
    spare = f"{run.spares} spare nodes"
    if run.spares == 0 and run.lost["detection"] > _WAITS:
        spare = "no spare node, so that the job waits until one that failed is repaired"
    lines = [
        run.words, "", text.table(["", "expected", "5 %", "95 %"], rows), "",
        f"{every}, {each}; {spare}; a failure every {fails:.3g} h of running", "",
        text.table(["time lost to", "share"], lost), "", "assumed:",
        *(f"  {note}" for note in run.notes),
    ]  # fmt: skip
    return "\n".join(lines)


def elastic_report(found: Elastic) -> str:
    """Workers that come and go, beside a job that stops for each of them."""
    best = (
        f"fastest with {_workers(found.fastest)} elastic, {_workers(found.fastest_rigid)} where"
        " each that leaves stops the job"
    )
    lasts, away = found.lifetime_s / DAY_S, text.seconds(found.away_s)
    life = f"a worker lasts {lasts:.3g} days, is away {away}"
    return f"{life}\n{text.frame_table(found.table)}\n{best}"


def _workers(count: int) -> str:
    return f"{count:,} workers" if count < MOST_WORKERS else f"more than {MOST_WORKERS:,} workers"
