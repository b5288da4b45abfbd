"""A row of training steps in words: `model=llama2-7b tp=2`."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pandas as pd

from hybridperf.io import InputError, unknown
from hybridperf.training.steps.read_columns import READ


def row_of(words: Sequence[str]) -> pd.DataFrame:
    """A table of one row from NAME=VALUE; numbers as a CSV file would have them."""
    named = dict(word.partition("=")[::2] for word in words)
    for word in words:
        name = word.partition("=")[0]
        if "=" not in word or not name:
            raise InputError(f"expected NAME=VALUE such as tp=2, got {word!r}; mend it")
        if name not in READ:
            raise unknown("column", name, READ, "`hybridperf steps --help` lists them")
    if len(named) < len(words):
        raise InputError("expected each column once, got one twice; keep one of them")
    written = io.StringIO()
    pd.DataFrame([named]).to_csv(written, index=False)
    return pd.read_csv(io.StringIO(written.getvalue()), dtype={"id": str, "name": str})
