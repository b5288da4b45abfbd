"""What people write for a field."""

from collections.abc import Iterator
from typing import Any

from hybridperf.fields.registry import Field


def said_otherwise(field: Field, value: str) -> Iterator[dict[str, Any]]:
    """The same of a field by its other names, in its other words and units."""
    for name in (*field.aliases, field.name.upper(), f" {field.name} "):
        yield {name: value}
    for spelling in field.words.get(value, ()):
        yield {field.name: spelling}
    for name, meant in field.spelt.items():
        yield from ({name: text} for text, word in meant.items() if word == value)
    for name, factor in field.scaled.items():
        yield {name: float(value) / factor}
