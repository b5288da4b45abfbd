"""Specs as versions before 0.2 wrote them, in today's words (`written.py`).

[knobs] and [constants]          [parameters]
[front]                          [objective]
{ log = [1, 8], count = 3 }      { min = 1, max = 8, count = 3 }       lin, powers_of_two: scale
{ random = [1, 8] }              { min = 1, max = 8, scale = "lin", sample = "random" }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridperf.explore.sweeps.written import SCHEMA, Faults
from hybridperf.io import InputError

_GRIDS, _SAMPLES = ("lin", "log", "powers_of_two"), ("random", "sobol")


def renewed(document: Mapping[str, Any], faults: Faults) -> tuple[dict[str, Any], list[str]]:
    """A document in today's words, and what is spelt otherwise today."""
    new, said = dict(document), []
    if new.get("schema") in ("hybridperf/sweep", "hybridperf/search"):
        new["schema"] = SCHEMA
        said.append(f'schema = "{SCHEMA}"')
    if "front" in new and "objective" not in new:
        new["objective"] = new.pop("front")
        said.append("[objective] for [front]")
    if old := [one for one in ("knobs", "constants") if one in new]:
        whole: dict[str, Any] = dict(new.get("parameters", {}))
        for section in old:
            inside = new.pop(section)
            if not isinstance(inside, Mapping):
                raise InputError(f"[{section}] must be a section of keys and values, got {inside}")
            if twice := next((name for name in inside if name in whole), None):
                mend = "call one of them something else"
                raise InputError(f"{twice!r} is a knob and a constant; {mend}")
            if section == "knobs":
                _check_ranges(inside)
            whole |= inside
        new["parameters"] = whole
        said.append(f"[parameters] for {' and '.join(f'[{one}]' for one in old)}")
    if isinstance(parameters := new.get("parameters"), Mapping):
        ranges: dict[str, Any] = {}
        for name, given in parameters.items():
            with faults.kept():
                ranges[name] = _range(name, given)
        if ranges != parameters:
            said.append("{ min = ..., max = ... } for ranges such as { log = [...] }")
        new["parameters"] = ranges
    return new, said


def _check_ranges(knobs: Mapping[str, Any]) -> None:
    for name, given in knobs.items():
        if not isinstance(given, Mapping):
            raise InputError(f"knob {name} needs {{ min = ..., max = ... }}, got {given!r}")


def _range(name: str, given: Any) -> Any:
    old = [key for key in (*_GRIDS, *_SAMPLES) if isinstance(given, Mapping) and key in given]
    if not old:
        return given
    if len(old) > 1:
        needs = "needs one of lin, log, powers_of_two, random, sobol"
        raise InputError(f"parameter {name} {needs}, got {', '.join(old)}")
    (kind,) = old
    rest = {key: value for key, value in given.items() if key != kind}
    pair = given[kind]
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        needs = "needs a range [least, most] of two numbers"
        raise InputError(f"parameter {name} {needs}, got {pair}")
    if kind in _GRIDS and "scale" in rest:
        raise InputError(f"key scale of parameter {name}: {kind} goes with count, integer")
    if kind in ("lin", "log") and "count" not in rest:
        raise InputError(f"parameter {name} needs a count, the number of its values")
    ends = {"min": pair[0], "max": pair[1]}
    if kind in _GRIDS:
        return ends | {"scale": kind} | rest
    return ends | {"scale": "lin", "sample": kind} | rest
