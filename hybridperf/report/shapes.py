"""Transformers whose sizes are known, in words: all of them in a table, one with all that it is."""

from __future__ import annotations

import dataclasses

from hybridperf.report import text
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.zoo import load_shape, other_shape_names, shape_names

_FIRST = ("name", "family", "published", "source", "note")


def shapes_table() -> str:
    """All published shapes, a line each."""
    rows = []
    for name in shape_names():
        one = load_shape(name)
        experts = f"{one.topk} of {one.experts}" if one.experts else ""
        sizes = [
            one.family,
            text.amount(one.parameters),
            str(one.depth),
            str(one.hidden),
            str(one.heads),
            str(one.seq),
            experts,
        ]
        rows.append([name, *sizes, ", ".join(other_shape_names(name))])
    head = [
        "model",
        "family",
        "parameters",
        "layers",
        "hidden",
        "heads",
        "tokens a sequence",
        "experts of a token",
        "also called",
    ]
    return (
        f"{text.table(head, rows)}\n{len(rows)} models; `hybridperf show NAME` says all of one, a"
        " .toml file describes another"
    )


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
        if field.name not in _FIRST and (
            field.default is dataclasses.MISSING or value != field.default
        ):
            lines.append(f"  {field.name:16} {value}")
    lines += [
        f"  {name}: {said}"
        for name in ("published", "source", "note")
        if (said := getattr(one, name))
    ]
    return "\n".join(lines)
