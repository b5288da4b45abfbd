"""Rollouts: answers of unlike lengths that a trainer asks for all at once, until the last ends.

The event simulation (`batching.py`) serves them by one engine: what waits for a place in the cache,
preemption and the end, where few long answers leave the engine almost empty, are as they come.
Engines of a step are alike and begin together, and the longest answer of all is on the slowest one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError
from hybridperf.model.serving_effects import believed
from hybridperf.serving.batching import serve
from hybridperf.serving.engine import Engine
from hybridperf.serving.machines import Machine
from hybridperf.serving.requests import arriving
from hybridperf.serving.rows import understood
from hybridperf.workloads.serving import Deployment, prompt_launches, step_times
from hybridperf.workloads.serving.deployment import serving_memory

_MOST_MEMORY = 0.92  # share of a GPU's memory that an engine takes where it has no room with less


class Rollouts(NamedTuple):
    """What an engine's answers take."""

    seconds: float  # until the last one
    half_s: float  # until half of them have ended
    preemptions: int
    cached_tokens: float  # that its cache holds
    memory_share: float  # of a GPU, as it was given or as much as the longest answer needs
    notes: tuple[str, ...]  # what was assumed of the engine


def rollouts(
    row: Mapping[str, Any], ranks: tuple[int, int, int], prompt: int, lengths: np.ndarray,
    memory_share: float, step_s: float = 0.0, token_s: float = 0.0, slots: int = 1024,
) -> Rollouts:  # fmt: skip
    """Seconds of one engine for answers that are all asked for at once.

    Args:
        row: the engine, in the columns of a table of operating points, without its layout.
        ranks: of the engine that share each layer's matrices, its stages, ranks that share experts.
        prompt: tokens of each prompt.
        lengths: of the answers [N], tokens.
        memory_share: of a GPU that the engine takes.
        step_s: of the host in each step, beside what a server's takes.
        token_s: of the host for each token, likewise.
        slots: sequences at once.

    Raises:
        InputError: an engine that cannot be, or that has no room for the longest answer.
    """
    sizes = {
        "isl": prompt, "osl": float(np.mean(lengths)), "concurrency": len(lengths),
        "attention_dp_size": 1,
    }  # fmt: skip
    engine = understood(pd.DataFrame([{**row, **sizes}]))[0]
    if engine.refused or engine.engine is None or engine.machine is None:
        raise InputError(f"the engine that generates: {engine.refused or 'none is told'}")
    tp, pp, ep = ranks
    machine, made = engine.machine, dataclasses.replace(engine.engine, tp=tp, pp=pp, expert_ep=ep)
    effects = believed(
        engine.framework, eager=engine.eager, host=machine.load().host, release=engine.release,
        device=machine.spec,
    )  # fmt: skip
    launches = prompt_launches(made, machine.spec)
    times = _steps(machine, made).as_run(
        effects, launches, float(engine.eager), made.tokens_per_pass
    )
    times = dataclasses.replace(
        times, host_s=times.host_s + step_s, sequence_s=times.sequence_s + token_s
    )
    memory, longest = serving_memory(made), float(prompt + np.max(lengths))
    fixed = (memory.weights + memory.workspace) / engine.memory_bytes
    needed = fixed + (longest + 32.0) * memory.token / engine.memory_bytes
    share = max(memory_share, min(needed, _MOST_MEMORY))
    if needed > share:
        raise InputError(
            f"expected engines with room for the longest answer, {longest:g} tokens, got"
            f" {made.gpus} GPUs of {engine.memory_bytes / 1e9:.0f} GB each, of which it needs"
            f" {needed:.0%}; give gen_tp more GPUs or max_length fewer tokens"
        )
    held = max(share - fixed, 0.0) * engine.memory_bytes / max(memory.token, 1e-9)
    requests = arriving(np.zeros(len(lengths)), np.full(len(lengths), prompt), lengths)
    served = serve(requests, [Engine(times, slots, int(engine.chunk), held)])
    return Rollouts(
        float(served.last_token_s.max()), float(np.median(served.last_token_s)),
        served.preemptions, held, share, engine.notes,
    )  # fmt: skip


@functools.lru_cache(512)
def _steps(machine: Machine, engine: Deployment) -> StepTimes:
    """What an engine's steps take; a plan asks for the same engines again."""
    return step_times(machine.load(), [engine], machine.all_reduce)[0]
