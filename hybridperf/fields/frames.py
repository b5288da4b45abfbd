"""Tables in, the same tables with predictions out: what all questions of tables share, and which
module answers each.

    rows = [{"model": "llama3-70b", "gpu": "h100_sxm", "n_gpus": n, "tp": 8, "pp": 4,
             "global_batch": 512} for n in (256, 512)]
    hp.predict_steps(rows)[["n_gpus", "predicted_s", "low_s", "high_s", "note"]]

A table is a pandas frame or a list of dicts; its columns are the fields of the question
(`docs/reference/columns.md`), under these names or those that frameworks give them. The frame that
comes back has the rows, columns and index that were given, in their order, then the predictions. A
row that cannot be predicted keeps its place with empty numbers and the reason in `note`. What is to
be known of the whole table is in `frame.attrs["remarks"]`, sentences. After a second there is
a bar that shows how far it is.

`hybridperf ops`, `collectives`, `steps`, `serve` and `run` read a table, call these and write.

An app asks another one's question by its name (`answering`), so that none imports another.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hybridperf.fields.columns import columns_not_read, remark_not_read, strictly
from hybridperf.io import InputError, unknown
from hybridperf.io.later import pd
from hybridperf.io.progress import Progress, shown

if TYPE_CHECKING:
    import pandas

Rows: TypeAlias = "pandas.DataFrame | Sequence[Mapping[str, Any]]"
# a part of a table and the places of its rows, counted from 1 -> the part with predictions
Predict: TypeAlias = "Callable[[pandas.DataFrame, np.ndarray], pandas.DataFrame]"
# question -> the module whose `QUESTION` it is
ANSWERED_BY = {
    "ops": "hybridperf.model.frames",
    "collectives": "hybridperf.collectives.frames",
    "steps": "hybridperf.training.steps.frames",
    "serve": "hybridperf.serving.frames",
    "plans": "hybridperf.training.plans.frames",
    "runs": "hybridperf.runs.frames",
    "rl": "hybridperf.runs.rl.frames",
}
_FIRST = 2048  # rows of the first part of a table; then as many as take about `_PART_S`
_PART_S = 1.0  # what takes longer shows how far it is
_WORDS = ("note", "layout", "best_recompute", "best_schedule")
_FLAGS = ("fits", "in_range")


@dataclasses.dataclass(frozen=True)
class Question:
    """What tables can be asked.

    Attributes:
        predict: what predicts a part of a table, by `settings`.
        columns: names of what is added.
        seconds: the column that is empty where a row is not predicted.
        registry: of its fields (`fields_of`); "": read by op or collective.
        settings: arguments of `predict` that name a model's folder or a file of effects.
        chunk: rows of a sweep that are done together.
        assumed: what is assumed of a table where it says nothing (`assumed`); None: nothing is.
    """

    predict: Callable[..., Predict]
    columns: tuple[str, ...]
    seconds: str = "predicted_s"
    registry: str = ""
    settings: tuple[str, ...] = ()
    chunk: int = 32768
    assumed: Callable[..., pandas.DataFrame] | None = None

    def results(self) -> dict[str, type]:
        """Columns that are added: numbers, bool (which may be unknown) or words."""
        kinds = dict.fromkeys(_WORDS, str) | dict.fromkeys(_FLAGS, bool)
        return {name: kinds.get(name, float) for name in self.columns}


def answering(question: str) -> Any:
    """The module that answers a question of tables.

    Raises:
        InputError: for a question that nobody answers, or one whose app is not installed.
    """
    if question not in ANSWERED_BY:
        raise unknown("question", question, ANSWERED_BY, f"known are {', '.join(ANSWERED_BY)}")
    try:
        return importlib.import_module(ANSWERED_BY[question])
    except ModuleNotFoundError as error:
        raise InputError(
            f"{ANSWERED_BY[question]}, which answers {question}, is not installed ({error});"
            " install hybridperf whole"
        ) from error


def question_of(name: str) -> Question:
    """What tables can be asked under a name; `InputError` as of `answering`."""
    found: Question = answering(name).QUESTION
    return found


def assumed(rows: Rows, question: str = "steps", **place: str | None) -> pandas.DataFrame:
    """What is assumed of rows of a question where they say nothing, in its columns.

    `rows.fillna(hp.assumed(rows))`, with the columns that it lacks, is predicted alike, and so is
    a table with any part of them.

        hp.assumed({"model": "llama3-8b", "gpu": "h100_sxm", "n_gpus": 8, "global_batch": 8})
        hp.assumed([{"model": "llama3-8b", "gpu": "h100_sxm", "backend": "vllm", "isl": 1024,
                     "osl": 256, "concurrency": 16}], "serve")

    Args:
        rows: R rows, or one, in the columns of the question's command (`hybridperf steps --help`).
        question: "steps" or "serve".
        place: `device` and `system` of steps, in place of the rows' own.

    Returns:
        A table of R rows with the index of `rows`: a column for each that is read and that any row
        leaves open, empty where a row says it itself and where it cannot be predicted.

    Raises:
        InputError: for a device, system or column that nobody knows, a table without a model, and
            a question of which nothing is assumed.
    """
    found = question_of(question).assumed
    if found is None:
        raise InputError(f"expected steps or serve, whose rows leave things open, got {question!r}")
    frame = as_frame(rows)
    if question != "steps" and place:
        raise InputError(
            f"expected {next(iter(place))} in a column of rows of {question}, got it apart"
        )
    return found(frame, **place)


def in_words(assumed: pandas.DataFrame) -> list[str]:
    """Each row [R] of what is assumed as words that commands take: `tp=1 sharding=zero1`."""
    return [
        " ".join(
            f'{name}="{said}"' if " " in str(said) else f"{name}={said}"
            for name, said in row.items()
            if said is not None and said is not np.nan
        )
        for row in assumed.to_dict("records")
    ]


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
    try:
        return pd.DataFrame(given)
    except UnicodeEncodeError as error:
        raise InputError(f"expected words, got {error.object[:60]!a}; mend it") from error


def in_parts(
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
    with shown(what) as show, columns_not_read() as passed, strictly():
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
    found.attrs["remarks"] = (*remarks, *remark_not_read(passed))
    return found
