"""Unique cells of many rows: their passes are built once, their calls priced once (`Prices`).

A cell is all that a layer's passes depend on: sizes, dtype, kernels, micro-batch, tensor
parallelism, recompute, on how many nodes its collectives run. It is put together from pieces: the
layer's attention, its MLP and experts, the embedding, the head. Passes of a piece take a
millisecond to build, and many cells share it, since it depends on less: an MLP on the tokens of a
rank, whether they are many samples or long ones, all but experts on nothing of their ranks. What is
recomputed, and the nodes of collectives, are put in afterwards. Gathers of sharded weights are
cells of their own: they know nothing of micro-batches.

Axes: C cells, J slots of a cell, each of which a piece takes; K pieces on their nodes, F fields of
a block, P = 2 passes; S = 4 sums: of the forward pass, of the backward pass without what it
computes again, and of that, selective and full.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.step_features import BlockPrices
from hybridperf.io.namespace import Array
from hybridperf.model import PerfModel
from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.model.step_effects import sustained_s
from hybridperf.model.step_table import alone_seconds, step_table
from hybridperf.model.unmeasured import Told, Unmeasured
from hybridperf.workloads.transformer import embedding_head, layers
from hybridperf.workloads.transformer.columns import RECOMPUTE
from hybridperf.workloads.transformer.config import TransformerConfig, fields_entering
from hybridperf.workloads.transformer.in_step import (
    call_in_step,
    inside_a_node,
    priced_call,
    role_of,
)
from hybridperf.workloads.transformer.layout import Layouts
from hybridperf.workloads.transformer.parts import divided, layer_part_passes
from hybridperf.workloads.transformer.passes import (
    Checkpoints,
    Passes,
    PassStep,
    Recompute,
    recompute,
)
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.trained import Trained
from hybridperf.workloads.transformer.weights import (
    copies_embedding,
    embedding_weights,
    head_weights,
    layer_weights,
    shard_parameters,
)

_FIELDS = {field.name: at for at, field in enumerate(dataclasses.fields(BlockPrices))}
_REPEATED: tuple[Recompute, ...] = ("selective", "full")
_SUMS = (2 + len(_REPEATED), len(_FIELDS))  # S; F
_BLOCKS = 3  # layer, embedding, head
_KERNEL_FIELDS = operator.attrgetter(*fields_entering())
_COUNTED = {"scatter": "gather_calls", "summed": "gather_calls", "ring": "exchange_calls"}
_PLACED = ("tp", "cp", "ep")  # groups on whose nodes collectives of a cell depend


@dataclasses.dataclass(eq=False)
class Prices:
    """Seconds of calls, each computed once and known by its number."""

    model: PerfModel
    calls: list[Call] = dataclasses.field(default_factory=list)  # by number
    # sums over the passes of a cell (`features.py`)
    cells: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # passes of pieces, which take longer to build than to price: by kernels, then by numbers
    kept: dict[Any, dict[tuple[int, ...], PieceTerms]] = dataclasses.field(default_factory=dict)
    # sums of what happens once a step
    once: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # what was not measured, by what it depends on
    by_machine: dict[Any, Unmeasured] = dataclasses.field(default_factory=dict)
    probed: dict[Any, Told] = dataclasses.field(default_factory=dict)  # by call that stands for it
    _numbers: dict[Call, int] = dataclasses.field(default_factory=dict)
    _in_step: dict[Call, int] = dataclasses.field(default_factory=dict)
    # by number, with room for more; NaN: not priced yet
    _seconds: np.ndarray = dataclasses.field(default_factory=lambda: np.full(1024, np.nan))

    @property
    def links(self) -> CollectiveModel:
        """Model of the collectives between the machine's devices."""
        assert self.model.collectives is not None
        return self.model.collectives

    def number(self, call: Call) -> int:
        """Number under which a call is kept; a new one if it is new."""
        at = self._numbers.setdefault(call, len(self.calls))
        if at == len(self.calls):
            self.calls.append(call)
            if at == len(self._seconds):
                self._seconds = np.concatenate([self._seconds, np.full(at, np.nan)])
        return at

    def in_step(self, call: Call) -> int:
        """The number of what prices a call in a step."""
        if call not in self._in_step:
            self._in_step[call] = self.number(call_in_step(call))
        return self._in_step[call]

    def on_nodes(self, numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Numbers of the same calls [n] on so many nodes, 0 for as many as they are on."""
        pairs = numbers * (int(nodes.max(initial=0)) + 1) + nodes
        _, first, of = np.unique(pairs, return_index=True, return_inverse=True)
        each = zip(numbers[first].tolist(), nodes[first].tolist(), strict=True)
        found = [
            self.number(_on_nodes(self.calls[at], count)) if count else at for at, count in each
        ]
        return np.array(found, int)[of.reshape(-1)]

    def seconds(self, numbers: Any) -> np.ndarray:
        """Seconds of calls by their numbers [n]; those that are new are priced together."""
        numbers = np.asarray(numbers, int)
        new = np.unique(numbers[np.isnan(self._seconds[numbers])])
        if len(new):
            table = step_table(self.model, [self.calls[at] for at in new.tolist()])
            self._seconds[new] = sustained_s(np, alone_seconds(self.model, table), table.power_s)
        return self._seconds[numbers]

    def learn(self, calls: Iterable[Call]) -> None:
        """Prices the calls that were not priced before, together."""
        self.seconds([self.number(call) for call in calls])

    def __getitem__(self, call: Call) -> float:
        return float(self._seconds[self._numbers[call]])


def _on_nodes(call: Call, nodes: int) -> Call:
    assert isinstance(call, CollectiveCall)
    nodes = min(nodes, call.ranks)  # of a message between two
    return call if call.nodes == nodes else dataclasses.replace(call, nodes=nodes)


@dataclasses.dataclass(frozen=True, eq=False)
class PieceTerms:
    """What passes of a piece come to: n calls, each a term of one of the sums [S, F]."""

    sums: np.ndarray  # int [n] place of the sum that a call's seconds belong to
    calls: np.ndarray  # int [n] numbers of `Prices`
    groups: np.ndarray  # int [n] index into `_PLACED` of who exchanges; -1: nodes are as built
    counts: np.ndarray  # [S, F] kernels and collectives
    # the sums [S, F] of a piece that is priced, by nodes of its tp, cp and ep groups
    placed: dict[tuple[int, ...], np.ndarray] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(
        passes: Passes, prices: Prices, checkpoints: Checkpoints = "blocks", again: bool = False
    ) -> PieceTerms:
        """Of passes; `again`: whether they are of a layer, which can be recomputed."""
        terms: list[tuple[int, int, int]] = []
        counts = np.zeros(_SUMS)
        known = {id(step): step for step in passes.forward + passes.backward}
        added = {number: _added(step, prices) for number, step in known.items()}
        modes = _REPEATED if again else ()
        repeated = [recompute(passes, mode, checkpoints).recomputed for mode in modes]
        for at, steps in enumerate((passes.forward, passes.backward, *repeated)):
            for number, run in itertools.groupby(map(id, steps)):
                seconds, counted = added[number]
                times = sum(1 for _ in run)
                each = [(at * _SUMS[1] + to, call, group) for to, call, group in seconds]
                terms += each * times
                for to, count in counted:
                    counts[at, to] += count * times
        places, calls, groups = np.array(terms, int).reshape(-1, 3).T
        return PieceTerms(places, calls, groups, counts)


def _added(
    step: PassStep, prices: Prices
) -> tuple[list[tuple[int, int, int]], list[tuple[int, float]]]:
    """What a step adds to a block: (field, call, group) of its seconds, (field, count)."""
    if step.is_op:
        field = f"{role_of(step)}_s"
        launched = [(_FIELDS["kernels"], float(step.kernels))]
        fields = (field, "weights_s") if step.weight_gradient else (field,)
        number = prices.number(priced_call(step))
        return [(_FIELDS[name], number, -1) for name in fields], launched
    group = _PLACED.index(step.part) if step.part in _PLACED else -1
    called = list(_collectives(step))
    names = (_COUNTED.get(name, f"{name}_calls") for name, _ in called)
    seconds = [(_FIELDS[f"{name}_s"], prices.number(call), group) for name, call in called]
    if step.beside is not None:
        seconds.append((_FIELDS["hiding_s"], prices.in_step(step.beside), -1))
    return seconds, [(_FIELDS[name], 1.0) for name in names if name in _FIELDS]


def _collectives(step: PassStep) -> Iterator[tuple[str, CollectiveCall]]:
    """The field of a collective and its call; of gathered shards a node's own part, too."""
    call = step.collective
    field = "tp" if step.part == "tp" else role_of(step)
    field = "ring" if step.beside is not None else field
    sharded = field == "gather"
    if sharded and call.collective != "all_gather":
        field = "summed" if step.part == "replica" else "scatter"
    yield field, call
    inside = inside_a_node(call) if sharded else None
    if inside is not None:
        yield "gather_inside", inside


class Slot(NamedTuple):
    """Where a piece of a cell counts."""

    block: int  # 0: layer, 1: embedding, 2: head
    share: float  # of all layers
    # "embedding", "head"; of a layer "attention", "mlp", its "experts" and their "messages", or the
    # whole "layer"
    piece: str
    kind: int  # of the layer


@functools.lru_cache(maxsize=4096)
def slots(shape: TransformerShape, checkpoints: Checkpoints) -> tuple[Slot, ...]:
    """The slots of a model's cells [J]: embedding, head, then those of layers."""
    outer = Slot(1, 1.0, "embedding", 0), Slot(2, 1.0, "head", 0)
    kinds = kinds_of_layers(shape)
    if checkpoints == "ops":  # what is recomputed hangs on the layer as a whole
        return (*outer, *(Slot(0, share, "layer", kind) for kind, share in kinds))
    attention: dict[tuple[bool, str], Slot] = {}
    for kind, share in kinds:
        key = shape.layer_kinds[kind].cross, shape.layer_kinds[kind].mixer
        slot = attention.setdefault(key, Slot(0, 0.0, "attention", kind))
        attention[key] = slot._replace(share=slot.share + share)
    mlps = [Slot(0, share, "mlp", kind) for kind, share in kinds if shape.layer_kinds[kind].ffn]
    experts = [
        one._replace(piece=piece)
        for one in mlps
        for piece in ("experts", "messages")
        if shape.layer_kinds[one.kind].experts
    ]
    return (*outer, *attention.values(), *mlps, *experts)


def piece_numbers(
    slot: Slot, config: TransformerConfig, x: Layouts, ep_nodes: Array
) -> tuple[Array, ...]:
    """All that passes of a piece depend on of a layout, in whole numbers, or of columns of layouts.

    Args:
        slot: which piece.
        config: the step, of any layout.
        x: the layouts.
        ep_nodes: nodes of their expert groups.
    """
    shape = config.shape
    repeats = config.kernels.framework.gradients == "repeated"
    tokens = x.micro_batch * shape.seq // x.cp  # of a rank; cp divides a sequence
    on = ep_nodes * (config.expert_messages == "nodes")
    if slot.piece in ("experts", "messages"):
        cut = x.expert_tp == x.tp  # else tokens are dealt out over tp ranks, and no more is known
        ranks = x.tp * cut * (x.tp > 1)
        whole = np.where((ranks == 0) & (x.sequence_parallel > 0), x.tp, 1)
        shared = np.gcd(tokens, whole)
        dealt = (tokens // shared, whole // shared)
        if slot.piece == "messages":
            return tuple((x.ep > 1) * one for one in (x.ep, on, *dealt))
        return (x.ep, ranks, x.sequence_parallel * cut, *dealt)
    found: tuple[Array, ...] = (x.tp, x.sequence_parallel, (x.accumulation > 1) * repeats)
    by_sample = shape.family in ("vit", "dit") or shape.pooler or shape.head == "classes"
    if slot.piece == "mlp" or (slot.block and not by_sample):
        return (*found, tokens)
    found += (x.micro_batch, x.cp)
    return (*found, x.ep, on * (x.ep > 1), x.expert_tp) if slot.piece == "layer" else found


def piece_terms(slot: Slot, config: TransformerConfig, prices: Prices) -> PieceTerms:
    """Terms of the piece that a slot of a config takes, built once."""
    numbers = piece_numbers(slot, config, config.layout.columns, config.group("ep").nodes)
    return pieces_alike(slot, config, prices).terms(numbers, lambda: config)


class PiecesAlike(NamedTuple):
    """Pieces of a slot that the same kernels run, by their numbers."""

    slot: Slot
    prices: Prices
    kept: dict[tuple[int, ...], PieceTerms]

    def terms(
        self, numbers: tuple[int, ...], config: Callable[[], TransformerConfig]
    ) -> PieceTerms:
        """Terms of the piece with such `piece_numbers`; `config`: one that has it."""
        if numbers not in self.kept:
            slot, one = self.slot, config()
            passes = _PASSES[slot.piece](one, slot.kind)
            again = slot.block == 0
            self.kept[numbers] = PieceTerms.of(passes, self.prices, one.checkpoints, again)
        return self.kept[numbers]


def pieces_alike(slot: Slot, config: TransformerConfig, prices: Prices) -> PiecesAlike:
    """The pieces of a slot with a config's shape and kernels that were built so far."""
    shape = config.shape
    if not (shape.experts or shape.decoder_layers or shape.mixers):
        shape = _one_layer(shape)
    key = (slot.piece, slot.kind, shape, *kernels_key(config))
    return PiecesAlike(slot, prices, prices.kept.setdefault(key, {}))


def _of_experts(config: TransformerConfig, kind: int, messages: bool) -> Passes:
    whole = layer_part_passes(config, kind, Trained.expert_products)
    steps = (
        tuple(step for step in one if (step.part == "ep") == messages)
        for one in (whole.forward, whole.backward)
    )
    return Passes(*steps)


_PASSES: Mapping[str, Callable[[TransformerConfig, int], Passes]] = {
    "embedding": lambda config, _: divided(embedding_head.embedding(config), config),
    "head": lambda config, _: divided(embedding_head.head(config), config),
    "attention": lambda config, kind: layer_part_passes(config, kind, layers.attention),
    "mlp": lambda config, kind: layer_part_passes(config, kind, layers.all_but_experts),
    "experts": lambda config, kind: _of_experts(config, kind, messages=False),
    "messages": lambda config, kind: _of_experts(config, kind, messages=True),
    "layer": lambda config, kind: layer_part_passes(config, kind, layers.layer),
}


class Cells:
    """Pieces of layers and updates to be priced together."""

    def __init__(
        self, blocks: Sequence[int], pieces: Sequence[PieceTerms], of: np.ndarray,
        shares: np.ndarray, modes: np.ndarray, nodes: np.ndarray, prices: Prices,
    ):  # fmt: skip
        """Pieces put together.

        Args:
            blocks: block of each slot [J].
            pieces: terms, each of which many slots may take.
            of: places in `pieces` [J, C].
            shares: of layers that a slot counts for [J, C], or [J, 1].
            modes: what is recomputed, index into RECOMPUTE [C].
            nodes: of tp, cp and ep groups [3, C]; 0: as the passes were built.
            prices: which know the pieces' calls.
        """
        self._blocks, self._shares = blocks, np.broadcast_to(shares, of.shape)
        self._modes = modes
        groups = [[(one.groups == at).any() for at in range(len(_PLACED))] for one in pieces]
        talks = np.array(groups, int).reshape(-1, len(_PLACED)).T  # [3, pieces]
        key, radix = of.astype(np.int64), int(nodes.max(initial=0)) + 1
        for own, count in zip(talks, nodes, strict=True):  # what a piece has no messages of is 0
            key = key * radix + own[of] * count
        known, where = np.unique(key, return_inverse=True)
        self._placed = where.reshape(of.shape)
        digits = []
        for _ in _PLACED:
            known, on = np.divmod(known, radix)
            digits.append(on)
        wanted = np.stack(digits[::-1], 1)  # [K, 3]
        on_each = map(tuple, wanted.tolist())
        self._each = [(pieces[at], on) for at, on in zip(known.tolist(), on_each, strict=True)]
        self._new = [at for at, (one, on) in enumerate(self._each) if on not in one.placed]
        terms = [self._each[at][0] for at in self._new]
        row = np.repeat(np.arange(len(terms)), [len(one.calls) for one in terms])
        places, calls, who = (
            np.concatenate([np.zeros(0, int), *(getattr(one, name) for one in terms)])
            for name in ("sums", "calls", "groups")
        )
        nowhere = np.zeros((len(terms), 1), int)  # of calls that are no messages
        self.calls = prices.on_nodes(calls, np.hstack([wanted[self._new], nowhere])[row, who])
        self._places = row * int(np.prod(_SUMS)) + places

    @staticmethod
    def of(configs: Sequence[TransformerConfig], prices: Prices) -> Cells:
        """The cell of each config, sharding apart; those that share pieces share their terms."""
        known: dict[int, int] = {}
        terms = [PieceTerms.of(Passes(), prices)]  # of a slot that a model has no use for
        each = [slots(config.shape, config.checkpoints) for config in configs]
        most = max(map(len, each), default=2)
        of, shares = np.zeros((most, len(each)), int), np.zeros((most, len(each)))
        for at, (config, mine) in enumerate(zip(configs, each, strict=True)):
            for slot, one in enumerate(mine):
                piece = piece_terms(one, config, prices)
                of[slot, at] = known.setdefault(id(piece), len(terms))
                if of[slot, at] == len(terms):
                    terms.append(piece)
                shares[slot, at] = one.share
        modes = np.array([RECOMPUTE.index(config.layout.recompute) for config in configs], int)
        nodes = np.array([*map(placed_on, configs)], int).reshape(-1, len(_PLACED)).T
        blocks = (1, 2, *[0] * (most - 2))
        return Cells(blocks, terms, of, shares, modes, nodes, prices)

    def __len__(self) -> int:
        return len(self._modes)

    def pieces(self, prices: Prices) -> np.ndarray:
        """What the calls of each piece come to, by what is recomputed [modes, K, P, F]."""
        size = len(self._new) * int(np.prod(_SUMS))
        seconds = np.bincount(self._places, prices.seconds(self.calls), size).reshape(-1, *_SUMS)
        for at, sums in zip(self._new, seconds, strict=True):
            piece, on = self._each[at]
            piece.placed[on] = piece.counts + sums
        found = np.array([piece.placed[on] for piece, on in self._each]).reshape(-1, *_SUMS)
        plain = found[:, :2]
        out = np.stack([plain] * len(RECOMPUTE))
        for at, mode in enumerate(_REPEATED):
            out[RECOMPUTE.index(mode), :, 1] += found[:, 2 + at]
        return out

    def sums(self, pieces: np.ndarray, at: Any = slice(None)) -> np.ndarray:
        """Cells put together of priced pieces, by block, field and pass [3, F, P, C], or some."""
        modes, fields = self._modes[at], _SUMS[1]
        out = np.zeros((_BLOCKS, len(modes), 2, fields))
        for block, where, share in zip(self._blocks, self._placed, self._shares, strict=True):
            out[block] += share[at][:, None, None] * pieces[modes, where[at]]
        return np.ascontiguousarray(out.transpose(0, 3, 2, 1))


def placed_on(config: TransformerConfig) -> tuple[int, ...]:
    """Nodes of the groups that a cell's collectives depend on."""
    return tuple(config.group(dim).nodes for dim in _PLACED)


@functools.lru_cache(65536)
def cell_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that a cell depends on."""
    x, shape = config.layout, config.shape
    if not (shape.experts or shape.decoder_layers or shape.mixers):
        shape = _one_layer(shape)
    repeats = x.accumulation > 1 and config.kernels.framework.gradients == "repeated"
    ranks = (x.tp, x.cp, x.ep, x.expert_tp, x.sequence_parallel, x.micro_batch, x.recompute)
    return (shape, *ranks, repeats, *placed_on(config), *kernels_key(config))


def kernels_key(config: TransformerConfig) -> tuple[Any, ...]:
    """Fields of a config that decide which kernels run, on what."""
    return _KERNEL_FIELDS(config)


@functools.lru_cache(maxsize=4096)
def _one_layer(shape: TransformerShape) -> TransformerShape:
    return dataclasses.replace(shape, layers=1, name="")


def kinds_of_layers(shape: TransformerShape) -> list[tuple[int, float]]:
    """(kind of layer, its share of all layers)."""
    depth = sum(block.count for block in shape.layer_kinds)
    return [(kind, block.count / depth) for kind, block in enumerate(shape.layer_kinds)]


@functools.lru_cache(65536)
def shards_key(config: TransformerConfig) -> tuple[Any, ...]:
    """All that gathers of a layer's weights and scatters of its gradients depend on."""
    x = config.layout
    if not x.shards_each_pass:
        return ()
    groups = (config.group(dim) for dim in ("shard", "replica", "expert_data"))
    sizes = (config.shape, x.zero, x.tp, x.ep, x.expert_tp, copies_embedding(config))
    return (*sizes, *kernels_key(config), *groups)


def shards_of(configs: Sequence[TransformerConfig], prices: Prices) -> Cells:
    """Only the gathers and scatters of sharded weights."""
    each = []
    for config in configs:
        kinds = kinds_of_layers(config.shape)
        parts = [(1, 1.0, embedding_weights(config)), (2, 1.0, head_weights(config))]
        parts += [(0, share, layer_weights(config, kind)) for kind, share in kinds]
        each.append(parts)
    most = max(map(len, each), default=2)
    terms, shares = [PieceTerms.of(Passes(), prices)], np.zeros((most, len(each)))
    of = np.zeros((most, len(each)), int)
    for at, (config, parts) in enumerate(zip(configs, each, strict=True)):
        for slot, (_, share, weights) in enumerate(parts):
            of[slot, at], shares[slot, at] = len(terms), share
            terms.append(PieceTerms.of(shard_parameters(Passes(), weights, config), prices))
    as_built = np.zeros((len(_PLACED), len(each)), int)
    none = np.zeros(len(each), int)
    return Cells((1, 2, *[0] * (most - 2)), terms, of, shares, none, as_built, prices)
