"""Parameters of a sweep of ops or collectives: which are read, and which values can be, before
anything is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridperf.collectives.fit import collectives_by_name
from hybridperf.collectives.traffic import canonical_collective
from hybridperf.fields import fields_of
from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError, closest
from hybridperf.model import model_or_datasheet
from hybridperf.ops import columns_of, op_by_name
from hybridperf.ops.base import op_fields
from hybridperf.ops.table import LABELS

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
