"""Features of all layouts of a space: what is unique is priced once, rows put together by index.

Some things make up a row's features, each with a key of small whole numbers, and one representative
layout for each key:

    cell      a layer, embedding and head: tp, cp, ep, sequence parallelism, micro-batch, recompute
    placed    the same, and on how many nodes its groups lie
    shards    gathers of sharded weights: ZeRO stage, tp, ep, and where the shards lie; of one
              number of GPUs this tells pp, too
    once      once a step: reductions, optimizer, stages
    message   from stage to stage: micro-batch, and whether stages lie on several nodes

`steps.features` prices the representatives, all of them together. Axes: C cells, N layouts of a
space, M of them that are priced, n of a chunk of these, P passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridperf.training.plans.space import LayoutSpace, Place
from hybridperf.training.steps.batch import cells_of as inputs_of
from hybridperf.training.steps.cells import Cells, Prices, cell_terms
from hybridperf.training.steps.features import Sums, row_columns
from hybridperf.training.steps.step_features import BlockPrices, StepFeatures
from hybridperf.workloads.transformer.columns import FORWARDS_FIRST
from hybridperf.workloads.transformer.config import TransformerConfig

_OF_SHARDS = ("gather_s", "scatter_s", "gather_inside_s", "gather_calls")
# columns of rows that are known of what happens once a step
_ONCE = (
    "layers_first", "layers_last", "layers_most", "layers", "stages", "updates_hidden",
    "reduction_hidden", "waiting", "crossing", "stalls", "stall_chance", "gathered_layers",
    "gathers_hidden", "sends_hidden", "tp",
)  # fmt: skip
_PLACED = 1  # of the keys: placed cells, whose representatives are those of cells on other nodes
_BLOCKS = ("layer", "embedding", "head")


@dataclasses.dataclass(frozen=True)
class SpaceColumns:
    """Rows of a space whose unique things are priced. Indices are int32 [M]."""

    space: LayoutSpace
    rows: np.ndarray  # [M] places in the space
    cells: np.ndarray  # [C, X] inputs of corrections
    sums: Sums  # of placed cells, of shards, of what happens once, of messages
    columns: Mapping[str, np.ndarray]  # `row_columns` of what happens once
    tp_nodes: np.ndarray  # of placed cells
    cell: np.ndarray
    placed: np.ndarray
    shards: np.ndarray
    once: np.ndarray
    message: np.ndarray

    @staticmethod
    def of(
        space: LayoutSpace, rows: np.ndarray, config: Callable[[int], TransformerConfig],
        prices: Prices,
    ) -> SpaceColumns:  # fmt: skip
        """Price the unique things of rows of a space [M]; `config` gives a row's config."""
        by_chunk = config(int(rows[0])).stage_split != "even"  # deals out chunks unevenly
        found, index = zip(*map(_unique, _keys(space, rows, by_chunk)), strict=True)
        cells, _, shards, once, messages = (
            [config(row) for row in rows[first].tolist()] if at != _PLACED else []
            for at, first in enumerate(found)
        )
        of = index[0][found[_PLACED]].tolist()
        spans = [space.places[at].spans for at in space.place_of[rows[found[_PLACED]]].tolist()]
        nodes = [tuple(one[name].nodes for name in ("tp", "cp", "ep")) for one in spans]
        terms = cell_terms(cells, prices)
        modes = [cells[at].layout.recompute for at in of]
        placed = Cells([terms[at] for at in of], modes, nodes, prices)
        # `explain.py` asks for what was not measured of the layouts that it shows
        sums = Sums.of(placed, shards, once, messages, prices)
        columns = {name: values for name, values in row_columns(once).items() if name in _ONCE}
        tp_nodes = np.array([float(one) for one, _, _ in nodes])
        return SpaceColumns(
            space, rows, inputs_of(cells), sums, columns | sums.of_update, tp_nodes, *index
        )

    def __len__(self) -> int:
        return len(self.rows)

    def features(self, at: Any) -> StepFeatures:
        """Features of some of the M [n]; `at` a slice or indices."""
        once, base = self.once[at], self.space.base_of[self.rows[at]]
        vp = self.space.base.vp[base].astype(float)
        known: dict[str, Any] = {name: values[once] for name, values in self.columns.items()}
        known |= {name: self._block(block, at) for block, name in enumerate(_BLOCKS)}
        return StepFeatures(
            **known,
            tp_nodes=self.tp_nodes[self.placed[at]], fill=1.0 / vp, chunks=vp,
            forwards_first=np.isin(self.space.base.schedule[base], FORWARDS_FIRST).astype(float),
            micro_batches=self.space.base.accumulation[base].astype(float),
            sends_s=self.sums.sends_s[self.message[at]],
        )  # fmt: skip

    def _block(self, block: int, at: Any) -> BlockPrices:
        """A block of some rows [P, n]: what is sharded from other unique things than the rest."""
        placed, shards = self.placed[at], self.shards[at]
        sources = {False: (self.sums.cells, placed), True: (self.sums.shards, shards)}
        fields = {}
        for field, one in enumerate(dataclasses.fields(BlockPrices)):
            values, of = sources[one.name in _OF_SHARDS]
            fields[one.name] = values[block, field][:, of]
        return BlockPrices(**fields)


def _keys(space: LayoutSpace, rows: np.ndarray, by_chunk: bool) -> tuple[np.ndarray, ...]:
    """Whole numbers of rows [M] that tell cells, placed cells, shards, once-a-step work, messages
    apart.
    """
    base, of, place_of = space.base, space.base_of[rows], space.place_of[rows]
    micro = np.unique(base.micro_batch, return_inverse=True)[1].reshape(-1)

    def of_places(facts: Callable[[Place], tuple[Any, ...]]) -> np.ndarray:
        numbers: dict[tuple[Any, ...], int] = {}
        return np.array(
            [numbers.setdefault(facts(place), len(numbers)) for place in space.places], np.int64
        )[place_of]

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
