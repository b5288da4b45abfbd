"""What a table's rows may hold as a JSON schema (draft 2020-12), made of the registry of fields.

A column by any of its names is checked as the field; what only the field's reader knows, such as a
model's name, is any text. Empty cells are null.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridperf.fields.registry import FLAG_WORDS, Field, Fields, fields_of

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(question: str | Fields) -> dict[str, Any]:
    """The schema of a row of a question's tables, as plain JSON.

    Args:
        question: one of `fields.questions()`, or its fields.
    """
    fields = question if isinstance(question, Fields) else fields_of(question)
    found: dict[str, Any] = {}
    for field in fields:
        found[field.name] = _value(field)
        same = {"$ref": f"#/properties/{field.name}"}
        found |= dict.fromkeys((*field.aliases, *field.labels), same)
        for name, meant in field.spelt.items():  # by yes and no, words of a flag are legal, too
            found[name] = _words(one for word in meant for one in (word, *FLAG_WORDS.get(word, ())))
        found |= {name: {"type": ["number", "null"]} for name in field.scaled}
    needed = [one for one in fields if one.needed and fields.small]
    return {
        "$schema": _DRAFT,
        "title": f"{fields.row} of a table of {fields.question}",
        "type": "object",
        "properties": found,
        "allOf": [{"anyOf": [{"required": [name]} for name in one.names]} for one in needed],
    }


def _value(field: Field) -> dict[str, Any]:
    about = {"description": field.meaning, **({"x-unit": field.unit} if field.unit else {})}
    if field.kind == "flag" or (field.words and not field.open):
        return about | _words(field.written)
    if field.kind in ("whole", "number"):
        kind = "integer" if field.kind == "whole" else "number"
        return about | {"type": [kind, "null"], "minimum": field.minimum}
    legal = [word for word in field.words if word] or [field.example]
    return about | {"type": ["string", "number", "null"], "examples": legal}


def _words(meant: Iterable[str]) -> dict[str, Any]:
    """One of some words, as text, number or flag."""
    words = list(meant)
    numbers = [int(word) for word in words if word.isdecimal()]
    flags = [word == "true" for word in words if word in ("true", "false")]
    return {"enum": [*words, *numbers, *flags, None]}
