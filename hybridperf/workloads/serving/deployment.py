"""How a model is served: which GPUs share what, in which number formats, by which engine.

    GPUs of an engine = tp x pp x attention ranks

Each of `attention_dp` ranks has sequences, cache and attention's weights of its own, split over
`tp` GPUs; experts are shared by all of them, `expert_tp` times `expert_ep`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from hybridperf.hardware import DTYPE_BYTES, canonical_dtype
from hybridperf.io import InputError
from hybridperf.ops.moe import BALANCED
from hybridperf.ops.quantise import SCHEMES, known_scheme
from hybridperf.workloads.transformer.fields import check_fields
from hybridperf.workloads.transformer.shape import TransformerShape


@dataclasses.dataclass(frozen=True)
class Deployment:
    """One engine that serves a model."""

    shape: TransformerShape
    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    expert_ep: int = 1  # ranks that experts are shared out to; the rest of the GPUs split each
    # schemes of `ops/quantise.py`: of products; of experts, empty: as the others; of attention's
    # own products and of what all tokens take besides, empty: as the others
    quant: str = "bfloat16"
    expert_quant: str = ""
    attention_quant: str = ""
    kv_dtype: str = "bf16"
    framework: str = ""  # vllm, sglang, trtllm: whose kernels run; empty: any
    max_sequences: int = 1024  # that run at once, on each attention rank
    # decoding steps as CUDA graphs, or kernel by kernel
    launches: Literal["graph", "eager"] = "graph"
    # tokens that a draft proposes in a step (by the model's own further head, as in multi-token
    # prediction), and the chance that each is taken where those before it are
    drafted: int = 0
    acceptance: float = 0.0
    cached_share: float = 0.0  # of prompt tokens, found in the cache of prefixes
    lora_rank: int = 0
    distribution: str = BALANCED  # of tokens over experts

    def __post_init__(self) -> None:
        """`InputError`, one sentence, for what no engine has."""
        check_fields(self, "a deployment")
        for name in ("quant", "expert_quant", "attention_quant"):
            known_scheme(getattr(self, name))
        canonical_dtype(self.kv_dtype)
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
        """That a sequence makes in a step: its own, and those drafted that are taken, up to the
        first that is not: 1 + a + a^2 + ...
        """
        return sum(self.acceptance**at for at in range(self.drafted + 1))

    def of_experts(self) -> str:
        """The scheme of experts."""
        return self.expert_quant or self.quant

    def of_attention(self) -> str:
        """The scheme of attention's products."""
        return self.attention_quant or self.quant

    def nodes(self, ranks: int, per_node: int) -> int:
        """Nodes that so many GPUs lie on."""
        return -(-ranks // per_node)


def is_blackwell(device: str) -> bool:
    """Whether a device has Blackwell's kernels of narrow formats, by its name."""
    return device.startswith(("b", "gb"))


def weight_bytes(scheme: str) -> float:
    """Bytes of a weight in a scheme."""
    return SCHEMES[scheme].weight_bytes if scheme else DTYPE_BYTES["bf16"]
