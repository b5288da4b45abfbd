"""What the closed form of a step (`closed.py`) takes and gives.

Axes: N rows, P = 2 passes: forward; backward with what it computes again. Leaves are NumPy or JAX
arrays.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridperf.io.namespace import Array, array_module

_STATIC = {"static": True}
_BY_BLOCK: dict[str, Any] = {"by_block": True}  # of a column by which blocks take longer


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True)
class BlockPrices:
    """One micro-batch through one layer, the embedding or the LM head on one rank: [P, N] each."""

    gemm_s: Array
    experts_s: Array  # products of routed experts
    attention_s: Array
    memory_s: Array  # everything else that the GPU computes, at the datasheet's bandwidth
    weights_s: Array  # the part of all these that makes gradients of weights
    kernels: Array
    tp_s: Array  # tensor-parallel collectives
    tp_calls: Array
    exchange_s: Array  # context- and expert-parallel messages
    ring_s: Array  # context-parallel messages beside attention
    hiding_s: Array  # attention that they travel beside
    exchange_calls: Array
    gather_s: Array  # sharded weights gathered, alongside the computation
    scatter_s: Array  # their gradients scattered
    summed_s: Array  # shards of gradients summed over copies, alongside both
    gather_inside_s: Array  # their part inside a node, which takes memory and SMs from computing
    gather_calls: Array


class Passes(NamedTuple):
    """Seconds of one micro-batch on a stage [N]."""

    forward: Array
    backward: Array
    gpu_s: Array = 0.0  # of both, what blocks keep the GPU and its messages busy for

    @property
    def both_s(self) -> Array:
        return self.forward + self.backward


class Stages(NamedTuple):
    """Stages of a pipeline [N]; one that is alone is the first and the last."""

    first: Passes
    other: Passes  # the fullest between first and last; 0 where there is none
    last: Passes
    sum_s: Array  # of both passes of all
    embedding_s: Array  # what it adds to the first, both passes
    head_s: Array  # to the last


class Pace(NamedTuple):
    """Of the slowest worker [N]."""

    stage_s: Array  # of a micro-batch
    waits_s: Array  # for other stages, in a step
    layers: Array  # that it has
    embeddings: Array  # 1, or 0; half of one where it is so for half of the micro-batches
    heads: Array
    hidden_s: Array = 0.0  # messages of pairs of passes, in a step, that hide behind both


class LayerSeconds(NamedTuple):
    """Seconds of one micro-batch on a layer [N]."""

    forward_s: Array
    backward_s: Array
    backward_work_s: Array  # of the GPU alone
    exchange_s: Array  # messages of both passes that hold the rank up


class Alike(NamedTuple):
    """Rows that have the same blocks: C of them stand for all N."""

    of: Array  # int [N] which blocks each row has
    first: Array  # int [C] a row that has them

    @staticmethod
    def of_keys(*keys: np.ndarray) -> Alike:
        """Of rows for which all of some numbers [N] are the same."""
        key = np.zeros(len(keys[0]), np.int64)
        for one in keys:
            if (one != one[:1]).any():
                whole = one if one.dtype.kind == "i" else np.unique(one, return_inverse=True)[1]
                key = key * (int(whole.max()) + 1) + whole.reshape(-1)
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        return Alike(of.reshape(-1), first)


# (array module, rows, stages, seconds of a layer) -> pace, by each row's schedule
PaceOf = Callable[[Any, "StepFeatures", Stages, LayerSeconds], Pace]


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True)
class StepFeatures:
    """What the composition knows of each row: [N] each, blocks [P, N], or [P, C] of rows that are
    `alike`, which also have the same columns `SHARED`.
    """

    layer: BlockPrices  # the mean of a stage's layers, where they differ
    embedding: BlockPrices
    head: BlockPrices
    layers_first: Array  # of the first stage
    layers_last: Array
    layers_most: Array  # of the fullest of the other stages
    layers: Array  # of all stages
    stages: Array
    micro_batches: Array
    forwards_first: Array  # 1: all forwards before the first backward
    chunks: Array  # of a stage, each of which sends for itself
    sends_s: Array  # one message between neighbouring stages
    sends_hidden: Array  # 1: a stage computes meanwhile
    # nodes of a tensor-parallel group
    tp_nodes: Array = dataclasses.field(metadata=_BY_BLOCK)
    # 1: gathers of sharded weights run alongside
    gathers_hidden: Array = dataclasses.field(metadata=_BY_BLOCK)
    reduction_s: Array  # of gradients, bucket by bucket where they are reduced alongside
    reduction_tail_s: Array  # what is full when the last layer is done, and what follows
    reduction_last_s: Array  # its last bucket
    hiding_layers: Array  # whose backward passes follow the first bucket
    reduction_hidden: Array  # 1: overlapped with the last micro-batch's backward pass
    tied_s: Array  # the tied embedding's gradient summed over first and last stage
    updated_s: Array  # weights updated in shards, gathered
    updated_first_s: Array  # those of the embedding, which the next forward pass awaits at once
    updated_last_s: Array  # those of the head of a stage that is alone
    updates_hidden: (
        Array  # 1: beside the first forward pass; 0: behind the optimizer, nothing hides
    )
    optimizer_s: Array
    optimizer_kernels: Array
    tp: Array = dataclasses.field(metadata=_BY_BLOCK)
    # 1: a ring over nodes waits at each of them (`transformer/waits.py`)
    waiting: Array = dataclasses.field(metadata=_BY_BLOCK)
    crossing: Array = dataclasses.field(metadata=_BY_BLOCK)  # 1: so does a pipeline over nodes
    stalls: Array  # messages of a micro-batch that surely stall
    stall_chance: Array  # of such messages where no run surely stalls
    gathered_layers: Array  # layers of a rank, gathered or summed singly, x data ranks
    exchange_hidden: Array  # 1: expert messages of a pair of passes run beside its computation
    folded: Array  # 1: a pipeline turns at its last stage, so the first holds the last chunk, too
    # deviations, as `StepEffects.on_slowest` takes them
    slowest: Array | None = dataclasses.field(default=None, metadata=_BY_BLOCK)
    schedule: Array | None = None  # its code; None: 1F1B, GPipe or interleaved
    # [K, N] width in logs on top of each step effect's own, where what it multiplies was not
    # measured on this machine
    unmeasured_widths: np.ndarray | None = None
    pace: PaceOf | None = dataclasses.field(default=None, metadata=_STATIC)
    alike: Alike | None = None  # None: each row has blocks of its own

    @property
    def weight_share(self) -> Array:
        """Share of a layer's backward that makes its weights' gradients, by the op model [N]."""
        one = self.layer
        ops_s = one.gemm_s + one.experts_s + one.attention_s + one.memory_s
        return self.by_row(one.weights_s[1] / ops_s[1])

    def by_row(self, of_blocks: Array) -> Array:
        """What blocks have [..., C] by the rows that have them [..., N]; a number as it is."""
        if self.alike is None:
            return of_blocks
        return _at(of_blocks, len(self.alike.first), self.alike.of)

    def by_block(self, of_rows: Array) -> Array:
        """What rows of the same blocks share [..., N], once [..., C]; a number as it is."""
        if self.alike is None:
            return of_rows
        return _at(of_rows, len(self.alike.of), self.alike.first)

    @functools.cached_property
    def of_blocks(self) -> StepFeatures:
        """A row for each of the blocks [C], its blocks at the same place, without the columns that
        rows with the same blocks do not share.
        """
        rows: dict[str, Any] = dict.fromkeys(_COLUMNS)
        rows |= {name: self.by_block(leaf) for name, leaf in self.columns.items() if name in SHARED}
        return dataclasses.replace(self, **rows, alike=None)

    def picked(self, rows: np.ndarray) -> StepFeatures:
        """Some of the rows: their places, or whether each is one of them."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        alike, which = None, rows
        if self.alike is not None:
            which, of = np.unique(self.alike.of[rows], return_inverse=True)
            alike = Alike.of_keys(of.reshape(-1))
        blocks = (
            jax.tree.map(lambda leaf: leaf.take(which, -1), one)
            for one in (self.layer, self.embedding, self.head)
        )
        found: dict[str, Any] = {name: leaf.take(rows, -1) for name, leaf in self.columns.items()}
        found |= zip(_BLOCKS, blocks, strict=True)
        return dataclasses.replace(self, **found, alike=alike)

    @staticmethod
    def joined(parts: Sequence[tuple[StepFeatures, np.ndarray]], rows: int) -> StepFeatures:
        """Features of all rows, from those of some with the places that they take."""
        of, held = np.empty(rows, int), 0
        first: list[np.ndarray] = []
        found: dict[str, Any] = {}
        for f, at in parts:
            alike = f.alike or Alike(np.arange(len(at)), np.arange(len(at)))
            of[at] = held + alike.of
            first.append(at[alike.first])
            held += len(alike.first)
            for name, leaf in f.columns.items():
                shape = (*leaf.shape[:-1], rows)
                found.setdefault(name, np.ones(shape))[..., at] = leaf
        for name in _BLOCKS:
            each = (getattr(f, name) for f, _ in parts)
            found[name] = jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), *each)
        return dataclasses.replace(parts[0][0], **found, alike=Alike(of, np.concatenate(first)))

    @property
    def columns(self) -> dict[str, Array]:
        """What there is of each row besides its blocks, by name."""
        return {name: one for name in _COLUMNS if (one := getattr(self, name)) is not None}


# columns of rows by which their blocks take longer
SHARED = tuple(one.name for one in dataclasses.fields(StepFeatures) if one.metadata.get("by_block"))
_BLOCKS = ("layer", "embedding", "head")
_COLUMNS = tuple(
    field.name
    for field in dataclasses.fields(StepFeatures)
    if field.name not in (*_BLOCKS, "pace", "alike")
)


def _at(values: Array, size: int, places: Array) -> Array:
    """Some of the last axis, where there is one of this size."""
    if np.ndim(values) == 0 or np.shape(values)[-1] != size:
        return values
    return array_module(values, places).take(values, places, axis=-1)


class StepParts(NamedTuple):
    """Seconds of a step [N]: the second to fifth add up to the first."""

    step_s: Array
    compute_s: Array  # the slowest stage's GPU at work, all micro-batches, and the optimizer
    exposed_comm_s: Array  # communication that nothing hides
    bubble_s: Array  # the slowest stage waits for others
    host_s: Array  # the slowest stage's GPU waits for its host
    layer_s: Array  # one layer, one micro-batch

    @classmethod
    def busy(cls, seconds: Array) -> StepParts:
        """Of a device that computes throughout."""
        none = 0.0 * seconds
        return cls(seconds, seconds, none, none, none, none)
