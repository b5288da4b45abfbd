"""All ways to serve a model on some GPUs, ranked by tokens a second and GPU under latency limits.

An engine takes tp x pp x attention ranks GPUs in some quantisation with some budget of tokens a
step; the GPUs hold as many as fit. Disaggregated, x of them compute prompts and y decode: a request
waits for a prompt engine as in an M/D/x queue, its keys go over the links, and the slower of both
sides bounds the rate. Aggregated engines are in the steady state of a closed loop with
as many clients as decode (`steady_state.py`). Frameworks add what is believed of them
(`model/serving_effects.py`); the interval is the width of those beliefs, sent through one by one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.step_features import StepParts
from hybridperf.engine.step_times import StepTimes, chain_seconds
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.calls import CallChain, CollectiveCall
from hybridperf.model.serving_effects import BELIEFS, ServingEffects, believed
from hybridperf.runs.batching import Engine
from hybridperf.runs.queues import mean_wait_s
from hybridperf.runs.steady_state import steady_clients
from hybridperf.training.plans.economy import Economy
from hybridperf.training.plans.ranked import front
from hybridperf.workloads.memory.serving import ServingMemory, serving_memory
from hybridperf.workloads.serving import Deployment, step_times
from hybridperf.workloads.transformer.shape import TransformerShape

SEQUENCES = tuple(2**power for power in range(11))  # of an attention rank
CHUNKS = (2048, 8192)
_BUSIEST = 0.8  # share of their time that engines of prompts work: beyond it queues explode
_NINE_OF_TEN = 1.645  # standard deviations
_INTERVAL = ("kernels", "step_s", "prefill", "waited_steps", "first_token_s")


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


@dataclasses.dataclass(frozen=True)
class _Priced:
    """An engine, what its steps take, and the sequences that one of its ranks holds."""

    engine: Deployment
    times: StepTimes
    memory: ServingMemory
    holds: float


def engines(asked: Question) -> Iterator[Deployment]:
    """All engines that may be on so many GPUs: powers of two, and what the heads allow."""
    shape = asked.shape
    powers = [2**power for power in range(asked.gpus.bit_length()) if 2**power <= asked.gpus]
    for tp, pp, ranks, scheme in itertools.product(powers, powers, powers, asked.schemes):
        if tp * pp * ranks > asked.gpus or shape.heads % tp or pp > shape.depth:
            continue
        if ranks > 1 and not shape.experts:
            continue  # ranks that share nothing are replicas
        for expert_ep in sorted({1, tp * ranks}) if shape.experts else (1,):
            if shape.experts and shape.experts % expert_ep:
                continue
            yield Deployment(
                shape, tp, pp, ranks, expert_ep, **scheme, framework=asked.framework,
                cached_share=asked.cached_share, drafted=asked.drafted,
                acceptance=asked.acceptance,
            )  # fmt: skip


def precisions(model: PerfModel) -> list[str]:
    """That a device has a rate of its own for."""
    formats = {"bf16": "bf16", "fp8": "fp8", "fp4": "fp4"}
    return [name for name, dtype in formats.items() if dtype in model.device.peak_flops_per_s]


def deployments(asked: Question, economy: Economy | None = None) -> pd.DataFrame:
    """All deployments that fit, those within the limits first, by tokens/s and GPU.

    Raises:
        InputError: no engine fits on the GPUs.
    """
    some = list(engines(asked))
    capacity = asked.model.device.memory_bytes or np.inf
    context = asked.prompt + asked.output / 2.0
    memory = [serving_memory(one) for one in some]
    holds = [one.sequences(capacity, context) for one in memory]
    fit = [at for at, many in enumerate(holds) if many >= 1]
    if not fit:
        least = min((one.needed(1, context) for one in memory), default=np.nan)
        raise InputError(
            f"expected a model that fits on {asked.gpus} GPUs of {capacity / 1e9:.0f} GB, got"
            f" {asked.shape.name}, whose smallest share of a GPU is {least / 1e9:.0f} GB; give more"
            " GPUs or narrower formats in --precision"
        )
    times = step_times(asked.model, [some[at] for at in fit], asked.all_reduce)
    priced = [
        _Priced(some[at], one, memory[at], holds[at]) for at, one in zip(fit, times, strict=True)
    ]
    usual = believed(asked.framework)
    found = _all(asked, priced, usual)
    spread = {name: np.zeros(len(found)) for name in ("ttft_s", "tpot_s", "tokens_per_s_gpu")}
    for effect in _INTERVAL:  # one by one: beliefs are independent
        moved = getattr(usual, effect) * np.exp(BELIEFS[effect].width)
        other = _all(asked, priced, dataclasses.replace(usual, **{effect: moved}))
        for name, squared in spread.items():
            squared += np.log(other[name].to_numpy() / found[name].to_numpy()) ** 2
    for name, squared in spread.items():
        factor = np.exp(_NINE_OF_TEN * np.sqrt(squared))
        found[f"{name}_low"], found[f"{name}_high"] = found[name] / factor, found[name] * factor
    found["within"] = (found["ttft_s"] <= asked.ttft_s) & (found["tpot_s"] <= asked.tpot_s)
    found["tokens_per_s_user"] = 1.0 / found["tpot_s"]
    best = front(-found["tokens_per_s_user"].to_numpy(), -found["tokens_per_s_gpu"].to_numpy())
    found["front"] = np.isin(np.arange(len(found)), best)
    if economy is not None:
        found = found.assign(**_costs(found, economy))
    order = ["within", "tokens_per_s_gpu", "tpot_s"]
    return found.sort_values(order, ascending=[False, False, True], ignore_index=True)


def _all(asked: Question, priced: Sequence[_Priced], effects: ServingEffects) -> pd.DataFrame:
    frames = [
        _aggregated(asked, one, chunk, effects) for one in priced for chunk in CHUNKS
    ]  # each chunk with the same steps
    frames += list(_apart(asked, priced, effects))
    return pd.concat(frames, ignore_index=True)


def with_effects(times: StepTimes, effects: ServingEffects) -> StepTimes:
    """Steps as a framework runs them."""
    scaled = {name: getattr(times, name) * effects.kernels
              for name in ("products_s", "decode_s", "prefill_s")}  # fmt: skip
    return dataclasses.replace(times, host_s=times.host_s + effects.step_s, **scaled)


def _sequences(one: _Priced) -> np.ndarray:
    """Numbers of sequences of a rank that are tried: powers of two, and all that fit."""
    most = int(min(one.holds, SEQUENCES[-1]))
    return np.unique([*(count for count in SEQUENCES if count < most), most]).astype(float)


def _aggregated(asked: Question, one: _Priced, chunk: int, effects: ServingEffects) -> pd.DataFrame:
    """Replicas of one engine, a row for each number of sequences."""
    served, held = one.engine, _sequences(one)
    each = Engine(with_effects(one.times, effects), slots=held, budget=chunk,
                  drafted=served.drafted, acceptance=served.acceptance)  # fmt: skip
    cached = np.floor(asked.prompt * served.cached_share)
    steady = steady_clients(each, held, asked.prompt, asked.output, cached)
    replicas = asked.gpus // served.gpus
    added_s = effects.waited_steps * steady.tpot_s + effects.first_token_s
    first_s = effects.prefill * steady.ttft_s + added_s
    # what is added to the wait is no work of the engine: fewer of its clients are with it
    share = (held / steady.rate) / (held / steady.rate + first_s - steady.ttft_s)
    rate = replicas * served.attention_dp * steady.rate * share
    return _rows(
        asked, one, "aggregated", first_s, steady.tpot_s, rate, held, chunk, replicas,
        replicas * served.gpus,
    )  # fmt: skip


def _apart(
    asked: Question, priced: Sequence[_Priced], effects: ServingEffects
) -> Iterator[pd.DataFrame]:
    """Engines of prompts beside engines that decode, of one quantisation."""
    prompt_s = {id(one): _prompt_s(asked, one, effects) for one in priced}
    # chosen by what is usually believed, so that all effects are of the same deployments
    usual_s = {id(one): _prompt_s(asked, one, believed(asked.framework)) for one in priced}
    for decode in priced:
        size, left = decode.engine.gpus, asked.gpus - decode.engine.gpus
        kept = _kept(decode.engine)
        same = [one for one in priced if _kept(one.engine) == kept and one.engine.gpus <= left]
        if not same:
            continue
        # of prompts' engines the one with most prompts a second and GPU within the limit
        quick = [one for one in same if usual_s[id(one)] < 0.8 * asked.ttft_s] or same
        first = max(
            quick, key=lambda one: one.engine.attention_dp / usual_s[id(one)] / one.engine.gpus
        )
        for count in range(1, left // first.engine.gpus + 1):
            others = (asked.gpus - count * first.engine.gpus) // size
            if count & (count - 1) and others > 1:
                continue  # powers of two, and all but one engine
            yield _split(asked, decode, first, others, count, prompt_s[id(first)], effects)


def _kept(engine: Deployment) -> tuple[str, ...]:
    """How weights and cache are kept: engines that share keys are alike in it."""
    return engine.quant, engine.expert_quant, engine.attention_quant, engine.kv_dtype


def _prompt_s(asked: Question, one: _Priced, effects: ServingEffects) -> float:
    """Of one prompt, chunk after chunk."""
    new = asked.prompt * (1.0 - asked.cached_share)
    chunks = np.ceil(new / CHUNKS[-1])
    times = with_effects(one.times, effects)
    each_s = times.seconds(0.0, 1.0, new / chunks, asked.prompt - new / 2.0)
    return float(effects.prefill * chunks * each_s)


def _split(
    asked: Question, decode: _Priced, first: _Priced, decoding: int, prompting: int,
    prompt_s: float, effects: ServingEffects,
) -> pd.DataFrame:  # fmt: skip
    served, held = decode.engine, _sequences(decode)
    times = with_effects(decode.times, effects)
    gain = served.tokens_per_pass
    step_s = times.seconds(held, asked.prompt + asked.output / 2.0)
    steps = (asked.output - 1) / gain
    ranks = prompting * first.engine.attention_dp
    most = _BUSIEST * ranks / prompt_s
    decoded = decoding * served.attention_dp * held / (steps * step_s)
    rate = np.minimum(decoded, most)
    wait_s = mean_wait_s(rate, prompt_s, ranks, service_cv2=0.0)
    sent_s = _transfer_s(asked, first)
    ttft_s = wait_s + prompt_s + sent_s + effects.first_token_s
    gpus = prompting * first.engine.gpus + decoding * served.gpus
    found = _rows(
        asked, decode, "disaggregated", ttft_s, step_s / gain, rate, held, CHUNKS[-1], decoding,
        gpus,
    )  # fmt: skip
    found["prefill_tp"], found["prefill_pp"] = first.engine.tp, first.engine.pp
    found["prefill_dp"], found["prefill_ep"] = first.engine.attention_dp, first.engine.expert_ep
    return found.assign(prefill_replicas=prompting)


def _transfer_s(asked: Question, first: _Priced) -> float:
    """Of a prompt's keys to another engine: each GPU sends its share, over the network if the
    engines are more than a node holds.
    """
    size = first.memory.token * asked.prompt + first.memory.sequence
    links = asked.model.collectives
    per_node = links.system.accelerators_per_node if links else 8
    call = CollectiveCall("sendrecv", float(size), 2, 2 if asked.gpus > per_node else 1)
    return float(chain_seconds(asked.model, [call], [CallChain(((1, 1),), "step")])[0])


def _rows(
    asked: Question, one: _Priced, mode: str, ttft_s: np.ndarray, tpot_s: np.ndarray,
    rate: np.ndarray, held: np.ndarray, chunk: int, replicas: int, gpus: int,
) -> pd.DataFrame:  # fmt: skip
    served, context = one.engine, asked.prompt + asked.output / 2.0
    return pd.DataFrame({
        "mode": mode, "quant": served.quant, "expert_quant": served.of_experts(),
        "kv_dtype": served.kv_dtype, "tp": served.tp, "pp": served.pp,
        "attention_dp": served.attention_dp, "expert_ep": served.expert_ep,
        "sequences": held.astype(int), "chunk": chunk, "replicas": replicas, "gpus": gpus,
        "ttft_s": ttft_s, "tpot_s": tpot_s, "requests_per_s": rate,
        # of all that were given: those left over are paid, too
        "tokens_per_s_gpu": rate * asked.output / asked.gpus,
        "memory_bytes": [one.memory.needed(count, context) for count in held],
    })  # fmt: skip


def _costs(found: pd.DataFrame, economy: Economy) -> dict[str, np.ndarray]:
    """USD and joules of a million output tokens; devices are at work throughout: a bound."""
    per_gpu_s = 1e6 / found["tokens_per_s_gpu"].to_numpy()
    none = np.zeros_like(per_gpu_s)
    busy = StepParts(per_gpu_s, per_gpu_s, none, none, none, none)
    return {"usd_per_million": economy.usd(1.0, busy),
            "joules_per_million": economy.energy_j(1.0, busy)}  # fmt: skip
