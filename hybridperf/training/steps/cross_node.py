"""Stalls of pipelines over several nodes, as measured sweeps of one framework show them
(`transformer/waits.py`): by chance below the sizes where each run stalls.

The chance is a second branch: a step is ten times as slow or it is not. `stalled_s` is what that
adds, `stall_chance` how often it happened; an interval reaches to that branch where it is likely
enough (`model/variance.py`). Measured rows that stalled are fitted as such: they tell how long a
stall is, not how fast the others are. Most are marked before anything is fitted, by a rule that
needs no model (`stalled`); rows nearer to a stalled step than to the expected one join them
(`with_stalled`).

Axes: N rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from hybridperf.engine.step_features import StepFeatures
from hybridperf.model.step_effects import StepEffects
from hybridperf.training.steps.rows import ResolvedRow
from hybridperf.workloads.transformer import waits
from hybridperf.workloads.transformer.config import TransformerConfig

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


def chanced_s(f: StepFeatures, k: StepEffects) -> np.ndarray:
    """Seconds that steps take longer where they stall by chance [N]."""
    return _stalls_s(f, k, np.where(np.asarray(f.stages) == 2, waits.TWO_STAGES, waits.MORE_STAGES))


def stalled_s(f: StepFeatures, k: StepEffects, rows: Sequence[ResolvedRow]) -> np.ndarray:
    """Seconds that a stalled step takes longer [N]."""
    found = [waits.stall_messages(row.config) for row in rows if row.config is not None]
    return _stalls_s(f, k, np.array(found, float))


def _stalls_s(f: StepFeatures, k: StepEffects, messages: np.ndarray) -> np.ndarray:
    # filling and draining overlap by half
    slots = np.asarray(f.micro_batches) + (np.asarray(f.stages) - 1) / 2
    return np.asarray(k.stall_s * messages * slots)
