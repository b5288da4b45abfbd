"""This machine as its operating system describes it: its CPU as a device, its processes as a
system.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from hybridperf.hardware.specs import DeviceSpec, SystemSpec

# FLOP per core and cycle in fp32: vector width in floats x 2 (multiply and add) x 2 units. Server
# cores since Skylake-SP and Zen 2 issue two such instructions a cycle; a core with one unit reaches
# half, which calibration then finds.
_FLOPS_PER_CYCLE = (("avx512f", 64), ("fma", 32), ("avx", 16), ("asimd", 16), ("sse2", 8))
_ONE_DDR4_3200_CHANNEL_BYTES_PER_S = 25.6e9  # 3200 MT/s x 8 bytes


def this_cpu(cores: int | None = None) -> DeviceSpec:
    """This machine's CPU as the operating system describes it, for as many cores as this process
    may use (or `cores`).

    Peak = cores x clock x the widest vector unit. No operating system tells the memory bandwidth:
    one DDR4-3200 channel is assumed, and `note` says so.
    """
    cores = cores or _usable_cores()
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.M)[:1]).split())
    model = (
        re.findall(r"^model name\s*:\s*(.*)$", text, re.M)
        or [platform.processor() or platform.machine()]
    )[0].strip()
    clock_hz = _clock_hz(text)
    per_cycle = next((rate for flag, rate in _FLOPS_PER_CYCLE if flag in flags), 8)
    fp32 = cores * clock_hz * per_cycle
    caches = _cpu_caches()
    return DeviceSpec(
        id="here",
        name=model,
        vendor=(re.findall(r"^vendor_id\s*:\s*(.*)$", text, re.M) or ["unknown"])[0],
        arch=platform.machine(),
        kind="cpu",
        # 16-bit arithmetic without a matrix unit is done in fp32 after conversion
        peak_flops_per_s={"fp64": fp32 / 2, "fp32": fp32, "bf16": fp32, "fp16": fp32, "int8": fp32},
        memory_bytes_per_s=_ONE_DDR4_3200_CHANNEL_BYTES_PER_S,
        memory_bytes=_memory_bytes(),
        l1_bytes=caches.get(1),
        l2_bytes=caches.get(2),
        l3_bytes=caches.get(3),
        multiprocessors=cores,
        clock_hz=clock_hz,
        source="this machine's operating system",
        note=(
            f"{per_cycle} fp32 FLOP per core and cycle from the instruction set; memory bandwidth"
            " assumed: one DDR4-3200 channel"
        ),
    )


def this_system() -> SystemSpec:
    """Processes of this machine as the accelerators of a node: one per core, joined by its memory,
    through which each byte goes twice.

    No operating system tells what its network card reaches: ten gigabit Ethernet is assumed, and
    `confidence` says so.
    """
    cpu = this_cpu()
    link = cpu.memory_bytes_per_s / 2
    return SystemSpec(
        id="here", description=f"processes on {cpu.name}", accelerator=cpu.name,
        accelerators_per_node=_usable_cores(), intra_link="shared memory", intra_bytes_per_s=link,
        in_network_reduction=False, host_link="none", host_link_bytes_per_s=link, nic="10 GbE",
        nics_per_node=1, nic_bytes_per_s=1.25e9, node_bytes_per_s=1.25e9, latency_s=5e-5,
        source="operating system",
        confidence="assumed: one DDR4-3200 channel, 10 Gb/s Ethernet, 50 us of waking a process",
    )  # fmt: skip


def _usable_cores() -> int:
    return (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    )


def _clock_hz(cpuinfo: str) -> float:
    best = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if best.exists():
        return float(best.read_text()) * 1e3
    mhz = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpuinfo, re.M)
    # a guess only where nothing tells, corrected by calibration
    return float(mhz[0]) * 1e6 if mhz else 2e9


def _cpu_caches() -> dict[int, float]:
    """Data cache bytes by level, from Linux' sysfs; empty elsewhere."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            size = (index / "size").read_text().strip()
            scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1], 1)
            found[int((index / "level").read_text())] = float(size.rstrip("KMG")) * scale
    return found


def _memory_bytes() -> float:
    if hasattr(os, "sysconf"):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return 8e9
