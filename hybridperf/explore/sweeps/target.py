"""What a sweep asks at each point: a question of tables (`fields/frames.py`). A chunk of points is
a frame of rows, its results are what the function of frames adds.

It is read before any point is made, so that what is wrong is reported before anything is computed.

Of a sweep of ops or collectives its parameters are read so, too (`OpRows`, `CollectiveRows`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.collectives.traffic import canonical_collective
from hybridperf.fields import fields_of
from hybridperf.fields.columns import said_by
from hybridperf.fields.frames import question_of
from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, closest
from hybridperf.model import model_or_datasheet
from hybridperf.ops import columns_of, op_by_name
from hybridperf.ops.base import op_fields
from hybridperf.ops.table import LABELS

_POINT = "point"


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


Columns = Mapping[str, np.ndarray]  # [n] by name
_LARGEST = 1e24  # as of work of one op, `ops/table.py`
_COLLECTIVE = [one for one in fields_of("collectives") if one.priced]


class OpRows:
    """Ops under a model."""

    def __init__(self, model: str, extremes: Columns):
        if "op" not in extremes:
            needs = 'needs a parameter op, such as op = "gemm"; `hybridperf show ops` lists them'
            raise InputError(f"a sweep of ops {needs}")
        self._ops = {str(name): op_by_name(str(name)) for name in dict.fromkeys(extremes["op"])}
        self.model = model_or_datasheet(model)

    def known(self) -> set[str]:
        of_ops = [{*cls.dimensions(), *columns_of(cls).text} for cls, _ in self._ops.values()]
        own = {"op", "dtype", "reuse_bytes", *LABELS}.union(*of_ops)
        return {name for field in op_fields() if field.name in own for name in field.names}

    def check(self, extremes: Columns, given: set[str]) -> None:
        if "dtype" not in given:
            raise InputError('a sweep of ops needs a parameter dtype, such as dtype = "bf16"')
        for dtype in dict.fromkeys(extremes.get("dtype", ())):
            canonical_dtype(str(dtype))
        for op, (cls, fixed) in self._ops.items():
            columns = columns_of(cls)
            for dimension in cls.dimensions():
                if dimension in fixed:
                    continue
                field = op_fields()[dimension]
                if not given & set(field.names) and dimension not in columns.optional:
                    near = closest(dimension, given)
                    raise InputError(f"a sweep of {op} needs a parameter {dimension!r}{near}")
                for name in field.names:
                    if name in extremes and extremes[name].dtype.kind in "iuf":
                        check_positive(name, extremes[name], zero=dimension in columns.zero_allowed)
                    elif name in extremes and field.kind != "flag":
                        check_positive(name, extremes[name])


class CollectiveRows:
    """Collectives under a model."""

    def __init__(self, model: str, extremes: Columns):
        del extremes  # all kinds have the same parameters
        self.model = collectives_by_name(model)

    def known(self) -> set[str]:
        return {name for field in _COLLECTIVE for name in field.names}

    def check(self, extremes: Columns, given: set[str]) -> None:
        for field in _COLLECTIVE:
            told = [name for name in field.names if name in given]
            if not told and field.name in ("collective", "bytes", "n_gpus"):
                near = closest(field.name, given)
                raise InputError(f"a sweep of collectives needs a parameter {field.name!r}{near}")
            for name in (one for one in told if one in extremes):
                if field.name == "collective":
                    for collective in dict.fromkeys(extremes[name]):
                        canonical_collective(str(collective))
                elif field.kind in ("whole", "number"):
                    check_positive(name, extremes[name], least=1.0)


def check_positive(
    name: str, values: np.ndarray, *, zero: bool = False, least: float = 0.0
) -> None:
    """`InputError` unless all values are finite numbers above zero (at least zero with `zero`)."""
    rule = f"parameter {name} must be numbers {'of at least' if zero else 'above'} zero"
    if values.dtype.kind == "b":
        raise InputError(f"{rule}, got true or false")
    wrong = values
    if values.dtype.kind in "iuf":
        wrong = values[~(np.isfinite(values) & ((values >= 0) if zero else (values > 0)))]
    if len(wrong):
        raise InputError(f"{rule}, got {wrong[0]!s}")
    if len(values) and values.max() > _LARGEST:
        raise InputError(f"parameter {name} must be at most {_LARGEST:g}, got {values.max():g}")
    if len(values) and values.min() < least:
        raise InputError(f"parameter {name} must be at least {least:g}, got {values.min():g}")


# of ops and collectives, whose sizes are checked before anything is predicted
_CHECKS: Mapping[str, type[OpRows | CollectiveRows]] = {
    "ops": OpRows, "collectives": CollectiveRows,
}  # fmt: skip
