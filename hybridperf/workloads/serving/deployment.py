"""How a model is served: which GPUs share what, in which number formats, by which engine.

    GPUs of an engine = tp x pp x attention ranks

Each of `attention_dp` ranks has sequences, cache and attention's weights of its own, split over
`tp` GPUs; experts are shared by all of them, `expert_tp` times `expert_ep`.

Bytes on each GPU, and how many tokens its cache holds beside them:

    cache = (usable share of the memory - weights - workspace) / bytes of a token

A token of latent attention is one vector for all heads, whole on each tensor-parallel GPU; layers
with a window keep that many tokens and no more, scans a state of fixed size per sequence.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec, canonical_dtype
from hybridperf.io import InputError
from hybridperf.io.namespace import Array
from hybridperf.ops.frameworks import serving_framework
from hybridperf.ops.moe import BALANCED
from hybridperf.ops.quantise import SCHEMES, known_scheme
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.fields import check_fields
from hybridperf.workloads.transformer.shape import TransformerShape
from hybridperf.workloads.transformer.sizes import COMPRESSING, SCANS, WITHOUT_ATTENTION


@dataclasses.dataclass(frozen=True)
class Deployment:
    """One engine that serves a model."""

    shape: TransformerShape
    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    expert_ep: int = 1  # ranks that experts are shared out to; the rest of the GPUs split each
    # schemes of `ops/quantise.py`: of products; of experts, empty: as the others; of attention's
    # own products and of what all tokens take besides, empty: as the others. A framework that keeps
    # one in a format of its own has that instead
    quant: str = "bfloat16"
    expert_quant: str = ""
    attention_quant: str = ""
    kv_dtype: str = ""  # empty: as the framework keeps the cache of a model of these schemes
    framework: str = ""  # vllm, sglang, trtllm: whose kernels run; empty: any
    max_sequences: int = 1024  # that run at once, on each attention rank
    # decoding steps as CUDA graphs, or kernel by kernel
    launches: Literal["graph", "eager"] = "graph"
    # tokens that a draft proposes in a step (by the model's own further head, as in multi-token
    # prediction), and the chance that each is taken where those before it are
    drafted: int = 0
    acceptance: float = 0.0
    # halves of a step's tokens take turns: one computes while the other's messages travel (SGLang's
    # two-batch overlap, vLLM's dual batch)
    two_batches: bool = False
    cached_share: float = 0.0  # of prompt tokens, found in the cache of prefixes
    lora_rank: int = 0
    distribution: str = BALANCED  # of tokens over experts
    # heads that share a cache read it once when they decode, or each by itself
    shares_cache: bool = True
    moe_backend: str = ""  # of TensorRT-LLM's experts, in its words; empty: its usual one

    def __post_init__(self) -> None:
        """`InputError`, one sentence, for what no engine has."""
        check_fields(self, "a deployment")
        if self.shape.head != "lm" or self.shape.decoder_layers:
            raise InputError(
                f"expected a model that makes one token after the other, a decoder, got"
                f" {self.shape.name}, which has none or an encoder, too; `hybridperf predict` times"
                " a pass of it"
            )
        for name in ("quant", "expert_quant", "attention_quant"):
            known_scheme(getattr(self, name))
        self._as_kept()
        for name in ("acceptance", "cached_share"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(
                    f"{name} of a deployment is a share from 0 to below 1, got"
                    f" {getattr(self, name)}"
                )
        heads = self.shape.heads
        if heads % self.tp:
            raise InputError(
                f"tp must divide the {heads} heads of {self.shape.name}, got {self.tp}; choose"
                " another, or more attention ranks"
            )
        if self.shape.experts and self.expert_ranks % self.expert_ep:
            raise InputError(
                f"expert_ep must divide the {self.expert_ranks} GPUs of a pipeline's stage, got"
                f" {self.expert_ep}"
            )
        if self.pp > self.shape.depth:
            raise InputError(
                f"pp must be at most the {self.shape.depth} layers of {self.shape.name}, got"
                f" {self.pp}"
            )

    def _as_kept(self) -> None:
        """The framework's own formats of weights and cache, for what is left to it."""
        framework = serving_framework(self.framework)
        for name in ("quant", "expert_quant"):
            scheme = getattr(self, name)
            object.__setattr__(self, name, framework.formats.get(scheme, scheme))
        usual = "bf16"
        if {self.quant, self.of_experts()} != {"bfloat16"}:
            usual = framework.kv if self.shape.experts else framework.kv_dense or framework.kv
        object.__setattr__(self, "kv_dtype", canonical_dtype(self.kv_dtype or usual))

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.attention_dp

    @property
    def expert_ranks(self) -> int:
        """GPUs that experts are spread over."""
        return self.tp * self.attention_dp

    @property
    def expert_tp(self) -> int:
        """GPUs that each expert is split over."""
        return self.expert_ranks // self.expert_ep

    @property
    def tokens_per_pass(self) -> float:
        """That a sequence makes in a step."""
        return float(tokens_per_pass(self.drafted, self.acceptance))

    def of_experts(self) -> str:
        """Quantisation scheme of the experts' weights."""
        return self.expert_quant or self.quant

    def of_attention(self) -> str:
        """The scheme of attention's products."""
        return self.attention_quant or self.quant

    def nodes(self, ranks: int, per_node: int) -> int:
        """Nodes that so many GPUs lie on."""
        return -(-ranks // per_node)


def tokens_per_pass(drafted: Array, acceptance: Array) -> Array:
    """That a sequence makes in a step: its own, and those drafted that are taken, up to the first
    that is not: 1 + a + a^2 + ... (Leviathan et al., ICML 2023).
    """
    return sum(acceptance**at * (at <= drafted) for at in range(int(np.max(drafted)) + 1))


def decodes_as_prompts(served: Deployment, device: DeviceSpec) -> bool:
    """Whether steps with prompts decode by the prompts' kernel, a block of queries for each head:
    where a framework calls one kernel for all tokens of a step, for caches of 16 bits.
    """
    grouped = served.shape.latent is None and served.shape.heads > served.shape.key_heads
    once = serving_framework(served.framework).decodes_as_prompts_on
    major = (device.compute_capability or (0, 0))[0]
    wide = DTYPE_BYTES[canonical_dtype(served.kv_dtype)] == DTYPE_BYTES["bf16"]
    return grouped and major in once and wide


def weight_bytes(scheme: str) -> float:
    """Bytes of a weight in a scheme."""
    return SCHEMES[scheme].weight_bytes if scheme else DTYPE_BYTES["bf16"]


# of a GPU's memory: 0.9 is vLLM's --gpu-memory-utilization and near it in the others; where weights
# leave little room people raise it. With 0.9 published deployments would not have started
USABLE = 0.93
WORKSPACE_BYTES = 3e9  # activations, CUDA graphs, communicators: assumed, 2 to 6 GB are told
# tokens of a step whose activations that is for; engines run a step of the most tokens they allow
# before they measure what is left for the cache (vLLM's `profile_run`)
_WORKSPACE_TOKENS = 8192.0
_STATE_BYTES = 4.0


@dataclasses.dataclass(frozen=True)
class ServingMemory:
    """Bytes of the fullest GPU: weights, and what tokens and sequences add."""

    weights: float
    token: float  # bytes of the cache for each token of a sequence
    sequence: float  # and for each sequence, however long
    step_token: float = 0.0  # of the activations of each token of a step
    workspace: float = WORKSPACE_BYTES

    def with_steps_of(self, tokens: float) -> ServingMemory:
        """Where a step has so many tokens at most."""
        more = max(tokens - _WORKSPACE_TOKENS, 0.0) * self.step_token
        return dataclasses.replace(self, workspace=WORKSPACE_BYTES + more) if more else self

    def _free(self, memory_bytes: float) -> float:
        return USABLE * memory_bytes - self.weights - self.workspace

    def cached_tokens(self, memory_bytes: float) -> float:
        """Tokens that the cache of an attention rank holds; below zero: the weights do not fit."""
        return self._free(memory_bytes) / max(self.token, 1e-9)

    def sequences(self, memory_bytes: float, tokens: float) -> float:
        """Sequences of so many tokens that an attention rank holds."""
        return max(self._free(memory_bytes), 0.0) / (self.token * tokens + self.sequence)

    def sent(self, prompt: float) -> float:
        """Bytes of a prompt's keys, to another engine."""
        return self.token * prompt + self.sequence

    def needed(self, sequences: float, tokens: float) -> float:
        """Bytes with so many sequences of so many tokens on an attention rank."""
        cache = sequences * (self.token * tokens + self.sequence)
        return self.weights + self.workspace + cache


def serving_memory(served: Deployment) -> ServingMemory:
    """Of one engine, by its shape and how it is shared out."""
    shape = served.shape
    layers = sum(kind.count * _weights(served, kind) for kind in shape.layer_kinds) / served.pp
    outer = (shape.embedding_parameters + shape.head_parameters) / served.tp * DTYPE_BYTES["bf16"]
    weights = layers + (outer if served.pp == 1 else outer / 2)
    token = sequence = 0.0
    for kind in shape.layer_kinds:
        each, state = _kept(served, kind)
        if kind.mixer == "window" and shape.compressed is None:
            sequence += kind.count * each * shape.window
        else:
            token += kind.count * each
        sequence += kind.count * state
    if served.drafted:
        token *= (shape.layers + 1) / shape.layers
        weights += _weights(served, shape.layer_kinds[-1])
    return ServingMemory(weights, token / served.pp, sequence / served.pp, _activations(served))


def _activations(served: Deployment) -> float:
    """Bytes of a token's vectors that lie beside each other in a step: the residual, what goes into
    a layer and what comes out, narrowed once, and the MLP's two inputs and their product.
    """
    shape, tp = served.shape, served.tp
    wide = max(
        3.0 * (kind.topk * kind.ffn / served.expert_tp if kind.experts else kind.ffn / tp)
        for kind in shape.layer_kinds
    )
    narrow = shape.hidden * weight_bytes(served.quant) * (served.quant != "bfloat16")
    return (3.0 * shape.hidden + wide) * DTYPE_BYTES["bf16"] + narrow


def _weights(served: Deployment, kind: LayerKind) -> float:
    own, tp = kind.parameters, served.tp
    attention, mlp = weight_bytes(served.of_attention()), weight_bytes(served.quant)
    kv = own.kv / min(tp, served.shape.key_heads)
    dense = (own.heads / tp + kv) * attention + own.whole * DTYPE_BYTES["bf16"]
    dense += own.ffn / tp * (attention if kind.experts else mlp)
    experts = (own.experts + own.experts_whole) / served.expert_ranks
    return dense + experts * weight_bytes(served.of_experts())


def _kept(served: Deployment, kind: LayerKind) -> tuple[float, float]:
    """(bytes of a token, of a sequence) in a layer's cache."""
    shape = served.shape.of(kind.mixer)
    each = DTYPE_BYTES[canonical_dtype(served.kv_dtype)]
    state = shape.conv * shape.hidden / served.tp * _STATE_BYTES if kind.mixer == "conv" else 0.0
    if kind.mixer in SCANS and (scan := shape.scan) is not None:
        state = scan.heads / served.tp * scan.head_dim * scan.state * _STATE_BYTES
    if kind.mixer in WITHOUT_ATTENTION:
        return 0.0, state
    if (told := shape.compressed) is not None:
        beyond = 0.0
        if kind.mixer in COMPRESSING:
            index = told.index_dim if kind.mixer == "picked" else 0
            beyond = (shape.dim + index) / told.rate(kind.mixer) * each
        return beyond, shape.window * shape.dim * each
    if shape.latent is not None:
        latent = shape.latent
        return (latent.kv_rank + latent.rotary_dim + latent.index_dim) * each, state
    return 2.0 * max(shape.key_heads / served.tp, 1.0) * shape.core_dim * each, state
