"""The steady state of continuous batching with a closed loop of clients: a recursion, fast and
differentiable.

A request decodes in n steps behind its first token, each with what the others brought meanwhile:

    s = E_j T(1 + sequences, keys, j prompts)      TPOT = s / tokens a step

Of B = min(clients, slots, what the cache holds) present each of the others sends a prompt every
n + k steps, k those of a prompt and its wait, so j is binomial of B - 1. A request comes when a
step ends and is computed in the next one. Where clients wait for a slot, Little's law gives what is
left: TTFT = clients / rate - n s. Prompts longer than the budget queue for it, as chunks in
discrete time.

What it leaves out: preemption, prompts of unlike lengths, and clients that stay in step, as after a
burst of answers of equal lengths.
`Steady.certain` says where it agrees with `batching.serve` within 2 %, which a test holds on random
engines and loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from hybridperf.io.namespace import Array, array_module, floats, fresh_views
from hybridperf.runs.batching import Engine

_TERMS = 6  # numbers of prompts that are told apart; the rest counts by its mean
_HALVINGS = 24  # by arithmetic alone


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Steady:
    """What requests see in the mean; any shape."""

    ttft_s: Array
    tpot_s: Array
    rate: Array  # requests a second
    tokens_per_s: Array  # of output
    sequences: Array  # that decode
    waiting_s: Array  # of ttft_s, for a slot
    prompts: Array  # share of the steps' budget that prompts take
    certain: Array  # whether it is the simulation's within 2 %


def steady_clients(
    engine: Engine, clients: Array, prompt: Array, output: Array, cached: Array = 0.0
) -> Steady:
    """Clients that send their next request when the last one has ended.

    Args:
        engine: slots, budget and kv_tokens may be arrays.
        clients: any shape, as all that follow.
        prompt: tokens in the mean.
        output: tokens in the mean, 2 or more.
        cached: tokens of the prompt in the prefix cache.
    """
    case = _Case(engine, prompt, output, cached)
    clients, module = floats(clients), case.module(clients)
    present = module.minimum(clients, case.most)
    others = present - 1.0

    def queue(lasts: Array) -> tuple[Array, Array, Array, Array]:
        """By the steps that a prompt takes with its wait: those it would take, less these."""
        decoding = others * case.steps / (case.steps + lasts)
        arrivals = others / (case.steps + lasts)
        size = case.size(decoding)
        behind = _behind(module, arrivals, size) + case.held_back(others, lasts, arrivals, decoding)
        return module.maximum(size, 1.0) + behind - lasts, decoding, arrivals, behind

    least = module.maximum(case.new / case.engine.budget, 1.0)
    most = 2.0 * (others + 1.0) * module.maximum(case.size(others), 1.0)
    for _ in range(_HALVINGS):
        middle = 0.5 * (least + most)
        more = queue(middle)[0] > 0
        least, most = module.where(more, middle, least), module.where(more, most, middle)
    lasts = _polished(module, lambda at: queue(at)[0], 0.5 * (least + most))
    _, decoding, arrivals, behind = queue(lasts)
    size = case.size(decoding)
    held = case.held_back(others, lasts, arrivals, decoding)
    period = case.engine.admission.period(arrivals, case.new, decoding)
    counts = _binomial(module, others, period / (case.steps + lasts))
    taking_s = case.step_s(decoding + 1.0, decoding, counts, arrivals * period)
    none_s = case.seconds(decoding + 1.0, 0.0)
    step_s = none_s + (taking_s - none_s) / period
    window = case.engine.admission.window(arrivals, case.new, decoding)
    with_it = _binomial(module, others, window / (case.steps + lasts))
    own_s = case.prompt_s(decoding, with_it) + held * case.seconds(decoding, 0.0)
    own_s = own_s + (behind - held) * case.seconds(decoding, case.room(decoding))
    rate = present / (case.steps * step_s + own_s)
    ttft_s = clients / rate - case.steps * step_s
    shared = (size > 0.5) & (others > 0)  # prompts that meet do not fit in one step
    together = arrivals * period * size
    how = case.engine.admission  # prompts that are taken together stay together for a while
    certain = (floats(how.gather) == 0.0) & ((how.every <= 1.0) | (how.every < 0.1 * case.steps))
    certain = certain & (together < module.where(shared, 0.05, 0.5)) & (present < case.holds)
    return Steady(
        ttft_s, step_s / case.gain, rate, rate * case.output, rate * case.steps * step_s,
        ttft_s - own_s, arrivals * size, certain,
    )  # fmt: skip


class _Case:
    """An engine and the requests it gets."""

    def __init__(self, engine: Engine, prompt: Array, output: Array, cached: Array) -> None:
        self.engine = engine = fresh_views(engine)
        self.prompt, self.output, self.cached = map(floats, (prompt, output, cached))
        self.new = self.prompt - self.cached
        # that a token of an answer sees in the mean, and one of a prompt
        self.keys, self.chunk_keys = self.prompt + 0.5 * self.output, self.cached + 0.5 * self.new
        self.gain = gain = engine.tokens_a_step
        # drafts that stand overshoot the last token by half of them
        self.steps = (self.output - 1.0) / gain + (gain - 1.0) / (2.0 * gain)
        module = self.module()
        self.holds = engine.kv_tokens / (self.prompt + 0.5 * (self.output + engine.block))
        self.most = module.minimum(engine.slots, module.maximum(self.holds, 1.0))

    def module(self, *more: Array) -> Array:
        return array_module(
            self.prompt, self.output, self.cached, *more, *jax.tree.leaves(self.engine)
        )

    def held_back(self, others: Array, lasts: Array, arrivals: Array, decoding: Array) -> Array:
        """Steps that a prompt waits before it is taken, while any of `others` decodes."""
        nobody = (lasts / (self.steps + lasts)) ** others
        return (1.0 - nobody) * self.engine.admission.wait(arrivals, self.new, decoding)

    def room(self, decoding: Array) -> Array:
        """Tokens of a step's budget that are left for prompts."""
        taken = decoding * (1.0 + self.engine.drafted)
        return self.module(taken).maximum(self.engine.budget - taken, 1.0)

    def size(self, decoding: Array) -> Array:
        """Steps that a prompt fills."""
        return self.new / self.room(decoding)

    def seconds(self, decoding: Array, chunk: Array) -> Array:
        return self.engine.times.seconds(decoding, self.keys, chunk, self.chunk_keys)

    def many_s(self, decoding: Array, chunks: Array) -> Array:
        """Seconds of steps that differ in their chunk alone, [..., chunks]."""
        decoding, keys, chunk_keys = (
            floats(one)[..., None] for one in (decoding, self.keys, self.chunk_keys)
        )
        return self.engine.times.seconds(decoding, keys, chunks, chunk_keys)

    def alone(self, decoding: Array) -> tuple[Array, Array]:
        """Full chunks of a prompt that nobody shares them with, and the tokens of its last one."""
        size, room = self.size(decoding), self.room(decoding)
        whole = self.module(size).floor(size)
        return whole, self.new - whole * room

    def step_s(
        self, decoding: Array, others: Array, counts: tuple[Array, Array], arrivals: Array
    ) -> Array:
        """Mean seconds of a step, prompts coming by `counts`."""
        module, room = self.module(decoding), self.room(others)
        chance, count = counts
        chunks = module.minimum(count * self.new[..., None], room[..., None])
        long = self.size(others) > 1.0
        whole, last = self.alone(others)
        some = module.stack(
            module.broadcast_arrays(0.0 * room, room, module.maximum(last, 0.0)), axis=-1
        )
        each_s = self.many_s(decoding, chunks)
        none_s, full_s, last_s = module.moveaxis(self.many_s(decoding, some), -1, 0)
        left = module.maximum(arrivals * self.new - (chance * chunks).sum(-1), 0.0) / room
        short_s = (chance * each_s).sum(-1) + left * (full_s - none_s)
        parts = arrivals * whole, arrivals * (last > 0)
        long_s = none_s + parts[0] * (full_s - none_s) + parts[1] * (last_s - none_s)
        return module.where(long, long_s, short_s)

    def prompt_s(self, decoding: Array, counts: tuple[Array, Array]) -> Array:
        """Seconds of the steps that compute a prompt, others coming with it by `counts`."""
        module, room = self.module(decoding), self.room(decoding)
        chance, count = counts
        tokens = (1.0 + count) * self.new[..., None]
        chunks = module.minimum(tokens, room[..., None])
        full_s = self.seconds(decoding, room)
        later = 1.0 - chunks / tokens  # of those that came together, the share that waits a step
        each_s = self.many_s(decoding, chunks) + later * full_s[..., None]
        whole, last = self.alone(decoding)
        last_s = self.seconds(decoding, module.maximum(last, 1.0)) * (last > 0)
        return module.where(
            self.size(decoding) > 1.0, whole * full_s + last_s, (chance * each_s).sum(-1)
        )


def _behind(module: Array, arrivals: Array, size: Array) -> Array:
    """Steps that a prompt waits for those before it: mean work left by batches that come each step
    (Lindley's recursion with whole steps idle), and half of its own batch where each fills steps.
    """
    load = arrivals * size
    free = module.maximum(1.0 - load, 1e-4)
    left = load * module.maximum(size - 1.0 + module.minimum(load, 1.0), 0.0) / (2.0 * free)
    return left + module.where(size > 1.0, 0.5 * load, 0.0)


def _polished(module: Array, gap: Callable[[Array], Array], at: Array) -> Array:
    """A root that is known but for rounding, by a step of Newton's: it brings the slopes."""
    if module is not np:
        at = jax.lax.stop_gradient(at)
    near = 1e-3 * at
    slope = (gap(at + near) - gap(at - near)) / (2.0 * near)
    if module is not np:
        slope = jax.lax.stop_gradient(slope)
    return at - gap(at) / module.minimum(slope, -0.1)


def _binomial(module: Array, trials: Array, share: Array) -> tuple[Array, Array]:
    """Chances and numbers [..., terms + 1] of successes in `trials`, which may be fractional; the
    last stands for all larger numbers by their mean.
    """
    share = module.clip(share, 0.0, 0.999)
    chance = [(1.0 - share) ** trials]
    for count in range(1, _TERMS):
        left = module.maximum(trials - (count - 1), 0.0)
        chance.append(chance[-1] * left / count * share / (1.0 - share))
    mean = trials * share
    rest = module.maximum(1.0 - sum(chance), 1e-9)
    told = sum(count * one for count, one in enumerate(chance))
    beyond = module.maximum((mean - told) / rest, float(_TERMS))
    numbers = [*(float(count) + 0.0 * mean for count in range(_TERMS)), beyond]
    return module.stack([*chance, rest], -1), module.stack(numbers, -1)
