"""Better by small steps: a table moved to another rank, or two tables swapped, for as long as that
helps; then a kick, and again.

Only what takes from a rank that is a maximum of the cost (or beyond its memory) can help, so only
its tables are tried, all of them at once. A move changes two ranks; the maximum over the others is
one of the three largest, which are kept. What is lowered is

    merit = step + step_0 [ excess of memory x 10 + 0.01 mean_r ((load_r / load_0)^8) ]

whose last part tells equal maxima apart: with three ranks equally slow the first of three good
moves does not lower the step.

Axes: T tables, I of them on ranks that matter, R ranks, C columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from hybridperf.explore.sharding.cost import MEMORY, SENT, PlacementCost

_HEAVY = 10.0  # of memory beyond the limit, in shares of the limit
_EVEN, _POWER = 0.01, 8
_LEAST_GAIN = 1e-7
_NEAR_MOST = 1 - 1e-6
_MOST_ROUNDS = 2000
_KICKED = 3
_NEAR_BOUND = 1e-3  # of what no placement can beat: good enough


@dataclasses.dataclass(frozen=True)
class LocalOptimum:
    """A placement that no single move or swap makes better."""

    placement: np.ndarray  # [T]
    step_s: float
    over_bytes: float  # beyond memory, over all ranks


def better(one: LocalOptimum, other: LocalOptimum) -> LocalOptimum:
    """The better of two, `other` of equal ones: first memory, then seconds."""
    return min(other, one, key=lambda found: (found.over_bytes, found.step_s))


def polish(cost: PlacementCost, start: np.ndarray, kicks: int = 0, seed: int = 0) -> LocalOptimum:
    """The best found from a placement [T]: never worse than it, unless it exceeded memory."""
    rng, enough_s = np.random.default_rng(seed), cost.bound_s() * (1 + _NEAR_BOUND)
    best = _down(cost, start, enough_s)
    for _ in range(kicks if cost.ranks > 1 else 0):
        if best.over_bytes == 0 and best.step_s <= enough_s:
            break
        kicked = best.placement.copy()
        critical = np.flatnonzero(_matters(cost, cost.sums(kicked))[kicked])
        at = np.append(rng.choice(critical), rng.integers(0, len(kicked), _KICKED - 1))
        kicked[at] = rng.integers(0, cost.ranks, len(at))
        best = better(_down(cost, kicked, enough_s), best)
    return best


def _down(cost: PlacementCost, start: np.ndarray, enough_s: float) -> LocalOptimum:
    placement = np.array(start, int)
    scale = _Scale.of(cost, placement)
    best = _seen(cost, placement)
    for _ in range(_MOST_ROUNDS):
        if best.over_bytes == 0 and best.step_s <= enough_s:
            break
        sums = cost.sums(placement)
        some = np.flatnonzero(_matters(cost, sums)[placement])
        now = scale.merit(sums)
        moved, swapped = _moves(scale, placement, sums, some, now)
        least_move, least_swap = moved.min(initial=np.inf), swapped.min(initial=np.inf)
        if not min(least_move, least_swap) < now - _LEAST_GAIN * scale.step_s:
            break
        if least_move <= least_swap:
            at, rank = np.unravel_index(moved.argmin(), moved.shape)
            placement[some[at]] = rank
        else:
            at, other = np.unravel_index(swapped.argmin(), swapped.shape)
            placement[[some[at], other]] = placement[[other, some[at]]]
        best = better(_seen(cost, placement), best)
    return best


def _seen(cost: PlacementCost, placement: np.ndarray) -> LocalOptimum:
    sums = cost.sums(placement)
    step_s, over_bytes = cost.of_ranks(sums).step_s, cost.over_bytes(sums).sum()
    return LocalOptimum(placement.copy(), float(step_s), float(over_bytes))


def _matters(cost: PlacementCost, sums: np.ndarray) -> np.ndarray:
    """Ranks [R] that are a maximum of the cost, or beyond their memory."""
    forward, backward = cost.lookup_seconds(sums)
    by_node = np.repeat(cost.by_node(sums), cost.ranks // cost.nodes)
    out = cost.over_bytes(sums) > 0
    for values in (forward, backward, sums[:, SENT], *((by_node,) if cost.nodes > 1 else ())):
        out = out | (values >= _NEAR_MOST * values.max())
    return out


@dataclasses.dataclass(frozen=True)
class _Scale:
    """What the merit is measured by: the start."""

    cost: PlacementCost
    step_s: float
    load_s: float
    sent: float

    @staticmethod
    def of(cost: PlacementCost, placement: np.ndarray) -> _Scale:
        sums = cost.sums(placement)
        load_s, sent = np.max(sum(cost.lookup_seconds(sums))), sums[:, SENT].max()
        return _Scale(cost, float(cost.of_ranks(sums).step_s), float(load_s), float(sent))

    def own(self, sums: np.ndarray, lookups: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """What ranks [...] add to the merit by themselves, in steps, from their sums [..., C]."""
        over = np.maximum(sums[..., MEMORY] / self.cost.limit_bytes - 1, 0)
        by_load = ((lookups[0] + lookups[1]) / self.load_s) ** _POWER
        even = by_load + (sums[..., SENT] / self.sent) ** _POWER
        return _HEAVY * over + _EVEN * even / self.cost.ranks

    def merit(self, sums: np.ndarray) -> float:
        own = self.own(sums, self.cost.lookup_seconds(sums))
        return float(self.cost.of_ranks(sums).step_s + self.step_s * own.sum())


def _maximum_without(values: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The maximum of numbers [N] without those at two places."""
    order = np.argsort(-values)[:3]
    first, second, third = np.append(values[order], [-np.inf] * (3 - len(order)))
    order = np.append(order, [-1] * (3 - len(order)))

    def without(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        hit = [(order[k] == one) | (order[k] == other) for k in range(2)]
        return np.where(~hit[0], first, np.where(~hit[1], second, third))

    return without


def _moves(
    scale: _Scale, placement: np.ndarray, sums: np.ndarray, some: np.ndarray, now: float
) -> tuple[np.ndarray, np.ndarray]:
    """Merit of `some` tables on each rank [I, R] and swapped [I, T]; inf unless below `now`."""
    tables, here = scale.cost.tables, placement[some][:, None]
    ranks = np.arange(scale.cost.ranks)[None]
    # rounding may leave less than nothing
    left = np.maximum(sums[here[:, 0]] - tables[some], 0)[:, None]
    merit = _merit_of_two(scale, sums, now)
    grown = sums[None] + tables[some][:, None]
    moved = merit(here, ranks, left, grown)
    moved[here == ranks] = np.inf
    there = left + tables[None]  # I's ranks with another table instead
    back = np.maximum(sums[placement] - tables, 0)[None] + tables[some][:, None]
    swapped = merit(here, placement[None], there, back)
    swapped[here == placement[None]] = np.inf
    return moved, swapped


def _merit_of_two(scale: _Scale, sums: np.ndarray, now: float) -> Callable[..., np.ndarray]:
    """Merit of changing two ranks of the present placement; infinite unless better than `now`."""
    cost, lookups_now = scale.cost, scale.cost.lookup_seconds(sums)
    own_now = scale.own(sums, lookups_now)
    per_node, by_node = cost.ranks // cost.nodes, cost.by_node(sums)
    columns_now = (*lookups_now, sums[:, SENT], by_node)
    *of_lookups, of_sent, of_nodes = map(_maximum_without, columns_now)

    def merit(
        one: np.ndarray, other: np.ndarray, new_one: np.ndarray, new_other: np.ndarray
    ) -> np.ndarray:
        """Of ranks `one` and `other` [...] with new sums [..., C]."""
        lookups = [cost.lookup_seconds(new) for new in (new_one, new_other)]
        pairs = zip(of_lookups, *lookups, strict=True)
        highest = [np.maximum(others(one, other), np.maximum(a, b)) for others, a, b in pairs]
        new_sent = np.maximum(new_one[..., SENT], new_other[..., SENT])
        sent = np.maximum(of_sent(one, other), new_sent)
        nodes = one // per_node, other // per_node
        moved = new_other[..., SENT] - sums[other, SENT]
        between = np.where(nodes[0] == nodes[1], 0.0, moved)  # what goes from node to node
        changed = np.maximum(by_node[nodes[0]] - between, by_node[nodes[1]] + between)
        node_sent = np.maximum(of_nodes(*nodes), changed)
        own = own_now.sum() - own_now[one] - own_now[other]
        for new, seconds in zip((new_one, new_other), lookups, strict=True):
            own = own + scale.own(new, seconds)
        columns = np.broadcast_arrays(*highest, sent, node_sent, own)
        forward_s, backward_s, sent, node_sent, own = columns
        # so far: an all-to-all is expensive to price, and most are out without it
        so_far = forward_s + backward_s + scale.step_s * own
        least = cost.parts(np.zeros(()), np.zeros(()), sent.min(), node_sent.min()).step_s
        near = so_far + least < now
        out = np.full(so_far.shape, np.inf)
        priced = cost.parts(forward_s[near], backward_s[near], sent[near], node_sent[near]).step_s
        out[near] = priced + scale.step_s * own[near]
        return out

    return merit
