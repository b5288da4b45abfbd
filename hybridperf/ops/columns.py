"""How tables of measurements write an op, besides its fields' own names: what they may leave out,
what other people call it, which words stand for numbers. `register` keeps one `Columns` per op.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybridperf.hardware import DeviceSpec
from hybridperf.io.namespace import Array


def _as_written(field: str, word: str, dtype: str) -> str:
    del field, dtype
    return word


def _as_stored(dtype: str, device: DeviceSpec) -> str:
    del device
    return dtype


@dataclasses.dataclass(frozen=True)
class Columns:
    """Of one op. Fields with a default are optional, and words are `text`, without being named."""

    # columns a table may lack, with the value meant then
    optional: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # columns of other people's tables -> ours
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    zero_allowed: frozenset[str] = frozenset()  # dimensions that may be zero
    # fields of words, which change the work, with their default: what an empty cell means
    text: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # words that tables write where a flag of ours is a number
    words: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # optional dimension: (label, part of its text -> value)
    implied: Mapping[str, tuple[str, Mapping[str, float]]] = dataclasses.field(default_factory=dict)
    # (field, word, dtype) -> the word as we write it; `InputError` for one that is unknown
    read_text: Callable[[str, str, str], str] = _as_written
    # of an op with columns [N]: (whether sizes contradict each other [N], what they must be)
    contradictions: Callable[[Any], Sequence[tuple[Array, str]]] = lambda op: ()
    # (dtype of operands, device) -> the number format that libraries choose there
    dtype_on: Callable[[str, DeviceSpec], str] = _as_stored

    def with_defaults(self, defaults: Mapping[str, Any]) -> Columns:
        """The same, where an op's fields have these defaults."""
        numbers = {name: value for name, value in defaults.items() if isinstance(value, float)}
        words = {name: value for name, value in defaults.items() if isinstance(value, str)}
        return dataclasses.replace(
            self, optional={**numbers, **self.optional}, text={**words, **self.text},
            zero_allowed=self.zero_allowed.union(name for name in numbers if not numbers[name]),
        )  # fmt: skip
