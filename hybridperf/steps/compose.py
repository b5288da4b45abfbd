"""The time of a training step from the times of its parts: a closed form, differentiable in every knob.

    GPU of a block   = products + attention + memory-bound ops + kernels x (exposed seconds) + collectives that nothing hides
    host of a block  = kernels x (launch cost, forward and backward apart) + collectives x (cost of issuing one)
    layer            = max(GPU, host, gathers of sharded weights)              sharp: a p-norm of 12; adding them is 60 % off
    stage            = its layers + embedding or head + messages to its neighbours
    step             = m max_stage + fill (sum_stages - max_stage) + exposed gradient reduction + optimizer + fixed

m micro-batches per step. `fill` is how much of the pipeline's filling and draining shows: 1 for 1F1B and GPipe, 1 / v with v chunks per
stage. For GPipe and 1F1B this is (m - 1) max + sum, which measured steps follow to under 1 % (training_steps.md 2.1); the maximum is the
slowest stage's, with no smoothing.

Axes: N rows, P = 3 phases. Columns are NumPy's or JAX's (`either.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax

from hybridperf.either import anew, array_module
from hybridperf.steps.cross_node import across_s, crossing_host_s, ring_latency_s
from hybridperf.steps.knobs import Knobs

PHASES = ("forward", "recomputed", "backward")
BACKWARD = PHASES.index("backward")
_SHARPNESS = 12.0  # of the maximum: measured layers turn from host-bound to GPU-bound within a factor of 1.2
_LEAST_S = 1e-12


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True)
class Block:
    """One micro-batch through one layer (or embedding, or head) on one rank, as op model and links price it: [P, N] each."""

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
    stage_nodes: Any  # that a whole replica lies on
    reduction_s: Any  # gradients
    reduction_calls: Any  # of both
    updated_s: Any  # weights that were updated in shards, gathered behind the optimizer: nothing hides them
    reduction_hidden: Any  # 1: beside the last micro-batch's backward pass
    optimizer_s: Any
    optimizer_kernels: Any
    tp: Any
    waiting: Any  # 1: a ring over nodes waits at each of them (`cross_node.py`)
    crossing: Any  # 1: so does a pipeline over nodes
    stalls: Any  # messages of a micro-batch that surely stall
    gathered_layers: Any  # of a rank, updated in shards and gathered one by one: times doublings of data ranks


class Parts(NamedTuple):
    """Seconds of a step [N]."""

    step_s: Any
    compute_s: Any  # the slowest stage's GPU at work, all micro-batches, and the optimizer
    exposed_comm_s: Any  # communication that nothing hides
    bubble_s: Any  # the slowest stage waits for others
    host_s: Any  # the slowest stage's GPU waits for its host
    layer_s: Any  # one layer, one micro-batch
    host_bound: Any  # host seconds of a layer over its GPU seconds


def step_seconds(f: Features, k: Knobs, gpu_log: Any = 0.0, host_log: Any = 0.0, ends_log: Any = 0.0) -> Parts:
    """Times of steps; `gpu_log`, `host_log` [N] correct the logs of a layer's GPU and host seconds, `ends_log` those of embedding and head.

    Pure, and differentiable in knobs and corrections.
    """
    f, k, gpu_log, host_log, ends_log = anew((f, k, gpu_log, host_log, ends_log))
    xp = array_module(*jax.tree.leaves(k), gpu_log, host_log, ends_log)
    layer, comm = _block(f, f.layer, k, xp)
    layer = layer._replace(host_s=layer.host_s + crossing_host_s(f, k, xp))
    correction = xp.exp(gpu_log)
    layer_s = _sharp_max(xp, (layer.gpu_s + comm) * correction, layer.host_s * xp.exp(host_log), layer.beside_s)
    ends = [_block(f, block, k, xp) for block in (f.embedding, f.head)]
    embedding_s, head_s = (
        _sharp_max(xp, block.gpu_s + shown, block.host_s + (k.input_s if at == 0 else 0.0), block.beside_s) * xp.exp(ends_log)
        for at, (block, shown) in enumerate(ends)
    )
    alone = f.stages == 1
    sends_s = xp.where(alone, 0.0, f.chunks * ((1 - f.sends_hidden) * 2 * k.p2p * f.sends_s + k.slot_s) + k.stall_s * f.stalls)
    first_s = f.layers_first * layer_s + embedding_s + sends_s
    last_s = xp.where(alone, first_s + head_s, f.layers_last * layer_s + head_s + sends_s)
    other_s = xp.where(f.stages > 2, f.layers_most * layer_s + sends_s, 0.0)
    most_s = xp.maximum(xp.maximum(first_s, last_s), other_s)
    between = f.layers - f.layers_first - f.layers_last
    sum_s = xp.where(alone, last_s, first_s + last_s + between * layer_s + xp.maximum(f.stages - 2, 0) * sends_s)
    bubble_s = f.fill * xp.maximum(sum_s - most_s, 0.0)
    backward_s = f.layers_last * _phase_s(f.layer, k, BACKWARD)
    reduction_s = k.reduction * f.reduction_s
    reduction_s = xp.maximum(reduction_s - f.reduction_hidden * backward_s, 0.1 * f.reduction_hidden * reduction_s)
    reduction_s = reduction_s + k.reduction * f.updated_s + k.collective_launch_s * f.reduction_calls
    optimizer_s = k.optimizer * k.memory * f.optimizer_s + k.launch_s * f.optimizer_kernels + k.layer_gather_s * f.gathered_layers
    step_s = f.micro_batches * most_s + bubble_s + reduction_s + optimizer_s + k.fixed_s
    at_work = f.layers_most * layer.gpu_s * correction
    comm_s = f.layers_most * comm * correction
    for block, shown in ends:
        at_work, comm_s = at_work + block.gpu_s / f.stages, comm_s + shown / f.stages
    compute_s = f.micro_batches * at_work + k.optimizer * k.memory * f.optimizer_s
    exposed_s = f.micro_batches * (comm_s + sends_s) + reduction_s
    host_s = xp.maximum(step_s - bubble_s - compute_s - exposed_s, 0.0)
    return Parts(step_s, compute_s, exposed_s, bubble_s, host_s, layer_s, layer.host_s / (layer.gpu_s + comm))


class _Times(NamedTuple):
    gpu_s: Any  # without communication
    host_s: Any
    beside_s: Any


def _block(f: Features, block: Block, k: Knobs, xp: Any) -> tuple[_Times, Any]:
    """(times of a block, communication in it that nothing hides)."""
    gpu_s = sum(_phase_s(block, k, phase) for phase in range(len(PHASES)))
    inside = k.tp * block.tp_s.sum(0) + k.tp_arrival_s * block.tp_calls.sum(0)
    latency_s = ring_latency_s(f, k, block.tp_calls.sum(0))
    across = across_s(xp, k.tp_across * block.tp_s.sum(0), latency_s)
    comm_s = xp.where(f.tp_nodes > 1, across, inside) + k.exchange * block.exchange_s.sum(0)
    gather_s = k.gather * block.gather_s.sum(0)
    comm_s = comm_s + k.gather_shown * gather_s
    calls = (block.tp_calls + block.exchange_calls + block.gather_calls).sum(0)
    host_s = k.launch_s * (block.kernels[:BACKWARD].sum(0) + k.backward_launch * block.kernels[BACKWARD]) + k.collective_launch_s * calls
    return _Times(gpu_s, host_s, gather_s), comm_s


def _phase_s(block: Block, k: Knobs, phase: int) -> Any:
    """GPU seconds of one phase without communication."""
    products = k.gemm * (block.gemm_s[phase] + k.misaligned_gemm * block.misaligned_s[phase])
    return products + k.attention * block.attention_s[phase] + k.memory * block.memory_s[phase] + k.exposed_kernel_s * block.kernels[phase]


def _sharp_max(xp: Any, *seconds: Any) -> Any:
    """p-norm of some times: hardly above the largest."""
    most = functools.reduce(xp.maximum, seconds) + _LEAST_S
    return most * sum((one / most) ** _SHARPNESS for one in seconds) ** (1 / _SHARPNESS)
