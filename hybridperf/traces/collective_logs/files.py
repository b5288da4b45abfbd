"""Measured collectives from files: our tables, logs of nccl-tests, PARAM's benchmark, perftest and
nvbandwidth, files of rccl-tests' `-x`, and dumps of PyTorch's flight recorder as JSON; all but
tables may be packed by gzip.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.io import InputError, read_table
from hybridperf.io.tables import FORMATS
from hybridperf.traces.collective_logs import (
    flight_recorder,
    link_tools,
    nccl_tests,
    param_comms,
    rccl_reports,
)
from hybridperf.traces.collective_logs.job_logs import (
    CallerHints,
    LogReader,
    Machines,
    beginning,
    read_text,
)

_READERS = (
    flight_recorder.READER, rccl_reports.READER, nccl_tests.READER, param_comms.READER,
    link_tools.PERFTEST, link_tools.NVBANDWIDTH,
)  # fmt: skip
_COLUMNS = (
    "collective", "bytes", "n_gpus", "n_nodes", "gpus_per_node", "time_s", "dtype", "in_place",
    "lib", "lib_version", "variant", "link",
)  # fmt: skip


def read_collectives(
    paths: Sequence[str | os.PathLike], collective: str | None = None, n_gpus: int | None = None,
    n_nodes: int | None = None,
) -> tuple[pd.DataFrame, list[str]]:  # fmt: skip
    """(rows of all files, what was skipped in logs and why, a sentence each).

    Args:
        paths: tables (by their suffix) or logs.
        collective: which one was run, where a log does not tell.
        n_gpus: ranks in all, where a log does not tell.
        n_nodes: hosts, where a log does not tell.

    Raises:
        InputError: a file that is none of these, or holds nothing usable.
    """
    frames, remarks = [], []
    for path in map(Path, paths):
        is_table = path.name.endswith((".csv", ".csv.gz", ".parquet"))
        if is_table and not rccl_reports.READER.looks_like(beginning(path)):
            frames.append(read_table(path))
            continue
        try:
            frame, skipped = read_log(path, collective, n_gpus, n_nodes)
        except InputError as error:
            hint = (
                f"`hybridperf collectives {path.name} --out rows.csv` takes --collective, --gpus"
                " and --nodes"
            )
            raise InputError(f"{error}; {hint}" if "give" in str(error) else str(error)) from error
        frames.append(frame)
        remarks += [f"{path.name}: {one}" for one in skipped]
    return pd.concat(frames, ignore_index=True), remarks


def read_log(
    path: str | os.PathLike, collective: str | None = None, n_gpus: int | None = None,
    n_nodes: int | None = None, reader: LogReader | None = None,
) -> tuple[pd.DataFrame, list[str]]:  # fmt: skip
    """(rows of a log in the schema of measured collectives, a sentence for everything skipped).

    As `read_collectives`; `reader`: by what the log looks like if not given.
    """
    if collective is not None and collective not in COLLECTIVES:
        names = ", ".join(COLLECTIVES)
        raise InputError(f"expected a collective out of {names}, got {collective!r}")
    hints, text = CallerHints(str(path), collective, _given(n_gpus, n_nodes)), read_text(path)
    reader = reader or next((one for one in _READERS if one.looks_like(text)), None)
    if reader is None:
        usual_first = sorted(_READERS, key=lambda one: one is not nccl_tests.READER)
        programs = ", ".join(one.program for one in usual_first)
        raise InputError(
            f"expected a table ({FORMATS}) or a log of {programs}, {path} is none; check it"
        )
    rows, remarks = reader.read(text, hints)
    if not rows:
        raise InputError(
            f"expected measurements printed by {reader.program} in {path}, found none that can be"
            f" used ({remarks[0] if remarks else reader.nothing}); check the file"
        )
    columns = dict.fromkeys([*_COLUMNS, *(key for row in rows for key in row)])
    return pd.DataFrame(rows, columns=[*columns]), remarks


def _given(n_gpus: int | None, n_nodes: int | None) -> Machines | None:
    """Ranks and hosts as a caller gives them, None for neither; `InputError` where they clash."""
    if n_gpus is None and n_nodes is None:
        return None
    if n_gpus is None or n_nodes is None:
        raise InputError("expected both n_gpus and n_nodes, got one of them; give both or neither")
    if n_gpus < 1 or n_nodes < 1 or n_gpus % n_nodes:
        got = f"{n_gpus} GPUs on {n_nodes} nodes"
        raise InputError(f"expected n_gpus to be a whole multiple of n_nodes, got {got}")
    return Machines(n_gpus, n_nodes)
