"""KAISA's choice (Pauloski et al., SC21): on which share f of the ranks does K-FAC keep a layer's
inverses?

A matrix with a inputs and g outputs has two factors of a^2 and g^2 elements, whose eigenvectors (as
many) and eigenvalue products (a g) precondition its gradient. Ranks form a grid of m = max(1, world
f) by n = world / m: a layer belongs to one of n groups of m ranks, the least loaded one, largest
first. In a group each of a layer's two factors is inverted by one rank, again the least loaded, and
sent to the others; all m then precondition its gradient, and each sends it to n - 1 ranks of other
groups.

    memory of inverses per rank    those of the group's layers: about f of all
    gradients received per step    those of other groups' layers: about 1 - f of all
    inversion                      n^3 each, the fullest rank counts, every `every` steps
    preconditioning                a g (a + g) each; all of the group's layers on each of its
                                   ranks, every step

Few inverses per rank and many messages, or the other way round: a Pareto front.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

import hybridperf as hp

# seconds to invert and to precondition (by inverses, fp32) the matrices of one layer of BERT-large on
# a V100, as published
PUBLISHED_INVERT_S, PUBLISHED_PRECONDITION_S = 80.8e-3, 8.9e-3
PUBLISHED_DEVICE = "v100_sxm2"


class Factored(NamedTuple):
    """A weight matrix whose gradient K-FAC preconditions by two Kronecker factors."""

    inputs: int  # columns; a bias is one more input
    outputs: int  # rows

    @property
    def factors(self) -> int:
        """Elements of both factors, and of their eigenvectors."""
        return self.inputs**2 + self.outputs**2

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs

    @property
    def products(self) -> int:
        """Cost of preconditioning the gradient up to a constant: a g (a + g)."""
        return self.inputs * self.outputs * (self.inputs + self.outputs)

    @property
    def cubes(self) -> int:
        """Cost of inverting both factors, up to a constant."""
        return self.inputs**3 + self.outputs**3


def factored(shape: hp.TransformerShape) -> list[Factored]:
    """The weight matrices of a Transformer's layers, without biases, for `second_order`."""
    if shape.experts or shape.latent or shape.scan:
        others = f"not of experts, latent attention or scans, as {shape.name} has"
        raise hp.InputError(f"K-FAC's factors are known of plain layers, {others}")
    h = shape.hidden
    attention = [
        Factored(h, shape.query_width), Factored(h, shape.key_width),
        Factored(h, shape.value_width), Factored(shape.context_width, h),
    ]  # fmt: skip
    found = []
    for block in shape.layer_kinds:
        mlp = [Factored(h, block.ffn)] * (2 if shape.gated else 1) + [Factored(block.ffn, h)]
        found += (attention * (2 if block.cross else 1) + mlp) * block.count
    return found


def priced(
    device: str, system: str, gpus: int, shape: hp.TransformerShape, *, dtype: str = "fp16",
    every: int = 10,
) -> "list[SecondOrder]":  # fmt: skip
    """What K-FAC adds on a machine at every share, smallest first: products and broadcasts by the
    price of each, a group's gradients sent among as many ranks as there are groups; inversions by
    the published seconds of a V100's fp32, scaled to the device by fp32 peaks (an assumption).

    Args:
        device: by name.
        system: whose links carry inverses and gradients.
        gpus: ranks, by data alone.
        shape: the model.
        dtype: that preconditioning runs in, and that inverses and gradients are sent in.
        every: steps between inversions.
    """
    layers = factored(shape)
    published = factored(hp.load_shape("bert-large"))[:6]
    peak, of_v100 = (
        hp.load_device(name).peak("fp32", "vector") for name in (device, PUBLISHED_DEVICE)
    )
    per_cube = PUBLISHED_INVERT_S * of_v100 / peak / sum(one.cubes for one in published)
    per_product = precondition_s(device, layers[:6], dtype)
    per_product /= sum(one.products for one in layers[:6])
    element_bytes = 2.0 if dtype in ("fp16", "bf16") else 4.0
    small, large = (element_bytes * of(one.weights for one in layers) for of in (min, max))
    workers = [m for m in range(1, gpus + 1) if gpus % m == 0]
    ends = [max(gpus // m, 2) for m in workers]
    each = hp.load_system(system).accelerators_per_node
    rows = pd.DataFrame({
        "collective": "broadcast", "bytes": [small, large] * len(ends),
        "n_gpus": np.repeat(ends, 2), "n_nodes": np.repeat([max(n // each, 1) for n in ends], 2),
    })  # fmt: skip
    seconds = hp.predict_collectives(rows, system)["predicted_s"].to_numpy().reshape(-1, 2)
    found = []
    for m, (small_s, large_s) in zip(workers, seconds, strict=True):
        bytes_per_s = (large - small) / (large_s - small_s)
        latency_s = max(small_s - small / bytes_per_s, 0.0)
        costs = SecondOrderCosts(
            per_cube, per_product, bytes_per_s, latency_s, element_bytes, every
        )
        found.append(second_order(layers, gpus, m / gpus, costs))
    return found


def precondition_s(device: str, layer: Sequence[Factored], dtype: str, sides: int = 2) -> float:
    """Seconds of preconditioning matrices' gradients, by the price of their products.

    `sides`: products by each factor: with its eigenvectors, there and back; one by its inverse.
    """
    rows = [
        {"op": "gemm", "dtype": dtype, "m": one.outputs, "n": one.inputs, "k": k}
        for one in layer for k in (one.outputs, one.inputs)
    ]  # fmt: skip
    found = hp.predict_ops(pd.DataFrame(rows), hp.load_model(device))
    return sides * float(found["predicted_s"].sum())


@dataclasses.dataclass(frozen=True)
class SecondOrderCosts:
    """What K-FAC costs on a machine, and how often its factors are inverted."""

    invert_s_per_cube: float  # seconds to invert an n x n factor, over n^3
    precondition_s_per_product: float  # seconds for a inputs, g outputs, over a g (a + g)
    bytes_per_s: float  # bandwidth of a broadcast
    latency_s: float = 0.0  # of a broadcast
    element_bytes: float = 4.0  # bytes of a number
    every: int = 10  # steps between inversions

    @classmethod
    def of_layer(
        cls, layers: Sequence[Factored], invert_s: float, precondition_s: float, *,
        bytes_per_s: float, latency_s: float = 0.0, every: int = 10,
    ) -> Self:  # fmt: skip
        """Rates from measured seconds of inverting and preconditioning some layers."""
        per_cube = invert_s / sum(layer.cubes for layer in layers)
        per_product = precondition_s / sum(layer.products for layer in layers)
        return cls(per_cube, per_product, bytes_per_s, latency_s, every=every)


class SecondOrder(NamedTuple):
    """One share of gradient workers in KAISA, and what it costs the most loaded rank."""

    share: float  # f: share of the ranks that keep a layer's inverses
    grad_workers: int  # m: ranks of a group
    groups: int  # n
    memory_bytes: float  # of inverses on a rank
    received_bytes: float  # of gradients, per step
    inverse_bytes: float  # of inverses sent, per inversion
    imbalance: float  # inversion work of the most loaded rank over the mean
    invert_s: float  # seconds per step, inversions spread over the steps between them
    precondition_s: float  # seconds per step
    communication_s: float  # seconds per step

    @property
    def step_s(self) -> float:
        """What K-FAC adds to a step."""
        return self.invert_s + self.precondition_s + self.communication_s


def second_order(
    layers: Sequence[Factored], world: int, share: float, costs: SecondOrderCosts
) -> SecondOrder:
    """What K-FAC adds to a step if a share of the ranks keeps each layer's inverses.

    The assignment and costs of KAISA (Pauloski et al., SC21).

    Args:
        layers: matrices that are preconditioned.
        world: number of ranks.
        share: share of the ranks that are gradient workers of a layer, 0 to 1.
        costs: rates of the machine.

    Raises:
        hp.InputError: when the share does not divide the ranks into equal groups.
    """
    if not layers or world < 1 or not 0 < share <= 1:
        got = f"got {len(layers)} layers, {world} ranks, {share}"
        raise hp.InputError(f"K-FAC needs layers, 1 or more ranks and a share in (0, 1], {got}")
    m = max(1, round(world * share))
    if world % m:
        near = min((k for k in range(1, world + 1) if world % k == 0), key=lambda k: abs(k - m))
        got = f"got {m} (a share of {share}); take {near / world:g}"
        raise hp.InputError(f"gradient workers must divide {world} ranks, {got}")
    n = world // m
    group_of = balanced([layer.cubes for layer in layers], n)
    jobs = np.array(layers, float) ** 3  # [L, 2]
    of_groups = [jobs[group_of == group].ravel() for group in range(n)]
    fullest = float(max(np.bincount(balanced(one, m), one, m).max() for one in of_groups))
    elements, weights, products = (
        np.bincount(group_of, [getattr(layer, name) for layer in layers], n)
        for name in ("factors", "weights", "products")
    )
    inverted = 2 * np.bincount(group_of, minlength=n)
    size = costs.element_bytes
    received = (weights.sum() - weights.min()) * size if n > 1 else 0.0
    spread = elements.max() * size * (1 - 1 / m)  # a group's inverses that its other ranks made
    messages = (len(layers) if n > 1 else 0) + (inverted.max() / costs.every if m > 1 else 0)
    sent_bytes = received + spread / costs.every
    communication_s = sent_bytes / costs.bytes_per_s + messages * costs.latency_s
    return SecondOrder(
        m / world, m, n, float((elements + weights).max() * size), float(received), float(spread),
        fullest / (float(jobs.sum()) / world), fullest * costs.invert_s_per_cube / costs.every,
        float(products.max()) * costs.precondition_s_per_product, float(communication_s),
    )  # fmt: skip


def second_orders(
    layers: Sequence[Factored], world: int, costs: SecondOrderCosts
) -> list[SecondOrder]:
    """The costs of every share that divides the ranks into equal groups, smallest share first."""
    workers = (m for m in range(1, world + 1) if world % m == 0)
    return [second_order(layers, world, m / world, costs) for m in workers]


def second_order_front(
    layers: Sequence[Factored], world: int, costs: SecondOrderCosts
) -> list[SecondOrder]:
    """Shares on the Pareto front of memory and step time, the one with least memory first."""
    found = second_orders(layers, world, costs)
    costs_of = [(one.memory_bytes, one.step_s) for one in found]
    return [
        one
        for one, (size, step_s) in zip(found, costs_of, strict=True)
        if not any(a <= size and b <= step_s and (a, b) != (size, step_s) for a, b in costs_of)
    ]


def balanced(costs: Sequence[float] | np.ndarray, bins: int) -> np.ndarray:
    """The bin of each job [J]: largest first, each to the least loaded one."""
    load, where = np.zeros(bins), np.zeros(len(costs), int)
    for job in sorted(range(len(costs)), key=lambda job: -costs[job]):
        where[job] = load.argmin()
        load[where[job]] += costs[job]
    return where
