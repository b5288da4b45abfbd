"""Calls: what a model prices. An op, a collective, given seconds, a chain of such rows, what of one
row outlasts another, each by itself or in its place in a training step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.collectives.experts import kernels as expert_kernels
from hybridperf.ops import GROUPS, OpCall, columns
from hybridperf.ops import Call as StartProgram

GIVEN, CHAIN = "given", "chain"


def row_kinds() -> tuple[str, ...]:
    """What a row's seconds are reported under, as registered by now: groups of ops, collectives by
    name, seconds by origin.
    """
    return (*GROUPS, *COLLECTIVES, GIVEN, CHAIN)


@dataclasses.dataclass(frozen=True)
class CollectiveCall:
    """A collective of all its ranks; `bytes` per rank, as in tables (`collectives/algorithms`)."""

    collective: str  # our name of it
    bytes: float
    ranks: int
    nodes: int = 1
    # of an all-to-all whose ranks differ: from rank i to rank j [n, n]
    pair_bytes: tuple[tuple[float, ...], ...] | None = None
    words: tuple[tuple[str, str], ...] = ()  # `lib`, `variant`, ... as in tables, where known

    @property
    def ranks_per_node(self) -> int:
        """Most that lie on one node, where they are spread as evenly as whole ranks can be."""
        return -(-self.ranks // self.nodes)

    @staticmethod
    def between(
        pair_bytes: tuple[tuple[float, ...], ...], nodes: int = 1,
        words: tuple[tuple[str, str], ...] = (),
    ) -> CollectiveCall:  # fmt: skip
        """An all-to-all by what each rank sends to each [n, n]."""
        most, ranks = max(sum(row) for row in pair_bytes), len(pair_bytes)
        return CollectiveCall("alltoall", most, ranks, nodes, pair_bytes, words)


def multiprocessors_of(call: CollectiveCall) -> float:
    """That a call takes while it travels; 0 of one that no kernel of experts carries."""
    kernel = expert_kernels().get(dict(call.words).get("lib", ""))
    return kernel.sms if kernel else 0.0


def expert_words(
    kernel: str, topk: float, experts: float, groups: tuple[int, int] = (0, 0)
) -> tuple[tuple[str, str], ...]:
    """Words of a call that carries tokens to experts or back (`collectives/experts.py`).

    Args:
        kernel: what sends them.
        topk: experts of a token.
        experts: all of the layer.
        groups: of experts, and how many of them hold a token's; 0: they lie anywhere.
    """
    told = {"lib": kernel, "topk": topk, "experts": experts}
    if groups[0]:
        told |= dict(zip(("expert_groups", "topk_groups"), groups, strict=True))
    return tuple(
        (name, value if isinstance(value, str) else f"{value:g}") for name, value in told.items()
    )


@dataclasses.dataclass(frozen=True)
class GivenSeconds:
    """Time that is known without a model: what a host takes to launch, or to read a batch."""

    value: float
    what: str = "host"
    log_spread: float = 0.0  # standard deviation of its log, where it is believed, not known


@dataclasses.dataclass(frozen=True)
class CallChain:
    """Rows one after the other as one row and one node: a part that is composed, not flattened."""

    # (row, counted from 1, that is none of this kind; how often)
    parts: tuple[tuple[int, int], ...]
    what: str = CHAIN


@dataclasses.dataclass(frozen=True)
class Exposed:
    """What of a message outlasts an op that it travels beside: zero or more seconds."""

    message: int  # row, counted from 1, that is no chain and not of this kind; the same:
    beside: int
    what: str  # the collective


Call = OpCall | CollectiveCall | GivenSeconds | CallChain | Exposed
C = TypeVar("C", OpCall, CollectiveCall, GivenSeconds, CallChain, Exposed)


@dataclasses.dataclass(frozen=True)
class StepPlace:
    """A call's place in a training step: which step effects count for it, and how often."""

    role: str = ""  # of `step_effects.ROLES`
    count: float = 1.0  # kernels, nodes, or times that what the role adds is added
    block: str = ""  # of BLOCK_LOGS: whose correction counts


@dataclasses.dataclass(frozen=True)
class InStep:
    """Places of a workload's calls in a training step, and what its corrections depend on."""

    places: tuple[StepPlace, ...]  # [U]
    framework: str  # whose step effects count, as tables name it
    # log2 of hidden size, tensor parallelism, tokens of a micro-batch on a rank, sequence
    cell: tuple[float, ...]
    # a call for what each step effect multiplies: where none like it was measured, an interval is
    # wider
    probes: tuple[tuple[str, OpCall | CollectiveCall], ...] = ()
    # deviations by which the slowest of its GPUs is slower than one that tables measure
    slowest: float = 0.0
    foreign: bool = False  # a framework that is not known is named, and no rows tell of it
    stall_chance: float = 0.0  # share of runs that stall
    stalls: float = 0.0  # how often a step of those adds `stall_s`
    # number formats, and products' FLOPs of each rank: no step is quicker than at the fastest peak
    formats: tuple[str, ...] = ()
    least_flops: float = 0.0


BLOCK_LOGS = ("", "layer", "host", "outer")  # no correction, or which of `Adapted.logs`


def no_op() -> OpCall:
    """What stands in the table of a step without ops."""
    return OpCall(StartProgram("fp32", 0.0))


def kind_of(call: Call) -> int:
    """Index into `row_kinds()` of what a row's seconds are reported under."""
    return _KIND_OF[type(call)](call)


def call_columns(call: Call) -> dict[str, object]:
    """A row of the duration table as a row of a table for people."""
    return _COLUMNS_OF[type(call)](call)


_KIND_OF: Mapping[type, Callable[[Any], int]] = {
    OpCall: lambda call: int(call.op.group_index()),
    CollectiveCall: lambda call: row_kinds().index(call.collective),
    Exposed: lambda call: row_kinds().index(call.what),
    CallChain: lambda call: row_kinds().index(CHAIN),
    GivenSeconds: lambda call: row_kinds().index(GIVEN),
}
_COLUMNS_OF: Mapping[type, Callable[[Any], dict[str, object]]] = {
    OpCall: lambda call: columns(call.op),
    CollectiveCall: lambda call: {
        "op": call.collective, "bytes": call.bytes, "n_gpus": call.ranks, "n_nodes": call.nodes,
    },
    **dict.fromkeys((Exposed, CallChain, GivenSeconds), lambda call: {"op": call.what}),
}  # fmt: skip


def only(kind: type[C], calls: Sequence[Call]) -> dict[int, C]:
    """Calls of one kind by their place."""
    return {at: call for at, call in enumerate(calls) if type(call) is kind}
