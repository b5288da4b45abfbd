"""How layers are dealt out to the stages of a pipeline.

    even   l // p layers each, one more on the first l mod p (Megatron and DeepSpeed ask for a whole
           number each)
    cost   a stage takes layers until it passes its share of the cost of all layers and the head
           (nanotron); the first gets the most, the last the fewest

`head_layers` is the head's cost in layers. Arrays in, arrays out: `stages` of any
shape, the stage's index broadcast against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridperf.io import InputError
from hybridperf.io.namespace import Array, array_module

SPLITS = ("even", "cost")


def layers_before(
    depth: int, stages: Array, stage: Array, split: str = "even", head_layers: float = 0.0
) -> Array:
    """Layers on the stages before `stage`, 0 to `depth`; with stage = stages all of them."""
    xp = array_module(stages, stage)
    if split == "even":
        return stage * (depth // stages) + xp.minimum(stage, depth % stages)
    if split != "cost":
        raise InputError(f"layers are split over stages by {' or '.join(SPLITS)}, got {split!r}")
    share = (depth + head_layers) / stages
    # up to the first layer that passes the share of the stages before this one
    through = xp.floor(stage * share + 1e-9) + 1
    return xp.where(stage <= 0, 0, xp.where(stage >= stages, depth, xp.minimum(through, depth)))


def layers_by_kind(
    order: Sequence[int], stages: Array, stage: Array, split: str = "even",
    head_layers: float = 0.0,
) -> list[Array]:  # fmt: skip
    """Layers of each kind on a stage; `order`: the kind of each layer, from 0."""
    xp = array_module(stages, stage)
    first, end = (
        xp.asarray(layers_before(len(order), stages, at, split, head_layers)).astype(int)
        for at in (stage, stage + 1)
    )
    # of each kind, how many come before each layer
    before = np.cumsum(np.eye(max(order) + 1, dtype=int)[[*order]], 0)
    before = xp.asarray(np.concatenate([np.zeros_like(before[:1]), before]))
    return [before[end, kind] - before[first, kind] for kind in range(max(order) + 1)]


def stage_layers(
    depth: int, stages: Array, stage: Array, split: str = "even", head_layers: float = 0.0
) -> Array:
    """Layers of a stage."""
    after = layers_before(depth, stages, stage + 1, split, head_layers)
    return after - layers_before(depth, stages, stage, split, head_layers)
