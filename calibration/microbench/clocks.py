"""How fast a GPU's clock is while it works hard: products and copies that go on for seconds, with
the clock, the power and the temperature that NVML tells meanwhile.

    python -m hybridperf_calibration.microbench.clocks --out DIR
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hybridperf_calibration.microbench import machine

_WATCH_S = 0.02
_QUEUED = 8  # of calls before the host waits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(prog="hybridperf_calibration.microbench.clocks")
    parser.add_argument("--out", required=True, type=Path, help="folder")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each kind of work")
    options = parser.parse_args(arguments)
    return machine.exit_status(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    import torch

    if not torch.cuda.is_available():
        raise ValueError("expected an NVIDIA GPU that PyTorch can use, found none on this machine")
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [_watched(name, call, flops, moved, options.seconds)
            for name, call, flops, moved in _works()]  # fmt: skip
    (options.out / "clocks.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print({key: one for key, one in row.items() if key != "seconds"}, file=sys.stderr)
    return 0


def _works() -> list[tuple[str, Callable[[], Any], float, float]]:
    """(name, a call, its flops, its bytes)."""
    import torch
    from torch.nn import functional

    made: list[tuple[str, Callable[[], Any], float, float]] = []
    n = 8192
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        out = torch.empty(n, n, device="cuda", dtype=dtype)
        call = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)  # noqa: E731
        name = str(dtype).removeprefix("torch.")
        made.append((f"product {name}", call, 2.0 * n**3, 3.0 * n * n * a.itemsize))
    zeros = torch.zeros(n, n, device="cuda", dtype=torch.bfloat16)
    made.append(("product bfloat16 of zeros", lambda: torch.mm(zeros, zeros), 2.0 * n**3, 0.0))
    eights = [torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2)]
    one = torch.ones((), device="cuda")

    def scaled() -> Any:
        return torch._scaled_mm(
            eights[0], eights[1].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )

    made.append(("product fp8", scaled, 2.0 * n**3, 4.0 * n * n))
    q = torch.randn(4, 16, 8192, 128, device="cuda", dtype=torch.bfloat16)
    attend = lambda: functional.scaled_dot_product_attention(q, q, q)  # noqa: E731
    made.append(("attention bfloat16", attend, 4.0 * 4 * 16 * 8192**2 * 128, 0.0))
    small = [torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    made.append(("product bfloat16 2048", lambda: torch.mm(small[0], small[1]), 2.0 * 2048**3, 0.0))
    source = torch.randn(2**29, device="cuda")
    to = torch.empty_like(source)
    made.append(("copy", lambda: to.copy_(source), 0.0, 2.0 * source.nbytes))
    return made


def _watched(
    name: str, call: Callable[[], Any], flops: float, moved: float, seconds: float
) -> dict[str, Any]:
    import pynvml
    import torch

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    seen: list[tuple[float, int, float, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_S):
            clock = pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)
            watts = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
            seen.append((time.perf_counter(), clock, watts,
                         pynvml.nvmlDeviceGetTemperature(gpu, 0)))  # fmt: skip

    call()
    torch.cuda.synchronize()
    time.sleep(0.5)  # cools, so that the first calls show the boost clock
    thread = threading.Thread(target=watch)
    thread.start()
    begun_s, times = time.perf_counter(), []
    while time.perf_counter() - begun_s < seconds:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_QUEUED + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        pairs = itertools.pairwise(events)
        times.append(statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairs))
    done.set()
    thread.join()
    half = seen[len(seen) // 2 :] or seen
    last = statistics.median(times[len(times) // 2 :])
    every = max(len(times) // 40, 1)
    return {
        "work": name, "first_s": times[0], "sustained_s": last, "flops": flops, "bytes": moved,
        "flops_per_s": flops / last, "bytes_per_s": moved / last, "seconds": times[::every],
        "sustained_clock_mhz": statistics.median(one[1] for one in half),
        "first_clock_mhz": max((one[1] for one in seen[:5]), default=0),
        "power_w": statistics.median(one[2] for one in half),
        "temperature_c": max(one[3] for one in half),
        "limit_w": pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1e3,
        "boost_clock_mhz": pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
