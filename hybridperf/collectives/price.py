"""The one price of collectives, for rows of tables, calls of a graph and traced functions alike.

    t = t0(knobs, links) x exp(learned(bytes)), and no less than what a node's own part takes,
        nor than ports take for the bytes that every algorithm sends

A list of stages on arrays after the closed form (`form`), written once for NumPy and JAX. What was
learned belongs to a kind of collective (collective, library, link, ranks, nodes) at the rates it
was learned at, so that a faster or quicker link makes no collective slower. It is a curve over
message size: seconds at fixed sizes (four per factor of two), replaced by the nearest curve that
does not fall (a transfer does not get faster by getting longer) and straight in log seconds over
log bytes between them. Because the sizes are fixed, the price of a row does not depend on other
rows.

`inside_bytes`, `across_bytes` and `talking` may be those of unequal sizes: the closed form knows
bytes by their seconds on the links alone, so there is one collective of equal sizes that takes as
long, and what was learned about that one is applied (`carrying`). More bytes between any two ranks
never take less.

Axes: N collectives, C kinds, G sizes, K knobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives import form
from hybridperf.collectives.traffic import Links
from hybridperf.io.namespace import Array, fresh_views
from hybridperf.io.numbers import NINE_OF_TEN

_PER_OCTAVE = 4
LOG2_BYTES = np.arange(0.0, 41.0, 1 / _PER_OCTAVE)  # one byte to a tebibyte
# what a stage goes by, in the order of its codes
SOURCES = (
    "nothing", "datasheet", "own rows", "prior of other systems", "systems of its architecture",
    "belief of networks", "another library's collective",
)  # fmt: skip
NOTHING, DATASHEET, OWN_ROWS, PRIOR, REFERENCES, BELIEF, OTHER_LIBRARY = range(len(SOURCES))


class Stage(NamedTuple):
    """What a stage says of N collectives."""

    log_factor: Array  # [N]
    log_variance: Array  # [N]; not a number where nothing is known of it
    source: Array  # int32 [N] of SOURCES

    def stage(self, table: CollectiveTable, xp: ModuleType) -> Stage:
        """As it was found: what was learned of collectives whose bytes do not vary."""
        return self


FIXED = np.array([name in form.FIXED for name in form.ALPHA_BETA.knobs], float)
_SHARES = np.array([name.endswith("_efficiency") for name in form.ALPHA_BETA.knobs], float)
# [K] knobs that leave latency and rates of a datasheet: other seconds vanish, one algorithm is left
DATASHEET_THETA = np.log([
    {"floor_s": 1.0, "small_waste": 1e9, "rank_decay": form.NO_DECAY, "sharpness": 1.0}.get(
        name, 1e-12 if name in form.FIXED else 1.0
    )
    for name in form.ALPHA_BETA.knobs
])  # fmt: skip


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Curves:
    """What was learned of N collectives, by kind."""

    message: Array  # [N] bytes of equal sizes that keep the links as busy
    kind: Array  # int32 [N]
    theta: Array  # [N, K] as it was learned
    source: Array  # int32 [N] of SOURCES
    log_s: Array  # [C, G] log of seconds at 2^LOG2_BYTES, by these knobs over these links
    log_width: Array  # [C, G] half-widths of 90 % intervals
    links: Links

    def rows(self, at: np.ndarray) -> Curves:
        own = {name: getattr(self, name)[at] for name in ("message", "kind", "theta", "source")}
        return dataclasses.replace(self, **own)

    def stage(self, table: CollectiveTable, xp: ModuleType) -> Stage:
        """Curves over the closed form at the rates that they were learned at."""
        octaves = xp.log2(self.message)
        place = xp.clip(octaves * _PER_OCTAVE, 0.0, len(LOG2_BYTES) - 1.0)
        before = xp.minimum(xp.floor(place).astype(np.int32), len(LOG2_BYTES) - 2)
        share = place - before

        def at(curves: Array) -> Array:
            left, right = (xp.asarray(curves)[self.kind, before + one] for one in (0, 1))
            return left + share * (right - left)

        # beyond the last size there is nothing but bandwidth
        beyond = np.log(2.0) * xp.maximum(octaves - LOG2_BYTES[-1], 0.0)
        there = dataclasses.replace(table, theta=self.theta)
        log_factor = at(self.log_s) + beyond - xp.log(_parts(there, self.links, xp).total)
        return Stage(log_factor, (at(self.log_width) / NINE_OF_TEN) ** 2, self.source)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CollectiveTable:
    """N collectives as arrays: all that their price depends on but the links."""

    inside_bytes: Array  # [N] through one rank's link
    across_bytes: Array  # [N] through one node's network
    talking: Array  # [N] ranks of a node that share its network
    by_host: Array  # [N] 1 where ranks of a node meet over the host's bus, too, else 0
    ranks_per_node: Array  # [N]
    nodes: Array  # [N]
    steps: Array  # [N, 4] see `Collective.steps`
    theta: Array  # [N, K] logs of the form's knobs; seconds over the links' latency
    source: Array  # int32 [N] of SOURCES: what the knobs go by
    unavoidable: Array  # [N] share of these bytes that every algorithm sends
    # [N] seconds that a kernel's own multiprocessors take to move them inside nodes, at least
    moved_s: Array
    learned: Curves | Stage | None = None  # None: the closed form alone
    least: CollectiveTable | None = None  # [N] what takes no longer, such as a node's own part

    def rows(self, at: np.ndarray) -> CollectiveTable:
        """The same table with the rows at some places only."""

        def some(part: Curves | np.ndarray) -> Curves | np.ndarray:
            return part.rows(at) if isinstance(part, Curves) else part[at]

        return jax.tree.map(some, self, is_leaf=lambda part: isinstance(part, Curves))

    def with_rows(self, at: Sequence[int], part: CollectiveTable) -> CollectiveTable:
        """A table that is `held`, with those of another in place of some rows."""
        part = part if self.least is None else dataclasses.replace(part, least=part)

        def written(leaf: np.ndarray, values: np.ndarray) -> np.ndarray:
            out = np.array(leaf)
            out[list(at)] = values
            return out

        return jax.tree.map(written, self, part)

    def sized(self, bytes_: Array) -> CollectiveTable:
        """Collectives of one byte (`CollectiveModel.kinds`) at so many bytes [N]."""
        assert not isinstance(self.learned, Stage), "of fixed bytes"
        return dataclasses.replace(
            self, inside_bytes=self.inside_bytes * bytes_, across_bytes=self.across_bytes * bytes_,
            moved_s=self.moved_s * bytes_,
            learned=self.learned and dataclasses.replace(self.learned, message=bytes_),
            least=self.least and self.least.sized(bytes_),
        )  # fmt: skip

    def carrying(
        self, inside: Array, across: Array, talking: Array, links: Links, xp: ModuleType = np
    ) -> CollectiveTable:
        """Collectives of one byte at unequal sizes, as `traffic.pair_traffic` counts them.

        `links`: the calibrated ones, on which equal sizes keep the busiest link as busy.
        """
        sent = dataclasses.replace(
            self, inside_bytes=inside, across_bytes=across, talking=talking, least=None
        )
        assert not isinstance(self.learned, Stage), "of fixed bytes"
        if self.learned is None:
            return sent
        of_a_byte = _parts(self, links, xp).carried
        message = xp.maximum(_parts(sent, links, xp).carried / of_a_byte, 1.0)
        return dataclasses.replace(sent, learned=dataclasses.replace(self.learned, message=message))

    def held(self) -> CollectiveTable:
        """For bytes that do not vary: what was learned is found once."""
        return dataclasses.replace(
            self, learned=self.learned and self.learned.stage(self, np),
            least=self.least and self.least.held(),
        )  # fmt: skip


class Priced(NamedTuple):
    """N collectives, and how far to trust them."""

    seconds: Array  # [N]
    log_variance: Array  # [N]; not a number where nothing was learned
    stages: tuple[Stage, ...]  # as of `STAGES`

    def silence(self, xp: ModuleType) -> Stage:
        """What a stage says that does not apply."""
        zero = xp.zeros(self.seconds.shape)
        return Stage(zero, zero, xp.full(zero.shape, NOTHING))


def _closed_form(table: CollectiveTable, links: Links, so_far: Priced, xp: ModuleType) -> Stage:
    return so_far.silence(xp)._replace(source=table.source)


def _learned(table: CollectiveTable, links: Links, so_far: Priced, xp: ModuleType) -> Stage:
    if table.learned is None:
        silence = so_far.silence(xp)
        return silence._replace(log_variance=silence.log_variance + np.nan)
    return table.learned.stage(table, xp)


def _no_less(table: CollectiveTable, links: Links, so_far: Priced, xp: ModuleType) -> Stage:
    if table.least is None:
        return so_far.silence(xp)
    least = price(table.least, links, xp)
    apart = xp.log(least.seconds / so_far.seconds)
    longer = xp.maximum(apart, 0.0)
    # the interval is as wide as from the larger low end to the larger high end
    half, own = (NINE_OF_TEN * xp.sqrt(one.log_variance) for one in (least, so_far))
    width = xp.maximum(apart + half, own) - xp.maximum(apart - half, -own)
    more = (width / 2 / NINE_OF_TEN) ** 2 - so_far.log_variance
    return Stage(longer, more, xp.where(longer > 0, OWN_ROWS, NOTHING))


def least_s(table: CollectiveTable, links: Links, xp: ModuleType = np) -> Array:
    """Seconds [N] that ports take for the bytes that every algorithm sends; 0 where rows of the
    system's own showed what its ports do.
    """
    inside_s, across_s = links.seconds(
        table.inside_bytes, table.across_bytes, table.talking, table.by_host, xp
    )
    measured = False if table.learned is None else table.learned.source == OWN_ROWS
    return xp.where(measured, 0.0, table.unavoidable * xp.maximum(inside_s, across_s))


def _port(table: CollectiveTable, links: Links, so_far: Priced, xp: ModuleType) -> Stage:
    longer = xp.log(xp.maximum(least_s(table, links, xp) / so_far.seconds, 1.0))
    return so_far.silence(xp)._replace(
        log_factor=longer, source=xp.where(longer > 0, DATASHEET, NOTHING)
    )


STAGES = {
    "closed form": _closed_form, "learned": _learned, "a node's own part": _no_less,
    "ports": _port,
}  # fmt: skip


def price(table: CollectiveTable, links: Links, xp: ModuleType = np) -> Priced:
    """What N collectives take over some links, and by which stages; in JAX (`xp`) differentiable in
    every number of both.
    """
    seconds = _parts(table, links, xp).total
    so_far = Priced(seconds, xp.zeros(seconds.shape), ())
    for stage in STAGES.values():
        found = stage(table, links, so_far, xp)
        seconds = so_far.seconds * xp.exp(found.log_factor)
        variance = so_far.log_variance + found.log_variance
        so_far = Priced(seconds, variance, (*so_far.stages, found))
    return so_far


def collective_seconds(table: CollectiveTable, links: Links, xp: ModuleType = jnp) -> Array:
    """Seconds [N] by `price`, in JAX; on links whose leaves have a first axis, [B, N]."""
    table, links = fresh_views((table, links))
    links = jax.tree.map(lambda number: xp.asarray(number)[..., None], links)
    return price(table, links, xp).seconds


def times_as_long(theta: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Knobs [N, K] of collectives that take so many times [N] as long, whatever their bytes."""
    return np.asarray(theta + np.log(times)[:, None] * (FIXED - _SHARES))


def closed_form_s(table: CollectiveTable, links: Links) -> Array:
    """Seconds [N] of the closed form alone."""
    return _parts(table, links, np).total


def _parts(table: CollectiveTable, links: Links, xp: ModuleType) -> form.Parts:
    """The closed form at its knobs."""
    inside_s, across_s = links.seconds(
        table.inside_bytes, table.across_bytes, table.talking, table.by_host, xp
    )
    inside_s = xp.maximum(inside_s, table.moved_s)
    numbers = xp.broadcast_arrays(inside_s, across_s, table.ranks_per_node, table.nodes)
    ranks = xp.stack(numbers, -1)
    steps = xp.broadcast_to(xp.asarray(table.steps), (*ranks.shape[:-1], table.steps.shape[-1]))
    # a view: JAX keeps arrays that it met in a trace in the precision they had there
    theta = table.theta + FIXED.view() * xp.log(xp.asarray(links.link_latency_s)[..., None])
    return form.parts(theta, xp.concatenate([ranks, steps], -1), xp)


def never_falling(curve: np.ndarray) -> np.ndarray:
    """The nearest curve [G] that does not fall, in least squares: neighbours that fall are pooled
    to their mean (de Leeuw, Hornik, Mair 2009, Isotone Optimization in R). As
    `scipy.optimize.isotonic_regression`, whose import is a sixth of the first prediction's time.
    """
    if (np.diff(curve) >= 0).all():
        return curve
    means: list[float] = []
    counts: list[int] = []
    for mean in curve.tolist():
        count = 1
        while means and means[-1] > mean:
            before = counts.pop()
            mean = (means.pop() * before + mean * count) / (before + count)
            count += before
        means.append(mean)
        counts.append(count)
    return np.repeat(means, counts)
