"""Tables of ops."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.priced_ops import COLUMNS

if TYPE_CHECKING:
    import pandas


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
    return in_parts(as_frame(rows), _ops(model, explain), "ops")


def _ops(model: PerfModel | str | os.PathLike, explain: bool = False) -> Predict:
    loaded = model if isinstance(model, PerfModel) else model_or_datasheet(str(model))
    return lambda part, _: loaded.predict_ops(part, explain, whole=True)


QUESTION = Question(_ops, COLUMNS, settings=("model",))
