"""A whole sweep: missing chunks, here or on workers; one file of all; the best next to it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.explore.sweeps import cluster
from hybridperf.explore.sweeps.chunk import (
    MET,
    bounds,
    check_divisors,
    check_not_empty,
    chunks,
    evaluate,
)
from hybridperf.explore.sweeps.front import BestPoints, BestRule
from hybridperf.explore.sweeps.progress import SweepProgress, compiling_time
from hybridperf.explore.sweeps.spec import SweepSpec, read_spec, with_top
from hybridperf.explore.sweeps.store import SweepStore, parquet_bytes, read_part, sweep_identity
from hybridperf.io import write_table


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """What a sweep left."""

    out: Path
    points: int  # of the design
    rows: int  # of `out`: points that every constraint leaves
    unpredicted: int  # rows without a time
    computed: int  # points done by this run; the others were done before
    seconds: float
    top: Path | None  # tables next to `out`
    front: Path | None
    compiling_s: float = 0.0  # of `seconds`, in this process
    empty_because: str = ""  # which constraints on results left no row


def sweep(
    spec: str | os.PathLike | Mapping[str, Any],
    out: str | os.PathLike,
    *,
    top: int | None = None,
    by: str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    restart: bool = False,
    quiet: bool = False,
) -> SweepResult:
    """Predict every point of a grid of knobs and write a row per point to a Parquet file.

    A sweep that was stopped continues when it is called again.

    Args:
        spec: knobs, target and constraints: a TOML file, the name of a shipped example, or a dict
            of the same content.
        out: the Parquet file to write.
        top: how many of the best points are also written next to `out`; None: the spec's number.
        by: column whose smallest values are best; None: the spec's.
        workers: local Dask processes that share the work; None: this process alone.
        scheduler: address of a Dask scheduler whose workers share the work.
        restart: True: compute everything again, even where an earlier run was stopped.
        quiet: True: print no progress.

    Returns:
        A `SweepResult`: paths, and how many points were computed and written.

    Raises:
        InputError: when the spec is wrong, or both `workers` and `scheduler` are given.
    """
    cluster.check_workers(workers, scheduler)
    given = with_top(read_spec(spec), top, by)
    store = SweepStore(out, sweep_identity(given.identity()))
    start_s = time.monotonic()
    kept, computed, rows, unpredicted = BestPoints(given.best), 0, 0, 0
    check_divisors(given)
    check_not_empty(given, quiet=quiet)
    met = np.zeros(len(given.accept), int)
    with store.open(restart=restart), compiling_time() as compiling:
        for remark in () if quiet else given.remarks():
            print(f"sweep: {remark}", file=sys.stderr, flush=True)
        if store.is_complete():
            tables = store.read()
        else:
            computed = _do(given, store, workers, scheduler, quiet=quiet)
            tables = store.merge(chunks(given))
        for table in tables:
            met += json.loads((table.schema.metadata or {}).get(MET, b"[]")) or 0
            rows += table.num_rows
            if "time_s" in table.column_names:
                unpredicted += int(np.isnan(table["time_s"].to_numpy().astype(np.float64)).sum())
            if table.num_rows:
                kept.see_table(table)
    why = "" if rows else _why_empty(given, met, counted=computed == given.design.size)
    return SweepResult(
        out=store.out,
        points=given.design.size,
        rows=rows,
        unpredicted=unpredicted,
        computed=computed,
        seconds=time.monotonic() - start_s,
        top=_write_best(store.out, "top", kept.top),
        front=_write_best(store.out, "front", kept.front),
        compiling_s=compiling.seconds,
        empty_because=why,
    )


def _why_empty(spec: SweepSpec, met: np.ndarray, *, counted: bool) -> str:
    """Which constraints on results left no row; `counted`: `met` covers all points."""
    texts = [condition.text for condition in spec.accept]
    never = [text for text, count in zip(texts, met, strict=True) if counted and not count]
    if never:
        return f"no point meets {', nor any '.join(never)}"
    some = ", though some meet each" if counted and len(texts) > 1 else ""
    return f"no point meets {' and '.join(texts)}{some}"


def _do(
    spec: SweepSpec, store: SweepStore, workers: int | None, scheduler: str | None, *, quiet: bool
) -> int:
    """Every chunk that has no part yet; how many points those are."""
    total = chunks(spec)
    done = store.done(total)
    todo = [chunk for chunk in range(total) if chunk not in done]
    already = sum(len(range(*bounds(spec, chunk))) for chunk in done)
    progress = SweepProgress(spec.design.size, already=already, quiet=quiet)
    computed = 0
    if not todo:
        return computed
    leading = _Leading(spec)
    for chunk in sorted(done) if not quiet else ():
        leading.see(store.part(chunk))
    here = workers is None and scheduler is None
    for chunk in (
        _do_here(spec, todo, store) if here else cluster.do(spec, todo, store, workers, scheduler)
    ):
        points = len(range(*bounds(spec, chunk)))
        computed += points
        progress.add(points, "" if quiet else leading.see(store.part(chunk)))
    progress.end()
    return computed


def _do_here(spec: SweepSpec, todo: list[int], store: SweepStore) -> Iterator[int]:
    for chunk in todo:
        store.write(chunk, parquet_bytes(evaluate(spec, chunk)))
        yield chunk


class _Leading:
    """The best points so far, by the deciding columns alone; whole rows are read at the end."""

    def __init__(self, spec: SweepSpec):
        best = spec.best
        if not best.columns()[1:] and spec.target.results.get("time_s") is float:
            best = BestRule(1, "time_s", (), ())
        self._kept = BestPoints(dataclasses.replace(best, count=min(best.count, 1)))

    def see(self, part: bytes) -> str:
        """The best in words, after one more finished chunk."""
        columns = self._kept.best.columns()
        if columns[1:]:
            frame = read_part(part, columns).to_pandas()
            if len(frame):
                self._kept.see(frame)
        return self._kept.summary()


def _write_best(out: Path, kind: str, frame: Any) -> Path | None:
    if frame is None:
        return None
    path = out.with_name(f"{out.name.removesuffix('.parquet')}.{kind}.csv")
    write_table(frame, path)
    return path
