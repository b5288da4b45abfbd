"""A prediction in words: its time with the interval, and what it consists of by group of ops."""

from hybridperf.engine.prediction import Prediction
from hybridperf.report.known import machine_words
from hybridperf.report.text import frame_table, quantity, seconds, within


def prediction_report(result: Prediction) -> str:
    """A prediction with its breakdown."""
    interval = within(result.low_s, result.high_s)
    lines = [
        f"{result.workload.name} on {result.model.device.name}: {seconds(result.time_s)}{interval}",
        f"datasheet roofline: {seconds(result.roofline_s)}; {result.workload.flops:.3g} flops,"
        f" {quantity(result.workload.flops / result.time_s, 'FLOP/s')}",
        f"model: {machine_words(result.model)}",
        "",
        frame_table(result.breakdown()),
        *(f"note: {note}" for note in result.notes),
    ]
    return "\n".join(lines)
