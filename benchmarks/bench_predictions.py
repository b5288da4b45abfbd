"""Whole predictions per second, run by hand: python benchmarks/bench_predictions.py [--cores 2]

A batch of platforms goes through `BatchPredictor`: knobs, durations of unique ops with their
learned corrections, evaluation, seconds. One core is one device of JAX; with two each takes half of
the batch. Times are the least of several turns: of the processor on one core, where what others do
meanwhile adds nothing, of the clock on two, which wants a quiet machine. `plain` is the same with
folding of identical layers switched off; `pricing` is the durations alone, once for the whole
batch; all three hold what was learned of each op as on today's machine. Then the same step with
corrections that move with the machine, with and without its interval, and `hp.step_function`: its
slopes over its value, one configuration at a time and under `jax.vmap`.
"""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.engine import batches, folding
from hybridperf.engine.batches import BatchPredictor
from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.step_function import step_function
from hybridperf.engine.workload import Workload
from hybridperf.model import GROUP_KNOBS, PerfModel, canonical, load_model
from hybridperf.ops import Copy, Elementwise, Gemm, OpCall

MODEL = "h100_sxm"
NODES = 1_000
BAR_PER_S = 100_000  # predictions of a step of 1,000 nodes a second on two cores
OPS = 20  # of a layer, on the compute stream; every fifth is followed by a copy on another


def workload(nodes: int, *, alike: bool = True) -> Workload:
    """Layers of matrix products and loops, whose results are copied meanwhile; unless `alike`,
    every layer's shapes are its own.
    """
    rng = np.random.default_rng(0)
    calls: list[OpCall] = [OpCall(Elementwise("fp32", rows=1.0, cols=256.0))]  # what a launch costs
    builder = GraphBuilder()
    rows: list[int] = []
    for layer in range(round(nodes / (OPS * 6 // 5))):
        if not layer or (not alike and layer < 10):
            rows = list(range(len(calls) + 1, len(calls) + 1 + OPS * 6 // 5))
            for _ in range(OPS // 5):
                size = float(rng.integers(512, 8192))
                calls += [OpCall(Gemm("bf16", m=size, n=1024.0, k=1024.0)) for _ in range(2)]
                calls += [OpCall(Elementwise("bf16", rows=size, cols=1024.0)) for _ in range(3)]
                calls += [OpCall(Copy("bf16", rows=size, cols=1024.0))]
        copied: list[int] = []
        last = 0
        for at, row in enumerate(rows if alike else rng.permutation(rows).tolist()):
            if at % 6 == 5:
                copied.append(builder.op(row, stream="copies", after=[last], launch_row=1))
            else:
                last = builder.op(row, after=copied[-2:-1], launch_row=1)
    return Workload("layers", builder.build(), tuple(calls))


def measured_alone(step: Workload) -> Workload:
    """Copies as loops: nobody measured copies on this machine, and such a step has no interval."""
    calls = [
        dataclasses.replace(call, op=Elementwise(op.dtype, rows=op.rows, cols=op.cols))
        if isinstance(op := call.op, Copy)
        else call
        for call in step.calls
    ]
    return dataclasses.replace(step, calls=tuple(calls))


def knobs(batch: int, *, all_knobs: bool) -> dict[str, np.ndarray]:
    """Bandwidth and rate, or every knob there is."""
    out = {
        "memory_bytes_per_s": np.geomspace(1e12, 8e12, batch),
        "peak_flops_scale": np.linspace(0.5, 2, batch),
    }
    return out | {name: np.linspace(0.8, 1.25, batch) for name in GROUP_KNOBS} if all_knobs else out


def least_s(
    calls: list[Callable[[], object]], turns: int, clock: Callable[[], float]
) -> list[float]:
    """Least seconds of each call over interleaved turns."""
    least = [np.inf] * len(calls)
    for _ in range(turns):
        for number, call in enumerate(calls):
            start_s = clock()
            call()
            least[number] = min(least[number], clock() - start_s)
    return least


def compare_corrections(
    model: PerfModel, step: Workload, turns: int, clock: Callable[[], float], cores: int
) -> None:
    """Corrections that move with the machine next to held ones, with and without intervals."""
    batch = 10_000
    values = knobs(batch, all_knobs=False)
    kinds = [(hold, interval) for hold in (False, True) for interval in (False, True)]
    predictors = [
        BatchPredictor(model, step, hold_corrections=hold, interval=interval)
        for hold, interval in kinds
    ]
    calls = [lambda one=one: one(**values) for one in predictors]
    for call in calls:
        call()
    taken_s = least_s(calls, turns, clock)
    for (hold, interval), each_s in zip(kinds, taken_s, strict=True):
        rate = batch / each_s
        bar = "" if hold or cores == 1 else f" (>= {BAR_PER_S:,})"
        missed = ", MISSED" if bar and rate < BAR_PER_S else ""
        print(
            f"{cores} core{'s' * (cores > 1)}, {len(step.graph):,} nodes of {len(step.calls)} ops,"
            f" corrections {'held' if hold else 'alive'}{', with interval' * interval}:"
            f" {rate:9,.0f}/s{bar}{missed}, {each_s / taken_s[2 + interval]:.1f} times held",
            flush=True,
        )


def compare_slopes(
    model: PerfModel, step: Workload, turns: int, clock: Callable[[], float], cores: int
) -> None:
    """Slopes of `hp.step_function` by all knobs over its value."""
    for hold in (False, True):
        f = step_function(model, step, hold_corrections=hold)
        rates = f.knobs["memory_bytes_per_s"] * jnp.linspace(0.5, 2.0, 1000)
        asked = {**f.knobs, "memory_bytes_per_s": rates}
        axes = {**jax.tree.map(lambda _: None, f.knobs), "memory_bytes_per_s": 0}
        value, both = jax.jit(f), jax.jit(jax.value_and_grad(f))
        many, many_both = (
            jax.jit(jax.vmap(one, in_axes=(axes,))) for one in (f, jax.value_and_grad(f))
        )
        given = [(value, f.knobs), (both, f.knobs), (many, asked), (many_both, asked)]
        calls = [lambda one=one, at=at: jax.block_until_ready(one(at)) for one, at in given]
        for call in calls:
            call()
        one_s, slope_s, many_s, many_slope_s = least_s(calls, turns, clock)
        print(
            f"{cores} core{'s' * (cores > 1)}, step function, corrections"
            f" {'held' if hold else 'alive'}: value {one_s * 1e6:,.0f} us, with slopes"
            f" {slope_s * 1e6:,.0f} us ({slope_s / one_s:.2f}); 1,000 under vmap"
            f" {many_s * 1e3:,.1f} us each, with slopes {many_slope_s * 1e3:,.1f}"
            f" ({many_slope_s / many_s:.2f})",
            flush=True,
        )


def main() -> None:
    """Print predictions per second and what a single one takes."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--cores", type=int, default=1)
    arguments.add_argument("--turns", type=int, default=10)
    given = arguments.parse_args()
    if hasattr(os, "sched_setaffinity"):
        # whatever the process that started this one was held to
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-given.cores :]))
    jax.config.update("jax_num_cpu_devices", given.cores)
    model, worth = load_model(MODEL), folding.WORTH
    clock = time.process_time if given.cores == 1 else time.perf_counter
    for compare in (compare_corrections, compare_slopes):
        compare(model, measured_alone(workload(NODES)), given.turns, clock, given.cores)
    for alike in (True, False):
        step = workload(NODES, alike=alike)
        predictor = BatchPredictor(model, step, hold_corrections=True)
        folding.WORTH = 0.0
        plain = BatchPredictor(model, step, hold_corrections=True)
        folding.WORTH = worth
        for batch, all_knobs in ((10_000, False), (10_000, True), (100_000, True), (1, False)):
            values = knobs(batch, all_knobs=all_knobs)
            pricing = jax.jit(lambda rows, fixed, varied: batches._priced(rows, fixed, varied))
            varied = canonical(batches._varied(plain._platform, values, plain._groups))
            calls = [
                lambda predictor=predictor, values=values: predictor(**values),
                lambda plain=plain, values=values: plain(**values),
                lambda pricing=pricing, plain=plain, varied=varied: pricing(
                    plain._rows, plain._fixed, varied
                ).block_until_ready(),
            ]
            np.testing.assert_allclose(*[np.asarray(call()) for call in calls[:2]], rtol=1e-4)
            calls[2]()
            one_s, plain_s, pricing_s = least_s(calls, given.turns, clock)
            ops = (
                f"{len(step.graph):,} nodes of {len(step.calls)} ops,"
                f" {'all knobs' if all_knobs else '2 knobs'}"
            )
            rate = batch / one_s
            verdict = (
                ""
                if batch == 1
                else f" (>= {BAR_PER_S:,}{'' if rate >= BAR_PER_S else ', MISSED'})"
            )
            print(
                f"{given.cores} core{'s' * (given.cores > 1)}, {ops}, {batch:7,} configurations:"
                f" {rate:9,.0f}/s{verdict}, {one_s * 1e6:9,.0f} us; plain {plain_s / one_s:.2f} of"
                f" that, pricing {pricing_s / plain_s:.2f} of plain",
                flush=True,
            )


if __name__ == "__main__":
    main()
