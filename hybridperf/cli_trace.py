"""`hybridperf trace`: commands on recorded runs. Like the others, they import what is heavy when they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hybridperf.traces.steps import CommonStep

app = typer.Typer(no_args_is_help=True, help="Read recorded runs (Kineto traces of PyTorch's profiler).")

Files = Annotated[list[Path], typer.Argument(help="traces: .json, .json.gz, archives or folders of them; one per rank")]
StepName = Annotated[str, typer.Option("--step", "--steps", help="steps by name, separated by commas; all if not given")]


@app.command()
def summary(
    files: Files,
    steps: StepName = "",
    out: Annotated[Path | None, typer.Option("--out", help="write all columns here: .csv, .csv.gz or .parquet")] = None,
    host: Annotated[Path | None, typer.Option("--host", help="fit the host's overheads, save them into this model folder")] = None,
) -> None:
    """Where the time of each step and rank went: computation, communication, idle and why; top ops."""
    from hybridperf.hardware import HOST_FILE
    from hybridperf.importers.kineto import read_traces
    from hybridperf.io import write_table
    from hybridperf.report import trace_tables as tables
    from hybridperf.traces.overheads import fit_host
    from hybridperf.traces.steps import common_steps
    from hybridperf.traces.summary import summarise, table, top_kernels, top_ops, worst

    traces = read_traces(files)
    chosen = choose_steps(common_steps(traces), steps)
    summaries = [summarise(traces, step.steps) for step in chosen]
    notes = [f"rank {trace.rank}: {note}" if len(traces) > 1 else note for trace in traces for note in trace.notes]
    notes += [note for step, said in zip(chosen, summaries, strict=True) for note in (step.note, *said.matched.notes)]
    for note in dict.fromkeys(filter(None, notes)):
        print(f"hybridperf: {note}", file=sys.stderr)
    rows = [row for said in summaries for row in said.rows]
    every_trace, every_step = [*traces] * len(chosen), [one for step in chosen for one in step.steps]
    if out:
        write_table(table(summaries), out)
    found = fit_host(traces, [[step.steps[at] for step in chosen] for at in range(len(traces))]) if host else None
    if found and host:
        found.save(host)
    screen = tables.console()
    screen.print(tables.steps(rows))
    screen.print(tables.idle(rows))
    screen.print(tables.losses(worst(summaries)))
    screen.print(tables.top("top ops by device time", top_ops(every_trace, every_step)))
    screen.print(tables.top("top kernels", top_kernels(every_trace, every_step)))
    if out:
        print(f"{len(rows)} rows in {out}")
    if found and host:
        screen.print(tables.host(found))
        print(f"host overheads in {host / HOST_FILE}")


def choose_steps(common: Sequence[CommonStep], names: str) -> list[CommonStep]:
    """The steps with these names (separated by commas; the number alone will do), all without any; `InputError` for one there is not."""
    from hybridperf.io import unknown

    by_name = {step.name: step for step in common}
    asked = [name.strip() for name in names.split(",") if name.strip()]
    full = [f"ProfilerStep#{name}" if name.isdecimal() else name for name in asked]
    for name in full:
        if name not in by_name:
            raise unknown("step", name, by_name, f"there are {', '.join(list(by_name)[:8])}{', ...' if len(by_name) > 8 else ''}")
    return [by_name[name] for name in full] if full else list(common)
