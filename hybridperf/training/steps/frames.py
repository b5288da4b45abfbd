"""Tables of training steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts, in_words
from hybridperf.io import InputError
from hybridperf.model.adapted_steps import Adaptation
from hybridperf.training.steps.adaptation import adaptation
from hybridperf.training.steps.batch import shared_price_cache
from hybridperf.training.steps.full_row import assumed
from hybridperf.training.steps.predict import COLUMNS, before_predictions, forward_passes_s
from hybridperf.training.steps.predict import predict_steps as predicted

__all__ = ["QUESTION", "forward_passes_s", "predict_steps", "step_effects"]

if TYPE_CHECKING:
    import pandas

    from hybridperf.hardware import Host


def predict_steps(
    rows: Rows, *, device: str | None = None, system: str | None = None,
    host: Host | None = None, fit_on: Rows | None = None,
    knobs: Adaptation | str | os.PathLike | None = None, explain: bool = False,
) -> pandas.DataFrame:  # fmt: skip
    """Seconds, tokens/s, MFU, memory of training steps, and what the time is made of.

        rows = [{"model": "llama3-8b", "gpu": "h100_sxm", "n_gpus": 8, "tp": 2, "pp": 1,
                 "global_batch": 32}]
        hp.predict_steps(rows)

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

    known, remarks = step_effects(fit_on, knobs, host, device, system)
    predict = _steps(device, system, host, known, explain=explain)
    return in_parts(before_predictions(as_frame(rows)), predict, "steps", remarks)


def step_effects(
    fit_on: Rows | None, knobs: Adaptation | str | os.PathLike | None, host: Host | None = None,
    device: str | None = None, system: str | None = None,
) -> tuple[Adaptation | None, Sequence[str]]:  # fmt: skip
    """(step effects fitted to measured rows, or as they were fitted before; remarks on the fit)."""

    if fit_on is not None and knobs is not None:
        raise InputError("expected rows to fit on or fitted knobs, got both; give one of them")
    if fit_on is not None:
        measured, cache = before_predictions(as_frame(fit_on)), shared_price_cache()
        return adaptation(measured, cache, host, device=device, system=system)
    return (Adaptation.load(Path(knobs)) if isinstance(knobs, str | os.PathLike) else knobs), ()


def _steps(
    device: str | None = None, system: str | None = None, host: Host | None = None,
    knobs: Adaptation | str | os.PathLike | None = None, explain: bool = False,
) -> Predict:  # fmt: skip

    known, _ = step_effects(None, knobs)

    def of_part(part: pandas.DataFrame, places: np.ndarray) -> pandas.DataFrame:
        found = predicted(part, device, system, host, None, known, places=places.tolist()).frame
        return found.assign(assumed=in_words(assumed(part, device, system))) if explain else found

    return of_part


QUESTION = Question(_steps, COLUMNS, registry="steps", settings=("knobs",), assumed=assumed)
