"""Measured collectives from files: our tables, logs of nccl-tests, files of rccl-tests' `-x`, and
logs of PARAM's benchmark; logs may be packed by gzip.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from hybridperf.io import InputError, read_table
from hybridperf.io.tables import FORMATS
from hybridperf.traces.collective_logs.job_logs import beginning, read_text
from hybridperf.traces.collective_logs.nccl_tests import is_nccl_tests, read_nccl_tests
from hybridperf.traces.collective_logs.param_comms import is_param_comms, read_param_comms
from hybridperf.traces.collective_logs.rccl_reports import is_rccl_report, read_rccl_report

_READERS = {
    is_rccl_report: read_rccl_report, is_nccl_tests: read_nccl_tests,
    is_param_comms: read_param_comms,
}  # fmt: skip


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
        if is_table and not is_rccl_report(beginning(path)):
            frames.append(read_table(path))
            continue
        text = read_text(path)
        reader = next((read for is_one, read in _READERS.items() if is_one(text)), None)
        if reader is None:
            raise InputError(
                f"expected a table ({FORMATS}), a log of nccl-tests or of PARAM's comms benchmark,"
                f" or the file of rccl-tests' -x, {path} is none; check it"
            )
        try:
            frame, skipped = reader(path, collective=collective, n_gpus=n_gpus, n_nodes=n_nodes)
        except InputError as error:
            hint = (
                f"`hybridperf collectives {path.name} --out rows.csv` takes --collective, --gpus"
                " and --nodes"
            )
            raise InputError(f"{error}; {hint}" if "give" in str(error) else str(error)) from error
        frames.append(frame)
        remarks += [f"{path.name}: {one}" for one in skipped]
    return pd.concat(frames, ignore_index=True), remarks
