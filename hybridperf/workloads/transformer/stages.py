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
    counts: Sequence[int], stages: Array, stage: Array, split: str = "even",
    head_layers: float = 0.0,
) -> list[Array]:  # fmt: skip
    """Layers of each kind on a stage, of kinds that follow each other, `counts` of each."""
    xp = array_module(stages, stage)
    depth, places = sum(counts), (stage, stage + 1)
    first, end = (layers_before(depth, stages, at, split, head_layers) for at in places)
    found, start = [], 0
    for count in counts:
        within = xp.minimum(end, start + count) - xp.maximum(first, start)
        found.append(xp.clip(within, 0, None))
        start += count
    return found


def stage_layers(
    depth: int, stages: Array, stage: Array, split: str = "even", head_layers: float = 0.0
) -> Array:
    """Layers of a stage."""
    after = layers_before(depth, stages, stage + 1, split, head_layers)
    return after - layers_before(depth, stages, stage, split, head_layers)
