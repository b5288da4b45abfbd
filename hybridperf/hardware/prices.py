"""What things cost and draw: numbers with unit, date and source.

schema = "hybridperf/prices"
schema_version = 1
[usd_per_kwh]
value = 0.12
unit = "USD per kWh"
date = "2026-11"
source = "our contract"
"""

from __future__ import annotations

from pathlib import Path

import pydantic

from hybridperf.io import InputError, first_line, read_toml
from hybridperf.io.documents import check_head, finite_number

SCHEMA_VERSION = 1
_SHIPPED = Path(__file__).with_name("prices.toml")


class UnitPrice(pydantic.BaseModel):
    """One number. Where only assumptions are known, the source says so."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    value: float
    unit: str
    date: str
    source: str


def read_prices(file: Path | None = None) -> dict[str, UnitPrice]:
    """The shipped prices, replaced by those of a user's file."""
    return _read(_SHIPPED) | (_read(file) if file else {})


def _read(path: Path) -> dict[str, UnitPrice]:
    document = read_toml(path, "hybridperf/prices file")
    check_head(document, "hybridperf/prices", SCHEMA_VERSION, path)
    del document["schema"], document["schema_version"]
    prices = {}
    for name, written in document.items():
        what = f"{path}: price {name}"
        if not isinstance(written, dict):
            expected = f"expected a section [{name}] of value, unit, date and source"
            raise InputError(f"{what} is {written!r} alone; {expected}")
        try:
            prices[name] = UnitPrice.model_validate(written)
        except pydantic.ValidationError as error:
            needs = "needs value, unit, date and source"
            raise InputError(f"{what} {needs}; {first_line(error)}") from error
        finite_number(what, prices[name].value)
    return prices
