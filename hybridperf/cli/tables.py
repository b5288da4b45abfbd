"""`hybridperf ops` and `collectives`: tables, predicted row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import ModelName, Out

_ROWS = "tables of collectives, or logs of nccl-tests or PARAM's comms benchmark"
_MODEL = "folder, shipped calibration, or system name; none: only read logs into a table"


def ops(
    rows: Annotated[Path, Argument(help="table of ops (.csv, .csv.gz, .parquet)")],
    model: ModelName,
    out: Out,
) -> int:
    """Predict each row of a table: adds predicted_s, low_s, high_s, roofline_s, in_range, note."""
    from hybridperf.io import read_table, write_table
    from hybridperf.model import model_or_datasheet

    common.keep_files({"--out": out}, [rows])
    common.compilation_cache()
    frame = read_table(rows)
    predicted = model_or_datasheet(model).predict_ops(frame)
    write_table(predicted, out)
    return common.say_predicted(predicted, out)


def collectives(
    rows: Annotated[list[Path], Argument(help=_ROWS)],
    out: Out,
    model: Annotated[str, Option(help=_MODEL)] = "",
    collective: Annotated[str, Option(help="what a log ran, where it does not say")] = "",
    n_gpus: Annotated[int | None, Option(help="ranks of a log that does not list them")] = None,
    n_nodes: Annotated[int | None, Option(help="nodes of a log that does not list them")] = None,
) -> int:
    """Predict each row: adds predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s, in_range,
    note.
    """
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.collectives.logs.files import read_collectives
    from hybridperf.io import write_table

    common.keep_files({"--out": out}, rows)
    loaded = collectives_by_name(model) if model else None
    frame, remarks = read_collectives(rows, collective or None, n_gpus, n_nodes)
    common.warn(*remarks)
    if loaded is None:
        write_table(frame, out)
        print(f"{len(frame)} rows read, written to {out}")
        return 0
    common.compilation_cache()
    predicted = loaded.predict(frame)
    write_table(predicted, out)
    return common.say_predicted(predicted, out)
