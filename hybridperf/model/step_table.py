"""All rows of a step as arrays, priced together: ops, collectives, given seconds, what of a message
outlasts an op, chains of rows.

Axes: U rows of the duration table, O of them ops, C collectives, F given seconds, E exposed;
P parts of all chains. `step_durations(table, platform)` is pure and differentiable in every number
of the platform, the rates of its links included; a step of ops alone is priced as its `OpTable` is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridperf.collectives import price as collective_price
from hybridperf.io import InputError
from hybridperf.io.later import pd
from hybridperf.io.namespace import Array, fresh_views
from hybridperf.model import step_effects
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
from hybridperf.model.platform import OpTable, Platform, durations
from hybridperf.model.priced_ops import PricedOps
from hybridperf.model.stages.borrowed import slowed
from hybridperf.model.stages.kernel import multiplied_more
from hybridperf.ops import GROUPS, OpCall


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepTable:
    """Unique rows of a step with what prices and widens them."""

    ops: OpTable  # [O]; a row that nothing points to where there is none
    given_s: Array  # [F], and 0 for what is composed of other rows
    # place of each row among ops, collectives and given seconds in turn; int32 [U]
    place: Array
    # rows of a chain and of its part, from 0, and how often it runs; int32 [P, 3]
    parts: Array
    # rows of what outlasts, of the message and of what it travels beside; int32 [E, 3]
    exposed: Array
    power_s: Array  # [U] of ops in the long run, as `step_effects.sustained_s` takes it
    collectives: collective_price.CollectiveTable | None = None  # [C]
    # of a training step, [U] each: index into `step_effects.ROLE_NAMES`, how often what it adds
    # counts, log of a block's correction; None: calls as they are
    role: Array = None
    count: Array = None
    block_log: Array = None
    slowest: Array = None  # of the step: as `InStep` has it


class KnownRows(NamedTuple):
    """What is known of the rows of a step."""

    ops: PricedOps  # [O]
    collectives: collective_price.Priced | None  # [C]
    near: np.ndarray  # bool [C] whether each collective lies inside what was measured


def step_table(model: PerfModel, calls: Sequence[Call], in_step: InStep | None = None) -> StepTable:
    """Rows as arrays for a model's device and links; `InputError` where it cannot price one."""
    return priced_rows(model, calls, in_step)[0]


def priced_rows(
    model: PerfModel, calls: Sequence[Call], in_step: InStep | None = None
) -> tuple[StepTable, KnownRows]:
    """`step_table`, and what is known of its rows."""
    ops, messages, given = split(calls)
    chains, exposed = only(CallChain, calls), only(Exposed, calls)
    table, own = model.priced(list(ops.values()) or [no_op()])
    behind, first = [*messages, *given], len(table.group)
    place = np.zeros(len(calls), np.int32)
    place[list(ops)] = np.arange(len(ops))
    place[behind] = first + np.arange(len(behind))
    place[[*chains, *exposed]] = first + len(behind)
    carried, priced, near = None, None, np.zeros(0, bool)
    if messages:
        carried, priced, near = _carried(model, list(messages.values()))
    power_s = np.zeros(len(calls))
    busy = own.column(multiplied_more, empty=1.0)
    power_s[list(ops)] = (_power_s(model, table) * busy)[: len(ops)]
    parts = [(at, row - 1, often) for at, chain in chains.items() for row, often in chain.parts]
    left = [(at, one.message - 1, one.beside - 1) for at, one in exposed.items()]
    rows_as_arrays = StepTable(
        ops=table,
        given_s=np.array([*(call.value for call in given.values()), 0.0]),
        place=place,
        parts=np.array(parts, np.int32).reshape(-1, 3),
        exposed=np.array(left, np.int32).reshape(-1, 3),
        power_s=power_s,
        collectives=carried,
        **_in_step(model, in_step),
    )
    return rows_as_arrays, KnownRows(own, priced, near)


def _power_s(model: PerfModel, table: OpTable) -> np.ndarray:
    """Seconds of ops at the rate that the device's power limit sustains [O]; 0 where none is known.

    A card with less power than the one that was measured sustains less, by its clock.
    """
    shares = step_effects.SUSTAINED.get(model.device.arch)
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
        "role": np.array([step_effects.ROLE_NAMES.index(one.role) for one in places], np.int32),
        "count": np.array([one.count for one in places], float),
        "block_log": np.array([logs[BLOCK_LOGS.index(one.block)] for one in places]),
        "slowest": np.array(in_step.slowest),
    }


Parts = tuple[dict[int, OpCall], dict[int, CollectiveCall], dict[int, GivenSeconds]]


def split(calls: Sequence[Call]) -> Parts:
    """Rows that are ops, collectives and given seconds, each by its place."""
    return only(OpCall, calls), only(CollectiveCall, calls), only(GivenSeconds, calls)


def step_durations(table: StepTable, platform: Platform, xp: ModuleType = jnp) -> Array:
    """Seconds of each row [U] on one platform; in NumPy of no training step [B, U] on B whose
    leaves have a first axis, too.
    """
    table, platform = fresh_views((table, platform))
    op_s, carried_s = durations(table.ops, platform, xp), None
    if table.collectives is not None:
        assert platform.links is not None  # `_carried` has refused a model without
        carried_s = collective_price.collective_seconds(table.collectives, platform.links, xp)
    seconds = _placed(table, op_s, carried_s, xp)
    # a card with more power to match
    scale = xp.asarray(platform.peak_flops_scale)[..., None]
    table = dataclasses.replace(table, power_s=table.power_s / scale)
    seconds = in_step_s(table, seconds, platform.effects, xp)
    if xp is np:
        return chained(table, seconds.T).T
    row, message, beside = table.exposed.T
    seconds = seconds.at[row].set(jnp.maximum(seconds[message] - seconds[beside], 0.0))
    chain, part, times = table.parts.T
    return seconds.at[chain].add(seconds[part] * times)


def in_step_s(table: StepTable, alone_s: Array, effects: Array, xp: ModuleType = np) -> Array:
    """Seconds of rows that are not composed of others in their step [U] or [U, B].

    Args:
        table: the rows; of no training step they stay as they are.
        alone_s: seconds of each by itself [U] or [U, B].
        effects: step effects [K] or [K, B], in the order of `step_effects.NAMES`.
        xp: NumPy or JAX.
    """
    if table.role is None:
        return alone_s
    alone_s = step_effects.sustained_s(xp, alone_s, table.power_s)
    effects = xp.asarray(effects, alone_s.dtype)
    scale, per_count = step_effects.by_role(xp, effects, table.slowest)
    column = (slice(None),) + (None,) * (effects.ndim - 1)
    scaled_s = alone_s * scale[table.role]
    added_s = xp.asarray(table.count)[column] * per_count[table.role]
    both_s = step_effects.larger_s(scaled_s, added_s)
    larger = xp.asarray(step_effects.role_matrices()[2])[table.role]
    seconds = xp.where(larger[column], both_s, scaled_s + added_s)
    return seconds * xp.exp(xp.asarray(table.block_log, seconds.dtype))[column]


def chained(table: StepTable, seconds: np.ndarray) -> np.ndarray:
    """Seconds of all rows [U, ...] by those of rows that are not composed of others."""
    found = seconds.copy()
    row, message, beside = table.exposed.T
    found[row] = np.maximum(found[message] - found[beside], 0.0)
    chain, part, times = table.parts.T
    found[chain] = 0.0
    np.add.at(found, chain, (found[part].T * times).T)
    return found


def unchained(table: StepTable, seconds: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How often rows count [U] where those that are composed of others count so often: the adjoint
    of `chained` at these seconds.
    """
    found = times.astype(float)
    chain, part, often = table.parts.T
    found[np.unique(chain)] = 0.0
    np.add.at(found, part, times[chain] * often)
    row, message, beside = table.exposed.T
    shown = found[row] * (seconds[row] > 0)
    found[row] = 0.0
    np.add.at(found, message, shown)
    np.add.at(found, beside, -shown)
    return found


def in_step_seconds(table: StepTable, alone_s: np.ndarray, effects: np.ndarray) -> np.ndarray:
    """Seconds of all rows [U] or [U, B] in their step; `effects` [K] or [K, B]."""
    return chained(table, in_step_s(table, alone_s, effects))


def alone_seconds(model: PerfModel, table: StepTable, bare: bool = False) -> np.ndarray:
    """Seconds of each row [U] by itself, no part of a step; chains take none. `bare`: by datasheets
    alone, of device and links.
    """
    op_s = model.roofline_seconds(table.ops) if bare else model.op_seconds(table.ops)
    fabric, carried, carried_s = model.collectives, table.collectives, None
    if carried is not None:
        assert fabric is not None
        carried = fabric.bare(carried) if bare else carried
        carried_s = collective_price.price(carried, fabric.links()).seconds
    return _placed(table, op_s, carried_s)


def row_seconds(model: PerfModel, calls: Sequence[Call]) -> np.ndarray:
    """Seconds of calls [U] that are no training step."""
    table = step_table(model, calls)
    return chained(table, alone_seconds(model, table))


def _placed(table: StepTable, op_s: Array, carried_s: Array | None, xp: ModuleType = np) -> Array:
    """Seconds of all rows [..., U] by those of ops [..., O] and of collectives [..., C]."""
    parts = [one for one in (op_s, carried_s, table.given_s) if one is not None]
    parts = [xp.broadcast_to(part, (*op_s.shape[:-1], part.shape[-1])) for part in parts]
    return xp.concatenate([xp.asarray(part, op_s.dtype) for part in parts], -1)[..., table.place]


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


def _carried(
    model: PerfModel, calls: Sequence[CollectiveCall]
) -> tuple[collective_price.CollectiveTable, collective_price.Priced, np.ndarray]:
    """(calls [C] as `price` takes them, their prices, whether each lies inside what was measured
    [C]); one of unequal sizes is trusted as one of equal. `InputError` where nothing prices them.
    """
    fabric = model.collectives
    if fabric is None:
        raise InputError(
            f"expected a model with collectives for a step with an {calls[0].collective} over"
            f" {calls[0].ranks} ranks, got one of {model.device.id} alone; `hybridperf fit --system"
            " NAME` adds them, or model.with_collectives(load_collectives(NAME)) those of a"
            " shipped system"
        )
    pairs = {at: np.array(one.pair_bytes) for at, one in enumerate(calls) if one.pair_bytes}
    table, near = fabric.priced(collective_frame(calls), pairs)
    return table, collective_price.price(table, fabric.links()), near
