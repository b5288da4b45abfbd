"""What rows of published training steps say in prose, as columns that `hybridperf steps` reads.

A user's row says in columns what theirs say in words: a note which variant of a framework ran, any
of them the network. All expressions over such words stand here and in `published_rows.toml`; the
product reads columns, and of `section` the release that it names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from hybridperf.hardware import machines as names
from hybridperf.io import read_toml
from hybridperf.io.errors import plain

_COLUMNS = ("network", "framework")
_OF_NETWORK = ("source", "section", "system_detail", "gpu")
_PROSE, _OWN = (*_OF_NETWORK, "note"), ("publisher", "model", "framework")


def with_told(frame: pd.DataFrame) -> pd.DataFrame:
    """A published table with network and a framework's variant in columns, where its prose tells
    them; what it says in these columns stays.
    """
    prose = _words(frame, *_PROSE, *_OWN).to_dict("records")
    told = pd.DataFrame([_told(row) for row in prose], frame.index, columns=list(_COLUMNS))
    given = _words(frame, *_COLUMNS)
    variant = told["framework"].ne("")
    kept = given.where(given.ne(""), told)
    return frame.assign(
        **kept.assign(framework=kept["framework"].where(~variant, told["framework"]))
    )


def _words(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    return frame.reindex(columns=list(columns)).astype(object).fillna("").astype(str)


def _told(row: Mapping[str, str]) -> tuple[str, str]:
    """(network, variant of the framework) that a row's prose tells, each "" for none."""
    theirs = names.publisher(row["publisher"] or names.publisher_of(row["source"]))
    unsaid = theirs.get("unsaid", {}).get(plain(row["model"]), {}).get("columns", {})
    named = row["framework"] or unsaid.get("framework") or theirs.get("framework", "")
    return (
        _network(plain(" ".join(row[name] for name in _OF_NETWORK))),
        _variant(plain(str(named)), f"{row['note']} {row['source']}"),
    )


@functools.cache
def _rules() -> Mapping[str, Any]:
    return read_toml(Path(__file__).with_suffix(".toml"), "published rows", "mend it")


def _network(text: str) -> str:
    rules = (one["network"] for one in _rules()["network"] if re.search(one["says"], text))
    return str(next(rules, names.network_called(text)))


def _variant(framework: str, said: str) -> str:
    """The variant of a framework that a word of a row's own note or source names; "" for none."""
    joined = said.lower().replace("async tp", "asynctp").replace("llm.c", "llmc")
    words = set(re.findall(r"[a-z]+", joined))
    known = _rules()["variant"].get(framework, {})
    return str(next((name for word, name in known.items() if word in words), ""))
