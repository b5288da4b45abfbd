"""Seconds of a deployment's steps by size: calls of all sizes of all deployments of one machine,
priced at once, each size a chain of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.step_times import StepTimes, chain_seconds, chain_seconds_by
from hybridperf.engine.workload import Workload
from hybridperf.hardware import DeviceSpec
from hybridperf.io.namespace import Array, array_module, fresh_views
from hybridperf.model import PerfModel, Platform
from hybridperf.model.calls import Call, CallChain
from hybridperf.ops.frameworks import serving_framework
from hybridperf.workloads.serving.deployment import Deployment, decodes_as_prompts
from hybridperf.workloads.serving.layers import Kernel, ServedCalls


def _doubling(least: float, most: float) -> tuple[float, ...]:
    return tuple(2.0**at for at in np.arange(np.log2(least), np.log2(most) + 0.5))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Points that steps are composed at, of each attention rank."""

    tokens: tuple[float, ...] = _doubling(1, 16384)
    sequences: tuple[float, ...] = _doubling(1, 2048)
    keys: tuple[float, ...] = _doubling(128, 131072)[::2]
    chunk: tuple[float, ...] = (64, 256, 1024, 2048, 4096, 8192, 16384)
    chunk_keys: tuple[float, ...] = (64, 256, 1024, 4096, 16384, 65536)


# kernels that latent attention and experts take beside our calls of them: copies, quantisation;
# routing, permutation, activation, sums. With a tensor memory experts are one kernel with their
# routing (TRTLLM-Gen's, which SGLang takes too). Beliefs by rows of one prompt at a time; SGLang's
# pull request 12160 has 83 ms for a token of DeepSeek-V3 kernel by kernel (30 a layer at
# `LAUNCH_S`), 23 ms as a graph
_MORE_OF_LATENT, _MORE_OF_EXPERTS, _MORE_OF_FUSED_EXPERTS = 10, 24, 4


def prompt_launches(deployment: Deployment, device: DeviceSpec) -> float:
    """Kernels that a step with prompts launches one by one: such steps are no CUDA graphs. Of a
    pipeline, those of a stage, whose host launches no others; of eager steps, which one token
    passes stage by stage, all.
    """
    calls = float(sum(times for _, times in ServedCalls(deployment, 8).products(8192.0)))
    latent = _MORE_OF_LATENT if deployment.shape.latent is not None else 0
    fused = device.tensor_memory or serving_framework(deployment.framework).fuses_experts
    experts = _MORE_OF_FUSED_EXPERTS if fused else _MORE_OF_EXPERTS
    hosts = deployment.pp if deployment.launches == "graph" else 1
    calls += sum(
        kind.count * (latent * (kind.mixer == "attention") + experts * bool(kind.experts))
        for kind in deployment.shape.layer_kinds
    )
    return calls / hosts


@dataclasses.dataclass(frozen=True)
class _Listed:
    """Calls of all sizes of deployments, and which chain of them is which entry of their tables."""

    rows: list[Call]
    chains: list[CallChain]
    deployments: Sequence[Deployment]
    # places of products, decoding, prompts and decoding beside them; kernels
    tables: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, float]]
    beside: Mapping[int, tuple[np.ndarray, np.ndarray]]  # by deployment: places of messages that
    # travel while products run [K], and the share of the multiprocessors that send them [K]
    sizes: Sizes

    def times(self, seconds: Array) -> list[StepTimes]:
        """Of each deployment, by the seconds of chains; NumPy, or differentiable in JAX."""
        module = array_module(seconds)
        axes = (np.array(getattr(self.sizes, one.name), float)
                for one in dataclasses.fields(self.sizes))  # fmt: skip
        tokens, sequences, keys, chunk, chunk_keys = axes
        found = []
        for at, (one, (products_at, decode_at, prefill_at, beside_at, kernels)) in enumerate(
            zip(self.deployments, self.tables, strict=True)
        ):
            products_s, decode_s, messages_s = seconds[products_at], seconds[decode_at], None
            if at in self.beside:
                messages_at, held = self.beside[at]
                messages_s = seconds[messages_at]
                products_s = products_s + held * messages_s
            beside_s = None if beside_at is None else module.maximum(seconds[beside_at], decode_s)
            if one.drafted:  # products of all tokens of a sequence, where one is counted
                more = module.interp(sequences * (1.0 + one.drafted), tokens, products_s)
                more = (more - module.interp(sequences, tokens, products_s))[:, None]
                decode_s, beside_s = decode_s + more, None if beside_s is None else beside_s + more
            found.append(
                StepTimes(
                    tokens, products_s, sequences, keys, decode_s, chunk, chunk_keys,
                    seconds[prefill_at], beside_s=beside_s, kernels=float(kernels),
                    messages_s=messages_s,
                )
            )  # fmt: skip
        return found


def step_times(
    model: PerfModel, deployments: Sequence[Deployment], all_reduce: str = "",
    sizes: Sizes | None = None,
) -> list[StepTimes]:  # fmt: skip
    """Of each deployment.

    Args:
        model: the machine, with collectives where a deployment spans several GPUs.
        deployments: engines on it.
        all_reduce: the library whose all-reduce runs, as tables of collectives name it.
        sizes: that are composed; the usual ones if not given.
    """
    listed = _listed(model, deployments, all_reduce, sizes or Sizes())
    return listed.times(chain_seconds(model, listed.rows, listed.chains))


def step_times_by(
    model: PerfModel, deployment: Deployment, all_reduce: str = "", sizes: Sizes | None = None
) -> Callable[[Platform], StepTimes]:
    """A deployment's steps on variations of a machine (`model.platform()`, whose bandwidths and
    knobs may be traced): what tokens a second gain by each is then a gradient. As `step_times`.
    """
    listed = _listed(model, [deployment], all_reduce, sizes or Sizes())
    seconds_by = chain_seconds_by(model, listed.rows, listed.chains)
    return lambda platform: listed.times(seconds_by(platform))[0]


def steps_as_rows(
    model: PerfModel, deployment: Deployment, all_reduce: str = "", sizes: Sizes | None = None
) -> tuple[Workload, Callable[[Array], StepTimes]]:
    """A deployment's steps of all sizes as rows of a workload, and its tables by the seconds of
    those rows [U]; the workload's own graph runs the first row alone. As `step_times`.
    """
    listed, builder = _listed(model, [deployment], all_reduce, sizes or Sizes()), GraphBuilder()
    builder.op(1)
    name = f"steps of {deployment.shape.name}"
    rows = Workload(name, builder.build(), (*listed.rows, *listed.chains))

    def tables(seconds: Array) -> StepTimes:
        fresh = dataclasses.replace(listed, tables=fresh_views(listed.tables))
        return fresh.times(seconds[len(listed.rows) :])[0]

    return rows, tables


def _listed(
    model: PerfModel, deployments: Sequence[Deployment], all_reduce: str, sizes: Sizes
) -> _Listed:
    rows: dict[Call, int] = {}
    chains: list[CallChain] = []
    per_node = model.collectives.system.accelerators_per_node if model.collectives else 8

    def chain(kernels: Sequence[Kernel]) -> int:
        """The place of a size's chain among all; parts count rows from 1."""
        parts = tuple((rows.setdefault(call, len(rows)) + 1, times) for call, times in kernels)
        chains.append(CallChain(parts, "step"))
        return len(chains) - 1

    tables = list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, float]]()
    beside_products = dict[int, tuple[np.ndarray, np.ndarray]]()
    # of decoding, of prompts, and of decoding beside these where it is another kernel
    attention: dict[Deployment, tuple[np.ndarray, np.ndarray, np.ndarray | None]] = {}
    for one in deployments:
        calls = ServedCalls(one, per_node, all_reduce)
        products = [list(calls.products(n)) for n in sizes.tokens]
        if one.two_batches:
            halves = [[Kernel(call, 2 * times) for call, times in calls.products(max(n / 2, 1.0))]
                      for n in sizes.tokens]  # fmt: skip
            sent = [[kernel for kernel in some if kernel.sends] for some in halves]
            if all(sent):
                held = [max(kernel.multiprocessors for kernel in some) for some in sent]
                share = np.array(held) / (model.device.multiprocessors or np.inf)
                beside_products[len(tables)] = np.array([chain(some) for some in sent]), share
                products = [[kernel for kernel in some if not kernel.sends] for some in halves]
        # what engines that differ in their experts alone have alike; drafts compute a whole layer
        alike = (
            one
            if one.drafted
            else dataclasses.replace(one, attention_dp=1, expert_ep=1, moe_backend="")
        )
        if alike not in attention:
            decode = np.array(
                [[chain([*calls.decode(s, x)]) for x in sizes.keys] for s in sizes.sequences]
            )
            beside = None
            if decodes_as_prompts(one, model.device):
                beside = np.array(
                    [[chain([*calls.decode(s, x, True)]) for x in sizes.keys]
                     for s in sizes.sequences]
                )  # fmt: skip
            prefill = np.array(
                [[chain([*calls.prefill(q, p)]) for p in sizes.chunk_keys] for q in sizes.chunk]
            )
            attention[alike] = decode, prefill, beside
        tables.append((
            np.array([chain(some) for some in products]), *attention[alike],
            sum(times for _, times in (*products[0], *calls.decode(1.0, sizes.keys[0])))
            + calls.kernels_of_experts(),
        ))  # fmt: skip
    return _Listed([*rows], chains, deployments, tables, beside_products, sizes)
