"""Step effects: what a training step adds to single ops and messages, each with what is believed
of it before any step is measured.

An effect multiplies what the op model or the links give, or is seconds that they do not have. All
are positive and are fitted and saved as such; beliefs are log-normal: a median, and a width in logs
(0.1: within 10 % in two cases of three). `source` tells where each comes from, or that it is
assumed; one was fitted to measured steps (`gather_shown`), each source by itself.
"""

# ruff: noqa: RUF009  (`_effect` makes a dataclass field)
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.workloads.transformer.launching import LAUNCH_S, LAUNCH_WIDTH

OF_OPS = ("gemm", "attention")  # effects on what the op model prices


@dataclasses.dataclass(frozen=True)
class Belief:
    """What is believed of an effect before any step is measured."""

    median: float
    width: float  # in logs
    source: str


def _effect(median: float, width: float, source: str) -> Any:
    return dataclasses.field(default=median, metadata={"belief": Belief(median, width, source)})


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass(frozen=True)
class StepEffects:
    """One number each for a batch of rows; leaves may be traced by JAX or carry a batch."""

    # fmt: off
    gemm: Any = _effect(1.0, 0.1,
        "the op model is fitted to measured products; a clock that long products slow down")
    misaligned_gemm: Any = _effect(2.3, 0.35,
        "16-bit products whose width is no multiple of 8: nanoGPT gained 25 % of a step on an"
        " A100 from a vocabulary of 50304 in place of 50257 (its author, 2023), whose head is"
        " about a fifth of the step: (0.2 + 0.25) / 0.2")
    attention: Any = _effect(1.0, 0.3,
        "the op model, slower by what is published of a framework's own generation of kernels;"
        " few backward passes are measured")
    memory: Any = _effect(1.25, 0.15,
        "measured loops, norms and softmax of an A100 reach 75 to 86 % of its bandwidth"
        " (NeuSight's tables)")
    launch_s: Any = _effect(LAUNCH_S, LAUNCH_WIDTH,
        "host seconds between launches in shared PyTorch traces: A100 45 and 30 (forward,"
        " backward), V100 47 and 93, 42 and 36, 30 and 22, RTX 2080 Ti 82 and 60: geometric mean"
        " 44")
    backward_launch: Any = _effect(1.0, 0.2,
        "a launch of the backward pass over one of the forward in those traces: 0.5 to 2, mean"
        " 0.9")
    collective_launch_s: Any = _effect(60e-6, 0.7,
        "assumed: issuing a collective is a launch and some ops of its framework around it")
    exposed_kernel_s: Any = _effect(5e-6, 1.5,
        "the least that a kernel of measured tables takes, and the gap between two in a trace"
        " that never waits for its host: 2 to 6 us")
    tp: Any = _effect(1.0, 0.15, "the links' own model, inside a node")
    tp_arrival_s: Any = _effect(40e-6, 1.2,
        "tables start with all ranks ready; in a step each is fed by its own host, about one"
        " launch apart")
    tp_across: Any = _effect(1.0, 0.3, "the links' own model, between nodes")
    tp_across_node_s: Any = _effect(10e-6, 1.0,
        "for each node of a collective: twice NCCL's own network latency")
    ring_wait_s: Any = _effect(3e-4, 1.0,
        "the same where hosts wait: order of magnitude in the sweep of nanotron, whose rows alone"
        " have it")
    crossing_tp_s: Any = _effect(1e-3, 1.0, "the same")
    layer_gather_s: Any = _effect(20e-6, 1.0, "the same")
    stall_s: Any = _effect(0.25, 0.5, "the same")
    exchange: Any = _effect(1.0, 0.3, "context and expert parallel messages: the links' own model")
    gather: Any = _effect(1.2, 0.3,
        "gathers of sharded parameters overlap with kernels that use the same memory")
    gather_shown: Any = _effect(0.7, 0.5,
        "share of their part inside a node that shows despite the computation: fits of three"
        " sources, each by itself, held toward 0.5, say 0.58 (MosaicML: A100 0.43, H100 0.79),"
        " 0.57 (torchtitan) and 0.91 (Megatron-Bridge); any two of them 0.58 to 0.73")
    p2p: Any = _effect(1.0, 0.2, "the links' own model")
    slot_s: Any = _effect(100e-6, 1.0,
        "each micro-batch of a pipeline: posting and awaiting its messages")
    input_s: Any = _effect(1e-3, 0.7,
        "each micro-batch: some 25 small ops for batch, masks, positions and the loss' mean")
    reduction: Any = _effect(1.0, 0.15, "the links' own model")
    optimizer: Any = _effect(1.0, 0.3,
        "the op model: bytes at the share of bandwidth that loops reach")
    fixed_s: Any = _effect(5e-3, 1.0,
        "a step's own host work: reading a batch, the loss, gradient norm, logging")
    # fmt: on


NAMES = tuple(field.name for field in dataclasses.fields(StepEffects))
BELIEFS: Mapping[str, Belief] = {
    field.name: field.metadata["belief"] for field in dataclasses.fields(StepEffects)
}


def medians() -> StepEffects:
    """Beliefs as step effects."""
    return StepEffects()


def effects_of(theta: Array) -> StepEffects:
    """Step effects from their logs [K]; `theta` may be traced."""
    module = jax.numpy if isinstance(theta, jax.core.Tracer) else np
    return StepEffects(**{name: module.exp(theta[at]) for at, name in enumerate(NAMES)})
