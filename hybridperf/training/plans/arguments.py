"""Arguments of a plan as people write them: numbers or lists of them, NumPy's numbers, "300B"
tokens, a single value of a dimension.

`InputError`, one sentence, for what is none of that.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from hybridperf.fields import fields_of
from hybridperf.io import InputError
from hybridperf.training.steps.row_layout import STAGES
from hybridperf.workloads.transformer.fields import LARGEST

# fields of a layout that columns have another name for
_IN_LAYOUT = {"seq_parallel": "sequence_parallel", "grad_accum": "accumulation", "sharding": "zero"}
_FLAGS = {"1": 1, "yes": 1, "true": 1, "on": 1, "0": 0, "no": 0, "false": 0, "off": 0}


def several(given: Any) -> list[Any]:
    """One thing or a collection of them, as a list."""
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    return list(given) if several else [given]


def whole_numbers(name: str, given: Any) -> list[int]:
    """One whole number of 1 or more, or several."""
    found, expected = several(given), f"expected a whole number of 1 or more in {name}, or several"
    for one in found:
        real = isinstance(one, numbers.Real) and not isinstance(one, bool)
        if not real or one < 1 or one % 1:  # the remainder of what is not finite is NaN
            raise InputError(f"{expected}, got {one!r}")
        if one > LARGEST:
            raise InputError(f"expected {name} of a billion or less, got {one!r}")
    if not found:
        raise InputError(f"{expected}, got none")
    return [int(one) for one in found]


def _of_layout(name: str, values: list[Any]) -> tuple[str, list[Any]]:
    """(a layout's field that a column of steps means, its values); what is none stays as it is."""
    call = fields_of("steps").called(name)
    if call is None:
        return name, values
    field, spelling = call
    if field.kind == "word":
        values = [field.meant(str(one), spelling) or one for one in values]
    if field.name == "sharding":
        values = [STAGES.get(one, one) for one in values]
    return _IN_LAYOUT.get(field.name, field.name), values


def narrowed(only: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Values by dimension, each a list; yes and no as numbers."""
    if not isinstance(only, Mapping):
        raise InputError(f'expected only as a mapping such as {{"tp": [1, 2]}}, got {only!r}')
    found: dict[str, list[Any]] = {}
    for given, values in only.items():
        name, meant = _of_layout(str(given), several(values))
        if name in found:
            raise InputError(f"expected {name} once in only, got it again as {given}; keep one")
        found[name] = meant
    for at, value in enumerate(found.get("sequence_parallel", [])):
        if str(value).lower() not in _FLAGS:
            raise InputError(f"sequence_parallel must be yes or no, got {value!r}")
        found["sequence_parallel"][at] = _FLAGS[str(value).lower()]
    return found
