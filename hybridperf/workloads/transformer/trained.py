"""A layer as a step that trains runs it: what of it hangs on the config, for the list in
`layers.py`; all else is `Kernels`.
"""

from __future__ import annotations

from hybridperf.io import InputError
from hybridperf.workloads.transformer import experts
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.counts import LayerKind
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.kernels import Split
from hybridperf.workloads.transformer.passes import Passes
from hybridperf.workloads.transformer.sizes import COMPRESSING


class Trained:
    """The layers of a config, a `Mode` of the list."""

    def __init__(self, config: TransformerConfig, mixer: str = ""):
        self.config, self.shape = config, config.shape.of(mixer)
        # ranks of tensor parallelism beyond the heads of keys and values hold one each, as those of
        # QKVParallelLinear in vLLM do; Megatron-Core's TransformerConfig wants as many or more
        sharing = min(config.layout.tp, self.shape.heads)
        self.key_copies = max(sharing / self.shape.key_heads, 1.0)
        self.kernels = self.mlp_kernels = config.layer_kernels
        self.packed_qkv = does(config.framework, "packed_qkv")

    def adapter(self, name: str, tokens: float, i: float, o: float, split: Split) -> Passes:
        """Beside a linear layer, where adapters alone are trained."""
        rank = self.config.adapters
        return self.kernels.adapter(name, tokens, i, o, rank, split) if rank else Passes()

    def rotated(self, tokens: float) -> Passes:
        """Queries and keys by their positions."""
        if self.shape.positions != "rotary":
            return Passes()
        into = self.kernels.rope("queries", tokens, self.shape.query_width)
        return into + self.kernels.rope("keys", tokens, self.key_copies * self.shape.key_width)

    def latents(self, tokens: float) -> Passes:
        """Down to small vectors on every rank, and up to the heads."""
        s, kernels, latent = self.shape, self.kernels, self.shape.latent
        assert latent is not None
        rank = latent.query_rank
        if rank is None:
            into = kernels.linear("queries", tokens, s.hidden, s.query_width, split="outputs")
        else:
            into = kernels.linear("queries down", tokens, s.hidden, rank)
            into += kernels.norm("query norm", "rmsnorm", tokens, rank)
            into += kernels.linear("queries up", tokens, rank, s.query_width, split="outputs")
        down = latent.kv_rank + latent.rotary_dim
        up = s.heads * (latent.plain_dim + latent.value_dim)
        into += kernels.linear("keys and values down", tokens, s.hidden, down)
        into += kernels.norm("key norm", "rmsnorm", tokens, latent.kv_rank)
        into += kernels.linear("keys and values up", tokens, latent.kv_rank, up, split="outputs")
        into += kernels.rope("queries", tokens, s.heads * latent.rotary_dim)
        return into + kernels.rope("keys", tokens, s.heads * latent.rotary_dim)

    def attended(self, kind: LayerKind, tokens: float) -> Passes:
        """Attention of a sequence to itself, or to a window of it."""
        s, kernels, batch = self.shape, self.kernels, self.config.layout.micro_batch
        causal, length = kind.cross or not s.both_ways, tokens / batch
        if s.latent is not None:
            if self.config.attention != "fused":
                raise InputError(
                    f'unfused latent attention is not modelled ({s.name}): take attention="fused"'
                )
            return kernels.fused_attention(batch, length, s.heads, s.core_dim, s.heads, causal)
        # as many samples of one length as attend to as much
        samples, attended = (tokens / s.attended, s.attended) if s.attended else (batch, length)
        into = Passes()
        if self.config.attention == "fused":
            window = float(s.window) if kind.mixer == "window" and s.window < length else 0.0
            packs = does(self.config.framework, "packs_attention")
            keys = self.key_copies * (s.key_width + s.value_width)
            width = s.query_width * (1 + s.gated_attention) + keys
            for what in ("in another order", "joined") if packs else ():
                into += kernels.copy(f"queries, keys and values {what}", tokens, width)
            if kind.mixer in COMPRESSING and (told := s.compressed):
                # as a window of as many keys as a token looks at; the indexer's scores are half of
                # an attention to the compressed keys
                seen = s.window + told.beyond(kind.mixer, length / 2)
                window = seen if seen < length else 0.0
                if kind.mixer == "picked":
                    index = (samples, attended, told.index_heads, told.index_dim / 2, 1.0)
                    keys = attended / 2 / told.picked_rate
                    into += kernels.fused_attention(*index, causal=False, keys=keys)
            sizes = (samples, attended, s.heads, s.core_dim, s.key_heads)
            into += kernels.fused_attention(*sizes, causal, window=window)
            return into + kernels.copy("context", tokens, s.context_width) if packs else into
        if s.key_heads != s.heads:
            heads = self.key_copies * s.key_heads
            into += kernels.repeated("keys and values", tokens, s.heads, heads, 2 * s.core_dim)
        into += kernels.unfused_attention(samples, attended, attended, s.heads, s.core_dim)
        return into + kernels.copy("context", tokens, s.context_width)

    def crossed(self, tokens: float) -> Passes:
        """Attention of a decoder's sequence to the encoder's output."""
        s, kernels, batch = self.shape, self.kernels, self.config.layout.micro_batch
        length = tokens / batch
        if self.config.attention == "fused":
            sizes = (batch, length, s.heads, s.dim, s.key_heads)
            return kernels.fused_attention(*sizes, causal=False, keys=float(s.seq))
        core = kernels.unfused_attention(batch, length, s.seq, s.heads, s.dim)
        return core + kernels.copy("context", tokens, s.context_width)

    def scanned(self, tokens: float) -> Passes:
        """Of chunks of Q tokens, heads of P values and states of N: states of chunks (P x Q times
        Q x N), handed on from chunk to chunk in 4 bytes, scores of the keys (Q x N times N x Q,
        once a group), results (Q x (Q + N) times (Q + N) x P). The backward pass makes scores and
        states again.
        """
        kernels, scan = self.kernels, self.shape.scan
        assert scan is not None
        chunk = min(float(scan.chunk), tokens / self.config.layout.micro_batch)
        chunks, dim, state = tokens / chunk, float(scan.head_dim), float(scan.state)

        def product(name: str, batch: float, m: float, n: float, k: float) -> Passes:
            return kernels.state_product(name, chunks * batch, m, n, k)

        states = product("states of chunks", scan.heads, dim, state, chunk)
        states += kernels.handed_on("states handed on", chunks * scan.heads, dim * state)
        scores = product("scores of keys", scan.groups, chunk, chunk, state)
        results = product("results of chunks", scan.heads, chunk, dim, chunk + state)
        return states + scores + results + Passes((), (*states.forward, *scores.forward))

    def experts(self, kind: LayerKind, tokens: float) -> Passes:
        """Router, tokens sorted by expert, the experts, and each token's results added up; experts
        of another width than the layers' between two products.
        """
        s, kernels = self.shape, self.kernels
        width = s.expert_hidden or s.hidden
        into = self.config.kernels.linear(
            "router", tokens, s.hidden, kind.experts, bias=s.router_bias
        )
        into += experts.routed(kernels, tokens, kind)
        if s.expert_hidden:
            into += kernels.linear("experts' width", tokens, s.hidden, width)
        into += kernels.moved("tokens in order", tokens * kind.topk, width)
        into += experts.handled(kernels, tokens * kind.topk, width)
        into += self.expert_products(kind, tokens)
        into += kernels.weighted("results added up", tokens, width, kind.topk)
        if s.expert_hidden:
            into += kernels.linear("layer's width", tokens, width, s.hidden)
        return into

    def expert_products(self, kind: LayerKind, tokens: float) -> Passes:
        """All that a layer does of whose experts are spread over ranks."""
        layout, routing = self.config.layout, self.config.routing
        cut = layout.expert_tp is None or layout.expert_tp == layout.tp
        return experts.expert_products(self.shape, self.kernels, kind, tokens, cut, routing)

    def residual(
        self, name: str, tokens: float, bias: bool, kind: LayerKind | None = None
    ) -> Passes:
        """What came past a branch is added to its result."""
        del kind
        return self.kernels.residual(name, tokens, self.shape.hidden, bias)
