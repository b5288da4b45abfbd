"""Transformers whose sizes are known, in words: all of them in a table, one with all that it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hybridperf.report import text
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.zoo import load_shape, other_shape_names, shape_names

_COLUMNS: dict[str, Callable[[tuple[str, TransformerShape]], Any]] = {
    "model": lambda named: named[0],
    "family": lambda named: named[1].family,
    "parameters": lambda named: text.amount(named[1].parameters),
    "layers": lambda named: named[1].depth,
    "hidden": lambda named: named[1].hidden,
    "heads": lambda named: named[1].heads,
    "tokens a sequence": lambda named: named[1].seq,
    "experts of a token": lambda named: _experts(named[1]),
    "also called": lambda named: ", ".join(other_shape_names(named[0])),
}
_FIRST = ("name", "family", "published", "source", "note")


def shapes_table() -> str:
    """All published shapes, a line each."""
    names = shape_names()
    table = text.items_table([(name, load_shape(name)) for name in names], _COLUMNS)
    how = "`hybridperf show NAME` prints all of one, a .toml file describes another"
    return f"{table}\n{len(names)} models; {how}"


def _experts(one: TransformerShape) -> str:
    return f"{one.topk} of {one.experts}" if one.experts else ""


def shape(one: TransformerShape) -> str:
    """One shape: counts, sizes, what departs from a plain GPT, where it was published."""
    counts = f"{text.amount(one.parameters)} parameters ({one.parameters:,})"
    active = f", {text.amount(one.active_parameters)} of them met by a token" if one.experts else ""
    flops = text.quantity(one.model_flops(one.seq) / one.seq, "FLOP")
    lines = [
        f"{one.name}: {one.family}, {counts}{active}",
        f"  training takes {flops} a token of sequences of {one.seq}, attention in full",
    ]
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        usual = field.default is not dataclasses.MISSING and value == field.default
        if field.name not in _FIRST and not usual:
            lines.append(f"  {field.name:16} {value}")
    sources = {name: getattr(one, name) for name in ("published", "source", "note")}
    lines += [f"  {name}: {value}" for name, value in sources.items() if value]
    return "\n".join(lines)
