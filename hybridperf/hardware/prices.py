"""What things cost and draw: numbers with unit, date and source, for formulas of a spec.

schema = "hybridperf/prices"
schema_version = 1
[usd_per_kwh]
value = 0.12
unit = "USD per kWh"
date = "2026-11"
source = "our contract"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def read_prices(given: Mapping[str, Any], folder: Path) -> dict[str, UnitPrice]:
    """The shipped prices, replaced by those of `[prices] file`, and those by `[prices]` itself."""
    prices = _read(_SHIPPED)
    if "file" in given:
        if not isinstance(given["file"], str):
            raise InputError(f"[prices] file must be the name of a file, got {given['file']!r}")
        prices |= _read(folder / given["file"])
    for name, value in given.items():
        if name == "file":
            continue
        finite_number(f"price {name}", value)
        unit = prices[name].unit if name in prices else "not said"
        prices[name] = UnitPrice(value=value, unit=unit, date="not said", source="the spec")
    return prices


def _read(path: Path) -> dict[str, UnitPrice]:
    document = read_toml(path, "hybridperf/prices file")
    check_head(document, "hybridperf/prices", SCHEMA_VERSION, path)
    del document["schema"], document["schema_version"]
    prices = {}
    for name, written in document.items():
        what = f"{path}: price {name}"
        if not isinstance(written, dict):
            expected = f"expected a section [{name}] of value, unit, date and source"
            alone = "a number alone can stand under [prices] of a spec"
            raise InputError(f"{what} is {written!r} alone; {expected} ({alone})")
        try:
            prices[name] = UnitPrice.model_validate(written)
        except pydantic.ValidationError as error:
            needs = "needs value, unit, date and source"
            raise InputError(f"{what} {needs}; {first_line(error)}") from error
        finite_number(what, prices[name].value)
    return prices
