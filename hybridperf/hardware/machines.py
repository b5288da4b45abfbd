"""Names in rows of training steps: which device, fabric, publisher, precision a row's words mean.

Everything lies in `machines.toml`; here it is only looked up. A row says its accelerator in `gpu`,
as a driver, a datasheet, a cluster or a submission calls it ("XE9680x8H100-SXM-80GB", "h100_80gb",
"System: DGX-GB200"), and its network in `network`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hybridperf.hardware import (
    DeviceSpec,
    SystemSpec,
    device_called,
    device_id,
    load_device,
    load_system,
    system_of,
)
from hybridperf.io import InputError, shipped_toml
from hybridperf.io.errors import plain

_LIKE, _NAMED = 0.5, 4  # how like a name is to be offered, of difflib's ratio, and how many are
_BEFORE = re.compile(r"(^|[dh]gx|\dx|x\d+)$")  # an accelerator in a word: "dgxh100", "r750xax4a100"
_PER_NODE = re.compile(r"x(\d+)[a-z]\d")  # "XE8640x4H100": four H100 in a node
_GIGABYTES = re.compile(r"(?<![0-9])(\d{2,4})_?g(?:i?b)?(?![a-z0-9])")
# year and month: "26.06.01 NeMo Container"
_RELEASE = re.compile(r"(?<![\d.])2\d\.(?:0[1-9]|1[0-2])(?!\d)")
_RACK = "GPUs of a rack count as a node: one switch joins them"
_ABOUT = 0.1  # of a memory: what is sold as 192 GB has 180


@dataclasses.dataclass(frozen=True)
class Machine:
    """What one accelerator of a row is priced by, and what joins it to the others."""

    spec: DeviceSpec
    model: str  # name of the calibration that prices its ops; a .toml file: its datasheet
    memory_bytes: float
    system: SystemSpec
    gpus_per_node: int
    notes: tuple[str, ...] = ()
    switched: bool = False  # a switch joins more than one node's GPUs, whatever the row gives
    whole: int = 0  # GPUs of a real node, which runs take whole; 0: `gpus_per_node`
    renoded: bool = False  # an option replaced the row's nodes by those of another system

    @property
    def device(self) -> str:
        """Name of the accelerator in `devices.toml`."""
        return self.spec.id

    def for_gpus(self, gpus: int) -> Machine:
        """The same for so many GPUs: of racks as few as hold them, with whole trays each."""
        old, tray = self.system, self.whole
        most = old.domain_accelerators or 0
        if not self.switched or not tray or (gpus < most and gpus % tray):
            return self
        counts = range(-(-gpus // most), gpus // tray + 1)
        racks = next((n for n in counts if gpus % n == 0 and gpus // n % tray == 0), 0)
        each = gpus // racks if racks else self.gpus_per_node
        return dataclasses.replace(
            self, system=old.racked(each), gpus_per_node=each,
            notes=(*(one for one in self.notes if _RACK not in one), f"{each} {_RACK}"),
        )  # fmt: skip

    @functools.cached_property
    def key(self) -> tuple[str, str, str]:
        """All that prices depend on; of a user's files what they say, not what they are called."""
        return self.spec.model_dump_json(), self.model, self.system.model_dump_json()


@functools.cache
def aliases() -> Mapping[str, Any]:
    """The content of `machines.toml`: how people call machines."""
    return shipped_toml(__package__, "machines.toml")


def machine(
    gpu: str,
    network: str,
    device: str | None = None,
    system: str | None = None,
    row_system: str = "",
) -> Machine:
    """The machine of a row; `InputError` if its accelerator or network is unknown.

    Args:
        gpu: what the row calls its accelerator.
        network: that of its nodes, as `machines.toml` calls it; "" for none.
        device: in place of the row's own.
        system: in place of the row's own.
        row_system: what the row calls its system.
    """
    return _machine(gpu, network, device, system, row_system, *contents(device, system))


def contents(*names: str | None) -> list[bytes]:
    """Users' files, which may change between two calls; nothing of a name or an unread file."""
    found = []
    for name in names:
        try:
            found.append(Path(name).read_bytes() if name and name.endswith(".toml") else b"")
        except OSError:
            found.append(b"")
    return found


@functools.lru_cache(4096)
def _machine(
    gpu: str,
    network: str,
    device: str | None,
    system: str | None,
    row_system: str,
    *files: bytes,
) -> Machine:
    del files  # what is remembered is of them, too
    notes: list[str] = []
    found = _of_device(device) if device else _of_gpu(gpu)
    spec = load_device(device or found["device"])
    if "note" in found:
        notes.append(found["note"])
    if not device and (odd := _other_memory(gpu, spec)):
        notes.append(odd)
    if device and gpu and _called(gpu) not in ("", spec.id):
        notes.append(f"device {spec.id} was given, in place of the row's gpu {gpu}")
    cluster = aliases()["network"].get(network or network_called(plain(gpu)), {})
    own = cluster.get("system") or found.get("system")
    unknown = ""
    if row_system and not system:
        try:
            own = load_system(row_system).id
        except InputError:
            unknown = row_system
    if not own and not system and (own := system_of(spec.id)) and not unknown:
        notes.append(f"system {own} assumed")
    name = system or own
    if name is None and not unknown and spec.kind == "gpu":
        name = aliases()["stand_in"]["gpu"]
        notes.append(f"no system of {spec.id} is known: links of {name} assumed")
    if name is None:
        got = f"got {unknown}, which is not known" if unknown else "neither row nor alias says it"
        expected = f"expected the system (nodes and links) of {spec.id}"
        raise InputError(f"{expected}, {got}; name it by --system")
    if unknown:
        notes.append(f"system {unknown} is not known: taken for {own}")
    fabric = load_system(name)
    told = system or (own and (device or (row_system and not unknown)))
    if told and name != found.get("system") and (lent := fabric.lent_to(spec.id)):
        notes.append(lent)
    renoded = bool(system) and (own is None or load_system(own) != fabric)
    if "system_note" in found and name == found["system"]:
        notes.append(found["system_note"])
    if not renoded:  # the option names the row's own system, if any
        if "node_bytes_per_s" in cluster:
            fabric = fabric.model_copy(update={"node_bytes_per_s": cluster["node_bytes_per_s"]})
        if "note" in cluster:
            notes.append(cluster["note"])
    given = None if renoded else _PER_NODE.search(plain(gpu))
    whole = int(given[1]) if given else fabric.accelerators_per_node
    per_node, domain = whole, aliases()["domain"].get(fabric.id)
    if domain:
        fabric, per_node = fabric.racked(domain), domain
        notes.append(f"{domain} {_RACK}")
    memory_bytes = float(found.get("memory_bytes", spec.memory_bytes))
    return Machine(
        spec, found.get("model", found["device"]), memory_bytes, fabric, per_node, tuple(notes),
        bool(domain), whole, renoded,
    )  # fmt: skip


def _of_gpu(gpu: str) -> Mapping[str, Any]:
    """What is known of the accelerator that a row calls so; `InputError` for nothing."""
    if found := _gpu_called(plain(gpu)):
        return found
    if driver := _called(gpu):
        return {"device": driver}
    known = [*dict.fromkeys(entry["device"] for entry in aliases()["gpu"])]
    raise InputError(
        f"unknown gpu {gpu!r}: name one of {', '.join(_nearest(gpu, known))} in gpu or by --device"
    )


def _of_device(device: str) -> Mapping[str, Any]:
    """What is known of a device that is given: the same as of a row whose `gpu` is its name."""
    spec = load_device(device)
    named = _gpu_called(plain(spec.id))
    found = named if named and named["device"] == spec.id else {"device": spec.id}
    return {**found, "model": device} if device.endswith(".toml") else found


def _other_memory(gpu: str, spec: DeviceSpec) -> str:
    """A note where a gpu is called by another memory than its card's; "" where it is not."""
    named, own = [float(size) for size in _GIGABYTES.findall(plain(gpu))], spec.memory_bytes / 1e9
    if not named or any(abs(size - own) <= _ABOUT * own for size in named):
        return ""
    return f"gpu {gpu} means {named[0]:g} GB, a {spec.id} has {own:.3g}: predicted with that"


def _called(gpu: str) -> str:
    """The device that a row means by its `gpu`, "" where nobody knows."""
    found = _gpu_called(plain(gpu))
    return str(found["device"]) if found else device_id(gpu) or device_called(gpu)


def _nearest(name: str, known: list[str]) -> list[str]:
    """The known names most like a name, whole or by how they begin; all where none is."""
    text = plain(name)

    def likeness(one: str) -> float:
        parts = (one, one.split("_")[0])
        return max(difflib.SequenceMatcher(None, text, part).ratio() for part in parts)

    by_likeness = sorted(known, key=likeness, reverse=True)
    return [one for one in by_likeness if likeness(one) > _LIKE][:_NAMED] or known


@functools.cache
def publishers() -> tuple[str, ...]:
    """All whose rows are known to differ from those of other users of their framework."""
    return tuple(aliases()["publisher"])


@functools.cache
def publisher(name: str) -> Mapping[str, Any]:
    """What holds of all rows that one publishes (`machines.toml`); nothing of an unknown one."""
    known = aliases()["publisher"]
    own = known.get(name, {})
    return {**known.get(own.get("like", ""), {}), **own}


def publisher_of(source: str) -> str:
    """The publisher whose name, as `machines.toml` has it, a row's source begins with, else ""."""
    known = (one for one in publishers() if plain(source).startswith(one))
    return max(known, key=len, default="")


def release_of(said: str) -> str:
    """The release (year and month) that a row's words name, else ""."""
    found = _RELEASE.search(said)
    return found[0] if found else ""


def network_called(text: str) -> str:
    """The network that a text names, in lower case with underscores; "" for none."""
    known = ((name, one.get("named")) for name, one in aliases()["network"].items())
    return next((name for name, parts in known if parts and all(p in text for p in parts)), "")


@functools.lru_cache(4096)
def _gpu_called(text: str) -> Mapping[str, Any] | None:
    """What is known of the accelerator that a text names, in lower case with underscores."""
    words = text.split("_")
    ends = (word[at:] for word in words for at in range(len(word)) if _BEFORE.search(word[:at]))
    named = tuple(ends)

    def names(end: str, name: str) -> bool:
        return end.startswith(name) and not end[len(name) : len(name) + 1].isdigit()

    def fits(entry: Mapping[str, Any]) -> bool:
        have, lack = (
            [any(fnmatchcase(word, like) for word in words) for like in entry.get(which, ())]
            for which in ("with", "without")
        )
        return any(names(end, entry["named"]) for end in named) and all(have) and not any(lack)

    return next(filter(fits, aliases()["gpu"]), None)
