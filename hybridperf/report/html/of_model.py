"""Facts behind a result: device, system, fitted knobs, and where a fit comes from."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from hybridperf.hardware import DeviceSpec, SystemSpec
from hybridperf.model import PerfModel
from hybridperf.ops import GROUPS
from hybridperf.report.html import document as doc
from hybridperf.report.known import flat, over_datasheet
from hybridperf.report.text import percent, quantity

_MOST_FACTS = 80  # of a provenance


def model_facts(model: PerfModel) -> list[doc.Block]:
    """Tables of a model's device, system and measurements, and where those come from."""
    blocks: list[doc.Block] = [doc.pairs_table("device", device_rows(model.device))]
    facts = fact_rows(model.provenance)
    if model.groups:
        blocks.append(doc.Folded("Where the model comes from", [doc.pairs_table("model", facts)]))
        measured: list[doc.Block] = [_groups(model)]
        measured += [doc.Notes(over)] if (over := over_datasheet(model)) else []
        blocks.append(doc.Folded("What was measured, by group of ops", measured))
    else:
        what = ("what it is", "the datasheet roofline: nothing was measured")
        blocks.append(doc.pairs_table("model", [what, *facts]))
    if model.collectives is not None:
        adapted = model.collectives.adapted
        learned = "datasheet alone" if adapted is None else f"fitted to {adapted.rows:,} rows"
        facts = [("collectives", learned), *fact_rows(model.collectives.provenance)]
        blocks.append(doc.pairs_table("system", system_rows(model.collectives.system)))
        blocks.append(doc.Folded("Where the collectives come from", [doc.pairs_table("", facts)]))
    return blocks


def device_rows(spec: DeviceSpec) -> list[tuple[str, str]]:
    """Facts of a device."""
    year = f", {spec.year}" if spec.year else ""
    memory = f"{quantity(spec.memory_bytes, 'B')} at {quantity(spec.memory_bytes_per_s, 'B/s')}"
    peaks = spec.peak_flops_per_s.items()
    return [
        ("name", f"{spec.name} ({spec.vendor}, {spec.arch}{year})"),
        *((f"peak {dtype.replace('_', ' ')}", quantity(rate, "FLOP/s")) for dtype, rate in peaks),
        ("memory", memory),
        ("source", spec.source),
        *([("note", spec.note)] if spec.note else []),
    ]


def system_rows(spec: SystemSpec) -> list[tuple[str, str]]:
    """Facts of a system."""
    inside = quantity(spec.intra_bytes_per_s, "B/s")
    between = quantity(spec.node_bytes_per_s, "B/s")
    return [
        ("system", f"{spec.id}: {spec.description}"),
        ("per node", f"{spec.accelerators_per_node} x {spec.accelerator}"),
        ("inside a node", f"{spec.intra_link}, {inside} per accelerator and direction"),
        ("between nodes", f"{spec.nics_per_node} x {spec.nic}, {between} per node"),
        ("source", f"{spec.source} ({spec.confidence})"),
    ]


def fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested facts as pairs of words; a long list is cut and the rest counted."""
    rows = [(name.replace("_", " "), said) for name, said in flat(facts).items()]
    left = len(rows) - _MOST_FACTS
    return [*rows[:_MOST_FACTS], *([("...", f"{left} more")] if left > 0 else [])]


def _groups(model: PerfModel) -> doc.Table:
    rows = [
        {
            "group": group,
            "rows": model.groups[group].rows,
            "floor": float(model.knobs.floor_s[at]),
            "compute": float(model.knobs.compute_efficiency[at]),
            "memory": float(model.knobs.memory_efficiency[at]),
            "within": model.groups[group].half_width,
            "formats": ", ".join(model.groups[group].dtypes) or "-",
        }
        for at, group in enumerate(GROUPS)
        if group in model.groups
    ]
    columns = [
        doc.Column("group", "group"),
        doc.Column("rows", "rows", doc.count_words),
        doc.Column("floor", "floor", doc.time_words),
        doc.Column("compute", "of peak", percent),
        doc.Column("memory", "of bandwidth", percent),
        doc.Column("within", "90 % within", lambda half_width: f"x{1 + half_width:.2f}"),
        doc.Column("formats", "number formats"),
    ]
    return doc.frame_table(pd.DataFrame(rows), columns)
