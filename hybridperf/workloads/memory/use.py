"""Memory of a training step, per stage of its pipeline, for one layout or for columns of them.

    weights, gradients, optimizer   parameters of a rank x bytes each, divided over data ranks from
                                    their ZeRO stage on (`sharded_bytes`)
    activations                     layers of the stage x micro-batches in flight (`in_flight`) x
                                    bytes of a layer (`activations.py`)
    embedding and head              embedding's dropout mask on the first stage; final norm, logits
                                    and loss on the last
    workspace                       one layer's recomputed activations; ZeRO-3's gathered weights of
                                    two layers and one layer's gradients; what a pipeline receives
    overhead                        driver, libraries, communicators: a knob

The first stage holds the embedding, the last the head, and a copy of the embedding where the two
are tied. No stage holds more layers or micro-batches than the first, so the peak is on the first or
on the last one, and columns of layouts are priced on those two. Workers of two pipes also peak
where two stages hold most layers or most micro-batches; models of several kinds of layer are priced
on every stage.

ZeRO (Rajbhandari et al., 1910.02054) in mixed precision with Adam: 2 bytes of weights, 2 of
gradients, 12 of the optimizer (an fp32 copy of the weights, two moments), 16 in all, each divided
over d data ranks from its stage on: optimizer from 1, gradients from 2, weights from 3.

Micro-batches in flight are those of each schedule (`schedules/`). Rank s of p holds two stages of
Chimera and DualPipe: s of one direction, p - 1 - s of the other; folded, s and 2p - 1 - s of 2p,
and as many micro-batches of each. In one of Chimera's units of m <= p micro-batches these keep
min(p - s, m/2) and min(s + 1, m/2); with more units every rank keeps p, of its stages in the same
proportion.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.io import InputError, unknown
from hybridperf.io.namespace import Array, array_module, floats
from hybridperf.ops.quantise import known_scheme
from hybridperf.workloads.memory.activations import MemoryKnobs, layer_activations
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.transformer import counts
from hybridperf.workloads.transformer.columns import (
    FOLDED,
    FORWARDS_FIRST,
    SCHEDULES,
    TWO_PIPES,
    one_of,
)
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.counts import MOMENTS
from hybridperf.workloads.transformer.fields import check_flag, check_kind, check_number
from hybridperf.workloads.transformer.layout import Layout, Layouts
from hybridperf.workloads.transformer.shape import TransformerShape, layers_by_kind
from hybridperf.workloads.transformer.zoo import load_shape

_FP32_BYTES = 4.0
_QUANTISED_BYTES = 1.0  # of an input that a product in 8 or 4 bits keeps
_MIN_WEIGHT_BYTES = 2.0  # fp8 recipes keep weights in 16 bits and cast them as they are used
# of the bytes that a device's driver shows: what its context, communicators and gaps between blocks
# leave. By hand: failures of the sweep that this was first fitted to are told best by 0.87 to 0.89
USABLE = 0.88
# of the log of a predicted peak: they err by 9.7 % on average where they were measured
# (`training/steps/memory_knobs.toml`), of a normal error 0.097 (pi / 2)^(1/2)
_PEAK_DEVIATION = 0.097 * math.sqrt(math.pi / 2)
# the same of frameworks whose peaks nobody measured: of the one framework whose peaks are known
# (1,562 runs) counts are 0.21 short in the mean and scatter by 0.21, another's may be as far off
_COUNTED_DEVIATION = 0.30


def chance_fits(share: float, *, counted: bool = False) -> float:
    """Chance that what is predicted to take a share of the usable memory fits:
    P = Phi(log(usable / predicted) / sigma).

    `counted`: of a framework whose peaks nobody measured.
    """
    deviation = _COUNTED_DEVIATION if counted else _PEAK_DEVIATION
    return 0.5 * (1 + math.erf(-math.log(share) / deviation / math.sqrt(2)))


class ModelStates(NamedTuple):
    """Bytes per parameter of weights, gradients and optimizer states."""

    weight: float
    gradient: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self)


def model_states(
    dtype: str = "bf16", optimizer: str = "adam", grad_bytes: float | None = None
) -> ModelStates:
    """States of training in a dtype; `grad_bytes` None: as the weights, 4 where added in fp32."""
    if optimizer not in MOMENTS:
        raise unknown("optimizer", optimizer, MOMENTS, f"known are {', '.join(MOMENTS)}")
    weight = max(element_bytes(dtype), _MIN_WEIGHT_BYTES)
    master = _FP32_BYTES if weight < _FP32_BYTES else 0.0
    gradient = weight if grad_bytes is None else grad_bytes
    return ModelStates(weight, gradient, master + _FP32_BYTES * MOMENTS[optimizer])


def sharded_bytes(
    parameters: Array, states: ModelStates, zero: Array, shards: Array
) -> tuple[Array, Array, Array]:
    """Bytes of (weights, gradients, optimizer) on a rank, over `shards` from their stage on."""
    xp = array_module(parameters, zero, shards)
    weights, gradients, optimizer = (
        parameters * each / xp.where(zero >= stage, shards, 1)
        for each, stage in zip(states, (3, 2, 1), strict=True)
    )
    return weights, gradients, optimizer


def element_bytes(dtype: str) -> float:
    """Bytes of an activation: fp8 and fp4 recipes keep 16-bit ones."""
    return max(DTYPE_BYTES[canonical_dtype(dtype)], 2.0)


class MemoryUse(NamedTuple):
    """Bytes on a rank of each pipeline stage, by what they hold; what `hp.memory` returns.

    [S] for one layout of S stages; [N, S] for N layouts, 0 where a layout has no such stage.
    """

    weights_bytes: Array
    gradients_bytes: Array
    optimizer_bytes: Array  # optimizer state, with master weights
    activations_bytes: Array  # kept from forward to backward
    embedding_head_bytes: Array  # activations of the embedding and the LM head
    workspace_bytes: Array  # what lives only while one layer is computed
    overhead_bytes: Array  # driver, libraries, communicators

    @property
    def stage_bytes(self) -> Array:
        """Everything on a rank of each stage."""
        return functools.reduce(operator.add, self)

    @property
    def peak_bytes(self) -> Array:
        """On the fullest rank: a number, or [N]."""
        return self.stage_bytes.max(-1)

    def fits(self, capacity_bytes: Array) -> Array:
        """Whether the fullest rank has room."""
        return self.peak_bytes <= capacity_bytes


def memory(
    shape: TransformerShape | str, layout: Layout | Layouts | None = None, *, dtype: str = "bf16",
    quant: str = "", grad_bytes: float | None = None, optimizer: str = "adam",
    attention: Literal["fused", "unfused"] = "fused", dropout: bool = False, split: str = "even",
    states: ModelStates | None = None, stages: int | None = None, knobs: MemoryKnobs | None = None,
) -> MemoryUse:  # fmt: skip
    """Bytes on each rank of a Transformer's training step: weights, gradients, optimizer, ...

    Activations follow Korthikanti et al. (arXiv:2205.05198), sharded states ZeRO (Rajbhandari et
    al., arXiv:1910.02054). A single layout is checked by `Layout.check(shape, strict=False)`;
    many layouts are not.

    Args:
        shape: the model or its name.
        layout: how the step is spread over ranks: one layout (`hp.Layout()` is one rank), or
            columns of N layouts.
        dtype: number format of activations and weights.
        quant: scheme in which layers multiply ("fp8", ...), whose inputs are kept in one byte; ""
            for `dtype`.
        grad_bytes: bytes of one gradient; None: as the weights.
        optimizer: "adam", "momentum" or "sgd".
        attention: "unfused" where attention scores are written to memory.
        dropout: whether dropout masks are kept for the backward pass.
        split: how layers are split over stages: "even", or "cost", which weighs the LM head.
        states: bytes per parameter, instead of what `dtype`, `grad_bytes` and `optimizer` give.
        stages: most stages that a layout has; needed under JAX where layers are of several kinds.
        knobs: corrections for what cannot be counted from sizes.

    Raises:
        InputError: when an argument has the wrong type or value, or the layout cannot be run.
    """
    if isinstance(shape, str):
        shape = load_shape(shape)
    if isinstance(shape, TransformerConfig):
        message = "shape must be a TransformerShape, got a TransformerConfig"
        raise InputError(f"{message}; give config.shape, config.layout")
    check_kind("shape", shape, TransformerShape)
    if not isinstance(layout, Layout | Layouts):
        raise InputError(f"layout must be a Layout, got {layout!r}; hp.Layout() is one rank")
    check_flag("dropout", dropout)
    if grad_bytes is not None:
        check_number("grad_bytes", grad_bytes)
    if attention not in ("fused", "unfused"):
        raise InputError(f"attention must be fused or unfused, got {attention!r}")
    known_scheme(quant)
    knobs = MemoryKnobs() if knobs is None else knobs
    _check_knobs(knobs)
    states = states or model_states(dtype, optimizer, grad_bytes)
    layer = _layer(dtype, quant, attention, dropout)
    return _used(shape, layout, layer, states, split, stages, knobs)


def _layer(dtype: str, quant: str, attention: str, dropout: bool) -> dict[str, Any]:
    """Arguments of `layer_activations`."""
    size = element_bytes(dtype)
    return {
        "element_bytes": size, "input_bytes": _QUANTISED_BYTES if quant else size,
        "fused": attention == "fused", "dropout": dropout,
    }  # fmt: skip


def _used(
    shape: TransformerShape, layout: Layout | Layouts, layer: dict[str, Any], states: ModelStates,
    split: str, stages: int | None, knobs: MemoryKnobs,
) -> MemoryUse:  # fmt: skip
    """Memory on the stages of one layout, or on those of columns where the peak may be."""
    if isinstance(layout, Layout):
        layout.check(shape, strict=False)
        stage = np.arange(layout.pp)
        return _StageMemory(shape, layout.columns, stage, split, layer, knobs).use(states)
    columns = Layouts(*(column[..., None] for column in layout))
    stage = _stages(shape, layout, stages)
    priced = array_module(*layout).minimum(stage, columns.pp - 1)
    found = _StageMemory(shape, columns, priced, split, layer, knobs).use(states)
    return MemoryUse(*(part * (stage < columns.pp) for part in found))


def _check_knobs(knobs: MemoryKnobs) -> None:
    """`InputError` for a knob that is no number of zero or more; arrays are let through.

    Not when knobs are made: JAX makes them of its own things.
    """
    check_kind("knobs", knobs, MemoryKnobs)
    for field in dataclasses.fields(knobs):
        value = getattr(knobs, field.name)
        if not isinstance(value, np.ndarray | jax.Array):
            check_number(f"{field.name} of memory's knobs", value, zero=True)


def in_flight(
    schedule: Array, pp: Array, vp: Array, micro_batches: Array, stage: Array
) -> tuple[Array, Array]:
    """Micro-batches that a rank holds of its own stage, and of the one besides that a second pipe
    or a folded one has; else 0.
    """
    xp = array_module(schedule, pp, vp, micro_batches, stage)
    own, second = 0.0, 0.0
    for code, name in enumerate(SCHEDULES):
        here = schedule == code
        if xp is np and not np.any(here):
            continue
        held = KINDS[name].in_flight(*map(floats, (stage, pp, micro_batches, vp)))
        if code in FORWARDS_FIRST:
            # without stages it is gradient accumulation: a backward pass follows each forward pass
            held = xp.where(pp == 1, 1.0, held)
        if code in FOLDED:  # of both chunks as many
            second = xp.where(here, held, second)
        if code in TWO_PIPES:
            half = xp.minimum(pp, micro_batches) / 2
            down, up = xp.minimum(pp - stage, half), xp.minimum(stage + 1, half)
            second = xp.where(here, held * up / (down + up), second)
            held = held * down / (down + up)
        own = xp.where(here, held, own)
    return own, second


def memory_of(
    config: TransformerConfig, layouts: Layout | Layouts, knobs: MemoryKnobs | None = None
) -> MemoryUse:
    """Memory of a config's model as its framework runs it, in one layout or columns of them."""
    states = model_states(config.dtype, config.optimizer, config.gradient_bytes)
    trained = config.trained_share
    weight = config.gathered_bytes if config.adapters else states.weight
    states = ModelStates(weight, states.gradient * trained, states.optimizer * trained)
    layer = _layer(config.dtype, config.quant, config.attention, config.dropout)
    knobs = MemoryKnobs() if knobs is None else knobs
    return _used(config.shape, layouts, layer, states, config.stage_split, None, knobs)


def _stages(shape: TransformerShape, layouts: Layouts, stages: int | None) -> Array:
    """Indices of the stages to price, [N, S] or [S]."""
    xp, pp = array_module(*layouts), layouts.pp
    if stages is not None:
        return np.arange(stages)
    if len(shape.layer_kinds) > 1:
        if xp is not np:
            raise InputError(
                f"layers of {shape.name} are of several kinds: under JAX, give the number of"
                " `stages` there may be"
            )
        return np.arange(np.max(pp))
    outer = [0 * pp, pp - 1]
    twice = one_of(layouts.schedule, TWO_PIPES + FOLDED)
    if xp is np and not np.any(twice):
        return xp.stack(outer, -1)
    # Layers of a worker's two stages and its micro-batches are linear in its place between these;
    # the other half mirrors them
    extra = shape.depth % pp
    fewer = xp.minimum(extra, pp - extra)
    between = [xp.clip(place, 0, pp - 1) for place in (fewer - 1, fewer, pp // 2 - 1)]
    return xp.stack(outer + between, -1)


@dataclasses.dataclass(frozen=True)
class _StageMemory:
    """Memory of columns [N, 1] (or numbers) on the stages of some indices [N, S] or [S]."""

    shape: TransformerShape
    x: Layouts
    stage: Array
    split: str
    layer: dict[str, Any]  # arguments of `layer_activations`
    knobs: MemoryKnobs

    def use(self, states: ModelStates) -> MemoryUse:
        """All of it, for some bytes per parameter."""
        x, knobs = self.x, self.knobs
        uneven = self.split != "even" and array_module(*x) is np
        if uneven and np.any(one_of(x.schedule, TWO_PIPES)):
            raise InputError(
                "chimera's stages are split evenly over both directions, and dualpipe's, got split"
                f" {self.split!r}"
            )
        dense, experts = self._parameters()
        expert_shards = array_module(*x).maximum(
            x.expert_data_ranks * x.shard_ranks / x.data_ranks, 1
        )
        of_dense = sharded_bytes(dense, states, x.zero, x.shard_ranks)
        of_experts = sharded_bytes(experts, states, x.zero, expert_shards)
        kept = [one + other for one, other in zip(of_dense, of_experts, strict=True)]
        activations, workspace = self._activations()
        workspace = knobs.workspace * (workspace + self._gathered(states)) + 0.0 * self.stage
        return MemoryUse(
            weights_bytes=knobs.weights * kept[0], gradients_bytes=knobs.gradients * kept[1],
            optimizer_bytes=knobs.optimizer * kept[2], activations_bytes=activations,
            embedding_head_bytes=self._embedding_and_head(), workspace_bytes=workspace,
            overhead_bytes=knobs.fixed_bytes + 0.0 * self.stage,
        )  # fmt: skip

    @property
    def _cuts(self) -> Array:
        """Stages that the layers are cut into."""
        return self.x.pp * (1 + one_of(self.x.schedule, FOLDED))

    def _layers(self, stage: Array) -> list[Array]:
        """Layers of each kind on a stage."""
        shape = self.shape
        return layers_by_kind(shape.layer_order, self._cuts, stage, self.split, shape.head_layers)

    def _pieces(self) -> list[tuple[Array, Array, Array]]:
        """What a rank holds: (stage, micro-batches in flight, 1 or 0); of some schedules two."""
        x = self.x
        xp = array_module(*x, self.stage)
        own, second = in_flight(x.schedule, x.pp, x.vp, x.accumulation, self.stage)
        first = (self.stage, own, 1.0)
        twice = one_of(x.schedule, TWO_PIPES + FOLDED)
        if xp is np and not np.any(twice):
            return [first]
        return [first, (self._cuts - 1 - self.stage, second, xp.where(twice, 1.0, 0.0))]

    def _rank_parameters(self, part: counts.ParameterCounts) -> tuple[Array, Array]:
        """ParameterCounts of one rank of some that are shared: (dense, of experts)."""
        x = self.x
        return counts.rank_shares(part, self.shape.key_heads, x.tp, x.ep, x.expert_tp)

    def _parameters(self) -> tuple[Array, Array]:
        """ParameterCounts of one rank of each stage: (dense, of experts)."""
        x, shape = self.x, self.shape
        xp = array_module(*x, self.stage)
        dense, experts = 0.0, 0.0
        first, last = counts.embedding(shape), counts.head(shape)
        tied = shape.tied and shape.head in ("lm", "mlm")
        shared = counts.ParameterCounts(vocab=first.vocab if tied else 0)
        for stage, _, held in self._pieces():
            for kind, layers in zip(shape.layer_kinds, self._layers(stage), strict=True):
                one = self._rank_parameters(kind.parameters)
                dense, experts = dense + held * layers * one[0], experts + held * layers * one[1]
            dense = dense + held * xp.where(stage == 0, self._rank_parameters(first)[0], 0.0)
            at_last = stage == self._cuts - 1
            dense = dense + held * xp.where(at_last, self._rank_parameters(last)[0], 0.0)
            # else the last stage lies where the first one, or that of the other pipe, lies
            copied = at_last & (x.pp > 1) & (one_of(x.schedule, TWO_PIPES + FOLDED) == 0)
            dense = dense + held * xp.where(copied, self._rank_parameters(shared)[0], 0.0)
        return dense, experts

    def _activations(self) -> tuple[Array, Array]:
        """Bytes kept for backward passes, and those of one recomputed layer and of receiving."""
        x, total, knobs = self.x, 0.0, self.knobs
        xp = array_module(*x, self.stage, *vars(knobs).values())
        kinds = self.shape.layer_kinds
        by_kind = [layer_activations(self.shape, x, kind, **self.layer) for kind in kinds]
        for stage, batches, held in self._pieces():
            for one, layers in zip(by_kind, self._layers(stage), strict=True):
                total = total + held * layers * batches * one.kept(x.recompute, knobs)
        again = by_kind[0].recomputed(x.recompute, knobs)
        for one in by_kind[1:]:
            again = xp.maximum(again, one.recomputed(x.recompute, knobs))
        return total, again + xp.where(x.pp > 1, 2 * by_kind[0].input, 0.0)

    def _gathered(self, states: ModelStates) -> Array:
        """ZeRO-3: whole weights of this layer and the next, whole gradients of one."""
        x = self.x
        kinds = self.shape.layer_kinds
        largest = max((kind.parameters for kind in kinds), key=lambda one: one.total)
        dense, experts = self._rank_parameters(largest)
        whole = (2 * self.layer["element_bytes"] + states.gradient) * (dense + experts)
        return array_module(*x).where((x.zero >= 3) & (x.shard_ranks > 1), whole, 0.0)

    def _embedding_and_head(self) -> Array:
        """Before the first and after the last layer."""
        x, shape, knobs = self.x, self.shape, self.knobs
        xp = array_module(*x, self.stage, *vars(knobs).values())
        e, h = self.layer["element_bytes"], shape.hidden
        between = xp.where(x.sequence_parallel > 0, x.tp, 1)
        source = x.micro_batch * shape.seq / x.cp
        tokens = source
        if shape.decoder_layers:
            tokens = x.micro_batch * (shape.decoder_seq or shape.seq) / x.cp
        rows = {"classes": x.micro_batch, "none": 0.0}.get(shape.head, tokens)
        logits = rows * shape.predicted_share * shape.vocab / x.tp
        stale = knobs.stale_bytes * xp.where((x.pp == 1) & (x.accumulation > 1), 1.0, 0.0)
        per_head = e * tokens * h * (2 / between + knobs.head)
        per_head = per_head + (e + knobs.loss_bytes + stale) * logits
        per_embedding = e * source * h * knobs.embedding
        if self.layer["dropout"]:
            # a mask of one byte each
            per_embedding = per_embedding + source * h / between
        total = 0.0
        for stage, batches, held in self._pieces():
            total = total + held * xp.where(stage == 0, batches * per_embedding, 0.0)
            # the others' last stage has one micro-batch at a time in its loss
            on_last = xp.where(one_of(x.schedule, FORWARDS_FIRST), batches, 1.0) * per_head
            total = total + held * xp.where(stage == self._cuts - 1, on_last, 0.0)
        return total
