"""What single frameworks wait for besides their layers' work, as measured sweeps of them show it;
which framework does it, for how long and by what source: its file in `fields/frameworks/`.

    ring waits               collectives over nodes take so long per node, or the links' time,
                             whichever is more (role `tp_waiting`)
    crossing pipelines       with tensor parallelism and stages on several nodes, the host of each
                             layer waits for each tensor-parallel rank
    gathers by layer         updated weights come back layer by layer around a ring, whole gradients
                             are summed so: for each layer and data rank
    whole gradients beside   without a sharded optimizer they are reduced during the last
                             micro-batch's backward pass
    stalls                   each message between stages takes a time of its own. With tensor
                             parallelism over many nodes always; below that by chance
                             (`stall_chance`, `training/steps/cross_node.py`)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from hybridperf.fields.frameworks import training_frameworks
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import does

# messages of one micro-batch that a stage sends or awaits: one forward and one back with each
# neighbour, of which those of two stages have one
TWO_STAGES, MORE_STAGES = 2.0, 4.0
_BUCKET_BYTES = 25e6  # PyTorch's default


def _odds(framework: str) -> Mapping[str, float]:
    """How often pipelines of a framework stall (`stalls` of its file); nothing: they cannot."""
    return training_frameworks().get(framework, {}).get("stalls", {})


def stall_messages(config: TransformerConfig) -> float:
    """Messages of one micro-batch that stall where a run does; 0 where none can."""
    layout = config.layout
    if not _odds(config.framework):
        return 0.0
    if layout.pp == 1 or layout.ranks <= config.gpus_per_node:
        return 0.0
    return TWO_STAGES if layout.pp == 2 else MORE_STAGES


def sure_stalls(config: TransformerConfig) -> float:
    """Messages of one micro-batch that stall in every run."""
    return stall_messages(config) * (
        config.group("tp").nodes >= _odds(config.framework).get("sure_nodes", math.inf)
    )


@functools.lru_cache(65536)
def stall_chance(config: TransformerConfig) -> float:
    """How often a step stalls; 0 where unknown or predicted already."""
    if not stall_messages(config) or config.layout.dp == 1 or sure_stalls(config):
        return 0.0
    odds, nodes = _odds(config.framework), config.layout.ranks / config.gpus_per_node
    doublings = max(0.0, math.log2(nodes / odds["few_nodes"]))
    narrow = config.layout.tp <= odds["narrow_tp"]
    more = odds["log_odds_per_doubling"] * doublings * narrow
    return 1 / (1 + math.exp(-odds["log_odds"] - more))


def stalls(config: TransformerConfig) -> float:
    """Messages of a step that stall one after the other where a run does: filling and draining
    overlap by half.
    """
    layout = config.layout
    return stall_messages(config) * (layout.accumulation + (layout.pp - 1) / 2)


def layer_waits(config: TransformerConfig, tp_calls: float) -> tuple[tuple[str, float], ...]:
    """What a layer's host waits for, forward or backward: roles and how often each counts."""
    tp = config.group("tp")
    if tp.ranks == 1 or not stall_messages(config):
        return ()
    ring = (("ring", tp.nodes * tp_calls),) if tp.nodes > 1 and tp_calls else ()
    return (("crossing", tp.ranks / 2), *ring)


def layers_gathered(config: TransformerConfig, layers: float) -> float:
    """Layers x data ranks (of a shard group, where there are some) of a rank whose updated weights
    are gathered by layer, or whole gradients summed so.
    """
    layout = config.layout
    by_layer = does(config.framework, "gathers_by_layer") and layout.zero <= 2
    if not by_layer or (layout.zero == 0 and layout.kind.pipes > 1):
        return 0.0
    ranks = int(layout.shard_ranks or layout.data_ranks) if layout.zero else layout.data_ranks
    return layers * ranks if ranks > 1 else 0.0


def reduces_beside(config: TransformerConfig) -> bool:
    """Whether gradients are reduced during the last micro-batch's backward pass."""
    whole = does(config.framework, "reduces_whole_gradients_beside") and config.layout.zero == 0
    return config.overlap_gradients or whole


def bucket_bytes(config: TransformerConfig) -> float:
    """Bytes of gradients that are reduced together while the backward pass goes on."""
    return config.bucket_bytes if config.overlap_gradients else _BUCKET_BYTES
