"""Tables of plans; and the step of a plan's best layout, for runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.fields.frames import Predict, Question, Rows, as_frame, in_parts
from hybridperf.training.plans.rows import COLUMNS, arguments_of, plan_rows
from hybridperf.training.plans.step import best_step, step_of_plan

__all__ = ["QUESTION", "arguments_of", "best_step", "predict_plans", "step_of_plan"]

if TYPE_CHECKING:
    import pandas


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
    return in_parts(as_frame(rows), _plans(), "plans", first=4)


def _plans() -> Predict:

    return lambda part, _: plan_rows(part)


QUESTION = Question(_plans, COLUMNS, registry="plans", chunk=16)
