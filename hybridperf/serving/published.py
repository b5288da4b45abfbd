"""What a published benchmark deploys where a row does not tell it: engines, settings of servers.

A row of disaggregated engines tells their GPUs, not how many there are, how many sequences each
takes, or whether they draft. It fits a point of the benchmark where model, machine, format,
lengths, clients and the GPUs of both kinds of engine do (in some tables the GPUs of a whole
deployment stand in the place of both), and whatever else it tells. Several may fit: one that
drafts and one that does not. A rule of settings tells of the lengths that it names, else of the
benchmark's; a row of other prompts and answers than any gets engines' defaults.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridperf.fields.frameworks import is_release
from hybridperf.io import shipped_toml
from hybridperf.workloads.serving import Deployment


class Engines(NamedTuple):
    """Of one kind: how many, and who shares what of each."""

    workers: int
    gpus: int
    ranks: int  # of attention
    expert_ep: int

    def __str__(self) -> str:
        return f"{self.workers} of {self.gpus} GPUs, {self.ranks} attention ranks"


class Point(NamedTuple):
    """A deployment that a benchmark runs."""

    prefill: Engines
    decode: Engines
    sequences: int  # that an attention rank decodes at once; 0: not told
    drafted: int
    balanced: bool  # experts of the engine that decodes

    def __str__(self) -> str:
        most = f", {self.sequences} sequences each at most" if self.sequences else ""
        drafted = f", {self.drafted} tokens drafted" if self.drafted else ""
        return f"to prefill {self.prefill}, to decode {self.decode}{most}{drafted}"

    @property
    def gpus(self) -> int:
        return self.prefill.workers * self.prefill.gpus + self.decode.workers * self.decode.gpus


def points_of(
    told: Mapping[str, Any], prefill: tuple[int, int], decode: tuple[int, int],
    workers: tuple[int | None, int | None],
) -> tuple[Point, ...]:  # fmt: skip
    """Deployments that fit a row, those that draft nothing first.

    Args:
        told: framework, model, system, scheme (of experts), prompt, output, clients of the row.
        prefill: GPUs and attention ranks of an engine, by the row's columns.
        decode: the same.
        workers: of both kinds, None where the row does not tell; where it tells one, its attention
            ranks count, too.
    """
    found: dict[Point, None] = {}
    for benchmark, points in _benchmarks():
        for clients, point in points if _fits(benchmark, told) else ():
            fits = (point.prefill.gpus, point.decode.gpus) == (prefill[0], decode[0])
            if workers == (None, None):
                # a total of both, or columns that say nothing
                fits |= prefill[0] == decode[0] in (point.gpus, 1)
            else:
                own = point.prefill.workers, point.decode.workers
                fits &= all(one in (None, other) for one, other in zip(workers, own, strict=True))
                fits &= (point.prefill.ranks, point.decode.ranks) == (prefill[1], decode[1])
            if fits and told["clients"] in clients:
                found[point] = None
    return tuple(sorted(found, key=lambda point: point.drafted > 0))


def nearest_point(told: Mapping[str, Any], gpus: float = 0.0) -> Point | None:
    """The deployment of a benchmark that a row, which fits none, is likest to, by logs of clients
    and GPUs: of its total of GPUs, or, where the benchmark tells nothing of the device, of the
    device before it.

    Args:
        told: as of `points_of`.
        gpus: of all engines, where the row tells no more; 0: not told.
    """
    before = _disaggregated()["before"]
    system = told["system"]
    older = next((system.replace(own, old) for own, old in before.items() if own in system), system)
    of_device, of_older = (
        [
            (min(abs(math.log(told["clients"] / sent)) for sent in clients), point)
            for benchmark, points in _benchmarks()
            if _fits(benchmark, {**told, "system": name})
            for clients, point in points
        ]
        for name in (system, older)
    )
    points = (of_device or of_older) if gpus else ([] if of_device else of_older)

    def apart(far_and_point: tuple[float, Point]) -> float:
        far, point = far_and_point
        return far + (2.0 * abs(math.log(gpus / point.gpus)) if gpus else 0.0)

    return min(points, key=apart)[1] if points else None


@functools.cache
def _benchmarks() -> list[tuple[dict[str, Any], list[tuple[list[int], Point]]]]:
    """Each benchmark's conditions, and its points with their clients."""
    benchmarks = _disaggregated()["benchmark"]
    return [(one, [_point(**point) for point in one["points"]]) for one in benchmarks]


@functools.cache
def _disaggregated() -> dict[str, Any]:
    return shipped_toml(__package__, "disaggregated.toml")


def _point(
    clients: list[int], prefill: tuple[int, str, int], decode: tuple[int, str, int],
    sequences: int = 0, drafted: int = 0, balanced: bool = False,
) -> tuple[list[int], Point]:  # fmt: skip
    return clients, Point(_engines(*prefill), _engines(*decode), sequences, drafted, balanced)


def _engines(workers: int, layout: str, gpus: int) -> Engines:
    return Engines(
        workers, gpus, gpus if layout in ("dep", "dp") else 1,
        gpus if layout in ("dep", "tep") else 1,
    )  # fmt: skip


_EQUAL = ("framework", "measured", "prompt", "output", "attention_dp")
_BEGINS = ("model", "system")
_WITHIN = ("clients", "tp")


def settings_of(
    engine: Deployment, model: str, system: str, version: str, clients: float, prompt: float,
    output: float, measured: str = "", source_file: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Columns of `fields/serve.toml` by their values, and `may_draft`, 1 where the same rows are
    published with drafts and without; empty: no benchmark of these lengths.

    Args:
        engine: that takes the prompts.
        model: as we call it.
        system: the device.
        version: of the framework, as the row tells it; empty: it does not.
        clients: that send requests.
        prompt: tokens.
        output: tokens.
        measured: when, as 2026-01-14; empty: not told.
        source_file: of the published table; empty: not told.
    """
    out: dict[str, Any] = {}
    told = {
        "framework": engine.framework, "model": model, "system": system, "version": version,
        "scheme": engine.of_experts(), "measured": measured, "prompt": prompt, "output": output,
        "source_file": source_file,
        "clients": clients, "tp": engine.tp, "attention_dp": engine.attention_dp > 1,
    }  # fmt: skip
    known = _published_settings()
    for rule in known["rule"]:
        if [prompt, output] in rule.get("lengths", known["lengths"]) and _fits(rule, told):
            out |= rule["set"]
    if out.pop("one_slot_short", False):
        out["max_num_seqs"] = max(clients - 1.0, 1.0)
    if out.pop("one_prompt_a_step", False):
        out["max_num_batched_tokens"] = prompt + clients + 64
    return out


def published(prompt: float, output: float) -> bool:
    """Whether the benchmark sends prompts and answers of such lengths."""
    return [prompt, output] in _published_settings()["lengths"]


def has_settings(prompt: float, output: float) -> bool:
    """Whether `settings_of` may have any of rows of such lengths."""
    return (prompt, output) in _lengths()


@functools.cache
def _lengths() -> frozenset[tuple[float, float]]:
    found = _published_settings()
    every = [found["lengths"], *(rule.get("lengths", []) for rule in found["rule"])]
    return frozenset((prompt, output) for some in every for prompt, output in some)


def _fits(rule: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether all conditions that a rule or a benchmark names hold of a row."""
    return (
        all(rule[name] == told[name] for name in _EQUAL if name in rule)
        and all(_begins(told[name], rule[name]) for name in _BEGINS if name in rule)
        and rule.get("scheme", "") in told["scheme"]
        and rule.get("source_file", "") in told.get("source_file", "")
        and all(rule[name][0] <= told[name] <= rule[name][1] for name in _WITHIN if name in rule)
        and (
            "releases" not in rule or any(is_release(told["version"], r) for r in rule["releases"])
        )
    )


def _begins(name: str, words: str | Sequence[str]) -> bool:
    return name.startswith((words,) if isinstance(words, str) else tuple(words))


@functools.cache
def _published_settings() -> dict[str, Any]:
    return shipped_toml(__package__, "benchmarks.toml")
