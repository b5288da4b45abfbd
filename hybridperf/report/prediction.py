"""A prediction as people read it: its time with the interval, and what it is made of by group of
ops.
"""

from __future__ import annotations

from hybridperf.engine.prediction import Prediction
from hybridperf.report.text import percent, quantity, seconds, table


def prediction_report(result: Prediction) -> str:
    """A prediction with its breakdown."""
    interval = (
        f" (90 %: {seconds(result.low_s)} to {seconds(result.high_s)})"
        if result.low_s is not None
        else ""
    )
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
