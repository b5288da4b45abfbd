"""The closed form of a collective: two algorithms, of which a library takes the faster one.

    t        = floor + softmin(t_small, t_large)
    t_small  = hop k + node_hop K + (1 + c) b                    few steps, wasteful with bytes
                                                                 (trees, LL protocols)
    t_large  = ring (hop m + node_hop M) + rendezvous + b        many steps, full bandwidth (rings)
    b        = (x^6 + y^6)^(1/6)                                 levels overlap: parts follow each
                                                                 other as they come (pipelined)
    x        = V_in  / (min(e_in (g / 2)^-d, 1.15) B_in)         V_in bytes through a rank's link,
                                                                 datasheet B_in
    y        = V_out / (min(e_out, 1.15) B_out)                  V_out bytes through a node's
                                                                 network, datasheet B_out

g ranks on each of N nodes; softmin(a, b) = (a^-p + b^-p)^(-1/p). k, m are steps inside a node, K, M
across, as a collective's file in `algorithms/` says; usually those of a tree, log2 g and log2 N,
and of a ring through all ranks, g N - N and N - 1. Nothing is faster than the wire (but a little:
where switches reduce, ranks send less than a ring's share). The fixed seconds saturate bandwidth
with message size, without a knot: S / t rises smoothly towards e B (a little above it, by what the
softmin leaves of t_small: (1 + (1 + c)^-p)^(1/p)). d is how bandwidth decays with the ranks of a
box whose links are shared (PCIe: up to 2); below zero, where two ranks do not fill a switched link,
as more do up to eight (g is no more there).
The form is continuous, rises with bytes and never falls below its latency at zero bytes, for any
knobs. Ranks, nodes and steps are numbers in it, not structure.

Each algorithm is an alpha-beta form (Thakur et al., 2005); that NCCL takes the best of several
(algorithm, protocol) pairs, each latency + bytes / bandwidth: NVIDIA/nccl src/graph/tuning.cc. Its
constants are not used here: knobs are fitted.

Axes: N rows, K knobs. `work` [N, 8] holds seconds inside nodes and across them at the datasheet's
rates (zero where nothing goes that way), ranks per node, nodes, and the steps k, K, m, M. All knobs
are logs (sharpness of p - 1, rank_decay of d + 0.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.learning.prior.form import ClosedFormValues

FIXED = ("floor_s", "hop_s", "node_hop_s", "rendezvous_s")  # knobs that are seconds
_RATIO_LIMIT = 12.0
# of the datasheet rate: nothing is faster; a little more, since switches that reduce send less
_WIRE = 1.15
_LEVELS_NORM = 6
NO_DECAY, _MOST_DECAY = 0.3, 6.0  # of the knob: d = 0, and where the form stops following it
_TINY_S = 1e-12
# ranks up to which more of them fill a switched link better: none above were measured
_FILLING = 8.0


class Parts(NamedTuple):
    """Seconds [N] of the form's parts."""

    floor: Array
    small: Array
    large: Array
    inside: Array  # x
    across: Array  # y
    carried: Array  # b
    fixed_small: Array
    fixed_large: Array
    total: Array  # floor + softmin


class AlphaBeta:
    """The closed form of a collective (head of this file), as the learner takes it."""

    name = "links"
    knobs: tuple[str, ...] = (
        "floor_s", "hop_s", "node_hop_s", "ring", "rendezvous_s", "intra_efficiency",
        "inter_efficiency", "small_waste", "rank_decay", "sharpness",
    )  # fmt: skip
    position: tuple[str, ...] = (
        "bytes_over_fixed", "small_over_large", "body_over_floor", "inside_over_across",
        "large_bound", "total_over_floor",
    )  # fmt: skip
    start = np.log([8e-6, 1.5e-6, 5e-6, 0.7, 5e-6, 0.7, 0.7, 1.5, 0.3, 1.5])
    start_spread = np.array([1.0, 1.0, 1.0, 0.7, 1.0, 0.4, 0.5, 0.7, 0.7, 0.5])
    least_spread = np.array([0.2, 0.25, 0.3, 0.25, 0.3, 0.1, 0.15, 0.2, 0.2, 0.1])
    known_spread: Mapping[str, float] = {"sharpness": 0.2}

    def shared(self, words: tuple[str, ...]) -> str:
        """Name of the link, whose knobs all ops on it share."""
        return words[2]

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(parts(theta, work, np).total))

    def closed(self, theta: np.ndarray, work: np.ndarray) -> ClosedFormValues:
        part = parts(theta, work, np)
        carried = np.log(np.maximum(part.carried, _TINY_S))
        fixed = np.log(part.floor + np.minimum(part.fixed_small, part.fixed_large))
        soft = np.log(part.total - part.floor)
        two = np.log(part.small) - np.log(part.large)
        links = np.log(np.maximum(part.inside, _TINY_S)) - np.log(np.maximum(part.across, _TINY_S))
        floor = np.log(part.floor)
        ratios = np.stack([carried - fixed, two, soft - floor, links], 1)
        ratios = ratios.clip(-_RATIO_LIMIT, _RATIO_LIMIT)
        over_floor = (np.log(part.total) - floor)[:, None]
        place = np.concatenate([ratios, np.tanh(two)[:, None], over_floor], 1)
        return ClosedFormValues(np.log(part.total), place)


def parts(theta: Array, work: Array, xp: ModuleType = np) -> Parts:
    """Seconds [N] at knobs theta [N, K] or [K] (logs) and what they are made of, of which `carried`
    is all that the form knows of bytes; in JAX (`xp`) differentiable in both.
    """
    floor, hop, node_hop, ring, rendezvous, e_in, e_out, waste, decays, sharp = xp.moveaxis(
        xp.exp(theta), -1, 0
    )
    inside_s, across_s, g, _, few, node_few, many, node_many = xp.moveaxis(work, -1, 0)
    power = xp.minimum(decays, _MOST_DECAY) - NO_DECAY
    ranks = xp.where(power < 0, xp.clip(g, 2, _FILLING), xp.maximum(g, 2))
    decay = (ranks / 2) ** power
    x, y = inside_s / xp.minimum(e_in / decay, _WIRE), across_s / xp.minimum(e_out, _WIRE)
    longest = xp.maximum(xp.maximum(x, y), _TINY_S)
    # where nothing goes anywhere the root's slope would be infinite: next to nothing keeps it
    powers = (x / longest) ** _LEVELS_NORM + (y / longest) ** _LEVELS_NORM + 1e-36
    carried = longest * powers ** (1 / _LEVELS_NORM)
    fixed_small = hop * few + node_hop * node_few
    fixed_large = ring * (hop * many + node_hop * node_many) + rendezvous
    small = fixed_small + (1 + waste) * carried
    large = fixed_large + carried
    p = 1 + sharp
    # taken out before powers: seconds to the minus tenth would overflow
    faster = xp.minimum(small, large)
    soft = faster * ((small / faster) ** -p + (large / faster) ** -p) ** (-1 / p)
    return Parts(
        floor + 0 * soft, small, large, x, y, carried, fixed_small, fixed_large, floor + soft
    )


def plain(theta: np.ndarray) -> dict[str, float]:
    """Knobs [K] as the formula has them, by name: d for rank_decay, p for sharpness."""
    of = dict(zip(AlphaBeta.knobs, map(float, np.exp(theta)), strict=True))
    of["rank_decay"] = min(of["rank_decay"], _MOST_DECAY) - NO_DECAY
    of["sharpness"] = 1 + of["sharpness"]
    return of


ALPHA_BETA = AlphaBeta()
