"""What a serving engine adds to the calls of its steps and to the wait for a first token, each with
what is believed of it before any row of that engine is measured.

    step        = step_s + kernels x (calls of the step) + gap_s x (their number)
                  + sequence_s x (tokens that it makes); all but step_s lasts
                  launch_s x launches at least, if the step is no CUDA graph
    first token = prefill x (prompts before it and its own) + waited_steps x step + first_token_s

Beliefs are log-normal, a median and a width in logs, as those of training steps are
(`step_effects.py`). What differs between frameworks stands in `ops/frameworks/`.
"""

# ruff: noqa: RUF009  (`effect` makes a dataclass field)
from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridperf.fields.frameworks import release_number
from hybridperf.hardware import DeviceSpec, Host
from hybridperf.hardware.power import has_gddr
from hybridperf.hardware.specs import architecture
from hybridperf.model.adapted_steps import launch_s
from hybridperf.model.step_effects import LAUNCH_S, SHIPPED, beliefs_of, effect
from hybridperf.ops.frameworks import serving_framework, serving_frameworks

_ROWS = "published rows of aiconfigurator's operating points"


@dataclasses.dataclass(frozen=True)
class ServingEffects:
    """One number each; arrays for a batch of rows."""

    # fmt: off
    kernels: Any = effect(0.9, 0.1,
        "kernels of a CUDA graph find what the last one left in the cache, where tables repeat one"
        f" op: 0.87 to 0.93 in {_ROWS}")
    gap_s: Any = effect(0.8e-6, 0.5,
        "from one kernel of a CUDA graph to the next, beside small ones that no call stands for:"
        f" 0.6 to 1.6 us in {_ROWS}")
    step_s: Any = effect(0.3e-3, 0.7,
        "of the host, each step, that kernels do not hide: 0.1 to 0.4 ms in"
        f" {_ROWS}")
    sequence_s: Any = effect(15e-6, 0.5,
        "of the host, each token: its sequence's scheduling, its way out over HTTP: 14 to 19 us, of"
        f" SGLang 36 to 70 us in {_ROWS}")
    prefill: Any = effect(1.1, 0.3,
        "prompts are of unlike length, and cut into chunks that are: assumed; with whole models,"
        " systems, frameworks left out published rows choose 1.05 to 1.3, mostly 1.1")
    waited_steps: Any = effect(2.0, 0.7,
        f"a prompt waits for the step that runs, its token for the next: 0 to 3 in {_ROWS}")
    first_token_s: Any = effect(20e-3, 0.8,
        "tokenizing, HTTP and the first token's way out: assumed; fits say 10 to 60 ms")
    launch_s: Any = effect(LAUNCH_S, 0.5,
        "of the host, each kernel of a step with prompts: assumed, as of any host that launches one"
        " kernel after the other; SGLang's pull request 12160 has 83 ms for DeepSeek-V3's")
    burst: Any = effect(0.1, 0.5,
        "share of requests that wait in the opening burst: one of ten, where each client sends ten")
    # fmt: on


# of the host, at most, each kernel of a step with prompts that is prepared while another runs:
# chosen with published rows in sight; 5, 8 and 12 us err alike, 45 us makes TPOT of Qwen3-235B on
# TensorRT-LLM 1.4 times too long
AHEAD_LAUNCH_S = 12e-6

# what an engine adds whose own first tokens are timed: chosen on TensorRT-LLM 0.9's tables, with
# launches of 5 us a kernel (190 -> 11 %, without the 1.5 ms 23 %)
ALONE: Mapping[str, float] = {"prefill": 1.0, "waited_steps": 1e-3, "first_token_s": 1.5e-3}

# steps of their calls alone, by which a baseline has what every server does
CALLS_ALONE = ServingEffects(
    kernels=1.0, gap_s=0.0, step_s=0.0, sequence_s=0.0, prefill=1.0, waited_steps=1.0,
    first_token_s=0.0, launch_s=0.0, burst=0.1,
)  # fmt: skip
BELIEFS = beliefs_of(ServingEffects)
NAMES = tuple(BELIEFS)
# framework, effect, median in place of the usual one, source
KNOWN = [
    {"framework": one.name, **own.model_dump()}
    for one in serving_frameworks().values()
    for own in one.effects
]
KNOWN_APART = SHIPPED["serving_apart"]  # where engines apart compute prompts, of any framework


def believed(
    framework: str = "", apart: bool = False, eager: bool = False, host: Host | None = None,
    release: str | None = None, alone: bool = False, device: DeviceSpec | None = None,
) -> ServingEffects:  # fmt: skip
    """Medians of a framework, of any where it is not known.

    Args:
        framework: as we call it.
        apart: of engines for prompts.
        eager: kernels are launched one by one, not as a framework joins them otherwise.
        host: that launches them, if it is known.
        release: of the framework's, "" for one older than all that changed a default; None: the
            newest.
        device: that it runs on, if it is known.
        alone: an engine whose own first tokens are timed, prompts given to it without a server.
    """
    if release is None:
        release = serving_framework(framework).release()
    memory = ""  # of GPUs of an architecture that is described: others' share it with processors
    if device is not None and architecture(device.arch):
        memory = "gddr" if has_gddr(device) else "hbm"
    known = [one for one in KNOWN if one["framework"] == framework
             and one["memory"] in ("", memory)
             and release_number(one["since"]) <= release_number(release)]  # fmt: skip
    known += KNOWN_APART if apart else []
    medians = {one["effect"]: one["median"] for one in known}
    if eager:
        medians["launch_s"] = serving_framework(framework).eager_launch_s or LAUNCH_S
    if alone:  # whose kernels are slow, are so without a server, too
        own = medians.get("prefill", ALONE["prefill"])
        medians |= {**ALONE, "prefill": own}
        if not eager:
            medians["launch_s"] = serving_framework(framework).engine_launch_s or LAUNCH_S
    if host is not None:
        medians["launch_s"] = medians.get("launch_s", LAUNCH_S) / LAUNCH_S * launch_s(host)
    return ServingEffects(**medians)


def logs_of(effects: ServingEffects) -> np.ndarray:
    """Their logs, in the order of `NAMES`."""
    return np.log([getattr(effects, name) for name in NAMES])


def effects_of(logs: np.ndarray) -> ServingEffects:
    """Effects by their logs [K] or [K, N]."""
    return ServingEffects(**dict(zip(NAMES, np.exp(logs), strict=True)))
