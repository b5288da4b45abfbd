"""What the composition knows of each row, from the passes of its parts: unique cells are built and priced once.

A cell is what a layer's passes depend on: sizes, dtype, kernels, micro-batch, tensor parallelism, recompute. How many layers, stages,
replicas and micro-batches there are does not change it, so a sweep of thousands of layouts has some tens of cells.

Axes: N rows, U unique cells, P = 3 phases.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops import Gemm
from hybridperf.steps.compose import PHASES, Block, Features
from hybridperf.steps.prices import Prices
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.parts import (
    embedding_passes,
    gradient_reduction,
    head_passes,
    layer_passes,
    optimizer_passes,
    send_call,
)  # fmt: skip
from hybridperf.workloads.transformer.passes import Passes, Step

_ALIGNED = 8  # numbers of 16 bits: what tensor cores load at once
_FIELDS = tuple(field.name for field in dataclasses.fields(Block))
_COLLECTIVE = {"tp": "tp", "cp": "exchange", "ep": "exchange", "zero": "gather"}


def features(configs: Sequence[TransformerConfig], prices: Prices) -> Features:
    """Features [N] of rows that run on one device and its links; `InputError` where a call cannot be priced."""
    cells = _Unique([_cell(config) for config in configs])
    once = _Unique([_once(config) for config in configs])
    passes = [_CellPasses.of(config) for config in cells.unique]
    ends = [_Ends.of(config) for config in once.unique]
    sends = [send_call(config) for config in once.unique]
    prices.learn(step.call for cell in passes for step in cell.steps())
    prices.learn(step.call for end in ends for step in (*end.reduction, *end.optimizer))
    prices.learn(call for call in sends if call is not None)
    layer, embedding, head = (
        _blocks([getattr(cell, name) for cell in passes], prices, cells.of) for name in ("layers", "embedding", "head")
    )  # fmt: skip
    stages = np.array([_stages(config) for config in configs], float).T
    columns = np.array([
        (
            config.shape.depth, config.layout.pp, config.layout.accumulation, _fill(config), float(config.overlap_sends),
            config.group("tp").nodes, -(-config.layout.ranks // config.layout.dp // config.gpus_per_node),
            float(config.overlap_gradients), config.layout.tp,
        )
        for config in configs
    ], float).T  # fmt: skip
    depth, pp, m, fill, sends_hidden, tp_nodes, stage_nodes, reduction_hidden, tp = columns
    per_end = np.array([end.sums(prices) for end in ends])[once.of].T
    sends_s = np.array([0.0 if call is None else prices[call] for call in sends])[once.of]
    return Features(
        layer, embedding, head, *stages, depth, pp, m, fill, sends_s, sends_hidden, tp_nodes, np.maximum(stage_nodes, 1), per_end[0],
        per_end[1], reduction_hidden, per_end[2], per_end[3], tp, np.zeros_like(tp), np.zeros_like(tp), np.zeros_like(tp),
    )  # fmt: skip


def joined(parts: Sequence[tuple[Features, np.ndarray]], rows: int) -> Features:
    """Features of `rows` rows from those of some of them, each with the places that they take."""

    def put(*leaves: np.ndarray) -> np.ndarray:
        out = np.ones((*leaves[0].shape[:-1], rows))
        for leaf, (_, at) in zip(leaves, parts, strict=True):
            out[..., at] = leaf
        return out

    return jax.tree.map(put, *(part for part, _ in parts))


def picked(f: Features, rows: Any) -> Features:
    """The features of some rows."""
    return jax.tree.map(lambda leaf: leaf[..., rows], f)


class _Unique:
    """Unique things of a list and which of them each is."""

    def __init__(self, things: Sequence[Any]):
        place: dict[Any, int] = {}
        self.of = np.array([place.setdefault(thing, len(place)) for thing in things])
        self.unique = list(place)


def _cell(config: TransformerConfig) -> TransformerConfig:
    """The config with everything equal that a layer's passes do not depend on."""
    layout = config.layout
    alike: dict[str, Any] = {"accumulation": min(layout.accumulation, 2), "vp": 1, "schedule": "1f1b"}
    if layout.zero < 2 and layout.ep == 1 and layout.cp == 1 and layout.order[0] == "tp":
        alike |= {"pp": 1, "dp": 1, "zero": 0, "shard_ranks": None}
    shape = config.shape
    if not shape.experts and not shape.decoder_layers:
        shape = dataclasses.replace(shape, layers=1, name="")
    return config.replace(shape=shape, layout=layout.replace(**alike), overlap_gradients=True, stage_split="even")


def _once(config: TransformerConfig) -> TransformerConfig:
    """The same for what happens once a step, and for messages between stages."""
    return config.replace(layout=config.layout.replace(accumulation=1, recompute="none"))


@dataclasses.dataclass(frozen=True)
class _CellPasses:
    """Passes of one cell, layers by kind with how many of them there are."""

    layers: tuple[tuple[float, Passes], ...]
    embedding: tuple[tuple[float, Passes], ...]
    head: tuple[tuple[float, Passes], ...]

    @staticmethod
    def of(config: TransformerConfig) -> _CellPasses:
        blocks = config.shape.blocks
        depth = sum(block.count for block in blocks)
        layers = tuple((block.count / depth, layer_passes(config, kind)) for kind, block in enumerate(blocks))
        return _CellPasses(layers, ((1.0, embedding_passes(config)),), ((1.0, head_passes(config)),))

    def steps(self) -> list[Step]:
        every = (*self.layers, *self.embedding, *self.head)
        return [step for _, passes in every for phase in PHASES for step in getattr(passes, phase)]


def _blocks(cells: Sequence[tuple[tuple[float, Passes], ...]], prices: Prices, of: np.ndarray) -> Block:
    """A block of each row [P, N] from parts of unique cells."""
    sums = np.zeros((len(_FIELDS), len(PHASES), len(cells)))
    for at, parts in enumerate(cells):
        for share, passes in parts:
            for phase, name in enumerate(PHASES):
                for step in getattr(passes, name):
                    for field, amount in _amounts(step, prices):
                        sums[_FIELDS.index(field), phase, at] += share * amount
    return Block(*sums[:, :, of])


def _amounts(step: Step, prices: Prices) -> tuple[tuple[str, float], ...]:
    """What a step adds to the fields of a block."""
    seconds = prices[step.call]
    if not step.is_op:
        field = _COLLECTIVE[step.part]
        return ((f"{field}_s", seconds), (f"{field}_calls", 1.0))
    if step.part == "gemm":
        return (("misaligned_s" if misaligned(step) else "gemm_s", seconds), ("kernels", step.kernels))
    return (("attention_s" if step.part == "attention" else "memory_s", seconds), ("kernels", step.kernels))


def misaligned(step: Step) -> bool:
    """Whether a 16-bit product has rows that tensor cores cannot load whole: a width, not a count of tokens, is no multiple of 8."""
    op = step.op
    if not isinstance(op, Gemm) or DTYPE_BYTES[op.dtype] != DTYPE_BYTES["fp16"]:
        return False
    return any(getattr(op, name) % _ALIGNED for name in ("m", "n", "k") if name != step.tokens)


@dataclasses.dataclass(frozen=True)
class _Ends:
    """What happens once a step, on the stage that has most of it."""

    reduction: tuple[Step, ...]
    optimizer: tuple[Step, ...]

    @staticmethod
    def of(config: TransformerConfig) -> _Ends:
        of_stages = [
            (optimizer_passes(config, stage), gradient_reduction(config, stage)) for stage in dict.fromkeys((0, config.stages - 1))
        ]
        optimizer, reduction = max(of_stages, key=lambda both: sum(float(step.op.work().bytes) for step in both[0]))
        return _Ends(reduction, optimizer)

    def sums(self, prices: Prices) -> tuple[float, float, float, float]:
        """(seconds of reductions, how many, seconds of the optimizer, its kernels)."""
        return (
            sum(prices[step.call] for step in self.reduction), float(len(self.reduction)),
            sum(prices[step.call] for step in self.optimizer), float(sum(step.kernels for step in self.optimizer)),
        )  # fmt: skip


def _stages(config: TransformerConfig) -> tuple[float, float, float]:
    """Layers of the first stage, of the last, of the fullest of the others (of the first where there are no others)."""
    return _stage_layers(config.shape.depth, config.layout.pp, config.layout.vp, config.stage_split, config.head_layers)


@functools.lru_cache(maxsize=4096)
def _stage_layers(depth: int, pp: int, vp: int, split: Any, head_layers: float) -> tuple[float, float, float]:
    from hybridperf.workloads.transformer.stages import stage_layers

    pieces = np.array([int(stage_layers(depth, pp * vp, at, split, head_layers)) for at in range(pp * vp)])
    held = pieces.reshape(vp, pp).sum(0)  # a stage holds every pp-th piece
    return float(held[0]), float(held[-1]), float(held[1:-1].max() if pp > 2 else held[0])


def _fill(config: TransformerConfig) -> float:
    """How much of a pipeline's filling and draining shows, of 1F1B's."""
    layout = config.layout
    if layout.schedule == "interleaved" or layout.vp > 1:
        return 1.0 / layout.vp
    return 1.0
