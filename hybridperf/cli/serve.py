"""`hybridperf serve`: operating points of servers, predicted row by row."""

from pathlib import Path
from textwrap import indent, wrap
from typing import Annotated

from typer import Argument

from hybridperf.cli import common


def serve(
    rows: Annotated[Path | None, Argument()] = None,
    out: Path | None = None,
    fit_on: list[Path] | None = None,
    model: Path | None = None,
    save: Path | None = None,
    shape: str = "",
    system: str = "",
    device: str = "",
    gpus: int = 8,
    isl: int = 1024,
    osl: int = 1024,
    sla: str = "",
    framework: str = "",
    precision: str = "",
    prices: Path | None = None,
    requests: Path | None = None,
    trace: str = "",
    top: int = 10,
    html: Path | None = None,
) -> int:
    """Predict each row of a table of served models: time to first token, time per output token,
    throughput, memory. With --shape instead: all ways to serve a model on some GPUs, ranked by
    tokens a second and GPU under limits of latency, with their front, costs and launch commands;
    with --requests also what recorded requests see of the best.

    Columns that are read; what is left out is assumed, and the note says so:

    \b
    COLUMNS

    \b
    Columns that are written (seconds, bytes):
      predicted_ttft_s, ttft_low_s, ttft_high_s    mean time to first token of a closed loop of
                                    clients; nine of ten rows lie between low and high
      predicted_tpot_s, tpot_low_s, tpot_high_s    per output token of a request
      predicted_tokens_per_s_gpu    output tokens of all requests, per GPU
      memory_bytes, fits            of a GPU that decodes; whether weights and a request fit
      note                          why a row is not predicted, what was assumed
    """
    if not shape:
        if rows is None:
            raise common.wrong(
                "expected a table of rows, or --shape and --system, got none of them"
            )
        return of_rows(rows, out, fit_on or [], model, save)
    if rows is not None or fit_on or model or save:
        raise common.wrong(
            "expected --shape without rows, --fit-on, --model and --save, got both; rows are"
            " predicted, shapes are deployed"
        )
    if not system:
        raise common.wrong("expected --system with --shape, such as h200, got none")
    from hybridperf.cli.deploy import of_shape

    of_shape(
        shape, system, device, gpus, isl, osl, sla, framework, precision, prices, top, out, html,
        requests, trace,
    )  # fmt: skip
    return 0


def of_rows(
    rows: Path, out: Path | None, fit_on: list[Path], model: Path | None, save: Path | None
) -> int:
    """A table, predicted; the exit status."""
    import pandas as pd

    from hybridperf.io import read_table, write_table
    from hybridperf.runs.serving_fit import ServingFit
    from hybridperf.runs.serving_table import predict_serving, saved

    if save and not fit_on:
        raise common.wrong(
            "expected --fit-on ROWS with --save: without measured rows there is nothing to save"
        )
    common.table_ready(out, [rows, *fit_on])
    frame = read_table(rows)
    tables = [read_table(path) for path in fit_on]
    measured = pd.concat(tables, ignore_index=True) if tables else None
    common.compilation_cache()
    found = predict_serving(frame, measured, ServingFit.load(model) if model else None)
    if out:
        write_table(found.frame, out)
    if save:
        assert measured is not None
        print(f"a model of {saved(save, found.fit, measured)} with these effects in {save}")
    return common.say_predicted(found.frame, out, "predicted_tpot_s")


def _columns() -> str:
    from hybridperf.runs.serving_columns import READ

    lines = []
    for names, meaning in READ.items():
        said = f"{names}: {meaning}".replace("`", "")
        lines += wrap(said, 92, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)


serve.__doc__ = (serve.__doc__ or "").replace("    COLUMNS", indent(_columns(), "    "))
