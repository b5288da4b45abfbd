"""What a sweep asks at each point: a question of tables (`fields/frames.py`). A chunk of points is
a frame of rows, its results are what the function of frames adds.

It is read before any point is made, so that what is wrong is reported before anything is computed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.explore.sweeps.tables import CollectiveRows, Columns, OpRows
from hybridperf.fields import fields_of
from hybridperf.fields.columns import said_by
from hybridperf.fields.frames import question_of
from hybridperf.io import InputError

_POINT = "point"
# of ops and collectives, whose sizes are checked before anything is predicted
_CHECKS: Mapping[str, type[OpRows | CollectiveRows]] = {
    "ops": OpRows, "collectives": CollectiveRows,
}  # fmt: skip


class Target:
    """Rows predicted by the function of frames of a question, by chunks.

    Args:
        question: whose columns they are.
        settings: what it is asked by: a model of ops and collectives, fitted effects.
        also: columns that are not read and pass.
        folder: where files that settings name are looked for.
        extremes: values of each parameter that include its smallest and largest (of words, all).
    """

    def __init__(
        self, question: str, settings: Mapping[str, str], also: Collection[str], folder: Path,
        extremes: Columns,
    ):  # fmt: skip
        self._question, self._settings = question_of(question), dict[str, str]()
        for name, value in settings.items():
            if name not in self._question.settings:
                raise InputError(f"{name} is no setting of {question}; leave it out")
            path = folder / value  # a file by its whole path, else a name
            self._settings[name] = str(path.resolve()) if os.path.exists(path) else value
        if "model" in self._question.settings and "model" not in self._settings:
            raise InputError(
                f"a sweep of {question} needs a model: a folder, or a name that `hybridperf"
                " models` lists"
            )
        # columns that are added: float, bool or str; the one that is empty where not predicted
        self.results, self.seconds = self._question.results(), self._question.seconds
        self._predict = self._question.predict(**self._settings)
        self._words = {one for values in extremes.values() if values.dtype == object
                       for one in values if isinstance(one, str)}  # fmt: skip
        checks = _CHECKS.get(question)
        self._checks = checks(self._settings["model"], extremes) if checks else None
        self._columns = {name for name in extremes if self._reads(name)} | {*also}

    def _reads(self, name: str) -> bool:
        if self._checks is not None:
            return name in self._checks.known()
        return fields_of(self._question.registry).called(name) is not None

    def known(self) -> set[str]:
        """Names of the parameters that it reads."""
        if self._checks is not None:
            return self._columns | self._checks.known()
        return self._columns | set(fields_of(self._question.registry).by_name)

    def check(self, extremes: Columns, given: set[str]) -> None:
        """`InputError` for impossible values, or for a parameter missing among `given`."""
        if self._checks is not None:
            self._checks.check(extremes, given)
        else:
            said_by(given, self._question.registry)

    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        """Results [n] by name at n points; `columns` may hold more than it reads."""
        # what formulas derive counts where it has a column's name
        names = [name for name in columns if name in self._columns or self._reads(name)]
        frame = pd.DataFrame({name: columns[name] for name in names})
        found = self._predict(frame, columns[_POINT] + 1)
        return {name: _cells(found[name], kind) for name, kind in self.results.items()}

    def remarks(self) -> list[str]:
        """Notes before any result is read, such as that a datasheet stands in for measurements."""
        return [] if self._checks is None else self._checks.model.shortcomings()

    def fingerprint(self) -> str:
        """Of the model, and of the content of files that settings and cells name."""
        model = "" if self._checks is None else self._checks.model.fingerprint()
        digest = hashlib.sha256(model.encode())
        for name in sorted(self._words | {*self._settings.values()}):
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
