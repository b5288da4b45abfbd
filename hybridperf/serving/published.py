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
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridperf.io import shipped_toml
from hybridperf.workloads.serving import Deployment

_POINT = re.compile(
    r"(?P<clients>[\d ]+): (?P<prefillers>\d+) (?P<prefill>\w+?)(?P<prefill_gpus>\d+)"
    r" \+ (?P<workers>\d+) (?P<decode>\w+?)(?P<decode_gpus>\d+)"
    r"(?: of (?P<sequences>\d+))?(?:, (?P<drafted>\d+) drafted)?(?P<balanced>, balanced)?"
)


# what texts of published rows say of others of their columns
_TOLD = {
    "concurrency": re.compile(r"silicon_concurrency=(\d+)"),
    "measured": re.compile(r"measured=(\d{4}-\d\d-\d\d)"),
}


def told_in_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns concurrency and measured of a published row where any of its texts tells them."""
    texts = [value for value in values.values() if isinstance(value, str) and "=" in value]
    found = {
        name: next((told[1] for text in texts if (told := pattern.search(text))), "")
        for name, pattern in _TOLD.items()
    }
    return {name: word for name, word in found.items() if word}


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
    words: Sequence[str], clients: float, prefill: tuple[int, int], decode: tuple[int, int],
    workers: tuple[float, float] | None = None,
) -> tuple[Point, ...]:  # fmt: skip
    """Deployments that fit a row, those that draft nothing first.

    Args:
        words: framework, model, device, format of experts, tokens of a prompt and of an answer.
        clients: that send requests.
        prefill: GPUs and attention ranks of an engine, by the row's columns.
        decode: the same.
        workers: of both kinds, where the row tells them; its attention ranks then count too.
    """
    framework, model, device, scheme, *lengths = words
    found: dict[Point, None] = {}
    for key, points in _known().items():
        of = key.split()
        same = of[0] == framework and model.startswith(of[1]) and device.startswith(of[2])
        if not (same and of[3] in scheme and of[4:] == list(lengths)):
            continue
        for sent, point in points:
            each = (point.prefill.gpus, point.decode.gpus) == (prefill[0], decode[0])
            if workers is None:
                # a total of both, or columns that say nothing
                whole = prefill[0] == decode[0] in (point.gpus, 1)
            else:
                whole = False
                each &= (point.prefill.workers, point.decode.workers) == workers
                each &= (point.prefill.ranks, point.decode.ranks) == (prefill[1], decode[1])
            if clients in sent and (each or whole):
                found[point] = None
    return tuple(sorted(found, key=lambda point: point.drafted > 0))


def _engines(workers: str, layout: str, gpus: str) -> Engines:
    each = int(gpus)
    return Engines(
        int(workers), each, each if layout in ("dep", "dp") else 1,
        each if layout in ("dep", "tep") else 1,
    )  # fmt: skip


@functools.cache
def _known() -> dict[str, tuple[tuple[frozenset[float], Point], ...]]:
    """Points of each benchmark, each with its clients."""
    out = {}
    for key, lines in shipped_toml(__package__, "disaggregated.toml")["points"].items():
        points = []
        for line in lines:
            told = _POINT.fullmatch(line)
            assert told is not None, line
            clients = frozenset(map(float, told["clients"].split()))
            prefill = _engines(told["prefillers"], told["prefill"], told["prefill_gpus"])
            decode = _engines(told["workers"], told["decode"], told["decode_gpus"])
            sequences, drafted = int(told["sequences"] or 0), int(told["drafted"] or 0)
            points.append(
                (clients, Point(prefill, decode, sequences, drafted, bool(told["balanced"])))
            )
        out[key] = tuple(points)
    return out


_SEARCHED = ("framework", "model", "system", "version", "scheme", "measured")
_EQUAL = ("prompt", "output", "attention_dp")
_WITHIN = ("clients", "tp")


def settings_of(
    engine: Deployment, model: str, system: str, version: str, clients: float, prompt: float,
    output: float, measured: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Columns of `fields/serve.toml` by their values, and `may_draft`, 1 where the same rows are
    published with drafts and without; empty: no benchmark of these lengths.

    Args:
        engine: that takes the prompts.
        model: as we call it.
        system: the device.
        version: of the framework.
        clients: that send requests.
        prompt: tokens.
        output: tokens.
        measured: when, as 2026-01-14; empty: not told.
    """
    out: dict[str, Any] = {}
    told = {
        "framework": engine.framework, "model": model, "system": system, "version": version,
        "scheme": engine.of_experts(), "measured": measured, "prompt": prompt, "output": output,
        "clients": clients, "tp": engine.tp, "attention_dp": engine.attention_dp > 1,
    }  # fmt: skip
    for rule in _published_settings()["rule"]:
        if _fits(rule, told):
            out |= rule["set"]
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
    return (
        [told["prompt"], told["output"]] in rule.get("lengths", _published_settings()["lengths"])
        and all(re.search(rule[name], told[name]) for name in _SEARCHED if name in rule)
        and all(rule[name] == told[name] for name in _EQUAL if name in rule)
        and all(rule[name][0] <= told[name] <= rule[name][1] for name in _WITHIN if name in rule)
    )


@functools.cache
def _published_settings() -> dict[str, Any]:
    return shipped_toml(__package__, "benchmarks.toml")
