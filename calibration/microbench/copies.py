"""Copies between a host and its device, either way, from memory that the operating system may move
(pageable) and from memory that it may not (pinned): from the call until the data is there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridperf_calibration.microbench.timer import Budget, Case, Timing, timing_of

# 4 KB to 1 GB
SIZES = {
    "quick": tuple(4096 * 4**k for k in range(9)),
    "full": tuple(4096 * 2**k for k in range(19)),
}
DIRECTIONS = ("to_device", "to_host")
_LEAST, _MOST = 3, 200  # repeats
_Copy = tuple[Callable[[], Any], Callable[[], Any]]  # what comes before it, and the copy itself


def copy_cases(library: str, device: str, setting: str) -> list[Case]:
    """A case for each direction, kind of memory and size that a library has; JAX pins none."""
    memories = ("pageable", "pinned") if library == "torch" and device != "cpu" else ("pageable",)
    make = _of_torch if library == "torch" else _of_jax
    return [
        _case(make, device, {"op": "copy", "direction": way, "memory": memory, "bytes": size})
        for size in SIZES[setting]
        for way in DIRECTIONS
        for memory in memories
    ]


def _case(make: Callable[..., _Copy], device: str, of: Mapping[str, Any]) -> Case:
    def timed(case: Case, budget: Budget, rng: np.random.Generator) -> Timing:
        del rng
        prepare, copy = make(device, of["direction"], of["memory"], of["bytes"])
        for _ in range(2):
            prepare()
            copy()
        calls_s: list[float] = []
        begun_s = time.perf_counter()
        while len(calls_s) < _LEAST or (
            len(calls_s) < _MOST and time.perf_counter() - begun_s < budget.cap_s
        ):
            prepare()
            start_s = time.perf_counter()
            copy()
            calls_s.append(time.perf_counter() - start_s)
        return timing_of(calls_s, statistics.median(calls_s), 1.0, case.columns)

    key = f"{of['direction']} {of['memory']} {of['bytes']}"
    return Case(key, of, timed=timed)


def _of_torch(device: str, direction: str, memory: str, size: int) -> _Copy:
    import torch

    host = torch.ones(size, dtype=torch.uint8, pin_memory=memory == "pinned")
    there = torch.ones(size, dtype=torch.uint8, device=device)
    source, to = (host, there) if direction == "to_device" else (there, host)

    def copy() -> None:
        to.copy_(source, non_blocking=memory == "pinned")
        if device != "cpu":
            torch.cuda.synchronize()

    return lambda: None, copy


def _of_jax(device: str, direction: str, memory: str, size: int) -> _Copy:
    del device, memory  # JAX has one device by default, and pageable memory of NumPy
    import jax

    host = np.ones(size, np.uint8)
    add = jax.jit(lambda x: x + np.uint8(1))
    held = [jax.block_until_ready(add(jax.device_put(host)))]

    def anew() -> None:  # an array keeps what was copied to the host of it
        held[:] = [jax.block_until_ready(add(held[0]))]

    if direction == "to_host":
        return anew, lambda: np.array(held[0])
    return lambda: None, lambda: jax.block_until_ready(jax.device_put(host))
