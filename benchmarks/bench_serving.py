"""Operating points of servers a second: `python benchmarks/bench_serving.py`.

The law of `serving/engine_load.py` on one engine (Llama 3 8B on an H100) at 100,000 random
loads, compiled, as NumPy runs it, and with the gradient of all requests a second by the engine's
seconds; then `serve` on a table of random deployments, whose rows have all to be understood. The
best of several passes counts; pin it to cores by `taskset`. Last, seconds of the processor of
100,000 sessions of 12 turns (800 new tokens, 200 of an answer, in the mean) on 32 engines with
caches in the GPU, in 125 GB of the host's memory and in 1 TB of a drive each, by each routing:
`bench_serving.py sessions [SESSIONS]` runs these alone.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
import pandas as pd

from hybridperf.cli.common import compilation_cache
from hybridperf.model.serving_effects import believed
from hybridperf.serving.batching import ROUTINGS, serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.engine_load import under_load
from hybridperf.serving.machines import machine_of
from hybridperf.serving.prefix_cache import Tier
from hybridperf.serving.sessions import ServedSessions, drawn_sessions, requests_of
from hybridperf.serving.table import predict_serving
from hybridperf.workloads.serving import Deployment, prompt_launches, step_times
from hybridperf.workloads.serving.deployment import serving_memory
from hybridperf.workloads.transformer.zoo import load_shape

POINTS, ROWS, PASSES, GOAL = 100_000, 5_000, 5, 100_000
SESSIONS, ENGINES, GOAL_S = 100_000, 32, 60.0
TURNS = {
    "turns": "12", "new_tokens": "800~0.6", "output_tokens": "200~0.5", "pause_s": "5~1",
    "shared_tokens": "2000", "rate": "20",
}  # fmt: skip


def main() -> None:
    """Print all rates."""
    machine, rng = machine_of("h100_sxm"), np.random.default_rng(0)
    times = step_times(machine.load(), [Deployment(load_shape("llama3-8b"))], machine.all_reduce)[0]
    engine = Engine(times)
    loads = [rng.uniform(*ends, POINTS) for ends in ((1, 256), (100, 4000), (50, 1000))]

    @jax.jit
    def compiled(slower: float, *sizes: np.ndarray) -> jax.Array:
        own = dataclasses.replace(times, decode_s=times.decode_s * slower)
        return under_load(dataclasses.replace(engine, times=own), *sizes).rate

    slope = jax.jit(jax.grad(lambda slower, *sizes: compiled(slower, *sizes).sum()))
    cores = f"{len(os.sched_getaffinity(0))} cores"
    rate = POINTS / least_s(lambda: compiled(1.0, *loads).block_until_ready())
    print(f"{cores}, {POINTS:,} operating points, compiled: {rate:,.0f}/s (>= {GOAL:,})")
    rate = POINTS / least_s(lambda: slope(1.0, *loads).block_until_ready())
    print(f"{cores}, their gradient by the attention's seconds: {rate:,.0f}/s")
    rate = POINTS / least_s(lambda: under_load(engine, *loads))
    print(f"{cores}, NumPy: {rate:,.0f}/s")
    rows = asked(ROWS, rng)
    rate = ROWS / least_s(lambda: predict_serving(rows))
    print(f"{cores}, `serve` on {ROWS:,} rows, all different: {rate:,.0f}/s")


def asked(number: int, rng: np.random.Generator) -> pd.DataFrame:
    """Random deployments of an 8B model, all understood."""
    return pd.DataFrame(
        {
            "model_path": "meta-llama/Llama-3.1-8B", "system": "h100_sxm",
            "backend": rng.choice(["vllm", "sglang"], number),
            "precision": rng.choice(["fp8", "bf16"], number),
            "tp_size": rng.choice([1, 2, 4], number), "isl": rng.integers(100, 4000, number),
            "osl": rng.integers(50, 1000, number), "concurrency": rng.integers(1, 200, number),
        }
    )  # fmt: skip


def sessions_served(count: int) -> None:
    """Print seconds of the processor by routing, and what sessions saw."""
    machine = machine_of("h100_sxm")
    made = Deployment(load_shape("llama3-8b"), quant="fp8", framework="vllm")
    alone = step_times(machine.load(), [made], machine.all_reduce)[0]
    times = alone.as_run(believed("vllm"), prompt_launches(made, machine.spec))
    memory = serving_memory(made)
    held = memory.cached_tokens(machine.spec.memory_bytes or np.inf)
    engines = [Engine(times, 256, 8192, held)] * ENGINES
    lower = (("host", 125e9, 64e9), ("nvme", 1e12, 6e9))
    tiers = [Tier(name, size / memory.token, rate / memory.token) for name, size, rate in lower]
    for routing in ROUTINGS:
        began = time.process_time()
        sessions = requests_of(*drawn_sessions(TURNS | {"count": str(count)}))
        served = serve(sessions.requests, engines, routing=routing, tiers=tiers)
        took_s = time.process_time() - began
        found = ServedSessions(sessions, served, ENGINES)
        hits = ", ".join(f"{name} {share:.1%}" for name, share in served.hits().items())
        print(
            f"one core, {count:,} sessions on {ENGINES} engines, {routing}: {took_s:.1f} s (<="
            f" {GOAL_S * count / SESSIONS:g}); {hits}; {found.tasks_per_gpu_hour():.0f} tasks per"
            " GPU hour",
            flush=True,
        )


def least_s(run: Callable[[], object]) -> float:
    """Seconds of the quickest pass, none of which compiles."""
    run()
    found = []
    for _ in range(PASSES):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


if __name__ == "__main__":
    compilation_cache()
    if sys.argv[1:2] != ["sessions"]:
        main()
    sessions_served(int(sys.argv[2]) if len(sys.argv) > 2 else SESSIONS)
