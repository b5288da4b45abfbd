"""Ways to a placement: by rule, by descent of a relaxed one, by small steps, by proof.

Axes: T tables, R ranks, C columns of a table, S starts of a descent, N partial placements of a
level.

**By rule**: the candidates of Lin et al. (after DreamShard).

    naive        table i on rank i mod R
    naive_chunk  tables in a row, as many on each rank
    random       anywhere
    the others   the most expensive table first, on the rank with the least so far that has room

What a table costs by each greedy rule, E rows, D columns, L lookups per bag:

    size E D     lookup D L     size_lookup D L log10 E     norm_lookup D L / (mean reuse)

The last is our reading of its name: the paper gives no formula for it.

**By small steps** (`polish`): a table moved to another rank, or two tables swapped, for as long as
that helps; then a kick, and again. Only what takes from a rank that is a maximum of the cost (or
beyond its memory) can help, so only its tables are tried, all of them at once. A move changes two
ranks; the maximum over the others is one of the three largest, which are kept. What is lowered is

    merit = step + step_0 [ excess of memory x 10 + 0.01 mean_r ((load_r / load_0)^8) ]

whose last part tells equal maxima apart: with three ranks equally slow the first of three good
moves does not lower the step.

**By descent** (`descend`): each table spread over ranks by a softmax, cooled down to one.

    w_t = softmax(z_t / temperature)     sums_r = sum_t w_tr table_t
    loss = log step(sums) + excess of memory

The sums a rank's cost is made of are linear in w, so every placement between placements has a cost.
Maxima are p-norms whose p grows while the temperature falls: at first every rank counts, at the end
the slowest. Many starts descend together by Adam; what each comes to is rounded to the rank with
the most of a table.

**By proof** (`prove`, `in_a_row`): tables in a row are cut into a piece per rank by dynamic
programming so that the slowest is fastest:

    worst(k, j) = min over i <= j of max(worst(k - 1, i), seconds of tables i ... j - 1 on a rank)

Exact among placements that keep an order, for the slowest rank: its lookups and the all-to-alls as
if it were the one that sends most. Branch and bound places the most expensive table first. A
partial placement's step never falls as tables are added, so it is dropped as soon as it is no
better than the best whole placement known. Ranks that are empty alike (in one node, or in nodes
that are) are the same: only the first is tried. All partial placements of a level are worked on at
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hybridperf.explore.sharding.cost import MEMORY, SENT, PlacementCost
from hybridperf.io.namespace import fresh_views
from hybridperf.model import canonical
from hybridperf.ops.embedding import Table

TableCost = Callable[[Table, float], float]  # of a table and a batch
GREEDY: dict[str, TableCost] = {
    "size": lambda table, batch: table.rows * table.dim,
    "lookup": lambda table, batch: table.dim * table.pooling,
    "norm_lookup": lambda table, batch: table.dim * float(table.unique_rows(batch)) / batch,
    "size_lookup": lambda table, batch: table.dim * table.pooling * np.log10(max(table.rows, 10)),
}
RULES = ("naive", "naive_chunk", "random", *GREEDY)


def by_rule(
    rule: str, cost: PlacementCost, tables: Sequence[Table], batch: float, seed: int = 0
) -> np.ndarray | None:
    """Ranks [T] by one of `RULES`; None where a greedy one finds no rank with room for a table."""
    count = len(tables)
    if rule == "naive":
        return np.arange(count) % cost.ranks
    if rule == "naive_chunk":
        return np.arange(count) * cost.ranks // count
    if rule == "random":
        return np.random.default_rng(seed).integers(0, cost.ranks, count)
    return greedy(np.array([GREEDY[rule](table, batch) for table in tables]), cost)


def greedy(costs: np.ndarray, cost: PlacementCost) -> np.ndarray | None:
    """The most expensive table first [T], each on the least loaded rank with room for it."""
    load, held = np.zeros(cost.ranks), np.zeros((cost.ranks, cost.tables.shape[1]))
    out = np.zeros(len(costs), int)
    for at in np.argsort(-costs, kind="stable"):
        room = cost.over_bytes(held + cost.tables[at]) == 0
        if not room.any():
            return None
        rank = int(np.argmin(np.where(room, load, np.inf)))
        out[at], load[rank] = rank, load[rank] + costs[at]
        held[rank] += cost.tables[at]
    return out


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


STEPS = 250
_RATE = 0.15
_TEMPERATURE = 1.0, 0.1  # first, last
_RELAXED_POWER = 6.0, 60.0
_OVER = 10.0  # of memory beyond the limit
_SPREAD = 0.3  # of first logits
_LEAN = 1.0  # towards a placement to start from


def descend(
    cost: PlacementCost, starts: int, near: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Rounded placements [S, T] of `starts` descents, half of which begin close to `near` [T]."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, _SPREAD, (starts, len(cost.tables), cost.ranks))
    if near is not None:
        logits[: (starts + 1) // 2, np.arange(len(near)), near] += _LEAN
    return np.asarray(_descended(*canonical((cost, logits)))).argmax(-1)


def loss(cost: PlacementCost, logits: Any, temperature: Any, power: Any) -> Any:
    """Of one start, logits [T, R]."""
    cost = fresh_views(cost)
    weights = jax.nn.softmax(logits / temperature, -1)
    sums = jnp.matmul(weights.T, cost.tables, precision=jax.lax.Precision.HIGHEST)

    def most(values: Any) -> Any:
        top = jax.lax.stop_gradient(values.max(-1))
        safe = jnp.where(top > 0, top, 1.0)
        return safe * jnp.sum((values / safe[..., None] + 1e-12) ** power, -1) ** (1 / power)

    over = jnp.maximum(sums[:, MEMORY] / cost.limit_bytes - 1, 0)
    return jnp.log(cost.of_ranks(sums, most, jnp).step_s) + _OVER * over.sum()


@jax.jit
def _descended(cost: PlacementCost, logits: Any) -> Any:
    adam = optax.adam(_RATE)
    slope = jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0, None, None))

    def step(carry: Any, at: Any) -> Any:
        here, state = carry
        done = at / (STEPS - 1)
        temperature, power = (
            first * (last / first) ** done for first, last in (_TEMPERATURE, _RELAXED_POWER)
        )
        change, state = adam.update(slope(cost, here, temperature, power), state)
        return (optax.apply_updates(here, change), state), None

    numbers = jnp.arange(STEPS, dtype=logits.dtype)
    (ended, _), _ = jax.lax.scan(step, (logits, adam.init(logits)), numbers)
    return ended


MOST_NUMBERS = 4e6  # of what all ranks of all partial placements of a level hold; more: given up


def prove(cost: PlacementCost, known: np.ndarray | None) -> tuple[np.ndarray | None, bool]:
    """(best placement [T], True), or (`known`, False) if there are too many; None: none fits."""
    limit_s = cost.step_s(known) * (1 - 1e-9) if known is not None else np.inf
    per_node = cost.ranks // cost.nodes
    order = np.argsort(-np.sum(cost.lookup_seconds(cost.tables), 0), kind="stable")
    placed = np.zeros((1, 0), int)
    sums = np.zeros((1, cost.ranks, cost.tables.shape[1]))
    highest = np.zeros((1, 4))  # forward, backward, sent of a rank, sent of a node
    for table in order:
        grown = sums + cost.tables[table]  # [N, R, C]
        forward, backward = cost.lookup_seconds(grown)
        node = np.repeat(cost.by_node(sums), per_node, axis=1) + cost.tables[table, SENT]
        maxima = np.stack([forward, backward, grown[..., SENT], node], -1)
        new = np.maximum(highest[:, None], maxima)  # [N, R, 4]
        use = cost.parts(*np.moveaxis(new, -1, 0)).step_s < limit_s
        use &= cost.over_bytes(grown) == 0
        # ranks [N, R] that hold a table, or are the first empty one of a node (used or first)
        used = sums[..., MEMORY] > 0
        by_node = used.reshape(len(used), -1, per_node)
        empties = np.cumsum(~by_node, -1)
        node_used = by_node.any(-1)
        empty_nodes = np.cumsum(~node_used, -1)
        node_counts = node_used | (empty_nodes == 1)
        use &= np.asarray(((by_node | (empties == 1)) & node_counts[..., None]).reshape(used.shape))
        parent, rank = np.nonzero(use)
        if len(parent) * sums[0].size > MOST_NUMBERS:
            return known, False
        if not len(parent):
            return known, True
        placed = np.concatenate([placed[parent], rank[:, None]], 1)
        highest = new[parent, rank]
        sums = sums[parent]
        sums[np.arange(len(parent)), rank] = grown[parent, rank]
    steps = cost.parts(*highest.T).step_s
    out = np.zeros(len(order), int)
    out[order] = placed[int(np.argmin(steps))]
    return out, True


def best_chunks(cost: PlacementCost, order: np.ndarray) -> np.ndarray | None:
    """Ranks [T] of tables taken in an order [T]; None where no cut fits into memory."""
    count = len(order)
    until = np.concatenate([np.zeros((1, cost.tables.shape[1])), np.cumsum(cost.tables[order], 0)])
    piece = np.maximum(until[None, :] - until[:, None], 0)  # [T + 1, T + 1, C] tables i ... j - 1
    seconds = piece_seconds(cost, piece)
    seconds = np.where(cost.over_bytes(piece) == 0, seconds, np.inf)
    seconds[np.tril_indices(count + 1, -1)] = np.inf
    np.fill_diagonal(seconds, 0.0)
    worst, cuts = np.where(np.arange(count + 1) == 0, 0.0, np.inf), []
    for _ in range(cost.ranks):
        both = np.maximum(worst[:, None], seconds)
        cuts.append(both.argmin(0))
        worst = both.min(0)
    if not np.isfinite(worst[count]):
        return None
    out, end = np.zeros(count, int), count
    for rank in reversed(range(cost.ranks)):
        start = int(cuts[rank][end])
        out[order[start:end]] = rank
        end = start
    return out


def piece_seconds(cost: PlacementCost, sums: np.ndarray) -> np.ndarray:
    """Seconds of ranks [...] from what each holds [..., C], as if each sent the most."""
    forward_s, backward_s = cost.lookup_seconds(sums)
    sent = sums[..., SENT]
    even = cost.tables[:, SENT].sum() / cost.nodes
    return np.asarray(cost.parts(forward_s, backward_s, sent, np.maximum(sent, even)).step_s)
