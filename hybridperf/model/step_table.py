"""All rows of a step as arrays, priced together: ops, collectives, given seconds, what of a message
outlasts an op, chains of rows.

Axes: U rows of the duration table, O of them ops, C collectives, F given seconds, E exposed;
P parts of all chains. `step_durations(table, platform)` is pure and differentiable in every number
of the platform, the rates of its links included; a step of ops alone is priced as its `OpTable` is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.price import CollectiveTable, collective_seconds
from hybridperf.collectives.price import price as price_collectives
from hybridperf.io import InputError
from hybridperf.io.later import pd
from hybridperf.io.namespace import Array, fresh_views
from hybridperf.model.calls import (
    BLOCK_LOGS,
    Call,
    CallChain,
    CollectiveCall,
    Exposed,
    GivenSeconds,
    InStep,
    no_op,
    only,
)
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.platform import OpTable, Platform, canonical, durations, padded
from hybridperf.model.priced_ops import PricedOps
from hybridperf.model.stages.borrowed import slowed
from hybridperf.model.step_effects import ROLE_NAMES, SUSTAINED, in_step_s, sustained_s
from hybridperf.ops import GROUPS, OpCall


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepTable:
    """The rows of a step."""

    ops: OpTable  # [O]; a row that nothing points to where there is none
    collectives: CollectiveTable | None = None  # [C]
    given_s: Array = None  # [F]
    # place of each row among ops, collectives and given seconds in turn; None: ops alone; int32 [U]
    place: Array = None
    # rows of a chain and of its part, from 0, and how often it runs; None: no chains; int32 [P, 3]
    parts: Array = None
    # rows of what outlasts, of the message and of what it travels beside; None: none; int32 [E, 3]
    exposed: Array = None
    # of a training step, [U] each: index into `step_effects.ROLE_NAMES`, how often what it adds
    # counts, log of a block's correction; None: calls as they are
    role: Array = None
    count: Array = None
    block_log: Array = None
    slowest: Array = None  # of the step: as `InStep` has it
    power_s: Array = None  # [U] of ops in the long run, as `step_effects.sustained_s` takes it


class KnownCollectives(NamedTuple):
    """How far to trust the collectives of a step."""

    log_variance: np.ndarray  # [C]; NaN without measurements
    in_range: np.ndarray  # bool [C]


class KnownRows(NamedTuple):
    """What is known of the rows of a step."""

    ops: PricedOps  # [O]
    collectives: KnownCollectives | None  # [C]


def step_table(model: PerfModel, calls: Sequence[Call], in_step: InStep | None = None) -> StepTable:
    """Rows as arrays for a model's device and links; `InputError` where it cannot price one."""
    return priced_rows(model, calls, in_step)[0]


def priced_rows(
    model: PerfModel, calls: Sequence[Call], in_step: InStep | None = None
) -> tuple[StepTable, KnownRows]:
    """`step_table`, and what is known of its rows."""
    ops, collectives, given = split(calls)
    op_calls = list(ops.values())
    chains, exposed = only(CallChain, calls), only(Exposed, calls)
    composed = [*chains, *exposed]
    if not collectives and not given and not composed and in_step is None:
        table, own = model.priced(op_calls)
        return StepTable(table, power_s=_power_s(model, table)), KnownRows(own, None)
    table, own = model.priced(op_calls or [no_op()])
    count = max(len(ops), 1)
    place = {at: i for i, at in enumerate(ops)}
    place |= {at: count + i for i, at in enumerate((*collectives, *given))}
    # the row of what is composed of others takes no time by itself
    place |= dict.fromkeys(composed, count + len(collectives) + len(given))
    carried = known = None
    if collectives:
        fabric = fabric_of(model, next(iter(collectives.values())))
        carried, near = collective_table(fabric, list(collectives.values()))
        known = KnownCollectives(price_collectives(carried, fabric.links()).log_variance, near)
    seconds = [*(call.value for call in given.values()), *([0.0] if composed else [])]
    power_s = np.zeros(len(calls))
    power_s[list(ops)] = _power_s(model, table)[: len(ops)]
    parts = [(at, row - 1, often) for at, chain in chains.items() for row, often in chain.parts]
    left = [(at, one.message - 1, one.beside - 1) for at, one in exposed.items()]
    rows = StepTable(
        ops=table,
        collectives=carried,
        given_s=np.array(seconds) if seconds else None,
        place=np.array([place[at] for at in range(len(calls))], np.int32),
        parts=np.array(parts, np.int32) if chains else None,
        exposed=np.array(left, np.int32) if exposed else None,
        power_s=power_s,
        **_in_step(model, in_step),
    )
    return rows, KnownRows(own, known)


def _power_s(model: PerfModel, table: OpTable) -> np.ndarray:
    """Seconds of ops at the rate that the device's power limit sustains [O]; 0 where none is known.

    A card with less power than the one that was measured sustains less, by its clock.
    """
    shares = SUSTAINED.get(model.device.arch)
    if shares is None:
        return np.zeros(len(table.group))
    wide, narrow = shares
    peak = model.device.peak_flops_per_s["bf16"]
    faster = table.peak_flops_per_s / peak  # than 16 bits: fewer; slower ones do not reach a limit
    attention = np.array([name.endswith("attention") for name in GROUPS])[table.group]
    rates = table.peak_flops_per_s * np.where((faster > 1) | attention, narrow, wide)
    measured = model.stand_in or model
    longer = slowed(model.device, measured.device) * (faster >= 1)
    return np.asarray(longer * table.times * table.work.flops / rates)


def _in_step(model: PerfModel, in_step: InStep | None) -> dict[str, np.ndarray]:
    """Fields of a table that place its rows in a training step."""
    if in_step is None:
        return {}
    adapted = model.adapted(in_step.framework)
    logs = (0.0, *(float(one[0]) for one in adapted.logs(np.array([in_step.cell]))))
    places = in_step.places
    return {
        "role": np.array([ROLE_NAMES.index(one.role) for one in places], np.int32),
        "count": np.array([one.count for one in places], float),
        "block_log": np.array([logs[BLOCK_LOGS.index(one.block)] for one in places]),
        "slowest": np.array(in_step.slowest),
    }


Parts = tuple[dict[int, OpCall], dict[int, CollectiveCall], dict[int, GivenSeconds]]


def split(calls: Sequence[Call]) -> Parts:
    """Rows that are ops, collectives and given seconds, each by its place."""
    return only(OpCall, calls), only(CollectiveCall, calls), only(GivenSeconds, calls)


def step_durations(table: StepTable, platform: Platform) -> Array:
    """Seconds of each row [U] on one platform."""
    table, platform = fresh_views((table, platform))
    parts = [durations(table.ops, platform)]
    if table.place is None:
        return parts[0]
    if table.collectives is not None:
        assert platform.links is not None  # `fabric_of` has refused a model without
        parts.append(collective_seconds(table.collectives, platform.links))
    if table.given_s is not None:
        parts.append(table.given_s)
    seconds = jnp.concatenate([jnp.asarray(part, parts[0].dtype) for part in parts])[table.place]
    if table.role is not None:
        effects = jnp.asarray(platform.effects, seconds.dtype)
        power_s = table.power_s / platform.peak_flops_scale  # of a card with more power to match
        seconds = in_step_s(jnp, seconds, table.role, table.count, effects, table.slowest, power_s)
        seconds = seconds * jnp.exp(jnp.asarray(table.block_log, seconds.dtype))
    if table.exposed is not None:
        row, message, beside = table.exposed.T
        seconds = seconds.at[row].set(jnp.maximum(seconds[message] - seconds[beside], 0.0))
    if table.parts is None:
        return seconds
    chain, part, times = table.parts.T
    return seconds.at[chain].add(seconds[part] * times)


def chained(table: StepTable, seconds: np.ndarray) -> np.ndarray:
    """Seconds of all rows [U, ...] by those of rows that are not composed of others."""
    found = seconds if table.parts is None and table.exposed is None else seconds.copy()
    if table.exposed is not None:
        row, message, beside = table.exposed.T
        found[row] = np.maximum(found[message] - found[beside], 0.0)
    if table.parts is None:
        return found
    chain, part, times = table.parts.T
    found[chain] = 0.0
    np.add.at(found, chain, (found[part].T * times).T)
    return found


def unchained(table: StepTable, seconds: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How often rows count [U] where those that are composed of others count so often: the adjoint
    of `chained` at these seconds.
    """
    found = times.astype(float)
    if table.parts is not None:
        chain, part, often = table.parts.T
        found[np.unique(chain)] = 0.0
        np.add.at(found, part, times[chain] * often)
    if table.exposed is not None:
        row, message, beside = table.exposed.T
        shown = found[row] * (seconds[row] > 0)
        found[row] = 0.0
        np.add.at(found, message, shown)
        np.add.at(found, beside, -shown)
    return found


def batched_step_durations(table: StepTable, platform: Platform, axes: Platform) -> Array:
    """Durations [U, B]: leaves of `platform` with an axis in `axes` carry B along it."""
    return jax.vmap(step_durations, in_axes=(None, axes), out_axes=-1)(table, platform)


def alone_seconds(model: PerfModel, table: StepTable) -> np.ndarray:
    """Seconds of each row [U] by itself, no part of a step; chains take none."""
    links = None if model.collectives is None else model.collectives.links()
    return _placed(table, model.op_seconds(table.ops), links)


def sustained_seconds(model: PerfModel, table: StepTable) -> np.ndarray:
    """`alone_seconds` of ops that go on for long."""
    return sustained_s(np, alone_seconds(model, table), table.power_s)


def in_step_seconds(table: StepTable, alone_s: np.ndarray, effects: np.ndarray) -> np.ndarray:
    """Seconds of rows [U] or [U, B] in their step; `effects` [K] or [K, B]."""
    if table.role is None:
        return chained(table, alone_s)
    found = in_step_s(np, alone_s, table.role, table.count, effects, table.slowest, table.power_s)
    column = (slice(None),) + (None,) * (found.ndim - 1)
    return chained(table, found * np.exp(table.block_log)[column])


def row_seconds(model: PerfModel, table: StepTable) -> np.ndarray:
    """Seconds of each row [U] of what is no training step."""
    return chained(table, alone_seconds(model, table))


def row_roofline_seconds(
    model: PerfModel, table: StepTable, calls: Sequence[Call], seconds: np.ndarray
) -> np.ndarray:
    """Seconds of each row [U] by datasheets alone: device and links; what is given as `seconds`."""
    op_s = model.roofline_seconds(table.ops)
    links = None
    if table.collectives is not None:
        assert model.collectives is not None
        links = model.collectives.links()
        bare = model.collectives.bare(table.collectives)
        table = dataclasses.replace(table, collectives=bare)
    found, given = np.array(_placed(table, op_s, links)), list(split(calls)[2])
    found[given] = seconds[given]
    return chained(table, found)


def fabric_of(model: PerfModel, call: CollectiveCall) -> CollectiveModel:
    """What prices a model's collectives; `InputError` that names the one that nothing does."""
    if model.collectives is None:
        raise InputError(
            f"expected a model with collectives for a step with an {call.collective} over"
            f" {call.ranks} ranks, got one of {model.device.id} alone; `hybridperf fit --system"
            " NAME` adds them, or model.with_collectives(load_collectives(NAME)) those of a"
            " shipped system"
        )
    return model.collectives


def collective_frame(calls: Sequence[CollectiveCall]) -> pd.DataFrame:
    """Calls as rows of a table of collectives.

    One whose ranks differ counts the bytes of its busiest rank. One that lies unevenly on its nodes
    counts as many ranks a node as its fullest has: 4 ranks on 3 nodes wait for the node with 2.
    """
    rows = []
    for call in calls:
        sizes = {"bytes": call.bytes, "n_gpus": call.nodes * call.ranks_per_node}
        rows.append(
            {"collective": call.collective, **sizes, "n_nodes": call.nodes, **dict(call.words)}
        )
    return pd.DataFrame(rows)


def _placed(table: StepTable, op_s: np.ndarray, links: Any) -> np.ndarray:
    if table.place is None:
        return op_s
    parts = [op_s]
    if table.collectives is not None:
        length = len(table.collectives.nodes)
        rows = canonical(padded(table.collectives, length))
        seconds = _collective_seconds(rows, canonical(links))
        parts.append(np.asarray(seconds, np.float64)[:length])
    if table.given_s is not None:
        parts.append(np.asarray(table.given_s, np.float64))
    return np.concatenate(parts)[table.place]


_collective_seconds = jax.jit(collective_seconds)


def collective_table(
    model: CollectiveModel, calls: Sequence[CollectiveCall]
) -> tuple[CollectiveTable, np.ndarray]:
    """(calls [C] as `price` takes them, whether each lies inside what was measured [C]); one of
    unequal sizes is trusted as one of equal.
    """
    pairs = {at: np.array(one.pair_bytes) for at, one in enumerate(calls) if one.pair_bytes}
    return model.priced(collective_frame(calls), pairs)
