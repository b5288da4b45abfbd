"""Measured rows of a machine: which can be fitted on, what they are as ops, and their folds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd

from hybridperf.fields import fields_of
from hybridperf.fields.columns import read_whole
from hybridperf.fields.registry import YES
from hybridperf.hardware import DeviceSpec, load_device, this_cpu
from hybridperf.io import InputError, positive_column, require_columns
from hybridperf.learning.inputs import Inputs, concatenate, inputs_of
from hybridperf.model.platform import OpTable, op_table
from hybridperf.ops.base import fields_of_table
from hybridperf.ops.table import ParsedOps, parse_ops

FOLDS = 5
NOT_MEASURED = "not measured yet"


@dataclasses.dataclass(frozen=True)
class MeasuredOps:
    """Rows to fit on. R rows, in the order of the table of ops."""

    rows: pd.DataFrame
    table: OpTable  # [R]
    measured_s: np.ndarray  # [R]
    inputs: Mapping[int, Inputs]  # of the rows of each group, in their order
    dtypes: np.ndarray  # [R]

    def some(self, keep: np.ndarray) -> MeasuredOps:
        """The measured rows that a mask [R] keeps."""
        group = self.table.group
        return MeasuredOps(
            rows=self.rows[keep].reset_index(drop=True),
            table=jax.tree.map(lambda leaf: leaf[keep], self.table),
            measured_s=self.measured_s[keep],
            inputs={
                one: inputs.rows(keep[group == one])
                for one, inputs in self.inputs.items()
                if keep[group == one].any()
            },
            dtypes=self.dtypes[keep],
        )


def read_measurements(rows: pd.DataFrame, device: DeviceSpec) -> MeasuredOps:
    """Usable rows (see `usable_rows`) as ops; `InputError` for one that cannot be read."""
    parsed = parse_measured(rows, device)
    tables = [op_table(part) for part in parsed.parts]
    table = jax.tree.map(
        lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *tables
    )
    order = np.concatenate([part.rows for part in parsed.parts])
    inputs: dict[int, list[Inputs]] = {}
    for part in parsed.parts:
        of_part = inputs_of(part.op, part.work, len(part.rows))
        for group in np.unique(part.group):
            inputs.setdefault(int(group), []).append(of_part.rows(part.group == group))
    return MeasuredOps(
        rows=rows.iloc[order].reset_index(drop=True),
        table=table,
        measured_s=rows["time_s"].to_numpy(np.float64)[order],
        inputs={group: concatenate(parts) for group, parts in inputs.items()},
        dtypes=np.concatenate([np.full(len(part.rows), part.op.dtype) for part in parsed.parts]),
    )


def parse_measured(rows: pd.DataFrame, device: DeviceSpec) -> ParsedOps:
    """Every row as an op; `InputError` naming the first that cannot be read."""
    parsed = parse_ops(rows, device, whole=True)
    bad = np.flatnonzero(parsed.problem.astype(bool))
    if len(bad):
        raise InputError(
            f"row {int(rows.index[bad[0]]) + 1}: {parsed.problem[bad[0]]} ({len(bad)} such rows);"
            " mend or drop them"
        )
    return parsed


def usable_rows(frame: pd.DataFrame, device: DeviceSpec) -> tuple[pd.DataFrame, dict[str, int]]:
    """(rows of `device` whose times can be trusted, how many others were left out by reason)."""
    frame = read_whole(frame, fields_of_table(frame))
    require_columns(frame, ["op", "dtype", "time_s"], "fitting")
    if frame.empty:
        raise InputError("no rows to fit on; expected at least one")
    dropped: dict[str, int] = {}
    keep = np.ones(len(frame), bool)

    def drop(where: np.ndarray, reason: str) -> None:
        nonlocal keep
        if (where & keep).any():
            dropped[reason] = int((where & keep).sum())
            keep &= ~where

    if "device" in frame.columns and device.id != "here":
        drop((frame["device"].astype(str) != device.id).to_numpy(), "other devices")
    flags = {"throttled": "thermally throttled", "unreliable": "mostly call overhead"}
    for column, reason in flags.items():
        if column in frame.columns:
            drop(_flagged(frame[column]), reason)
    # rows of a measurement plan; elsewhere an empty time is a slip
    if "expected_s" in frame.columns:
        drop((frame["time_s"].isna() & frame["expected_s"].notna()).to_numpy(), NOT_MEASURED)
    if dropped.get(NOT_MEASURED) and not keep.any():
        raise InputError(
            f"no time to fit {device.id} on: {dropped[NOT_MEASURED]} rows are {NOT_MEASURED}; fill"
            " in their time_s, in seconds"
        )
    rows = frame.reset_index(drop=True)[keep]  # the index is still a row's place in the table
    if rows.empty:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise InputError(
            f"no rows left to fit {device.id} on ({reasons}); check --device against the table's"
            " device column"
        )
    positive_column(rows, "time_s", "fitting")
    return rows, dropped


def _flagged(column: pd.Series) -> np.ndarray:
    """Whether each cell [N] of a flag says yes; `InputError` for one that says neither."""
    codes, words = pd.factorize(column)
    field = fields_of("ops")[str(column.name)]
    return np.array([*(field.word(str(word)) == YES for word in words), False])[codes]


def deal_folds(group: np.ndarray) -> np.ndarray:
    """The fold of each row [R], dealt evenly within each group."""
    return shuffled(group, 0) % FOLDS


def shuffled(group: np.ndarray, seed: int) -> np.ndarray:
    """Place of each row in a random order of its group [R], from 0."""
    rng = np.random.default_rng(seed)
    place = np.empty(len(group), int)
    for one in np.unique(group):
        at = np.flatnonzero(group == one)
        place[at] = rng.permutation(len(at))
    return place


def noise_of(rows: pd.DataFrame) -> np.ndarray:
    """How far two measurements of each row disagree, a share [R]; NaN where the table lacks it."""
    if "noise" not in rows.columns:
        return np.full(len(rows), np.nan)
    return pd.to_numeric(rows["noise"], errors="coerce").to_numpy(np.float64)


def held_out_rows(
    op: Any = (), fold: Any = (), measured_s: Any = (), error: Any = (), log_width: Any = (),
    knobs_s: Any = (), roofline_s: Any = (), noise: Any = np.nan,
) -> pd.DataFrame:  # fmt: skip
    """Rows [H] as `FitReport.held_out` has them, from log(predicted / measured) and the log
    half-width of intervals; what all share may be one word or number.
    """
    predicted_s = np.asarray(measured_s, float) * np.exp(error)
    return pd.DataFrame({
        "op": op, "fold": fold, "measured_s": measured_s, "predicted_s": predicted_s,
        "knobs_s": knobs_s, "roofline_s": roofline_s,
        "low_s": predicted_s * np.exp(np.negative(log_width)),
        "high_s": predicted_s * np.exp(log_width), "noise": noise,
    })  # fmt: skip


def named_device(device: DeviceSpec | str, measurements: pd.DataFrame | None) -> DeviceSpec:
    """A device by name, or its own facts; `here` with the cores that the rows were measured on."""
    if type(device) is DeviceSpec:
        return device
    spec = load_device(str(device))
    if spec.id != "here" or measurements is None or "cores" not in measurements.columns:
        return spec
    counts = pd.to_numeric(measurements["cores"], errors="coerce").dropna().unique()
    if len(counts) > 1:
        got = ", ".join(f"{n:g}" for n in sorted(counts))
        raise InputError(
            f"expected rows measured on one number of cores, got {got}; fit each alone"
        )
    return this_cpu(int(counts[0])) if len(counts) and counts[0] >= 1 else spec
