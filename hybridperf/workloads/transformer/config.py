"""A training step of a Transformer: the model, its layout, and how a framework runs it."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec, canonical_dtype
from hybridperf.io import InputError
from hybridperf.ops.moe import BALANCED, known_distribution
from hybridperf.ops.quantise import known_scheme, scheme_dtype
from hybridperf.workloads.transformer import fields
from hybridperf.workloads.transformer import framework as frameworks
from hybridperf.workloads.transformer.groups import Span
from hybridperf.workloads.transformer.kernels import Kernels
from hybridperf.workloads.transformer.layout import Layout, Layouts, shares_sequence
from hybridperf.workloads.transformer.shape import TransformerShape, layers_by_kind

_DTYPES = ("fp32", "tf32", "fp16", "bf16")
# What a field of a config does not decide which kernels run on what (`kernel_fields`), but
#   sizes     that of all, by what keys say of it themselves
#   once      what happens once a step
#   message   a message from stage to stage
#   row       what the composition hides behind what
_ENTERS = {part: {"enters": part} for part in ("sizes", "once", "message", "row")}


# in place of a field's value: what its framework does, found when it is made
_AS_FRAMEWORK: Any = None


def _as_framework(enters: str) -> Any:
    """The same of a field that enters other keys."""
    return dataclasses.field(default=_AS_FRAMEWORK, metadata=_ENTERS[enters])


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """A Transformer's training step: the model, its layout, and how a framework runs it.

    What is not given is as its framework has it (`framework.defaults`), and `assumed` says which
    fields those are; a framework that is not given is the one that is assumed everywhere.
    """

    # the model's sizes, from `hp.load_shape`
    shape: TransformerShape = dataclasses.field(metadata=_ENTERS["sizes"])
    # default: one rank
    layout: Layout = dataclasses.field(default_factory=Layout, metadata=_ENTERS["sizes"])
    # of activations and of the weights that layers read; of a framework that multiplies in 8 bits
    # where a device can, and of devices without bf16: `run_by`
    dtype: str = _AS_FRAMEWORK
    # scheme in which layers multiply ("fp8", "fp8_block", "mxfp8", "nvfp4"); empty: in `dtype`
    quant: str = ""
    gpus_per_node: int = dataclasses.field(default=8, metadata=_ENTERS["sizes"])
    # one kernel, or scores written to memory
    attention: Literal["fused", "unfused"] = _AS_FRAMEWORK
    # version of fused attention, FlashAttention 1 or 2; empty: as attention was measured
    attention_kernel: Literal["", "flash1", "flash2", "sdpa"] = _AS_FRAMEWORK
    # tokens are sent to each of their experts, or once to each node that holds any of them
    expert_messages: Literal["copies", "nodes"] = _AS_FRAMEWORK
    # keys and values of context parallelism travel block by block, or all at once
    context_messages: Literal["gather", "ring"] = _AS_FRAMEWORK
    # how evenly a router fills the experts: balanced, or power_law_A (`ops/moe.py`)
    routing: str = BALANCED
    grouped_experts: bool = _AS_FRAMEWORK  # one kernel for all experts of a rank, not one for each
    framework: str = ""  # whose kernels are launched and whose habits count; "": assumed
    # rank of adapters beside attention's products, which alone are trained (LoRA, Hu et al., arXiv
    # 2106.09685); 0: all weights are trained
    adapters: int = 0
    dropout: bool = _AS_FRAMEWORK
    fused_loss: bool = _AS_FRAMEWORK  # one kernel per direction, not one per operation
    # the vocabulary is padded to a multiple of tp times this
    vocab_multiple: int = _AS_FRAMEWORK
    optimizer: Literal["adam", "lamb", "sgd"] = _as_framework("once")
    # bytes of one gradient between ranks and in the buffer; a framework without a habit: as `dtype`
    gradient_bytes: float = _AS_FRAMEWORK
    # bytes of gradients that are reduced together
    bucket_bytes: float = _as_framework("once")
    # gradients are reduced during the last micro-batch's backward pass
    overlap_gradients: bool = _as_framework("once")
    # ZeRO-3's weights are gathered during the layer before, its gradients scattered behind
    overlap_shards: bool = _as_framework("row")
    # weights that were updated in shards are gathered during the next step's first forward pass
    overlap_weights: bool = _as_framework("once")
    # weights of products in 8 bits travel so: Megatron's switch of that name
    fp8_param_gather: bool = _AS_FRAMEWORK
    # a stage computes while its result travels to the next
    overlap_sends: bool = _as_framework("row")
    # tensor-parallel ranks send a part each to the next stage and gather it there (Megatron)
    scatter_gather: bool = _as_framework("message")
    # what recomputing repeats: Megatron's blocks, or PyTorch's checkpoints of ops (`passes.py`)
    checkpoints: Literal["blocks", "ops"] = _AS_FRAMEWORK
    # "cost" weighs the LM head as layers
    stage_split: Literal["even", "cost"] = _as_framework("once")

    def __post_init__(self) -> None:
        if not isinstance(self.shape, TransformerShape):
            hint = ""
            if isinstance(self.shape, str):
                hint = f"hp.load_shape({self.shape!r}) gives that of a published model"
            fields.check_kind("shape", self.shape, TransformerShape, hint)
        fields.check_kind("layout", self.layout, Layout)
        self.layout.check_numbers()
        if self.framework:
            fields.check_word("framework", self.framework, frameworks.framework_names())
        self._settle()
        fields.check_fields(self)
        if canonical_dtype(self.dtype) not in _DTYPES:
            raise InputError(
                f"dtype is that of activations, one of {', '.join(_DTYPES)}, got {self.dtype};"
                ' quant="fp8" multiplies in 8 bits'
            )
        known_scheme(self.quant)
        known_distribution(self.routing)
        if self.adapters and self.shape.latent is not None:
            raise InputError(f"adapters of latent attention are not modelled ({self.shape.name})")
        fields.check_number("bucket_bytes", self.bucket_bytes, infinite=True)
        fields.check_number("gradient_bytes", self.gradient_bytes)

    def _settle(self) -> None:
        """Give each field that has no value its framework's."""
        open_fields = [name for name in _SETTLED if getattr(self, name) is _AS_FRAMEWORK]
        if not self.framework:
            open_fields.append("framework")
        x = self.layout
        object.__setattr__(self, "_layout", x)  # as it was given
        if open_fields or x.sequence_parallel is None:
            alike = Layout(tp=min(x.tp, 2), cp=min(x.cp, 2), schedule=x.schedule)  # what matters
            found = _defaults(self.framework, self.dtype, self.quant, self.shape, alike)
            for name in open_fields:
                object.__setattr__(self, name, found[name])
            if x.sequence_parallel is None:
                needed = bool(self.shape.experts) and x.expert_tp == 1
                shares = shares_sequence(found, self.shape, x.tp, x.cp, needed)
                object.__setattr__(self, "layout", x.replace(sequence_parallel=shares))
        object.__setattr__(self, "_assumed", frozenset(open_fields))

    @property
    def assumed(self) -> frozenset[str]:
        """Names of the fields that nobody gave, and that are as the framework has them."""
        return frozenset(self.__dict__["_assumed"])

    @staticmethod
    def run_by(
        framework: str, shape: TransformerShape, layout: Layout | None = None, *,
        device: DeviceSpec | None = None, **own: Any,
    ) -> TransformerConfig:  # fmt: skip
        """The step as a framework runs it on a device, which decides the precision.

        Args:
            framework: name of the framework, such as "nanotron".
            shape: the model.
            layout: how the step is spread over ranks; None: one rank.
            device: whose number formats its precision is of; None: bf16.
            own: fields of `TransformerConfig` that replace the framework's habits.

        Raises:
            InputError: when the framework is unknown or a field is not valid.
        """
        fields.check_word("framework", framework, tuple(frameworks.framework_habits()))
        said = own.get("dtype"), own.get("quant", "")
        found = frameworks.defaults(framework, device=device, dtype=said[0], quant=said[1])
        precision = {"dtype": found["dtype"], "quant": found["quant"]}
        return TransformerConfig(
            shape, layout or Layout(), framework=framework, **(precision | own)
        )

    def replace(self, **changes: Any) -> TransformerConfig:
        """The same step with other settings; what was assumed is settled anew."""
        names = (field.name for field in dataclasses.fields(self))
        said = {name: getattr(self, name) for name in names if name not in self.assumed}
        said["layout"] = self.__dict__.get("_layout", self.layout)
        return TransformerConfig(**(said | changes))

    def with_layout(self, layout: Layout, gpus_per_node: int) -> TransformerConfig:
        """The same step with a layout that was checked: ten times as quick as `replace`."""
        if layout.sequence_parallel is None:
            layout = self.replace(layout=layout).layout
        other = object.__new__(TransformerConfig)
        known = {"layout": layout, "_layout": layout, "gpus_per_node": gpus_per_node}
        other.__dict__.update(self.__getstate__(), template=self.template, **known)
        return other

    @functools.cached_property
    def template(self) -> TransformerConfig:
        """The step that this one is `with_layout`: one object for all its layouts."""
        return self

    def __hash__(self) -> int:
        """Of what configs of a table differ by most, once: thousands a second are looked up."""
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.layout, self.dtype, self.quant, self.framework))

    def __getstate__(self) -> dict[str, Any]:
        """The fields: in another process words have another hash."""
        apart = ("_hash", "template")
        return {name: value for name, value in self.__dict__.items() if name not in apart}

    # sizes
    # ----------------------------------------------------------------------------------------------

    @property
    def element_bytes(self) -> float:
        return DTYPE_BYTES[canonical_dtype(self.dtype)]

    @functools.cached_property
    def product_dtype(self) -> str:
        """Number format in which products of layers multiply."""
        return scheme_dtype(self.dtype, self.quant)

    @property
    def tokens(self) -> float:
        """Of a micro-batch, before any of it is shared out; the decoder's where there is one."""
        return float(self.layout.micro_batch * self.shape.seq)

    @property
    def decoder_tokens(self) -> float:
        """Of a micro-batch in the stack that ends in the head."""
        return float(self.layout.micro_batch * (self.shape.decoder_seq or self.shape.seq))

    @property
    def cell_sizes(self) -> tuple[float, ...]:
        """Whose logs corrections of blocks depend on (`model/adapted_steps.py`)."""
        return self.shape.hidden, self.layout.tp, self.tokens / self.layout.cp, self.shape.seq

    @property
    def reduced_bytes(self) -> float:
        """Of one gradient as ranks exchange it."""
        return float(self.gradient_bytes)

    @property
    def gathered_bytes(self) -> float:
        """Of one weight as shards are gathered; those of embeddings and norms are taken along."""
        return 1.0 if self.fp8_param_gather and self.quant else self.element_bytes

    @property
    def trained_share(self) -> float:
        """Of the weights, those that are trained."""
        if not self.adapters:
            return 1.0
        s = self.shape
        widths = 2 * s.hidden + s.query_width + s.key_width + s.value_width + s.context_width
        return self.adapters * widths * s.depth / s.parameters

    @property
    def exchanged_bytes(self) -> float:
        """Of gradients as ranks exchange them, for each weight, trained or not."""
        return self.reduced_bytes * self.trained_share

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding in memory."""
        multiple = self.vocab_multiple * self.layout.tp
        return -(-self.shape.vocab // multiple) * multiple

    @property
    def remarks(self) -> tuple[str, ...]:
        """What runs and is seldom what one wants, one sentence each."""
        again = self.layout.recompute == "selective" and self.checkpoints == "blocks"
        if again and self.attention == "fused":
            return ("selective recomputation saves nothing: fused attention keeps no scores",)
        return ()

    @property
    def least_flops(self) -> float:
        """FLOPs of products on each rank in a step, recomputed ones too; fused attention skips what
        a causal mask hides.
        """
        layout, causal = self.layout, self.attention == "fused"
        of_token = self.shape.hardware_flops(1.0, layout.recompute, causal=causal)
        return layout.global_batch * self.shape.seq * of_token / layout.ranks

    # parts
    # ----------------------------------------------------------------------------------------------

    @property
    def layer_kernels(self) -> Kernels:
        """Pieces of layers, whose products may multiply in fewer bits."""
        return dataclasses.replace(
            self.kernels, quant=self.quant, attention_kernel=self.attention_kernel
        )

    @property
    def kernels(self) -> Kernels:
        """Pieces as this framework runs them."""
        dtype = canonical_dtype(self.dtype)
        framework = frameworks.framework_called(
            self.framework, self.quant, swiglu=self.shape.gated and not self.shape.biases
        )
        gradient_bytes, micro_batches = self.reduced_bytes, self.layout.accumulation
        return Kernels(dtype, framework, self.dropout, gradient_bytes, micro_batches)

    def group(self, dim: str) -> Span:
        """Ranks and nodes of a dimension's collectives."""
        return self.layout.group(dim, self.gpus_per_node)

    @property
    def experts_apart(self) -> bool:
        """Whether other ranks hold the same experts than hold the same of all else."""
        ep, expert_tp = self.layout.ep, self.layout.expert_tp
        return bool(self.shape.experts) and (ep > 1 or expert_tp not in (None, self.layout.tp))

    @property
    def has_peers(self) -> bool:
        """Whether other ranks hold some of a rank's weights, too: all, or its experts alone."""
        experts = self.experts_apart and self.group("expert_data").ranks > 1
        return self.layout.data_ranks > 1 or experts

    @property
    def hides_exchanges(self) -> bool:
        """Whether experts' messages of a forward and a backward pass run beside both of them."""
        return self.layout.kind.in_pairs and self.layout.ep > 1 and self.layout.cp == 1

    @property
    def stages(self) -> int:
        """Pieces that the layers are cut into: stages, each of `vp` chunks."""
        return self.layout.pp * self.layout.vp

    def layers_of(self, stage: int) -> tuple[int, ...]:
        """How many layers of each kind (`shape.layer_kinds`) lie on a stage, or chunk of one."""
        shape = self.shape
        of = (shape.layer_order, self.stages, stage, self.stage_split, shape.head_layers)
        return _layers_of(*of)


@functools.lru_cache(maxsize=4096)
def _layers_of(
    order: tuple[int, ...], stages: int, stage: int, split: str, head_layers: float
) -> tuple[int, ...]:
    return tuple(map(int, layers_by_kind(order, stages, stage, split, head_layers)))


_BUT_LAYOUT = operator.attrgetter(
    *(
        field.name
        for field in dataclasses.fields(TransformerConfig)
        if field.name not in ("layout", "gpus_per_node")
    )
)


class Configs(NamedTuple):
    """Many configs [N] in columns: what differs is their layout, of each of some templates."""

    templates: tuple[TransformerConfig, ...]  # any config of each, [T]
    of: np.ndarray  # int [N] whose template each has
    layouts: Layouts  # [N]

    @staticmethod
    def of_rows(configs: Sequence[TransformerConfig]) -> Configs:
        """Columns made of one config per row."""
        number: dict[int, int] = {}
        of = [number.setdefault(id(config.template), len(number)) for config in configs]
        some = dict(zip(reversed(of), reversed(configs), strict=True))  # the first of each
        alike: dict[Any, list[int]] = {}
        for at in range(len(number)):
            alike.setdefault(_BUT_LAYOUT(some[at]), []).append(at)
        which = np.empty(len(number), int)
        for one, those in enumerate(alike.values()):
            which[those] = one
        templates = tuple(some[those[0]] for those in alike.values())
        layouts = Layouts.of([config.layout for config in configs])
        return Configs(templates, which[np.array(of, int)], layouts)

    def each(self, value: Callable[[TransformerConfig], float]) -> np.ndarray:
        """A number of templates, whatever the layout, by row [N]."""
        return np.array([value(one) for one in self.templates], float)[self.of]

    @property
    def samples(self) -> np.ndarray:
        """Samples of a step [N], over all devices."""
        return self.layouts.global_batch.astype(float)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of a step [N], over all devices."""
        return self.samples * self.each(lambda one: one.shape.seq)


def fields_entering(*parts: str) -> tuple[str, ...]:
    """Fields of a config that decide which kernels run on what, and of those that enter some other
    parts of a step alone: "once", "message".
    """
    fields_ = dataclasses.fields(TransformerConfig)
    return tuple(one.name for one in fields_ if one.metadata.get("enters", "") in ("", *parts))


def config_fields(habits: Mapping[str, Any]) -> dict[str, Any]:
    """Those habits of a framework that are fields of a config."""
    names = {field.name for field in dataclasses.fields(TransformerConfig)}
    return {name: value for name, value in habits.items() if name in names}


# fields that a framework's habits settle
_SETTLED = tuple(
    field.name for field in dataclasses.fields(TransformerConfig) if field.default is _AS_FRAMEWORK
)


@functools.lru_cache(4096)
def _defaults(
    framework: str, dtype: str | None, quant: str, shape: TransformerShape, layout: Layout
) -> Mapping[str, Any]:
    return frameworks.defaults(framework, dtype=dtype, quant=quant, shape=shape, layout=layout)
