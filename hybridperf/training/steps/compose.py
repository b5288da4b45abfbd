"""The time of a training step from the times of its parts: a closed form, differentiable in every
step effect.

    GPU of a block   products + attention + memory-bound ops + kernels x (exposed seconds)
                     + collectives that nothing hides
    host of a block  kernels x (launch cost, forward and backward apart)
                     + collectives x (cost of issuing one)
    layer            max(GPU, host, gathers of sharded weights), as a p-norm of 12: measured layers
                     turn from host-bound to GPU-bound within a factor of 1.2; adding is 60 % off
    stage            its layers + embedding or LM head + messages to its neighbours
    step             m max_stage + fill (sum_stages - max_stage) + exposed gradient reduction
                     + optimizer + fixed

m micro-batches per step. `fill` is how much of the pipeline's filling and draining shows: 1 for
1F1B and GPipe, 1 / v with v chunks per stage. For GPipe and 1F1B this is (m - 1) max + sum, which
measured steps follow to under 1 %. Chimera and zero bubble: `pipelines.py`.

The step is also the sum of four parts, as the slowest stage's GPU sees it:

    compute          products, attention and memory-bound ops, exposed seconds of kernels among
                     them; the optimizer's own
    communication    what nothing hides: collectives in blocks, what gathers outlast computation by,
                     messages, the exposed reduction with the cost of issuing it, and updated
                     weights on their way back
    bubble           waiting for other stages
    host             waiting for its own host: what blocks take longer than all of that, the
                     optimizer's launches, and `fixed_s`, the host's work around a step

Axes: N rows, P = 3 phases. Columns are NumPy's or JAX's (`io/namespace.py`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridperf.io.namespace import Array, array_module, fresh_views
from hybridperf.training.steps.cross_node import across_s, crossing_host_s, ring_latency_s
from hybridperf.training.steps.pipelines import Stages, interleaved_pace, pace
from hybridperf.training.steps.step_effects import StepEffects
from hybridperf.training.steps.step_features import (
    BACKWARD,
    PHASES,
    BlockPrices,
    StepFeatures,
    StepParts,
)

_SHARPNESS = 12.0  # of the p-norm
_MIN_S = 1e-12
_ROUNDING = 1e-12  # of a step


def step_seconds(
    f: StepFeatures, k: StepEffects, gpu_log: Array = 0.0, host_log: Array = 0.0,
    outer_log: Array = 0.0,
) -> StepParts:  # fmt: skip
    """Seconds of steps [N] and their parts; pure, differentiable in effects and corrections.

    Args:
        f: what is known of each row.
        k: step effects, one number each or a batch.
        gpu_log: correction of the log of a layer's GPU seconds [N].
        host_log: the same of its host's seconds [N].
        outer_log: the same of embedding and LM head [N].
    """
    f, k, gpu_log, host_log, outer_log = fresh_views((f, k, gpu_log, host_log, outer_log))
    xp = array_module(*jax.tree.leaves(k), gpu_log, host_log, outer_log)
    layer = _block(f, f.layer, k, xp)
    layer = layer._replace(host_s=layer.host_s + crossing_host_s(f, k, xp))
    on_gpu, on_host, on_outer = xp.exp(gpu_log), xp.exp(host_log), xp.exp(outer_log)
    busy_s = layer.gpu_s + layer.comm_s
    layer_s, layer_gathers_s = _paced(xp, busy_s * on_gpu, layer.host_s * on_host, layer.gathers_s)
    embedding, head = (_block(f, block, k, xp) for block in (f.embedding, f.head))
    embedding_s, embedding_gathers_s = _paced(
        xp, embedding.gpu_s + embedding.comm_s, embedding.host_s + k.input_s, embedding.gathers_s
    )
    head_s, head_gathers_s = _paced(xp, head.gpu_s + head.comm_s, head.host_s, head.gathers_s)
    embedding_s, head_s = embedding_s * on_outer, head_s * on_outer
    alone = f.stages == 1
    per_chunk_s = (1 - f.sends_hidden) * 2 * k.p2p * f.sends_s + k.slot_s
    sends_s = xp.where(alone, 0.0, f.chunks * per_chunk_s + k.stall_s * f.stalls)
    first_s = f.layers_first * layer_s + embedding_s + sends_s
    last_s = xp.where(alone, first_s + head_s, f.layers_last * layer_s + head_s + sends_s)
    other_s = xp.where(f.stages > 2, f.layers_most * layer_s + sends_s, 0.0)
    between = f.layers - f.layers_first - f.layers_last
    several_s = first_s + last_s + between * layer_s + xp.maximum(f.stages - 2, 0) * sends_s
    stages = Stages(first_s, last_s, other_s, xp.where(alone, last_s, several_s))
    slowest = pace(xp, f, stages)
    if f.schedule is not None:
        passes = functools.partial(_pass_seconds, xp, f, k, on_gpu, on_host)
        slowest = interleaved_pace(xp, f, slowest, stages, passes)
    # hidden messages show while a pipeline fills and drains: exact of interleaving, and of 1F1B
    # with a heavy last stage
    shown_s = f.sends_hidden * 2 * (f.chunks * f.stages - 1) * k.p2p * f.sends_s
    bubble_s = slowest.waits_s + xp.where(alone, 0.0, shown_s)
    whole_s = k.reduction * f.reduction_s
    hiding_s = f.reduction_hidden * (f.layers_last * layer.backward_s)
    reduction_s = xp.maximum(whole_s - hiding_s, 0.1 * f.reduction_hidden * whole_s)
    issuing_s = k.collective_launch_s * f.reduction_calls
    reduction_s = reduction_s + k.reduction * f.updated_s + issuing_s
    update_s = k.optimizer * k.memory * f.optimizer_s
    gathered_s = k.layer_gather_s * f.gathered_layers
    optimizer_s = update_s + k.launch_s * f.optimizer_kernels + gathered_s
    step_s = f.micro_batches * slowest.stage_s + bubble_s + reduction_s + optimizer_s + k.fixed_s
    outer_gpu_s = slowest.embeddings * embedding.gpu_s + slowest.heads * head.gpu_s
    at_work_s = slowest.layers * (layer.gpu_s * on_gpu) + outer_gpu_s * on_outer
    comm_s = slowest.layers * (layer.comm_s * on_gpu + layer_gathers_s) + sends_s
    outer_comm_s = slowest.embeddings * (embedding.comm_s + embedding_gathers_s)
    outer_comm_s = outer_comm_s + slowest.heads * (head.comm_s + head_gathers_s)
    compute_s = f.micro_batches * at_work_s + update_s
    exposed_s = f.micro_batches * (comm_s + outer_comm_s * on_outer) + reduction_s + gathered_s
    # only rounding puts it below zero, and so little above; what follows likewise
    exposed_s = xp.where(exposed_s > _ROUNDING * step_s, exposed_s, 0.0)
    host_s = xp.maximum(step_s - (compute_s + exposed_s + bubble_s), 0.0)
    return StepParts(step_s, compute_s, exposed_s, bubble_s, host_s, layer_s)


class _BlockTimes(NamedTuple):
    gpu_s: Array  # without communication
    comm_s: Array  # communication that nothing hides
    host_s: Array
    gathers_s: Array  # gathers of sharded weights, overlapped
    backward_s: Array  # of gpu_s


def _block(f: StepFeatures, block: BlockPrices, k: StepEffects, xp: Any) -> _BlockTimes:
    phases = range(len(PHASES))
    forward_s, recomputed_s, backward_s = (_phase_s(block, k, phase) for phase in phases)
    tp_s, tp_calls = block.tp_s.sum(0), block.tp_calls.sum(0)
    inside = k.tp * tp_s + k.tp_arrival_s * tp_calls
    across = across_s(xp, k.tp_across * tp_s, ring_latency_s(f, k, tp_calls))
    comm_s = xp.where(f.tp_nodes > 1, across, inside) + k.exchange * block.exchange_s.sum(0)
    gather_s = k.gather * block.gather_s.sum(0)
    # waiting for a network takes nothing from computing: only the part inside a node shows
    comm_s = comm_s + k.gather_shown * k.gather * block.gather_inside_s.sum(0)
    calls = (block.tp_calls + block.exchange_calls + block.gather_calls).sum(0)
    launches = block.kernels[:BACKWARD].sum(0) + k.backward_launch * block.kernels[BACKWARD]
    host_s = k.launch_s * launches + k.collective_launch_s * calls
    return _BlockTimes(forward_s + recomputed_s + backward_s, comm_s, host_s, gather_s, backward_s)


def _phase_s(block: BlockPrices, k: StepEffects, phase: int) -> Array:
    """GPU seconds of one phase without communication."""
    products = k.gemm * (block.gemm_s[phase] + k.misaligned_gemm * block.misaligned_s[phase])
    with_attention = products + k.attention * block.attention_s[phase]
    with_memory = with_attention + k.memory * block.memory_s[phase]
    return with_memory + k.exposed_kernel_s * block.kernels[phase]


def _pass_seconds(
    xp: Any, f: StepFeatures, k: StepEffects, on_gpu: Array, on_host: Array
) -> tuple[Array, Array]:
    """Seconds of a layer (forward, backward with what is recomputed), each by itself."""
    found = []
    for kept in ((1.0, 0.0, 0.0), (0.0, 1.0, 1.0)):
        phases = np.array(kept)[:, None]
        one = _block(f, jax.tree.map(lambda leaf, phases=phases: leaf * phases, f.layer), k, xp)
        busy_s = (one.gpu_s + one.comm_s) * on_gpu
        found.append(_paced(xp, busy_s, one.host_s * on_host, one.gathers_s)[0])
    return found[0], found[1]


def _paced(xp: Any, busy_s: Array, host_s: Array, gather_s: Array) -> tuple[Array, Array]:
    """(seconds of a block: a p-norm of three; those by which gathers outlast the GPU's work)."""
    most = xp.maximum(xp.maximum(busy_s, host_s), gather_s) + _MIN_S
    busy, host, gather = ((one / most) ** _SHARPNESS for one in (busy_s, host_s, gather_s))
    with_gathers_s = most * (busy + gather) ** (1 / _SHARPNESS)
    return most * (busy + host + gather) ** (1 / _SHARPNESS), with_gathers_s - busy_s
