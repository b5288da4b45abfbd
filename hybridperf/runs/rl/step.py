"""Seconds of a step of reinforcement learning: what its parts take, and how they follow each other.

    generate    all rollouts, by the simulation of an engine, until the longest answer has ended
    logprob     forward passes of the policy, a reference and critics over all rollouts
    train       optimizer steps of the policy and critics, each over `train_batch` packed samples
    refit       new weights to the engines: a fixed part, each tensor, their bytes
    prepare     data and buffers between the parts

On the same GPUs, or on-policy on different ones, parts follow each other:

    step = generate + logprob + train + refit + prepare

With rollouts up to k steps old, trainer and engines work side by side, k batches in flight:

    step = max(generate(k batches) / k, logprob + train + prepare) + refit

A step of training is what `hp.predict_steps` says of its layout, generation what the engines of
`hp.predict_serving` take: asked by the names of these questions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.fields.frames import answering
from hybridperf.io import InputError
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.runs.rl.framework import RlFramework
from hybridperf.runs.rl.lengths import answer_lengths, packed
from hybridperf.workloads.transformer import TransformerShape, load_shape

PARTS = ("generate", "logprob", "train", "refit", "prepare")
# deviations of the logs of parts, by the breakdown of six steps that `nemo_rl.toml` names: what is
# left of generation; of training beyond a step's own interval, with experts and without
_GENERATES, _TRAINS, _EXPERTS = 0.22, 0.12, 0.35
_REFITS, _PREPARES = 0.6, 0.5
_DRAWS = 2000
_ROUND = 64  # tokens to which packed samples are padded
_WEIGHT_BYTES = 2.0
_TENSORS = 10  # of a layer, experts aside; of an expert 3


@dataclasses.dataclass(frozen=True)
class RlConfig:
    """A step of reinforcement learning, all of it decided (`settings.py` decides).

    Attributes:
        model: name of a published model or a file of its sizes.
        gpu, system: as rows of training steps say them; system "": by the GPU.
        n_gpus: in all.
        train_gpus: that train; as many as `n_gpus` where trainer and engines take turns.
        staleness: steps that rollouts may be older than the policy; 0: on-policy.
        rollouts: answers of a step.
        train_batch: samples of an optimizer step.
        prompt, mean_length: tokens in the mean, of prompts and of answers.
        max_length: tokens of a prompt and its answer.
        spread: of the log of lengths.
        engine: columns of an operating point: precision, backend, ...
        ranks: of an engine: tp, pp, ep.
        layout: columns of a training step: tp, pp, cp, ep, precision, recompute, ...
        forwards: passes for log-probabilities and values of every rollout.
        trained: models that train: the policy and critics.
        rejected: share of groups that are sampled again.
        memory_share: of a GPU, that an engine takes; 0: as the framework has it.
        tool_s: that the longest answers wait for tools.
        habits: of the framework.
        notes: what was assumed.
    """

    model: str
    gpu: str
    system: str
    n_gpus: int
    train_gpus: int
    staleness: int
    rollouts: int
    train_batch: int
    prompt: int
    mean_length: float
    max_length: int
    spread: float
    engine: dict[str, Any]
    ranks: tuple[int, int, int]
    layout: dict[str, Any]
    forwards: int
    trained: int
    rejected: float
    memory_share: float
    tool_s: float
    habits: RlFramework
    notes: tuple[str, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether engines have GPUs of their own."""
        return self.train_gpus < self.n_gpus

    @property
    def shape(self) -> TransformerShape:
        """Sizes of the model, as published."""
        return load_shape(self.model)

    @property
    def longest(self) -> int:
        """Tokens of the longest answer."""
        return self.max_length - self.prompt

    @property
    def mean_answer(self) -> float:
        """Tokens of an answer in the mean, no more than the longest has."""
        return min(self.mean_length, float(self.longest))

    @property
    def gen_gpus(self) -> int:
        """How many GPUs generate rollouts."""
        return self.n_gpus - self.train_gpus if self.apart else self.n_gpus


@dataclasses.dataclass(frozen=True)
class RlStep:
    """Seconds of a step with their 90 % interval, and of its parts (`PARTS`); `draws` are steps of
    which each has parts as long as believed [draws].
    """

    config: RlConfig
    seconds: float
    low_s: float
    high_s: float
    parts: dict[str, float]
    idle_s: float  # that a GPU waits in the mean for the other side
    draws: np.ndarray
    notes: tuple[str, ...]

    @property
    def tokens_per_s_gpu(self) -> float:
        """Prompts and answers of a step, by its seconds and GPUs."""
        tokens = self.config.rollouts * (self.config.prompt + self.config.mean_length)
        return tokens / (self.seconds * self.config.n_gpus)


def rl_step(config: RlConfig) -> RlStep:
    """Seconds of a step and its parts; `InputError` for engines or a trainer that cannot be."""
    return step_of(config, trained([config])[0])


def step_of(config: RlConfig, trainer: Trained) -> RlStep:
    """The step of a config whose trainer is known; `InputError` for one that cannot be."""
    if trainer.refused:
        raise InputError(trainer.refused)
    generate_s, of_engine = generated(config)
    parts = dict(zip(PARTS, (generate_s, trainer.logprob_s, trainer.train_s, _refit_s(config),
                             config.habits.prepare_s), strict=True))  # fmt: skip
    trains = math.hypot(trainer.deviation, _EXPERTS if config.shape.experts else _TRAINS)
    widths = np.array([_GENERATES, trains, trains, _REFITS, _PREPARES])
    drawn = np.exp(widths[:, None] * _normal())
    draws = composed(config, {
        name: parts[name] * some for name, some in zip(PARTS, drawn, strict=True)
    })  # fmt: skip
    seconds = float(composed(config, parts))
    low_s, high_s = np.quantile(draws, [0.05, 0.95])
    return RlStep(
        config, seconds, float(min(low_s, seconds)), float(max(high_s, seconds)), parts,
        _idle_s(config, parts, seconds), draws, (*config.notes, *trainer.notes, *of_engine),
    )  # fmt: skip


@functools.cache
def _normal() -> np.ndarray:
    """Draws of each part, the same for every step, so that plans differ by what they do: [parts,
    draws]. Log-probabilities and training are off together.
    """
    normal = np.random.default_rng(0).standard_normal((len(PARTS), _DRAWS))
    normal[PARTS.index("logprob")] = normal[PARTS.index("train")]
    return normal


def composed(config: RlConfig, parts: dict[str, Any]) -> Any:
    """Seconds of a step by those of its parts, numbers or arrays: the module's formula."""
    generate_s, logprob_s, train_s, refit_s, prepare_s = (parts[name] for name in PARTS)
    trainer_s = logprob_s + train_s + prepare_s
    if config.apart and config.staleness:
        return np.maximum(generate_s, trainer_s) + refit_s
    return generate_s + trainer_s + refit_s


def _idle_s(config: RlConfig, parts: dict[str, float], step_s: float) -> float:
    if not config.apart:
        return 0.0
    trains = config.train_gpus / config.n_gpus
    trainer_s = sum(parts[name] for name in ("logprob", "train", "prepare", "refit"))
    busy_s = trains * trainer_s + (1.0 - trains) * (parts["generate"] + parts["refit"])
    return max(step_s - busy_s, 0.0)


def generated(config: RlConfig) -> tuple[float, tuple[str, ...]]:
    """(Seconds of a step's rollouts; what was assumed of the engines); `InputError` where engines
    cannot be.
    """
    size = config.ranks[0] * config.ranks[1]
    if config.gen_gpus % size:
        raise InputError(
            f"expected engines that share the {config.gen_gpus} GPUs which generate, got engines of"
            f" {size}; mend gen_tp, gen_pp or train_gpus"
        )
    flight = max(config.staleness, 1) if config.apart else 1
    asked = round(flight * config.rollouts / (1.0 - config.rejected))
    habits = config.habits
    usual = habits.memory_share_apart if config.apart else habits.memory_share
    seconds, notes = _generated(
        tuple(sorted(config.engine.items())), config.ranks, config.prompt, config.mean_answer,
        config.longest, config.spread, asked, math.ceil(asked / (config.gen_gpus // size)),
        config.memory_share or usual,
        habits.generate_step_s, habits.generate_token_s, habits.slots,
    )  # fmt: skip
    return (seconds + config.tool_s) / flight, notes


@functools.lru_cache(256)
def _generated(
    engine: tuple[tuple[str, Any], ...], ranks: tuple[int, int, int], prompt: int, mean: float,
    longest: int, spread: float, asked: int, of_one: int, memory_share: float, step_s: float,
    token_s: float, slots: int,
) -> tuple[float, tuple[str, ...]]:  # fmt: skip
    """(Seconds, notes) of the engine that has the longest of all answers."""
    lengths = answer_lengths(of_one, asked, mean, longest, spread)
    found = answering("serve").rollouts(
        dict(engine), ranks, prompt, lengths, memory_share, step_s, token_s, slots
    )
    notes = list(found.notes)
    if found.preemptions:
        notes.append(
            f"the cache of an engine holds {found.cached_tokens:,.0f} tokens:"
            f" {found.preemptions} times an answer made room for others"
        )
    return found.seconds, tuple(notes)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a trainer takes in a step; `refused` says why it cannot be."""

    train_s: float = math.nan
    logprob_s: float = math.nan
    deviation: float = 0.0  # of the logs of both
    fits: bool = True
    recompute: str = ""
    notes: tuple[str, ...] = ()
    refused: str = ""


def trained(configs: Sequence[RlConfig]) -> list[Trained]:
    """Training and log-probabilities of steps, all asked as one table of training steps: each with
    the recomputation that is said, or the first that fits.
    """
    rows, whose, refused = list[dict[str, Any]](), list[int](), dict[int, str]()
    for at, config in enumerate(configs):
        try:
            row = _training_row(config)
        except InputError as error:
            refused[at] = str(error)
            continue
        said = config.layout.get("recompute")
        modes = [said] if said else dict.fromkeys([config.habits.recompute, "full"])
        rows += [{**row, "recompute": mode} for mode in modes]
        whose += [at] * len(modes)
    if not rows:
        return [Trained(refused=refused[at]) for at in range(len(configs))]
    frame = pd.DataFrame(rows, dtype=object)
    found = answering("steps").predict_steps(frame)
    fits = [one is pd.NA or bool(one) for one in found["fits"]]  # not sure: it may
    tried: dict[int, list[int]] = {}
    for place, at in enumerate(whose):
        tried.setdefault(at, []).append(place)
    chosen = {at: next((one for one in some if fits[one]), some[-1]) for at, some in tried.items()}
    forwards = answering("steps").forward_passes_s(frame.iloc[[*chosen.values()]])
    forward_s = dict(zip(chosen, forwards.tolist(), strict=True))
    out = []
    for at, config in enumerate(configs):
        if at in refused:
            out.append(Trained(refused=refused[at]))
            continue
        best = chosen[at]
        told, habits = found.iloc[best], config.habits
        if not told["predicted_s"] > 0:
            out.append(Trained(refused=f"the trainer: {told['note']}"))
            continue
        notes = [] if len(tried[at]) == 1 else [f"recompute {told['recompute']} assumed"]
        if not fits[best]:
            notes.append(f"the trainer may not fit: {told['note']}")
        updates = config.rollouts // config.train_batch
        experts = habits.experts_longer if config.shape.experts else 1.0
        train_s = config.trained * updates * told["predicted_s"] * habits.train_longer
        logprob_s = config.forwards * updates * forward_s[at] * habits.forward_longer
        width = math.log(told["high_s"] / told["low_s"]) / (2.0 * NINE_OF_TEN)
        out.append(Trained(
            float(train_s * experts), float(logprob_s * experts), width, fits[best],
            str(told["recompute"]), tuple(notes),
        ))  # fmt: skip
    return out


def _training_row(config: RlConfig) -> dict[str, Any]:
    """The optimizer step of a config as a row of training steps."""
    if config.rollouts % config.train_batch:
        raise InputError(
            f"expected a train_batch that divides the {config.rollouts} rollouts of a step, got"
            f" {config.train_batch}; mend one of them"
        )
    layout, habits = config.layout, config.habits
    ranks = math.prod(int(layout.get(name, 1)) for name in ("tp", "pp", "cp"))
    if config.train_gpus % ranks:
        raise InputError(
            f"expected tp x pp x cp of the trainer to divide its {config.train_gpus} GPUs, got"
            f" {ranks}; mend train_tp, train_pp, train_cp or train_gpus"
        )
    bins, tokens = _packing(
        config.train_batch, config.rollouts, config.prompt, config.mean_answer, config.longest,
        config.spread, habits.packs,
    )  # fmt: skip
    replicas = config.train_gpus // ranks
    bins = max(bins, replicas)  # each has one
    # samples that share a micro-batch are a batch of shorter ones: tokens and attention stay
    fill = tokens / bins
    bins = math.ceil(bins / replicas) * replicas
    if int(layout.get("pp", 1)) > 1 or not habits.packs:
        fill = config.max_length  # stages send micro-batches of one size
    samples = max(int(fill // (tokens / config.train_batch)), 1) if habits.packs else 1
    seq = int(min(math.ceil(fill / samples / _ROUND) * _ROUND, config.max_length))
    row = {
        "model": config.model, "gpu": config.gpu, "system": config.system,
        "n_gpus": config.train_gpus, "seq": seq, "micro_batch": samples,
        "global_batch": bins * samples, "framework": habits.trains, "tp": 1, "pp": 1, **layout,
    }  # fmt: skip
    if config.shape.experts:
        row |= {"routing": habits.routing, "expert_messages": habits.expert_messages}
    return {name: value for name, value in row.items() if value != ""}


@functools.lru_cache(64)
def _packing(
    batch: int, rollouts: int, prompt: int, mean: float, longest: int, spread: float, packs: bool
) -> tuple[int, int]:
    """(Micro-batches of an optimizer step, its tokens)."""
    lengths: np.ndarray = prompt + answer_lengths(batch, rollouts, mean, longest, spread)
    bins = packed(lengths, prompt + longest) if packs else batch
    return bins, int(lengths.sum())


def _refit_s(config: RlConfig) -> float:
    """New weights of the policy, to engines beside it or on other GPUs."""
    shape, habits = config.shape, config.habits
    tensors = sum(
        kind.count * (_TENSORS + 3 * shape.experts * bool(kind.experts))
        for kind in shape.layer_kinds
    )
    fixed_s = habits.refit_apart_s if config.apart else habits.refit_s
    moved_s = _WEIGHT_BYTES * shape.parameters / habits.refit_bytes_per_s
    return fixed_s + habits.refit_tensor_s * tensors + moved_s
