"""Parallelism inside a layer: functions that rewrite the passes of one device into those of one
rank of a group.

* tensor (Shoeybi et al. 2019): fields that a step names are divided. An op that sums over a divided
  dimension, or looks up in a divided table, leaves partial sums, which an all-reduce completes: so
  the projections of attention and MLP forward, and the input gradients of what feeds them backward,
  4 all-reduces a layer of b s h numbers each.
* sequence (Korthikanti et al. 2022): what tensor parallelism leaves whole is divided by tokens;
  each all-reduce becomes a reduce-scatter behind the partial sums and an all-gather before the next
  divided step. The gather that a weight gradient needs of its input overlaps the product of
  the input's gradient and is not counted.
* context: tokens are divided, causal work is shared out evenly, and each rank's queries meet the
  keys and values of all, block by block of cp: in a ring (Liu et al. 2023; Transformer Engine's
  p2p), where the next block travels while attention reads this one, in the backward pass with the
  gradients of the last one, which travel once more behind it; or gathered at once while attention
  reads the rank's own block (PyTorch's allgather), and their gradients scattered back.
* expert: each rank keeps E_p-th of the experts and its tokens travel there and back, twice forward
  and twice backward.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

import hybridperf.ops as ops
from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io import InputError
from hybridperf.model.calls import expert_words
from hybridperf.workloads.transformer.groups import Span
from hybridperf.workloads.transformer.passes import Passes, PassStep, Steps

_COPIED = 4096.0  # numbers of a row that is copied: of so long ones only the bytes count
_BESIDE = "keys and values"  # what messages beside attention carry first
SUM_BYTES = 4.0  # of a loss' sum over a divided vocabulary: fp32


def rewritten(passes: Passes, change: Callable[[Steps], Iterable[PassStep]]) -> Passes:
    """Each pass rewritten as a whole."""
    parts = (passes.forward, passes.backward, passes.recomputed)
    return Passes(*(tuple(change(steps)) for steps in parts))


def partial_sums_bytes(step: PassStep) -> float:
    """Size of a result that is only one rank's share of a sum; 0 where it is whole."""
    if not step.is_op or not step.tensor:
        return 0.0
    op = step.op
    size = DTYPE_BYTES[op.dtype]
    if isinstance(op, ops.Gemm) and "k" in step.tensor:
        return float(op.m * op.n * size)
    if isinstance(op, ops.Moe):
        return float(op.tokens * op.hidden * size)
    if isinstance(op, ops.Gather) and "vocab" in step.tensor:
        return float(op.rows * op.cols * size)
    if isinstance(op, ops.Reduction) and "cols" in step.tensor:
        return float(op.rows * SUM_BYTES)
    if isinstance(op, ops.Softmax) and "cols" in step.tensor:
        # the largest number and the sum of exponentials of each row
        return float(2 * op.rows * SUM_BYTES)
    return 0.0


def split_tensor(passes: Passes, group: Span) -> Passes:
    """Tensor parallelism over a group."""
    if group.ranks == 1:
        return passes

    def part_of(step: PassStep) -> Iterator[PassStep]:
        if step.is_op and isinstance(step.op, ops.Moe):
            yield step.with_op(moe_tp=float(group.ranks)) if step.tensor else step
        else:
            part = step.divided(step.tensor, group.ranks)
            shared = step.is_op and "kv_heads" in step.tensor and part.op.kv_heads < 1
            # ranks that share a head of keys and values hold all of it
            yield part.with_op(kv_heads=1.0) if shared else part
        if size := partial_sums_bytes(step):
            summed = group.step("all_reduce", size, "tp", f"{step.name} summed")
            rows = isinstance(step.op, ops.Gather) and step.op.cols > 1
            # a token's sum is its vector, and not a number as a loss' is
            vector = rows or isinstance(step.op, ops.Gemm | ops.Moe)
            yield dataclasses.replace(summed, tokens="bytes" if vector else "")

    def split(steps: Steps) -> Iterator[PassStep]:
        # a ring sends one step many times, which stays one object: it is priced once
        known = {id(step): step for step in steps}
        parts = {number: tuple(part_of(step)) for number, step in known.items()}
        return itertools.chain.from_iterable(parts[id(step)] for step in steps)

    return rewritten(passes, split)


def sequence_parallel(passes: Passes, group: Span, copies: str = "") -> Passes:
    """Sequence parallelism of passes that `split_tensor` has split.

    `copies`: number format of what a framework copies before each scatter and behind each gather,
    whose library joins tensors along their first dimension alone; "" where none is.
    """
    if group.ranks == 1:
        return passes

    def copied(message: PassStep) -> Steps:
        if not copies:
            return ()
        rows = message.collective.bytes / DTYPE_BYTES[copies] / _COPIED
        copy = ops.OpCall(ops.Copy(copies, rows, _COPIED))
        return (PassStep(copy, "memory", f"{message.name}, put in order"),)

    def split(steps: Steps) -> Iterator[PassStep]:
        scattered = True  # what a pass begins with
        for step in steps:
            if step.part == "tp" and step.tokens:
                scatter = group.step("reduce_scatter", step.collective.bytes, "tp", step.name)
                yield from (*copied(scatter), scatter)
                scattered = True
            elif not step.is_op:
                yield step
            elif step.tensor:
                if scattered and (size := _gathered_bytes(step)):
                    gather = group.step("all_gather", size, "tp", f"{step.name} gathered")
                    yield from (gather, *copied(gather))
                    scattered = False
                yield step
            else:
                yield step.divided((step.tokens,), group.ranks) if step.tokens else step

    return rewritten(passes, split)


def _gathered_bytes(step: PassStep) -> float:
    """Size of the tokens' vectors that a divided step takes in; 0 where they are divided too."""
    op = step.op
    size = DTYPE_BYTES[op.dtype]
    if isinstance(op, ops.Gemm):
        return 0.0 if step.weight_gradient else float(op.m * op.k * size)
    if isinstance(op, ops.Moe):
        return float(op.tokens * op.hidden * size)
    return float(op.rows * op.cols * size) if isinstance(op, ops.ScatterAdd) else 0.0


def context_parallel(passes: Passes, group: Span, ring: bool = False) -> Passes:
    """Tokens divided over a group; before tensor parallelism. `ring`: blocks travel one by one."""
    if group.ranks == 1:
        return passes

    def split(steps: Steps) -> Iterator[PassStep]:
        for step in steps:
            if step.core:
                yield from _context_core(step, group, ring)
            else:
                counted = step.tokens and step.is_op
                yield step.divided((step.tokens,), group.ranks) if counted else step

    return rewritten(passes, split)


def _context_core(step: PassStep, group: Span, ring: bool) -> Iterator[PassStep]:
    op = step.op
    if not isinstance(op, ops.PrefillAttention | ops.EncoderAttention):
        raise InputError(
            'context parallelism of unfused attention is not modelled: take attention="fused", or'
            " cp = 1"
        )
    if isinstance(op, ops.PrefillAttention) and op.kv_len:
        raise InputError(
            "context parallelism of attention to an encoder is not modelled: take cp = 1"
        )
    kv_bytes = 2 * op.batch * op.q_len * op.kv_heads * op.head_dim * DTYPE_BYTES[op.dtype]

    def exchange(collective: str, size: float, name: str) -> PassStep:
        one = among.step(collective, size, "cp", name)
        heads = ("bytes",) if "kv_heads" in step.tensor else ()
        return dataclasses.replace(one, tensor=heads, core=True)

    back, n = "gradient" in step.name, group.ranks
    among = Span(2, min(group.nodes, 2)) if ring else group
    own = step.on(_share_of_attention(op, n))
    if not ring:
        yield exchange("all_gather", kv_bytes, f"{_BESIDE} gathered")
        yield own
        if back:
            yield exchange("reduce_scatter", kv_bytes, "gradients of keys and values summed")
        return
    name = f"{_BESIDE}, their gradients" if back else _BESIDE
    sent = exchange("sendrecv", (2 if back else 1) * kv_bytes / n, f"{name} sent on")
    yield from [sent] * (n - 1)
    # a kernel for each block, and one that adds it to what the blocks before gave
    yield dataclasses.replace(own, kernels=n * step.kernels + n - 1)
    if back:
        yield exchange("sendrecv", kv_bytes / n, "gradients of keys and values brought home")


def beside_attention(passes: Passes, ranks: int) -> Passes:
    """Messages of context parallelism beside a block of attention, `ranks` of which are one call;
    after everything that divides either.
    """
    if ranks == 1:
        return passes

    def beside(steps: Steps) -> Iterator[PassStep]:
        block, found = None, list[PassStep]()
        before: PassStep | None = None
        for step in reversed(steps):  # a message goes beside the attention that comes next
            if step is before:  # of a ring, one of many
                found.append(found[-1])
                continue
            before = step
            if step.core and isinstance(step.call, ops.OpCall):
                block = dataclasses.replace(step.call, times=step.call.times / ranks)
            elif step.part == "cp" and step.name.startswith(_BESIDE):
                assert block is not None
                step = dataclasses.replace(step, beside=block)
            found.append(step)
        return reversed(found)

    return rewritten(passes, beside)


def _share_of_attention(
    op: ops.PrefillAttention | ops.EncoderAttention, ranks: int
) -> ops.PrefillAttention:
    """One rank's queries on all keys, of which a causal query sees half in the mean."""
    causal = isinstance(op, ops.PrefillAttention) and op.causal > 0
    keys = op.q_len / 2 if causal else op.q_len
    sizes = (op.batch, op.q_len / ranks, op.heads, op.head_dim, op.kv_heads)
    if isinstance(op, ops.PrefillAttention) and op.window:
        seen = op.window - (op.window**2 / 2 / op.q_len if causal else 0.0)
        return ops.PrefillAttention(op.dtype, *sizes, window=seen, kv_len=op.q_len, causal=0.0)
    return ops.PrefillAttention(op.dtype, *sizes, kv_len=keys, causal=0.0)


def expert_parallel(
    passes: Passes, group: Span, once_per_node: bool = False,
    groups: tuple[int, int] = (0, 0),
) -> Passes:  # fmt: skip
    """Experts divided over a group, after all that divides tokens.

    Args:
        once_per_node: a token travels once to each node, by the kernels of HybridEP
            (`collectives/experts.py`), not to each of its experts.
        groups: of experts, and how many of them hold a token's; 0: they lie anywhere.
    """
    if group.ranks == 1:
        return passes

    def split(steps: Steps) -> Iterator[PassStep]:
        for step in steps:
            if not (step.is_op and isinstance(step.op, ops.Moe)):
                yield step
                continue
            op = step.op
            own = step.with_op(tokens=op.tokens * group.ranks, moe_ep=float(group.ranks))
            # all wait for the rank that gets most
            most = float(own.op.routing().rows) / max(float(op.topk * op.tokens), 1.0)
            sent, there, back = max(most, 1.0) * op.tokens * op.hidden, "dispatch", "combine"
            words = expert_words("hybridep", op.topk, op.experts, groups)
            if not once_per_node:
                sent, there, back, words = sent * op.topk, "alltoall", "alltoall", ()
            size = sent * DTYPE_BYTES[op.dtype]
            yield group.step(there, size, "ep", f"tokens to {step.name}", words)
            yield dataclasses.replace(own, kernels=1 + (step.kernels - 1) // group.ranks)
            yield group.step(back, size, "ep", f"tokens from {step.name}", words)

    return rewritten(passes, split)
