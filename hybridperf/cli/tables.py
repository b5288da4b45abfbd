"""`hybridperf ops` and `collectives`: tables, predicted row by row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import Name

if TYPE_CHECKING:
    import pandas as pd


def ops(
    rows: Annotated[Path, Argument()],
    model: Name,
    out: Path | None = None,
    explain: bool = False,
) -> int:
    """Predict each row of a table: adds predicted_s, low_s, high_s, roofline_s, in_range, note;
    with --explain `explained`, the price as a waterfall of its stages.

    Columns that are read, those of a row's op (`hybridperf show ops`); a name that resembles one is
    refused:

    \b
    COLUMNS ops
    """
    from hybridperf.io import read_table
    from hybridperf.model.frames import predict_ops

    common.table_ready(out, [rows])
    common.compilation_cache()
    return common.say_predicted(predict_ops(read_table(rows), model, explain=explain), out)


def collectives(
    rows: Annotated[list[Path], Argument()],
    out: Path | None = None,
    model: str = "",
    collective: str = "",
    n_gpus: Annotated[int | None, Option("--gpus")] = None,
    n_nodes: Annotated[int | None, Option("--nodes")] = None,
    find_slow: bool = False,
) -> int:
    """Predict each row: adds predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s, in_range,
    note. With --find-slow instead: name hosts and pairs of hosts that are slower than the others.

    Columns of tables that are read; a name that resembles one is refused:

    \b
    COLUMNS collectives
    """
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.collectives.frames import predict_collectives
    from hybridperf.io import write_table
    from hybridperf.traces.collective_logs.files import read_collectives

    common.table_ready(out, rows)
    loaded = collectives_by_name(model) if model else None
    frame, remarks = read_collectives(rows, collective or None, n_gpus, n_nodes)
    common.warn(*remarks)
    if find_slow:
        if loaded is not None:
            raise common.wrong("expected --find-slow without --model, got both; drop one of them")
        return _slow(frame, out)
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
    return common.say_predicted(predict_collectives(frame, loaded), out)


def _slow(frame: "pd.DataFrame", out: Path | None) -> int:
    """Say which hosts are slow; `out`: every set of hosts with its slow-down."""
    from hybridperf.io import write_table
    from hybridperf.traces.slow_hosts import find_slow

    found = find_slow(frame)
    common.result(sets=found.sets, hosts=found.hosts)
    if out:
        write_table(found.sets, out)
    print("\n".join(found.sentences()))
    return 0
