"""What stands behind a result: facts of a device and a system, knobs, and
where a fit comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hybridperf.hardware import DeviceSpec, SystemSpec
from hybridperf.model import PerfModel
from hybridperf.ops import GROUPS
from hybridperf.report.html.cells import count_cell, share_cell, time_cell
from hybridperf.report.html.document import Block, Cell, Folded, Rows, Table
from hybridperf.report.text import quantity

_MOST_FACTS = 80  # of a provenance


def model_facts(model: PerfModel) -> list[Block | Folded]:
    """Tables of what a model knows: its device, the system if there is one, what was measured, and
    where that comes from.
    """
    blocks: list[Block | Folded] = [_pairs("device", device_rows(model.device))]
    if model.groups:
        blocks.append(
            Folded("Where the model comes from", [_pairs("model", fact_rows(model.provenance))])
        )
        blocks.append(Folded("What was measured, by group of ops", [_groups(model)]))
    else:
        blocks.append(
            _pairs(
                "model",
                [
                    ("what it is", "the datasheet roofline: nothing was measured"),
                    *fact_rows(model.provenance),
                ],
            )
        )
    if model.collectives is not None:
        blocks.append(_pairs("system", system_rows(model.collectives.system)))
        learned = (
            "datasheet alone"
            if model.collectives.adapted is None
            else f"fitted to {model.collectives.adapted.rows:,} rows"
        )
        facts = [("collectives", learned), *fact_rows(model.collectives.provenance)]
        blocks.append(Folded("Where the collectives come from", [_pairs("", facts)]))
    return blocks


def device_rows(spec: DeviceSpec) -> list[tuple[str, str]]:
    """Facts of a device."""
    rows = [
        ("name", f"{spec.name} ({spec.vendor}, {spec.arch}{f', {spec.year}' if spec.year else ''})")
    ]
    rows += [
        (f"peak {dtype.replace('_', ' ')}", quantity(rate, "FLOP/s"))
        for dtype, rate in spec.peak_flops_per_s.items()
    ]
    rows.append(
        (
            "memory",
            f"{quantity(spec.memory_bytes, 'B')} at {quantity(spec.memory_bytes_per_s, 'B/s')}",
        )
    )
    rows.append(("source", spec.source))
    return [*rows, ("note", spec.note)] if spec.note else rows


def system_rows(spec: SystemSpec) -> list[tuple[str, str]]:
    """Facts of a system."""
    return [
        ("system", f"{spec.id}: {spec.description}"),
        ("per node", f"{spec.accelerators_per_node} x {spec.accelerator}"),
        (
            "inside a node",
            (
                f"{spec.intra_link}, {quantity(spec.intra_bytes_per_s, 'B/s')} per accelerator and"
                " direction"
            ),
        ),
        (
            "between nodes",
            f"{spec.nics_per_node} x {spec.nic}, {quantity(spec.node_bytes_per_s, 'B/s')} per node",
        ),
        ("source", f"{spec.source} ({spec.confidence})"),
    ]


def fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested facts as pairs of words, as many as are read."""
    rows = list(_flat(facts, ""))
    left = len(rows) - _MOST_FACTS
    return [*rows[:_MOST_FACTS], *([("...", f"{left} more")] if left > 0 else [])]


def _flat(facts: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        label = f"{before}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{label}, ")
        elif isinstance(value, list | tuple):
            if all(isinstance(item, str | int | float) for item in value):
                yield label, ", ".join(map(str, value)) or "none"
            else:
                yield label, f"{len(value)} entries"
        else:
            yield label, f"{value:.6g}" if isinstance(value, float) else str(value)


def _pairs(title: str, rows: list[tuple[str, str]]) -> Table:
    return Table([title, ""], rows, words=2, first=_MOST_FACTS + 1, sortable=False)


def _groups(model: PerfModel) -> Table:
    rows: Rows = []
    for at, group in enumerate(GROUPS):
        if group not in model.groups:
            continue
        report = model.groups[group]
        within = (
            Cell("-")
            if report.half_width is None
            else Cell(f"x{1 + report.half_width:.2f}", report.half_width)
        )
        floor, compute, memory = (
            float(getattr(model.knobs, k)[at])
            for k in ("floor_s", "compute_efficiency", "memory_efficiency")
        )
        rows.append([
            group, count_cell(report.rows), time_cell(floor), share_cell(compute),
            share_cell(memory), within, ", ".join(report.dtypes) or "-",
        ])  # fmt: skip
    return Table(
        ["group", "rows", "floor", "of peak", "of bandwidth", "90 % within", "number formats"], rows
    )
