"""Times collectives between the processes of a job, one device each.

Every rank runs the same cases in the same order. A repeat is a barrier (an all-reduce of one
number), on a CPU some work that fills the caches, as the ops before a collective do, and one timed
call (see `collective_cases`). What a repeat took is the **least over the ranks**: a rank that was
late for the barrier makes the others wait, and waiting is not the collective. The times of a case's
repeats are exchanged after the last of them, so the exchange disturbs none.

    elapsed_s [ranks, repeats] --least over ranks, - dispatch_s, / chained--> [repeats] --median,
    least, mean, standard deviation--> row

PyTorch's processes on one core each are timed by their processor time (`machine.clock`), of which
the largest over the ranks counts: on shared cores the usual wait is for other programs.

Whatever decides how it goes on (which rows are stored already, how many repeats, whether the time
is up) is exchanged first and decided from the same numbers on every rank: ranks that disagreed
would wait for each other for ever. Rank 0 keeps the store.

All cases are measured once in each pass, from large to small, so that two passes over a case lie
apart in time; and by processes of its own, because a connection can be slow for as long as it
lives. With gloo over the loopback of one machine (packets of 64 KiB, Linux 6.18), the first large
message after some thousand small ones took 44 ms for each 64 KiB, hundreds of times the usual, and
so did all after it: it looks like TCP's delayed acknowledgement, and a step may meet it, too. From
large to small it was not met. The quietest pass of a case is its row; how far the others lie above
it is `noise`.

A collective between processes may never return, and no error says so. Rank 0 has a `Watch`: a case
that takes longer than `STALLED_S` gets a row that says so and the job ends, to be started again
without it.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
import platform
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf_calibration.microbench import collective_cases
from hybridperf_calibration.microbench.collective_cases import DTYPE, CollectiveCase
from hybridperf_calibration.microbench.store import Row, RowStore, measured_passes
from hybridperf_calibration.microbench.tally import Tally

MOST_REPEATS = 200
FEWEST_REPEATS = 5
WARM_UP_CALLS = 3
LONGEST_CAP_S = 0.4  # of a case's repeats in one pass
SHORTEST_CAP_S = 0.03
LINE_EVERY_S = 5.0  # of progress
INITIALIZE_S = 120  # for all processes of the job to start
STALLED_S = 15.0  # a case takes a second, between many more processes than cores a few
STALLED = 5  # exit status of rank 0 then
SMALLEST_SHARE = 0.2  # of a call that is the collectives' at least, whatever an empty call took
DISPATCH_CALLS = 200
CACHE_BYTES = 2**22  # of a core's own caches, at most
_SHORTEST_EXCHANGE = 64  # numbers


class Job(abc.ABC):
    """All processes that measure together, seen from one of them, whatever library joins them."""

    n: int
    rank: int
    platform: str
    dispatch_s = 0.0  # what a call takes in which ranks do not meet
    clock: Callable[[], float] = staticmethod(time.perf_counter)  # what calls are timed by

    @abc.abstractmethod
    def barrier(self) -> None:
        """Return when all ranks are here; they leave within some 10 us of each other."""

    @abc.abstractmethod
    def exchange(self, numbers: Sequence[float]) -> np.ndarray:
        """Everybody's numbers [ranks, numbers] in float32; all ranks give equally many."""

    @abc.abstractmethod
    def prepared(self, case: CollectiveCase) -> tuple[Callable[[], None], str]:
        """(what makes a call and waits for it, what is wrong with it or nothing)."""

    @abc.abstractmethod
    def library(self) -> str:
        """What carries the collectives, as tables name it."""

    @abc.abstractmethod
    def version(self) -> str:
        """Of the library."""

    def nodes(self, host: str | None = None) -> int:
        """How many machines the ranks run on, by name; all must have equally many ranks."""
        name = zlib.crc32((host or platform.node()).encode())
        halves = self.exchange([name >> 16, name & 0xFFFF])  # exact in float32
        _, counts = np.unique(halves, axis=0, return_counts=True)
        if len(set(counts)) > 1:
            found = f"expected equally many processes on every machine, found {[*map(int, counts)]}"
            raise RuntimeError(f"{found}; start as many on each of them.")
        return len(counts)

    def missing(
        self, order: Sequence[tuple[Any, int]], store: RowStore | None
    ) -> list[tuple[Any, int]]:
        """Those of (case with a `key`, pass) that rank 0's store lacks, the same on every rank."""
        has = [float(store is not None and store.has(case.key, at)) for case, at in order]
        stored = self.exchange(has)[0]
        return [one for one, there in zip(order, stored, strict=True) if not there]


class Team(Job):
    """Processes of JAX, on a mesh with one axis, `ranks`."""

    def __init__(self, coordinator: str, processes: int, rank: int, local_device: int = 0) -> None:
        """Join the job, when all are there; `coordinator` is rank 0's "host:port"."""
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator, processes, rank, [local_device], initialization_timeout=INITIALIZE_S
        )
        if jax.local_device_count() != 1:
            found = f"expected one device for each process, found {jax.local_device_count()}"
            raise RuntimeError(f"{found}; unset XLA_FLAGS or set JAX_PLATFORMS.")
        self.n, self.rank, self.platform = len(jax.devices()), rank, jax.devices()[0].platform
        # in the order of the processes
        self._mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
        self._sharding = jax.NamedSharding(self._mesh, jax.P("ranks"))
        self._exchanges: dict[int, Callable[[Any], Any]] = {}
        self._ready: dict[str, tuple[Any, str]] = {}
        self._one = self.place(np.ones(1, np.float32))
        self._barrier = self.compile(lambda one: jax.lax.psum(one, "ranks"), self._one)
        # what a call of a program takes in which ranks do not meet; the least over the ranks
        self.dispatch_s = self._empty_call_s()

    def place(self, part: np.ndarray) -> Any:
        """An array over all ranks of which this one holds `part` [items]."""
        import jax

        return jax.make_array_from_process_local_data(self._sharding, part)

    def part(self, array: Any) -> np.ndarray:
        """What this rank holds of an array over all ranks."""
        return np.asarray(array.addressable_shards[0].data)

    def compile(
        self, program: Callable[..., Any], *arrays: Any, donate: tuple[int, ...] = ()
    ) -> Any:
        """A program of one rank's parts, compiled for such arrays, donating those in `donate`."""
        import jax

        jitted = jax.jit(self.mapped(program), donate_argnums=donate, keep_unused=True)
        return jitted.lower(*arrays).compile()

    def mapped(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """A program of one rank's parts as one of arrays over all ranks."""
        import jax

        # check_vma: parts of an all-gather's result are alike on all ranks, and each rank's own
        ranks = jax.P("ranks")
        return jax.shard_map(
            program, mesh=self._mesh, in_specs=ranks, out_specs=ranks, check_vma=False
        )

    def barrier(self) -> None:
        self._barrier(self._one).block_until_ready()

    def exchange(self, numbers: Sequence[float]) -> np.ndarray:
        import jax

        # few lengths: each is compiled once
        length = max(_SHORTEST_EXCHANGE, 2 ** math.ceil(math.log2(max(len(numbers), 1))))
        mine = np.zeros(length, np.float32)
        mine[: len(numbers)] = numbers
        placed = self.place(mine)
        if length not in self._exchanges:
            gather = lambda x: jax.lax.all_gather(x, "ranks", tiled=True)  # noqa: E731
            self._exchanges[length] = self.compile(gather, placed)
        everyone = self.part(self._exchanges[length](placed)).reshape(self.n, length)
        return everyone[:, : len(numbers)].astype(np.float64)

    def _empty_call_s(self) -> float:
        import jax

        x, y = (self.place(np.ones(_SHORTEST_EXCHANGE, np.float32)) for _ in range(2))
        swap = lambda x, y: (x.at[0].set(y[-1]), y.at[0].set(x[-1]))  # noqa: E731
        call = self.compile(swap, x, y, donate=(0, 1))
        calls_s = []
        for _ in range(DISPATCH_CALLS):
            start_s = time.perf_counter()
            x, y = jax.block_until_ready(call(x, y))
            calls_s.append(time.perf_counter() - start_s)
        return float(self.exchange([np.median(calls_s)]).min())

    def prepared(self, case: CollectiveCase) -> tuple[Callable[[], None], str]:
        import jax

        x, y = (self.place(np.ones(items, np.float32)) for items in (case.items_in, case.items_out))
        if case.key not in self._ready:  # by the first pass, for the later ones
            self._ready[case.key] = _compile(case, self, x, y)
        call, error = self._ready[case.key]

        def run() -> None:
            nonlocal x, y
            x, y = call(x, y)
            jax.block_until_ready((x, y))

        return run, error

    def library(self) -> str:
        import jax

        if self.platform == "cpu":
            return "gloo(jax)"
        version = jax.devices()[0].client.platform_version.lower()
        return "rccl(jax)" if "rocm" in version else "nccl(jax)"

    def version(self) -> str:
        import jax

        return jax.__version__


class Watch:
    """Ends the process with status `STALLED`, after a row on why, when a case does not end.

    Rank 0 watches, which has the store.
    """

    def __init__(self, store: RowStore | None, limit_s: float = STALLED_S) -> None:
        self._limit_s, self._since_s = limit_s, 0.0
        self._row: Row | None = None
        if store is not None:
            threading.Thread(target=self._look, args=(store,), daemon=True).start()

    @contextlib.contextmanager
    def over(self, row: Row) -> Iterator[None]:
        """A case runs in this block; `row` has its key, the pass and its columns."""
        self._since_s, self._row = time.perf_counter(), row
        yield
        self._row = None

    def _look(self, store: RowStore) -> None:
        while True:
            time.sleep(self._limit_s / 10)
            row = self._row
            if row and time.perf_counter() - self._since_s > self._limit_s:
                store.append({**row, "error": f"did not return within {self._limit_s:g} s"})
                os._exit(STALLED)


def run(
    cases: Sequence[CollectiveCase], team: Job, store: RowStore | None, *, passes: int,
    last: int | None = None, budget_s: float | None = None,
    say: Callable[[str], None] = lambda line: None, seed: int = 0,
) -> Tally:  # fmt: skip
    """Measure every case in every pass unless rank 0's store has it.

    Args:
        cases: the same on every rank.
        team: the processes of the job.
        store: rank 0's; None on the others.
        passes: over all cases.
        last: the pass to stop after; other processes measure the later ones.
        budget_s: seconds after which no new case starts.
        say: takes lines of progress.
        seed: of the order of cases.
    """
    order = [one for pass_no in range(1, passes + 1) for one in _ordered(cases, pass_no, seed)]
    watch = Watch(store)
    missing = team.missing(order, store)
    todo = [(case, pass_no) for case, pass_no in missing if pass_no <= (last or passes)]
    tally = Tally(
        "collectives", len(order) - len(missing), len(todo), len(order),
        SHORTEST_CAP_S, LONGEST_CAP_S, budget_s,
    )  # fmt: skip
    last_line_s = tally.start_s
    for case, pass_no in todo:
        cap_s = float(team.exchange([tally.cap_s()])[0, 0])  # rank 0's clock and budget count
        if cap_s <= 0:
            break
        name = {"key": case.key, "pass_no": pass_no}
        with watch.over({**name, **_columns(case)}):
            row, took_s = _measure(case, team, cap_s)
        if store is not None:
            store.append({**name, **row})
        tally.add(row, took_s)
        if tally.complete or time.perf_counter() - last_line_s >= LINE_EVERY_S:
            last_line_s, done = time.perf_counter(), tally.measured + tally.resumed
            say(f"measured {done} of {tally.total} collectives, {tally.left_s():.0f} s left")
    return tally


def summarize(
    elapsed_s: np.ndarray, chained: int, dispatch_s: float, of_ranks: Any = np.min
) -> Row:
    """Times of one collective from what calls took [ranks, repeats]; see the module docstring."""
    call_s = of_ranks(elapsed_s, axis=0)
    own_s = np.maximum(call_s - dispatch_s, SMALLEST_SHARE * call_s) / chained
    return {
        "time_s": float(np.median(own_s)),
        "time_min_s": float(own_s.min()),
        "time_mean_s": float(own_s.mean()),
        "time_std_s": float(own_s.std()),
        "repeats": own_s.size,
    }


def table(rows: Sequence[Row], facts: Row) -> pd.DataFrame:
    """One row per collective and size, sorted; `facts` are columns that all have in common.

    Of several passes the one of the least median is the row. `noise` is (largest median / least
    median) - 1 over the passes, NaN after one.
    """
    merged = []
    for repeats in measured_passes(rows):
        medians_s = [row["time_s"] for row in repeats]
        quietest = dict(repeats[int(np.argmin(medians_s))])
        del quietest["key"], quietest["pass_no"]
        noise = max(medians_s) / min(medians_s) - 1 if len(repeats) > 1 else math.nan
        merged.append({**quietest, **facts, "passes": len(repeats), "noise": noise})
    leading = ["collective", "bytes", "n_gpus", "n_nodes", "gpus_per_node"]
    leading += ["time_s", "time_min_s", "time_mean_s", "time_std_s"]
    frame = pd.DataFrame(merged, columns=None if merged else leading)
    ordered = frame[[*leading, *(name for name in frame.columns if name not in leading)]]
    return ordered.sort_values(["collective", "bytes"], ignore_index=True)


def _measure(case: CollectiveCase, team: Job, cap_s: float) -> tuple[Row, float]:
    """The row of one case, and the seconds that its calls took."""
    columns = _columns(case)
    call, error = team.prepared(case)
    if error:  # the same program on all ranks, so they all leave here
        return {**columns, "error": error}, 0.0

    def timed_s() -> float:
        start_s = team.clock()
        call()
        return team.clock() - start_s

    begin_s = time.perf_counter()
    calls_s = []
    for _ in range(WARM_UP_CALLS):
        team.barrier()
        start_s = time.perf_counter()
        call()
        calls_s.append(time.perf_counter() - start_s)
    usual_s = float(team.exchange([np.median(calls_s)]).max())
    repeats = int(np.clip(cap_s / usual_s, FEWEST_REPEATS, MOST_REPEATS))
    # what ops before a collective leave behind on a CPU: caches full of something else
    numbers = np.ones(CACHE_BYTES // 8 if team.platform == "cpu" else 0)
    elapsed_s = []
    for _ in range(repeats):
        team.barrier()
        np.multiply(numbers, 1.0, out=numbers)
        elapsed_s.append(timed_s())
    took_s = time.perf_counter() - begin_s
    # by a clock of the processor nobody waits, and the rank that works most decides
    of_ranks = np.max if team.clock is time.process_time else np.min
    times = summarize(team.exchange(elapsed_s), case.chained, team.dispatch_s, of_ranks)
    return {**columns, **times}, took_s


def _columns(case: CollectiveCase) -> Row:
    sizes = {"collective": case.collective, "bytes": case.bytes, "chained": case.chained}
    return {**sizes, "dtype": DTYPE, "in_place": 0}


def _ordered(
    cases: Sequence[CollectiveCase], pass_no: int, seed: int
) -> list[tuple[CollectiveCase, int]]:
    """The pass's cases, the same on every rank: large ones first (see the module docstring)."""
    shuffled = [cases[i] for i in np.random.default_rng([seed, pass_no]).permutation(len(cases))]
    return [(case, pass_no) for case in sorted(shuffled, key=lambda case: -case.bytes)]


def _compile(case: CollectiveCase, team: Team, x: Any, y: Any) -> tuple[Any, str]:
    """The compiled case, and what is wrong with it, or nothing."""
    call = team.compile(collective_cases.chain(case), x, y, donate=(0, 1))
    found = collective_cases.count_collectives(case, call.as_text())
    wrong = f"the compiled program has {found} collectives instead of {case.chained}"
    error = "" if found == case.chained else f"{wrong}; this JAX changes what is measured here"
    return call, error
