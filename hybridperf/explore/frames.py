"""Tables in, the same tables with predictions out: one function for each question.

    rows = [{"model": "llama3-70b", "gpu": "h100_sxm", "n_gpus": n, "tp": 8} for n in (256, 512)]
    hp.predict_steps(rows)[["n_gpus", "predicted_s", "low_s", "high_s", "note"]]

A table is a pandas frame or a list of dicts; its columns are the fields of the question
(`docs/reference/columns.md`), under these names or those that frameworks give them. The frame that
comes back has the rows, columns and index that were given, in their order, then the predictions. A
row that cannot be predicted keeps its place with empty numbers and the reason in `note`. What is to
be known of the whole table is in `frame.attrs["remarks"]`, sentences. After a second there is
a bar that shows how far it is.

`hybridperf ops`, `collectives`, `steps`, `serve` and `run` read a table, call these and write.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hybridperf.io import InputError
from hybridperf.io.later import pd
from hybridperf.io.progress import Progress, shown

if TYPE_CHECKING:
    import pandas

    from hybridperf.collectives.model import CollectiveModel
    from hybridperf.hardware import Host
    from hybridperf.model import PerfModel
    from hybridperf.model.adapted_steps import Adaptation
    from hybridperf.runs.serving_fit import ServingFit

Rows: TypeAlias = "pandas.DataFrame | Sequence[Mapping[str, Any]]"
_FIRST = 2048  # rows of the first part of a table; then as many as take about `_PART_S`
_PART_S = 1.0  # what takes longer shows how far it is


def predict_ops(
    rows: Rows, model: PerfModel | str | os.PathLike, *, explain: bool = False
) -> pandas.DataFrame:
    """Seconds of ops: adds `predicted_s, low_s, high_s, roofline_s, in_range, note`.

        rows = [{"op": "gemm", "dtype": "bf16", "m": m, "n": 4096, "k": 4096} for m in (1, 4096)]
        hp.predict_ops(rows, "h100_sxm")

    Args:
        rows: R ops, in the columns of `hybridperf show ops`.
        model: a model, its folder, or the name of a calibration or a device.
        explain: also `explained`, each price as a waterfall of its stages.

    Raises:
        InputError: for a model that nobody knows, or a table of which no row can be read.
    """
    return _in_parts(as_frame(rows), _ops(model, explain), "ops")


def predict_collectives(rows: Rows, model: CollectiveModel | str | os.PathLike) -> pandas.DataFrame:
    """Seconds of collectives: adds `predicted_s, low_s, high_s, roofline_s, bus_bytes_per_s,
    in_range, note`.

        rows = [{"collective": "all_reduce", "bytes": 2**28, "n_gpus": n} for n in (2, 4, 8)]
        hp.predict_collectives(rows, "dgx_h100")

    Args:
        rows: R collectives: collective, bytes, n_gpus, n_nodes, lib, dtype, ...
        model: a model of links, its folder, or the name of a calibration or a system.

    Raises:
        InputError: for a model that nobody knows, or a table that lacks a column.
    """
    return _in_parts(as_frame(rows), _collectives(model), "collectives")


def predict_steps(
    rows: Rows, *, device: str | None = None, system: str | None = None,
    host: Host | None = None, fit_on: Rows | None = None,
    knobs: Adaptation | str | os.PathLike | None = None, explain: bool = False,
) -> pandas.DataFrame:  # fmt: skip
    """Seconds, tokens/s, MFU, memory of training steps, and what the time is made of.

        hp.predict_steps([{"model": "llama3-8b", "gpu": "h100_sxm", "n_gpus": 8, "tp": 2}])

    Adds `predicted_s, low_s, high_s, tokens_per_s, mfu, memory_bytes, fits, compute_s,
    exposed_comm_s, bubble_s, host_s, note` (`hybridperf steps --help`). A column of one of these
    names is kept as `given_NAME`; a table that this wrote before is predicted again.

    Args:
        rows: R steps, in the columns of `hybridperf steps --help`.
        device: accelerator in place of the rows' own.
        system: in place of the rows' own.
        host: how kernels are launched, where that was traced.
        fit_on: measured rows, with `step_time_s`, that step effects are fitted to.
        knobs: step effects that were fitted before, or the file that holds them.
        explain: also `assumed`, every column that a row leaves open, with what was assumed.

    Raises:
        InputError: for a device, system or column that nobody knows, and a table without a model.
    """
    from hybridperf.training.steps.predict import as_given

    known, remarks = step_effects(fit_on, knobs, host, device, system)
    predict = _steps(device, system, host, known, explain=explain)
    return _in_parts(as_given(as_frame(rows)), predict, "steps", remarks)


def step_effects(
    fit_on: Rows | None, knobs: Adaptation | str | os.PathLike | None, host: Host | None = None,
    device: str | None = None, system: str | None = None,
) -> tuple[Adaptation | None, Sequence[str]]:  # fmt: skip
    """(step effects fitted to measured rows, or as they were fitted before; remarks on the fit)."""
    from hybridperf.model.adapted_steps import Adaptation
    from hybridperf.training.steps.adaptation import adaptation
    from hybridperf.training.steps.batch import shared_price_cache
    from hybridperf.training.steps.predict import as_given

    if fit_on is not None and knobs is not None:
        raise InputError("expected rows to fit on or fitted knobs, got both; give one of them")
    if fit_on is not None:
        measured, cache = as_given(as_frame(fit_on)), shared_price_cache()
        return adaptation(measured, cache, host, device=device, system=system)
    return (Adaptation.load(Path(knobs)) if isinstance(knobs, str | os.PathLike) else knobs), ()


def predict_serving(
    rows: Rows, *, fit_on: Rows | None = None, fit: ServingFit | str | os.PathLike | None = None
) -> pandas.DataFrame:  # fmt: skip
    """Time to first token, time per output token, throughput and memory of served models.

        hp.predict_serving([{"model": "llama3-70b", "gpu": "h100_sxm", "backend": "vllm",
                             "tp": 8, "isl": 1024, "osl": 256, "concurrency": 32}])

    Adds `predicted_ttft_s, ttft_low_s, ttft_high_s, predicted_tpot_s, tpot_low_s, tpot_high_s,
    predicted_tokens_per_s_gpu, memory_bytes, fits, note` (`hybridperf serve --help`).

    Args:
        rows: R operating points, in the columns of `hybridperf serve --help`.
        fit_on: measured rows, with `ttft_s` and `tpot_s`, that effects are fitted to.
        fit: effects that were fitted before, or the folder that holds them.

    Raises:
        InputError: for a column that nobody knows, and measured rows that cannot be used.
    """
    from hybridperf.runs.serving_table import fit_of

    if fit_on is not None and fit is not None:
        raise InputError("expected rows to fit on or fitted effects, got both; give one of them")
    fit = fit if fit_on is None else fit_of(as_frame(fit_on))
    return _in_parts(as_frame(rows), _serving(fit), "operating points")


def predict_runs(rows: Rows) -> pandas.DataFrame:
    """Days, goodput, money and energy of whole training runs, with failures.

        hp.predict_runs([{"model": "llama3-70b", "system": "dgx_h100", "n_gpus": 1024,
                          "tokens": "15T", "checkpoint": "async"}])

    Adds `predicted_days, days_low, days_high`; `goodput`, `uptime`, `failures`, `gpu_hours`, `usd`,
    `energy_j`, each with `_low` and `_high`; `predicted_step_s`, `spare_nodes`,
    `checkpoint_every_s`, `layout`, `note`. The step is that of the best layout, within what a row
    pins of it (`tp=8`), or `step_time_s`.

    Args:
        rows: R runs, in the columns of `hybridperf run --help`.

    Raises:
        InputError: for a column that resembles one that is read.
    """
    return _in_parts(as_frame(rows), _runs(), "runs", first=4)


def predict_plans(rows: Rows) -> pandas.DataFrame:
    """The best layout of each row's model on its devices, and what it takes.

        hp.predict_plans([{"model": "llama3-70b", "system": "dgx_h100", "n_gpus": n}
                          for n in (64, 128, 256)])

    Adds `predicted_s, low_s, high_s, tokens_per_s, mfu, memory_bytes, usd, energy_j`, `days` and
    `total_usd` where `tokens` are given, the layout as `best_tp`, `best_pp`, ... and in words in
    `layout`, `note`. `hp.plan` tells more of one of them.

    Args:
        rows: R plans: model, system, n_gpus, global_batch, seq, framework, precision, tokens,
            objective, memory_bytes, and fields of a layout that are pinned.

    Raises:
        InputError: for a column that resembles one that is read.
    """
    return _in_parts(as_frame(rows), _plans(), "plans", first=4)


def as_frame(rows: Rows) -> pandas.DataFrame:
    """A table from what was given."""
    if isinstance(rows, pd.DataFrame):
        return rows
    given = [rows] if isinstance(rows, Mapping) else list(rows)
    if not all(isinstance(row, Mapping) for row in given):
        raise InputError(
            "expected a table as a pandas frame or a list of dicts, got"
            f" {type(rows).__name__}; give rows such as [{{'tp': 2}}]"
        )
    return pd.DataFrame(given)


# a part of a table and the places of its rows, counted from 1 -> the part with predictions
Predict: TypeAlias = "Callable[[pandas.DataFrame, np.ndarray], pandas.DataFrame]"


def _ops(model: PerfModel | str | os.PathLike, explain: bool = False) -> Predict:
    from hybridperf.model import PerfModel, model_or_datasheet

    loaded = model if isinstance(model, PerfModel) else model_or_datasheet(str(model))
    return lambda part, _: loaded.predict_ops(part, explain)


def _collectives(model: CollectiveModel | str | os.PathLike) -> Predict:
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.collectives.model import CollectiveModel

    loaded = model if isinstance(model, CollectiveModel) else collectives_by_name(str(model))
    return lambda part, _: loaded.predict(part)


def _steps(
    device: str | None = None, system: str | None = None, host: Host | None = None,
    knobs: Adaptation | str | os.PathLike | None = None, explain: bool = False,
) -> Predict:  # fmt: skip
    from hybridperf.training.steps.full_row import assumed_words
    from hybridperf.training.steps.predict import predict_steps as predicted

    known, _ = step_effects(None, knobs)

    def of_part(part: pandas.DataFrame, places: np.ndarray) -> pandas.DataFrame:
        found = predicted(part, device, system, host, None, known, places=places.tolist()).frame
        return found.assign(assumed=assumed_words(part, device, system)) if explain else found

    return of_part


def _serving(fit: ServingFit | str | os.PathLike | None = None) -> Predict:
    from hybridperf.runs.serving_fit import ServingFit
    from hybridperf.runs.serving_table import predict_serving as predicted

    known = ServingFit.load(Path(fit)) if isinstance(fit, str | os.PathLike) else fit
    return lambda part, _: predicted(part, fit=known).frame


def _plans() -> Predict:
    from hybridperf.training.plans.rows import plan_rows

    return lambda part, _: plan_rows(part)


def _runs() -> Predict:
    from hybridperf.runs.run_rows import predict_run_rows

    return lambda part, _: predict_run_rows(part)


@dataclasses.dataclass(frozen=True)
class Question:
    """What tables can be asked.

    Attributes:
        predict: what predicts a part of a table, by `settings`.
        columns: the module whose `COLUMNS` are added.
        seconds: the column that is empty where a row is not predicted.
        registry: of its fields (`fields_of`); "": read by op or collective.
        settings: arguments of `predict` that name a model's folder or a file of effects.
        chunk: rows of a sweep that are done together.
    """

    predict: Callable[..., Predict]
    columns: str
    seconds: str = "predicted_s"
    registry: str = ""
    settings: tuple[str, ...] = ()
    chunk: int = 32768

    def results(self) -> dict[str, type]:
        """Columns that are added: numbers, bool (which may be unknown) or words."""
        kinds = dict.fromkeys(_WORDS, str) | dict.fromkeys(_FLAGS, bool)
        names = importlib.import_module(self.columns).COLUMNS
        return {name: kinds.get(name, float) for name in names}


_WORDS = ("note", "layout", "best_recompute", "best_schedule")
_FLAGS = ("fits", "in_range")
QUESTIONS = {
    "ops": Question(_ops, "hybridperf.model.priced_ops", settings=("model",)),
    "collectives": Question(_collectives, "hybridperf.collectives.model", settings=("model",)),
    "steps": Question(
        _steps, "hybridperf.training.steps.predict", registry="steps", settings=("knobs",)
    ),
    "serve": Question(
        _serving, "hybridperf.runs.serving_table", "predicted_ttft_s", "serve", ("fit",), 8192
    ),
    "plans": Question(_plans, "hybridperf.training.plans.rows", registry="plans", chunk=16),
    "runs": Question(_runs, "hybridperf.runs.run_rows", "predicted_days", "runs", chunk=64),
}


def _in_parts(
    frame: pandas.DataFrame, predict: Predict, what: str, remarks: Sequence[str] = (),
    first: int | None = None,
) -> pandas.DataFrame:  # fmt: skip
    """A table predicted part by part, as one that takes long shows how far it is.

    Args:
        frame: the table [R].
        predict: predicts a part of it, given the places of its rows, counted from 1.
        what: of the rows, for the bar.
        remarks: on the whole, kept in `attrs`.
        first: rows of the first part; None: `_FIRST`.
    """
    rows, parts, done, size = len(frame), list[Any](), 0, first or _FIRST
    places = np.arange(1, rows + 1)
    start_s = time.perf_counter()
    with shown(what) as show:
        while done < rows or not parts:
            began_s = time.perf_counter()
            try:
                parts.append(predict(frame.iloc[done : done + size], places[done : done + size]))
            except InputError:
                # of a table of which no row can be read; a part may be, and the rest readable
                if not done and rows <= size:
                    raise
                parts, done = [predict(frame, places)], rows
                break
            done = min(done + size, rows)
            now_s = time.perf_counter()
            size = max(1, min(int(size * _PART_S / max(now_s - began_s, 1e-3)), 4 * size))
            if now_s - start_s > _PART_S and (done < rows or len(parts) > 1):
                show(Progress(done, rows))
    found = parts[0] if len(parts) == 1 else pd.concat(parts)
    found.attrs["remarks"] = tuple(remarks)
    return found
