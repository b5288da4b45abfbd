"""Sizes of a Transformer: what parameter counts, FLOP counts, memory and layers are derived from.

Symbols of the literature: l `layers`, h `hidden`, a `heads`, s `seq`, V `vocab`. A GPT's layer has
12 h^2 weights: 4 h^2 in attention (queries, keys, values, output), 8 h^2 in an MLP of width 4 h.
What departs from that is a field of its own:

    fewer keys and values than queries (GQA, MQA)      kv_heads
    three matrices in the MLP instead of two           gated
    many MLPs of which a token takes a few             experts, topk, shared_ffn; dense_layers come
                                                       first and have one MLP
    keys and values of a small latent (DeepSeek)       latent
    layers with a window, a scan, or an MLP alone      mixers, window, scan
    a scan beside attention, a short convolution       mixers both, conv
    heads of another width where a layer has no window full_heads
    a second stack that looks at the first (T5)        decoder_layers
    patches of an image instead of words (ViT)         image, patch, channels; seq follows from them
    and norms that a sample's vector shifts and scales,
    text beside the image (DiT, Flux)                  diffusion; mixers joint, parallel
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, Self

from hybridperf.io import InputError
from hybridperf.workloads.transformer import fields

MIXERS = (
    "attention", "window", "picked", "condensed", "scan", "both", "conv", "mlp", "joint",
    "parallel",
)  # fmt: skip
SCANS = ("scan", "both")  # that have a scan
WITHOUT_ATTENTION = ("scan", "conv", "mlp")
COMPRESSING = ("picked", "condensed")  # whose keys beyond a window are compressed
_MOST_LAYERS = 100_000


@dataclasses.dataclass(frozen=True)
class Latent:
    """Widths of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    query_rank: int | None  # of the queries' latent; None: queries straight from the hidden state
    kv_rank: int  # width of the keys' and values' latent
    plain_dim: int  # of a head's queries and keys, without position
    rotary_dim: int  # and with; the key's is shared by all heads
    value_dim: int  # of a head's values
    # keys that a token attends to, picked by an indexer's scores (DeepSeek-V3.2); 0: all
    selected: int = 0
    index_heads: int = 0
    index_dim: int = 0

    def __post_init__(self) -> None:
        sparse = ("selected", "index_heads", "index_dim")
        fields.check_fields(self, "a latent")
        if len({bool(getattr(self, name)) for name in sparse}) > 1:
            raise InputError(
                f"sparse attention has all of {', '.join(sparse)}, or none, got {self.selected},"
                f" {self.index_heads}, {self.index_dim}"
            )


@dataclasses.dataclass(frozen=True)
class Compressed:
    """Attention of one head of keys, which are its values, to a window and to compressed keys
    beyond it; queries and results through narrow widths (DeepSeek-V4, `DeepseekV4Config` of
    Transformers).
    """

    query_rank: int  # of the queries' latent
    output_rank: int  # of what a group of heads gives
    output_groups: int
    picked_rate: int  # keys that are one where an indexer picks `selected` of them
    condensed_rate: int  # and where all are attended to
    selected: int
    index_heads: int
    index_dim: int

    def __post_init__(self) -> None:
        fields.check_fields(self, "a compressed attention")

    @property
    def output_width(self) -> int:
        return self.output_rank * self.output_groups

    def rate(self, mixer: str) -> int:
        """Keys that are one in a layer of a mixer."""
        return self.picked_rate if mixer == "picked" else self.condensed_rate

    def beyond(self, mixer: str, keys: float) -> float:
        """Compressed keys that a token attends to, of so many before it."""
        found = keys / self.rate(mixer)
        return min(found, float(self.selected)) if mixer == "picked" else found

    def pooled(self, mixer: str, dim: int) -> int:
        """Width of what is made of a token for its compressed key and for how much it counts there;
        where keys are picked they overlap, and the indexer's are made likewise.
        """
        return 4 * (dim + self.index_dim) if mixer == "picked" else 2 * dim


@dataclasses.dataclass(frozen=True)
class Scan:
    """A layer that carries a state of fixed size along the sequence in place of attending to it:
    Mamba-2's state-space duality (Dao and Gu, arXiv 2405.21060) and linear attention, which is the
    same with as many groups as heads, queries for its C, keys for its B and values for its x.
    """

    heads: int
    head_dim: int  # of the values (x, y)
    state: int  # of keys and queries (B, C): a head's state is head_dim x state
    groups: int  # of heads that share keys and queries
    conv: int = 0  # taps of the convolution before it; 0: none
    chunk: int = 256  # tokens within which it is computed as attention is
    gated: bool = True  # the result is multiplied by a gate of its width
    rates: int = 1  # numbers of a head and token besides: Mamba-2's step size
    # width between the two matrices that make a decay of each channel (Kimi Delta Attention, arXiv
    # 2510.26692), 0: a decay of each head; and between two that make the gate, 0: one makes it
    rank: int = 0
    gate_rank: int = 0

    def __post_init__(self) -> None:
        fields.check_fields(self, "a scan", zero=("rates",))
        if self.heads % self.groups:
            raise InputError(
                f"heads of a scan must be a multiple of its groups, got {self.heads}, {self.groups}"
            )

    @property
    def inner(self) -> int:
        """Width of the scan's values over all heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of its keys and queries together."""
        return 2 * self.groups * self.state

    @property
    def width(self) -> int:
        """Of all that is made of the hidden state."""
        gate = (self.gate_rank or self.inner) if self.gated else 0
        return self.inner + gate + self.rank + self.keys + self.rates * self.heads

    @property
    def raised(self) -> int:
        """Multiply-adds of the second matrices, of decays and of the gate."""
        return (self.rank + self.gate_rank) * self.inner

    @property
    def flops(self) -> float:
        """Multiply-adds of a token, chunk by chunk: keys with queries, their result and the chunk's
        state with values, and the next state.
        """
        in_chunk = self.chunk * (self.groups * self.state + self.inner)
        return float(in_chunk + 2 * self.inner * self.state)


@dataclasses.dataclass(frozen=True)
class Heads:
    """Attention's heads in layers that attend to all, where those with a window have others."""

    heads: int
    kv_heads: int
    head_dim: int
    keys_as_values: bool = False  # one product makes both

    def __post_init__(self) -> None:
        fields.check_fields(self, "full_heads")


@dataclasses.dataclass(frozen=True)
class Diffusion:
    """What a diffusion Transformer is told beside a noisy image: vectors of a sample, from which
    each layer makes what shifts, scales and gates its tokens (DiT, arXiv 2212.09748), and a text,
    whose tokens have weights of their own in `joint` layers (MMDiT, arXiv 2403.03206).

    A `parallel` layer has its attention and MLP beside each other behind one norm, their products
    joined (Flux: github.com/black-forest-labs/flux).
    """

    # widths of what two matrices each turn into a vector of the hidden width: frequencies of the
    # time step and of the guidance, a pooled prompt
    vectors: tuple[int, ...]
    classes: int = 0  # rows of a table of labels
    text_tokens: int = 0  # of a sample, among its seq
    text_width: int = 0  # of the text encoder's vectors

    def __post_init__(self) -> None:
        for width in self.vectors:
            fields.check_whole("a width in vectors of a diffusion", width)
        fields.check_fields(self, "a diffusion")
        if bool(self.text_tokens) != bool(self.text_width):
            raise InputError(
                "text of a diffusion has tokens and a width, or neither, got text_tokens"
                f" {self.text_tokens}, text_width {self.text_width}"
            )


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """One model's sizes; `TransformerShape` counts them."""

    name: str
    family: Literal["gpt", "llama", "bert", "t5", "vit", "moe", "dit"]
    hidden: int
    heads: int
    layers: int  # of the encoder where there is a decoder too
    ffn: int  # inner width of the MLP, of one expert where there are experts
    vocab: int  # rows of the embedding; a ViT's classes; numbers of a patch that a DiT gives
    # tokens of a sample; a ViT's patches and its class token; a DiT's patches and its text
    seq: int

    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: hidden / heads
    value_dim: int | None = None  # of a head's values; None: as its keys
    keys_as_values: bool = False  # one product makes both
    full_heads: Heads | None = None
    gated: bool = False  # MLP of three matrices: act(x W1) * (x W2), then W3
    tied: bool = True  # the head multiplies by the embedding's own matrix
    positions: Literal["learned", "rotary", "alibi", "relative", "none"] = "learned"
    max_positions: int | None = None  # rows of the learned table; None: seq
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norms_per_layer: int = 2
    norm_bias: bool | None = None  # None: layernorm has one
    biases: bool = True  # of every matrix of a layer
    qkv_biases: bool | None = None  # None: as `biases`
    head_bias: bool = False
    qk_norm: bool = False  # norms over head_dim of queries and keys, shared by the heads
    qk_norm_whole: bool = False  # of these norms: over all heads, on whatever ranks they are
    sinks: bool = False  # one learned logit per head
    gated_attention: bool = False  # the result times a gate, made as wide with the queries

    experts: int = 0  # 0: one MLP for all tokens
    topk: int = 0  # experts of a token
    # width that experts work on, between two products of all tokens' hidden states; 0: hidden
    expert_hidden: int = 0
    # experts are cut into so many groups, of which a token's lie in `topk_groups`; 0: anywhere
    expert_groups: int = 0
    topk_groups: int = 0
    router_bias: bool = False
    shared_ffn: int = 0  # width of the MLP all tokens take besides their experts
    dense_layers: int = 0  # first layers with one MLP of width dense_ffn
    dense_ffn: int = 0
    latent: Latent | None = None
    compressed: Compressed | None = None
    # copies of the hidden state that each half of a layer mixes (manifold-constrained
    # hyper-connections, arXiv 2512.24880); 0: one, to which results are added
    streams: int = 0
    # of hybrids what each layer has before its MLP: "attention", "window", "scan", "conv" (between
    # two gates), "both" (attention beside a scan); where some are an "mlp" the others have none. Of
    # a DiT: "joint", "parallel". Empty: attention in all
    mixers: tuple[str, ...] = ()
    window: int = 0  # tokens that a windowed layer attends to
    conv: int = 0  # taps of a convolving layer
    scan: Scan | None = None

    decoder_layers: int = 0  # each with attention to the encoder's output
    decoder_seq: int = 0  # 0: as seq
    relative_buckets: int = 32  # of relative positions, one set of values per stack

    token_types: int = 0  # segments of a BERT
    embedding_norm: bool = False
    pooler: bool = False  # a dense layer over the first token and BERT's next-sentence head
    head: Literal["lm", "mlm", "classes", "patches", "none"] = "lm"
    predicted_share: float = 1.0  # of the tokens, those that logits are computed of
    # tokens that one attends to, mean over tokens, where samples differ in length; 0: seq
    attended: int = 0

    diffusion: Diffusion | None = None
    image: int = 0  # side of a ViT's square input in pixels, of a DiT's in latents
    patch: int = 0
    channels: int = 3

    # parameters as published, "46702792704" or "175B"; what is left out of it, see `note`
    published: str = ""
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        """`InputError`, one sentence, for sizes that make no model."""
        fields.check_kind("name of a model", self.name, str)
        # a model of scans alone has no MLP
        no_mlp = ("ffn",) if set(self.mixers) == {"scan"} else ()
        fields.check_fields(self, self.name, zero=("relative_buckets", *no_mlp))
        share = f"predicted_share of {self.name}"
        fields.check_number(share, self.predicted_share)
        if self.predicted_share > 1:
            raise InputError(f"{share} must be at most 1, got {self.predicted_share}")
        self._check_mixers()
        self._check_together()

    def _check_mixers(self) -> None:
        for word in self.mixers:
            fields.check_word(f"mixer of {self.name}", word, MIXERS)
        if len(self.mixers) not in (0, self.layers) or (self.mixers and self.decoder_layers):
            raise InputError(
                f"mixers of {self.name} must name each of its {self.layers} layers in a single"
                f" stack, got {len(self.mixers)}"
            )
        told = self.diffusion
        needed = {
            "window": bool(self.window), "scan": self.scan is not None,
            "picked": self.compressed is not None, "condensed": self.compressed is not None,
            "both": self.scan is not None, "conv": bool(self.conv),
            "joint": told is not None and told.text_tokens > 0, "parallel": told is not None,
        }  # fmt: skip
        for word, given in needed.items():
            if word in self.mixers and not given:
                what = {"joint": "diffusion with a text", "parallel": "diffusion", "both": "scan"}
                what |= dict.fromkeys(COMPRESSING, "compressed")
                raise InputError(
                    f"{self.name} has layers with a {word}; give its {what.get(word, word)}"
                )

    def _check_together(self) -> None:
        most = max(self.layers, self.decoder_layers)
        if most > _MOST_LAYERS:  # each counts for itself
            raise InputError(f"layers of {self.name} must be {_MOST_LAYERS:,} or less, got {most}")
        if self.head_dim is None and self.latent is None and self.hidden % self.heads:
            raise InputError(
                f"hidden of {self.name} must be a multiple of its heads where head_dim is not"
                f" given, got hidden {self.hidden}, heads {self.heads}"
            )
        if self.heads % self.key_heads:
            raise InputError(
                f"heads of {self.name} must be a multiple of kv_heads, got heads {self.heads},"
                f" kv_heads {self.kv_heads}"
            )
        if bool(self.experts) != bool(self.topk) or self.topk > self.experts:
            raise InputError(
                f"topk of {self.name} must be 1 to its {self.experts} experts, 0 where it has none,"
                f" got {self.topk}"
            )
        if self.expert_hidden and not self.experts:
            raise InputError(
                f"expert_hidden of {self.name} is the width that experts work on, got"
                f" {self.expert_hidden} in a model without experts"
            )
        groups = self.expert_groups
        if (groups and self.experts % groups) or not bool(groups) <= self.topk_groups <= groups:
            raise InputError(
                f"expert_groups of {self.name} must divide its {self.experts} experts and"
                f" topk_groups be 1 to as many, got {groups} and {self.topk_groups}"
            )
        mixed = self.experts and self.dense_ffn
        if self.dense_layers > self.layers or (self.dense_layers and not mixed):
            raise InputError(
                f"dense_layers of {self.name} come first in a model with experts and have a"
                f" dense_ffn, got dense_layers {self.dense_layers} of {self.layers} layers, experts"
                f" {self.experts}, dense_ffn {self.dense_ffn}"
            )
        if (self.family == "dit") != (self.diffusion is not None):
            raise InputError(
                f"{self.name}: a model of family dit, and no other, has a diffusion, got family"
                f" {self.family}"
            )
        if self.diffusion is not None:
            whole = self.patch and not self.image % self.patch and not self.experts
            if not whole or self.image_tokens != (self.image // self.patch) ** 2:
                raise InputError(
                    f"{self.name}: a DiT's seq is (image / patch)^2 of whole patches and its text,"
                    f" and it has no experts, got image {self.image}, patch {self.patch}, seq"
                    f" {self.seq}"
                )
        if self.family == "vit":
            whole = self.patch and not self.image % self.patch
            if not whole or self.seq != (self.image // self.patch) ** 2 + 1:
                raise InputError(
                    f"{self.name}: a ViT's seq is (image / patch)^2 + 1 of whole patches, got image"
                    f" {self.image}, patch {self.patch}, seq {self.seq}"
                )

    # kinds of a family
    # ----------------------------------------------------------------------------------------------

    @property
    def norms_last(self) -> bool:
        """Whether a layer ends in its norm, so that none follows the last one."""
        return self.family == "bert"

    @property
    def both_ways(self) -> bool:
        """Whether tokens look at those after them, too; of two stacks the first one's."""
        return self.family in ("bert", "vit", "t5")

    # widths
    # ----------------------------------------------------------------------------------------------

    def of(self, mixer: str) -> Self:
        """The model with the heads that its layers with such a mixer have."""
        return self if self.full_heads is None or mixer != "attention" else self._full

    @functools.cached_property
    def _full(self) -> Self:
        assert self.full_heads is not None
        own = dataclasses.asdict(self.full_heads)
        return dataclasses.replace(self, full_heads=None, **own)

    @property
    def key_heads(self) -> int:
        """Number of key and value heads."""
        return self.kv_heads or self.heads

    @property
    def dim(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        latent = self.latent
        return self.heads * (latent.plain_dim + latent.rotary_dim if latent else self.dim)

    @property
    def key_width(self) -> int:
        return self.query_width if self.latent else self.key_heads * self.dim

    @property
    def value_width(self) -> int:
        latent, dim = self.latent, self.value_dim or self.dim
        return self.heads * latent.value_dim if latent else self.key_heads * dim

    @property
    def made_width(self) -> int:
        """Of keys and values together as products make them."""
        return self.key_width + (0 if self.keys_as_values else self.value_width)

    @property
    def context_width(self) -> int:
        """Width of attention's result, which the output matrix reads."""
        return self.heads * (self.latent.value_dim if self.latent else self.value_dim or self.dim)

    @property
    def core_dim(self) -> float:
        """Width of heads whose keys and values are alike, with as much work in scores and sums."""
        if self.latent:
            return (self.latent.plain_dim + self.latent.rotary_dim + self.latent.value_dim) / 2
        return (self.dim + self.value_dim) / 2 if self.value_dim else self.dim

    @property
    def image_tokens(self) -> int:
        """A sample's tokens without its text, which only a diffusion Transformer has apart."""
        return self.seq - (self.diffusion.text_tokens if self.diffusion else 0)

    @property
    def depth(self) -> int:
        """Layers of all kinds: what a pipeline cuts into stages."""
        return self.layers + self.decoder_layers
