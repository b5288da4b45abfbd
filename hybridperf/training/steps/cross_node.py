"""What a pipeline over several nodes adds, as measured sweeps of one framework show it (the 862
layouts of the Ultra-Scale Playbook, Hugging Face 2025, run by nanotron).

    collectives over nodes   about half a millisecond per node, or the links' time, whichever is
                             more
    a crossing pipeline      with tensor parallelism and stages on several nodes, the host of each
                             layer waits about 2 ms for each tensor-parallel rank, forward and
                             backward together, whatever the micro-batch
    sharded optimizers       weights come back layer by layer around a ring: some 30 us for each
                             layer and data rank
    whole gradients          without a sharded optimizer they are reduced during the last
                             micro-batch's backward pass
    stalls                   in some runs each message between stages takes a quarter of a second: 2
                             messages per micro-batch and stage with two stages, 4 with more. With
                             tensor parallelism over four nodes always; below that by chance

The chance is no interval but a second branch: a step is ten times as slow or it is not. `stalled_s`
is what it adds, `stall_chance` how often that happened; measured rows nearer to a stalled step than
to the expected one are fitted as stalled (`with_stalled`): they tell how long a stall is, not how
fast the others are. Everything else is an ordinary step effect. Rows of frameworks
that show none of this (`transformer/frameworks.toml`) have zeros in its features.

Axes: N rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.training.steps.rows import ResolvedRow
from hybridperf.training.steps.step_effects import StepEffects
from hybridperf.training.steps.step_features import StepFeatures
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import framework_habits

SURELY_NODES = 4  # of a tensor-parallel group: from here on every run with a pipeline stalled
# Of the larger of latency and links' time: short messages show both. By hand; with half or twice as
# much, rows of 128 and of 256 GPUs from fewer err within 0.2 points of the same
_SHARPNESS = 3.0
_TWO_STAGES, _MORE_STAGES = 2.0, 4.0  # messages of one micro-batch that a stage sends or awaits
# Of dev rows with replicas 97 of 463 stalled: one in eight; where tensor parallelism is narrow 1 in
# 4 on 16 nodes, 1 in 2 on 32. A false alarm costs ten times what a missed stall does. A Gaussian
# process on sizes, micro-batch, stages and replicas would be sure enough in 9 cases of unseen
# cells, 8 of them right; on more GPUs than it saw, or another model, in none: the fast branch is
# predicted, the chance told
_LOG_ODDS, _LOG_ODDS_PER_DOUBLING, _FEW_NODES, _NARROW_TP = -2.0, 1.0, 8, 4


def with_crossings(
    f: StepFeatures, configs: Sequence[TransformerConfig], frameworks: Sequence[str]
) -> StepFeatures:
    """The features with `crossing` and `stalls` as the rows' frameworks have them."""
    rows = list(zip(configs, frameworks, strict=True))
    found = [_crossing(*row) for row in rows]
    crossing = np.array([one for one, _ in found], float)
    stalls = np.array([messages for _, messages in found], float)
    sure = crossing * (np.asarray(f.tp_nodes) >= SURELY_NODES)
    waiting = np.array([float("ring_waits" in _habits(one)) for one in frameworks])
    gathered = np.array([_gathered_from(*row) for row in rows], float) * np.asarray(f.layers_first)
    # gradients are reduced during the backward pass because the optimizer is whole
    beside = [
        config.layout.zero == 0 and "reduces_whole_gradients_beside" in _habits(framework)
        for config, framework in rows
    ]
    hidden = np.where(beside, 1.0, np.asarray(f.reduction_hidden))
    return dataclasses.replace(
        f, waiting=waiting, crossing=crossing, stalls=sure * stalls, gathered_layers=gathered,
        reduction_hidden=hidden,
    )  # fmt: skip


def with_stalled(
    f: StepFeatures, k: StepEffects, expected_s: np.ndarray, measured_s: np.ndarray
) -> StepFeatures:
    """The features with `stalls` where a step [N] took nearer to a stalled one's time."""
    crossing = np.asarray(f.crossing)
    messages = np.where(np.asarray(f.stages) == 2, _TWO_STAGES, _MORE_STAGES) * crossing
    by_chance = (crossing > 0) & (np.asarray(f.stalls) == 0)
    stalled = by_chance & (measured_s - expected_s > _stalls_s(f, k, messages) / 2)
    return dataclasses.replace(f, stalls=np.where(stalled, messages, f.stalls))


def stall_chance(rows: Sequence[ResolvedRow]) -> np.ndarray:
    """How often a step like each row stalls [N]; 0 where unknown or predicted already."""
    out = np.zeros(len(rows))
    for at, row in enumerate(rows):
        config = row.config
        if config is None or not _crossing(config, row.framework)[0] or config.layout.dp == 1:
            continue
        if config.group("tp").nodes >= SURELY_NODES:
            continue
        doublings = max(0.0, math.log2(config.layout.ranks / config.gpus_per_node / _FEW_NODES))
        narrow = config.layout.tp <= _NARROW_TP
        out[at] = 1 / (1 + math.exp(-_LOG_ODDS - _LOG_ODDS_PER_DOUBLING * doublings * narrow))
    return out


def stalled_s(f: StepFeatures, k: StepEffects, rows: Sequence[ResolvedRow]) -> np.ndarray:
    """Seconds that a stalled step takes longer [N]."""
    found = [_crossing(row.config, row.framework)[1] for row in rows]
    return _stalls_s(f, k, np.array(found, float))


def across_s(xp: Any, links_s: Array, latency_s: Array) -> Array:
    """Seconds of collectives over nodes: smoothly the larger of both."""
    most = xp.maximum(links_s, latency_s) + 1e-12
    powers = (links_s / most) ** _SHARPNESS + (latency_s / most) ** _SHARPNESS
    return most * powers ** (1 / _SHARPNESS)


def ring_latency_s(f: StepFeatures, k: StepEffects, calls: Array) -> Array:
    """Latency of collectives over nodes, apart from what their bytes take."""
    return (k.tp_across_node_s + k.ring_wait_s * f.waiting) * f.tp_nodes * calls


def crossing_host_s(f: StepFeatures, k: StepEffects, xp: Any) -> Array:
    """Seconds that a layer's host waits in a crossing pipeline, with a crossing ring's latency."""
    latency_s = ring_latency_s(f, k, f.layer.tp_calls.sum(0))
    waits_s = k.crossing_tp_s * f.tp + xp.where(f.tp_nodes > 1, latency_s, 0.0)
    return f.crossing * xp.where(f.tp > 1, waits_s, 0.0)


def _gathered_from(config: TransformerConfig, framework: str) -> float:
    """Data ranks that a layer's updated weights come from, where they are gathered by layer."""
    layout = config.layout
    if "gathers_by_layer" not in _habits(framework):
        return 0.0
    return float(layout.data_ranks) if layout.zero in (1, 2) and layout.data_ranks > 1 else 0.0


def _stalls_s(f: StepFeatures, k: StepEffects, messages: np.ndarray) -> np.ndarray:
    # filling and draining overlap by half
    slots = np.asarray(f.micro_batches) + (np.asarray(f.stages) - 1) / 2
    return np.asarray(k.stall_s * messages * slots)


def _crossing(config: TransformerConfig | None, framework: str) -> tuple[bool, float]:
    """(whether a row's pipeline waits as above, messages of one micro-batch)."""
    if config is None or "crossing_pipelines" not in _habits(framework):
        return False, 0.0
    layout = config.layout
    if layout.pp == 1 or layout.ranks <= config.gpus_per_node:
        return False, 0.0
    return True, _TWO_STAGES if layout.pp == 2 else _MORE_STAGES


@functools.cache
def _habits(framework: str) -> frozenset[str]:
    """What a framework does."""
    return frozenset(
        name for name, does in framework_habits().get(framework, {}).items() if does is True
    )
