"""Tables of operating points of served models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts, in_words
from hybridperf.io import InputError
from hybridperf.serving.fit import ServingFit
from hybridperf.serving.full_row import assumed
from hybridperf.serving.rollouts import rollouts
from hybridperf.serving.table import COLUMNS, fit_of
from hybridperf.serving.table import predict_serving as predicted

__all__ = ["QUESTION", "predict_serving", "rollouts"]

if TYPE_CHECKING:
    import numpy as np
    import pandas


def predict_serving(
    rows: Rows, *, fit_on: Rows | None = None,
    fit: ServingFit | str | os.PathLike | None = None, explain: bool = False,
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
        explain: also `assumed`, every column that a row leaves open, with what was assumed.

    Raises:
        InputError: for a column that nobody knows, and measured rows that cannot be used.
    """

    if fit_on is not None and fit is not None:
        raise InputError("expected rows to fit on or fitted effects, got both; give one of them")
    fit = fit if fit_on is None else fit_of(as_frame(fit_on))
    return in_parts(as_frame(rows), _serving(fit, explain), "operating points")


def _serving(fit: ServingFit | str | os.PathLike | None = None, explain: bool = False) -> Predict:

    known = ServingFit.load(Path(fit)) if isinstance(fit, str | os.PathLike) else fit

    def of_part(part: pandas.DataFrame, _: np.ndarray) -> pandas.DataFrame:
        found = predicted(part, fit=known).frame
        return found.assign(assumed=in_words(assumed(part))) if explain else found

    return of_part


QUESTION = Question(_serving, COLUMNS, "predicted_ttft_s", "serve", ("fit",), 8192, assumed=assumed)
