"""Tables and numbers as people read them: ms and GB/s, three digits, columns aligned."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridperf.calibrate import FitReport
from hybridperf.hardware import LEVELS, DeviceSpec, SystemSpec, device_names, load_device, load_system, system_names
from hybridperf.io import InputError, unknown
from hybridperf.model import PerfModel, load_model, shipped_models
from hybridperf.ops import GROUPS, op_by_name, op_names
from hybridperf.prediction import Prediction

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


def fit_report(report: FitReport) -> str:
    """Held-out errors per group of ops."""
    if not report.rows:
        return "no rows: the model is the datasheet roofline"
    rows = [
        [r.op, str(r.rows), percent(r.median_ape), percent(r.mean_ape), percent(r.roofline_ape), percent(r.noise), percent(r.coverage)]
        for r in report.table.itertuples()
    ]
    lines = [table(["held out", "rows", "median error", "mean error", "roofline", "noise", "in 90 % interval"], rows)]
    lines += [f"not fitted on: {count} rows, {reason}" for reason, count in report.dropped.items()]
    return "\n".join(lines)


def known(name: str) -> str:
    """What is known under a name: ops, a device, a system or a model."""
    if name == "ops":
        rows = [[op, ", ".join(op_by_name(op)[0].dimensions()), op_by_name(op)[0].group] for op in op_names()]
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{op.ljust(width)}  {dims}" for op, dims, _ in rows)
    with contextlib.suppress(InputError):
        return device(load_device(name))
    with contextlib.suppress(InputError):
        return system(load_system(name))
    if Path(name).exists() or name in shipped_models():
        return model(load_model(name))
    names = [*device_names(), *system_names(), *shipped_models(), "ops", "here"]
    raise unknown("name", name, names, "give a device, a system, a model folder, or `ops`")


def device(spec: DeviceSpec) -> str:
    """Facts of a device in readable units."""
    lines = [f"{spec.id}: {spec.name} ({spec.vendor}, {spec.arch}{f', {spec.year}' if spec.year else ''})"]
    lines += [f"  {dtype:12} {quantity(rate, 'FLOP/s')}" for dtype, rate in spec.peak_flops_per_s.items()]
    lines.append(f"  {'memory':12} {quantity(spec.memory_bytes, 'B')} at {quantity(spec.memory_bytes_per_s, 'B/s')}")
    for level, size in zip(LEVELS, spec.level_bytes(), strict=True):
        if 0 < size < math.inf:
            lines.append(f"  {level:12} {size / 2**20:.4g} MiB")
    if spec.multiprocessors and spec.clock_hz:
        lines.append(f"  {'cores':12} {spec.multiprocessors} at {quantity(spec.clock_hz, 'Hz')}")
    lines.append(f"  source: {spec.source}" + (f"\n  note: {spec.note}" if spec.note else ""))
    return "\n".join(lines)


def system(spec: SystemSpec) -> str:
    """Facts of a system in readable units."""
    return "\n".join([
        f"{spec.id}: {spec.description}",
        f"  {spec.accelerators_per_node} x {spec.accelerator} per node",
        f"  inside   {spec.intra_link}, {quantity(spec.intra_bytes_per_s, 'B/s')} per accelerator and direction"
        + (", reduces in the network" if spec.in_network_reduction else ""),
        f"  host     {spec.host_link}, {quantity(spec.host_link_bytes_per_s, 'B/s')}",
        f"  across   {spec.nics_per_node} x {spec.nic}, {quantity(spec.node_bytes_per_s, 'B/s')} per node",
        f"  latency  {seconds(spec.latency_s)} (prior)",
        f"  source: {spec.source} ({spec.confidence})",
    ])  # fmt: skip


def model(loaded: PerfModel) -> str:
    """Knobs of a model, with what they were fitted on."""
    lines = [device(loaded.device), ""]
    if not loaded.groups:
        return "\n".join([*lines, "no measurements: this model is the datasheet roofline"])
    rows = []
    for at, group in enumerate(GROUPS):
        if group in loaded.groups:
            knobs, report = loaded.knobs, loaded.groups[group]
            width = f"x{1 + report.half_width:.2f}" if report.half_width is not None else "-"
            rows.append([
                group, str(report.rows), seconds(float(knobs.floor_s[at])), percent(float(knobs.compute_efficiency[at])),
                percent(float(knobs.memory_efficiency[at])), seconds(float(knobs.step_s[at])), width,
            ])  # fmt: skip
    lines.append(table(["group", "rows", "floor", "of peak", "of bandwidth", "per step", "90 % within"], rows))
    bandwidth = loaded.device.memory_bytes_per_s
    levels = [
        f"{level} {quantity(bandwidth * float(speedup), 'B/s')}, strided read {seconds(float(line))}"
        for level, speedup, line, size in zip(
            LEVELS, loaded.knobs.level_speedup, loaded.knobs.line_s, loaded.device.level_bytes(), strict=True
        )
        if size > 0
    ]
    facts = {k: v for k, v in loaded.provenance.items() if k not in ("fit", "machine")}
    return "\n".join([*lines, "", *levels, "", *(f"{k}: {v}" for k, v in facts.items())])


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Mean absolute percentage error as a share."""
    return float(np.mean(np.abs(np.asarray(predicted) / np.asarray(measured) - 1)))
