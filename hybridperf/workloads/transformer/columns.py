"""Many layouts in columns of one length, for formulas that price a search space at once (NumPy, or
JAX: they are a pytree), and what makes them legal for a model, each rule with its sentence. What
each field means: `layout.py`.

A rule looks at columns, so one list serves a single layout (`Layout.check`) and a search space
(`legal`). Three grades: `never` cannot be run by anyone; `strict` is refused by Megatron and
DeepSpeed but run by others with unequal shares; `note` runs, but is seldom what one wants.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from hybridperf.io import InputError
from hybridperf.io.namespace import Array, array_module
from hybridperf.workloads.schedules import NAMES as SCHEDULES
from hybridperf.workloads.schedules.names import KINDS
from hybridperf.workloads.schedules.order import Need, ScheduleKind
from hybridperf.workloads.transformer.shape import TransformerShape

RECOMPUTE = ("none", "selective", "full")
NONE, SELECTIVE, FULL = range(len(RECOMPUTE))
INTERLEAVED = SCHEDULES.index("interleaved")
CHIMERA = SCHEDULES.index("chimera")
# codes of schedules that are alike in something
FORWARDS_FIRST, TWO_PIPES, FOLDED, SPLITS_BACKWARD, IN_PAIRS, BY_FILL = (
    tuple(code for code, kind in enumerate(KINDS.values()) if alike(kind))
    for alike in (
        lambda kind: kind.forwards_first, lambda kind: kind.pipes > 1, lambda kind: kind.folded,
        lambda kind: kind.splits_backward, lambda kind: kind.in_pairs,
        lambda kind: kind.pipes == 1 and not kind.paced,
    )
)  # fmt: skip


def one_of(schedule: Array, codes: tuple[int, ...]) -> Array:
    """Whether a schedule is among some, by its code."""
    return sum(schedule == code for code in codes) > 0


class Layouts(NamedTuple):
    """Columns of layouts, [N] each or of shapes that broadcast; words are codes: their places."""

    tp: Array
    sequence_parallel: Array  # 0 or 1
    pp: Array
    vp: Array
    dp: Array
    cp: Array
    ep: Array
    expert_tp: Array
    zero: Array
    shard_ranks: Array
    micro_batch: Array
    accumulation: Array
    recompute: Array  # index into RECOMPUTE
    schedule: Array  # index into SCHEDULES

    @property
    def ranks(self) -> Array:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def data_ranks(self) -> Array:
        """Ranks that hold the same weights: replicas, and the parts of a sequence."""
        return self.dp * self.cp

    @property
    def expert_data_ranks(self) -> Array:
        """Ranks that hold the same experts."""
        return self.tp * self.cp * self.dp / (self.ep * self.expert_tp)

    @property
    def global_batch(self) -> Array:
        return self.micro_batch * self.accumulation * self.dp

    @staticmethod
    def of(layouts: Iterable[Any]) -> Layouts:
        """Columns [N] of N `Layout`s."""
        rows = list(map(_FIELDS, layouts))
        if not rows:
            return Layouts(*(np.zeros(0, np.int64) for _ in Layouts._fields))
        x: dict[str, Any] = dict(zip(Layouts._fields, zip(*rows, strict=True), strict=True))
        data_ranks = map(operator.mul, x["dp"], x["cp"])
        x["expert_tp"] = [own or tp for own, tp in zip(x["expert_tp"], x["tp"], strict=True)]
        x["shard_ranks"] = [own or n for own, n in zip(x["shard_ranks"], data_ranks, strict=True)]
        x["sequence_parallel"] = list(map(bool, x["sequence_parallel"]))
        x["recompute"] = [_CODES[word] for word in x["recompute"]]
        x["schedule"] = [_CODES[word] for word in x["schedule"]]
        return Layouts(**{name: np.array(column, np.int64) for name, column in x.items()})


_FIELDS = operator.attrgetter(*Layouts._fields)
_CODES = {word: code for words in (RECOMPUTE, SCHEDULES) for code, word in enumerate(words)}


class Rule(NamedTuple):
    """`holds(shape, layouts)` is true or false, an array where the layouts are."""

    grade: Literal["never", "strict", "note"]
    holds: Callable[[TransformerShape, Layouts], Array]
    sentence: str  # where it is broken: of the shape `s`, the layout `x`, its schedule's `name`


def _divides(part: Array, whole: Array) -> Array:
    return whole % part == 0


def _size_rule(code: int, kind: ScheduleKind, need: Need) -> Rule:
    def holds(_: TransformerShape, x: Layouts) -> Array:
        others = x.schedule != code
        if array_module(x.schedule) is np and np.all(others):
            return others
        return others | need.holds(x.pp, x.accumulation)

    words = need.words.format(p="{x.pp}", m="{x.accumulation}")
    return Rule("never", holds, f"{kind.name} needs {words}")


# what schedules ask of stages and micro-batches
# mixers of layers that look at tokens before by more than attention
_OF_THOSE_BEFORE = {"scan", "both", "conv", "picked", "condensed"}
_SIZES = [
    _size_rule(code, kind, need) for code, kind in enumerate(KINDS.values()) for need in kind.needs
]
# fmt: off
RULES = (
    Rule("strict", lambda s, x: _divides(x.tp, s.heads),
         "heads must be divisible by tp, got {s.heads} heads, tp {x.tp}"),
    Rule("strict", lambda s, x: _divides(x.tp, s.key_heads) | _divides(s.key_heads, x.tp),
         "kv_heads must be divisible by tp or divide it, got {s.key_heads} kv_heads, tp {x.tp}"),
    Rule("strict", lambda s, x: _divides(x.tp, s.ffn),
         "ffn must be divisible by tp, got ffn {s.ffn}, tp {x.tp}"),
    Rule("never", lambda s, x: x.pp <= s.depth,
         "pp must not exceed the layers, got pp {x.pp}, {s.depth} layers"),
    Rule("note", lambda s, x: _divides(x.pp, s.depth),
         "{s.depth} layers on pp {x.pp} make unequal stages"),
    # chunks may be unequal (Megatron-Core's pipeline_model_parallel_layout)
    Rule("never", lambda s, x: (x.vp == 1) | (s.depth >= x.pp * x.vp - 2),
         "interleaving needs a layer in each of pp x vp chunks, the embedding and the head counted,"
         " got {s.depth} layers, pp {x.pp}, vp {x.vp}"),
    Rule("never", lambda s, x: (x.vp > 1) == one_of(x.schedule, (INTERLEAVED, *FOLDED)),
         "the interleaved schedule, and no other, has vp of 2 or more, but zb_v and dualpipe_v have"
         " vp 2, got vp {x.vp}; choose schedule and vp together"),
    Rule("never", lambda s, x: (x.vp <= 2) | (x.schedule == INTERLEAVED),
         "schedules zb_v and dualpipe_v have vp 2, got vp {x.vp}"),
    Rule("never", lambda s, x: (x.vp == 1) | (x.pp > 1),
         "interleaving needs a pipeline of 2 stages or more, got pp {x.pp}, vp {x.vp}"),
    *_SIZES,
    Rule("never", lambda s, x: (one_of(x.schedule, SPLITS_BACKWARD) == 0) | (x.zero < 3),
         "schedule {name!r} with ZeRO-3 is not modelled: take zero 0, 1 or 2"),
    Rule("never", lambda s, x: (one_of(x.schedule, SPLITS_BACKWARD) == 0) | (x.recompute == NONE),
         "schedule {name!r} with recompute is not modelled: take recompute none"),
    Rule("note", lambda s, x: (x.schedule == CHIMERA) | (x.accumulation >= x.pp - 1),
         "accumulation {x.accumulation} leaves stages of pp {x.pp} empty: a pipeline needs pp - 1"
         " micro-batches or more"),
    Rule("never", lambda s, x: _divides(x.cp, s.seq),
         "seq must be divisible by cp, got seq {s.seq}, cp {x.cp}"),
    Rule("never", lambda s, x: (x.sequence_parallel == 0) | ("joint" not in s.mixers),
         "sequence parallelism of joint attention is not modelled: take sequence_parallel off"),
    Rule("never", lambda s, x: (x.cp == 1) | (not _OF_THOSE_BEFORE & {*s.mixers}),
         "context parallelism of a scan, a convolution or compressed keys is not modelled: take"
         " cp 1, got cp {x.cp}"),
    Rule("strict", lambda s, x: _divides(x.tp, s.scan.groups if s.scan else x.tp),
         "groups of a scan must be divisible by tp, got {s.scan.groups} groups, tp {x.tp}"),
    Rule("note", lambda s, x: (x.cp == 1) | _divides(2 * x.cp, s.seq),
         "causal attention is balanced over cp {x.cp} only where seq is divisible by 2 x {x.cp},"
         " got {s.seq}"),
    Rule("strict", lambda s, x: (x.sequence_parallel == 0) | _divides(x.tp * x.cp, s.seq),
         "sequence parallelism needs seq divisible by tp x cp, got seq {s.seq}, tp {x.tp}, cp"
         " {x.cp}"),
    Rule("never", lambda s, x: (x.ep == 1) | (s.experts > 0),
         "ep needs a model with experts, got ep {x.ep} for {s.name}"),
    Rule("never", lambda s, x: _divides(x.ep, s.experts),
         "experts must be divisible by ep, got {s.experts} experts, ep {x.ep}"),
    Rule("never", lambda s, x: _divides(x.ep * x.expert_tp, x.tp * x.cp * x.dp),
         "ep x expert_tp must divide tp x cp x dp, got {x.ep} x {x.expert_tp} of {x.tp} x {x.cp}"
         " x {x.dp}; expert_tp 1 leaves experts whole"),
    Rule("never", lambda s, x: (x.expert_tp == 1) | (x.expert_tp == x.tp),
         "expert_tp must be 1 or tp, got expert_tp {x.expert_tp}, tp {x.tp}"),
    Rule("never", lambda s, x: (x.expert_tp == x.tp) | (x.sequence_parallel == 1)
         | (s.experts == 0),
         "whole experts (expert_tp 1) under tp {x.tp} need sequence_parallel, which deals the"
         " tokens out"),
    Rule("never", lambda s, x: _divides(x.shard_ranks, x.dp * x.cp),
         "shard_ranks must divide dp x cp, got shard_ranks {x.shard_ranks}, dp {x.dp}, cp {x.cp}"),
    Rule("note", lambda s, x: (x.zero < 3) | (x.pp == 1),
         "ZeRO-{x.zero} communicates for every micro-batch under pp {x.pp}; DeepSpeed refuses it"),
    Rule("note", lambda s, x: (x.tp == 1) | _divides(x.tp, s.vocab),
         "a vocabulary of {s.vocab} is padded to a multiple of tp {x.tp}"),
)
# fmt: on


def remarks(
    broken: Iterable[Rule], shape: TransformerShape, layout: Layouts, strict: bool = True
) -> list[str]:
    """Sentences of the rules that a layout breaks; `InputError` for one that forbids it."""
    found = []
    for rule in broken:
        sentence = rule.sentence.format(s=shape, x=layout, name=SCHEDULES[int(layout.schedule)])
        if rule.grade == "never" or (rule.grade == "strict" and strict):
            raise InputError(sentence)
        found.append(sentence)
    return found


def broken_rules(shape: TransformerShape, layouts: Layouts) -> list[list[Rule]]:
    """The rules that each of some layouts breaks [N]."""
    rows = len(layouts.tp)
    held = [np.broadcast_to(rule.holds(shape, layouts), rows) for rule in RULES]
    found: list[list[Rule]] = [[] for _ in range(rows)]
    for rule, holds in zip(RULES, held, strict=True):
        for at in np.flatnonzero(~holds):
            found[at].append(rule)
    return found


def legal(shape: TransformerShape, layouts: Layouts, strict: bool = True) -> Array:
    """True where a layout breaks no rule, for columns of layouts."""
    grades = ("never", "strict") if strict else ("never",)
    held = (rule.holds(shape, layouts) for rule in RULES if rule.grade in grades)
    return functools.reduce(array_module(*layouts).logical_and, held)
