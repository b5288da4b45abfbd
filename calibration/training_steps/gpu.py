"""Whole steps of PyTorch and of JAX on this machine's GPU: their times, their kernels, their
memory.

    python -m hybridperf_calibration.training_steps.gpu --library torch --out DIR --steps MODULE
    python -m hybridperf_calibration.training_steps.gpu --library jax --out DIR --steps MODULE

The module has steps by name: `TORCH` (and `COMPILED`, names for torch.compile) as
`benchmarks.claims.gpu_steps`, or `JAX` and `donated` as `benchmarks.claims.gpu_jax_steps`.
A line of JSON for each step goes to `DIR/LIBRARY_steps.jsonl` as soon as it was measured; steps
that the file has are passed over, so a stopped run goes on. A step that fails leaves its error.

Of a step: `step_s` (median of rounds of steps that follow each other, waited for at a round's end),
`host_s` (until Python has issued a step, of a GPU that waits meanwhile), `busy_s` (union of its
kernels), `kernels` (name, seconds, count), `peak_bytes`, `before_bytes` (parameters and the like).
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hybridperf_calibration.microbench import machine

_ROUND_S = 0.25
_ROUNDS = 3
_NAME = 110  # letters of a kernel's name
_KERNELS = 400  # of a step, by seconds
_WAIT_CYCLES = 500_000_000  # a quarter of a second, in which the host is ahead

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; see the module docstring."""
    parser = argparse.ArgumentParser(prog="hybridperf_calibration.training_steps.gpu")
    parser.add_argument("--library", required=True, choices=["torch", "jax"])
    parser.add_argument("--out", required=True, type=Path, help="folder")
    parser.add_argument("--steps", required=True, help="module that has them")
    parser.add_argument("--only", default="", help="steps, separated by commas")
    parser.add_argument("--compiled", action="store_true", help="by torch.compile")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    options = parser.parse_args(arguments)
    return machine.exit_status(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    options.out.mkdir(parents=True, exist_ok=True)
    only = [one for one in options.only.split(",") if one]
    path = options.out / f"{options.library}_steps.jsonl"
    known = set()
    if path.exists():
        known = {(one["step"], one["mode"]) for one in map(json.loads, path.open(encoding="utf-8"))}
    steps = _torch_steps if options.library == "torch" else _jax_steps
    begun_s = time.perf_counter()
    complete = True
    module = _module(options.steps, options.library)
    for name, mode, run in steps(module, only, options.compiled):
        if (name, mode) in known:
            continue
        if time.perf_counter() - begun_s > options.budget_s:
            complete = False
            break
        named = {"step": name, "mode": mode}
        try:
            row = named | run()
        except Exception as error:  # out of memory, an op unknown there: the others can run
            row = named | {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        told = {key: one for key, one in row.items() if key not in ("kernels", "program")}
        print(f"hybridperf: {time.perf_counter() - begun_s:.0f} s {told}", file=sys.stderr)
        gc.collect()
    return 0 if complete else 4


def _module(name: str, library: str) -> Any:
    """The module of steps; `ValueError` where there is none, or no GPU to run them on."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"expected a module of steps in --steps, got {name}: {error}") from error
    if not hasattr(module, library.upper()):
        raise ValueError(f"expected {library.upper()} in {name}, the steps by name; it has none")
    if library == "torch":
        import torch

        found = torch.cuda.is_available()
    else:
        import jax

        found = jax.default_backend() == "gpu"
    if not found:
        raise ValueError(f"expected a GPU that {library} can use, found none on this machine")
    return module


def _rounds(step: Callable[[], Any], wait: Callable[[], Any]) -> list[float]:
    """Seconds of a step, by round."""
    for _ in range(2):
        step()
    wait()
    start_s = time.perf_counter()
    step()
    wait()
    count = max(int(_ROUND_S / (time.perf_counter() - start_s)), 2)
    seconds = []
    for _ in range(_ROUNDS):
        start_s = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        seconds.append((time.perf_counter() - start_s) / count)
    return seconds


def _torch_steps(
    module: Any, only: Sequence[str], compiled: bool
) -> Iterator[tuple[str, str, Callable[[], Row]]]:
    mode = "compiled" if compiled else "eager"
    for name in only or (module.COMPILED if compiled else module.TORCH):
        yield name, mode, functools.partial(_torch_row, module.TORCH[name], compiled)


def _torch_row(make: Callable[[], Any], compiled: bool) -> Row:
    import torch

    from hybridperf.workloads.programs.torch.capture import run_step

    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    start_s = time.perf_counter()
    held = torch.cuda.memory_allocated()
    with torch.device("cuda"):
        fn, args, *given = make()
    optimizer = (*given, None)[0]
    called = torch.compile(fn) if compiled else fn
    step = lambda: run_step(called, args, optimizer, optimizer is not None)  # noqa: E731
    step()
    step()
    torch.cuda.synchronize()
    first_s = time.perf_counter() - start_s
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - held
    seconds = _rounds(step, torch.cuda.synchronize)
    peak = torch.cuda.max_memory_allocated() - held
    torch.cuda._sleep(_WAIT_CYCLES)
    start_s = time.perf_counter()
    step()
    host_s = time.perf_counter() - start_s
    torch.cuda.synchronize()
    kernels, busy_s, span_s = _torch_kernels(step)
    return {
        "step_s": statistics.median(seconds), "rounds_s": seconds, "host_s": host_s,
        "busy_s": busy_s, "profiled_s": span_s, "peak_bytes": peak, "before_bytes": before,
        "reserved_bytes": torch.cuda.max_memory_reserved(), "first_s": first_s,
        "kernels": kernels,
    }  # fmt: skip


def _torch_kernels(step: Callable[[], Any]) -> tuple[list[tuple[str, float, int]], float, float]:
    """(kernels of a step, seconds in which any runs, from the first's begin to the last's end)."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    spans: list[tuple[float, float]] = []
    of: Any = collections.defaultdict(lambda: [0.0, 0])
    for one in seen.events() or ():
        if "CUDA" not in str(one.device_type):
            continue
        spans.append((one.time_range.start, one.time_range.end))
        of[one.name[:_NAME]][0] += one.time_range.elapsed_us() / 1e6
        of[one.name[:_NAME]][1] += 1
    return _most(of), *_union(spans, 1e-6)


def _most(of: Any) -> list[tuple[str, float, int]]:
    rows = sorted(((name, s, n) for name, (s, n) in of.items()), key=lambda one: -one[1])
    return rows[:_KERNELS]


def _union(spans: list[tuple[float, float]], unit_s: float) -> tuple[float, float]:
    busy, last = 0.0, float("-inf")
    for start, end in sorted(spans):
        busy += max(end - max(start, last), 0.0)
        last = max(last, end)
    return busy * unit_s, (last - min(one for one, _ in spans)) * unit_s if spans else 0.0


def _jax_steps(
    module: Any, only: Sequence[str], compiled: bool
) -> Iterator[tuple[str, str, Callable[[], Row]]]:
    del compiled  # all are
    for name in only or module.JAX:
        yield name, "jit", functools.partial(_jax_row, module.JAX[name], module.donated)


def _jax_row(make: Callable[[], Any], donated_of: Callable[[Any], tuple[int, ...]]) -> Row:
    import jax

    fn, shapes, below = make()
    donated = donated_of(shapes)
    start_s = time.perf_counter()
    compiled = jax.jit(fn, donate_argnums=donated).lower(*shapes).compile()
    compile_s = time.perf_counter() - start_s
    memory: Any = compiled.memory_analysis()
    args = list(_filled(shapes, below))
    last: list[Any] = []

    def step() -> None:
        results = compiled(*args)
        if donated:
            args[0], args[1] = results[0], results[1]
        last[:] = [results]

    wait = lambda: jax.block_until_ready(last[0])  # noqa: E731
    seconds = _rounds(step, wait)
    text = compiled.as_text() or ""
    row = {
        "step_s": statistics.median(seconds), "rounds_s": seconds, "compile_s": compile_s,
        "temporary_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "result_bytes": memory.output_size_in_bytes, "alias_bytes": memory.alias_size_in_bytes,
        "program": text,
    }  # fmt: skip
    try:
        row |= _jax_kernels(step, wait)
    except Exception as error:
        row["profile_error"] = repr(error)[:300]
    return row


def _filled(shapes: Any, below: int) -> Any:
    """Arguments: small numbers, whole ones anywhere below."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)

    def one(at: int, shape: Any) -> Any:
        own = jax.random.fold_in(key, at)
        if jnp.issubdtype(shape.dtype, jnp.integer):
            small = shape.shape == ()
            return jax.random.randint(own, shape.shape, 0, 1 if small else below, shape.dtype)
        return 0.02 * jnp.abs(jax.random.normal(own, shape.shape, shape.dtype))

    leaves, tree = jax.tree.flatten(shapes)
    return jax.tree.unflatten(tree, [one(at, shape) for at, shape in enumerate(leaves)])


def _jax_kernels(step: Callable[[], Any], wait: Callable[[], Any]) -> Row:
    import tempfile

    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            step()
            wait()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        traces = [jax.profiler.ProfileData.from_file(str(path)) for path in files]
    spans: list[tuple[float, float]] = []
    of: Any = collections.defaultdict(lambda: [0.0, 0])
    for trace in traces:
        for plane in trace.planes:
            if "GPU" not in plane.name:
                continue
            for line in plane.lines:
                if "Stream" not in line.name:
                    continue
                for event in line.events:
                    facts = dict(event.stats)
                    name = f"{facts.get('hlo_op', '')} | {event.name}"[:_NAME]
                    spans.append((event.start_ns, event.start_ns + event.duration_ns))
                    of[name][0] += event.duration_ns / 1e9
                    of[name][1] += 1
    busy_s, span_s = _union(spans, 1e-9)
    return {"kernels": _most(of), "busy_s": busy_s, "profiled_s": span_s}


if __name__ == "__main__":
    sys.exit(main())
