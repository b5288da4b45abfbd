"""A sweep of a question (`fields/frames.py`) as a spec: its fields and their values, what must
hold, how many points are drawn.

    fields = {"model": "llama3-70b", "gpu": "h100_sxm", "n_gpus": "256..4096", "tp": [1, 2, 4, 8]}
    grid_spec("steps", fields, where="tp <= 8 and n_gpus % tp == 0")

Values are one, a list, a text as `ranges.py` reads it, or an axis as a spec has it
(`{"min": 1e3, "max": 1e9, "count": 50}`, `written.py`). All of them multiply; with `sample` so many
points of the product are drawn, evenly (Sobol, scrambled), and an axis with min and max alone is
sampled between them. A frame or a file of rows is taken row by row.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.explore.sweeps.ranges import values_of
from hybridperf.fields import fields_of
from hybridperf.fields.frames import Rows, as_frame, question_of
from hybridperf.io import InputError, read_table, write_table
from hybridperf.io.later import pd

if TYPE_CHECKING:
    import pandas

Fields = Mapping[str, Any]


def grid_spec(
    question: str, fields: Fields | Rows | str | os.PathLike, *, folder: Path,
    where: str | Sequence[str] = (), sample: int | None = None, seed: int = 0,
    derived: Mapping[str, str] | None = None, minimise: str | Sequence[str] = (),
    maximise: str | Sequence[str] = (), settings: Mapping[str, str] | None = None,
    chunk: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The spec of a sweep of a question.

    Args:
        question: of tables (`ANSWERED_BY`).
        fields: values by field; or rows: a frame, a list of dicts, the name of a table's file.
        folder: where rows that are no file are kept for those who do the work.
        where: conditions on fields and results, which rows that are written meet; those on results
            but for rows without any.
        sample: how many points of the product are drawn; None: all.
        seed: of the sample.
        derived: further columns by name, formulas of fields and results.
        minimise: columns whose Pareto front is written.
        maximise: likewise.
        settings: what the question is asked by: the model of ops and collectives, fitted effects.
        chunk: rows done together; None: the question's own number.

    Raises:
        InputError: for a field that nobody knows, or values that are none.
    """
    asked = question_of(question)
    target: dict[str, Any] = {"question": question, **(settings or {})}
    if isinstance(fields, Mapping):
        parameters = {str(name): _axis(name, given) for name, given in fields.items()}
        _check_names(question, parameters)
        design = {}
        if sample is not None:
            design = {"design": {"count": sample, "seed": seed}}
            parameters = {name: _sampled(axis) for name, axis in parameters.items()}
    else:
        if sample is not None:
            raise InputError(
                "expected fields with their values to sample, got rows; draw from these"
            )
        path, frame = _rows(fields, folder)
        names = list(map(str, frame.columns))
        parameters = {name: {"table": str(path)} for name in names}
        design = {}
        if asked.registry:
            called = fields_of(asked.registry).called
            target["also"] = [name for name in names if called(name) is None]
    conditions = [where] if isinstance(where, str) else list(where)
    return {
        "target": target, "parameters": parameters, **design, "chunk": chunk or asked.chunk,
        "constraints": {f"where_{at}": text for at, text in enumerate(conditions, 1)},
        "derived": dict(derived or {}),
        "objective": {"minimise": _names(minimise), "maximise": _names(maximise)},
    }  # fmt: skip


def _names(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _axis(name: Any, given: Any) -> Any:
    """What a spec says of a field."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str):
        return values_of(given)
    if isinstance(given, np.ndarray | pd.Series | range | tuple):
        given = np.asarray(given).tolist()
    several = given if isinstance(given, list) else [given]
    values = [one.item() if isinstance(one, np.generic) else one for one in several]
    if not values:
        raise InputError(f"expected values of {name}, got none")
    return values


def _sampled(axis: Any) -> Any:
    """An axis of a product as one that is drawn from."""
    if isinstance(axis, list) and len(axis) > 1:
        return {"values": axis, "sample": "sobol"}
    return axis


def _check_names(question: str, parameters: Mapping[str, Any]) -> None:
    """`InputError` for a name that is no field of the question's registry."""
    registry = question_of(question).registry
    if not registry:
        return
    fields = fields_of(registry)
    for name in parameters:
        if fields.called(name) is None:
            near = fields.resembled(name)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            command = {"plans": "plan", "runs": "run"}.get(question, question)
            listed = f"`hybridperf {command} --help` lists what there is"
            raise InputError(f"{name!r} is no field of {question}{meant}; {listed}")


def _rows(given: Any, folder: Path) -> tuple[Path, pandas.DataFrame]:
    """(the file of rows, the rows); what is no file is written as one, under a hash of itself."""
    if isinstance(given, str | os.PathLike):
        path = Path(given).resolve()
        return path, read_table(path)
    frame = as_frame(given)
    content = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
    names = "\n".join(map(str, frame.columns)).encode()
    path = folder.resolve() / f"rows-{hashlib.sha256(names + content).hexdigest()[:16]}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_table(frame, path)
    return path, frame
