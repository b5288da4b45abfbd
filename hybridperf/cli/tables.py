"""`hybridperf ops` and `collectives`: tables, predicted row by row."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import Name


def ops(
    rows: Annotated[Path, Argument()],
    model: Name,
    out: Path | None = None,
) -> int:
    """Predict each row of a table: adds predicted_s, low_s, high_s, roofline_s, in_range, note."""
    from hybridperf.io import read_table, write_table
    from hybridperf.model import model_or_datasheet

    common.keep_files({"--out": out}, [rows])
    common.compilation_cache()
    frame = read_table(rows)
    predicted = model_or_datasheet(model).predict_ops(frame)
    if out:
        write_table(predicted, out)
    return common.say_predicted(predicted, out)


def collectives(
    rows: Annotated[list[Path], Argument()],
    out: Path | None = None,
    model: str = "",
    collective: str = "",
    n_gpus: Annotated[int | None, Option("--gpus")] = None,
    n_nodes: Annotated[int | None, Option("--nodes")] = None,
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
        common.result(rows=frame)
        if out:
            write_table(frame, out)
        print(
            f"{len(frame)} rows read"
            + (f", written to {out}" if out else "; --out FILE keeps them")
        )
        return 0
    common.compilation_cache()
    predicted = loaded.predict(frame)
    if out:
        write_table(predicted, out)
    return common.say_predicted(predicted, out)
