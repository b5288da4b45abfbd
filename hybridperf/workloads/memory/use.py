"""Memory of a training step, per stage of its pipeline, for one layout or for columns of them.

    weights, gradients, optimizer   parameters of a rank x bytes each, divided over data ranks from
                                    their ZeRO stage on (`states.py`)
    activations                     layers of the stage x micro-batches in flight (`in_flight.py`) x
                                    bytes of a layer (`activations.py`)
    ends                            embedding's dropout mask on the first stage; final norm, logits
                                    and loss on the last
    workspace                       one layer's recomputed activations; ZeRO-3's gathered weights of
                                    two layers and one layer's gradients; what a pipeline receives
    overhead                        driver, libraries, communicators: a knob

The first stage holds the embedding, the last the head, and a copy of the embedding where the two
are tied. No stage holds more layers or micro-batches than the first, so the peak is on the first or
on the last one, and columns of layouts are priced on those two. Chimera's workers also peak where
two stages hold most layers or most micro-batches; models of several kinds of layer are priced on
every stage.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from hybridperf.io import InputError
from hybridperf.io.namespace import array_module
from hybridperf.workloads.memory.activations import layer_activations
from hybridperf.workloads.memory.in_flight import in_flight
from hybridperf.workloads.memory.knobs import MemoryKnobs, check_knobs
from hybridperf.workloads.memory.states import (
    ModelStates,
    element_bytes,
    model_states,
    sharded_bytes,
)
from hybridperf.workloads.transformer import counts
from hybridperf.workloads.transformer.codes import CHIMERA, GPIPE
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.fields import check_flag, check_kind, check_number
from hybridperf.workloads.transformer.layout import Layout, Layouts
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.stages import layers_before
from hybridperf.workloads.transformer.zoo import load_shape


class MemoryUse(NamedTuple):
    """Bytes on a rank of each stage; [S] for one layout, [N, S] for columns of N. Stages that a
    layout has not are 0.
    """

    weights_bytes: Any
    gradients_bytes: Any
    optimizer_bytes: Any
    activations_bytes: Any
    embedding_head_bytes: Any
    workspace_bytes: Any
    overhead_bytes: Any

    @property
    def stage_bytes(self) -> Any:
        """Everything on a rank of each stage."""
        total = self[0]
        for part in self[1:]:
            total = total + part
        return total

    @property
    def peak_bytes(self) -> Any:
        """On the fullest rank: a number, or [N]."""
        return self.stage_bytes.max(-1)

    def fits(self, capacity_bytes: Any) -> Any:
        """Whether the fullest rank has room."""
        return self.peak_bytes <= capacity_bytes

    def spare_bytes(self, capacity_bytes: Any) -> Any:
        """Room left on the fullest rank; below zero where it does not fit."""
        return capacity_bytes - self.peak_bytes


def memory(
    shape: TransformerShape | str,
    layout: Layout | Layouts | None = None,
    *,
    dtype: str = "bf16",
    grad_bytes: float | None = None,
    optimizer: str = "adam",
    attention: Literal["fused", "unfused"] = "fused",
    dropout: bool = False,
    split: str = "even",
    states: ModelStates | None = None,
    stages: int | None = None,
    knobs: MemoryKnobs | None = None,
) -> MemoryUse:
    """Bytes per stage. `grad_bytes`, `optimizer`: see `model_states`, or give `states` themselves;
    `split`: see `stages.py`.

    A shape may be a model's name. A single layout is checked, `InputError`, as `Layout.check(shape,
    strict=False)` does: what some framework runs has a memory too, such as heads that tp does not
    divide. Columns are not: planners filter by `legal`. Columns whose layers are of several kinds
    are priced on every stage: under JAX `stages` says how many there may be.
    """
    if isinstance(shape, str):
        shape = load_shape(shape)
    if isinstance(shape, TransformerConfig):
        raise InputError(
            "shape must be a TransformerShape, got a TransformerConfig; give config.shape,"
            " config.layout"
        )
    check_kind("shape", shape, TransformerShape)
    if not isinstance(layout, Layout | Layouts):
        raise InputError(f"layout must be a Layout, got {layout!r}; hp.Layout() is one rank")
    if isinstance(layout, Layout):
        layout.check(shape, strict=False)
    check_flag("dropout", dropout)
    if grad_bytes is not None:
        check_number("grad_bytes", grad_bytes)
    if attention not in ("fused", "unfused"):
        raise InputError(f"attention must be fused or unfused, got {attention!r}")
    if (
        split != "even"
        and array_module(*_columns(layout)) is np
        and np.any(_columns(layout).schedule == CHIMERA)
    ):
        raise InputError(
            f"chimera's stages are split evenly over both directions, got split {split!r}"
        )
    knobs = MemoryKnobs() if knobs is None else knobs
    check_knobs(knobs)
    states = states or model_states(dtype, optimizer, grad_bytes)
    options = {
        "element_bytes": element_bytes(dtype),
        "fused": attention == "fused",
        "dropout": dropout,
    }
    if isinstance(layout, Layout):
        return _Priced(shape, layout.columns, np.arange(layout.pp), split).use(
            states, options, knobs
        )
    columns = Layouts(*(column[..., None] for column in layout))
    stage = _stages(shape, layout, stages)
    found = _Priced(
        shape, columns, array_module(*layout).minimum(stage, columns.pp - 1), split
    ).use(states, options, knobs)
    return MemoryUse(*(part * (stage < columns.pp) for part in found))


def _columns(layout: Layout | Layouts) -> Layouts:
    return layout.columns if isinstance(layout, Layout) else layout


def _stages(shape: TransformerShape, layouts: Layouts, stages: int | None) -> Any:
    """Indices of the stages to price, [N, S] or [S]."""
    xp, pp = array_module(*layouts), layouts.pp
    if stages is not None:
        return np.arange(stages)
    if len(shape.layer_kinds) > 1:
        if xp is not np:
            raise InputError(
                f"layers of {shape.name} are of several kinds: under JAX, say how many `stages`"
                " there may be"
            )
        return np.arange(np.max(pp))
    ends = [0 * pp, pp - 1]
    if xp is np and not np.any(layouts.schedule == CHIMERA):
        return xp.stack(ends, -1)
    # A Chimera worker's layers and its micro-batches are linear in its place between these; the
    # other half mirrors them
    extra = shape.depth % pp
    fewer = xp.minimum(extra, pp - extra)
    between = [xp.clip(place, 0, pp - 1) for place in (fewer - 1, fewer, pp // 2 - 1)]
    return xp.stack(ends + between, -1)


@dataclasses.dataclass(frozen=True)
class _Priced:
    """Columns [N, 1] (or numbers) against the indices of stages [N, S] or [S]."""

    shape: TransformerShape
    x: Layouts
    stage: Any
    split: str

    def use(self, states: ModelStates, options: dict[str, Any], knobs: MemoryKnobs) -> MemoryUse:
        x = self.x
        xp = array_module(*x)
        dense, experts = self._parameters()
        expert_shards = xp.maximum(x.expert_data_ranks * x.shard_ranks / x.data_ranks, 1)
        of_dense = sharded_bytes(dense, states, x.zero, x.shard_ranks)
        of_experts = sharded_bytes(experts, states, x.zero, expert_shards)
        kept = [one + other for one, other in zip(of_dense, of_experts, strict=True)]
        activations, workspace = self._activations(options, knobs)
        return MemoryUse(
            knobs.weights * kept[0],
            knobs.gradients * kept[1],
            knobs.optimizer * kept[2],
            activations,
            self._ends(options, knobs),
            knobs.workspace * (workspace + self._gathered(options["element_bytes"], states))
            + 0.0 * self.stage,
            knobs.fixed_bytes + 0.0 * self.stage,
        )

    def _layers(self, stage: Any) -> list[Any]:
        """Layers of each kind on a stage."""
        shape, pp = self.shape, self.x.pp
        xp = array_module(*self.x, stage)
        before, after = (
            layers_before(shape.depth, pp, at, self.split, shape.head_layers)
            for at in (stage, stage + 1)
        )
        found, start = [], 0
        for block in shape.layer_kinds:
            end = start + block.count
            found.append(xp.clip(xp.minimum(after, end) - xp.maximum(before, start), 0, None))
            start = end
        return found

    def _pieces(self) -> list[tuple[Any, Any, Any]]:
        """What a rank holds: (stage, micro-batches in flight, 1 or 0). Chimera's ranks hold a
        second stage, of the other direction.
        """
        x = self.x
        xp = array_module(*x, self.stage)
        own, second = in_flight(x.schedule, x.pp, x.vp, x.accumulation, self.stage)
        if xp is np and not np.any(x.schedule == CHIMERA):
            return [(self.stage, own, 1.0)]
        return [
            (self.stage, own, 1.0),
            (x.pp - 1 - self.stage, second, xp.where(x.schedule == CHIMERA, 1.0, 0.0)),
        ]

    def _rank_parameters(self, part: counts.ParameterCounts) -> tuple[Any, Any]:
        """ParameterCounts of one rank of some that are shared: (dense, of experts)."""
        return counts.rank_shares(
            part, self.shape.key_heads, self.x.tp, self.x.ep, self.x.expert_tp
        )

    def _parameters(self) -> tuple[Any, Any]:
        """ParameterCounts of one rank of each stage: (dense, of experts)."""
        x, shape = self.x, self.shape
        xp = array_module(*x, self.stage)
        dense, experts = 0.0, 0.0
        first, last = counts.embedding(shape), counts.head(shape)
        shared = counts.ParameterCounts(
            vocab=first.vocab if shape.tied and shape.head in ("lm", "mlm") else 0
        )
        for stage, _, held in self._pieces():
            for block, layers in zip(shape.layer_kinds, self._layers(stage), strict=True):
                one = self._rank_parameters(block.parameters)
                dense, experts = dense + held * layers * one[0], experts + held * layers * one[1]
            dense = dense + held * xp.where(stage == 0, self._rank_parameters(first)[0], 0.0)
            dense = dense + held * xp.where(stage == x.pp - 1, self._rank_parameters(last)[0], 0.0)
            # Chimera's last stage lies where the first of the other direction lies
            copied = (stage == x.pp - 1) & (x.pp > 1) & (x.schedule != CHIMERA)
            dense = dense + held * xp.where(copied, self._rank_parameters(shared)[0], 0.0)
        return dense, experts

    def _activations(self, options: dict[str, Any], knobs: MemoryKnobs) -> tuple[Any, Any]:
        """Bytes kept for backward passes, and bytes that are back while one layer is recomputed;
        with what the pipeline receives.
        """
        x, total = self.x, 0.0
        xp = array_module(*x, self.stage, *vars(knobs).values())
        by_kind = [
            layer_activations(self.shape, x, block, **options) for block in self.shape.layer_kinds
        ]
        for stage, batches, held in self._pieces():
            for one, layers in zip(by_kind, self._layers(stage), strict=True):
                total = total + held * layers * batches * one.kept(x.recompute, knobs)
        again = by_kind[0].recomputed(x.recompute, knobs)
        for one in by_kind[1:]:
            again = xp.maximum(again, one.recomputed(x.recompute, knobs))
        return total, again + xp.where(x.pp > 1, 2 * by_kind[0].input, 0.0)

    def _gathered(self, element_bytes: float, states: ModelStates) -> Any:
        """ZeRO-3: whole weights of the layer that is computed and of the next, whole gradients of
        one.
        """
        x = self.x
        xp = array_module(*x)
        largest = self.shape.layer_kinds[0].parameters
        for block in self.shape.layer_kinds[1:]:
            largest = max(largest, block.parameters, key=lambda one: one.total)
        dense, experts = self._rank_parameters(largest)
        return xp.where(
            (x.zero >= 3) & (x.shard_ranks > 1),
            (2 * element_bytes + states.gradient) * (dense + experts),
            0.0,
        )

    def _ends(self, options: dict[str, Any], knobs: MemoryKnobs) -> Any:
        """Before the first and after the last layer."""
        x, shape = self.x, self.shape
        xp = array_module(*x, self.stage, *vars(knobs).values())
        e = options["element_bytes"]
        between = xp.where(x.sequence_parallel > 0, x.tp, 1)
        source = x.micro_batch * shape.seq / x.cp
        tokens = (
            x.micro_batch * (shape.decoder_seq or shape.seq) / x.cp
            if shape.decoder_layers
            else source
        )
        logits = (
            {"classes": x.micro_batch, "none": 0.0}.get(shape.head, tokens) * shape.vocab / x.tp
        )
        stale = knobs.stale_bytes * xp.where((x.pp == 1) & (x.accumulation > 1), 1.0, 0.0)
        per_head = (
            e * tokens * shape.hidden * (2 / between + knobs.head)
            + (e + knobs.loss_bytes + stale) * logits
        )
        per_embedding = e * source * shape.hidden * knobs.embedding
        if options["dropout"]:
            # a mask of one byte each
            per_embedding = per_embedding + source * shape.hidden / between
        total = 0.0
        for stage, batches, held in self._pieces():
            total = total + held * xp.where(stage == 0, batches * per_embedding, 0.0)
            # only GPipe's last stage has more than one micro-batch in its loss
            total = total + held * xp.where(
                stage == x.pp - 1, xp.where(x.schedule == GPIPE, batches, 1.0) * per_head, 0.0
            )
        return total
