"""What a launch file says of a training step, in names that the frameworks' tables use.

A fact is a number, a word, yes or no, or None where it does not apply. Most are fields of a layout
or of a model; frameworks say some of them otherwise, which are facts, too:

    rank_order        tp cp dp pp, or whatever of these has several ranks, fastest first
    shards, copies    ranks that share a shard set, of dp x cp, and sets with the same content
    dp_shard          data ranks among these that share weights (ZeRO-2 and -3): shards / cp
    dp_copies         dp / dp_shard
    dp_shard_rest     dp_shard / ep
    passes            times that a rank begins from its first stage: its micro-batches, once under
                      a pipeline
    pass_batch        samples of one of them: a micro-batch, all of them under a pipeline
    device_batch      pass_batch of all replicas, over all ranks
    pipe_batches      micro-batches of a pipeline, None without one
    chunks, chunk_layers     vp, and the layers of a chunk, of an interleaved pipeline
    tp_plain, tp_sequence    tp without and with sequence parallelism
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hybridperf.workloads.transformer import Layout, TransformerShape

Facts = dict[str, Any]

RANK_ORDERS = ("tp cp dp pp", "tp cp pp dp")
_LATENT = ("query_rank", "kv_rank", "plain_dim", "rotary_dim", "value_dim")


@dataclasses.dataclass(frozen=True)
class LaunchedStep:
    """A step as a launch file describes it, and the machine that it is meant for."""

    shape: TransformerShape
    layout: Layout
    precision: str  # as rows of steps call it
    framework: str  # the same
    model: str  # name of the published model; "": of nobody's, its sizes count
    gpus_per_node: int
    gpu: str = ""
    system: str = ""

    @property
    def nodes(self) -> int:
        return self.layout.ranks // self.gpus_per_node

    @property
    def facts(self) -> Facts:
        x, shards = self.layout, self.layout.shard_ranks or self.layout.data_ranks
        shards = shards if x.zero else 1
        dp_shard = shards // x.cp if x.zero >= 2 and shards % x.cp == 0 else 1
        piped = x.pp > 1
        pass_batch = x.micro_batch * (x.accumulation if piped else 1)
        return model_facts(self.shape) | {
            "tp": x.tp, "pp": x.pp, "vp": x.vp, "dp": x.dp, "cp": x.cp, "ep": x.ep,
            "tp_plain": 1 if x.sequence_parallel else x.tp,
            "tp_sequence": x.tp if x.sequence_parallel else 1,
            "sequence_parallel": bool(x.sequence_parallel),
            "expert_tp": (x.expert_tp or x.tp) if self.shape.experts else None,
            "zero": x.zero, "shards": shards, "data_ranks": x.data_ranks,
            "copies": x.data_ranks // shards if x.zero else 1,
            "dp_shard": dp_shard, "dp_copies": x.dp // dp_shard,
            "dp_shard_rest": dp_shard // x.ep if dp_shard % x.ep == 0 else 1,
            "micro_batch": x.micro_batch, "accumulation": x.accumulation,
            "global_batch": x.global_batch, "passes": 1 if piped else x.accumulation,
            "pass_batch": pass_batch, "pipe_batches": x.accumulation if piped else None,
            "device_batch": pass_batch * x.dp / x.ranks,
            "chunks": x.vp if x.vp > 1 else None,
            "chunk_layers": self.shape.depth // (x.pp * x.vp) if x.vp > 1 else None,
            "stage_layers": self.shape.depth // x.pp if piped else None,
            "recompute": x.recompute, "schedule": x.schedule if piped else "none",
            "rank_order": _rank_order(x), "precision": self.precision,
            "framework": self.framework, "ranks": x.ranks, "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
        }  # fmt: skip


def model_facts(shape: TransformerShape) -> Facts:
    """Facts of a model alone, by its fields; a latent's are `latent_...`."""
    s = shape
    found = {name: getattr(s, name) for name in s.__dataclass_fields__ if name != "latent"}
    latent = {f"latent_{name}": getattr(s.latent, name, None) for name in _LATENT}
    dense = f"([0]*{s.dense_layers}+[1]*{s.layers - s.dense_layers})"
    return found | latent | {
        "depth": s.depth, "kv_heads": s.key_heads, "head_dim": None if s.latent else s.dim,
        "grouped_heads": s.key_heads != s.heads,
        "key_groups": None if s.key_heads == s.heads else s.key_heads,
        "untied": not s.tied, "no_biases": not s.biases, "latent": s.latent is not None,
        "qkv_biases_alone": s.qkv_biases is True and not s.biases,
        "experts": s.experts or None, "topk": s.topk or None, "shared_ffn": s.shared_ffn or None,
        "mlp_ffn": s.dense_ffn or s.ffn, "expert_ffn": s.ffn if s.experts else None,
        "expert_layers": dense if s.dense_layers else None,
        "longest": s.max_positions or s.seq,
    }  # fmt: skip


def _wide(layout: Layout) -> tuple[str, ...]:
    return tuple(one for one in layout.order if one != "ep" and getattr(layout, one) > 1)


def _rank_order(layout: Layout) -> str:
    wide = _wide(layout)
    alike = (one for one in RANK_ORDERS if wide == tuple(d for d in one.split() if d in wide))
    return next(alike, " ".join(wide))
