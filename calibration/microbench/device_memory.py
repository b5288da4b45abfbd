"""What a device's memory is before a program has any of it: bytes in all, bytes that a context of
the library takes, how allocations are rounded up, and what a copy inside it moves in a second.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from hybridperf_calibration.microbench import accelerator

_COPIED_BYTES = 2**28
_COPIES = 10
_SMALL, _LARGE = 1, 2**21  # bytes asked for, on either side of where PyTorch's allocator changes


def memory_rows(seen: accelerator.Facts) -> list[dict[str, Any]]:
    """Rows `what, value` (bytes, of `copy` bytes/s); for a process that has computed nothing."""
    found: dict[str, float] = {}
    if seen["library"] == "torch":
        found = _of_torch(seen["kind"])
    if "memory_bytes" in seen:
        found.setdefault("total", float(seen["memory_bytes"]))
    found["copy"] = _copy_bytes_per_s(seen["library"], seen["kind"])
    return [{"what": what, "value": value} for what, value in found.items()]


def _of_torch(kind: str) -> dict[str, float]:
    import torch

    if kind == "cpu":
        return {}
    one = torch.ones(8, 8, device="cuda")
    torch.cuda.synchronize()
    (one @ one).sum().item()  # cuBLAS is a part of what every program has
    free, total = torch.cuda.mem_get_info()
    found = {
        "total": float(total), "context": float(total - free - torch.cuda.memory_reserved()),
    }  # fmt: skip
    for name, asked in (("small", _SMALL), ("large", _LARGE)):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        kept = torch.empty(asked, dtype=torch.uint8, device="cuda")
        found[f"{name}_block"] = float(torch.cuda.memory_allocated() - before[0])
        found[f"{name}_segment"] = float(torch.cuda.memory_reserved() - before[1])
        del kept
    return found


def _copy_bytes_per_s(library: str, kind: str) -> float:
    """Read and written together."""
    if library == "torch":
        import torch

        device = "cpu" if kind == "cpu" else "cuda"
        source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device)
        to = torch.empty_like(source)

        def copy() -> None:
            to.copy_(source)
            if device == "cuda":
                torch.cuda.synchronize()
    else:
        import jax
        import jax.numpy as jnp

        made = jnp.ones(_COPIED_BYTES // 4, jnp.float32)
        add = jax.jit(lambda x: x + 1.0)

        def copy() -> None:
            jax.block_until_ready(add(made))

    copy()
    times_s = []
    for _ in range(_COPIES):
        start_s = time.perf_counter()
        copy()
        times_s.append(time.perf_counter() - start_s)
    return 2.0 * _COPIED_BYTES / statistics.median(times_s)
