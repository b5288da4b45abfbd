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
import math
from collections.abc import Mapping
from typing import Any

from hybridperf.io import InputError
from hybridperf.training.steps.full_row import size_columns
from hybridperf.training.steps.row_layout import layout_columns
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.layout import ORDER

Facts = dict[str, Any]

RANK_ORDERS = ("tp cp dp pp", "tp cp pp dp")
# facts of which none is 0 where a file gives it; batches over all may be -1, as the others say
COUNTS = frozenset({
    "hidden", "heads", "layers", "vocab", "kv_heads", "key_groups", "head_dim", "seq", "mlp_ffn",
    "tp", "tp_plain", "tp_sequence", "pp", "cp", "ep", "expert_tp", "vp", "chunks", "chunk_layers",
    "stage_layers", "copies", "dp_copies", "micro_batch", "accumulation", "pass_batch", "passes",
    "pipe_batches",
})  # fmt: skip
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
    def row(self) -> dict[str, Any]:
        """The row of `steps` that asks for this step."""
        s, x = self.shape, self.layout
        return {
            **({"model": self.model} if self.model else size_columns(s)),
            "seq": s.seq, "gpu": self.gpu or None, "system": self.system or None,
            "gpus_per_node": self.gpus_per_node, **layout_columns(x),
            "precision": self.precision, "framework": self.framework,
        }  # fmt: skip

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
            "sequence_parallel": x.sequence_parallel,
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


def layout_of(x: Facts, gpus: int, depth: int) -> Layout:
    """The layout of so many ranks that facts of a launch file mean.

    Args:
        x: facts; those that it leaves out have been given their framework's defaults.
        gpus: ranks that the file starts.
        depth: layers of the model.

    Raises:
        InputError: where degrees do not divide, or a step is none of ours.
    """
    tp = x.get("tp") or x["tp_plain"] * x["tp_sequence"]
    pp, cp, ep = x["pp"], x.get("cp", 1), x.get("ep", 1)
    if gpus % (tp * pp * cp):
        raise InputError(
            f"expected tp x pp x cp to divide the {gpus} GPUs that are started, got {tp} x {pp} x"
            f" {cp}; mend the degrees or the number of nodes"
        )
    dp = gpus // (tp * pp * cp)
    dp_shard = _dp_shard(x, dp, ep)
    zero, shards = _zero(x, dp, cp, dp_shard)
    micro_batch, accumulation = _batches(x, dp, pp, gpus)
    kind = KINDS.get(x.get("schedule", ""))
    folded = pp > 1 and kind is not None and kind.folded
    vp = x.get("chunks") or (depth // (pp * x["chunk_layers"]) if x.get("chunk_layers") else 1)
    vp = 2 if folded else vp
    expert_tp = x.get("expert_tp") or tp
    layout = Layout(
        tp=tp, pp=pp, vp=vp, dp=dp, cp=cp, ep=ep, micro_batch=micro_batch,
        sequence_parallel=tp > 1 and bool(x.get("sequence_parallel", x.get("tp_sequence", 1) > 1)),
        accumulation=accumulation, zero=zero, expert_tp=None if expert_tp == tp else expert_tp,
        shard_ranks=None if shards == dp * cp or not zero else shards, recompute=x["recompute"],
        schedule="1f1b" if pp == 1 else "interleaved" if vp > 1 and not folded else x["schedule"],
    )  # fmt: skip
    layout.check_numbers()
    return layout.replace(order=_order(layout, x.get("rank_order", RANK_ORDERS[0])))


def _dp_shard(x: Facts, dp: int, ep: int) -> int:
    """Data ranks that share weights, by whichever facts say it; -1 stands for all that are left."""
    given = x.get("dp_shard", x["dp_shard_rest"] * ep if "dp_shard_rest" in x else None)
    copies = x.get("dp_copies", 1)
    if given is None:
        return 1
    found = int(dp // copies if given < 0 else given)
    if found * copies != dp:
        raise InputError(
            f"expected replicas x shards to be the {dp} data ranks that the other degrees leave,"
            f" got {copies} x {found}; mend either"
        )
    return found


def _zero(x: Facts, dp: int, cp: int, dp_shard: int) -> tuple[Any, int]:
    """(ZeRO stage, ranks that share a shard set)."""
    named = x["zero"]
    zero = (3 if x["pp"] == 1 else 2) if named == "fsdp" else int(named)
    if zero >= 2 and ("dp_shard" in x or "dp_shard_rest" in x):
        shards = dp_shard * cp
    else:
        copies = int(x.get("copies", 1))
        if copies < 1 or dp * cp % copies:
            raise InputError(
                f"expected a number of optimizer instances that divides the {dp * cp} data ranks,"
                f" got {copies}"
            )
        shards = dp * cp // copies
    return (zero, shards) if shards > 1 else (0, 1)


def _batches(x: Facts, dp: int, pp: int, gpus: int) -> tuple[int, int]:
    """(micro-batch, micro-batches), by whichever facts say them."""
    whole = max(x.get("global_batch") or 0, 0)  # -1: as the others say
    pass_batch = x.get("pass_batch")
    if "device_batch" in x:
        pass_batch = round(x["device_batch"] * gpus / dp, 9)
    if pass_batch is None:
        micro_batch = x["micro_batch"]
        return micro_batch, int(x.get("accumulation") or _quotient(whole, dp * micro_batch))
    passes = int(x.get("passes") or (_quotient(whole, dp * pass_batch) if whole else 1))
    if pp == 1:
        return _whole(pass_batch), passes
    if passes != 1:
        raise InputError(
            f"expected a pipeline that is filled once a step, got {passes} times; rows of steps"
            " have one pass of all micro-batches: give them as the local batch"
        )
    if (accumulation := x.get("pipe_batches")) is None:
        return x["micro_batch"], _quotient(pass_batch, x["micro_batch"])
    return _quotient(pass_batch, accumulation), int(accumulation)


def _quotient(whole: Any, part: Any) -> int:
    if not whole or whole % part:
        raise InputError(
            f"expected batches that divide, got {whole} over {part}; mend the global, local or"
            " micro-batch"
        )
    return int(whole // part)


def _whole(batch: float) -> int:
    if batch < 1 or batch != int(batch):
        raise InputError(f"expected a micro-batch of whole samples, got {batch:g}; mend the batch")
    return int(batch)


def _wide(layout: Layout) -> tuple[str, ...]:
    return tuple(one for one in layout.order if one != "ep" and getattr(layout, one) > 1)


def _rank_order(layout: Layout) -> str:
    wide = _wide(layout)
    alike = (one for one in RANK_ORDERS if wide == tuple(d for d in one.split() if d in wide))
    return next(alike, " ".join(wide))


def _order(layout: Layout, rank_order: str) -> tuple[str, ...]:
    """The order as a plan writes it: that of the dimensions of several ranks, then the others."""
    wide = tuple(one for one in rank_order.split() if getattr(layout, one) > 1)
    if wide == _wide(layout):
        return ORDER
    return (*wide, *(one for one in ORDER if one not in wide))


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two sets of settings agree where both speak, numbers by their value."""
    return all(_same(value, other[key]) for key, value in one.items() if key in other)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(float(one), float(other), rel_tol=1e-9)
    return bool(one == other)
