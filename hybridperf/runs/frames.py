"""Tables of whole training runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts
from hybridperf.runs.run_rows import COLUMNS, predict_run_rows

if TYPE_CHECKING:
    import pandas


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
    return in_parts(as_frame(rows), _runs(), "runs", first=4)


def _runs() -> Predict:

    return lambda part, _: predict_run_rows(part)


QUESTION = Question(_runs, COLUMNS, "predicted_days", "runs", chunk=64)
