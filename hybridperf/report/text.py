"""Tables and numbers as people read them: ms and GB/s, three digits, columns aligned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.predict import Prediction

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def seconds(value: float | None) -> str:
    """`12.3 ms`."""
    if value is None or not math.isfinite(value):
        return "-"
    scale, unit = next(((s, u) for s, u in _TIMES if abs(value) >= s), _TIMES[-1])
    return f"{value / scale:.3g} {unit}"


def quantity(value: float | None, unit: str) -> str:
    """`1.56 TB/s`: decimal prefixes."""
    if value is None or not math.isfinite(value):
        return "-"
    scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s), _PREFIXES[-1])
    return f"{value / scale:.4g} {prefix}{unit}"


def percent(value: float | None) -> str:
    """`12.3 %` from a share."""
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain aligned text; the first column to the left, the others to the right."""
    cells = [list(map(str, headers)), *[list(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def prediction(result: Prediction) -> str:
    """A prediction with its breakdown."""
    interval = f" (90 %: {seconds(result.low_s)} to {seconds(result.high_s)})" if result.low_s is not None else ""
    lines = [
        f"{result.workload.name} on {result.model.device.name}: {seconds(result.time_s)}{interval}",
        f"datasheet roofline: {seconds(result.roofline_s)}; {result.workload.flops:.3g} flops,"
        f" {quantity(result.workload.flops / result.time_s, 'FLOP/s')}",
        "",
        table(
            ["group", "seconds", "share", "roofline", "ops", "measured range"],
            [
                [
                    r.group,
                    seconds(r.seconds),
                    percent(r.share),
                    seconds(r.roofline_s),
                    str(r.ops),
                    "yes" if r.in_range else "no",
                ]
                for r in result.breakdown().itertuples()
            ],
        ),
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def fit_report(frame: pd.DataFrame, dropped: dict[str, int]) -> str:
    """Held-out errors per group of ops."""
    rows = [
        [
            r.op,
            str(r.rows),
            percent(r.median_ape),
            percent(r.mean_ape),
            percent(r.roofline_ape),
            percent(r.noise),
            percent(r.coverage),
        ]
        for r in frame.itertuples()
    ]
    text = table(["held out", "rows", "median error", "mean error", "roofline", "noise", "in 90 % interval"], rows)
    notes = [f"not fitted on: {count} rows, {reason}" for reason, count in dropped.items()]
    return "\n".join([text, *notes])


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Mean absolute percentage error as a share."""
    return float(np.mean(np.abs(np.asarray(predicted) / np.asarray(measured) - 1)))
