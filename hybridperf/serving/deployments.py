"""All ways to serve a model on some GPUs, ranked by tokens a second and GPU under latency limits.

An engine takes tp x pp x attention ranks GPUs in some quantisation with some budget of tokens a
step; the GPUs hold as many as fit. Disaggregated, x of them compute prompts and y decode. What they
reach: `deployment_latency.py`. Frameworks add what is believed of them
(`model/serving_effects.py`), or what measured rows tell (`serving_fit.py`); without rows the
interval is that of rows of which none like them is measured (claim `serving --tasks beliefs` has
its coverage), wider on a GPU of which nothing is measured.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.engine.economy import Economy
from hybridperf.engine.pareto import undominated
from hybridperf.engine.step_features import StepParts
from hybridperf.engine.step_times import StepTimes
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.serving_effects import ServingEffects
from hybridperf.serving.deployment_latency import (
    LARGEST_CHUNK,
    Latency,
    Priced,
    Question,
    Space,
    by_rows,
    latency_of,
    prompt_seconds,
    rows_of,
)
from hybridperf.serving.fit import believed_deviation, sizes_of
from hybridperf.serving.loads import Engines, sent_seconds
from hybridperf.serving.table import BEYOND, UNMEASURED, chance_within
from hybridperf.workloads.serving import Deployment, prompt_launches, step_times
from hybridperf.workloads.serving.deployment import serving_memory

SEQUENCES = tuple(2**power for power in range(11))  # of an attention rank
CHUNKS = (2048, LARGEST_CHUNK)
_ALIKE = 0.005  # a tenth of what repeats of a deployment differ by
_MOST_KNOWN = 4096  # engines of one machine whose steps are kept


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


def engine_of(asked: Question, row: Mapping[str, Any]) -> Deployment:
    """The engine of a row of `deployments(asked)`, the one that decodes of engines apart."""
    names = ("tp", "pp", "attention_dp", "expert_ep", "quant", "kv_dtype")
    return next(
        one for one in engines(asked) if all(getattr(one, name) == row[name] for name in names)
        and one.of_experts() == row["expert_quant"]
    )  # fmt: skip


def precisions(model: PerfModel) -> list[str]:
    """That a device has a rate of its own for; `InputError` where frameworks would not serve."""
    formats = ("bf16", "fp8", "fp4")
    found = [name for name in formats if name in model.device.peak_flops_per_s]
    if not found:
        raise InputError(
            f"expected a device that multiplies in {', '.join(formats)}, got {model.device.id},"
            " which has a rate for none of them; name another by --device"
        )
    return found


def deployments(asked: Question, economy: Economy | None = None) -> pd.DataFrame:
    """All deployments that fit, those within the limits first, by tokens/s and GPU; where none is,
    the nearest to them first. `chance`: that the limits are kept.

    Raises:
        InputError: no engine fits on the GPUs.
    """
    found = _without_limits(_alike(asked)).copy()
    beyond, found["chance"] = np.zeros(len(found)), 1.0
    for target, limit_s in (("ttft_s", asked.ttft_s), ("tpot_s", asked.tpot_s)):
        beyond = np.maximum(beyond, found[target] / limit_s)
        seconds = (found[name].to_numpy() for name in (target, f"{target}_low", f"{target}_high"))
        found["chance"] *= chance_within(limit_s, *seconds)
    if economy is not None:
        found = found.assign(**_costs(found, economy))
    found["within"] = beyond <= 1.0
    if not found["within"].any():
        return found.iloc[np.argsort(beyond, kind="stable")].reset_index(drop=True)
    order = ["within", "tokens_per_s_gpu", "tpot_s"]
    return found.sort_values(order, ascending=[False, False, True], ignore_index=True)


@dataclasses.dataclass(frozen=True)
class _Keyed:
    """What a cache is asked for: the same where the keys are equal and the machine is one object,
    which this keeps alive.
    """

    key: tuple[Any, ...]  # with the machine's id
    asked: Any = dataclasses.field(compare=False)


def _alike(q: Question) -> _Keyed:
    """A question whose limits do not count."""
    schemes = tuple(tuple(sorted(one.items())) for one in q.schemes)
    lengths = (q.gpus, q.prompt, q.output, q.cached_share, q.drafted, q.acceptance)
    return _Keyed((id(q.model), q.shape, lengths, q.framework, schemes, q.all_reduce,
                   id(q.fit)), q)  # fmt: skip


@functools.lru_cache(4)
def _without_limits(alike: _Keyed) -> pd.DataFrame:
    """All deployments that fit, whatever the limits; the last few are kept."""
    asked: Question = alike.asked
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
    fitting = [some[at] for at in fit]
    kept = tuple(memory[at] for at in fit)
    held = np.array([holds[at] for at in fit])
    launches = [prompt_launches(one, asked.model.device) for one in fitting]
    known = Engines.of(fitting, _step_times(asked, fitting), launches)
    sent_s = sent_seconds(asked.model, [one.sent(asked.prompt) for one in kept], asked.gpus)
    priced = Priced(tuple(fitting), kept, held, known, sent_s)
    usual = asked.effects()
    fill = asked.gpus // priced.each("gpus")
    replicas = [(at, -1, chunk, many, 0) for at, many in enumerate(fill) for chunk in CHUNKS]
    both = _crossed(priced, replicas), _crossed(priced, _apart(asked, priced, usual))
    space = Space(*map(np.concatenate, zip(*both, strict=True)))
    latency = latency_of(asked, priced, space)
    told = _told_apart(space, latency)
    space = Space(*(one[told] for one in space))
    latency = Latency(*(one[told] for one in latency))
    rows = rows_of(asked, priced, space) if asked.fit else []
    latency = by_rows(asked, priced, space, rows, latency)
    found = _frame(asked, priced, space, latency)
    context_sizes = np.column_stack([
        found["sequences"] * found["attention_dp"], np.full(len(found), float(asked.prompt)),
        np.full(len(found), float(asked.output)), found["gpus"],
    ])  # fmt: skip
    unknown = UNMEASURED * (not asked.model.measured.families)
    for target in ("ttft_s", "tpot_s"):
        deviation = believed_deviation(sizes_of(context_sizes), target)
        if asked.fit:
            deviation = asked.fit.left(rows, target)[1]
        deviation = np.hypot(deviation, unknown)
        low, high = (np.exp(many * deviation) for many in BEYOND[target])
        found[f"{target}_low"], found[f"{target}_high"] = found[target] / low, found[target] * high
        if target == "tpot_s":  # what slower steps take from throughput
            speed = found["tokens_per_s_gpu"]
            found["tokens_per_s_gpu_low"] = speed / high
            found["tokens_per_s_gpu_high"] = speed * low
    found["tokens_per_s_user"] = 1.0 / found["tpot_s"]
    best = undominated(-found[["tokens_per_s_user", "tokens_per_s_gpu"]].to_numpy())
    found["front"] = np.isin(np.arange(len(found)), best)
    return found


@functools.lru_cache(4)
def _known_times(machine: _Keyed) -> dict[Deployment, StepTimes]:
    """Of engines that were asked for: lengths and limits move, their steps stay."""
    del machine
    return {}


def _step_times(asked: Question, some: Sequence[Deployment]) -> list[StepTimes]:
    known = _known_times(_Keyed((id(asked.model), asked.all_reduce), asked.model))
    if len(known) > _MOST_KNOWN:
        known.clear()
    missing = [one for one in some if one not in known]
    if missing:
        known |= zip(missing, step_times(asked.model, missing, asked.all_reduce), strict=True)
    return [known[one] for one in some]


def _crossed(priced: Priced, rows: Sequence[tuple[int, int, int, int, int]]) -> Space:
    """(decode, first, chunk, replicas, prompting), each with all numbers of sequences."""
    decode, first, chunk, replicas, prompting = np.array(rows, int).reshape(-1, 5).T
    most = np.minimum(priced.holds, SEQUENCES[-1]).astype(int)
    tried = [np.unique(np.minimum(SEQUENCES, one)).astype(float) for one in most]
    counts = np.array([len(one) for one in tried], int)[decode]
    held = np.concatenate([np.zeros(0), *(tried[at] for at in decode)])
    return Space(
        np.repeat(decode, counts), np.repeat(first, counts), held, np.repeat(chunk, counts),
        np.repeat(replicas, counts), np.repeat(prompting, counts),
    )  # fmt: skip


def _apart(
    asked: Question, priced: Priced, usual: ServingEffects
) -> list[tuple[int, int, int, int, int]]:
    """Engines of prompts beside engines that decode, of one quantisation, as `_crossed` takes them.

    Of prompts' engines the one with most prompts a second and GPU within the limit, by what is
    usually believed: all effects are then of the same deployments.
    """
    prompt_s, gpus = prompt_seconds(asked, priced, usual), priced.each("gpus")
    speed = priced.each("attention_dp") / prompt_s / gpus
    # how weights and cache are kept: engines that share keys are alike in it
    keys = [(one.quant, one.expert_quant, one.attention_quant, one.kv_dtype)
            for one in priced.engines]  # fmt: skip
    kept = np.array([keys.index(key) for key in keys])
    rows = []
    for decode, size in enumerate(gpus.tolist()):
        left = asked.gpus - size
        same = (kept == kept[decode]) & (gpus <= left)
        if not same.any():
            continue
        quick = same & (prompt_s < 0.8 * asked.ttft_s)
        first = int(np.argmax(np.where(quick if quick.any() else same, speed, -np.inf)))
        of_prompts = int(gpus[first])
        most = left // of_prompts
        all_but_one = max((asked.gpus - 2 * size) // of_prompts + 1, 1)
        powers = {2**power for power in range(most.bit_length())}
        for count in sorted(powers | {*range(all_but_one, most + 1)}):
            others = (asked.gpus - count * of_prompts) // size
            rows.append((decode, first, CHUNKS[-1], others, count))
    return rows


def _told_apart(space: Space, latency: Latency) -> np.ndarray:
    """Rows without those that only a setting tells from another: a smaller chunk where the usual
    one does as well, more slots than prompts of engines apart fill.
    """
    whole, apart = np.flatnonzero(space.first < 0), np.flatnonzero(space.first >= 0)
    each = [one[whole] for one in (space.chunk, space.held, space.decode)]
    of_chunks = whole[np.lexsort(each)].reshape(-1, len(CHUNKS))
    engines_of = (space.decode, space.first, space.replicas, space.prompting)
    order = apart[np.lexsort([one[apart] for one in (space.held, *engines_of)])]
    slots = np.column_stack([order[1:], order[:-1]])
    slots = slots[
        np.logical_and.reduce([one[slots[:, 0]] == one[slots[:, 1]] for one in engines_of])
    ]
    copies, instead = np.concatenate([of_chunks, slots]).T
    ratios = [one[copies] / one[instead] for one in latency]
    alike = np.logical_and.reduce([np.abs(one - 1.0) < _ALIKE for one in ratios])
    return np.setdiff1d(np.arange(len(space.held)), copies[alike])


def _frame(asked: Question, priced: Priced, space: Space, latency: Latency) -> pd.DataFrame:
    """Layouts and what they reach, a row each."""
    decode, first, context = space.decode, space.first, asked.prompt + asked.output / 2.0
    apart = first >= 0
    gpus = priced.each("gpus")
    names = {"tp": "tp", "pp": "pp", "dp": "attention_dp", "ep": "expert_ep"}
    prompts = {
        f"prefill_{name}": np.where(apart, priced.each(field)[first], np.nan)
        for name, field in names.items()
    }
    memory = [one.needed(1.0, context) - one.needed(0.0, context) for one in priced.memory]
    least = np.array([one.needed(0.0, context) for one in priced.memory])
    experts = np.array([one.of_experts() for one in priced.engines])
    return pd.DataFrame({
        "mode": np.where(apart, "disaggregated", "aggregated"),
        "quant": priced.each("quant")[decode], "expert_quant": experts[decode],
        "kv_dtype": priced.each("kv_dtype")[decode], "tp": priced.each("tp")[decode],
        "pp": priced.each("pp")[decode], "attention_dp": priced.each("attention_dp")[decode],
        "expert_ep": priced.each("expert_ep")[decode], "drafted": asked.drafted,
        "sequences": space.held.astype(int), "chunk": space.chunk, "replicas": space.replicas,
        "gpus": space.replicas * gpus[decode] + space.prompting * gpus[first] * apart,
        "ttft_s": latency.ttft_s, "tpot_s": latency.tpot_s, "requests_per_s": latency.rate,
        # of all that were given: those left over are paid, too
        "tokens_per_s_gpu": latency.rate * asked.output / asked.gpus,
        "memory_bytes": least[decode] + space.held * np.array(memory)[decode],
        **prompts, "prefill_replicas": np.where(apart, space.prompting, np.nan),
    })  # fmt: skip


def _costs(found: pd.DataFrame, economy: Economy) -> dict[str, np.ndarray]:
    """USD and joules of a million output tokens; devices are at work throughout: a bound."""
    per_gpu_s = 1e6 / found["tokens_per_s_gpu"].to_numpy()
    busy = StepParts.busy(per_gpu_s)
    return {"usd_per_million": economy.usd(1.0, busy),
            "joules_per_million": economy.energy_j(1.0, busy)}  # fmt: skip
