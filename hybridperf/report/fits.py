"""How well a fit predicts held-out rows, and whether its intervals hold as many as promised."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import bdtr

from hybridperf.collectives.fit import CollectiveReport
from hybridperf.learning.prior.alone import LEAST_ROWS
from hybridperf.model.fit.device import COVERAGE, FitReport
from hybridperf.report.text import items_table, percent, whole_percent

_ERRORS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda row: row.rows,
    "median error": lambda row: percent(row.median_ape),
    "mean error": lambda row: percent(row.mean_ape),
    "knobs alone": lambda row: percent(row.knobs_ape),
}
_OPS = {
    "held out": lambda row: row.op,
    **_ERRORS,
    "roofline": lambda row: percent(row.roofline_ape),
    "noise": lambda row: percent(row.noise),
    "in 90 % interval": lambda row: percent(row.coverage),
    "learned": lambda row: whole_percent(row.share) if row.rows >= LEAST_ROWS else "-",
}
_COLLECTIVES = {
    "held out": lambda row: row.collective,
    "library": lambda row: row.implementation,
    "link": lambda row: row.link,
    **_ERRORS,
    "datasheet": lambda row: percent(row.roofline_ape),
    "in 90 % interval": lambda row: percent(row.inside),
}


def fit_report(report: FitReport, prior: bool = False) -> str:
    """Held-out errors per group of ops, of the model, of its knobs alone and of the datasheet.

    `prior`: whether other devices' rows support the model.
    """
    if not report.rows:
        other = "what the datasheet and other GPUs' rows say"
        return f"no rows: the model is {other if prior else 'the datasheet roofline'}"
    losers = [row.op for row in report.table.itertuples() if row.median_ape > row.roofline_ape]
    against = "no group is worse than the plain roofline"
    if losers:
        against = f"worse than the plain roofline: {', '.join(losers)}"
    lines = [items_table(report.table.itertuples(), _OPS), *_dropped(report.dropped)]
    return "\n".join([*lines, f"{coverage(report.held_out)}; {against}"])


def collective_report(report: CollectiveReport, prior: bool = True) -> str:
    """Held-out errors per collective, library and link, of model, knobs alone and datasheet.

    `prior`: whether other systems' rows support the model.
    """
    if not report.rows:
        other = "what the datasheet and other systems' rows say"
        return f"no rows: the model is {other if prior else 'the datasheet alone'}"
    table = items_table(report.by_collective().itertuples(), _COLLECTIVES)
    return "\n".join([table, *_dropped(report.dropped), coverage(report.held_out)])


def _dropped(dropped: Mapping[str, int]) -> list[str]:
    return [f"not fitted on: {count} rows, {reason}" for reason, count in dropped.items()]


def coverage(held_out: pd.DataFrame) -> str:
    """Whether intervals of held-out rows hold `measured_s` as often as they should."""
    judged = held_out.dropna(subset=["low_s", "high_s"]) if len(held_out) else held_out
    n = len(judged)
    if not n:
        return "too few rows of any kind to try intervals on"
    inside = int(judged["measured_s"].between(judged["low_s"], judged["high_s"]).sum())
    low, high = binomial_band(n, COVERAGE)
    verdict = "as promised" if low <= inside <= high else "too many" if inside > high else "too few"
    band = f"binomial 99 % band: {percent(low / n)} to {percent(high / n)}"
    return f"{percent(inside / n)} of {n} rows in their interval, {verdict} ({band})"


def binomial_band(n: int, p: float) -> tuple[int, int]:
    """Counts that `n` events of probability `p` stay between with a chance of 99 %."""
    at_most = bdtr(np.arange(n + 1), n, p)
    tail = (1 - 0.99) / 2
    return int(np.searchsorted(at_most, tail)), int(np.searchsorted(at_most, 1 - tail))
