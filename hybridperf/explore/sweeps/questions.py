"""Any question that tables can be asked (`fields/frames.py`) as a sweep's target: a chunk is a
frame of rows, its results are what the function of frames adds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from hybridperf.explore.sweeps.tables import CollectivesTarget, OpsTarget
from hybridperf.explore.sweeps.target import Columns, WrittenTarget, place, register
from hybridperf.explore.sweeps.written import Names, Part
from hybridperf.fields import fields_of
from hybridperf.fields.columns import said_by
from hybridperf.fields.frames import ANSWERED_BY, Question, question_of
from hybridperf.io import InputError

_POINT = "point"
_CHECKS: Mapping[str, type[WrittenTarget]] = {"ops": OpsTarget, "collectives": CollectivesTarget}


class TableGiven(Part):
    """Rows of a table, a row a point: parameters are its columns."""

    kind: Literal["table"]
    question: Annotated[
        str,
        Field(
            description="whose columns they are, as of the command of that name",
            json_schema_extra={"enum": [*ANSWERED_BY]},
        ),
    ]
    model: Annotated[str, Field(description="of ops and collectives: a folder or a name")] = ""
    knobs: Annotated[str, Field(description="of steps: fitted step effects, a file")] = ""
    fit: Annotated[str, Field(description="of serve: fitted effects, a folder")] = ""
    also: Names = Field(default_factory=list, description="columns that are not read and pass")


@register("table")
class TableTarget(WrittenTarget):
    """Rows predicted by the function of frames of a question, by chunks."""

    Given = TableGiven

    def __init__(
        self, question: Question, given: Any, settings: Mapping[str, str], extremes: Columns
    ):
        self.results, self.seconds = question.results(), question.seconds
        self._question, self._given, self._settings = question, given, settings
        self._predict = question.predict(**settings)
        self._words = {name: [one for one in values if isinstance(one, str)]
                       for name, values in extremes.items() if values.dtype == object}  # fmt: skip
        # of ops and collectives, whose sizes are checked before anything is predicted
        checks = _CHECKS.get(given.question)
        self._checks = None if checks is None else checks.read(given, Path(), extremes)
        self.models = self._checks.models if self._checks else ()
        self._columns = {name for name in extremes if self._reads(name)} | {*given.also}

    @classmethod
    def read(cls, given: Any, folder: Path, extremes: Columns) -> TableTarget:
        question, settings = question_of(given.question), dict[str, str]()
        for name in ("model", "knobs", "fit"):
            if (value := getattr(given, name)) and name not in question.settings:
                raise InputError(f"{name} is no setting of {given.question}; leave it out")
            if value:
                settings[name] = place(value, folder)
        if "model" in question.settings and "model" not in settings:
            raise InputError(
                f"a sweep of {given.question} needs a model: a folder, or a name that `hybridperf"
                " models` lists"
            )
        if "model" in settings:
            given = given.model_copy(update={"model": settings["model"]})
        return cls(question, given, settings, extremes)

    def _reads(self, name: str) -> bool:
        if self._checks is not None:
            return name in self._checks.known()
        return fields_of(self._question.registry).called(name) is not None

    def known(self) -> set[str]:
        if self._checks is not None:
            return self._columns | self._checks.known()
        return self._columns | set(fields_of(self._question.registry).by_name)

    def check(self, extremes: Columns, given: set[str]) -> None:
        if self._checks is not None:
            self._checks.check(extremes, given)
        else:
            said_by(given, self._question.registry)

    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        # what formulas derive counts where it has a column's name
        names = [name for name in columns if name in self._columns or self._reads(name)]
        frame = pd.DataFrame({name: columns[name] for name in names})
        found = self._predict(frame, columns[_POINT] + 1)
        return {name: _cells(found[name], kind) for name, kind in self.results.items()}

    def fingerprint(self) -> str:
        """Of models, and of the content of files that settings and cells name."""
        digest = hashlib.sha256("-".join(one.fingerprint() for one in self.models).encode())
        words = {one for values in self._words.values() for one in values}
        for name in sorted(words | {*self._settings.values()}):
            path = Path(name)
            if os.sep in name or path.suffix:
                files = sorted(path.rglob("*")) if path.is_dir() else [path]
                for file in files:
                    if file.is_file():
                        digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def _cells(column: pd.Series, kind: type) -> np.ndarray:
    """Numbers, words, or flags: as numbers where some are not known."""
    if kind is bool and column.dtype != bool:
        return column.to_numpy(np.float64, na_value=np.nan)
    return column.to_numpy(object if kind is str else None)
