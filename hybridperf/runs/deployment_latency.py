"""What deployments reach: time to first token, time per output token, requests a second.

Aggregated engines are in the steady state of a closed loop with as many clients as decode
(`steady_state.py`). Of engines apart, a request waits for one that computes prompts as in an M/D/x
queue, its keys go over the links, and the slower of both sides bounds the rate; where prompts come
too seldom for all slots, Little's law says how many decode at once. In the simulation, where
prompts that wait are computed in batches and each engine has a queue of its own, first tokens of
engines apart come 3 to 14 % later at the most load that is let in; times per output token agree
within 2 %.

Axes: E engines, N deployments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.engine.step_times import StepTimes
from hybridperf.io.namespace import Array, array_module
from hybridperf.model import PerfModel
from hybridperf.model.serving_effects import ServingEffects, believed, effects_of, logs_of
from hybridperf.runs.batching import Engine
from hybridperf.runs.queues import mean_wait_s
from hybridperf.runs.serving_fit import ServingFit
from hybridperf.runs.serving_rows import ServedRow
from hybridperf.runs.steady_state import Steady, steady_clients
from hybridperf.workloads.serving import Deployment
from hybridperf.workloads.serving.deployment import ServingMemory
from hybridperf.workloads.transformer.shape import TransformerShape

LARGEST_CHUNK = 8192
_BUSIEST = 0.8  # share of their time that engines of prompts work: beyond it queues explode
_ROUNDS = 12  # of the number that decode: each leaves less than half of what the last one left


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
            return believed(self.framework, apart)
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
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Priced:
    """Engines that fit [E], and what their steps take."""

    engines: tuple[Deployment, ...]
    memory: tuple[ServingMemory, ...]
    holds: np.ndarray  # sequences of each rank [E]
    times: StepTimes  # of all, stacked
    sent_s: np.ndarray  # of a prompt's keys to another engine [E]
    launches: np.ndarray  # of a step with prompts [E]

    def each(self, name: str) -> np.ndarray:
        """A property of each engine [E]."""
        return np.array([getattr(one, name) for one in self.engines])

    def with_effects(self, effects: ServingEffects) -> StepTimes:
        """Steps of all as a framework runs them; all engines draft alike."""
        return with_effects(self.times, effects, self.engines[0].tokens_per_pass)


class Space(NamedTuple):
    """Deployments before any effect of a framework; [N] each."""

    decode: np.ndarray  # int, place of the engine that decodes, or does all
    first: np.ndarray  # int, of that which computes prompts; -1: the same
    held: np.ndarray  # sequences of each rank that decodes
    chunk: np.ndarray
    replicas: np.ndarray  # engines that decode
    prompting: np.ndarray  # engines that compute prompts


class Latency(NamedTuple):
    """[N] each."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    rate: np.ndarray  # requests a second of the whole deployment


def prompt_seconds(asked: Question, priced: Priced, effects: ServingEffects) -> np.ndarray:
    """Of one prompt on each engine, chunk after chunk [E]."""
    new = asked.prompt * (1.0 - asked.cached_share)
    chunks = np.ceil(new / LARGEST_CHUNK)
    times = priced.with_effects(effects).of(np.arange(len(priced.engines)))
    each_s = times.seconds(0.0, 1.0, new / chunks, asked.prompt - new / 2.0)
    each_s = np.maximum(each_s, effects.launch_s * priced.launches)
    return np.asarray(effects.prefill * chunks * each_s)


def latency_of(asked: Question, priced: Priced, space: Space) -> Latency:
    """Of all deployments [N]."""
    out = Latency(*np.zeros((3, len(space.held))))
    together = space.first < 0
    for chosen, of in ((together, _together), (~together, _split)):
        part = Space(*(one[chosen] for one in space))
        effects = asked.effects(apart=of is _split)
        for into, values in zip(out, of(asked, priced, part, effects), strict=True):
            into[chosen] = values
    return out


def rows_of(asked: Question, priced: Priced, space: Space) -> list[ServedRow]:
    """Deployments [N] as rows of measured ones."""
    each = zip(*(one.tolist() for one in space), strict=True)
    return [
        asked.row(priced.engines[decode], apart=first >= 0, held=held, workers=replicas,
                  prefill=priced.engines[first], prefill_workers=prompting)
        for decode, first, held, _, replicas, prompting in each
    ]  # fmt: skip


def by_rows(asked: Question, rows: Sequence[ServedRow], latency: Latency) -> Latency:
    """What measured rows like these keep of their own."""
    if not asked.fit:
        return latency
    ttft_s, tpot_s = (
        one * np.exp(asked.fit.left(rows, target)[0])
        for one, target in ((latency.ttft_s, "ttft_s"), (latency.tpot_s, "tpot_s"))
    )
    before_s, after_s = (
        first_s + (asked.output - 1) * each_s
        for first_s, each_s in ((latency.ttft_s, latency.tpot_s), (ttft_s, tpot_s))
    )
    return Latency(ttft_s, tpot_s, latency.rate * before_s / after_s)


def _together(asked: Question, priced: Priced, space: Space, effects: ServingEffects) -> Latency:
    times = priced.with_effects(effects).of(space.decode)
    each = Engine(times, slots=space.held, budget=space.chunk.astype(float),
                  drafted=asked.drafted, acceptance=asked.acceptance)  # fmt: skip
    cached = np.floor(asked.prompt * asked.cached_share)
    steady = steady_clients(each, space.held, asked.prompt, asked.output, cached)
    chunks = np.ceil(asked.prompt * (1.0 - asked.cached_share) / space.chunk)
    launches = priced.launches[space.decode] * chunks
    first_s, rate = with_first_tokens(steady, space.held, launches, effects)
    ranks = space.replicas * priced.each("attention_dp")[space.decode]
    return Latency(first_s, steady.tpot_s, ranks * rate)


def with_first_tokens(
    steady: Steady, clients: Array, launches: Array, effects: ServingEffects
) -> tuple[Array, Array]:
    """(TTFT, requests a second) of a rank whose framework adds its effects to first tokens.

    Args:
        steady: without them.
        clients: of the rank.
        launches: kernels of a prompt's steps, one by one.
        effects: of the framework.
    """
    added_s = effects.waited_steps * steady.tpot_s + effects.first_token_s
    launched_s = effects.launch_s * launches
    module = array_module(steady.ttft_s, launched_s)
    first_s = effects.prefill * module.maximum(steady.ttft_s, launched_s) + added_s
    # what is added to the wait is no work of the engine: fewer of its clients are with it
    each_s = clients / steady.rate
    return first_s, steady.rate * each_s / (each_s + first_s - steady.ttft_s)


def _split(asked: Question, priced: Priced, space: Space, effects: ServingEffects) -> Latency:
    prompt_s = prompt_seconds(asked, priced, effects)[space.first]
    times = priced.with_effects(effects).of(space.decode)
    gain = priced.engines[0].tokens_per_pass
    steps, keys = (asked.output - 1) / gain, asked.prompt + asked.output / 2.0
    ranks = space.prompting * priced.each("attention_dp")[space.first]
    decoding = space.replicas * priced.each("attention_dp")[space.decode]
    full_s = times.seconds(space.held, keys)
    rate = np.minimum(decoding * space.held / (steps * full_s), _BUSIEST * ranks / prompt_s)
    held, step_s = space.held, full_s
    for _ in range(_ROUNDS):  # where prompts come too seldom fewer decode at once, by Little's law
        held = np.clip(rate * steps * step_s / decoding, 1.0, held)
        step_s = times.seconds(held, keys)
    wait_s = np.zeros(len(rate))
    for servers in np.unique(ranks).tolist():
        at = ranks == servers
        wait_s[at] = mean_wait_s(rate[at], prompt_s[at], servers, service_cv2=0.0)
    ttft_s = wait_s + prompt_s + priced.sent_s[space.first] + effects.first_token_s
    return Latency(ttft_s, step_s / gain, rate)


def with_effects(times: StepTimes, effects: ServingEffects, made: float = 1.0) -> StepTimes:
    """Steps as a framework runs them; `made`: tokens of a sequence in each, with drafts."""
    scaled = {name: getattr(times, name) * effects.kernels
              for name in ("products_s", "decode_s", "prefill_s", "beside_s")
              if getattr(times, name) is not None}  # fmt: skip
    gaps_s = effects.gap_s * np.asarray(times.kernels)
    scaled["products_s"] = scaled["products_s"] + gaps_s[..., None]
    for name in scaled.keys() & {"decode_s", "beside_s"}:
        scaled[name] = scaled[name] + effects.sequence_s * made * times.sequences[:, None]
    return dataclasses.replace(times, host_s=times.host_s + effects.step_s, **scaled)
