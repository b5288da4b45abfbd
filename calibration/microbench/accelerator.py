"""The accelerator under measurement, as its library and its driver tell of it.

    python -m hybridperf_calibration.microbench.accelerator --library torch

prints the facts as JSON; in a process of its own, since JAX takes most of a GPU at once.
`kind` is what the library works on: cuda, rocm (PyTorch's ROCm is `torch.cuda` too), tpu, or cpu
where it sees nothing else. What a GPU's driver does not tell is left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hybridperf_calibration.microbench import machine

KINDS = ("cpu", "cuda", "rocm", "tpu")
# CUdevice_attribute of the CUDA Driver API: name here, its number there, what it is multiplied by
_ATTRIBUTES = (
    ("multiprocessors", 16, 1), ("clock_hz", 13, 1000), ("memory_clock_hz", 36, 1000),
    ("bus_bits", 37, 1), ("l2_bytes", 38, 1), ("shared_memory_bytes_per_multiprocessor", 81, 1),
)  # fmt: skip
_CAPABILITY = (75, 76)  # major, minor
Facts = dict[str, Any]


def hide(library: str, kind: str) -> None:
    """Before any library is imported: a CPU is measured as if there were nothing else; beside
    PyTorch JAX is only asked what an op is, and would take three quarters of a GPU for that.
    """
    if kind == "cpu":
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            os.environ[name] = "-1"
    if kind == "cpu" or library == "torch":
        os.environ["JAX_PLATFORMS"] = "cpu"


def facts(library: str) -> Facts:
    """What a library works on: `library, version, kind, count, name`, and for a GPU whatever
    `hybridperf.hardware.this_gpu` takes, and `topology` where there are several.
    """
    found = _of_torch() if library == "torch" else _of_jax()
    if found["kind"] == "cuda":
        found |= _of_driver()
        found["topology"] = _topology() if found["count"] > 1 else ""
    return {"library": library, **found}


def _of_torch() -> Facts:
    import torch

    found: Facts = {"version": torch.__version__, "kind": "cpu", "count": 1}
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "finds no GPU" if built else "is built for CPUs alone"
        return found | {"name": machine.cpu_model(), "why": why}
    of = torch.cuda.get_device_properties(0)
    rocm = torch.version.hip is not None
    told = {
        "multiprocessors": (of, "multi_processor_count", 1),
        "memory_bytes": (of, "total_memory", 1), "clock_hz": (of, "clock_rate", 1000),
        "memory_clock_hz": (of, "memory_clock_rate", 1000), "bus_bits": (of, "memory_bus_width", 1),
        "l2_bytes": (of, "L2_cache_size", 1),
        "shared_memory_bytes_per_multiprocessor": (of, "shared_memory_per_multiprocessor", 1),
    }  # fmt: skip
    return found | {
        "kind": "rocm" if rocm else "cuda", "vendor": "amd" if rocm else "nvidia",
        "count": torch.cuda.device_count(), "name": of.name,
        # "gfx942:sramecc+:xnack-"
        "architecture": of.gcnArchName.split(":")[0] if rocm else f"{of.major}.{of.minor}",
        **{name: scale * value for name, (one, field, scale) in told.items()
           if (value := getattr(one, field, None))},
    }  # fmt: skip


def _of_jax() -> Facts:
    import jax

    first = jax.devices()[0]
    found: Facts = {
        "version": jax.__version__, "kind": first.platform, "count": jax.local_device_count(),
        "name": first.device_kind,
    }  # fmt: skip
    if first.platform == "cpu":
        return found | {"name": machine.cpu_model(), "why": "sees the CPU alone"}
    limit = (first.memory_stats() or {}).get("bytes_limit")
    found |= {"memory_bytes": limit} if limit else {}
    if first.platform == "gpu":
        rocm = "rocm" in first.client.platform_version.lower()
        capability = str(getattr(first, "compute_capability", ""))
        found |= {
            "kind": "rocm" if rocm else "cuda", "vendor": "amd" if rocm else "nvidia",
            "architecture": capability, "multiprocessors": getattr(first, "core_count", None),
        }  # fmt: skip
    return found


def _of_driver() -> Facts:
    """Of the first GPU by NVIDIA's driver, whatever the library; {} where it does not answer."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return {}
    gpu, value, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(gpu), 0):
        return {}

    def told(number: int) -> int:
        failed = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, gpu)
        return 0 if failed else value.value

    found: Facts = {name: scale * told(number) for name, number, scale in _ATTRIBUTES}
    major, minor = map(told, _CAPABILITY)
    found["architecture"] = f"{major}.{minor}" if major else None
    if not cuda.cuDeviceTotalMem_v2(ctypes.byref(size), gpu):
        found["memory_bytes"] = size.value
    return {name: one for name, one in found.items() if one}


def _topology() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    asked = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True)
    return asked.stdout if asked.returncode == 0 else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the facts; see the module docstring."""
    parser = argparse.ArgumentParser(prog="hybridperf_calibration.microbench.accelerator")
    parser.add_argument("--library", required=True, choices=["torch", "jax"])
    options = parser.parse_args(arguments)
    if options.library == "torch":
        hide("torch", "")

    def say() -> int:
        print(json.dumps(facts(options.library)))
        return 0

    return machine.exit_status(say)


if __name__ == "__main__":
    sys.exit(main())
