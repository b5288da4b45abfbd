"""Speed of plans. Run by hand on two idle cores: `python benchmarks/bench_plan.py`.

1. All legal layouts of GPT-3 175B on 512 GPUs: enumerated, their memory counted, priced, ranked,
   written to Parquet.
2. The search space of calculon for the same case (its `loe -d`: 6,582,816 configurations, of which
   it evaluates about 108 valid ones a second on two cores): enumerated by its rules, each one
   either refused (illegal, no room) or priced. Its offloads, overlap of tensor-parallel messages
   and repeated gathers are counted, but do not change our seconds.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hybridperf.cli.common import compilation_cache
from hybridperf.training.plans.costs import SpaceColumns, bytes_of, times
from hybridperf.training.plans.run import plan
from hybridperf.training.plans.setup import training_setup
from hybridperf.training.plans.space import Division, LayoutSpace, divisors, places
from hybridperf.training.plans.table import write_layouts
from hybridperf.workloads.transformer import TransformerShape, load_shape
from hybridperf.workloads.transformer.columns import FULL, INTERLEAVED, NONE, SELECTIVE, legal
from hybridperf.workloads.transformer.layout import Layouts

GPUS, BATCH, PER_NODE, SYSTEM = 512, 512, 8, "aic_a100_sxm"
CALCULON = 6_582_816
NETWORKS = 2


def everything() -> None:
    """All legal layouts, written."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = plan("gpt3-175b", SYSTEM, GPUS, batch=BATCH, limit=None)
        planned_s = time.perf_counter() - began
        rows = write_layouts(found, Path(folder) / "plan.parquet")
        took_s = time.perf_counter() - began
    print(
        f"{rows:,} legal layouts ({found.orders:,} with orders that mean the same), {len(found):,}"
        f" fit: {planned_s:.1f} s, written after {took_s:.1f} s: {rows / took_s:,.0f} legal and"
        f" {len(found) / took_s:,.0f} fitting layouts/s"
    )


def calculons_space(shape: TransformerShape) -> tuple[LayoutSpace, np.ndarray]:
    """Its configurations, one row each, and whether its data-parallel overlap is on [N]."""
    base: list[tuple[int, ...]] = []
    counts, overlaps, starts, known = [], [], [], []
    for tp in (n for n in divisors(GPUS) if shape.hidden % n == 0 and shape.heads % n == 0):
        for pp in divisors(min(GPUS // tp, shape.layers)):
            if GPUS % (tp * pp) or shape.layers % pp:
                continue
            dp = GPUS // tp // pp
            start = len(known)
            known += places(Division(tp, 1, dp, pp, 1, tp, dp > 1, dp), PER_NODE)
            networks = NETWORKS ** sum(degree > 1 for degree in (tp, pp, dp))
            for vp, mode, messages in itertools.product(
                divisors(shape.layers // pp) if pp > 1 else [1], (FULL, SELECTIVE, NONE), range(3)
            ):
                offloads = 4 if mode == FULL else 8
                again = 2 if messages == 2 and mode != FULL else 1
                for zero, micro in itertools.product(
                    (0, 1) if dp > 1 else (0,), divisors(BATCH // dp)
                ):
                    if micro * shape.seq % tp:
                        continue
                    same = again * offloads * (3 if tp > 1 else 1) * networks
                    sequence = int(messages > 0 and tp > 1)
                    schedule = INTERLEAVED if vp > 1 else 0
                    for overlap in (0, 1) if dp > 1 else (0,):
                        base.append(
                            (
                                tp,
                                sequence,
                                pp,
                                vp,
                                dp,
                                1,
                                1,
                                tp,
                                zero,
                                dp,
                                micro,
                                BATCH // dp // micro,
                                mode,
                                schedule,
                            )
                        )
                        counts.append(same)
                        overlaps.append(overlap)
                        starts.append((start, len(known) - start))
    columns = Layouts(*np.array(base).T)
    base_of = np.repeat(np.arange(len(base), dtype=np.int32), counts)
    first, some = np.array(starts)[base_of].T
    within = np.arange(len(base_of)) % some
    space = LayoutSpace(
        shape,
        GPUS,
        PER_NODE,
        BATCH,
        columns,
        tuple(known),
        base_of,
        (first + within).astype(np.int32),
    )
    return space, np.array(overlaps)[base_of]


def calculon() -> None:
    """As many configurations as calculon counts."""
    began = time.perf_counter()
    shape = load_shape("gpt3-175b")
    space, overlap = calculons_space(shape)
    assert len(space) == CALCULON, len(space)
    shared = training_setup(shape, SYSTEM)
    runs = legal(shape, space.base) & (bytes_of(shared, space.base) <= shared.capacity_bytes)
    step_s = np.full(len(space), np.inf)
    for hidden in (0, 1):
        rows = np.flatnonzero(runs[space.base_of] & (overlap == hidden))
        config = shared.template.replace(overlap_gradients=bool(hidden))
        one = training_setup(shape, SYSTEM)
        one = type(one)(**{**vars(one), "template": config, "prices": shared.prices})
        columns = SpaceColumns.of(one, space, rows)
        step_s[rows] = times(columns, one).step_s
    took_s = time.perf_counter() - began
    priced = int(np.isfinite(step_s).sum())
    counts = f"{priced:,} of them legal, with room, and priced"
    print(
        f"{len(space):,} configurations of calculon's space, {counts}: {took_s:.1f} s; best"
        f" {step_s.min():.2f} s"
    )


if __name__ == "__main__":
    compilation_cache()
    if "calculon" not in sys.argv[1:]:
        everything()
    if "legal" not in sys.argv[1:]:
        calculon()
