"""What is known under a name: facts of devices and systems, knobs of models, sizes of shapes; and
what two models differ in: their origin; knobs, memory levels, intervals over 5 % apart.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf import hardware
from hybridperf.collectives.model import CollectiveModel, find_collectives, load_collectives
from hybridperf.io import InputError, unknown
from hybridperf.learning.prior.implementation import CollectiveImplementation
from hybridperf.model import GroupReport, PerfModel, is_shipped, load_model, shipped_models
from hybridperf.model.group_report import beyond_datasheet
from hybridperf.ops import GROUPS, op_by_name, op_names
from hybridperf.report import text
from hybridperf.report.text import quantity
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.zoo import load_shape, other_shape_names, shape_names

_NOTABLE = 1.05  # factor between two numbers worth a line
# knob of a group: what a table calls it, and how it is written
KNOBS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "floor_s": ("floor", text.seconds),
    "compute_efficiency": ("of peak", text.percent),
    "memory_efficiency": ("of bandwidth", text.percent),
    "step_s": ("per step", text.seconds),
    # 0: the longer of compute and memory; 1: their sum
    "smoothing": ("smoothing", "{:.2f}".format),
    "transcendental_flops": ("transcendental", "{:.3g} flops".format),
    "strided_factor": ("strided", "x{:.2f}".format),
}
_SHAPES: dict[str, Callable[[tuple[str, TransformerShape]], Any]] = {
    "model": lambda named: named[0],
    "family": lambda named: named[1].family,
    "parameters": lambda named: text.amount(named[1].parameters),
    "layers": lambda named: named[1].depth,
    "hidden": lambda named: named[1].hidden,
    "heads": lambda named: named[1].heads,
    "tokens a sequence": lambda named: named[1].seq,
    "experts of a token": lambda named: (
        f"{named[1].topk} of {named[1].experts}" if named[1].experts else ""
    ),
    "also called": lambda named: ", ".join(other_shape_names(named[0])),
}
_NAMED = ("name", "family", "published", "source", "note")


def known(name: str) -> str:
    """What is known under a name: ops, a device, a system, a Transformer or a model."""
    if name == "ops":
        dimensions = {op: ", ".join(op_by_name(op)[0].dimensions()) for op in op_names()}
        width = max(map(len, dimensions))
        return "\n".join(f"{op.ljust(width)}  {sizes}" for op, sizes in dimensions.items())
    if holds_a_model(name):
        return model(load_model(name))
    if find_collectives(name) is not None:
        return collective_model(load_collectives(name))
    with contextlib.suppress(InputError):
        return device(hardware.load_device(name))
    with contextlib.suppress(InputError):
        return system(hardware.load_system(name))
    with contextlib.suppress(InputError):
        return shape(load_shape(name))
    if os.path.exists(name):
        return model(load_model(name))
    machines = [*hardware.names_people_use("devices"), *hardware.names_people_use("systems")]
    names = [*machines, *shipped_models(), *shape_names(), "ops", "here"]
    hint = "give a device, a system, a Transformer, a model folder or `ops`"
    raise unknown("name", name, names, hint)


def group_facts(name: str) -> list[dict[str, Any]]:
    """Of a model, each group of ops that was measured: rows, half-width of its 90 % interval,
    quantiles of held-out log(predicted / measured), efficiencies; else nothing.
    """
    if name == "ops" or not holds_a_model(name):
        return []
    model = load_model(name)
    return [
        {
            "group": group, "rows": one.rows, "half_width": one.half_width, "errors": one.errors,
            "compute_efficiency": float(model.knobs.compute_efficiency[at]),
            "memory_efficiency": float(model.knobs.memory_efficiency[at]),
        }
        for at, group in enumerate(GROUPS)
        if (one := model.groups.get(group)) is not None
    ]  # fmt: skip


def holds_a_model(name: str) -> bool:
    """Whether a name means a model; as for `--model`, its folder goes before a device's name."""
    path = Path(name)
    written = os.path.exists(path / "model.json") or path.suffix == ".json"
    return written or (is_shipped(name) and not os.path.exists(path))


def collective_model(loaded: CollectiveModel) -> str:
    """Facts of the system, knobs by collective, library and link, and how the fit errs."""
    lines = [system(loaded.system)]
    if loaded.adapted is None:
        return "\n".join([*lines, "  datasheet alone: nothing was measured"])
    errors = {
        str(CollectiveImplementation(e["collective"], e["implementation"], e["link"])): e
        for e in loaded.provenance.get("fit", {}).get("held_out", [])
    }
    groups = [(group, loaded.knobs(group)) for group in errors or loaded.groups()]
    columns: dict[str, Callable[[tuple[str, Any]], str]] = {
        "collective, library, link": lambda of: " ".join(CollectiveImplementation.parse(of[0])),
        "floor": lambda of: text.seconds(of[1]["floor_s"]),
        "hop in a node": lambda of: text.seconds(of[1]["hop_s"]),
        "hop between": lambda of: text.seconds(of[1]["node_hop_s"]),
        "of the link": lambda of: text.percent(of[1]["intra_efficiency"]),
        "of the network": lambda of: text.percent(of[1]["inter_efficiency"]),
        "median error": lambda of: text.percent(errors[of[0]]["median_ape"]) if errors else "-",
    }
    fitted = "no row measured: usual knobs of other systems"
    if loaded.adapted.rows:
        fitted = f"fitted to {loaded.adapted.rows} rows"
    return "\n".join([*lines, f"  {fitted}", text.items_table(groups, columns)])


def device(spec: hardware.DeviceSpec) -> str:
    """Facts of a device in readable units."""
    return "\n".join([f"{spec.id}: {spec.name}", *_lines(device_facts(spec)[1:])])


def device_facts(spec: hardware.DeviceSpec) -> list[tuple[str, str]]:
    """Facts of a device by name."""
    year = f", {spec.year}" if spec.year else ""
    memory = f"{quantity(spec.memory_bytes, 'B')} at {quantity(spec.memory_bytes_per_s, 'B/s')}"
    facts = [("name", spec.name), ("maker", f"{spec.vendor}, {spec.arch}{year}")]
    peaks = spec.peak_flops_per_s.items()
    facts += [(dtype.replace("_", " "), quantity(rate, "FLOP/s")) for dtype, rate in peaks]
    facts.append(("memory", memory))
    for level, size in zip(hardware.LEVELS, spec.level_bytes(), strict=True):
        facts += [(level, f"{size / 2**20:.4g} MiB")] if 0 < size < math.inf else []
    if spec.multiprocessors and spec.clock_hz:
        facts.append(("cores", f"{spec.multiprocessors} at {quantity(spec.clock_hz, 'Hz')}"))
    return [*facts, ("source", spec.source), *([("note", spec.note)] if spec.note else [])]


def system(spec: hardware.SystemSpec) -> str:
    """Facts of a system in readable units."""
    return "\n".join([f"{spec.id}: {spec.description}", *_lines(system_facts(spec)[1:])])


def system_facts(spec: hardware.SystemSpec) -> list[tuple[str, str]]:
    """Facts of a system by name."""
    rates = spec.intra_bytes_per_s, spec.host_link_bytes_per_s, spec.node_bytes_per_s
    inside, host, across = (quantity(rate, "B/s") for rate in rates)
    reduces = ", reduces in the network" if spec.in_network_reduction else ""
    joined = f", trays of {spec.tray_accelerators}" if spec.tray_accelerators else ""
    if spec.domain_accelerators and not spec.tray_accelerators:
        joined = f", switches join {spec.domain_accelerators} across nodes"
    return [
        ("system", f"{spec.id}: {spec.description}"),
        ("per node", f"{spec.accelerators_per_node} x {spec.accelerator}{joined}"),
        ("inside", f"{spec.intra_link}, {inside} per accelerator and direction{reduces}"),
        ("host", f"{spec.host_link}, {host}"),
        ("across", f"{spec.nics_per_node} x {spec.nic}, {across} per node"),
        ("latency", f"{text.seconds(spec.latency_s)} (prior)"),
        ("source", f"{spec.source} ({spec.confidence})"),
    ]


def _lines(facts: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:12} {said}" for name, said in facts]


def shapes_table() -> str:
    """All published shapes, a line each."""
    names = shape_names()
    table = text.items_table([(name, load_shape(name)) for name in names], _SHAPES)
    how = "`hybridperf show NAME` prints all of one, a .toml file describes another"
    return f"{table}\n{len(names)} models; {how}"


def shape(one: TransformerShape) -> str:
    """One shape: counts, sizes, what departs from a plain GPT, where it was published."""
    counts = f"{text.amount(one.parameters)} parameters ({one.parameters:,})"
    active = f", {text.amount(one.active_parameters)} of them met by a token" if one.experts else ""
    flops = quantity(one.model_flops(one.seq) / one.seq, "FLOP")
    lines = [
        f"{one.name}: {one.family}, {counts}{active}",
        f"  training takes {flops} a token of sequences of {one.seq}, attention in full",
    ]
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        usual = field.default is not dataclasses.MISSING and value == field.default
        if field.name not in _NAMED and not usual:
            lines.append(f"  {field.name:16} {value}")
    sources = {name: getattr(one, name) for name in ("published", "source", "note")}
    lines += [f"  {name}: {value}" for name, value in sources.items() if value]
    return "\n".join(lines)


def model(loaded: PerfModel) -> str:
    """Knobs of a model, with what they were fitted on."""
    lines = [device(loaded.device), ""]
    if not loaded.groups:
        return "\n".join([*lines, "no measurements: this model is the datasheet roofline"])
    rows = []
    for at, group in enumerate(GROUPS):
        if group in loaded.groups:
            report = loaded.groups[group]
            values = {name: float(getattr(loaded.knobs, name)[at]) for name in KNOBS}
            knobs = [write(values[name]) for name, (_, write) in KNOBS.items()]
            fitted = [within_words(report.half_width), learned_words(report)]
            rows.append([group, report.rows, *knobs, *fitted])
    labels = [label for label, _ in KNOBS.values()]
    lines += [text.table(["group", "rows", *labels, "90 % within", "learned"], rows)]
    lines += [*over_datasheet(loaded), ""]
    for level, (rate, read_s) in level_rates(loaded).items():
        capacity = _capacity_words(loaded, level)
        rates = f"{quantity(rate, 'B/s')}, strided read {text.seconds(read_s)}"
        lines.append(f"{level} {rates}{capacity}")
    facts = {key: v for key, v in loaded.provenance.items() if key not in ("fit", "machine")}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            facts[key] = ", ".join(f"{name} {fact}" for name, fact in flat(value).items())
    return "\n".join([*lines, "", *(f"{key}: {value}" for key, value in facts.items())])


def over_datasheet(loaded: PerfModel) -> list[str]:
    """A sentence on shares of the datasheet's peak or bandwidth above 100 %, where there are."""
    at = [GROUPS.index(group) for group in loaded.groups]
    shares = [loaded.knobs.compute_efficiency, loaded.knobs.memory_efficiency]
    if not any((np.asarray(share)[at] > 1).any() for share in shares):
        return []
    return [f"over 100 % of the datasheet's: {beyond_datasheet(loaded.device)}"]


def within_words(half_width: float | None) -> str:
    """Factor between prediction and measurement that 90 % of rows stay within."""
    return "-" if half_width is None else f"x{1 + half_width:.2f}"


def learned_words(report: GroupReport) -> str:
    """The share of learned corrections that is applied."""
    return "-" if report.residual is None else text.whole_percent(report.residual.learned)


def _capacity_words(loaded: PerfModel, level: str) -> str:
    """The effective capacity of a cache, where it is known."""
    at = hardware.LEVELS.index(level)
    size, share = float(loaded.device.level_bytes()[at]), float(loaded.knobs.level_capacity[at])
    if not math.isfinite(size) or share == 1.0:
        return ""
    return f", acts as {quantity(size * share, 'B')} of {quantity(size, 'B')}"


def level_rates(loaded: PerfModel) -> dict[str, tuple[float, float]]:
    """Bytes/s of contiguous reads and seconds of a strided read, of each memory level there is.

    Contiguous reads are before a group's efficiency.
    """
    bandwidth, knobs = loaded.device.memory_bytes_per_s, loaded.knobs
    sizes = loaded.device.level_bytes()
    return {
        level: (bandwidth * float(knobs.level_speedup[at]), float(knobs.line_s[at]))
        for at, level in enumerate(hardware.LEVELS)
        if sizes[at] > 0
    }


def flat(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as text; a fact inside a mapping has the names of both."""
    out: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            out |= {f"{key} {inner}": fact for inner, fact in flat(value).items()}
        elif isinstance(value, list | tuple):
            plain = all(isinstance(item, str | int | float) for item in value)
            out[key] = (", ".join(map(str, value)) or "none") if plain else f"{len(value)} entries"
        else:
            out[key] = quantity(value, "").strip() if isinstance(value, float) else str(value)
    return out


def difference(first: str, second: str) -> str:
    """What two models differ in, by name: folders, shipped calibrations, or devices' datasheets."""
    for name in (first, second):
        if os.path.exists(name) and find_collectives(name) is not None and not holds_a_model(name):
            holds = f"which holds collectives; `hybridperf show {name}` prints them"
            raise InputError(f"expected two models of ops to compare, got {name}, {holds}")
    return models_apart(_model_or_datasheet(first), _model_or_datasheet(second), (first, second))


def _model_or_datasheet(name: str) -> PerfModel:
    if holds_a_model(name):
        return load_model(name)
    try:
        return PerfModel.datasheet(hardware.load_device(name))
    except InputError:
        if Path(name).suffix == ".toml":
            raise
    if os.path.exists(name):
        return load_model(name)  # which says what is missing
    if name == "ops" or _is_system(name):
        got = f"got {name}, which has no knobs"
        raise InputError(f"expected two models or devices to compare, {got}")
    names = [*hardware.names_people_use("devices"), *shipped_models(), "here"]
    raise unknown("model or device", name, names, "expected two model folders or devices")


def _is_system(name: str) -> bool:
    with contextlib.suppress(InputError):
        return bool(hardware.load_system(name))
    return False


def models_apart(first: PerfModel, second: PerfModel, names: tuple[str, str] = ("A", "B")) -> str:
    """What two models differ in: their origin, and numbers more than 5 % apart with their ratio.

    A group that only one of them has measured is named, since the other's roofline is not a fit to
    compare with. A datasheet has no measured groups: its neutral knobs are compared.
    """
    lines = [f"{letter}: {name}" for letter, name in zip("AB", names, strict=True)]
    if (same := first.fingerprint()) == second.fingerprint():
        lines.append(f"same fingerprint {same}: knobs, learned weights and intervals are the same")
    origins = [_origin(first), _origin(second)]
    keys = dict.fromkeys([*origins[0], *origins[1]])
    differing = [key for key in keys if origins[0].get(key) != origins[1].get(key)]
    if differing:
        rows = [[key, *(text.short(one.get(key, "-"), 50) for one in origins)] for key in differing]
        lines += ["", text.table(["", "A", "B"], rows)]
    apart = [*_groups_apart(first, second), *_levels_apart(first, second)]
    if apart:
        lines += ["", text.table(["more than 5 % apart", "", "A", "B", "B / A"], apart)]
    elif first.fingerprint() != second.fingerprint():
        lines += ["", "no knob, memory level, or interval is more than 5 % apart"]
    for letter, one, other in (("A", first, second), ("B", second, first)):
        alone = [group for group in GROUPS if group in one.groups and group not in other.groups]
        if alone:
            lines += ["", f"only in {letter}: {', '.join(alone)}"]
    if not differing and len(lines) == 3:
        lines.append("nothing differs")
    return "\n".join(lines)


def _origin(loaded: PerfModel) -> dict[str, str]:
    """Where a model comes from, by name: its device's facts, its fingerprint, its provenance."""
    left_out = {"source", "note", "vendor", "arch", "kind", "year"}
    facts = flat(loaded.device.model_dump(exclude=left_out, exclude_none=True))
    origin = {f"device {key}": value for key, value in facts.items()}
    origin["fingerprint"] = loaded.fingerprint()
    return origin | flat({key: v for key, v in loaded.provenance.items() if key != "fit"})


def _groups_apart(first: PerfModel, second: PerfModel) -> list[list[str]]:
    """Rows (group, what, A, B, B / A) of groups that each model has measured or by datasheet."""
    lines, both = [], (first, second)
    for at, group in enumerate(GROUPS):
        if not all(group in one.groups or not one.groups for one in both):
            continue
        found = [
            _row(label, write, *(float(getattr(one.knobs, name)[at]) for one in both))
            for name, (label, write) in KNOBS.items()
        ]
        reports = [one.groups[group] for one in both if one.groups]
        if len(reports) == 2:
            found.append(_row("90 % within", within_words, *(one.half_width for one in reports)))
            learned = list(map(learned_words, reports))
            found.append(["learned", *learned, ""] if learned[0] != learned[1] else [])
        rows = list(filter(None, found))
        lines += [["" if number else group, *cells] for number, cells in enumerate(rows)]
    return lines


def _levels_apart(first: PerfModel, second: PerfModel) -> list[list[str]]:
    """Lines (level, what, A, B, B / A) of memory levels that both devices have."""
    lines, levels = [], [level_rates(first), level_rates(second)]
    for level in hardware.LEVELS:
        there = ["yes" if level in found else "no" for found in levels]
        if "no" in there:
            lines += [[level, "there", *there, ""]] if "yes" in there else []
            continue
        bandwidths, reads = zip(levels[0][level], levels[1][level], strict=True)
        found = _row("bandwidth", lambda rate: quantity(rate, "B/s"), *bandwidths)
        rows = (found, _row("strided read", text.seconds, *reads))
        lines += [[level, *cells] for cells in rows if cells]
    return lines


def _row(what: str, write: Callable[[Any], str], a: float | None, b: float | None) -> list[str]:
    """Two numbers that are more than 5 % apart, or one that only one model has; else nothing."""
    if a is None or b is None:
        return [] if a is b else [what, write(a), write(b), "-"]
    if a == b or (min(a, b) > 0 and max(a, b) / min(a, b) <= _NOTABLE):
        return []
    return [what, write(a), write(b), f"x{b / a:.3g}" if a > 0 else "-"]
