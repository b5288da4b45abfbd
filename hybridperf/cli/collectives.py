"""`hybridperf collectives`: tables and logs of collectives, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hybridperf.cli.common import Out, compilation_cache, keep_files, say_predicted, warn

_ROWS = "tables of collectives, or logs of nccl-tests or PARAM's comms benchmark"
_MODEL = "folder, shipped calibration, or system name; none: only read logs into a table"


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

    keep_files({"--out": out}, rows)
    loaded = collectives_by_name(model) if model else None
    frame, remarks = read_collectives(rows, collective or None, n_gpus, n_nodes)
    for remark in remarks:
        warn(remark)
    if loaded is None:
        write_table(frame, out)
        print(f"{len(frame)} rows read, written to {out}")
        return 0
    compilation_cache()
    predicted = loaded.predict(frame)
    write_table(predicted, out)
    return say_predicted(predicted, out)
