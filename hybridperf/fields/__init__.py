"""Fields: every word that a user can write about work, once, by the question that reads it.

`fields_of("steps")` is the registry of a question, read from `steps.toml` beside it; `columns.py`
reads a table's columns through one.
"""

from hybridperf.fields.registry import Field, Fields, fields_of, questions
from hybridperf.fields.schema import json_schema

__all__ = ["Field", "Fields", "fields_of", "json_schema", "questions"]
