"""`hybridperf predict`: one step of a program or of a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hybridperf.cli.common import (
    HtmlPage,
    ModelName,
    compilation_cache,
    keep_files,
    model_named,
    page_written,
)
from hybridperf.cli.program import code_of, jax_program

if TYPE_CHECKING:
    from hybridperf.model import PerfModel


def predict(
    jax: Annotated[
        str, Option(help="module:function returning (fn, args) or (fn, args, donate_argnums)")
    ] = "",
    program: Annotated[
        Path | None, Option(help="program file written by hybridperf instead")
    ] = None,
    trace: Annotated[
        Path | None, Option(help="recorded step instead: a PyTorch execution trace or Chakra graph")
    ] = None,
    model: ModelName = "here",
    ignore: Annotated[
        str, Option(help="instructions or ops to leave out, separated by commas")
    ] = "",
    timeline: Annotated[Path | None, Option(help="write a Perfetto timeline here")] = None,
    html: HtmlPage = None,
) -> None:
    """Time of one step of a JAX program, or of one that a trace recorded op by op."""
    from hybridperf.engine.prediction import predict as predict_step
    from hybridperf.io import InputError
    from hybridperf.report import perfetto
    from hybridperf.report.prediction import prediction_report
    from hybridperf.traces.readers.graphs import recorded_step
    from hybridperf.workloads.jax.program import compile_program, from_program, load_program

    count = bool(jax) + bool(program) + bool(trace)
    if count != 1:
        options = "--jax module:function, --program FILE and --trace FILE"
        raise InputError(f"expected one of {options}, got {count or 'none'} of them")
    keep_files({"--timeline": timeline, "--html": html}, [program, trace])
    compilation_cache()
    loaded = model_named(model)
    skip = [name for name in ignore.split(",") if name]
    if program:
        workload = load_program(program, ignore=skip)
    elif trace:
        workload = recorded_step(trace, ignore=skip)
    else:
        _run_like(loaded)
        fn, args, donate = jax_program(jax)
        with code_of(jax):
            compiled = compile_program(fn, *args, donate_argnums=donate, name=jax)
        workload = from_program(compiled, ignore=skip)
    result = predict_step(loaded, workload)
    print(prediction_report(result))
    if timeline:
        perfetto.write_timeline(result, timeline)
        print(f"timeline in {timeline} (open it at https://ui.perfetto.dev)")
    if html:
        from hybridperf.report.html import prediction_page, write_page

        write_page(prediction_page(result), html)
        page_written(html)


def _run_like(model: PerfModel) -> None:
    """Compile for the cores that the model was measured on: XLA splits work by those it sees."""
    cores = model.device.multiprocessors
    if model.device.kind == "cpu" and cores and hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable[: min(cores, len(usable))])
