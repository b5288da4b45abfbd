"""The time of a training step from the times of its parts: a closed form, differentiable in every
knob.

    GPU of a block   = products + attention + memory-bound ops + kernels x (exposed seconds) +
                     collectives that nothing hides
    host of a block  = kernels x (launch cost, forward and backward apart) + collectives x (cost of
                     issuing one)
    layer            = max(GPU, host, gathers of sharded weights)              sharp: a p-norm of
                     12; adding them is 60 % off
    stage            = its layers + embedding or head + messages to its neighbours
    step             = m max_stage + fill (sum_stages - max_stage) + exposed gradient reduction +
                     optimizer + fixed

m micro-batches per step. `fill` is how much of the pipeline's filling and draining shows: 1 for
1F1B and GPipe, 1 / v with v chunks per stage. For GPipe and 1F1B this is (m - 1) max + sum, which
measured steps follow to under 1 % (training_steps.md 2.1); the maximum is the slowest stage's, with
no smoothing. Chimera and zero bubble: `pipelines.py`.

The step is also the sum of four parts, as the slowest stage's GPU sees it:

    compute          its products, attention and memory-bound ops, exposed seconds of kernels among
                     them; the optimizer's own
    communication    what nothing hides: collectives in its blocks, what gathers outlast its
                     computation by, its messages, the exposed reduction with the cost of issuing
                     it, and updated weights on their way back
    bubble           it waits for other stages
    host             it waits for its own host: what blocks take longer than all of that, the
                     optimizer's launches, and `fixed_s`, which is the host's work around a step

Axes: N rows, P = 3 phases. Columns are NumPy's or JAX's (`either.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridperf.io.namespace import array_module, fresh_views
from hybridperf.training.steps.cross_node import across_s, crossing_host_s, ring_latency_s
from hybridperf.training.steps.knobs import Knobs
from hybridperf.training.steps.pipelines import Stages, pace, woven_pace

PHASES = ("forward", "recomputed", "backward")
BACKWARD = PHASES.index("backward")
_SHARPNESS = (
    12.0  # of the maximum: measured layers turn from host-bound to GPU-bound within a factor of 1.2
)
_LEAST_S = 1e-12
_ROUNDING = 1e-12  # of a step


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True)
class Block:
    """One micro-batch through one layer (or embedding, or head) on one rank, as op model and links
    price it: [P, N] each.
    """

    gemm_s: Any
    misaligned_s: Any  # products in 16 bits whose width is no multiple of 8
    attention_s: Any
    memory_s: Any  # everything else that the GPU computes, at the datasheet's bandwidth
    kernels: Any
    tp_s: Any  # tensor-parallel collectives
    tp_calls: Any
    exchange_s: Any  # context- and expert-parallel messages
    exchange_calls: Any
    gather_s: Any  # weights gathered and gradients scattered by sharding, beside the computation
    # those of them that a node's own ranks exchange: the part that takes memory and multiprocessors
    # from computing
    gather_inside_s: Any
    gather_calls: Any


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True)
class Features:
    """What the composition knows of each row: [N] each, blocks [P, N]."""

    layer: Block  # the mean of a stage's layers, where they differ
    embedding: Block
    head: Block
    layers_first: Any  # of the first stage
    layers_last: Any
    layers_most: Any  # of the fullest of the others
    layers: Any  # of all
    stages: Any
    micro_batches: Any
    fill: Any
    chunks: Any  # of a stage, each of which sends for itself
    sends_s: Any  # one message between neighbouring stages
    sends_hidden: Any  # 1: a stage computes on meanwhile
    tp_nodes: Any  # that a tensor-parallel group lies on
    reduction_s: Any  # gradients
    reduction_calls: Any  # of both
    # weights that were updated in shards, gathered behind the optimizer: nothing hides them
    updated_s: Any
    reduction_hidden: Any  # 1: beside the last micro-batch's backward pass
    optimizer_s: Any
    optimizer_kernels: Any
    tp: Any
    waiting: Any  # 1: a ring over nodes waits at each of them (`cross_node.py`)
    crossing: Any  # 1: so does a pipeline over nodes
    stalls: Any  # messages of a micro-batch that surely stall
    gathered_layers: Any  # of a rank, updated in shards and gathered one by one: times data ranks
    schedule: Any = None  # index into SCHEDULES; None: of those that `fill` is all of
    # of a layer's backward: its weights' gradients, which a schedule may put off; None likewise
    weight_share: Any = None
    # width in logs of each knob beside its own, where what it multiplies was not measured on this
    # machine [K, N]
    doubt: Any = None


class Parts(NamedTuple):
    """Seconds of a step [N]: the second to fifth add up to the first."""

    step_s: Any
    compute_s: Any  # the slowest stage's GPU at work, all micro-batches, and the optimizer
    exposed_comm_s: Any  # communication that nothing hides
    bubble_s: Any  # the slowest stage waits for others
    host_s: Any  # the slowest stage's GPU waits for its host
    layer_s: Any  # one layer, one micro-batch


def step_seconds(
    f: Features, k: Knobs, gpu_log: Any = 0.0, host_log: Any = 0.0, ends_log: Any = 0.0
) -> Parts:
    """Times of steps; `gpu_log`, `host_log` [N] correct the logs of a layer's GPU and host seconds,
    `ends_log` those of embedding and head.

    Pure, and differentiable in knobs and corrections.
    """
    f, k, gpu_log, host_log, ends_log = fresh_views((f, k, gpu_log, host_log, ends_log))
    xp = array_module(*jax.tree.leaves(k), gpu_log, host_log, ends_log)
    layer = _block(f, f.layer, k, xp)
    layer = layer._replace(host_s=layer.host_s + crossing_host_s(f, k, xp))
    on_layer, on_host, on_ends = xp.exp(gpu_log), xp.exp(host_log), xp.exp(ends_log)
    busy_s = layer.gpu_s + layer.comm_s
    layer_s, layer_gathers_s = _paced(xp, busy_s * on_layer, layer.host_s * on_host, layer.beside_s)
    embedding, head = (_block(f, block, k, xp) for block in (f.embedding, f.head))
    embedding_s, embedding_gathers_s = _paced(
        xp, embedding.gpu_s + embedding.comm_s, embedding.host_s + k.input_s, embedding.beside_s
    )
    head_s, head_gathers_s = _paced(xp, head.gpu_s + head.comm_s, head.host_s, head.beside_s)
    embedding_s, head_s = embedding_s * on_ends, head_s * on_ends
    alone = f.stages == 1
    sends_s = xp.where(
        alone,
        0.0,
        f.chunks * ((1 - f.sends_hidden) * 2 * k.p2p * f.sends_s + k.slot_s) + k.stall_s * f.stalls,
    )
    first_s = f.layers_first * layer_s + embedding_s + sends_s
    last_s = xp.where(alone, first_s + head_s, f.layers_last * layer_s + head_s + sends_s)
    other_s = xp.where(f.stages > 2, f.layers_most * layer_s + sends_s, 0.0)
    between = f.layers - f.layers_first - f.layers_last
    sum_s = xp.where(
        alone, last_s, first_s + last_s + between * layer_s + xp.maximum(f.stages - 2, 0) * sends_s
    )
    stages = Stages(first_s, last_s, other_s, sum_s)
    slowest = pace(xp, f, stages)
    if f.schedule is not None:
        slowest = woven_pace(xp, f, slowest, stages, lambda: _ways_s(xp, f, k, on_layer, on_host))
    # messages beside computations show while a pipeline fills and drains: exact of interleaving,
    # and of 1F1B with a heavy last stage
    filling_s = xp.where(
        alone, 0.0, f.sends_hidden * 2 * (f.chunks * f.stages - 1) * k.p2p * f.sends_s
    )
    bubble_s = slowest.waits_s + filling_s
    reduction_s = k.reduction * f.reduction_s
    hiding_s = f.layers_last * layer.backward_s
    reduction_s = xp.maximum(
        reduction_s - f.reduction_hidden * hiding_s, 0.1 * f.reduction_hidden * reduction_s
    )
    reduction_s = (
        reduction_s + k.reduction * f.updated_s + k.collective_launch_s * f.reduction_calls
    )
    update_s, gathered_s = (
        k.optimizer * k.memory * f.optimizer_s,
        k.layer_gather_s * f.gathered_layers,
    )
    optimizer_s = update_s + k.launch_s * f.optimizer_kernels + gathered_s
    step_s = f.micro_batches * slowest.stage_s + bubble_s + reduction_s + optimizer_s + k.fixed_s
    at_work_s = slowest.layers * (layer.gpu_s * on_layer)
    at_work_s = (
        at_work_s + (slowest.embeddings * embedding.gpu_s + slowest.heads * head.gpu_s) * on_ends
    )
    comm_s = slowest.layers * (layer.comm_s * on_layer + layer_gathers_s) + sends_s
    of_ends_s = slowest.embeddings * (embedding.comm_s + embedding_gathers_s) + slowest.heads * (
        head.comm_s + head_gathers_s
    )
    compute_s = f.micro_batches * at_work_s + update_s
    exposed_s = f.micro_batches * (comm_s + of_ends_s * on_ends) + reduction_s + gathered_s
    # only rounding puts it below zero, and so little above; what follows likewise
    exposed_s = xp.where(exposed_s > _ROUNDING * step_s, exposed_s, 0.0)
    host_s = xp.maximum(step_s - (compute_s + exposed_s + bubble_s), 0.0)
    return Parts(step_s, compute_s, exposed_s, bubble_s, host_s, layer_s)


class _Times(NamedTuple):
    gpu_s: Any  # without communication
    comm_s: Any  # communication that nothing hides
    host_s: Any
    beside_s: Any  # gathers of sharded weights
    backward_s: Any  # of gpu_s


def _block(f: Features, block: Block, k: Knobs, xp: Any) -> _Times:
    """Times of a block."""
    forward_s, recomputed_s, backward_s = (
        _phase_s(block, k, phase) for phase in range(len(PHASES))
    )
    tp_s, tp_calls = block.tp_s.sum(0), block.tp_calls.sum(0)
    inside = k.tp * tp_s + k.tp_arrival_s * tp_calls
    across = across_s(xp, k.tp_across * tp_s, ring_latency_s(f, k, tp_calls))
    comm_s = xp.where(f.tp_nodes > 1, across, inside) + k.exchange * block.exchange_s.sum(0)
    gather_s = k.gather * block.gather_s.sum(0)
    comm_s = comm_s + k.gather_shown * k.gather * block.gather_inside_s.sum(
        0
    )  # waiting for a network takes nothing from computing
    calls = (block.tp_calls + block.exchange_calls + block.gather_calls).sum(0)
    host_s = (
        k.launch_s * (block.kernels[:BACKWARD].sum(0) + k.backward_launch * block.kernels[BACKWARD])
        + k.collective_launch_s * calls
    )
    return _Times(forward_s + recomputed_s + backward_s, comm_s, host_s, gather_s, backward_s)


def _phase_s(block: Block, k: Knobs, phase: int) -> Any:
    """GPU seconds of one phase without communication."""
    products = k.gemm * (block.gemm_s[phase] + k.misaligned_gemm * block.misaligned_s[phase])
    return (
        products
        + k.attention * block.attention_s[phase]
        + k.memory * block.memory_s[phase]
        + k.exposed_kernel_s * block.kernels[phase]
    )


def _ways_s(xp: Any, f: Features, k: Knobs, on_layer: Any, on_host: Any) -> tuple[Any, Any]:
    """Seconds of a layer (there, back with what is recomputed), each by itself."""
    found = []
    for kept in ((1.0, 0.0, 0.0), (0.0, 1.0, 1.0)):
        phases = np.array(kept)[:, None]
        way = _block(f, jax.tree.map(lambda leaf, phases=phases: leaf * phases, f.layer), k, xp)
        found.append(
            _paced(xp, (way.gpu_s + way.comm_s) * on_layer, way.host_s * on_host, way.beside_s)[0]
        )
    return found[0], found[1]


def _paced(xp: Any, busy_s: Any, host_s: Any, gather_s: Any) -> tuple[Any, Any]:
    """(seconds of a block: a p-norm of three, hardly above the largest; those by which gathers
    outlast what the GPU does, host apart).
    """
    most = xp.maximum(xp.maximum(busy_s, host_s), gather_s) + _LEAST_S
    busy, host, gather = ((one / most) ** _SHARPNESS for one in (busy_s, host_s, gather_s))
    return most * (busy + host + gather) ** (1 / _SHARPNESS), most * (busy + gather) ** (
        1 / _SHARPNESS
    ) - busy_s
