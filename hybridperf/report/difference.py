"""What two models differ in: their origin; knobs, memory levels, intervals over 5 % apart."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hybridperf.collectives.model import find_collectives
from hybridperf.hardware import LEVELS, load_device, load_system, names_people_use
from hybridperf.io import InputError, unknown
from hybridperf.model import PerfModel, load_model, shipped_models
from hybridperf.ops import GROUPS
from hybridperf.report.known import (
    KNOBS,
    flat,
    holds_a_model,
    learned_words,
    level_rates,
    within_words,
)
from hybridperf.report.text import quantity, seconds, table

_NOTABLE = 1.05  # factor between two numbers worth a line


def difference(first: str, second: str) -> str:
    """What two models differ in, by name: folders, shipped calibrations, or devices' datasheets."""
    for name in (first, second):
        if Path(name).exists() and find_collectives(name) is not None and not holds_a_model(name):
            raise InputError(
                f"expected two models of ops to compare, got {name}, which holds collectives;"
                f" `hybridperf show {name}` prints them"
            )
    return models_apart(_model_or_datasheet(first), _model_or_datasheet(second), (first, second))


def _model_or_datasheet(name: str) -> PerfModel:
    if holds_a_model(name):
        return load_model(name)
    try:
        return PerfModel.datasheet(load_device(name))
    except InputError:
        if Path(name).suffix == ".toml":
            raise
    if Path(name).exists():
        return load_model(name)  # which says what is missing
    if name == "ops" or _is_system(name):
        raise InputError(
            f"expected two models or devices to compare, got {name}, which has no knobs"
        )
    names = [*names_people_use("devices"), *shipped_models(), "here"]
    raise unknown("model or device", name, names, "expected two model folders or devices")


def _is_system(name: str) -> bool:
    with contextlib.suppress(InputError):
        return bool(load_system(name))
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
        rows = [[key, *(_short(origin.get(key, "-")) for origin in origins)] for key in differing]
        lines += ["", table(["", "A", "B"], rows)]
    apart = [*_groups_apart(first, second), *_levels_apart(first, second)]
    if apart:
        lines += ["", table(["more than 5 % apart", "", "A", "B", "B / A"], apart)]
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


def _short(text: str, length: int = 50) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _groups_apart(first: PerfModel, second: PerfModel) -> list[list[str]]:
    """Rows (group, what, A, B, B / A) of groups that each model has measured or by datasheet."""
    lines = []
    for at, group in enumerate(GROUPS):
        if not all(group in one.groups or not one.groups for one in (first, second)):
            continue
        reports = [loaded.groups.get(group) for loaded in (first, second)]
        found = []
        for name, (label, write) in KNOBS.items():
            a, b = (float(getattr(loaded.knobs, name)[at]) for loaded in (first, second))
            if _notable(a, b):
                found.append([label, write(a), write(b), _ratio(a, b)])
        if reports[0] and reports[1]:
            widths = [report.half_width for report in reports if report]
            known_widths = [width for width in widths if width is not None]
            both = len(known_widths) == 2
            if len(known_widths) == 1 or (both and _notable(*known_widths)):
                ratio = _ratio(*known_widths) if both else "-"
                found.append(["90 % within", *map(within_words, widths), ratio])
            learned = [learned_words(report) for report in reports if report]
            if learned[0] != learned[1]:
                found.append(["learned", *learned, ""])
        lines += [[group if not i else "", *cells] for i, cells in enumerate(found)]
    return lines


def _levels_apart(first: PerfModel, second: PerfModel) -> list[list[str]]:
    """Lines (level, what, A, B, B / A) of memory levels that both devices have."""
    lines = []
    levels = [level_rates(first), level_rates(second)]
    for level in LEVELS:
        there = ["yes" if level in found else "no" for found in levels]
        if "no" in there:
            lines += [[level, "there", *there, ""]] if "yes" in there else []
            continue
        bandwidths, reads = zip(levels[0][level], levels[1][level], strict=True)
        if _notable(*bandwidths):
            rates = [quantity(rate, "B/s") for rate in bandwidths]
            lines.append([level, "bandwidth", *rates, _ratio(*bandwidths)])
        if _notable(*reads):
            lines.append([level, "strided read", *map(seconds, reads), _ratio(*reads)])
    return lines


def _notable(a: float, b: float) -> bool:
    return a != b and (min(a, b) <= 0 or max(a, b) / min(a, b) > _NOTABLE)


def _ratio(a: float, b: float) -> str:
    return f"x{b / a:.3g}" if a > 0 else "-"
