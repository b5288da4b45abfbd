"""A GPU of one's own as its driver describes it, and the machine that it stands in: a known device
by its name, else peaks by architecture, and what is assumed where a driver does not tell.

    peak FLOP/s      = multiprocessors x clock x FLOP per cycle of the architecture
                       (`architectures.toml`, with sources)
    memory bytes/s   = 2 x memory clock x bus width / 8    (NVIDIA's "How to Implement Performance
                       Metrics in CUDA C/C++": two transfers in a cycle of the clock that is told)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.hardware.names import (
    device_called,
    device_id,
    load_device,
    load_system,
    system_of,
)
from hybridperf.hardware.specs import DeviceSpec, SystemSpec, architectures
from hybridperf.hardware.this_machine import this_system
from hybridperf.hardware.topology import Topology, of_words, smi_words
from hybridperf.io import InputError
from hybridperf.io.errors import plain

# GeForce cards add up in fp32 at half the tensor cores' rate
_HALVED = ("tf32", "fp16", "bf16", "fp8")
_PCIE_BYTES_PER_S = 16e9  # 3.0 x16: what any GPU of the last ten years has at least
_NETWORK = ("nic", "nics_per_node", "nic_bytes_per_s", "node_bytes_per_s", "latency_s")


def this_gpu(facts: Mapping[str, Any]) -> DeviceSpec:
    """The device that a driver's facts are of.

    Args:
        facts: `name`, `vendor` ("nvidia", "amd"), `architecture` (compute capability "9.0", or
            AMD's "gfx942"), `multiprocessors`, `memory_bytes`, and where the driver tells them
            `clock_hz, memory_clock_hz, bus_bits, l2_bytes,
            shared_memory_bytes_per_multiprocessor`; `copy_bytes_per_s`: what a copy inside its
            memory was seen to move.

    Raises:
        InputError: nobody knows what the device computes in a cycle, as of an unknown TPU.
    """
    name = str(facts["name"])
    if known := device_called(name):
        return load_device(known)
    entry, notes = _architecture(facts)
    clock_hz, units, room = map(facts.get, ("clock_hz", "multiprocessors", "memory_bytes"))
    if entry is None or not clock_hz or not units or not room:
        raise InputError(
            f"expected a device whose name, or architecture, clock and multiprocessors are known,"
            f" got {name!r}; describe it in a .toml file (see hybridperf/hardware/devices.toml) and"
            " give that as --device"
        )
    halved = bool(entry.get("geforce")) and "geforce" in name.lower()
    peaks = {
        dtype: float(units * clock_hz * rate / (2 if halved and dtype in _HALVED else 1))
        for dtype, rate in entry["per_cycle"].items()
    }
    notes.append("peaks: multiprocessors x clock x FLOP per cycle of the architecture")
    bandwidth = 2.0 * (facts.get("memory_clock_hz") or 0) * (facts.get("bus_bits") or 0) / 8
    if not bandwidth:
        bandwidth = float(facts.get("copy_bytes_per_s") or 0)
        notes.append("memory bandwidth: what a copy reached, since the driver does not tell it")
    if not bandwidth:
        raise InputError(
            f"expected the memory's clock and bus width of {name!r}, which its driver does not"
            " tell; describe it in a .toml file and give that as --device"
        )
    optional = ("l2_bytes", "shared_memory_bytes_per_multiprocessor")
    given: dict[str, Any] = {field: float(facts[field]) for field in optional if facts.get(field)}
    return DeviceSpec(
        id=plain(name), name=name, vendor=_VENDORS[str(facts["vendor"])], arch=entry["arch"],
        kind="gpu", peak_flops_per_s=peaks, memory_bytes_per_s=bandwidth,
        memory_bytes=float(room), multiprocessors=int(units),
        clock_hz=float(clock_hz), fp32_sums_rate=0.5 if halved else 1.0, **given,
        source="its driver, and hybridperf/hardware/architectures.toml", note="; ".join(notes),
    )  # fmt: skip


def this_node(
    device: DeviceSpec, count: int, topology: str = "", host_link_bytes_per_s: float | None = None
) -> SystemSpec:
    """The machine that such GPUs stand in.

    Args:
        device: of all its GPUs.
        count: of them.
        topology: what `nvidia-smi topo -m` printed; "": not known.
        host_link_bytes_per_s: as measured; None: that of the system such a device usually has.
    """
    usual = load_system(name) if (name := system_of(device.id)) else None
    lent, host_link = usual or this_system(), usual.host_link if usual else "PCIe3 x16"
    assumed = [f"network assumed: {'that of ' + usual.id if usual else '10 Gb/s Ethernet'}"]
    host = host_link_bytes_per_s
    if host is None:
        host = usual.host_link_bytes_per_s if usual else _PCIE_BYTES_PER_S
        assumed.append(f"host link assumed: {host_link}")
    fields: dict[str, Any] = {
        "id": "here", "description": f"this machine, {count} x {device.name}",
        "accelerator": device.name, "device": device_id(device.id), "source": "this machine",
        "accelerators_per_node": count, "intra_link": "PCIe", "intra_bytes_per_s": host,
        "in_network_reduction": False, "host_link": host_link, "host_link_bytes_per_s": host,
        **{field: getattr(lent, field) for field in _NETWORK}, "confidence": "",
    }  # fmt: skip
    links = _links(topology, SystemSpec(**fields)) if count > 1 else None
    if links is not None:
        apart = ~np.eye(count, dtype=bool)
        fields["intra_link"] = "PCIe" if links.through_host[apart].any() else "NVLink"
        fields["intra_bytes_per_s"] = float(links.rates[apart].min())
    elif count > 1 and usual is not None:
        fields |= {"intra_link": usual.intra_link, "intra_bytes_per_s": usual.intra_bytes_per_s}
        assumed.append(f"links between GPUs assumed: those of {usual.id}")
    elif count > 1:
        assumed.append("links between GPUs assumed: the host's")
    return SystemSpec(**fields | {"confidence": "; ".join(assumed)})


_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD"}


def _links(topology: str, system: SystemSpec) -> Topology | None:
    """Those between the GPUs of a machine; None where its driver told nothing that can be read."""
    try:
        words: Sequence[Sequence[str]] = smi_words(topology)
        links = of_words(words, system)
    except InputError:
        return None
    return links if links.gpus_per_node == system.accelerators_per_node else None


def _architecture(facts: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, list[str]]:
    """(an architecture's rates, what was assumed of it)."""
    known = architectures().get(str(facts.get("vendor")), {})
    asked = str(facts.get("architecture", ""))
    if asked in known:
        return known[asked], []
    if facts.get("vendor") != "nvidia":
        return None, []
    # a newer one does at least what the last before it did, an unknown variant what its elder does
    older = [name for name in known if _number(name) <= _number(asked)]
    if not older:
        return None, []
    taken = max(older, key=_number)
    return known[taken], [f"compute capability {asked} is not known: rates of {taken}"]


def _number(capability: str) -> tuple[int, ...]:
    words = capability.split(".")
    return tuple(int(one) for one in words) if all(map(str.isdecimal, words)) else ()
