"""Devices and systems by name: those we ship facts of, their other names, what drivers call them,
and files of further ones.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hybridperf.hardware.specs import DeviceSpec, SystemSpec
from hybridperf.hardware.this_machine import this_cpu, this_system
from hybridperf.io import InputError, read_toml, shipped_toml, unknown
from hybridperf.io.errors import plain

_TIMES_OFF = 100.0  # of every known machine: what lies farther off is in another unit
_UNITS = {
    "bytes_per_s": "B/s",
    "flops_per_s": "FLOP/s",
    "bytes": "B",
    "hz": "Hz",
    "w": "W",
    "s": "s",
}
_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# in what drivers call devices
_VENDOR_WORDS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "intel"})
# a part of a device, or another sold under its name: "RTX 4090 Laptop GPU", "RTX 4090 D", "RTX PRO
# 6000 Blackwell Max-Q", "M2 Max"
_OTHER_DEVICE = frozenset({"mig", "laptop", "mobile", "d", "v2", "max", "ultra"})


def device_names() -> list[str]:
    """Names of the devices we ship facts of."""
    return list(_presets("devices"))


def names_people_use(which: str) -> list[str]:
    """Names and aliases of shipped devices or systems: what a misspelt one is compared with."""
    return [*_presets(which), *_aliases()[which]]


def other_names(which: str, name: str) -> list[str]:
    """Other names of a device or a system we ship facts of."""
    return sorted(alias for alias, one in _aliases()[which].items() if one == name)


def system_names() -> list[str]:
    """Names of the systems we ship facts of."""
    return list(_presets("systems"))


def system_of(device: str) -> str | None:
    """The first system with such a device that we ship facts of; None for none."""
    systems = _presets("systems").items()
    return next((name for name, facts in systems if facts.get("device") == device), None)


def device_called(driver_name: str) -> str:
    """Name of the device that a driver calls so ("Tesla V100-SXM2-32GB": `v100_sxm2_32g`), "" for
    none that we ship facts of.

    Either an alias says so, or each part of the device's name is a word of the driver's. A part of
    a device (MIG) is none, nor is a smaller one of its name (for laptops) but by its own facts.
    """
    words = [word for word in plain(driver_name).split("_") if word not in _VENDOR_WORDS]
    bare, aliases = "_".join(words), _aliases()["devices"]
    other = _OTHER_DEVICE.intersection(words)
    if bare in aliases and not other:
        return aliases[bare]
    sizes = {re.sub(r"^(\d+)gi?b$", r"\1g", word) for word in words}
    named = ((name, set(name.split("_"))) for name in device_names())
    return max((name for name, own in named if other <= own <= sizes), key=len, default="")


def load_device(name: str | os.PathLike) -> DeviceSpec:
    """Published facts of a device by its name or alias ("a100_sxm4_80g"), or from a .toml file.

    "here" is this machine's CPU. `hybridperf devices` lists the names.

    Raises:
        InputError: when no such device or file is known; it suggests the nearest name.
    """
    return this_cpu() if str(name) == "here" else _load(name, "devices", DeviceSpec)


def load_system(name: str | os.PathLike) -> SystemSpec:
    """Published facts of a system (nodes and links) by its name or alias, or from a .toml file.

    "here" is this machine's processes. `hybridperf systems` lists the names.

    Raises:
        InputError: when no such system or file is known; it suggests the nearest name.
    """
    return this_system() if str(name) == "here" else _load(name, "systems", SystemSpec)


def device_of(system: SystemSpec, named: str | None = None) -> str:
    """The device asked for, else the system's own; `InputError` where that is no known device."""
    if device := named or system.device:
        return device
    got = f"got {system.id} of {system.accelerator}; name it by --device"
    raise InputError(f"expected a system whose accelerators are a known device, {got}")


@functools.cache
def _presets(which: str) -> dict[str, dict[str, Any]]:
    content = shipped_toml(__package__, f"{which}.toml")
    parts = content.pop("parts", {"every": {}})
    entries = {name: entry for name, entry in content.items() if isinstance(entry, dict)}
    for name, entry in entries.items():
        named = [parts[part] for part in ("every", *entry.pop("parts", ()))]
        entries[name] = {field: value for one in (*named, entry) for field, value in one.items()}
    return entries


@functools.cache
def _aliases() -> dict[str, dict[str, str]]:
    return shipped_toml(__package__, "aliases.toml")


def device_id(name: str | os.PathLike) -> str | None:
    """The id of a device that is known by this name or alias; None for any other name."""
    return _known_id(str(name), "devices")


@functools.lru_cache(4096)
def _known_id(text: str, which: str) -> str | None:
    return text if text in _presets(which) else _bare_names(which).get(_bare(text))


def _bare(name: str) -> str:
    """A name without what is between its words: "RTX 3060" and "rtx3060" are one."""
    return plain(name).replace("_", "")


@functools.cache
def _bare_names(which: str) -> dict[str, str]:
    """Names by what people may type."""
    presets = {_bare(name): name for name in _presets(which)}
    return presets | {_bare(alias): name for alias, name in _aliases()[which].items()}


def _load(name: str | os.PathLike, which: str, spec: type) -> Any:
    text, what = str(name), which.removesuffix("s")
    if text.endswith(".toml"):
        return _load_file(Path(text), spec, what)
    key = _known_id(text, which)
    if key is None:
        where = f"`hybridperf {which}` lists them, a .toml file describes another"
        raise unknown(what, text, names_people_use(which), where)
    return _shipped(key, which, spec)


@functools.cache
def _shipped(key: str, which: str, spec: type) -> Any:
    """A spec that we ship, made once: rows of a table ask for theirs thousands of times."""
    return spec(id=key, **_presets(which)[key])


def _load_file(path: Path, spec: type, what: str) -> Any:
    example = f"see hybridperf/hardware/{what}s.toml for the format"
    content = read_toml(path, f"{what} file", example)
    entries = {name: entry for name, entry in content.items() if isinstance(entry, dict)}
    if len(entries) != 1:
        sections = f"one [{what}] section in {path}, found {len(entries)}"
        raise InputError(f"expected {sections}; split the file")
    ((name, entry),) = entries.items()
    found = checked_spec(spec, {**entry, "id": name}, path, example)
    _check_units(found, what, path)
    return found


def _check_units(spec: DeviceSpec | SystemSpec, what: str, path: Path) -> None:
    """`InputError` for a quantity that lies far from those of all machines we ship facts of."""
    for field, (least, most) in _known_quantities(f"{what}s").items():
        unit = _unit(field)
        for name, value in _numbers_of(field, getattr(spec, field)):
            low, high = least / _TIMES_OFF, most * _TIMES_OFF
            if low <= value <= high:
                continue
            middle, sizes = math.sqrt(least * most), _PREFIXES.items()
            prefix, scale = min(sizes, key=lambda one: abs(math.log(value * one[1] / middle)))
            likely = least <= value * scale <= most
            meant = f"did you mean {value * scale:g} ({value:g} {prefix}{unit})?"
            raise InputError(
                f"{path}: expected {name} between {low:g} and {high:g} {unit}, within"
                f" {_TIMES_OFF:g} times of every {what} known, got {value:g};"
                f" {meant if likely else 'check the unit'}"
            )


def _unit(field: str) -> str:
    """The unit that the end of a field's name says; "" for none."""
    return next((unit for end, unit in _UNITS.items() if field.endswith(f"_{end}")), "")


def _numbers_of(field: str, value: Any) -> list[tuple[str, float]]:
    """(name, number) of a field that holds one number, or one by name."""
    if isinstance(value, Mapping):
        return [(f"{field}.{name}", number) for name, number in value.items()]
    return [] if value is None else [(field, value)]


@functools.cache
def _known_quantities(which: str) -> dict[str, tuple[float, float]]:
    """(least, most) of each field with a unit over all that we ship facts of."""
    found: dict[str, list[float]] = {}
    for entry in _presets(which).values():
        for field, value in entry.items():
            if _unit(field):
                found.setdefault(field, []).extend(one for _, one in _numbers_of(field, value))
    return {field: (min(values), max(values)) for field, values in found.items()}


def checked_spec(spec: type, content: Mapping[str, Any], path: Path, example: str) -> Any:
    """A spec of a file's content; `InputError` that names the first field that is wrong."""
    try:
        return spec(**content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        got = "" if isinstance(first["input"], dict) else f", got {first['input']!r}"
        raise InputError(f"{path}: {field}: {first['msg']}{got}; {example}") from error
