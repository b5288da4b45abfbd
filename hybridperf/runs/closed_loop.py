"""Latency of a server whose clients each send their next request when the last is answered.

Of C clients B decode and the others wait for their first token (Little's law). While a sequence
makes its O tokens, each of the other B - 1 is replaced once, and its prompt, p seconds in full
chunks, stands in the way of all; a first token waits for the prompts of its burst, half of them on
the average:

    B    = min(C / (1 + TTFT / (O TPOT)), slots)
    TPOT = step(B, I + O/2) + (B - 1) p / O
    TTFT = g (T(I) + f p (C' - 1) / 2) + (k + (1 - f) w) step(B) + c + wait     C' = min(C, slots)
    wait = (C / slots - 1) O TPOT                where more clients are than slots, else 0

Where prompts are computed by engines apart nothing interferes, and of clients enough to keep these
busy, a prompt each P for a rank of theirs, TTFT = P p - O TPOT.

`f` is the share of requests that meet the opening burst, g, k and c are effects of the framework
(`model/serving_effects.py`), w the steps that prompts are held back (`admission.py`). p beside
sequences that decode is what a prompt adds to their steps. Steps with prompts are no CUDA graphs:
they last at least as long as the host takes to launch their kernels. Everything is of one attention
rank: its share of clients, its slots.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from hybridperf.engine.step_times import StepTimes
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.model.serving_effects import ServingEffects
from hybridperf.runs.admission import AT_ONCE, Admission

CHUNK = 8192.0  # tokens of prompts in a step at most: the usual budget of vLLM's benchmarks
_ROUNDS = 20  # of the iteration for B, each halfway to the next: within 1e-5 of its limit


class Latency(NamedTuple):
    """Of requests in the mean; [...] as the sizes asked for."""

    ttft_s: Array
    tpot_s: Array
    decoding: Array  # B, sequences of a rank that decode at once
    waiting_s: Array  # of ttft_s, for a slot

    @property
    def tokens_per_s(self) -> Array:
        """Output tokens of one rank, all its sequences together."""
        return self.decoding / self.tpot_s


class Loop(NamedTuple):
    """A closed loop before any effect of a framework, of one attention rank; [...] each."""

    clients: Array
    slots: Array
    output: Array
    step_s: Array  # of decoding
    alone_s: Array  # of one prompt
    next_s: Array  # that a prompt adds among others
    prompts: Array  # that an opening burst brings to the rank, or to one of those apart
    decoding: Array
    interferes: Array = 1.0  # 0: prompts are computed by workers apart
    held_back: Array = 0.0  # steps that a prompt waits before the engine takes it
    step_launches: Array = 0.0  # of a step with prompts
    launches: Array = 0.0  # of one prompt alone
    next_launches: Array = 0.0  # that a prompt adds among others
    beside_s: Array = 0.0  # that a prompt adds to steps of sequences that decode
    beside_steps: Array = 1.0  # that it adds to
    eager: Array = 0.0  # 1: steps of decoding are no CUDA graphs either
    step_kernels: Array = 0.0  # of a step of decoding
    made: Array = 1.0  # tokens of a sequence in a step, with drafts

    def latency(self, effects: ServingEffects, host_s: Array = 0.0) -> Latency:
        """The formula of the module's docstring; `host_s`: of each step."""
        module = array_module(*self)
        added_s = effects.step_s + host_s
        launched_s = effects.launch_s * self.step_launches
        gaps_s = effects.gap_s * self.step_kernels
        beyond_s = gaps_s + effects.sequence_s * self.decoding * self.made
        kernels_s = effects.kernels * self.step_s + beyond_s
        kernels_s = module.maximum(kernels_s, self.eager * launched_s)
        step_s = kernels_s + added_s
        launched_by = effects.launch_s * self.next_launches
        next_s = module.maximum(effects.kernels * self.next_s, launched_by)
        others = self.interferes * (self.decoding - 1.0)
        both_s = effects.kernels * (self.step_s + self.beside_s / self.beside_steps) + beyond_s
        beside_s = (module.maximum(both_s, launched_s) - kernels_s) * self.beside_steps
        tpot_s = step_s + others * beside_s / self.output
        waiting_s = module.maximum(self.clients / self.slots - 1.0, 0.0) * self.output * tpot_s
        alone_s = effects.kernels * self.alone_s + gaps_s
        alone_s = module.maximum(alone_s, effects.launch_s * self.launches) + added_s
        before_s = effects.burst * next_s * (self.prompts - 1.0) / 2.0
        first_s = effects.prefill * (alone_s + before_s)
        steps = effects.waited_steps + (1.0 - effects.burst) * self.held_back
        ttft_s = first_s + steps * step_s + effects.first_token_s + waiting_s
        # engines apart that are busy throughout: a prompt waits until they have computed all others
        full_s = (1.0 - self.interferes) * (self.prompts * next_s - self.output * tpot_s)
        ttft_s = module.maximum(ttft_s, full_s)
        return Latency(ttft_s, tpot_s, self.decoding, waiting_s)


def settled(
    times: StepTimes, clients: Array, prompt: Array, output: Array, slots: Array,
    effects: ServingEffects, chunk: Array = CHUNK, ranks: Array = 1.0,
    prefill: tuple[StepTimes, Array] | None = None, admission: Admission = AT_ONCE,
    launches: Array = 0.0, cached: Array = 0.0, eager: Array = 0.0, made: Array = 1.0,
) -> Loop:  # fmt: skip
    """The loop at the number of sequences that decode once it has run for long; NumPy, or
    differentiable in JAX.

    Args:
        times: of the engine's steps, by what one attention rank holds.
        clients: that send requests, to all ranks together.
        prompt: tokens.
        output: tokens.
        slots: sequences that may run at once, of all ranks together.
        effects: of the framework; its step effects multiply `times`.
        chunk: tokens of prompts in a step at most.
        ranks: attention ranks that requests are spread over.
        prefill: of engines apart that compute the prompts, and how many attention ranks all of
            them have.
        admission: when prompts that came are taken.
        launches: of a step with prompts, if it is no CUDA graph.
        cached: tokens of the prompt that are found in the cache of prefixes, and looked at.
        eager: 1 where steps of decoding are no CUDA graphs either.
        made: tokens of a sequence in a step; `output` counts steps.
    """
    prompt, output = floats(prompt), floats(output)
    module = array_module(clients, prompt, output, slots, times.products_s)
    every = floats(clients)
    clients = module.maximum(every / ranks, 1.0)
    slots = module.maximum(floats(slots) / ranks, 1.0)
    keys, held = prompt + output / 2.0, module.minimum(clients, slots)
    prompt, seen = prompt - cached, cached + (prompt - cached) / 2.0
    kernels, prompts, interferes = dataclasses.replace(times, host_s=0.0), held, 1.0
    first = kernels
    if prefill is not None:
        first = dataclasses.replace(prefill[0], host_s=0.0)
        prompts, interferes = module.maximum(every / prefill[1], 1.0), 0.0
    alone_s = prefill_seconds(first, prompt, chunk, cached)
    loop = Loop(
        clients, slots, output, kernels.seconds(held, keys), alone_s,
        prompt_seconds(first, prompt, chunk, cached), prompts, held, interferes, 0.0,
        launches, launches * module.ceil(prompt / chunk), launches * prompt / chunk,
        eager=eager, step_kernels=times.kernels, made=made,
    )  # fmt: skip
    for _ in range(_ROUNDS):
        # one that decodes alone is not waited for, and prompts of workers apart stop nobody
        others = interferes * module.minimum(loop.decoding - 1.0, 1.0)
        wait = admission.wait(loop.decoding / output, prompt, loop.decoding)
        steps = module.ceil(prompt / chunk)
        together = module.clip(loop.decoding / output, 1.0, module.maximum(chunk / prompt, 1.0))
        beside_s = kernels.seconds(loop.decoding, keys, prompt * together / steps, seen)
        beside_s = (beside_s - loop.step_s) * steps / together
        loop = loop._replace(
            held_back=others * wait, beside_s=beside_s, beside_steps=steps / together
        )
        found = loop.latency(effects, times.host_s)
        free = clients / (1.0 + found.ttft_s / (output * found.tpot_s))
        decoding = (loop.decoding + module.clip(free, 1.0, held)) / 2.0
        loop = loop._replace(decoding=decoding, step_s=kernels.seconds(decoding, keys))
    return loop


def prefill_seconds(
    times: StepTimes, prompt: Array, chunk: Array = CHUNK, cached: Array = 0.0
) -> Array:
    """Of one prompt alone, chunk after chunk: each looks at those before it and at `cached`."""
    module = array_module(prompt, chunk)
    chunks = module.ceil(floats(prompt) / chunk)
    return chunks * times.seconds(0.0 * chunks, 1.0, prompt / chunks, cached + prompt / 2.0)


def prompt_seconds(
    times: StepTimes, prompt: Array, chunk: Array = CHUNK, cached: Array = 0.0
) -> Array:
    """That a prompt adds among others: its share of full chunks, or its own chunks."""
    module = array_module(prompt, chunk)
    most = module.maximum(floats(prompt), chunk)
    chunks = module.ceil(most / chunk)
    full_s = chunks * times.seconds(0.0 * most, 1.0, most / chunks, cached + floats(prompt) / 2.0)
    return full_s * prompt / most
