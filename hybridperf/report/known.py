"""What is known under a name: facts of a device or a system, knobs of a model, sizes of a
Transformer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybridperf.collectives.model import CollectiveModel, find_collectives, load_collectives
from hybridperf.hardware import (
    LEVELS,
    DeviceSpec,
    SystemSpec,
    load_device,
    load_system,
    names_people_use,
)
from hybridperf.io import InputError, unknown
from hybridperf.learning.prior.implementation import CollectiveImplementation
from hybridperf.model import GroupReport, PerfModel, is_shipped, load_model, shipped_models
from hybridperf.ops import GROUPS, op_by_name, op_names
from hybridperf.report.shapes import shape
from hybridperf.report.text import percent, quantity, seconds, table, whole_percent
from hybridperf.workloads.transformer.zoo import load_shape, shape_names

KNOBS: Mapping[
    str, tuple[str, Callable[[float], str]]
] = {  # group knob: what a table calls it, and how it is written
    "floor_s": ("floor", seconds),
    "compute_efficiency": ("of peak", percent),
    "memory_efficiency": ("of bandwidth", percent),
    "step_s": ("per step", seconds),
    "smoothing": (
        "smoothing",
        "{:.2f}".format,
    ),  # 0: the longer of compute and memory; 1: their sum
    "transcendental_flops": ("transcendental", "{:.3g} flops".format),
    "strided_factor": ("strided", "x{:.2f}".format),
}


def known(name: str) -> str:
    """What is known under a name: ops, a device, a system, a Transformer or a model."""
    if name == "ops":
        rows = [
            [op, ", ".join(op_by_name(op)[0].dimensions()), op_by_name(op)[0].group]
            for op in op_names()
        ]
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{op.ljust(width)}  {dims}" for op, dims, _ in rows)
    if holds_a_model(name):
        return model(load_model(name))
    if find_collectives(name) is not None:
        return collective_model(load_collectives(name))
    with contextlib.suppress(InputError):
        return device(load_device(name))
    with contextlib.suppress(InputError):
        return system(load_system(name))
    with contextlib.suppress(InputError):
        return shape(load_shape(name))
    if Path(name).exists():
        return model(load_model(name))
    names = [
        *names_people_use("devices"),
        *names_people_use("systems"),
        *shipped_models(),
        *shape_names(),
        "ops",
        "here",
    ]
    raise unknown(
        "name", name, names, "give a device, a system, a Transformer, a model folder, or `ops`"
    )


def holds_a_model(name: str) -> bool:
    """Whether a name means a model: a folder with one comes before a device of the same name, as it
    does for `--model`.
    """
    return (
        (Path(name) / "model.json").exists()
        or Path(name).suffix == ".json"
        or (is_shipped(name) and not Path(name).exists())
    )


def collective_model(loaded: CollectiveModel) -> str:
    """Facts of the system, knobs by collective, library and link, and how the fit errs."""
    lines = [system(loaded.system)]
    if loaded.adapted is None:
        return "\n".join([*lines, "  datasheet alone: nothing was measured"])
    errors = {
        str(CollectiveImplementation(e["collective"], e["implementation"], e["link"])): e
        for e in loaded.provenance.get("fit", {}).get("held_out", [])
    }
    rows = []
    for group in errors or loaded.groups():
        of, error = loaded.knobs(group), errors.get(group)
        rows.append([
            " ".join(CollectiveImplementation.parse(group)), f"{1e6 * of['floor_s']:.3g} us",
            f"{1e6 * of['hop_s']:.3g} us", f"{1e6 * of['node_hop_s']:.3g} us",
            percent(of["intra_efficiency"]), percent(of["inter_efficiency"]),
            percent(error["median_ape"]) if error else "-",
        ])  # fmt: skip
    lines.append(
        f"  fitted to {loaded.adapted.rows} rows"
        if loaded.adapted.rows
        else "  no row measured: usual knobs of other systems"
    )
    headers = [
        "collective, library, link",
        "floor",
        "hop in a node",
        "hop between",
        "of the link",
        "of the network",
        "median error",
    ]
    return "\n".join([*lines, table(headers, rows)])


def device(spec: DeviceSpec) -> str:
    """Facts of a device in readable units."""
    lines = [
        f"{spec.id}: {spec.name} ({spec.vendor},"
        f" {spec.arch}{f', {spec.year}' if spec.year else ''})"
    ]
    lines += [
        f"  {dtype:12} {quantity(rate, 'FLOP/s')}" for dtype, rate in spec.peak_flops_per_s.items()
    ]
    lines.append(
        f"  {'memory':12} {quantity(spec.memory_bytes, 'B')} at"
        f" {quantity(spec.memory_bytes_per_s, 'B/s')}"
    )
    for level, size in zip(LEVELS, spec.level_bytes(), strict=True):
        if 0 < size < math.inf:
            lines.append(f"  {level:12} {size / 2**20:.4g} MiB")
    if spec.multiprocessors and spec.clock_hz:
        lines.append(f"  {'cores':12} {spec.multiprocessors} at {quantity(spec.clock_hz, 'Hz')}")
    lines.append(f"  source: {spec.source}" + (f"\n  note: {spec.note}" if spec.note else ""))
    return "\n".join(lines)


def system(spec: SystemSpec) -> str:
    """Facts of a system in readable units."""
    return "\n".join(
        [
            f"{spec.id}: {spec.description}",
            f"  {spec.accelerators_per_node} x {spec.accelerator} per node",
            f"  inside   {spec.intra_link}, {quantity(spec.intra_bytes_per_s, 'B/s')} per"
            " accelerator and direction"
            + (", reduces in the network" if spec.in_network_reduction else ""),
            f"  host     {spec.host_link}, {quantity(spec.host_link_bytes_per_s, 'B/s')}",
            (
                f"  across   {spec.nics_per_node} x {spec.nic},"
                f" {quantity(spec.node_bytes_per_s, 'B/s')} per node"
            ),
            f"  latency  {seconds(spec.latency_s)} (prior)",
            f"  source: {spec.source} ({spec.confidence})",
        ]
    )


def model(loaded: PerfModel) -> str:
    """Knobs of a model, with what they were fitted on."""
    lines = [device(loaded.device), ""]
    if not loaded.groups:
        return "\n".join([*lines, "no measurements: this model is the datasheet roofline"])
    rows = []
    for at, group in enumerate(GROUPS):
        if group in loaded.groups:
            report = loaded.groups[group]
            knobs = [
                write(float(getattr(loaded.knobs, name)[at])) for name, (_, write) in KNOBS.items()
            ]
            rows.append(
                [
                    group,
                    str(report.rows),
                    *knobs,
                    within_words(report.half_width),
                    learned_words(report),
                ]
            )
    lines.append(
        table(
            ["group", "rows", *(label for label, _ in KNOBS.values()), "90 % within", "learned"],
            rows,
        )
    )
    levels = [
        f"{level} {quantity(rate, 'B/s')}, strided read {seconds(line)}{_held(loaded, level)}"
        for level, (rate, line) in level_rates(loaded).items()
    ]
    facts = {k: v for k, v in loaded.provenance.items() if k not in ("fit", "machine")}
    return "\n".join(
        [*lines, "", *levels, "", *(f"{key}: {_fact(value)}" for key, value in facts.items())]
    )


def _fact(value: Any) -> Any:
    return (
        ", ".join(f"{name} {said}" for name, said in flat(value).items())
        if isinstance(value, Mapping)
        else value
    )


def within_words(half_width: float | None) -> str:
    """Factor between prediction and measurement that nine in ten rows stay within."""
    return "-" if half_width is None else f"x{1 + half_width:.2f}"


def learned_words(report: GroupReport) -> str:
    """How much of what is learned beside the knobs is believed."""
    return "-" if report.residual is None else whole_percent(report.residual.learned)


def _held(loaded: PerfModel, level: str) -> str:
    """What of a cache acts as ours, where that is known."""
    at = LEVELS.index(level)
    size, share = float(loaded.device.level_bytes()[at]), float(loaded.knobs.level_capacity[at])
    return (
        f", acts as {quantity(size * share, 'B')} of {quantity(size, 'B')}"
        if math.isfinite(size) and share != 1.0
        else ""
    )


def level_rates(loaded: PerfModel) -> dict[str, tuple[float, float]]:
    """(bytes/s of contiguous reads before a group's efficiency, seconds of a strided read) of each
    memory level the device has.
    """
    bandwidth, knobs = loaded.device.memory_bytes_per_s, loaded.knobs
    per_level = zip(
        LEVELS, knobs.level_speedup, knobs.line_s, loaded.device.level_bytes(), strict=True
    )
    return {
        level: (bandwidth * float(speedup), float(line))
        for level, speedup, line, size in per_level
        if size > 0
    }


def flat(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as text; what is inside a mapping goes by both names."""
    out: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            out |= {f"{key} {inner}": said for inner, said in flat(value).items()}
        elif isinstance(value, list | tuple):
            out[key] = ", ".join(map(str, value))
        else:
            out[key] = quantity(value, "").strip() if isinstance(value, float) else str(value)
    return out
