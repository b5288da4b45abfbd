"""What of a rank's memory may lie elsewhere, and how often a step moves it.

Of m micro-batches per step, a stage of l layers, f micro-batches in flight:

    weights       read in each pass of each micro-batch, 2 m times, 3 m where everything is computed
                  again; two layers stay on the GPU
    gradients     written by each micro-batch, read by all but the first, 2 m - 1; read once more by
                  the update; one layer stays
    optimizer     read and written by the update: 2
    activations   each micro-batch's are written and read: 2 m / f of those held at a time; two
                  layers of one micro-batch stay

With m = 1 and full recompute that is ZeRO-Infinity's count. Buffers, the embedding, the LM head and
what libraries take stay where they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridperf.workloads.memory import MemoryUse, in_flight
from hybridperf.workloads.transformer.codes import CHIMERA, FULL
from hybridperf.workloads.transformer.layout import Layout
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.stages import stage_layers

KINDS = ("weights", "gradients", "optimizer", "activations")


class Movable(NamedTuple):
    """Of each kind [4] on each stage [4, S]."""

    bytes: np.ndarray  # that may be offloaded
    passes: np.ndarray  # times each byte is moved while micro-batches are computed
    updates: np.ndarray  # and while weights are updated


def movable(
    shape: TransformerShape, layout: Layout, use: MemoryUse, split: str = "even"
) -> Movable:
    """What may be moved of the memory that `memory(shape, layout)` found."""
    columns, stage = layout.columns, np.arange(layout.pp)
    dealt = stage_layers(shape.depth, layout.pp, stage, split, shape.head_layers)
    layers = np.asarray(dealt, float)
    if columns.schedule == CHIMERA:
        layers = layers + layers[::-1]
    layers = np.maximum(layers, 1.0)
    own, second = in_flight(columns.schedule, columns.pp, columns.vp, columns.accumulation, stage)
    held = np.maximum(np.broadcast_to(own + second, stage.shape), 1.0)
    m, ones = float(layout.accumulation), np.ones(layout.pp)
    stays = np.stack([2 / layers, 1 / layers, 0 * ones, 2 / (layers * held)])
    states = (use.weights_bytes, use.gradients_bytes, use.optimizer_bytes)
    have = np.stack([*states, use.activations_bytes + 0 * ones])
    reads = 3.0 if columns.recompute == FULL else 2.0
    passes = np.stack([reads * m * ones, (2 * m - 1) * ones, 0 * ones, 2 * m / held])
    updates = np.stack([0 * ones, ones, 2 * ones, 0 * ones])
    return Movable(have * np.maximum(1 - stays, 0.0), passes, updates)
