"""A whole sweep: missing chunks, here or on workers; one file of all; the best next to it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
from hybridperf.explore.sweeps.spec import Fields, SweepSpec, document, read_spec, with_top
from hybridperf.explore.sweeps.store import (
    SweepStore,
    folder_of_parts,
    parquet_bytes,
    read_part,
    sweep_identity,
)
from hybridperf.fields.frames import ANSWERED_BY, Rows, question_of
from hybridperf.io import InputError, write_table
from hybridperf.io.later import pd
from hybridperf.io.progress import Progress, say, shown
from hybridperf.io.sums import check_sum
from hybridperf.io.workers import check_workers

if TYPE_CHECKING:
    import pandas

_ALSO = {"plan": "plans", "run": "runs"}  # commands of these names


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """A finished sweep: its file, its spec, the best points."""

    out: Path
    points: int  # of the design
    rows: int  # of `out`: points that every constraint leaves
    unpredicted: int  # rows without a time
    computed: int  # points done by this run; the others were done before
    seconds: float
    top: Path | None  # tables next to `out`
    front: Path | None
    refused: str = ""  # why the first of the rows without a time has none
    empty_because: str = ""  # which constraints on results left no row

    def frame(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """The rows of `out`, all columns or some."""
        check_sum(self.out)
        table = pq.read_table(self.out, columns=None if columns is None else list(columns))
        return table.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)


def sweep(
    question: str, out: str | os.PathLike, *,
    fields: Fields | Rows | str | os.PathLike | None = None, where: str | Sequence[str] = (),
    sample: int | None = None, seed: int = 0, derived: Mapping[str, str] | None = None,
    minimise: str | Sequence[str] = (), maximise: str | Sequence[str] = (),
    model: str | os.PathLike = "", knobs: str | os.PathLike = "", fit: str | os.PathLike = "",
    chunk: int | None = None, top: int | None = None, by: str | None = None,
    workers: int | None = None, scheduler: str | None = None, restart: bool = False,
    quiet: bool = False,
) -> SweepResult:  # fmt: skip
    """Predict every point of a grid and write a row per point to a Parquet file.

        done = hp.sweep(
            "steps", "grid.parquet",
            fields={"model": "llama3-70b", "gpu": ["h100_sxm", "b200_sxm"], "n_gpus": "256..4096",
                    "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "micro_batch": [1, 2, 4]},
            where="tp * pp <= n_gpus", minimise=["predicted_s", "memory_bytes"], workers=2,
        )
        done.frame(["n_gpus", "tp", "pp", "predicted_s", "mfu", "fits"])

    A sweep that was stopped, or killed, goes on when it is called again: chunks that were done are
    not done again, each is checked by the sum of its bytes, and none is lost or there twice.

    Args:
        question: what each row asks: "steps", "serve", "plans", "runs", "rl", "ops" or
            "collectives", whose columns `fields` has (`hp.predict_steps` and its like predict the
            same).
        out: the Parquet file to write.
        fields: values by field: one, a list, a text such as "256..4096" (powers of
            two), "1..9:2" (steps of 2) or "1,2,8", or {"min": 1e3, "max": 1e9, "count": 50}. All
            of them multiply. Or rows: a frame, a list of dicts, or the name of a table's file.
        where: conditions that rows meet, Python's arithmetic over fields and results:
            "tp * pp <= n_gpus and mfu > 0.3". A row that could not be predicted stays, its note
            says why; a result that is not known (`fits` where it is not sure) meets none.
        sample: how many points of the product are drawn (Sobol, scrambled); None: all. Then
            {"min": 1, "max": 64} without count is drawn between.
        seed: of the sample.
        derived: further columns by name, formulas as in `where`.
        minimise: columns whose Pareto front is written next to `out`.
        maximise: likewise.
        model: of ops and collectives: a model's folder, or the name of a calibration or device.
        knobs: of steps: a file of fitted step effects (`hybridperf steps --save-knobs`).
        fit: of serve: a folder of fitted effects (`hybridperf serve --save`).
        chunk: points that are done, kept and resumed together; None: the question's usual number.
        top: how many of the best points are also written next to `out`; None: none are.
        by: column whose smallest values are best; None: the only one to minimise, else predicted
            seconds.
        workers: local Dask processes that share the work; None: this process alone.
        scheduler: address of a Dask scheduler whose workers share the work.
        restart: True: compute everything again, even where an earlier run was stopped.
        quiet: True: print no progress.

    Returns:
        A `SweepResult`: paths, and how many points were computed and written.

    Raises:
        InputError: when what is asked is wrong, or both `workers` and `scheduler` are given.
    """
    check_workers(workers, scheduler)
    if not isinstance(question, str):
        raise InputError(
            f"expected a question ({', '.join(ANSWERED_BY)}), got {type(question).__name__}"
        )
    question = _ALSO.get(question, question)
    question_of(question)
    if fields is None:
        raise InputError(
            f"expected fields and their values, or rows, with a sweep of {question}, got none"
        )
    SweepStore(out, {"hash": ""})  # its name is checked before rows are kept next to it
    settings = {"model": os.fspath(model), "knobs": os.fspath(knobs), "fit": os.fspath(fit)}
    asked = document(
        question, fields, folder=folder_of_parts(out), where=where, sample=sample, seed=seed,
        derived=derived, minimise=minimise, maximise=maximise, chunk=chunk,
        settings={name: value for name, value in settings.items() if value},
    )  # fmt: skip
    given = with_top(read_spec(asked), top, by)
    store = SweepStore(out, sweep_identity(given.identity()))
    start_s = time.monotonic()
    kept, computed, rows, unpredicted, refused = BestPoints(given.best), 0, 0, 0, ""
    check_divisors(given)
    check_not_empty(given, quiet=quiet)
    met = np.zeros(len(given.accept), int)
    with store.open(restart=restart):
        for remark in () if quiet else given.target.remarks():
            print(f"sweep: {remark}", file=sys.stderr, flush=True)
        if store.is_complete():
            tables = store.read()
        else:
            computed = _do(given, store, workers, scheduler, quiet=quiet)
            tables = store.merge(chunks(given))
        for table in tables:
            met += json.loads((table.schema.metadata or {}).get(MET, b"[]")) or 0
            rows += table.num_rows
            if (seconds := given.target.seconds) in table.column_names:
                without = np.isnan(table[seconds].to_numpy().astype(np.float64))
                unpredicted += int(without.sum())
                if without.any() and not refused and "note" in table.column_names:
                    refused = str(table["note"][int(without.argmax())].as_py())
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
        empty_because=why,
        refused=refused,
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
    if already and not quiet:
        say(f"{already:,} of {spec.design.size:,} points were done before")
    leading, computed, start_s = _Leading(spec), 0, time.monotonic()
    if not todo:
        return computed
    for chunk in sorted(done) if not quiet else ():
        leading.see(store.part(chunk))
    here = workers is None and scheduler is None
    each = _do_here(spec, todo, store) if here else cluster.do(
        spec, todo, store, workers, scheduler
    )  # fmt: skip
    with shown("sweep") as show:
        for chunk in each:
            computed += len(range(*bounds(spec, chunk)))
            if not quiet:
                rate = computed / max(time.monotonic() - start_s, 1e-9)
                best, at = leading.see(store.part(chunk)), already + computed
                doing = "; ".join(filter(None, (f"{rate:,.0f} points/s", best)))
                show(Progress(at, spec.design.size, doing, (spec.design.size - at) / rate))
    return computed


def _do_here(spec: SweepSpec, todo: list[int], store: SweepStore) -> Iterator[int]:
    for chunk in todo:
        store.write(chunk, parquet_bytes(evaluate(spec, chunk)))
        yield chunk


class _Leading:
    """The best points so far, by the deciding columns alone; whole rows are read at the end."""

    def __init__(self, spec: SweepSpec):
        best = spec.best
        seconds = spec.target.seconds
        if not best.columns()[1:] and spec.target.results.get(seconds) is float:
            best = BestRule(1, seconds, (), ())
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
