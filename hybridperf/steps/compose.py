"""The time of a training step from the times of its parts: a closed form, differentiable in every knob.

    GPU of a block   = gemm + attention + memory-bound ops + kernels x (exposed seconds) + collectives that nothing hides
    host of a block  = kernels x (launch cost, forward and backward apart) + collectives x (cost of issuing one)
    layer            = max(GPU, host, gathers of sharded parameters)           sharp: a p-norm of 12; adding them is 60 % off
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
from typing import Any

import jax

from hybridperf.either import array_module
from hybridperf.steps.knobs import Knobs

PHASES = ("forward", "recomputed", "backward")
_SHARPNESS = 12.0  # of the maximum: measured layers turn from host-bound to GPU-bound within a factor of 1.2
_LEAST_S = 1e-12


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True)
class Block:
    """One micro-batch through one layer (or embedding, or head) on one rank, as op model and links price it: [P, N] each."""

    gemm_s: Any
    misaligned_s: Any  # products in 16 bits whose width is no multiple of 8
    attention_s: Any
    memory_s: Any  # everything else that the GPU computes
    kernels: Any
    tp_s: Any  # tensor-parallel collectives
    tp_calls: Any
    exchange_s: Any  # context- and expert-parallel messages
    exchange_calls: Any
    gather_s: Any  # parameters gathered and gradients scattered by sharding, beside the computation
    gather_calls: Any
