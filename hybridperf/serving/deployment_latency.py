"""What deployments reach: time to first token, time per output token, requests a second.

A deployment is asked as a row of measurements is (`loads.py`), with as many clients as it has
slots, under a load that has lasted.

Axes: E engines, N deployments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.model import PerfModel
from hybridperf.model.serving_effects import NAMES, ServingEffects, believed, effects_of, logs_of
from hybridperf.ops.frameworks import serving_framework
from hybridperf.serving.admission import AT_ONCE, Admission
from hybridperf.serving.fit import ServingFit
from hybridperf.serving.loads import Engines, Loads
from hybridperf.serving.rows import CHUNK, ServedRow
from hybridperf.workloads.serving import Deployment
from hybridperf.workloads.serving.deployment import ServingMemory
from hybridperf.workloads.transformer.shape import TransformerShape

LARGEST_CHUNK = int(CHUNK)


@dataclasses.dataclass(frozen=True)
class Question:
    """What is to be served on what, and how fast."""

    shape: TransformerShape
    model: PerfModel  # the machine, with collectives
    gpus: int
    prompt: int
    output: int
    framework: str = ""
    ttft_s: float = np.inf  # limits
    tpot_s: float = np.inf
    # each a way to keep weights and cache: fields of `Deployment`
    schemes: tuple[Mapping[str, Any], ...] = ({"quant": "bfloat16"},)
    cached_share: float = 0.0
    drafted: int = 0
    acceptance: float = 0.0
    all_reduce: str = ""
    fit: ServingFit | None = None  # to measured rows; their name of the GPU
    system: str = ""

    def effects(self, apart: bool = False) -> ServingEffects:
        """Of the framework, by measured rows where there are any."""
        if self.fit is None:
            model = self.model
            return believed(self.framework, apart, host=model.host, device=model.device)
        logs = logs_of(self.fit.of([self.row(Deployment(self.shape), apart=apart)]))
        return effects_of(logs[:, 0])

    def row(
        self, engine: Deployment, *, apart: bool, held: float = 1.0, workers: float = 1.0,
        prefill: Deployment | None = None, prefill_workers: float = 1.0,
    ) -> ServedRow:  # fmt: skip
        """A deployment as a row of measured ones would tell it."""
        return ServedRow(
            engine=engine, prefill=(prefill or engine) if apart else None,
            clients=held * engine.attention_dp * workers, prompt=float(self.prompt),
            output=float(self.output), workers=workers, prefill_workers=prefill_workers,
            model=self.shape.name, system=self.system, framework=self.framework,
            launch_host=self.model.host, version=serving_framework(self.framework).release(),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Priced:
    """Engines that fit [E], and what their steps take."""

    engines: tuple[Deployment, ...]
    memory: tuple[ServingMemory, ...]
    holds: np.ndarray  # sequences of each rank [E]
    known: Engines
    sent_s: np.ndarray  # of a prompt's keys to another engine [E]

    def each(self, name: str) -> np.ndarray:
        """A property of each engine [E]."""
        return np.array([getattr(one, name) for one in self.engines])


class Space(NamedTuple):
    """Deployments before any effect of a framework; [N] each."""

    decode: np.ndarray  # int, place of the engine that decodes, or does all
    first: np.ndarray  # int, of that which computes prompts; -1: the same
    held: np.ndarray  # sequences of each rank that decodes
    chunk: np.ndarray
    replicas: np.ndarray  # engines that decode
    prompting: np.ndarray  # engines that compute prompts


class Latency(NamedTuple):
    """Latencies of N deployments and the rate at which they serve."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    rate: np.ndarray  # requests a second of the whole deployment


def prompt_seconds(asked: Question, priced: Priced, effects: ServingEffects) -> np.ndarray:
    """Of one prompt on each engine, chunk after chunk [E]."""
    new = asked.prompt * (1.0 - asked.cached_share)
    chunks = np.ceil(new / LARGEST_CHUNK)
    times = priced.known.at(np.arange(len(priced.engines)), effects).times
    each_s = times.seconds(0.0, 1.0, new / chunks, asked.prompt - new / 2.0)
    return np.asarray(effects.prefill * chunks * each_s)


def latency_of(asked: Question, priced: Priced, space: Space) -> Latency:
    """Latencies of all deployments of a space [N] under a question's load."""
    size = len(space.held)
    ranks = space.replicas * priced.known.ranks[space.decode]
    loads = Loads(
        priced.known, space.decode, space.first, space.held * ranks,
        np.full(size, float(asked.prompt)), np.full(size, float(asked.output)),
        space.held.astype(float), space.chunk.astype(float), space.replicas, space.prompting,
        np.zeros(size, bool), np.where(space.first < 0, 0.0, priced.sent_s[space.first]),
        Admission(*(np.full(size, float(one)) for one in AT_ONCE)),
    )  # fmt: skip
    each = [asked.effects(apart) for apart in (False, True)]
    effects = ServingEffects(**{
        name: np.where(loads.apart, *(getattr(one, name) for one in reversed(each)))
        for name in NAMES
    })  # fmt: skip
    found = loads.latency(effects)
    return _latency(asked, priced, space, found.ttft_s, found.tpot_s)


def _latency(
    asked: Question, priced: Priced, space: Space, ttft_s: np.ndarray, tpot_s: np.ndarray
) -> Latency:
    """By Little's law: as many clients as slots."""
    clients = space.held * space.replicas * priced.known.ranks[space.decode]
    return Latency(ttft_s, tpot_s, clients / (ttft_s + (asked.output - 1.0) * tpot_s))


def rows_of(asked: Question, priced: Priced, space: Space) -> list[ServedRow]:
    """Deployments [N] as rows of measured ones."""
    each = zip(*(one.tolist() for one in space), strict=True)
    return [
        asked.row(priced.engines[decode], apart=first >= 0, held=held, workers=replicas,
                  prefill=priced.engines[first], prefill_workers=prompting)
        for decode, first, held, _, replicas, prompting in each
    ]  # fmt: skip


def by_rows(
    asked: Question, priced: Priced, space: Space, rows: Sequence[ServedRow], latency: Latency
) -> Latency:
    """What measured rows like these keep of their own."""
    if not asked.fit:
        return latency
    ttft_s, tpot_s = (
        one * np.exp(asked.fit.left(rows, target)[0])
        for one, target in ((latency.ttft_s, "ttft_s"), (latency.tpot_s, "tpot_s"))
    )
    return _latency(asked, priced, space, ttft_s, tpot_s)
