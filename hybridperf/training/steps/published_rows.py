"""What rows of published training steps say in prose, as fields of the registry.

A user's row says in columns what theirs say in words: a source tells who published it, a note which
variant of a framework ran, the section a release, any of them the network. All expressions over
such words stand here and in `published_rows.toml`; what reads a row knows its fields alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from hybridperf.hardware import machines as names
from hybridperf.hardware.machines import plain
from hybridperf.io import shipped_toml

_PROSE = ("source", "section", "system_detail", "note")
_OF_NETWORK = ("source", "section", "system_detail", "gpu")


def with_told(said: Mapping[str, str]) -> dict[str, str]:
    """What a row says by column, with publisher, release and network where its prose tells them,
    and `variant`, the framework that it names a variant of; what it says in these columns stays.
    """
    if not {*_PROSE} & {*said}:
        return dict(said)
    source = said.get("source", "")
    of_network = " ".join(said.get(name, "") for name in _OF_NETWORK)
    known = (one for one in names.publishers() if plain(source).startswith(one))
    publisher = said.get("publisher") or max(known, key=len, default="")
    found = {
        "publisher": publisher, "release": names.release_of(said.get("section", "")),
        "network": _network(plain(of_network)),
        "variant": _variant(_framework(said, publisher), f"{said.get('note', '')} {source}"),
    }  # fmt: skip
    return {name: word for name, word in found.items() if word} | dict(said)


def _framework(said: Mapping[str, str], publisher: str) -> str:
    """The framework that a row is of, its variant apart."""
    theirs = names.publisher(publisher)
    unsaid = theirs.get("unsaid", {}).get(plain(said.get("model", "")), {}).get("columns", {})
    named = said.get("framework") or unsaid.get("framework") or theirs.get("framework", "")
    return plain(str(named))


@functools.cache
def _rules() -> Mapping[str, Any]:
    return shipped_toml(__package__, "published_rows.toml")


def _network(text: str) -> str:
    rules = (one["network"] for one in _rules()["network"] if re.search(one["says"], text))
    return str(next(rules, names.network_called(text)))


def _variant(framework: str, said: str) -> str:
    """The variant of a framework that a word of a row's own note or source names; "" for none."""
    joined = said.lower().replace("async tp", "asynctp").replace("llm.c", "llmc")
    words = set(re.findall(r"[a-z]+", joined))
    known = _rules()["variant"].get(framework, {})
    return str(next((name for word, name in known.items() if word in words), ""))
