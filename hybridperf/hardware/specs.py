"""Published facts of devices and of systems, the numbers of a device that formulas read, formats of
numbers: their bytes, and what they are called elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hybridperf.io import InputError, shipped_toml, unknown


@functools.cache
def architectures() -> Mapping[str, Any]:
    """What is known of architectures, by vendor and by the name that drivers tell."""
    return shipped_toml(__package__, "architectures.toml")


@functools.cache
def architecture(arch: str) -> Mapping[str, Any]:
    """The same by a device's `arch`; empty of one that nobody described."""
    every = (entry for vendor in ("nvidia", "amd") for entry in architectures()[vendor].values())
    return next((entry for entry in every if entry["arch"] == arch), {})


DTYPE_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5,
    "fp16in_fp32math": 2.0, "int64": 8.0, "int32": 4.0, "int16": 2.0, "int8": 1.0, "bool": 1.0,
}  # fmt: skip
FLOAT_DTYPES = tuple(name for name in DTYPE_BYTES if not name.startswith("int") and name != "bool")
_DTYPE_ALIASES = {
    "half": "fp16", "float16": "fp16", "float32": "fp32", "float": "fp32", "float64": "fp64",
    "bfloat16": "bf16",
}  # fmt: skip
LEVELS = ("l1", "l2", "l3", "memory")
MEMORY = LEVELS.index("memory")
Unit = Literal["matrix", "vector"]  # which part of a processor an op keeps busy
# whose peak a matrix unit works at, the first that is known; others: their own, else vector units'
_MATRIX_PEAKS: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32_matrix", "fp32"),  # AMD's matrix units take single precision as it is
    "tf32": ("tf32", "fp32"),  # units without it work in fp32, as libraries do there
    # half storage, single arithmetic: matrix units take it, plain cores run at fp32
    "fp16in_fp32math": ("fp16", "fp32"),
    # no matrix unit takes them; they run on lanes next to the fp32 ones
    **dict.fromkeys(("int64", "int32", "int16", "bool"), ("fp32",)),
}


def canonical_dtype(name: str) -> str:
    """Our name of a number format (`fp32`, `bf16`, ...); `InputError` for one we don't know."""
    dtype = _DTYPE_ALIASES.get(str(name), str(name))
    if dtype not in DTYPE_BYTES:
        raise unknown(
            "dtype", name, [*DTYPE_BYTES, *_DTYPE_ALIASES], f"known are {', '.join(DTYPE_BYTES)}"
        )
    return dtype


# what a machine can have, with room for those to come: anything else is a slip of units or digits
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Capacity = Annotated[float, Field(strict=True, ge=1.0, le=1e18)]  # bytes
Rate = Annotated[float, Field(strict=True, ge=1.0, le=1e24)]  # FLOP, bytes or cycles per second
Seconds = Annotated[float, Field(strict=True, ge=1e-12, le=10.0)]
Watts = Annotated[float, Field(strict=True, ge=1e-3, le=1e6)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Device:
    """The numbers of one device that a roofline reads, for one dtype and unit. L = len(LEVELS)."""

    peak_flops_per_s: Any  # []
    memory_bytes_per_s: Any  # []
    level_bytes: Any  # [L] capacity of each level; zero where there is none, infinite for memory


class Spec(BaseModel):
    """Facts that do not change, every field of a file known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceSpec(Spec):
    """Published facts of one device."""

    id: str
    name: str
    vendor: str
    arch: str
    kind: Literal["gpu", "cpu"]  # gpu: any accelerator that a host launches work to
    year: Annotated[int, Field(strict=True, ge=1940, le=2200)] | None = None
    # by dtype; `fp16_vector`: outside the matrix unit; dense, not sparse
    peak_flops_per_s: dict[str, Rate]
    memory_bytes_per_s: Rate
    memory_bytes: Capacity
    l1_bytes: Capacity | None = None  # private data cache that serves one core; CPUs only
    l2_bytes: Capacity | None = None
    l3_bytes: Capacity | None = None
    multiprocessors: Count | None = None  # SMs, compute units or cores
    clock_hz: Rate | None = None
    # of tensor cores with sums of 32 bits, over that with sums of 16; peaks count the former
    fp32_sums_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    l1_bytes_per_multiprocessor: Capacity | None = None
    shared_memory_bytes_per_multiprocessor: Capacity | None = None
    tdp_w: Watts | None = None
    source: str
    note: str = ""

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """(major, minor) of a GPU whose architecture has one, as sm_90; else None."""
        told = re.search(r"\bsm_(\d+)(\d)\b", self.arch)
        return (int(told[1]), int(told[2])) if told else None

    @property
    def tensor_memory(self) -> bool:
        """Whether tensor cores have a memory of their own, which kernels of narrow formats and of
        whole layers of experts are written for.
        """
        return bool(architecture(self.arch).get("tensor_memory"))

    def peak(self, dtype: str, unit: Unit) -> float:
        """FLOP/s of one dtype; vector work at the fp32 rate unless `<dtype>_vector` is given."""
        dtype = canonical_dtype(dtype)
        peaks = self.peak_flops_per_s
        names = _MATRIX_PEAKS.get(dtype, (dtype, f"{dtype}_vector"))
        if unit == "vector":
            names = ("fp64",) if dtype == "fp64" else (f"{dtype}_vector", "fp32")
        elif dtype == "int8" and self.kind == "cpu":
            # without an instruction for them, bytes are widened into the vector lanes
            names = ("int8", "fp32")
        rate = next((peaks[name] for name in names if name in peaks), None)
        if rate is None:
            unknown_peak = f"device {self.id} has no known {dtype} peak ({unit} unit)"
            have = ", ".join(sorted(peaks))
            how = "choose one of these, or give it in a device file"
            raise InputError(f"{unknown_peak}, only {have}; {how}")
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


class SystemSpec(Spec):
    """Published facts of one system: a kind of node and the links inside and between nodes."""

    id: str
    description: str
    accelerator: str
    device: str | None = None  # name of a DeviceSpec, where the accelerator is a known one
    accelerators_per_node: Count
    # joined by the switches of a rack, across its trays; None: by those of a node alone
    domain_accelerators: Count | None = None
    tray_accelerators: Count | None = None  # of a domain that counts as a node (`racked`)
    intra_link: str
    intra_bytes_per_s: Rate  # per accelerator and direction
    in_network_reduction: bool
    host_link: str
    host_link_bytes_per_s: Rate
    nic: str
    nics_per_node: Count
    nic_bytes_per_s: Rate
    node_bytes_per_s: Rate
    latency_s: Seconds
    source: str
    confidence: str

    @property
    def share_bytes_per_s(self) -> float:
        """Of its node's network, each accelerator's."""
        return self.node_bytes_per_s / self.accelerators_per_node

    def racked(self, accelerators: int | None = None) -> SystemSpec:
        """The system whose nodes are domains: each with the network of all of its trays.

        Args:
            accelerators: of a domain; None: all that its switches join.

        Returns:
            The system itself where no switch joins more than a node's, or where it is one already.
        """
        here = self.accelerators_per_node
        size = accelerators or (None if self.tray_accelerators else self.domain_accelerators)
        if size in (None, here):
            return self
        return self.model_copy(update={
            "accelerators_per_node": size, "tray_accelerators": self.tray_accelerators or here,
            "nics_per_node": round(self.nics_per_node * size / here),
            "node_bytes_per_s": self.node_bytes_per_s * size / here,
        })  # fmt: skip

    def lent_to(self, device: str) -> str:
        """A remark where its links join other accelerators than its own; "" where its own."""
        if self.device in (None, device):
            return ""
        return f"links of {self.id}, whose accelerator is a {self.accelerator}, for a {device}"

    def link_bytes_per_s(self, accelerators: int) -> float:
        """What joins so many of them: the links of a node, or each one's share of its network."""
        inside = accelerators <= self.accelerators_per_node
        return self.intra_bytes_per_s if inside else self.share_bytes_per_s
