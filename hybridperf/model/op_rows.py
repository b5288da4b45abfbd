"""A table of ops, predicted row by row: by what a machine measured of them, whole columns at once,
and where it measured none by the one price of calls (`price.py`), each size once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from hybridperf.io.later import pd
from hybridperf.io.process import check_not_forked
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.learning.inputs import inputs_of
from hybridperf.model import prior_pricing as by_prior
from hybridperf.model.families import by_family, family_rows, with_defaults
from hybridperf.model.group_report import WIDE, below_roofline, narrowed_by, widened
from hybridperf.model.own_ops import OwnOps
from hybridperf.model.platform import OpTable, op_table
from hybridperf.model.reference_device import (
    Calibration,
    as_measured,
    believed_by,
    refers,
    spread_of_rows,
)
from hybridperf.ops import GROUPS, OpCall
from hybridperf.ops.table import OpRows, calls_of, parse_ops

_PREDICTED = ("predicted_s", "low_s", "high_s", "roofline_s")


class Machine(Calibration, Protocol):
    """What is asked of a `PerfModel`."""

    def priced(self, calls: Sequence[OpCall]) -> tuple[OpTable, OwnOps]: ...


def predict_ops(model: Machine, frame: pd.DataFrame) -> pd.DataFrame:
    """See `PerfModel.predict_ops`."""
    check_not_forked()
    parsed = parse_ops(frame, model.device)
    out = {name: np.full(len(frame), np.nan) for name in _PREDICTED}
    in_range, note = np.zeros(len(frame), bool), parsed.problem
    reuse_bytes = np.full(len(frame), np.inf)
    for given in parsed.parts:
        part = _as_measured(model, given)
        table = op_table(part)
        inputs = inputs_of(part.op, part.work, len(part.rows))
        for group in np.unique(part.group):
            if GROUPS[group] in model.groups:
                here = part.group == group
                report = model.groups[GROUPS[group]]
                table.correction[here] = report.correction(inputs.rows(here))
        op_s = model.op_seconds(table)
        out["predicted_s"][part.rows] = op_s
        out["roofline_s"][part.rows] = model.roofline_seconds(table)
        reuse_bytes[part.rows] = part.work.reuse_bytes
        in_family = np.zeros(len(part.rows), bool)
        for family, here in by_family(part) if model.families else ():
            if family in model.families:
                in_family |= here
                _by_prior(model, family, part, here, out, in_range, note)
        for group in np.unique(part.group[~in_family]):
            here = (part.group == group) & ~in_family
            rows = part.rows[here]
            name = GROUPS[group]
            measured = model.groups.get(name)
            if measured is None or not measured.measured_dtype(part.op):
                how = _elsewhere(model, part, here, out, in_range)
                nothing = "datasheet roofline: this model has no measurements"
                if measured is not None:
                    only = ", ".join(measured.dtypes)
                    nothing = f"no {name} in {part.op.dtype} was measured, only {only}"
                elif how or model.groups:
                    by_itself = how in ("", "datasheet roofline")
                    nothing = f"no {name} measurements{' in this model' if by_itself else ''}"
                    how = how or "datasheet roofline"
                note[rows] = ": ".join(filter(None, (nothing, how)))
                continue
            outside = measured.outside(inputs.rows(here))
            in_range[rows] = outside == 0
            beyond = f"outside the measured range of {name}"
            note[rows] = np.where(outside > 0, beyond, note[rows])
            if measured.half_width is not None:
                width = widened(measured.half_width, outside)
                out["low_s"][rows] = op_s[here] / (1 + width)
                out["high_s"][rows] = op_s[here] * (1 + width)
    seconds = out["predicted_s"], out["roofline_s"]
    why = [
        note,
        below_roofline(model.device, *seconds, reuse_bytes),
        np.full(len(note), "", object),
    ]
    times = np.nan_to_num(out["high_s"] / out["low_s"])
    for part in parsed.parts:
        dimensions = [name for name in part.op.dimensions() if name in frame]
        for row in part.rows[times[part.rows] > WIDE].tolist():
            sizes = {name: frame[name].iloc[row] for name in dimensions}
            named = {"op": part.name, "dtype": part.op.dtype, **sizes}
            why[2][row] = narrowed_by(times[row], named)
    notes = ["; ".join(filter(None, of_row)) for of_row in zip(*why, strict=True)]
    return frame.assign(**out, in_range=in_range, note=notes)


def _as_measured(model: Machine, part: OpRows) -> OpRows:
    """Rows in the 16-bit format that was measured, where the other is as fast."""
    first = calls_of(part, np.arange(1))[0][0].op
    op = as_measured(model, first)
    return part if op is first else dataclasses.replace(
        part, op=dataclasses.replace(part.op, dtype=op.dtype)
    )  # fmt: skip


def _elsewhere(
    model: Machine, part: OpRows, here: np.ndarray, out: Mapping[str, np.ndarray],
    in_range: np.ndarray,
) -> str:  # fmt: skip
    """Fill in the rows `here` (a mask) of a part that was not measured, by the one price.

    Returns:
        By what, in words; empty where nothing else is known of the machine.
    """
    if model.stand_in is None and not refers(model):
        return ""
    calls, which = calls_of(part, np.flatnonzero(here))
    (table, own), at = model.priced(calls), part.rows[here]
    seconds, spread = model.op_seconds(table), own.spread(spread_of_rows(model, calls))
    out["predicted_s"][at] = seconds[which]
    out["low_s"][at] = (seconds * np.exp(-NINE_OF_TEN * spread))[which]
    out["high_s"][at] = (seconds * np.exp(NINE_OF_TEN * spread))[which]
    in_range[at] = (own.outside == 0)[which]
    if model.stand_in is not None and in_range[at].any():
        return f"as {model.stand_in.device.id} measured"
    return believed_by(model, calls[0].op)


def _by_prior(
    model: Machine, family: str, part: OpRows, here: np.ndarray, out: Mapping[str, np.ndarray],
    in_range: np.ndarray, note: np.ndarray,
) -> None:  # fmt: skip
    """Fill in the rows `here` (a mask) of a part by an adapted prior."""
    adapted, at = model.families[family], part.rows[here]
    slots = adapted.prior.population.implementations
    rows, assumed = with_defaults(family_rows(part, here, model.device), slots)
    predicted = by_prior.predicted(adapted, rows)
    out["predicted_s"][at] = np.exp(predicted.log_s)
    out["low_s"][at] = np.exp(predicted.low_log_s)
    out["high_s"][at] = np.exp(predicted.high_log_s)
    in_range[at] = (predicted.outside == 0) & by_prior.known(adapted, rows)
    far = np.where(predicted.outside > 0, f"outside the measured range of {family}", "")
    remarks = by_prior.remarks(family, adapted, model.device, rows, assumed)
    note[at] = ["; ".join(filter(None, both)) for both in zip(remarks, far, strict=True)]
