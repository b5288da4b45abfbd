"""Ops and collectives as rows of a table: columns are parameters, predictions are results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.traffic import canonical_collective
from hybridperf.explore.sweeps.target import Columns, WrittenTarget, check_positive, place, register
from hybridperf.explore.sweeps.written import Part
from hybridperf.fields import fields_of
from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, closest
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.ops import Op, columns_of, op_by_name
from hybridperf.ops.base import op_fields
from hybridperf.ops.table import LABELS

_ANSWERS = {  # column of a prediction -> column of a sweep
    "predicted_s": "time_s", "low_s": "low_s", "high_s": "high_s", "roofline_s": "roofline_s",
}  # fmt: skip
_MARKS: dict[str, type] = {"in_range": bool, "note": str}
_SECONDS: dict[str, type] = dict.fromkeys(_ANSWERS.values(), float)
_COLLECTIVE = [one for one in fields_of("collectives") if one.priced]


class OpsGiven(Part):
    """Ops as rows of a table: parameters are its columns."""

    kind: Literal["ops"]
    model: Annotated[str, Field(description="folder or name of a model, or of a datasheet")]


class CollectivesGiven(Part):
    """Collectives as rows of a table: parameters are its columns."""

    kind: Literal["collectives"]
    model: Annotated[str, Field(description="folder or name of a model, or of a system")]


@register("ops")
class OpsTarget(WrittenTarget):
    """`PerfModel.predict_ops` by chunks."""

    Given = OpsGiven
    results = _SECONDS | _MARKS

    def __init__(self, model: PerfModel, ops: Mapping[str, tuple[type[Op], Mapping[str, Any]]]):
        self._model, self.models, self._ops = model, (model,), ops

    @classmethod
    def read(cls, given: Any, folder: Path, extremes: Columns) -> OpsTarget:
        if "op" not in extremes:
            needs = 'needs a parameter op, such as op = "gemm"; `hybridperf show ops` lists them'
            raise InputError(f"a sweep of ops {needs}")
        ops = {str(name): op_by_name(str(name)) for name in dict.fromkeys(extremes["op"])}
        return cls(model_or_datasheet(place(given.model, folder)), ops)

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

    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        return _answers(self._model.predict_ops(_frame(columns, self.known())), self.results)


@register("collectives")
class CollectivesTarget(WrittenTarget):
    """`CollectiveModel.predict` by chunks."""

    Given = CollectivesGiven
    results = _SECONDS | {"bus_bytes_per_s": float} | _MARKS

    def __init__(self, model: CollectiveModel):
        self._model, self.models = model, (model,)

    @classmethod
    def read(cls, given: Any, folder: Path, extremes: Columns) -> CollectivesTarget:
        del extremes
        return cls(collectives_by_name(place(given.model, folder)))

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

    def evaluate(self, columns: Columns) -> dict[str, np.ndarray]:
        return _answers(self._model.predict(_frame(columns, self.known())), self.results)


def _frame(columns: Columns, known: set[str]) -> pd.DataFrame:
    return pd.DataFrame({name: values for name, values in columns.items() if name in known})


def _answers(predicted: pd.DataFrame, results: Mapping[str, type]) -> dict[str, np.ndarray]:
    renamed = predicted.rename(columns=_ANSWERS)
    return {name: renamed[name].to_numpy() for name in results}
