"""A captured PyTorch program on a CPU: its ops one after the other, each with what is spent around
it.

A CPU calls ops back to back: what a module, a record of gradients or a loop over parameters takes
is not beside the op but before it (`ops.EagerOp`, of which a view is all there is). How long ago an
op's data was last touched follows from which storages the ops of a step use.

So do messages between processes of a machine: gloo copies and adds on the same core, and what
another process does meanwhile is the same step.

First of all comes memory that the operating system hands out again in each step. glibc's `malloc`
keeps what is freed but for two kinds (its malloc.c): blocks larger than 32 MiB, and the top of the
heap where more than twice the largest other block is free there.
"""

from __future__ import annotations

from hybridperf.model.calls import Call, CollectiveCall
from hybridperf.ops import Allocation, EagerOp, Gather, OpCall
from hybridperf.workloads.jax.program import FRESH_BLOCK_BYTES
from hybridperf.workloads.jax.reuse import HloStep, Touch, rounded, with_reuse
from hybridperf.workloads.torch.calls import Tensor
from hybridperf.workloads.torch.fusion import PricedOp
from hybridperf.workloads.torch.messages import COPIED, collective, is_message
from hybridperf.workloads.torch.record import (
    BACKWARD,
    DISPATCHED,
    FORWARD,
    OPTIMIZER,
    WRAPPED,
    CapturedOp,
)

_PHASE = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "update"}
_KEPT_BLOCKS, _LEAST_KEPT_BYTES = 2, 2**17  # free at the top of the heap


def calls_in_order(
    placed: list[PricedOp], activation_bytes: float, gpus_per_node: int
) -> list[tuple[int, Call]]:
    """(place of the op, call) of a step, in order.

    Args:
        placed: every op of the step, views and messages too, with its kernels.
        activation_bytes: that a step makes and frees again: results lie there by turns.
        gpus_per_node: processes of a machine.
    """
    fresh_bytes = _fresh_bytes(placed, activation_bytes)
    steps = [HloStep("", Allocation("fp32", bytes=fresh_bytes))] if fresh_bytes else []
    owners = [0] * len(steps)
    for at, (op, kernels) in enumerate(placed):
        if is_message(op):
            if (sent := collective(op, gpus_per_node)) is not None:
                read, written = (_touches(of, sent.bytes) for of in (op.call.read, op.call.written))
                steps.append(HloStep("", sent, 1.0, read, written))
                owners.append(at)
            continue
        found = [HloStep("", EagerOp("fp32", phase)) for phase in _overheads(op)]
        for one in kernels:
            moved = float(one.op.work().bytes)  # of a table only the rows that are looked up
            reads, writes = _touches(op.call.read, moved), _touches(op.call.written, moved)
            table = None
            if isinstance(one.op, Gather):
                table = str(op.call.read[0].storage), op.call.read[0].bytes
            found.append(HloStep("", one.op, one.times, reads, writes, table))
        steps += found
        owners += [at] * len(found)
    calls = list[tuple[int, Call]]()
    for at, step in zip(owners, with_reuse(steps, activation_bytes), strict=True):
        if isinstance(step.op, CollectiveCall):
            calls.append((at, step.op))
            continue
        reuse_bytes = rounded(step.reuse_bytes) if step.reads else None
        calls.append((at, OpCall(step.op, step.times, reuse_bytes)))
    return calls


def _overheads(op: CapturedOp) -> list[str]:
    """What is spent around an op, by phase."""
    if op.call.kind in (DISPATCHED, WRAPPED):
        return ["dispatched", *["wrapped"] * (op.call.kind == WRAPPED)]
    found = [_PHASE[op.phase]]
    if op.call.kind in COPIED:
        found += ["gathered", *["parameter"] * len(op.call.lists[0])]
    return found


def _fresh_bytes(placed: list[PricedOp], activation_bytes: float) -> float:
    """That a step touches for the first time."""
    found: dict[int, float] = {}
    known: set[int] = set()
    for op, _ in placed:
        known |= {one.storage for one in op.call.read if one.storage not in found}
        for one in op.call.written:
            if one.storage not in known:
                found[one.storage] = max(one.bytes, found.get(one.storage, 0.0))
    own_bytes = sum(size for size in found.values() if size >= FRESH_BLOCK_BYTES)
    largest = max((size for size in found.values() if size < FRESH_BLOCK_BYTES), default=0.0)
    kept_bytes = max(_KEPT_BLOCKS * largest, _LEAST_KEPT_BYTES)
    return own_bytes + max(activation_bytes - own_bytes - kept_bytes, 0.0)


def _touches(tensors: list[Tensor], most_bytes: float) -> tuple[Touch, ...]:
    """Each storage once."""
    named = {str(one.storage): one.bytes for one in tensors}
    return tuple(Touch(name, min(size, most_bytes), size) for name, size in named.items())
