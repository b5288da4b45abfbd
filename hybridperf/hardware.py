"""What a machine is: a device (what computes), a fabric (what connects devices) and a host (what launches work).

Facts and knobs are kept apart. A `DeviceSpec` or `SystemSpec` holds facts as somebody published them, with their source; an unknown
number is absent, and asking for it is an error, never a default. A `Device` is the part of a spec that formulas read: a pytree
of float arrays in SI units, whose leaves may be replaced (a made-up machine) or carry a trailing batch axis (ten thousand of them).

Memory levels, nearest first: `LEVELS = l1, l2, l3, memory`. A level a device lacks has a capacity of zero. GPUs fill `l2` and
`memory` only.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from hybridperf.io import InputError, read_json, unknown, write_json

LEVELS = ("l1", "l2", "l3", "memory")
MEMORY = LEVELS.index("memory")

DTYPE_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5, "fp16in_fp32math": 2.0,
    "int64": 8.0, "int32": 4.0, "int16": 2.0, "int8": 1.0, "bool": 1.0,
}  # fmt: skip
FLOAT_DTYPES = tuple(name for name in DTYPE_BYTES if not name.startswith("int") and name != "bool")
_DTYPE_ALIASES = {
    "half": "fp16",
    "float16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "bfloat16": "bf16",
}

HOST_FILE = "host.json"
HOST_SCHEMA_VERSION = 1
_VENDOR_WORDS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "intel"})  # in what drivers call devices
_LEAST_SEEN = 3  # times that an overhead of one kind of op needs to speak for itself

Unit = Literal["matrix", "vector"]  # which part of a processor an op keeps busy


def canonical_dtype(name: str) -> str:
    """Our name of a number format (`fp32`, `bf16`, ...); `InputError` for one we don't know."""
    dtype = _DTYPE_ALIASES.get(str(name), str(name))
    if dtype not in DTYPE_BYTES:
        raise unknown("dtype", name, [*DTYPE_BYTES, *_DTYPE_ALIASES], f"known are {', '.join(DTYPE_BYTES)}")
    return dtype


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["peak_flops_per_s", "memory_bytes_per_s", "level_bytes"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Device:
    """The numbers of one device that a roofline reads, for one dtype and unit. L = len(LEVELS)."""

    peak_flops_per_s: Any  # []
    memory_bytes_per_s: Any  # []
    level_bytes: Any  # [L] capacity of each level; zero where there is none, infinite for memory


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceSpec(_Spec):
    """Published facts of one device."""

    id: str
    name: str
    vendor: str
    arch: str
    kind: Literal["gpu", "cpu"]
    year: int | None = None
    peak_flops_per_s: dict[str, PositiveFloat]  # by dtype; `fp16_vector`: outside the matrix unit; dense, not sparse
    memory_bytes_per_s: PositiveFloat
    memory_bytes: PositiveFloat
    l1_bytes: PositiveFloat | None = None  # private data cache that serves one core; CPUs only
    l2_bytes: PositiveFloat | None = None
    l3_bytes: PositiveFloat | None = None
    multiprocessors: PositiveInt | None = None  # SMs, compute units or cores
    clock_hz: PositiveFloat | None = None
    l1_bytes_per_multiprocessor: PositiveFloat | None = None
    shared_memory_bytes_per_multiprocessor: PositiveFloat | None = None
    tdp_w: PositiveFloat | None = None
    source: str
    note: str = ""

    def peak(self, dtype: str, unit: Unit) -> float:
        """FLOP/s of one dtype. Vector work: the fp32 rate unless the datasheet gives `<dtype>_vector`."""
        dtype = canonical_dtype(dtype)
        peaks = self.peak_flops_per_s
        if unit == "vector":
            rate = peaks.get("fp64") if dtype == "fp64" else peaks.get(f"{dtype}_vector", peaks.get("fp32"))
        elif dtype in ("fp32", "tf32"):
            rate = peaks.get(dtype)
        elif dtype == "fp16in_fp32math":  # half storage, single arithmetic: matrix units take it, plain cores run at fp32
            rate = peaks.get("fp16", peaks.get("fp32"))
        elif dtype in ("int32", "int64", "int16", "bool"):
            rate = peaks.get("fp32")  # no matrix unit takes them; they run beside the fp32 lanes
        elif dtype == "int8" and self.kind == "cpu":
            rate = peaks.get("int8", peaks.get("fp32"))  # without an instruction for them, bytes are widened into the vector lanes
        else:
            rate = peaks.get(dtype, peaks.get(f"{dtype}_vector"))
        if rate is None:
            have = ", ".join(sorted(peaks))
            raise InputError(f"device {self.id} has no known {dtype} peak ({unit} unit), only {have}; give it in a device file")
        return float(rate)

    def device(self, dtype: str = "fp32", unit: Unit = "vector") -> Device:
        """The numbers a roofline reads."""
        return Device(
            peak_flops_per_s=np.float64(self.peak(dtype, unit)),
            memory_bytes_per_s=np.float64(self.memory_bytes_per_s),
            level_bytes=self.level_bytes(),
        )

    def level_bytes(self) -> np.ndarray:
        """Capacity of each memory level [L]."""
        caches = [self.l1_bytes or 0.0, self.l2_bytes or 0.0, self.l3_bytes or 0.0]
        return np.array([*caches, np.inf])


class SystemSpec(_Spec):
    """Published facts of one system: a kind of node and the links inside and between nodes."""

    id: str
    description: str
    accelerator: str
    device: str | None = None  # name of a DeviceSpec, where the accelerator is a known one
    accelerators_per_node: PositiveInt
    intra_link: str
    intra_bytes_per_s: PositiveFloat  # per accelerator and direction
    in_network_reduction: bool
    host_link: str
    host_link_bytes_per_s: PositiveFloat
    nic: str
    nics_per_node: PositiveInt
    nic_bytes_per_s: PositiveFloat
    node_bytes_per_s: PositiveFloat
    latency_s: PositiveFloat
    source: str
    confidence: str

    @property
    def share_bytes_per_s(self) -> float:
        """Of its node's network, each accelerator's."""
        return self.node_bytes_per_s / self.accelerators_per_node

    def link_bytes_per_s(self, accelerators: int) -> float:
        """What joins so many of them: the links of a node, or each one's share of its network."""
        return self.intra_bytes_per_s if accelerators <= self.accelerators_per_node else self.share_bytes_per_s


class Spread(_Spec):
    """How long something took over several times."""

    mean_s: NonNegativeFloat
    std_s: NonNegativeFloat
    median_s: NonNegativeFloat
    count: PositiveInt


class Overhead(_Spec):
    """One overhead of a host: over all kinds of ops (or calls), and of each."""

    shared: Spread | None  # None: no such thing was seen
    by_kind: dict[str, Spread]

    def of(self, kind: str) -> Spread:
        """Of one kind of op, that of all where it was seen less than three times; `InputError` where nothing was seen at all."""
        own = self.by_kind.get(kind)
        found = own if own is not None and own.count >= _LEAST_SEEN else self.shared or own
        if found is None:
            raise InputError(f"expected a host that has shown this overhead, got one that never did (asked for {kind}); fit more traces")
        return found


class Host(_Spec):
    """What issuing work costs a host, in the symbols of Lin et al. T1, T2, T3, T4, T5; `traces/overheads.py` fits it."""

    source: str
    profiler_s: NonNegativeFloat  # what each record cost the run that was traced: taken off already
    between_ops_s: Spread | None  # T1: from the end of an outermost op to the next on its thread; None: no two ops came close
    before_launch_s: Overhead  # T2, by op: from its start to its first launch
    after_launch_s: Overhead  # T3, by op: from the end of its last launch to its end
    launch_call_s: Overhead  # T4, by call
    between_launches_s: Overhead  # T5, by op: from the end of a launch to the next of the op
    without_launch_s: Overhead  # by op: all of it, of ops that launch nothing (also T5)

    def seconds(self, overhead: str, names: Sequence[str]) -> float:
        """Of one of the overheads, by the first of an op's names that it was seen under; `InputError` where it was never seen at all."""
        found: Overhead = getattr(self, overhead)
        known = next((name for name in names if name in found.by_kind), names[0])
        try:
            return found.of(known).mean_s
        except InputError as error:
            if overhead == "between_launches_s":  # a host on which no op launches twice has nothing between two launches
                return 0.0
            raise InputError(f"{overhead} of host {self.source}: {error}") from error

    def save(self, folder: str | os.PathLike) -> None:
        """Write `host.json` into a model folder."""
        write_json(Path(folder) / HOST_FILE, "host", HOST_SCHEMA_VERSION, self.model_dump())


def load_host(folder: str | os.PathLike) -> Host:
    """The host of a model folder; `InputError` where it has none, or a damaged one."""
    path = Path(folder) / HOST_FILE
    content = read_json(path, "host", HOST_SCHEMA_VERSION)
    try:
        return Host(**{name: said for name, said in content.items() if name not in ("schema", "schema_version")})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path} is damaged ({'.'.join(map(str, first['loc']))}: {first['msg']}); fit the host again") from error


def device_names() -> list[str]:
    """Names of the devices we ship facts of."""
    return list(_presets("devices"))


def names_people_use(which: str) -> list[str]:
    """Names and other names of the devices or systems we ship facts of: what a misspelt one is compared with."""
    return [*_presets(which), *_aliases()[which]]


def other_names(which: str, name: str) -> list[str]:
    """Other names of a device or a system we ship facts of."""
    return sorted(alias for alias, one in _aliases()[which].items() if one == name)


def system_names() -> list[str]:
    """Names of the systems we ship facts of."""
    return list(_presets("systems"))


def device_called(driver_name: str) -> str:
    """Name of the device that a driver calls so ("Tesla V100-SXM2-32GB": `v100_sxm2_32g`), "" for none that we ship facts of.

    Either an alias says so, or each part of the device's name is a word of the driver's. A part of a device (MIG) is none.
    """
    words = [word for word in _plain(driver_name).split("_") if word not in _VENDOR_WORDS]
    if "mig" in words:
        return ""
    bare, aliases = "_".join(words), _aliases()["devices"]
    if bare in aliases:
        return aliases[bare]
    sizes = {re.sub(r"^(\d+)gi?b$", r"\1g", word) for word in words}
    return max((name for name in device_names() if sizes.issuperset(name.split("_"))), key=len, default="")


def load_device(name: str | os.PathLike) -> DeviceSpec:
    """A device by name or alias, `here` for this machine's CPU, or by the path of a .toml file in the presets' format."""
    if str(name) == "here":
        return this_cpu()
    return _load(name, "devices", DeviceSpec, "device", "`hybridperf devices` lists them, a .toml file describes another")


def load_system(name: str | os.PathLike) -> SystemSpec:
    """A system (fabric) by name or alias, `here` for processes of this machine, or by the path of a .toml file in the presets' format."""
    if str(name) == "here":
        return this_system()
    return _load(name, "systems", SystemSpec, "system", "`hybridperf systems` lists them, a .toml file describes another")


# FLOP per core and cycle in fp32: vector width in floats x 2 (multiply and add) x 2 units. Server cores since Skylake-SP and Zen 2
# issue two such instructions a cycle; a core with one unit reaches half, which calibration then finds.
_FLOPS_PER_CYCLE = (("avx512f", 64), ("fma", 32), ("avx", 16), ("asimd", 16), ("sse2", 8))
_ONE_DDR4_3200_CHANNEL_BYTES_PER_S = 25.6e9  # 3200 MT/s x 8 bytes


def device_of(system: SystemSpec, named: str | None = None) -> str:
    """Name of the accelerator that is asked for, else of the system's own; `InputError` where that is no known device."""
    if not (found := named or system.device):
        raise InputError(
            f"expected a system whose accelerators are a known device, got {system.id} of {system.accelerator}; name it by --device"
        )
    return found


def this_cpu(cores: int | None = None) -> DeviceSpec:
    """This machine's CPU as the operating system describes it, for as many cores as this process may use (or `cores`).

    Peak = cores x clock x the widest vector unit. No operating system tells the memory bandwidth: one DDR4-3200 channel is assumed,
    and `note` says so.
    """
    cores = cores or _usable_cores()
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.M)[:1]).split())
    model = (re.findall(r"^model name\s*:\s*(.*)$", text, re.M) or [platform.processor() or platform.machine()])[0].strip()
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
        note=f"{per_cycle} fp32 FLOP per core and cycle from the instruction set; memory bandwidth assumed: one DDR4-3200 channel",
    )


@functools.cache
def _presets(which: str) -> dict[str, dict[str, Any]]:
    text = resources.files("hybridperf").joinpath("presets", f"{which}.toml").read_text()
    return {name: entry for name, entry in tomllib.loads(text).items() if isinstance(entry, dict)}


@functools.cache
def _aliases() -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files("hybridperf").joinpath("presets", "aliases.toml").read_text())


def device_id(name: str | os.PathLike) -> str | None:
    """The id of a device that is known by this name or alias; None for any other name."""
    return _known_id(str(name), "devices")


@functools.lru_cache(4096)
def _known_id(text: str, which: str) -> str | None:
    presets, plain = _presets(which), _plain(text)
    if text in presets:
        return text
    return _aliases()[which].get(plain) or next((name for name in presets if _plain(name) == plain), None)


def _load(name: str | os.PathLike, which: str, spec: type, what: str, where: str) -> Any:
    text = str(name)
    if text.endswith(".toml"):
        return _load_file(Path(text), spec, what)
    key = _known_id(text, which)
    if key is None:
        raise unknown(what, text, names_people_use(which), where)
    return _shipped(key, which, spec)


@functools.cache
def _shipped(key: str, which: str, spec: type) -> Any:
    """A spec that we ship, made once: rows of a table ask for theirs thousands of times."""
    return spec(id=key, **_presets(which)[key])


def _load_file(path: Path, spec: type, what: str) -> Any:
    try:
        entries = {name: entry for name, entry in tomllib.loads(path.read_text()).items() if isinstance(entry, dict)}
    except FileNotFoundError as error:
        raise InputError(f"expected a {what} file at {path}, found none; check the path") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML ({error}); see hybridperf/presets/{what}s.toml for the format") from error
    if len(entries) != 1:
        raise InputError(f"expected one [{what}] section in {path}, found {len(entries)}; split the file")
    ((name, entry),) = entries.items()
    try:
        return spec(**{**entry, "id": name})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {field}: {first['msg']}; see hybridperf/presets/{what}s.toml for the format") from error


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def this_system() -> SystemSpec:
    """Processes of this machine as the accelerators of a node: one per core, joined by its memory, through which each byte goes twice.

    No operating system tells what its network card reaches: ten gigabit Ethernet is assumed, and `confidence` says so.
    """
    cpu = this_cpu()
    link = cpu.memory_bytes_per_s / 2
    return SystemSpec(
        id="here", description=f"processes on {cpu.name}", accelerator=cpu.name, accelerators_per_node=_usable_cores(),
        intra_link="shared memory", intra_bytes_per_s=link, in_network_reduction=False, host_link="none", host_link_bytes_per_s=link,
        nic="10 GbE", nics_per_node=1, nic_bytes_per_s=1.25e9, node_bytes_per_s=1.25e9, latency_s=5e-5, source="operating system",
        confidence="assumed: one DDR4-3200 channel, 10 Gb/s Ethernet, 50 us of waking a process",
    )  # fmt: skip


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _clock_hz(cpuinfo: str) -> float:
    best = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if best.exists():
        return float(best.read_text()) * 1e3
    mhz = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpuinfo, re.M)
    return float(mhz[0]) * 1e6 if mhz else 2e9  # a guess only where nothing tells, corrected by calibration


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
