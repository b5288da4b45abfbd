"""What a pass' steps are in a training step: which call prices each, by which step effects, and
what else a step does. The graph and the closed form both go by it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from hybridperf.model.calls import Call, CollectiveCall, StepPlace
from hybridperf.model.unmeasured import Probe
from hybridperf.ops import FUSED, BatchedGemm, Gemm, OpCall, PrefillAttention
from hybridperf.ops.operand_order import row_kernel
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import does
from hybridperf.workloads.transformer.passes import SHARDED, PassStep

_ROLES = {
    "cp": "exchange", "ep": "exchange", "zero": "gather", "replica": "gather", "dp": "reduction",
    "pp": "p2p",
}  # fmt: skip

# effects on messages, by the group that exchanges them
GROUP_EFFECTS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp", "tp_across"), "cp": ("exchange",), "ep": ("exchange",), "shard": ("gather",),
    "data": ("reduction",), "pp": ("p2p",),
}  # fmt: skip
_PROBED_BYTES = 64e6


def probes(config: TransformerConfig) -> tuple[Probe, ...]:
    """A call for what each step effect multiplies."""
    square, heads = (4096.0,) * 3, (128.0, 2048.0, 2048.0, 128.0)
    product = Gemm(config.dtype, *square, quant=config.quant)
    attention = (
        PrefillAttention(config.dtype, 1.0, 4096.0, 16.0, 128.0)
        if config.attention == "fused"
        else BatchedGemm(config.dtype, *heads)
    )
    found: list[Probe] = [("gemm", OpCall(product)), ("attention", OpCall(attention))]
    for dim, effects in GROUP_EFFECTS.items():
        group = config.group(dim)
        if group.ranks > 1 and (dim != "shard" or config.layout.shards_each_pass):
            call = CollectiveCall("all_reduce", _PROBED_BYTES, group.ranks, group.nodes)
            found += [(effect, call) for effect in effects]
    return tuple(found)


@functools.lru_cache(65536)
def call_in_step(call: Call, tokens: str | None = None) -> Call:
    """What prices a call: an op without its launch, loops, norms and copies as they are fused.

    `tokens`: the dimension of a product that no row has; None: its rows are whole.
    """
    if not isinstance(call, OpCall):
        return call
    kernel = call.kernel if call.op.unit == "matrix" else FUSED
    if tokens is not None:
        kernel = kernel or row_kernel(call.op, tokens)
    return dataclasses.replace(call, issued_apart=True, kernel=kernel)


def priced_call(step: PassStep) -> Call:
    """What prices a pass' step; products of a layer by how their rows begin."""
    return call_in_step(step.call, step.tokens if step.part == "gemm" else None)


def role_of(step: PassStep, framework: str = "") -> str:
    """Which step effects count for a step, of `step_effects.ROLES`."""
    if step.part == "tp":
        waits = "tp_waiting" if does(framework, "ring_waits") else "tp_across"
        return "tp" if step.collective.nodes == 1 else waits
    return _ROLES.get(step.part, step.part)


def place_of(step: PassStep, framework: str = "", block: str = "") -> StepPlace:
    """A step's place: its role, its kernels or nodes, whose correction counts."""
    role = role_of(step, framework)
    count = float(step.kernels)
    if not step.is_op:
        count = float(step.collective.nodes) if role in ("tp_across", "tp_waiting") else 1.0
    return StepPlace(role, count, "" if step.part in (*SHARDED, "dp") else block)


def inside_a_node(call: CollectiveCall) -> CollectiveCall | None:
    """What a node's own ranks do of a collective; None where each node has one of the ranks."""
    each = call.ranks_per_node
    if each == 1 or call.nodes == 1:
        return None if each == 1 else call
    return dataclasses.replace(call, ranks=each, nodes=1)
