"""How far the evaluator is from C, run by hand: python benchmarks/bench_evaluator.py [--quick]

A C kernel of the same recurrence (slots, table of unique rows, float32, blocks of 64
configurations) is built with the system's compiler; both are checked against float64 NumPy and
timed in turns on one core, the minimum of many counting. Times are the processor's: what others do
meanwhile on the core adds nothing. A node is one op on one rank with its launch; figures are
nanoseconds per node and configuration (ns), and ratios next to the bars they must hold. Last come
whole predictions, see bench_predictions.py.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import numpy as np

from hybridperf.engine.contraction import contracted
from hybridperf.engine.evaluate import makespan
from hybridperf.engine.folding import FoldedProgram, folded, makespan_of
from hybridperf.engine.graph import Graph, GraphBuilder
from hybridperf.engine.lower import StepProgram, lower

OPS = 24  # of a layer: 20 on the compute stream, 2 gathers of weights and 2 reductions of gradients
ROWS = 2 * OPS  # seconds of each op of a layer, then of its launch
# op of the compute stream -> op issued before, after it
GATHERS, REDUCTIONS = ({3: 20, 11: 21}, {9: 22, 19: 23})
IN_FLIGHT = 6  # a layer waits for the reductions of three layers before: two a layer
RANKS = 16
BARS = {"1 rank": 1.2, "16 alike": 1.2, "16 unlike": 1.2}  # value over C
# folded over plain value at 10,000 nodes; one configuration over C
FOLDED_BAR, LATENCY_BAR = (0.5, 1.6)
GRADIENT_BAR, MEMORY_BAR_BYTES, COMPILE_BAR_S, DICT_BAR, ERROR_BAR = 2.5, 3.0, 0.5, 1000.0, 1e-4

C_SOURCE = r"""
#include <stdlib.h>
#include <string.h>
enum { BLOCK = 64 };
typedef float block[BLOCK];
static inline float later(float a, float b) { return a > b ? a : b; }

/* Ends of the last node. Node i: slot host[i] += table[launch_row[i]]; slot out[i], if any,
   = max(host[i], slots read) + table[row[i]]. Slot 0 holds the latest end of all. batch is a multiple of BLOCK. */
int makespan(int nodes, int slots, long batch, const int *host, const int *launch_row, const int *row, const int *out,
             const int *read_start, const int *read, const float *table, float *ends) {
    block *slot = aligned_alloc(64, sizeof(block) * slots);
    if (!slot) return 1;
    for (long at = 0; at < batch; at += BLOCK) {
        memset(slot, 0, sizeof(block) * slots);
        for (int i = 0; i < nodes; i++) {
            float *restrict h = slot[host[i]];
            const float *restrict l = table + launch_row[i] * batch + at;
            const float *restrict d = table + row[i] * batch + at;
            const int *r = read + read_start[i];
            int reads = read_start[i + 1] - read_start[i];
            if (out[i] < 0) {
                for (int j = 0; j < BLOCK; j++) h[j] += l[j];
                continue;
            }
            float *o = slot[out[i]];
            const float *a = slot[reads > 0 ? r[0] : host[i]], *b = slot[reads > 1 ? r[1] : reads > 0 ? r[0] : host[i]];
            block end;
            if (reads == 1)
                for (int j = 0; j < BLOCK; j++) { float c = h[j] + l[j]; end[j] = later(c, a[j]); h[j] = c; }
            else
                for (int j = 0; j < BLOCK; j++) { float c = h[j] + l[j]; end[j] = later(c, later(a[j], b[j])); h[j] = c; }
            for (int k = 2; k < reads; k++) {
                const float *p = slot[r[k]];
                for (int j = 0; j < BLOCK; j++) end[j] = later(end[j], p[j]);
            }
            for (int j = 0; j < BLOCK; j++) o[j] = end[j] + d[j];
        }
        float *last = ends + at;
        memset(last, 0, sizeof(block));
        for (int k = 0; k < slots; k++)
            for (int j = 0; j < BLOCK; j++) last[j] = later(last[j], slot[k][j]);
    }
    free(slot);
    return 0;
}
"""


def transformer(nodes: int, ranks: int = 1, *, alike: bool = True) -> Graph:
    """About `nodes` nodes in layers of 24 ops a rank: compute, prefetched weights and late
    reductions on two more streams.

    The ranks do the same unless not `alike`: then the first op of each rank's layer is another.
    """
    builder = GraphBuilder()
    gathered: list[int] = []
    reductions: list[list[int]] = []
    last: list[int] = []

    def communicate(op: int, stream: str) -> list[int]:
        if ranks == 1:
            return [builder.op(1 + op, stream=stream, after=last, launch_row=1 + OPS + op)]
        return [
            *builder.collective(
                1 + op,
                label="c",
                ranks=range(ranks),
                stream=stream,
                after=last,
                launch_row=1 + OPS + op,
            ).values()
        ]

    for _ in range(max(1, round(nodes / OPS / ranks))):
        arrived = gathered
        for op in range(20):
            if op in GATHERS:
                gathered = communicate(GATHERS[op], "gather")
            waits: list[list[int]] = [[] for _ in range(ranks)]
            if op == 0 and arrived:
                waits = [
                    [arrived[r], *(done[r] for done in reductions[-IN_FLIGHT : 1 - IN_FLIGHT])]
                    for r in range(ranks)
                ]
            rows = [1 + (op if alike or op else r % 20) for r in range(ranks)]
            last = [
                builder.op(rows[r], rank=r, after=waits[r], launch_row=1 + OPS + op)
                for r in range(ranks)
            ]
            if op in REDUCTIONS:
                reductions.append(communicate(REDUCTIONS[op], "reduce"))
    return builder.build()


def seconds(batch: int, seed: int = 0) -> np.ndarray:
    """Seconds per row [ROWS, batch], float32: ops of 5-60 us, launches of 2-12 us, so that either
    may hold up the other.
    """
    rng = np.random.default_rng(seed)
    low, high = np.repeat([[5e-6], [2e-6]], OPS, axis=0), np.repeat([[60e-6], [12e-6]], OPS, axis=0)
    return (low + (high - low) * rng.random((ROWS, 1)) * (0.5 + rng.random((1, batch)))).astype(
        np.float32
    )


class CProgram(NamedTuple):
    """The graph for the C kernel, straight from the builder: no library code that is being measured
    takes part.
    """

    host: np.ndarray  # [N] each
    launch_row: np.ndarray
    row: np.ndarray
    out: np.ndarray
    read_start: np.ndarray  # [N + 1]
    read: np.ndarray
    slots: int


def c_program(graph: Graph) -> CProgram:
    """Slots 0 .. ranks - 1 are the hosts; a collective is issued by all, and runs with its last
    rank as one node.
    """
    ranks = int(graph.rank.max()) + 1
    stream_at: dict[tuple[int, int], int] = {}
    wanted: list[list[int]] = []  # earlier nodes, by which a collective is meant its last one
    runs: list[bool] = []
    hosts: list[list[int]] = []
    last_of = np.arange(len(graph))
    for node in range(len(graph)):
        if graph.collective[node] != Graph.NO_COLLECTIVE:
            last_of[graph.collective[node]] = node
    last_of = np.where(graph.collective == Graph.NO_COLLECTIVE, last_of, last_of[graph.collective])
    gathered: list[int] = []
    members: list[int] = []
    for node in range(len(graph)):
        lane = (int(graph.rank[node]), int(graph.stream[node]))
        gathered += [int(last_of[other]) for other in graph.waits_for(node)]
        gathered += [stream_at[lane]] if lane in stream_at else []
        stream_at[lane] = int(last_of[node])
        members.append(int(graph.rank[node]))
        runs.append(bool(last_of[node] == node))
        wanted.append(sorted(set(gathered)) if runs[-1] else [])
        hosts.append(members[:-1] if runs[-1] else [])
        if runs[-1]:
            gathered, members = [], []
    last_reader = {before: node for node, reads in enumerate(wanted) for before in reads}
    out, free, slots = np.full(len(graph), -1, np.int32), [], ranks
    read: list[list[int]] = []
    for node, reads in enumerate(wanted):
        read.append([*(int(out[before]) for before in reads), *hosts[node]])
        if not runs[node]:
            continue
        free += [int(out[before]) for before in reads if last_reader[before] == node]
        if not free:
            free, slots = [slots], slots + 1
        out[node] = free.pop()
    read_start = np.cumsum([0, *map(len, read)], dtype=np.int32)
    flat = np.array([slot for reads in read for slot in reads], np.int32)
    return CProgram(graph.rank, graph.launch_row, graph.row, out, read_start, flat, slots)


class CKernel:
    """The kernel, built into a folder of its own that is gone with the process."""

    def __init__(self, compiler: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "makespan.c", Path(folder) / "makespan.so"
            source.write_text(C_SOURCE)
            subprocess.run(
                [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source],
                check=True,
            )
            self._makespan = ctypes.CDLL(library).makespan

    def __call__(self, program: CProgram, table: np.ndarray) -> np.ndarray:
        """Ends [B] of `table` [1 + U, B], whose row 0 is zero and whose B is a multiple of 64."""
        ends = np.empty(table.shape[1], np.float32)
        arrays = [
            program.host,
            program.launch_row,
            program.row,
            program.out,
            program.read_start,
            program.read,
            table,
            ends,
        ]
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
        if self._makespan(
            len(program.row), program.slots, ctypes.c_long(table.shape[1]), *pointers
        ):
            raise MemoryError("no memory for the slots of the C kernel")
        return ends


def exact(program: CProgram, table: np.ndarray) -> np.ndarray:
    """The recurrence in float64 NumPy."""
    table = table.astype(np.float64)
    slot = np.zeros((program.slots, table.shape[1]))
    for node, out in enumerate(program.out):
        host = program.host[node]
        slot[host] += table[program.launch_row[node]]
        if out >= 0:
            read = program.read[program.read_start[node] : program.read_start[node + 1]]
            slot[out] = slot[[host, *read]].max(axis=0) + table[program.row[node]]
    return slot.max(axis=0)


def by_dict(graph: Graph, table: list[float]) -> float:
    """The makespan of one configuration as one would write it in Python: dicts of ends by node,
    host and stream.
    """
    host: dict[int, float] = {}
    stream: dict[tuple[int, int], float] = {}
    end: dict[int, float] = {}
    row, launch_row, rank, at = (
        a.tolist() for a in (graph.row, graph.launch_row, graph.rank, graph.stream)
    )
    waits = [graph.waits_for(node).tolist() for node in range(len(graph))]
    for node in range(len(graph)):
        lane = rank[node], at[node]
        host[rank[node]] = host.get(rank[node], 0.0) + table[launch_row[node]]
        start = max(
            [host[rank[node]], stream.get(lane, 0.0), *(end[other] for other in waits[node])]
        )
        end[node] = stream[lane] = start + table[row[node]]
    return max(end.values())


def cpu_s(calls: list[Callable[[], object]], turns: int, limit_s: float) -> list[float]:
    """Least processor seconds of each call over `turns` turns, fewer (but three) once `limit_s`
    have gone by.
    """
    least = [np.inf] * len(calls)
    begun_s = time.perf_counter()
    for turn in range(turns):
        for number, call in enumerate(calls):
            start_s = time.process_time()
            call()
            least[number] = min(least[number], time.process_time() - start_s)
        if turn >= 2 and time.perf_counter() - begun_s > limit_s:
            break
    return least


def value_and_grad(program: StepProgram, durations: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum of the makespans and its gradient [ROWS, B]."""
    return jax.value_and_grad(lambda d: makespan(program, d).sum())(durations)


def against_bar(what: str, figure: float, bar: float, *, at_least: bool = False) -> str:
    """One figure with its bar and whether it holds."""
    holds = figure >= bar if at_least else figure <= bar
    return (
        f"{what} {figure:.3g} ({'>=' if at_least else '<='} {bar:g}{'' if holds else ', MISSED'})"
    )


def compare(kernel: CKernel, kind: str, nodes: int, batch: int, turns: int, limit_s: float) -> None:
    """Value and gradient of one graph on one batch next to C."""
    graph = transformer(nodes, RANKS if "16" in kind else 1, alike=kind != "16 unlike")
    c, program = c_program(graph), jax.device_put(contracted(lower(graph).program))
    durations = seconds(batch)
    table = np.pad(durations, ((1, 0), (0, -batch % 64)))
    given = jax.device_put(durations)
    value = jax.jit(makespan).lower(program, given).compile()
    gradient = jax.jit(value_and_grad).lower(program, given).compile()
    few = slice(0, min(batch, 64))
    expected = exact(c, table[:, few])
    for ends in (kernel(c, table), np.asarray(value(program, given))):
        error = float(np.abs(ends[few] / expected - 1).max())
        if error > ERROR_BAR:
            raise AssertionError(
                f"{kind}, {nodes} nodes: off by {error:.1e}, expected at most {ERROR_BAR:g}"
            )
    c_s, value_s, gradient_s = cpu_s(
        [
            lambda: kernel(c, table),
            lambda: value(program, given).block_until_ready(),
            lambda: jax.block_until_ready(gradient(program, given)),
        ],
        turns,
        limit_s,
    )
    per = 1e9 / len(graph) / batch
    memory = gradient.memory_analysis().temp_size_in_bytes / len(graph) / batch
    print(
        f"{kind:9} {len(graph):6,} nodes {batch:7,} configurations: C {c_s * per:.3f} ns, value"
        f" {value_s * per:.3f} ns,",
        against_bar("ratio", value_s / c_s, BARS[kind]) + ",",
        against_bar("gradient / value", gradient_s / value_s, GRADIENT_BAR) + ",",
        against_bar("its bytes", memory, MEMORY_BAR_BYTES),
        flush=True,
    )


def compare_compile() -> None:
    """Seconds to trace and compile, which should not grow with the graph."""
    for nodes in (100, 1_000, 10_000):
        program, durations = contracted(lower(transformer(nodes)).program), seconds(1000)
        value_s, gradient_s = (
            min(_compile_s(function, program, durations) for _ in range(3))
            for function in (lambda p, d: makespan(p, d), value_and_grad)
        )
        print(
            f"compile {nodes:6,} nodes:",
            against_bar("value", value_s, COMPILE_BAR_S) + " s,",
            against_bar("gradient", gradient_s, COMPILE_BAR_S),
            "s",
        )


def _compile_s(
    function: Callable, program: StepProgram | FoldedProgram, durations: np.ndarray
) -> float:
    jax.clear_caches()
    start_s = time.process_time()
    jax.jit(function).lower(program, durations).compile()
    return time.process_time() - start_s


def compare_dict(turns: int, limit_s: float) -> None:
    """One configuration in a dict loop against 10,000 at once."""
    graph, durations = transformer(1000), seconds(10_000)
    program, given = jax.device_put((contracted(lower(graph).program), durations))
    table = [0.0, *durations[:, 0].tolist()]
    loop_s, value_s = cpu_s(
        [lambda: by_dict(graph, table), lambda: makespan(program, given).block_until_ready()],
        turns,
        limit_s,
    )
    print(
        f"dict loop {loop_s * 1e9 / len(graph):.0f} ns:",
        against_bar(
            "times value", loop_s / (value_s / durations.shape[1]), DICT_BAR, at_least=True
        ),
    )


def compare_folded(kernel: CKernel, turns: int, limit_s: float) -> None:
    """Identical layers raised to a power next to one step after the other, and next to C."""
    for nodes in (500, 1_000, 2_000, 10_000):
        graph, batch = transformer(nodes), 10_000
        lowered, c = lower(graph), c_program(graph)
        start_s = time.process_time()
        found = folded(lowered)
        look_s = time.process_time() - start_s
        if found is None:
            print(f"folded {len(graph):6,} nodes: not worth it, found in {look_s * 1e3:.0f} ms")
            continue
        durations = seconds(batch)
        table = np.pad(durations, ((1, 0), (0, -batch % 64)))
        program, found, given = jax.device_put((contracted(lowered.program), found, durations))
        error = float(
            np.abs(np.asarray(makespan_of(found, given))[:64] / exact(c, table[:, :64]) - 1).max()
        )
        if error > ERROR_BAR:
            raise AssertionError(
                f"folded, {nodes} nodes: off by {error:.1e}, expected at most {ERROR_BAR:g}"
            )
        makespan(program, given).block_until_ready()
        c_s, value_s, folded_s = cpu_s(
            [
                lambda c=c, table=table: kernel(c, table),
                lambda program=program, given=given: makespan(program, given).block_until_ready(),
                lambda found=found, given=given: makespan_of(found, given).block_until_ready(),
            ],
            turns,
            limit_s,
        )
        ratio = (
            against_bar("ratio", folded_s / value_s, FOLDED_BAR)
            if nodes == 10_000
            else f"ratio {folded_s / value_s:.2f}"
        )
        print(
            f"folded {len(graph):6,} nodes {batch:7,} configurations:"
            f" {folded_s * 1e9 / len(graph) / batch:.3f} ns, {ratio} to value, {folded_s / c_s:.2f}"
            f" to C, K = {len(found.before)}, {int(found.times)} layers, error {error:.0e}, found"
            f" in {look_s * 1e3:.0f} ms, compiled in"
            f" {_compile_s(lambda f, d: makespan_of(f, d), found, durations):.2f} s",
            flush=True,
        )


def compare_latency(kernel: CKernel, turns: int, limit_s: float) -> None:
    """One configuration at a time."""
    for nodes in (1_000, 10_000):
        graph, durations = transformer(nodes), seconds(1)
        c, lowered = c_program(graph), lower(graph)
        table = np.pad(durations, ((1, 0), (0, 63)))
        program, found, given = jax.device_put(
            (contracted(lowered.program), folded(lowered), durations)
        )
        calls: list[Callable[[], object]] = [lambda c=c, table=table: kernel(c, table)]
        calls.append(
            lambda program=program, given=given: makespan(program, given).block_until_ready()
        )
        if found is not None:
            calls.append(
                lambda found=found, given=given: makespan_of(found, given).block_until_ready()
            )
        for call in calls:
            call()
        c_s, value_s, *folded_s = cpu_s(calls, 10 * turns, limit_s)
        also = "".join(f", folded {each * 1e6:.0f} us" for each in folded_s)
        print(
            f"one configuration, {len(graph):6,} nodes: C (64 of them) {c_s * 1e6:.0f} us, value"
            f" {value_s * 1e6:.0f} us,",
            against_bar("ratio", value_s / c_s, LATENCY_BAR) + also,
            flush=True,
        )


def count_traces() -> None:
    """A grid over depth, ranks and seconds within a bucket traces once."""
    traces = 0

    @jax.jit
    def counted(program: StepProgram, durations: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return makespan(program, durations)

    programs = [
        contracted(lower(transformer(nodes * ranks, ranks)).program)
        for nodes in (960, 984, 1008)
        for ranks in (1, 2, 4)
    ]
    for program in programs:
        for scale in (1.0, 2.0, 3.5):
            counted(program, scale * seconds(1000))
    buckets = len({(len(p.row), len(p.made), len(p.counted), p.slots, p.hosts) for p in programs})
    print(
        f"{len(programs)} graphs in {buckets} buckets, times 3 scales:",
        against_bar("traces", traces, buckets),
    )


def main() -> None:
    """Print every ratio."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--quick", action="store_true", help="fewer turns and smaller batches, under a minute"
    )
    quick = arguments.parse_args().quick
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit(
            "bench_evaluator: no C compiler found, expected cc or gcc on the PATH; install one,"
            " there is nothing to compare with"
        )
    kernel = CKernel(compiler)
    turns, limit_s = (10, 2.0) if quick else (40, 12.0)
    batches = (1_000, 10_000) if quick else (1_000, 10_000, 100_000)
    for kind, nodes in (
        ("1 rank", 1_000),
        ("1 rank", 10_000),
        ("16 alike", 10_000),
        ("16 unlike", 10_000),
    ):
        for batch in batches:
            compare(kernel, kind, nodes, batch, turns, limit_s)
    compare_compile()
    compare_dict(turns, limit_s)
    count_traces()
    compare_folded(kernel, turns, limit_s)
    compare_latency(kernel, turns, limit_s)
    # in processes of their own: how many devices there are is settled when JAX begins
    for cores in (1, 2):
        script = [
            sys.executable,
            Path(__file__).with_name("bench_predictions.py"),
            "--cores",
            str(cores),
        ]
        subprocess.run([*map(str, script), "--turns", str(max(5, turns // 4))], check=True)


if __name__ == "__main__":
    main()
