"""Tables and numbers as people read them: ms and GB/s, three digits, columns aligned."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import bdtr

from hybridperf.calibrate import COVERAGE, FitReport
from hybridperf.collectives.fit import CollectiveReport
from hybridperf.collectives.model import CollectiveModel, find_collectives, load_collectives
from hybridperf.hardware import LEVELS, DeviceSpec, SystemSpec, load_device, load_system, names_people_use
from hybridperf.io import InputError, unknown
from hybridperf.model import GroupReport, PerfModel, is_shipped, load_model, shipped_models
from hybridperf.ops import GROUPS, op_by_name, op_names
from hybridperf.prediction import Prediction
from hybridperf.residual import LEAST_ROWS
from hybridperf.workloads.transformer.zoo import load_shape, shape_names

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def seconds(value: float | None) -> str:
    """`12.3 ms`."""
    if value is None or not math.isfinite(value):
        return "-"
    scale, unit = next(((s, u) for s, u in _TIMES if abs(value) >= s), _TIMES[-1])
    return f"{value:,.0f} s" if abs(value) >= 1e3 else f"{value / scale:.3g} {unit}"


def quantity(value: float | None, unit: str) -> str:
    """`1.56 TB/s`: decimal prefixes."""
    if value is None or not math.isfinite(value):
        return "-"
    scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s), _PREFIXES[-1])
    return f"{value / scale:.4g} {prefix}{unit}"


def amount(value: float) -> str:
    """`8.03 billion`: a count of things without a unit."""
    scale, word = next(((s, w) for s, w in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")) if value >= s), (1.0, ""))
    return f"{value / scale:.4g} {word}" if word else f"{value:,.0f}"


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


def fit_report(report: FitReport, prior: bool = False) -> str:
    """Held-out errors per group of ops, beside those of the knobs without what is learned and of the datasheet; whether intervals hold.

    `prior`: other devices' rows stand behind the model.
    """
    if not report.rows:
        return "no rows: the model is " + ("what the datasheet and other GPUs' rows say" if prior else "the datasheet roofline")
    rows = [
        [
            r.op, str(r.rows), percent(r.median_ape), percent(r.mean_ape), percent(r.knobs_ape), percent(r.roofline_ape), percent(r.noise),
            percent(r.coverage), _whole_percent(r.share) if r.rows >= LEAST_ROWS else "-",
        ]
        for r in report.table.itertuples()
    ]  # fmt: skip
    headers = ["held out", "rows", "median error", "mean error", "knobs alone", "roofline", "noise", "in 90 % interval", "learned"]
    lines = [table(headers, rows), *(f"not fitted on: {count} rows, {reason}" for reason, count in report.dropped.items())]
    losers = [r.op for r in report.table.itertuples() if r.median_ape > r.roofline_ape]
    against = f"worse than the plain roofline: {', '.join(losers)}" if losers else "no group is worse than the plain roofline"
    return "\n".join([*lines, f"{coverage(report.held_out)}; {against}"])


def collective_report(report: CollectiveReport, prior: bool = True) -> str:
    """Held-out errors per collective, library and link, beside those of the closed form alone and of the datasheet.

    `prior`: other systems' rows stand behind the model.
    """
    if not report.rows:
        return "no rows: the model is " + ("what the datasheet and other systems' rows say" if prior else "the datasheet alone")
    rows = [
        [
            r.collective, r.implementation, r.link, str(r.rows), percent(r.median_ape), percent(r.mean_ape), percent(r.knobs_ape),
            percent(r.roofline_ape), percent(r.inside),
        ]
        for r in report.by_collective().itertuples()
    ]  # fmt: skip
    headers = ["held out", "library", "link", "rows", "median error", "mean error", "knobs alone", "datasheet", "in 90 % interval"]
    lines = [table(headers, rows), *(f"not fitted on: {count} rows, {reason}" for reason, count in report.dropped.items())]
    return "\n".join([*lines, coverage(report.held_out)])


def coverage(held_out: pd.DataFrame) -> str:
    """Whether intervals `low_s` to `high_s` of held-out rows hold `measured_s` as often as they should."""
    judged = held_out.dropna(subset=["low_s", "high_s"]) if len(held_out) else held_out
    n = len(judged)
    if not n:
        return "too few rows of any kind to try intervals on"
    inside = int(judged["measured_s"].between(judged["low_s"], judged["high_s"]).sum())
    low, high = binomial_band(n, COVERAGE)
    verdict = "as promised" if low <= inside <= high else "too many" if inside > high else "too few"
    return f"{percent(inside / n)} of {n} rows in their interval, {verdict} (binomial 99 % band: {percent(low / n)} to {percent(high / n)})"


def binomial_band(n: int, p: float, level: float = 0.99) -> tuple[int, int]:
    """The counts between which `n` independent events of probability `p` stay with probability `level`, as much left out on each side."""
    at_most = bdtr(np.arange(n + 1), n, p)
    tail = (1 - level) / 2
    return int(np.searchsorted(at_most, tail)), int(np.searchsorted(at_most, 1 - tail))


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def known(name: str) -> str:
    """What is known under a name: ops, a device, a system, a Transformer or a model."""
    from hybridperf.report import shapes  # which writes tables as this file does

    if name == "ops":
        rows = [[op, ", ".join(op_by_name(op)[0].dimensions()), op_by_name(op)[0].group] for op in op_names()]
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{op.ljust(width)}  {dims}" for op, dims, _ in rows)
    if _holds_a_model(name):
        return model(load_model(name))
    if find_collectives(name) is not None:
        return collective_model(load_collectives(name))
    with contextlib.suppress(InputError):
        return device(load_device(name))
    with contextlib.suppress(InputError):
        return system(load_system(name))
    with contextlib.suppress(InputError):
        return shapes.shape(load_shape(name))
    if Path(name).exists():
        return model(load_model(name))
    names = [*names_people_use("devices"), *names_people_use("systems"), *shipped_models(), *shape_names(), "ops", "here"]
    raise unknown("name", name, names, "give a device, a system, a Transformer, a model folder, or `ops`")


def difference(first: str, second: str) -> str:
    """What two models differ in, by name: folders, shipped calibrations, or devices (their datasheets)."""
    for name in (first, second):
        if Path(name).exists() and find_collectives(name) is not None and not _holds_a_model(name):
            raise InputError(
                f"expected two models of ops to compare, got {name}, which holds collectives; `hybridperf show {name}` prints them"
            )
    return models_apart(_model_or_datasheet(first), _model_or_datasheet(second), names=(first, second))


def _holds_a_model(name: str) -> bool:
    # a folder with a model comes before a device of the same name, as it does for `--model`
    return (Path(name) / "model.json").exists() or Path(name).suffix == ".json" or (is_shipped(name) and not Path(name).exists())


def _model_or_datasheet(name: str) -> PerfModel:
    if _holds_a_model(name):
        return load_model(name)
    try:
        return PerfModel.datasheet(load_device(name))
    except InputError:
        if Path(name).suffix == ".toml":
            raise
    if Path(name).exists():
        return load_model(name)  # which says what is missing
    if name == "ops" or _is_system(name):
        raise InputError(f"expected two models or devices to compare, got {name}, which has no knobs")
    raise unknown(
        "model or device", name, [*names_people_use("devices"), *shipped_models(), "here"], "expected two model folders or devices"
    )


def _is_system(name: str) -> bool:
    with contextlib.suppress(InputError):
        return bool(load_system(name))
    return False


def collective_model(loaded: CollectiveModel) -> str:
    """Facts of the system, knobs by collective, library and link, and how the fit errs."""
    lines = [system(loaded.system)]
    if loaded.adapted is None:
        return "\n".join([*lines, "  datasheet alone: nothing was measured"])
    errors = {"|".join([e["collective"], e["implementation"], e["link"]]): e for e in loaded.provenance.get("fit", {}).get("held_out", [])}
    rows = []
    for group in errors or loaded.groups():
        of, error = loaded.knobs(group), errors.get(group)
        rows.append([
            group.replace("|", " "), f"{1e6 * of['floor_s']:.3g} us", f"{1e6 * of['hop_s']:.3g} us", f"{1e6 * of['node_hop_s']:.3g} us",
            percent(of["intra_efficiency"]), percent(of["inter_efficiency"]), percent(error["median_ape"]) if error else "-",
        ])  # fmt: skip
    lines.append(f"  fitted to {loaded.adapted.rows} rows" if loaded.adapted.rows else "  no row measured: usual knobs of other systems")
    headers = ["collective, library, link", "floor", "hop in a node", "hop between", "of the link", "of the network", "median error"]
    return "\n".join([*lines, table(headers, rows)])


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


_KNOBS: Mapping[str, tuple[str, Callable[[float], str]]] = {  # group knob: what a table calls it, and how it is written
    "floor_s": ("floor", seconds),
    "compute_efficiency": ("of peak", percent),
    "memory_efficiency": ("of bandwidth", percent),
    "step_s": ("per step", seconds),
    "smoothing": ("smoothing", "{:.2f}".format),  # 0: the longer of compute and memory; 1: their sum
    "transcendental_flops": ("transcendental", "{:.3g} flops".format),
    "strided_factor": ("strided", "x{:.2f}".format),
}


def model(loaded: PerfModel) -> str:
    """Knobs of a model, with what they were fitted on."""
    lines = [device(loaded.device), ""]
    if not loaded.groups:
        return "\n".join([*lines, "no measurements: this model is the datasheet roofline"])
    rows = []
    for at, group in enumerate(GROUPS):
        if group in loaded.groups:
            report = loaded.groups[group]
            knobs = [write(float(getattr(loaded.knobs, name)[at])) for name, (_, write) in _KNOBS.items()]
            rows.append([group, str(report.rows), *knobs, _within(report.half_width), _learned(report)])
    lines.append(table(["group", "rows", *(label for label, _ in _KNOBS.values()), "90 % within", "learned"], rows))
    levels = [
        f"{level} {quantity(rate, 'B/s')}, strided read {seconds(line)}{_held(loaded, level)}"
        for level, (rate, line) in _levels(loaded).items()
    ]
    facts = {k: v for k, v in loaded.provenance.items() if k not in ("fit", "machine")}
    return "\n".join([*lines, "", *levels, "", *(f"{key}: {_fact(value)}" for key, value in facts.items())])


def _fact(value: Any) -> Any:
    return ", ".join(f"{name} {said}" for name, said in _flat(value).items()) if isinstance(value, Mapping) else value


def _within(half_width: float | None) -> str:
    return "-" if half_width is None else f"x{1 + half_width:.2f}"


def _learned(report: GroupReport) -> str:
    return "-" if report.residual is None else _whole_percent(report.residual.learned)


def _held(loaded: PerfModel, level: str) -> str:
    """What of a cache acts as ours, where that is known."""
    at = LEVELS.index(level)
    size, share = float(loaded.device.level_bytes()[at]), float(loaded.knobs.level_capacity[at])
    return f", acts as {quantity(size * share, 'B')} of {quantity(size, 'B')}" if math.isfinite(size) and share != 1.0 else ""


def _levels(loaded: PerfModel) -> dict[str, tuple[float, float]]:
    """(bytes/s of contiguous reads before a group's efficiency, seconds of a strided read) of each memory level the device has."""
    bandwidth, knobs = loaded.device.memory_bytes_per_s, loaded.knobs
    per_level = zip(LEVELS, knobs.level_speedup, knobs.line_s, loaded.device.level_bytes(), strict=True)
    return {level: (bandwidth * float(speedup), float(line)) for level, speedup, line, size in per_level if size > 0}


# --- two models -----------------------------------------------------------------------------------------------------------

_NOTABLE = 1.05  # factor between two numbers worth a line


def models_apart(first: PerfModel, second: PerfModel, names: tuple[str, str] = ("A", "B")) -> str:
    """What two models differ in: where they come from, and numbers that are more than 5 % apart, with B over A.

    A group that only one of them has measured is named; the other's roofline is no fit to compare with. A model without any
    measurements (a datasheet) takes part with the neutral knobs that it prices with.
    """
    lines = [f"{letter}: {name}" for letter, name in zip("AB", names, strict=True)]
    if (same := first.fingerprint()) == second.fingerprint():
        lines.append(f"same fingerprint {same}: knobs, learned weights and intervals are the same")
    origins = [_origin(first), _origin(second)]
    differing = [key for key in dict.fromkeys([*origins[0], *origins[1]]) if origins[0].get(key) != origins[1].get(key)]
    if differing:
        lines += ["", table(["", "A", "B"], [[key, *(_short(origin.get(key, "-")) for origin in origins)] for key in differing])]
    apart = [*_groups_apart(first, second), *_levels_apart(first, second)]
    if apart:
        lines += ["", table(["more than 5 % apart", "", "A", "B", "B / A"], apart)]
    elif first.fingerprint() != second.fingerprint():
        lines += ["", "no knob, memory level, or interval is more than 5 % apart"]
    for letter, one, other in (("A", first, second), ("B", second, first)):
        if alone := [group for group in GROUPS if group in one.groups and group not in other.groups]:
            lines += ["", f"only in {letter}: {', '.join(alone)}"]
    if not differing and len(lines) == 3:
        lines.append("nothing differs")
    return "\n".join(lines)


def _origin(loaded: PerfModel) -> dict[str, str]:
    """Where a model comes from, as text by (dotted) name: its device's facts, its hash, its provenance."""
    facts = loaded.device.model_dump(exclude={"source", "note", "vendor", "arch", "kind", "year"}, exclude_none=True)
    return {
        **{f"device {key}": said for key, said in _flat(facts).items()},
        "fingerprint": loaded.fingerprint(),
        **_flat({key: value for key, value in loaded.provenance.items() if key != "fit"}),
    }


def _flat(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as text; what is inside a mapping goes by both names."""
    out: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            out |= {f"{key} {inner}": said for inner, said in _flat(value).items()}
        elif isinstance(value, list | tuple):
            out[key] = ", ".join(map(str, value))
        else:
            out[key] = quantity(value, "").strip() if isinstance(value, float) else str(value)
    return out


def _short(said: str, length: int = 50) -> str:
    return said if len(said) <= length else f"{said[: length - 3]}..."


def _groups_apart(first: PerfModel, second: PerfModel) -> list[list[str]]:
    """Lines (group, what, A, B, B / A) of groups that both models price by measurements, or one by measurements and one by datasheet."""
    lines = []
    for at, group in enumerate(GROUPS):
        reports = [loaded.groups.get(group) for loaded in (first, second)]
        if not all(report or not loaded.groups for report, loaded in zip(reports, (first, second), strict=True)):
            continue
        found = []
        for name, (label, write) in _KNOBS.items():
            a, b = (float(getattr(loaded.knobs, name)[at]) for loaded in (first, second))
            if _notable(a, b):
                found.append([label, write(a), write(b), _ratio(a, b)])
        if reports[0] and reports[1]:
            widths = [report.half_width for report in reports if report]
            known_widths = [width for width in widths if width is not None]
            if len(known_widths) == 1 or (len(known_widths) == 2 and _notable(*known_widths)):
                found.append(["90 % within", *map(_within, widths), _ratio(*known_widths) if len(known_widths) == 2 else "-"])
            if (learned := [_learned(report) for report in reports if report])[0] != learned[1]:
                found.append(["learned", *learned, ""])
        lines += [[group if not i else "", *cells] for i, cells in enumerate(found)]
    return lines


def _levels_apart(first: PerfModel, second: PerfModel) -> list[list[str]]:
    """Lines (level, what, A, B, B / A) of memory levels that both devices have."""
    lines = []
    levels = [_levels(first), _levels(second)]
    for level in LEVELS:
        if not all(level in found for found in levels):
            if any(level in found for found in levels):
                lines.append([level, "there", *("yes" if level in found else "no" for found in levels), ""])
            continue
        bandwidths, reads = zip(levels[0][level], levels[1][level], strict=True)
        if _notable(*bandwidths):
            lines.append([level, "bandwidth", *(quantity(rate, "B/s") for rate in bandwidths), _ratio(*bandwidths)])
        if _notable(*reads):
            lines.append([level, "strided read", *map(seconds, reads), _ratio(*reads)])
    return lines


def _notable(a: float, b: float) -> bool:
    return a != b and (min(a, b) <= 0 or max(a, b) / min(a, b) > _NOTABLE)


def _ratio(a: float, b: float) -> str:
    return f"x{b / a:.3g}" if a > 0 else "-"


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Mean absolute percentage error as a share."""
    return float(np.mean(np.abs(np.asarray(predicted) / np.asarray(measured) - 1)))
