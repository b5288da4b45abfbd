"""One row of a table of training steps with typed values: text, counts, yes or no; and notes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

_YES, _NO = ("1", "1.0", "true", "yes", "on"), ("0", "0.0", "false", "no", "off", "none")


class Refused(Exception):
    """Why a row cannot be predicted."""


@dataclasses.dataclass
class Record:
    """One record of a table with typed values. `notes` fills as things are assumed."""

    at: int
    record: Mapping[str, Any]
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """How a message calls it: its place, counted from 1, and its id."""
        own = self.text("id")
        return f"row {self.at + 1}" + (f" ({own})" if own else "")

    def text(self, field: str) -> str:
        """What stands there, "" for nothing."""
        value = self.record.get(field)
        nothing = value is None or value is pd.NA or value != value  # NaN differs from itself
        return "" if nothing else str(value).strip()

    def count(self, field: str) -> int | None:
        """A whole number of 1 or more, None for nothing."""
        text = self.text(field)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 1 or value != int(value):
            given = repr(text) if math.isnan(value) else text.removesuffix(".0")
            raise Refused(f"expected a whole number of 1 or more in {field}, got {given}")
        return int(value)

    def yes(self, field: str) -> bool | None:
        """Yes or no, None for nothing."""
        text = self.text(field).lower()
        if text in ("", "unknown", "recipe"):
            return None
        if text not in (*_YES, *_NO):
            raise Refused(f"expected yes or no in {field}, got {self.text(field)!r}")
        return text in _YES

    def assume(self, field: str, value: Any) -> Any:
        """`value`, which the row does not give."""
        self.notes.append(f"{field} {value} assumed")
        return value
