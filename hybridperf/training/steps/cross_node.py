"""Stalls of pipelines over several nodes, as measured sweeps of one framework show them
(`transformer/waits.py`): by chance below the sizes where each run stalls.

The chance is a second branch: a step is ten times as slow or it is not. `stalled_s` is what that
adds, `stall_chance` how often it happened; an interval reaches to that branch where it is likely
enough (`beyond_by_stalls`). Measured rows that stalled are fitted as such: they tell how long a
stall is, not how fast the others are. Most are marked before anything is fitted, by a rule that
needs no model (`stalled`); rows nearer to a stalled step than to the expected one join them
(`with_stalled`).

Axes: N rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Sequence

import numpy as np

from hybridperf.engine.step_features import StepFeatures
from hybridperf.model.step_effects import StepEffects
from hybridperf.training.steps.rows import ResolvedRow
from hybridperf.workloads.transformer import waits
from hybridperf.workloads.transformer.config import TransformerConfig

# Of dev rows with replicas 97 of 463 stalled: one in eight; where tensor parallelism is narrow 1 in
# 4 on 16 nodes, 1 in 2 on 32. A false alarm costs ten times what a missed stall does. A Gaussian
# process on sizes, micro-batch, stages and replicas would be sure enough in 9 cases of unseen
# cells, 8 of them right; on more GPUs than it saw, or another model, in none: the fast branch is
# predicted, the chance told
LIKELY_STALL = 0.05
_LOG_ODDS, _LOG_ODDS_PER_DOUBLING, _FEW_NODES, _NARROW_TP = -2.0, 1.0, 8, 4
# By hand, as the sweep's rows tell: of what fewer devices reach; seconds of a micro-batch
_STALLED_RATE, _STALLED_SLOT_S = 0.25, 0.5


def stalled(configs: Sequence[TransformerConfig], measured_s: np.ndarray) -> np.ndarray:
    """Which measured rows stalled [N], by other rows alone: less than a quarter of the throughput
    of a device, the pipeline's bubble taken out, that the same model, layout (tp, pp, micro-batch)
    and framework reach on fewer devices, and over half a second a micro-batch.
    """
    alike: dict[Hashable, list[int]] = {}
    rates, marks = np.empty(len(configs)), np.zeros(len(configs), bool)
    for at, config in enumerate(configs):
        one = config.layout
        slots = one.accumulation + one.pp - 1
        rates[at] = one.global_batch * slots / (one.accumulation * one.ranks * measured_s[at])
        key = (config.shape, config.framework, config.dtype, one.tp, one.pp, one.micro_batch)
        alike.setdefault(key, []).append(at)
    for places in alike.values():
        for at in places:
            one = configs[at].layout
            fewer = [rates[it] for it in places if configs[it].layout.ranks < one.ranks]
            slot_s = measured_s[at] / one.accumulation
            slow = rates[at] < _STALLED_RATE * max(fewer, default=0.0)
            marks[at] = one.pp > 1 and slow and slot_s > _STALLED_SLOT_S
    return marks


def as_stalled(f: StepFeatures, marks: np.ndarray) -> StepFeatures:
    """The features with `stalls` where rows [N] are marked and can stall by chance."""
    messages = np.where(np.asarray(f.stages) == 2, waits.TWO_STAGES, waits.MORE_STAGES)
    by_chance = marks & (np.asarray(f.crossing) > 0) & (np.asarray(f.stalls) == 0)
    return dataclasses.replace(f, stalls=np.where(by_chance, messages, f.stalls))


def with_stalled(
    f: StepFeatures, k: StepEffects, expected_s: np.ndarray, measured_s: np.ndarray
) -> StepFeatures:
    """The features with `stalls` where a step [N] took nearer to a stalled one's time."""
    crossing = np.asarray(f.crossing)
    messages = np.where(np.asarray(f.stages) == 2, waits.TWO_STAGES, waits.MORE_STAGES) * crossing
    by_chance = (crossing > 0) & (np.asarray(f.stalls) == 0)
    return as_stalled(f, by_chance & (measured_s - expected_s > _stalls_s(f, k, messages) / 2))


@functools.lru_cache(65536)
def stall_chance(config: TransformerConfig) -> float:
    """How often a step stalls; 0 where unknown or predicted already."""
    if not waits.stall_messages(config) or config.layout.dp == 1 or waits.sure_stalls(config):
        return 0.0
    doublings = max(0.0, math.log2(config.layout.ranks / config.gpus_per_node / _FEW_NODES))
    narrow = config.layout.tp <= _NARROW_TP
    return 1 / (1 + math.exp(-_LOG_ODDS - _LOG_ODDS_PER_DOUBLING * doublings * narrow))


def beyond_by_stalls(
    f: StepFeatures, k: StepEffects, step_s: np.ndarray, deviation: np.ndarray | float = 0.0
) -> np.ndarray:
    """Log of what one step in twenty exceeds, over the expected seconds [N], where more than that
    stall, else 0: a share of 0.05 / chance of stalled steps, which are as unsure as others are
    (`deviation`, of the log).
    """
    chance = np.maximum(np.asarray(f.stall_chance), LIKELY_STALL)
    if (chance == LIKELY_STALL).all():
        return 0.0 * step_s
    from scipy.special import ndtri  # which most tables do without

    messages = np.where(np.asarray(f.stages) == 2, waits.TWO_STAGES, waits.MORE_STAGES)
    longer = np.log1p(_stalls_s(f, k, messages) / step_s)
    beyond = longer + ndtri(1.0 - LIKELY_STALL / chance).clip(-1.0, None) * deviation
    return np.where(chance > LIKELY_STALL, np.maximum(beyond, 0.0), 0.0)


def stalled_s(f: StepFeatures, k: StepEffects, rows: Sequence[ResolvedRow]) -> np.ndarray:
    """Seconds that a stalled step takes longer [N]."""
    found = [waits.stall_messages(row.config) for row in rows if row.config is not None]
    return _stalls_s(f, k, np.array(found, float))


def _stalls_s(f: StepFeatures, k: StepEffects, messages: np.ndarray) -> np.ndarray:
    # filling and draining overlap by half
    slots = np.asarray(f.micro_batches) + (np.asarray(f.stages) - 1) / 2
    return np.asarray(k.stall_s * messages * slots)
