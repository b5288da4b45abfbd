"""The JSON schema of tables is the registry: what it lets pass is read, what it refuses is not."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest

from hybridperf.fields import Field, fields_of, json_schema, questions
from hybridperf.fields.columns import read_columns

_TYPES: Mapping[str, Any] = {
    "string": str, "number": (int, float), "integer": int, "null": type(None), "object": dict,
}  # fmt: skip


def passes(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """A value by those words of draft 2020-12 that our schemas are written in."""
    if "$ref" in schema:
        found = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        return passes(value, found, root)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, _TYPES[kind]) for kind in kinds):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        return False
    if not isinstance(value, dict):
        return True
    needed = all(name in value for name in schema.get("required", []))
    every = all(passes(value, one, root) for one in schema.get("allOf", []))
    some = not schema.get("anyOf") or any(passes(value, one, root) for one in schema["anyOf"])
    known = schema.get("properties", {})
    return needed and every and some and all(
        passes(one, known[name], root) for name, one in value.items() if name in known
    )  # fmt: skip


def good(field: Field, name: str) -> Any:
    """A value that a column of this name may have, as JSON has it."""
    if name in field.spelt:
        return next(iter(field.spelt[name]))
    if field.kind == "flag":
        return "yes"
    if field.kind in ("whole", "number"):
        return int(field.example) if field.kind == "whole" else float(field.example)
    return field.example or next(filter(None, field.words))


@pytest.mark.parametrize("question", questions())
def test_columns_by_all_their_names_pass(question: str) -> None:
    schema, fields = json_schema(question), fields_of(question)
    json.dumps(schema, allow_nan=False)
    assert {*schema["properties"]} == {name for one in fields for name in one.names}
    row = {one.name: good(one, one.name) for one in fields}
    assert passes(row, schema, schema)
    for field in fields:
        rest = {key: value for key, value in row.items() if key != field.name}
        for name in field.names:
            assert passes(rest | {name: good(field, name)}, schema, schema), name
        assert passes(rest, schema, schema) != (fields.small and field.needed), field.name


@pytest.mark.parametrize("question", questions())
def test_values_that_are_not_legal_do_not(question: str) -> None:
    """And each word that a schema lists is one that the field reads."""
    schema = json_schema(question)
    for field in fields_of(question):
        listed = schema["properties"][field.name].get("enum")
        if field.kind == "flag" or (field.words and not field.open):
            assert None not in {field.meant(str(one)) for one in listed if one is not None}
            assert not passes({field.name: "no such word"}, schema | {"allOf": []}, schema)
        elif field.kind in ("whole", "number"):
            beyond = {field.name: field.minimum - 1}
            assert not passes(beyond, schema | {"allOf": []}, schema)
            assert not passes({field.name: "many"}, schema | {"allOf": []}, schema)


def test_rows_of_steps_that_pass_are_read() -> None:
    schema = json_schema("steps")
    row = {"model": "gpt3-13b", "gpu": "h100_sxm", "tensor_parallel": 2, "zero": 3, "fp8": True}
    assert passes(row, schema, schema)
    read = read_columns(pd.DataFrame([row], dtype=object), "steps").frame.to_dict("records")[0]
    assert (read["tp"], read["sharding"], read["precision"]) == (2, 3, "fp8")
    assert not passes(row | {"zero": 7}, schema, schema)
    assert not passes(row | {"tensor_parallel": 1.5}, schema, schema)


def test_the_commands_print_it(run: Any) -> None:
    status, out, _ = run("steps", "--schema")
    assert status == 0
    assert json.loads(out) == json.loads(json.dumps(json_schema("steps")))
    status, out, _ = run("workers", "--schema")
    assert {*json.loads(out)} == {"workers", "worker_times"}
