"""The one price: what calls cost on a machine, how sure that is, and what was assumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from hybridperf.model.calls import KINDS, Call, kind_of
from hybridperf.model.group_report import widening
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.reference_device import as_measured
from hybridperf.model.step_table import (
    alone_seconds,
    collective_frame,
    row_roofline_seconds,
    split,
    step_table,
)
from hybridperf.ops import FUSED

_WIDTH_OF_90 = 2 * NormalDist().inv_cdf(0.95)  # standard deviations


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices of calls, each by itself [U]."""

    seconds: np.ndarray
    spread: np.ndarray  # standard deviation of the log of seconds; NaN where nothing is known of it
    roofline_s: np.ndarray  # by the datasheets of device and links alone
    in_range: np.ndarray  # bool: whether the call lies inside what was measured
    remarks: tuple[str, ...]  # what was assumed; empty where nothing


def price(model: PerfModel, calls: Sequence[Call]) -> Prices:
    """What calls cost on a machine, each by itself.

    Args:
        model: the machine, with collectives where there are some among the calls.
        calls: ops, collectives, given seconds.

    Raises:
        InputError: when the machine cannot price one of them; the message names it.
    """
    table = step_table(model, calls)
    seconds = alone_seconds(model, table)
    outside, spread = trust(model, calls)
    ops = split(calls)[0]
    spread[list(ops)] = np.nan
    ops = {at: call for at, call in ops.items() if call.kernel != FUSED}
    remarks = np.full(len(calls), "", object)
    remarks[list(ops)] = model.remarks(list(ops.values()))
    for at, call in ops.items():
        report = model.measured.groups.get(KINDS[kind_of(call)])
        if report is not None and report.half_width is not None and np.isfinite(outside[at]):
            width = np.log1p(report.half_width) / (_WIDTH_OF_90 / 2)
            spread[at] = width * widening(outside[[at]])[0]
    roofline_s = row_roofline_seconds(model, table, calls, seconds)
    return Prices(seconds, spread, roofline_s, outside == 0, tuple(remarks))


def trust(model: PerfModel, calls: Sequence[Call]) -> tuple[np.ndarray, np.ndarray]:
    """(octaves between each call and what was measured [U], spread of collectives [U]).

    Infinite octaves of what nobody measured; the spread is that of the log of seconds, NaN where it
    is unknown, 0 of other calls.
    """
    ops, collectives, _ = split(calls)
    outside, spread = np.zeros(len(calls)), np.zeros(len(calls))
    measurable = {at: call for at, call in ops.items() if call.kernel != FUSED}
    outside[list(measurable)] = model.outside(list(measurable.values()))
    for at, call in measurable.items():
        report = model.measured.groups.get(KINDS[kind_of(call)])
        if report is not None and not report.measured_dtype(as_measured(model.measured, call.op)):
            outside[at] = np.inf
    if collectives:
        predicted = model.predict_collectives(collective_frame(list(collectives.values())))
        outside[list(collectives)] = np.where(predicted["in_range"], 0.0, np.inf)
        logs = np.log(predicted["high_s"] / predicted["low_s"])
        spread[list(collectives)] = logs / _WIDTH_OF_90
    return outside, spread
