"""How far the evaluator is from C, run by hand: python tests/bench_evaluator.py [--quick]

A C kernel of the same recurrence (slots, table of unique rows, float32, blocks of 64 configurations) is built with the
system's compiler; both are checked against float64 NumPy and timed in turns on one core, the minimum of many counting.
Node = one op on one rank with its launch. Figures are nanoseconds per node and configuration, and ratios with their bars.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import numpy as np

from hybridperf.evaluate import makespan
from hybridperf.graph import Graph, GraphBuilder
from hybridperf.lower import Lowered, lower

OPS = 24  # of a layer: 20 on the compute stream, 2 gathers of weights and 2 reductions of gradients
ROWS = 2 * OPS  # seconds of each op of a layer, then of its launch
GATHERS, REDUCTIONS = {3: 20, 11: 21}, {9: 22, 19: 23}  # op of the compute stream -> op issued before, after it
IN_FLIGHT = 6  # a layer waits for the reductions of three layers before: two a layer

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
    """About `nodes` nodes in layers of 24 ops a rank: compute, prefetched weights and late reductions on two more streams.

    The ranks do the same unless not `alike`: then the first op of each rank's layer is another.
    """
    builder = GraphBuilder()
    gathered: list[int] = []
    reductions: list[list[int]] = []
    last: list[int] = []

    def communicate(op: int, stream: str) -> list[int]:
        if ranks == 1:
            return [builder.op(1 + op, stream=stream, after=last, launch_row=1 + OPS + op)]
        return [*builder.collective(1 + op, label="c", ranks=range(ranks), stream=stream, after=last, launch_row=1 + OPS + op).values()]

    for _ in range(max(1, round(nodes / OPS / ranks))):
        arrived = gathered
        for op in range(20):
            if op in GATHERS:
                gathered = communicate(GATHERS[op], "gather")
            waits: list[list[int]] = [[] for _ in range(ranks)]
            if op == 0 and arrived:
                waits = [[arrived[r], *(done[r] for done in reductions[-IN_FLIGHT : 1 - IN_FLIGHT])] for r in range(ranks)]
            rows = [1 + (op if alike or op else r % 20) for r in range(ranks)]
            last = [builder.op(rows[r], rank=r, after=waits[r], launch_row=1 + OPS + op) for r in range(ranks)]
            if op in REDUCTIONS:
                reductions.append(communicate(REDUCTIONS[op], "reduce"))
    return builder.build()


def seconds(batch: int, seed: int = 0) -> np.ndarray:
    """Seconds per row [ROWS, batch], float32: ops of 5-60 us, launches of 2-12 us, so that either may hold up the other."""
    rng = np.random.default_rng(seed)
    low, high = np.repeat([[5e-6], [2e-6]], OPS, axis=0), np.repeat([[60e-6], [12e-6]], OPS, axis=0)
    return (low + (high - low) * rng.random((ROWS, 1)) * (0.5 + rng.random((1, batch)))).astype(np.float32)


class CProgram(NamedTuple):
    """The graph for the C kernel, straight from the builder: no library code that is being measured takes part."""

    host: np.ndarray  # [N] each
    launch_row: np.ndarray
    row: np.ndarray
    out: np.ndarray
    read_start: np.ndarray  # [N + 1]
    read: np.ndarray
    slots: int


def c_program(graph: Graph) -> CProgram:
    """Slots 0 .. ranks - 1 are the hosts; a collective is issued by all, and runs with its last rank as one node."""
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
            subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
            self._makespan = ctypes.CDLL(library).makespan

    def __call__(self, program: CProgram, table: np.ndarray) -> np.ndarray:
        """Ends [B] of `table` [1 + U, B], whose row 0 is zero and whose B is a multiple of 64."""
        ends = np.empty(table.shape[1], np.float32)
        arrays = [program.host, program.launch_row, program.row, program.out, program.read_start, program.read, table, ends]
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
        if self._makespan(len(program.row), program.slots, ctypes.c_long(table.shape[1]), *pointers):
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
