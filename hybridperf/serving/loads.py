"""Deployments and their clients as columns, as which rows of measurements (`served.py`) and all
ways to serve a model (`deployments.py`) are asked: one deployment has one answer.

Axes: E engines, N deployments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.engine.step_times import StepTimes, chain_seconds
from hybridperf.model import PerfModel
from hybridperf.model.calls import CallChain, CollectiveCall
from hybridperf.model.serving_effects import NAMES, ServingEffects
from hybridperf.ops.frameworks import serving_framework
from hybridperf.serving.admission import Admission
from hybridperf.serving.engine import Engine
from hybridperf.serving.engine_load import Apart, FirstTokens, Load, stages_in_turn, under_load
from hybridperf.workloads.serving import Deployment


class Latency(NamedTuple):
    """Seconds and rates of N engines under their clients, an array each."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    waiting_s: np.ndarray  # of ttft_s, for a slot
    decoding: np.ndarray  # sequences of a rank


@dataclasses.dataclass(frozen=True)
class Engines:
    """What is known of engines [E], whoever asks them."""

    times: StepTimes  # stacked
    ranks: np.ndarray  # of attention
    stages: np.ndarray  # of a pipeline
    piece: np.ndarray  # tokens of a prompt that pass these together
    launches: np.ndarray  # kernels of a step that is no CUDA graph
    eager: np.ndarray  # 1: no step is
    drafted: np.ndarray  # int
    acceptance: np.ndarray
    cached: np.ndarray  # share of prompts

    @staticmethod
    def of(
        some: Sequence[Deployment], times: Sequence[StepTimes], launches: Sequence[float]
    ) -> Engines:
        """Engines, their steps and what they launch."""

        def numbers(each: Iterable[float]) -> np.ndarray:
            return np.array([*each], float)

        return Engines(
            StepTimes.stacked(times), numbers(one.attention_dp for one in some),
            numbers(one.pp for one in some),
            numbers(serving_framework(one.framework).piece_of_prompt for one in some),
            numbers(launches),
            numbers(one.launches == "eager" for one in some),
            numbers(one.drafted for one in some).astype(int),
            numbers(one.acceptance for one in some), numbers(one.cached_share for one in some),
        )  # fmt: skip

    def at(self, which: np.ndarray, effects: ServingEffects, **settings: Any) -> Engine:
        """Some [N], as a framework runs them."""
        drafted, acceptance = self.drafted[which], self.acceptance[which]
        engine = Engine(StepTimes.of(self.times, which), drafted=drafted, acceptance=acceptance,
                        **settings)  # fmt: skip
        times = engine.times.as_run(
            effects, self.launches[which], self.eager[which], engine.tokens_a_step
        )
        return dataclasses.replace(engine, times=times)


@dataclasses.dataclass(frozen=True)
class Loads:
    """Deployments and who asks them; [N] but `engines`."""

    engines: Engines
    decode: np.ndarray  # int, place of the engine that decodes, or does all
    first: np.ndarray  # int, of that which computes prompts; -1: the same
    clients: np.ndarray  # of the whole deployment
    prompt: np.ndarray
    output: np.ndarray
    slots: np.ndarray  # of an attention rank
    chunk: np.ndarray  # tokens of a step
    workers: np.ndarray  # engines that decode
    prefill_workers: np.ndarray
    at_once: np.ndarray  # bool: all clients begin together, as in a benchmark
    sent_s: np.ndarray  # of a prompt's keys to another engine
    admission: Admission

    def part(self, at: np.ndarray) -> Loads:
        """Some of them, by place or bool."""
        each = {
            one.name: getattr(self, one.name)[at]
            for one in dataclasses.fields(self)
            if one.name not in ("engines", "admission")
        }
        return Loads(
            self.engines, admission=Admission(*(one[at] for one in self.admission)), **each
        )

    @property
    def apart(self) -> np.ndarray:
        """Whether other engines compute the prompts, bool [N]."""
        return self.first >= 0

    def latency(self, effects: ServingEffects) -> Latency:
        """What requests see, with effects [N] or the same for all."""
        size = len(self.clients)
        effects = ServingEffects(
            **{name: np.broadcast_to(getattr(effects, name), size) for name in NAMES}
        )
        out = Latency(*np.zeros((len(Latency._fields), size)))
        for split in (False, True):
            at = np.flatnonzero(self.apart == split)
            if len(at):
                own = ServingEffects(**{name: getattr(effects, name)[at] for name in NAMES})
                found = self.part(at)._load(own, split)
                parts = found.ttft_s, found.tpot_s, found.waiting_s, found.sequences
                for into, values in zip(out, parts, strict=True):
                    into[at] = values
        return out

    def _load(self, effects: ServingEffects, apart: bool) -> Load:
        ranks = self.workers * self.engines.ranks[self.decode]
        engine = self.engines.at(
            self.decode, effects, slots=self.slots, budget=self.chunk, admission=self.admission
        )
        prefills = self.first if apart else self.decode
        stages = stages_in_turn(
            self.engines.stages[prefills], self.prompt, self.engines.piece[prefills]
        )
        added = FirstTokens(
            effects.prefill * stages, effects.waited_steps, effects.first_token_s,
            effects.burst * self.at_once,
        )  # fmt: skip
        prefill = None
        if apart:
            others = self.prefill_workers * self.engines.ranks[self.first]
            first = self.engines.at(self.first, effects, budget=self.chunk)
            prefill = Apart(first, others, ranks, self.sent_s)
        clients = np.maximum(self.clients / ranks, 1.0)
        cached = self.prompt * self.engines.cached[self.decode]
        return under_load(engine, clients, self.prompt, self.output, cached, added, prefill)


def sent_seconds(model: PerfModel, sizes: Sequence[float], gpus: int) -> np.ndarray:
    """Of prompts' keys, so many bytes, to another engine [E]: each GPU sends its share, over the
    network if the engines are more than a node holds.
    """
    links = model.collectives
    if links is None:  # engines of one GPU, whose keys stay on it or have no way
        return np.full(len(sizes), np.inf)
    nodes = 2 if gpus > links.system.accelerators_per_node else 1
    each = {size: at for at, size in enumerate(dict.fromkeys(sizes))}
    calls = [CollectiveCall("sendrecv", float(size), 2, nodes) for size in each]
    chains = [CallChain(((at + 1, 1),), "step") for at in each.values()]
    return chain_seconds(model, calls, chains)[[each[size] for size in sizes]]
