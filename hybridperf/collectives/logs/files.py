"""Measured collectives from whatever holds them: tables in our columns, logs of nccl-tests, output
of PARAM's comms benchmark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from hybridperf.collectives.logs.nccl_tests import is_nccl_tests, read_nccl_tests
from hybridperf.collectives.logs.param_comms import is_param_comms, read_param_comms
from hybridperf.io import InputError, read_table
from hybridperf.io.tables import FORMATS


def read_collectives(
    paths: Sequence[str | os.PathLike],
    collective: str | None = None,
    n_gpus: int | None = None,
    n_nodes: int | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """(rows of all files, one after the other; what was skipped in logs and why, a sentence each).

    `collective`, `n_gpus`, `n_nodes`: what a log leaves open. `InputError` for a file that is none
    of these, or holds nothing usable.
    """
    frames, remarks = [], []
    for path in map(Path, paths):
        if path.name.endswith((".csv", ".csv.gz", ".parquet")):
            frames.append(read_table(path))
            continue
        text = _text(path)
        reader = (
            read_nccl_tests
            if is_nccl_tests(text)
            else read_param_comms
            if is_param_comms(text)
            else None
        )
        if reader is None:
            raise InputError(
                f"expected a table ({FORMATS}), a log of nccl-tests or of PARAM's comms benchmark,"
                f" {path} is none; check it"
            )
        try:
            frame, said = reader(path, collective=collective, n_gpus=n_gpus, n_nodes=n_nodes)
        except InputError as error:
            hint = (
                f"`hybridperf collectives {path.name} --out rows.csv` takes --collective, --n-gpus"
                " and --n-nodes"
            )
            raise InputError(f"{error}; {hint}" if "give" in str(error) else str(error)) from error
        frames.append(frame)
        remarks += [f"{path.name}: {one}" for one in said]
    return pd.concat(frames, ignore_index=True), remarks


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; check the path"
        ) from error
