"""How well a fit predicts rows it has not seen, and whether its intervals hold as many of them as
they promise.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import bdtr

from hybridperf.collectives.fit import CollectiveReport
from hybridperf.learning.residual import LEAST_ROWS
from hybridperf.model.fit.device import COVERAGE, FitReport
from hybridperf.report.text import percent, table, whole_percent


def fit_report(report: FitReport, prior: bool = False) -> str:
    """Held-out errors per group of ops, beside those of the knobs without what is learned and of
    the datasheet; whether intervals hold.

    `prior`: other devices' rows stand behind the model.
    """
    if not report.rows:
        return "no rows: the model is " + (
            "what the datasheet and other GPUs' rows say" if prior else "the datasheet roofline"
        )
    rows = [
        [
            r.op,
            str(r.rows),
            percent(r.median_ape),
            percent(r.mean_ape),
            percent(r.knobs_ape),
            percent(r.roofline_ape),
            percent(r.noise),
            percent(r.coverage),
            whole_percent(r.share) if r.rows >= LEAST_ROWS else "-",
        ]
        for r in report.table.itertuples()
    ]
    headers = [
        "held out",
        "rows",
        "median error",
        "mean error",
        "knobs alone",
        "roofline",
        "noise",
        "in 90 % interval",
        "learned",
    ]
    lines = [
        table(headers, rows),
        *(f"not fitted on: {count} rows, {reason}" for reason, count in report.dropped.items()),
    ]
    losers = [r.op for r in report.table.itertuples() if r.median_ape > r.roofline_ape]
    against = (
        f"worse than the plain roofline: {', '.join(losers)}"
        if losers
        else "no group is worse than the plain roofline"
    )
    return "\n".join([*lines, f"{coverage(report.held_out)}; {against}"])


def collective_report(report: CollectiveReport, prior: bool = True) -> str:
    """Held-out errors per collective, library and link, beside those of the closed form alone and
    of the datasheet.

    `prior`: other systems' rows stand behind the model.
    """
    if not report.rows:
        return "no rows: the model is " + (
            "what the datasheet and other systems' rows say" if prior else "the datasheet alone"
        )
    rows = [
        [
            r.collective,
            r.implementation,
            r.link,
            str(r.rows),
            percent(r.median_ape),
            percent(r.mean_ape),
            percent(r.knobs_ape),
            percent(r.roofline_ape),
            percent(r.inside),
        ]
        for r in report.by_collective().itertuples()
    ]
    headers = [
        "held out",
        "library",
        "link",
        "rows",
        "median error",
        "mean error",
        "knobs alone",
        "datasheet",
        "in 90 % interval",
    ]
    lines = [
        table(headers, rows),
        *(f"not fitted on: {count} rows, {reason}" for reason, count in report.dropped.items()),
    ]
    return "\n".join([*lines, coverage(report.held_out)])


def coverage(held_out: pd.DataFrame) -> str:
    """Whether intervals `low_s` to `high_s` of held-out rows hold `measured_s` as often as they
    should.
    """
    judged = held_out.dropna(subset=["low_s", "high_s"]) if len(held_out) else held_out
    n = len(judged)
    if not n:
        return "too few rows of any kind to try intervals on"
    inside = int(judged["measured_s"].between(judged["low_s"], judged["high_s"]).sum())
    low, high = binomial_band(n, COVERAGE)
    verdict = "as promised" if low <= inside <= high else "too many" if inside > high else "too few"
    return (
        f"{percent(inside / n)} of {n} rows in their interval, {verdict} (binomial 99 % band:"
        f" {percent(low / n)} to {percent(high / n)})"
    )


def binomial_band(n: int, p: float, level: float = 0.99) -> tuple[int, int]:
    """The counts between which `n` independent events of probability `p` stay with probability
    `level`, as much left out on each side.
    """
    at_most = bdtr(np.arange(n + 1), n, p)
    tail = (1 - level) / 2
    return int(np.searchsorted(at_most, tail)), int(np.searchsorted(at_most, 1 - tail))
