"""Whether a step ran, and why one would not: more memory than there is, or a rule of the framework
that runs it.

Memory is everybody's: the fullest rank against what a device can give (`memory_fit.USABLE` of it).
Rules are a framework's own habits (`starves` in `transformer/frameworks.toml`): nanotron ends where
a stage of a pipeline has no work, others run such layouts slowly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.training.steps.memory_fit import USABLE, starved
from hybridperf.training.steps.rows import ResolvedRow
from hybridperf.workloads.transformer.framework import framework_habits


def endings(frame: pd.DataFrame) -> pd.Series:
    """How each measured run of a table ended: `ok`, or its `status` in small letters [N]."""
    if "status" not in frame:
        return pd.Series("ok", frame.index)
    return frame["status"].fillna("ok").astype(str).str.strip().str.lower()


def failures(rows: Sequence[ResolvedRow], needed_bytes: np.ndarray) -> list[str]:
    """Why each row would not run, by the bytes its fullest rank needs [N]; "" where it would."""
    return [
        "; ".join(filter(None, (_too_large(row, float(needed)), _ruled_out(row))))
        for row, needed in zip(rows, needed_bytes, strict=True)
    ]


def _too_large(row: ResolvedRow, needed_bytes: float) -> str:
    if row.machine is None or needed_bytes <= USABLE * row.machine.memory_bytes:
        return ""
    usable_gb = USABLE * row.machine.memory_bytes / 1e9
    return (
        f"does not fit: the fullest rank needs {needed_bytes / 1e9:.4g} GB, {usable_gb:.4g} GB of"
        f" {row.machine.memory_bytes / 1e9:.4g} GB are usable"
    )


def _ruled_out(row: ResolvedRow) -> str:
    if row.config is None or not framework_habits().get(row.framework, {}).get("starves"):
        return ""
    why = starved(row.config)
    return f"does not run under {row.framework}: {why}" if why else ""
