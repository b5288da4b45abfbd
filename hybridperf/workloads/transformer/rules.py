"""What makes a layout legal for a model, each rule with its sentence.

A rule looks at columns of layouts (`Layouts`), so one list serves a single layout (`check`) and a
search space (`legal`). Three grades: `never` cannot be run by anyone; `strict` is refused by
Megatron and DeepSpeed but run by others with unequal shares; `note` runs, but is seldom what one
wants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hybridperf.io import InputError
from hybridperf.io.namespace import array_module
from hybridperf.workloads.transformer.codes import CHIMERA, INTERLEAVED, RECOMPUTE, SCHEDULES
from hybridperf.workloads.transformer.fields import check_flag, check_whole

if TYPE_CHECKING:
    from hybridperf.workloads.transformer.layout import Layout, Layouts
    from hybridperf.workloads.transformer.shape import TransformerShape


class Rule(NamedTuple):
    """One rule: `holds(shape, layouts)` is true or false (arrays where the layouts are), `says` is
    the sentence where it is broken.
    """

    name: str
    grade: Literal["never", "strict", "note"]
    holds: Callable[[TransformerShape, Layouts], Any]
    says: Callable[[TransformerShape, Layouts], str]


def _divides(part: Any, whole: Any) -> Any:
    return whole % part == 0


RULES = (
    Rule(
        "heads",
        "strict",
        lambda s, x: _divides(x.tp, s.heads),
        lambda s, x: f"heads must be divisible by tp, got {s.heads} heads, tp {x.tp}",
    ),
    Rule(
        "kv_heads",
        "strict",
        lambda s, x: _divides(x.tp, s.key_heads) | _divides(s.key_heads, x.tp),
        lambda s, x: (
            f"kv_heads must be divisible by tp or divide it, got {s.key_heads} kv_heads, tp {x.tp}"
        ),
    ),
    Rule(
        "ffn",
        "strict",
        lambda s, x: _divides(x.tp, s.ffn),
        lambda s, x: f"ffn must be divisible by tp, got ffn {s.ffn}, tp {x.tp}",
    ),
    Rule(
        "layers",
        "never",
        lambda s, x: x.pp <= s.depth,
        lambda s, x: f"pp must not exceed the layers, got pp {x.pp}, {s.depth} layers",
    ),
    Rule(
        "equal stages",
        "note",
        lambda s, x: _divides(x.pp, s.depth),
        lambda s, x: f"{s.depth} layers on pp {x.pp} make unequal stages",
    ),
    Rule(
        # the embedding or the head, or both, may stand for a layer (Megatron's
        # account_for_embedding_in_pipeline_split)
        "chunks",
        "never",
        lambda s, x: (x.vp == 1) | (-s.depth % (x.pp * x.vp) <= 2),
        lambda s, x: (
            f"interleaving needs layers divisible by pp x vp, got {s.depth} layers, pp {x.pp}, vp"
            f" {x.vp}"
        ),
    ),
    Rule(
        "interleaved",
        "never",
        lambda s, x: (x.vp > 1) == (x.schedule == INTERLEAVED),
        lambda s, x: (
            f"the interleaved schedule, and no other, has vp of 2 or more, got vp {x.vp}; choose"
            " schedule and vp together"
        ),
    ),
    Rule(
        "interleaved stages",
        "never",
        lambda s, x: (x.vp == 1) | (x.pp > 1),
        lambda s, x: f"interleaving needs a pipeline of 2 stages or more, got pp {x.pp}, vp {x.vp}",
    ),
    Rule(
        "interleaved rounds",
        "never",
        lambda s, x: (x.vp == 1) | _divides(x.pp, x.accumulation),
        lambda s, x: (
            f"interleaving needs accumulation divisible by pp, got accumulation {x.accumulation},"
            f" pp {x.pp}"
        ),
    ),
    Rule(
        "chimera stages",
        "never",
        lambda s, x: (x.schedule != CHIMERA) | (x.pp % 2 == 0),
        lambda s, x: f"chimera needs an even number of stages, got pp {x.pp}",
    ),
    Rule(
        "chimera micro-batches",
        "never",
        lambda s, x: (x.schedule != CHIMERA) | (x.accumulation % 2 == 0),
        lambda s, x: (
            "chimera needs an even number of micro-batches, half for each direction, got"
            f" accumulation {x.accumulation}"
        ),
    ),
    Rule(
        "chimera units",
        "never",
        lambda s, x: (
            (x.schedule != CHIMERA) | (x.accumulation <= x.pp) | _divides(x.pp, x.accumulation)
        ),
        lambda s, x: (
            "chimera needs up to pp micro-batches or a multiple of pp, got accumulation"
            f" {x.accumulation}, pp {x.pp}"
        ),
    ),
    Rule(
        "full pipeline",
        "note",
        lambda s, x: (x.schedule == CHIMERA) | (x.accumulation >= x.pp - 1),
        lambda s, x: (
            f"accumulation {x.accumulation} leaves stages of pp {x.pp} empty: a pipeline needs pp -"
            " 1 micro-batches or more"
        ),
    ),
    Rule(
        "sequence",
        "never",
        lambda s, x: _divides(x.cp, s.seq),
        lambda s, x: f"seq must be divisible by cp, got seq {s.seq}, cp {x.cp}",
    ),
    Rule(
        "balanced sequence",
        "note",
        lambda s, x: (x.cp == 1) | _divides(2 * x.cp, s.seq),
        lambda s, x: (
            f"causal attention is balanced over cp {x.cp} only where seq is divisible by"
            f" {2 * x.cp}, got {s.seq}"
        ),
    ),
    Rule(
        "sequence parallel",
        "strict",
        lambda s, x: (x.sequence_parallel == 0) | _divides(x.tp * x.cp, s.seq),
        lambda s, x: (
            f"sequence parallelism needs seq divisible by tp x cp, got seq {s.seq}, tp {x.tp}, cp"
            f" {x.cp}"
        ),
    ),
    Rule(
        "no experts",
        "never",
        lambda s, x: (x.ep == 1) | (s.experts > 0),
        lambda s, x: f"ep needs a model with experts, got ep {x.ep} for {s.name}",
    ),
    Rule(
        "experts",
        "never",
        lambda s, x: _divides(x.ep, s.experts),
        lambda s, x: f"experts must be divisible by ep, got {s.experts} experts, ep {x.ep}",
    ),
    Rule(
        "expert ranks",
        "never",
        lambda s, x: _divides(x.ep * x.expert_tp, x.tp * x.cp * x.dp),
        lambda s, x: (
            f"ep x expert_tp must divide tp x cp x dp, got {x.ep} x {x.expert_tp} of"
            f" {x.tp * x.cp * x.dp}; expert_tp 1 leaves experts whole"
        ),
    ),
    Rule(
        "expert cut",
        "never",
        lambda s, x: (x.expert_tp == 1) | (x.expert_tp == x.tp),
        lambda s, x: f"expert_tp must be 1 or tp, got expert_tp {x.expert_tp}, tp {x.tp}",
    ),
    Rule(
        "expert regrouping",
        "never",
        lambda s, x: (x.expert_tp == x.tp) | (x.sequence_parallel == 1) | (s.experts == 0),
        lambda s, x: (
            f"whole experts (expert_tp 1) under tp {x.tp} need sequence_parallel, which deals the"
            " tokens out"
        ),
    ),
    Rule(
        "shards",
        "never",
        lambda s, x: _divides(x.shard_ranks, x.dp * x.cp),
        lambda s, x: (
            f"shard_ranks must divide dp x cp, got shard_ranks {x.shard_ranks}, dp {x.dp}, cp"
            f" {x.cp}"
        ),
    ),
    Rule(
        "pipeline and ZeRO",
        "note",
        lambda s, x: (x.zero < 2) | (x.pp == 1),
        lambda s, x: (
            f"ZeRO-{x.zero} communicates for every micro-batch under pp {x.pp}; DeepSpeed"
            " refuses it"
        ),
    ),
    Rule(
        "padded vocabulary",
        "note",
        lambda s, x: (x.tp == 1) | _divides(x.tp, s.vocab),
        lambda s, x: f"a vocabulary of {s.vocab} is padded to a multiple of tp {x.tp}",
    ),
)


def check(
    shape: TransformerShape,
    layout: Layout,
    gpus: int | None,
    gpus_per_node: int | None,
    global_batch: int | None,
    strict: bool,
) -> list[str]:
    """Notes on one layout; `InputError` for the first rule it breaks."""
    check_numbers(layout)
    notes, columns = [], layout.columns
    _check_cluster(layout, gpus, gpus_per_node, global_batch)
    for rule in RULES:
        if bool(rule.holds(shape, columns)):
            continue
        sentence = rule.says(shape, columns)
        if rule.grade == "never" or (rule.grade == "strict" and strict):
            raise InputError(sentence)
        notes.append(sentence)
    if gpus_per_node is not None and (found := layout.group("tp", gpus_per_node)).nodes > 1:
        notes.append(f"tensor-parallel groups of {found.ranks} ranks lie on {found.nodes} nodes")
    return notes


def legal(shape: TransformerShape, layouts: Layouts, strict: bool = True) -> Any:
    """True where a layout breaks no rule, for columns of layouts."""
    xp = array_module(*layouts)
    held = [
        rule.holds(shape, layouts)
        for rule in RULES
        if rule.grade == "never" or (strict and rule.grade == "strict")
    ]
    result = held[0]
    for one in held[1:]:
        result = xp.logical_and(result, one)
    return result


def check_numbers(layout: Layout) -> None:
    """`InputError` for fields that are no layout of any model."""
    for name in (
        "tp",
        "pp",
        "vp",
        "dp",
        "cp",
        "ep",
        "expert_tp",
        "shard_ranks",
        "micro_batch",
        "accumulation",
    ):
        value = getattr(layout, name)
        if value is None and name in ("expert_tp", "shard_ranks"):
            continue
        check_whole(name, value)
    for what, product in (
        ("tp x cp x dp x pp", layout.ranks),
        ("micro_batch x accumulation x dp", layout.global_batch),
    ):
        check_whole(what, product)
    check_flag("sequence_parallel", layout.sequence_parallel)
    for name, allowed in (("recompute", RECOMPUTE), ("schedule", SCHEDULES)):
        if getattr(layout, name) not in allowed:
            raise InputError(
                f"{name} must be one of {', '.join(allowed)}, got {getattr(layout, name)!r}"
            )
    if isinstance(layout.zero, bool | float) or layout.zero not in (0, 1, 2, 3):
        raise InputError(f"zero must be 0, 1, 2 or 3, got {layout.zero!r}")
    if layout.shard_ranks is not None and not layout.zero:
        raise InputError(
            "shard_ranks says over how many ranks zero shards; with zero 0 it must be None, got"
            f" {layout.shard_ranks}"
        )
    if layout.sequence_parallel and layout.tp == 1:
        raise InputError(
            "sequence_parallel shares what lies between the matrices over tp ranks; it needs tp of"
            " 2 or more, got tp 1"
        )


def _check_cluster(
    layout: Layout, gpus: int | None, gpus_per_node: int | None, global_batch: int | None
) -> None:
    if gpus is not None and layout.ranks != gpus:
        product = (
            f"tp {layout.tp} x cp {layout.cp} x dp {layout.dp} x pp {layout.pp} = {layout.ranks}"
        )
        raise InputError(
            f"tp x cp x dp x pp must be the number of GPUs, got {product} for {gpus} GPUs"
        )
    if (
        gpus is not None
        and gpus_per_node is not None
        and gpus > gpus_per_node
        and gpus % gpus_per_node
    ):
        below, above = (
            gpus // gpus_per_node * gpus_per_node,
            -(-gpus // gpus_per_node) * gpus_per_node,
        )
        raise InputError(
            f"expected whole nodes of {gpus_per_node} GPUs, got {gpus} GPUs; {below} or {above}"
            " would be whole"
        )
    if global_batch is not None and layout.global_batch != global_batch:
        product = (
            f"micro_batch {layout.micro_batch} x accumulation {layout.accumulation} x dp"
            f" {layout.dp} = {layout.global_batch}"
        )
        raise InputError(
            f"micro_batch x accumulation x dp must be the global batch, got {product} for a global"
            f" batch of {global_batch}"
        )
