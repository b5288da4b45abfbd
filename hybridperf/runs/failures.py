"""How often a job fails: rates of its components, by public counts, and what else a run believes.

Components fail independently of each other; any failure stops a synchronous job, so their rates add
up. `failures.toml` has each count with its source and its width.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridperf.engine.economy import DAY_S
from hybridperf.io import InputError, shipped_toml, unknown
from hybridperf.io.namespace import Array, array_module

JOB = "job"  # in place of all components


@dataclasses.dataclass(frozen=True)
class Component:
    """A kind of part that fails.

    Attributes:
        per_s: failures of all of them together, per second of running.
        width: spread of the log of that between clusters.
        broken: share of its failures that take a node away.
        survived: share that leaves a copy in the memory of other nodes.
    """

    per_s: float
    width: float
    broken: float
    survived: float


@functools.cache
def facts() -> Mapping[str, Any]:
    """What `failures.toml` says."""
    return shipped_toml(__package__, "failures.toml")


def component_names() -> tuple[str, ...]:
    """Components whose rates are known."""
    return tuple(facts()["components"])


def components(
    gpus: int, nodes: int, mtbf_s: Mapping[str, float] | None = None
) -> dict[str, Component]:
    """What a job of so many GPUs and nodes fails by.

    Args:
        gpus: of the job.
        nodes: of the job.
        mtbf_s: mean seconds of running between failures of ONE component of a name, in place of
            what is known; of "job": of the whole job, in place of all components.

    Raises:
        InputError: a name is none, a time is not above 0, or the job's and a component's are given.
    """
    given = dict(mtbf_s or {})
    for name, seconds in given.items():
        if name not in (*component_names(), JOB):
            known = f"known are {', '.join((*component_names(), JOB))}"
            raise unknown("component", name, (*component_names(), JOB), known)
        if not 0 < seconds < np.inf:
            raise InputError(f"expected a time between failures above 0 of {name}, got {seconds:g}")
    if JOB in given and len(given) > 1:
        other = next(name for name in given if name != JOB)
        raise InputError(
            f"expected times between failures of the job or of components, got {JOB} and {other};"
            " leave one of them out"
        )
    units, observed, found = {"gpu": gpus, "node": nodes}, facts()["observed"], {}
    for name, one in facts()["components"].items():
        seen_s = observed["days"] * DAY_S * observed[one["unit"]]
        rate = 1.0 / given[name] if name in given else one["failures"] / seen_s
        width = 0.0 if name in given else one["width"]
        found[name] = Component(
            rate * units[one["unit"]], width, one["share_replaced"], one["survived"]
        )
    if JOB in given:
        usual = sum(one.per_s for one in found.values())
        scale = 1.0 / (given[JOB] * usual)
        found = {
            name: dataclasses.replace(one, per_s=one.per_s * scale, width=0.0)
            for name, one in found.items()
        }
    return found


@dataclasses.dataclass(frozen=True)
class JobRate:
    """Of the whole job: failures per second, and the shares of them (`Component`)."""

    per_s: Array
    broken: Array
    survived: Array


def job_rate(parts: Mapping[str, Component], logs: Mapping[str, Array] | None = None) -> JobRate:
    """All components together; `logs`: draws of how far each is off, in units of its width."""
    rates = {
        name: one.per_s * np.exp(one.width * np.asarray((logs or {}).get(name, 0.0)))
        for name, one in parts.items()
    }
    total: Array = sum(rates.values())
    safe = array_module(total).maximum(total, 1e-30)
    broken: Array = sum(rates[name] * one.broken for name, one in parts.items())
    survived: Array = sum(rates[name] * one.survived for name, one in parts.items())
    return JobRate(total, broken / safe, survived / safe)
