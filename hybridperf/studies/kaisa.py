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

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridperf.explore.sweeps.front import undominated
from hybridperf.io import InputError
from hybridperf.workloads.transformer.shape import TransformerShape


class Factored(NamedTuple):
    """One matrix that K-FAC preconditions; a bias is one more input."""

    inputs: int
    outputs: int

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


def factored(shape: TransformerShape) -> list[Factored]:
    """The matrices of a Transformer's layers, biases left out."""
    if shape.experts or shape.latent:
        raise InputError(
            "K-FAC's factors are known of plain layers, not of experts or latent attention, as"
            f" {shape.name} has"
        )
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


@dataclasses.dataclass(frozen=True)
class SecondOrderCosts:
    """Rates of a machine, and how often factors are inverted."""

    invert_s_per_cube: float  # of the size of a factor
    precondition_s_per_product: float  # a g (a + g) of a matrix
    bytes_per_s: float  # of a broadcast
    latency_s: float = 0.0
    element_bytes: float = 4.0
    every: int = 10  # steps between inversions

    @staticmethod
    def of_layer(
        layers: Sequence[Factored], invert_s: float, precondition_s: float, *,
        bytes_per_s: float, latency_s: float = 0.0, every: int = 10,
    ) -> SecondOrderCosts:  # fmt: skip
        """Rates from measured seconds of inverting and preconditioning some layers."""
        per_cube = invert_s / sum(layer.cubes for layer in layers)
        per_product = precondition_s / sum(layer.products for layer in layers)
        return SecondOrderCosts(per_cube, per_product, bytes_per_s, latency_s, every=every)


class SecondOrder(NamedTuple):
    """One share, and what it costs the fullest rank."""

    share: float  # f
    grad_workers: int  # m
    groups: int  # n
    memory_bytes: float  # of inverses
    received_bytes: float  # gradients per step
    inverse_bytes: float  # of inverses sent, per inversion
    imbalance: float  # of inversion: fullest rank over the mean of all
    invert_s: float  # per step
    precondition_s: float
    communication_s: float

    @property
    def step_s(self) -> float:
        """What K-FAC adds to a step."""
        return self.invert_s + self.precondition_s + self.communication_s


def second_order(
    layers: Sequence[Factored], world: int, share: float, costs: SecondOrderCosts
) -> SecondOrder:
    """The costs of one share of gradient workers."""
    if not layers or world < 1 or not 0 < share <= 1:
        raise InputError(
            f"K-FAC needs layers, 1 or more ranks and a share in (0, 1], got {len(layers)} layers,"
            f" {world} ranks, {share}"
        )
    m = max(1, round(world * share))
    if world % m:
        near = min((k for k in range(1, world + 1) if world % k == 0), key=lambda k: abs(k - m))
        raise InputError(
            f"gradient workers must divide {world} ranks, got {m} (a share of {share}); take"
            f" {near / world:g}"
        )
    n = world // m
    group_of = balanced([layer.cubes for layer in layers], n)
    cubes, elements, weights, inverted, products = (np.zeros(n) for _ in range(5))
    fullest = 0.0
    for group in range(n):
        mine = [layer for layer, where in zip(layers, group_of, strict=True) if where == group]
        jobs = [side**3 for layer in mine for side in layer]
        load = np.zeros(m)
        np.add.at(load, balanced(jobs, m), jobs)
        fullest = max(fullest, float(load.max()))
        cubes[group], elements[group] = sum(jobs), sum(layer.factors for layer in mine)
        weights[group] = sum(layer.weights for layer in mine)
        inverted[group] = len(jobs)
        products[group] = sum(layer.products for layer in mine)
    size = costs.element_bytes
    received = (weights.sum() - weights.min()) * size if n > 1 else 0.0
    spread = elements.max() * size * (1 - 1 / m)  # a group's inverses that its other ranks made
    messages = (len(layers) if n > 1 else 0) + (inverted.max() / costs.every if m > 1 else 0)
    sent_bytes = received + spread / costs.every
    communication_s = sent_bytes / costs.bytes_per_s + messages * costs.latency_s
    return SecondOrder(
        m / world, m, n, float((elements + weights).max() * size), float(received), float(spread),
        fullest / (float(cubes.sum()) / world), fullest * costs.invert_s_per_cube / costs.every,
        float(products.max()) * costs.precondition_s_per_product, float(communication_s),
    )  # fmt: skip


def second_orders(
    layers: Sequence[Factored], world: int, costs: SecondOrderCosts
) -> list[SecondOrder]:
    """All shares that divide the ranks, the smallest first."""
    workers = (m for m in range(1, world + 1) if world % m == 0)
    return [second_order(layers, world, m / world, costs) for m in workers]


def second_order_front(
    layers: Sequence[Factored], world: int, costs: SecondOrderCosts
) -> list[SecondOrder]:
    """Pareto front of memory and time over all shares that divide the ranks, least memory first."""
    found = second_orders(layers, world, costs)
    values = np.array([[one.memory_bytes, one.step_s] for one in found])
    return [found[at] for at in undominated(values, np.arange(len(found)))]


def balanced(costs: Sequence[float], bins: int) -> np.ndarray:
    """The bin of each job [J]: largest first, each to the least loaded one."""
    load, where = np.zeros(bins), np.zeros(len(costs), int)
    for job in sorted(range(len(costs)), key=lambda job: -costs[job]):
        where[job] = load.argmin()
        load[where[job]] += costs[job]
    return where
