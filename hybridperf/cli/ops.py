"""`hybridperf ops`: tables of ops, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from hybridperf.cli.common import (
    ModelName,
    Out,
    compilation_cache,
    keep_files,
    model_named,
    say_predicted,
)


def ops(
    rows: Annotated[Path, Argument(help="table of ops (.csv, .csv.gz, .parquet)")],
    model: ModelName,
    out: Out,
) -> int:
    """Predict each row of a table: adds predicted_s, low_s, high_s, roofline_s, in_range, note."""
    from hybridperf.io import read_table, write_table

    keep_files({"--out": out}, [rows])
    compilation_cache()
    frame = read_table(rows)
    predicted = model_named(model).predict_ops(frame)
    write_table(predicted, out)
    return say_predicted(predicted, out)
