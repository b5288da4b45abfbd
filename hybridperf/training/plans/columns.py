"""Features of all layouts of a space: unique cells are priced once, rows put together by index.

Some things make up a row's features, each with a key of small whole numbers, and one representative
layout for each key:

    cell      a layer, embedding and head: tp, cp, ep, sequence parallelism, micro-batch, recompute
    placed    the same, and on how many nodes its groups lie
    shards    gathers of sharded weights: ZeRO stage, tp, ep, and where the shards lie; of one
              number of GPUs this tells pp, too
    once      once a step: reductions, optimizer, stages
    message   from stage to stage: micro-batch, and whether stages lie on several nodes

`steps.features` prices the representatives, all of them together, and `steps.cells` what nodes
change of a cell. Axes: R representatives, V placed cells,
N layouts of a space, M of them that are priced, n of a chunk of these, P phases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridperf.training.plans.space import LayoutSpace, Place
from hybridperf.training.steps.batch import cells_of as inputs_of
from hybridperf.training.steps.cells import Prices, Sums, cells_of
from hybridperf.training.steps.features import features
from hybridperf.training.steps.step_features import BlockPrices, StepFeatures
from hybridperf.workloads.transformer.columns import FORWARDS_FIRST
from hybridperf.workloads.transformer.config import TransformerConfig

_OF_SHARDS = ("gather_s", "scatter_s", "gather_inside_s", "gather_calls")
_ONCE = (
    "layers_first", "layers_last", "layers_most", "layers", "stages", "reduction_s",
    "reduction_tail_s", "reduction_last_s", "hiding_layers", "tied_s", "updated_s",
    "updated_first_s", "updated_last_s", "updates_hidden",
    "reduction_hidden", "optimizer_s", "optimizer_kernels", "waiting", "crossing", "stalls",
    "stall_chance",
    "gathered_layers", "gathers_hidden", "sends_hidden", "tp",
)  # fmt: skip
_BLOCKS = ("layer", "embedding", "head")


@dataclasses.dataclass(frozen=True)
class SpaceColumns:
    """Rows of a space whose representatives are priced. Indices are int32 [M]."""

    space: LayoutSpace
    rows: np.ndarray  # [M] places in the space
    f: StepFeatures  # [R]
    cells: np.ndarray  # [R, X] inputs of corrections
    blocks: tuple[BlockPrices, ...]  # [P, V] each field: layer, embedding, head
    tp_nodes: np.ndarray  # [V]
    cell: np.ndarray
    placed: np.ndarray  # of V; all others of R
    shards: np.ndarray
    once: np.ndarray
    message: np.ndarray

    @staticmethod
    def of(
        space: LayoutSpace, rows: np.ndarray, config: Callable[[int], TransformerConfig],
        prices: Prices,
    ) -> SpaceColumns:  # fmt: skip
        """Price the representatives of rows of a space [M]; `config` gives a row's config."""
        by_chunk = config(int(rows[0])).stage_split != "even"  # deals out chunks unevenly
        cell_key, placed_key, *keys = _keys(space, by_chunk)
        first, index, at = [], [], 0
        for key in (cell_key, *keys):
            found, of = _unique(key[rows])
            first.append(rows[found])
            index.append((of + at).astype(np.int32))
            at += len(found)
        configs = [config(row) for row in np.concatenate(first).tolist()]
        # `explain.py` asks for what was not measured of the layouts that it shows
        priced = features(configs, prices, with_unmeasured=False)
        found, placed = _unique(placed_key[rows])
        spans = [space.places[at].spans for at in space.place_of[rows[found]].tolist()]
        plain = cells_of(configs[: len(first[0])], prices.kept)
        cells = []
        for cell, one in zip(index[0][found].tolist(), spans, strict=True):
            nodes = {name: one[name].nodes for name in ("tp", "cp", "ep")}
            cells.append(dataclasses.replace(plain[cell], nodes=nodes))
        summed = Sums(cells)
        prices.learn(summed.calls())
        tp_nodes = np.array([float(one["tp"].nodes) for one in spans])
        blocks = tuple(summed.blocks(prices))
        return SpaceColumns(
            space, rows, priced, inputs_of(configs), blocks, tp_nodes, index[0], placed, *index[1:]
        )

    def __len__(self) -> int:
        return len(self.rows)

    def features(self, at: Any) -> StepFeatures:
        """Features of some of the M [n]; `at` a slice or indices."""
        placed, shards, once = self.placed[at], self.shards[at], self.once[at]
        base = self.space.base_of[self.rows[at]]
        vp = self.space.base.vp[base].astype(float)
        values: dict[str, Any] = {name: getattr(self.f, name)[once] for name in _ONCE}
        for name, block in zip(_BLOCKS, self.blocks, strict=True):
            values[name] = _block(block, placed, getattr(self.f, name), shards)
        return StepFeatures(
            **values, tp_nodes=self.tp_nodes[placed], fill=1.0 / vp, chunks=vp,
            forwards_first=np.isin(self.space.base.schedule[base], FORWARDS_FIRST).astype(float),
            micro_batches=self.space.base.accumulation[base].astype(float),
            sends_s=self.f.sends_s[self.message[at]],
        )  # fmt: skip


def _block(
    block: BlockPrices, placed: np.ndarray, sharded: BlockPrices, shards: np.ndarray
) -> BlockPrices:
    """A block of some rows [P, n]: what is sharded from other representatives than the rest."""
    fields = {}
    for field in dataclasses.fields(BlockPrices):
        source, at = (sharded, shards) if field.name in _OF_SHARDS else (block, placed)
        fields[field.name] = getattr(source, field.name)[:, at]
    return BlockPrices(**fields)


def _keys(space: LayoutSpace, by_chunk: bool) -> tuple[np.ndarray, ...]:
    """Whole numbers [N] that tell cells, placed cells, shards, once-a-step work, messages apart."""
    base, of = space.base, space.base_of
    micro = np.unique(base.micro_batch, return_inverse=True)[1].reshape(-1)

    def of_places(facts: Callable[[Place], tuple[Any, ...]]) -> np.ndarray:
        numbers: dict[tuple[Any, ...], int] = {}
        return np.array(
            [numbers.setdefault(facts(place), len(numbers)) for place in space.places], np.int64
        )[space.place_of]

    def of_base(*columns: np.ndarray) -> np.ndarray:
        key = np.zeros(len(base.tp), np.int64)
        for column in columns:
            key = key * (int(column.max()) + 1) + column
        return key

    def both(place: np.ndarray, key: np.ndarray) -> np.ndarray:
        return place * (int(key.max()) + 1) + key[of]

    def spans(place: Place, *names: str) -> tuple[Any, ...]:
        return tuple(place.spans.get(name) for name in names)

    def divided(p: Place, *names: str) -> tuple[Any, ...]:
        return tuple(getattr(p.division, name) for name in names)

    def nodes(p: Place, *names: str) -> tuple[Any, ...]:
        return tuple(p.spans[name].nodes for name in names)

    ranks = ("tp", "cp", "ep", "expert_tp")
    # experts' messages are built by the nodes they go to
    cell = of_places(lambda p: (*divided(p, *ranks), *nodes(p, "ep")))
    placed = of_places(lambda p: (*divided(p, *ranks), *nodes(p, "tp", "cp", "ep")))
    experts, shared = ("ep", "expert_tp"), ("shard", "replica", "expert_data")
    shards = of_places(
        lambda p: (p.division.pp > 1, *divided(p, "tp", *experts), *spans(p, *shared))
    )
    once = of_places(
        lambda p: (*divided(p, "tp", "pp", *experts), *spans(p, "tp", "data", *shared, "pp"))
    )
    message = of_places(
        lambda p: (p.division.tp, p.division.cp, p.division.pp > 1, p.spans["pp"].nodes > 1)
    )
    zero, accumulated = base.zero, np.minimum(base.accumulation, 2)
    of_layer = of_base(base.sequence_parallel, micro, accumulated, base.recompute)
    return (
        both(cell, of_layer),
        both(placed, of_layer),
        np.where(zero[of] < 2, 0, both(shards, of_base(zero))),
        both(once, of_base(zero, base.vp if by_chunk else 0 * zero)),
        both(message, of_base(base.sequence_parallel, micro)),
    )


def _unique(key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a row of each key, which key each row has): np.unique without sorting, for small keys."""
    size = int(key.max()) + 1
    row = np.full(size, -1, np.int64)
    row[key] = np.arange(len(key))
    present = np.flatnonzero(row >= 0)
    number = np.empty(size, np.int32)
    number[present] = np.arange(len(present))
    return row[present], number[key]
