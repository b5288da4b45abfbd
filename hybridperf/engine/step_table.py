"""All rows of a step as arrays, priced together: ops, collectives, given seconds, chains of rows.

Axes: U rows of the duration table, O of them ops, C collectives, F given seconds; P parts of all
chains. `step_durations(table, platform)` is pure and differentiable in every number of the
platform, the rates of its links included; a step of ops alone is priced as its `OpTable` is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from hybridperf.collectives.model import CollectiveModel, CollectiveTable, collective_seconds
from hybridperf.collectives.unequal import AllToAll
from hybridperf.engine.workload import Call, CallChain, CollectiveCall, GivenSeconds
from hybridperf.io import InputError
from hybridperf.io.namespace import Array, fresh_views
from hybridperf.model import OpTable, PerfModel, Platform, canonical, durations
from hybridperf.ops import Call as StartProgram
from hybridperf.ops import OpCall
from hybridperf.ops.attention_kernels import published_factor


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["ops", "collectives", "given_s", "place", "parts", "slower"],
    meta_fields=[],
)
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
    # seconds of an op's kernel over those of the measured kernel; None: all are measured ones; [O]
    slower: Array = None


def step_table(model: PerfModel, calls: Sequence[Call]) -> StepTable:
    """Rows as arrays for a model's device and links; `InputError` where it cannot price one."""
    ops, collectives, given = split(calls)
    op_calls = list(ops.values())
    slower = _slower(model, op_calls)
    chains = {at: call for at, call in enumerate(calls) if isinstance(call, CallChain)}
    if not collectives and not given and not chains:
        return StepTable(model.table(op_calls), slower=slower)
    table = model.table(op_calls or [OpCall(StartProgram("fp32", 0.0))])
    count = max(len(ops), 1)
    place = {at: i for i, at in enumerate(ops)}
    place |= {at: count + i for i, at in enumerate((*collectives, *given))}
    # the row of a chain alone takes no time
    place |= dict.fromkeys(chains, count + len(collectives) + len(given))
    rows = None
    if collectives:
        fabric = fabric_of(model, next(iter(collectives.values())))
        rows = _collective_rows(fabric, list(collectives.values()))
    seconds = [*(call.value for call in given.values()), *([0.0] if chains else [])]
    parts = [(at, row - 1, often) for at, chain in chains.items() for row, often in chain.parts]
    return StepTable(
        ops=table,
        collectives=rows,
        given_s=np.array(seconds) if seconds else None,
        place=np.array([place[at] for at in range(len(calls))], np.int32),
        parts=np.array(parts, np.int32) if chains else None,
        slower=slower,
    )


def _slower(model: PerfModel, calls: Sequence[OpCall]) -> np.ndarray | None:
    """Seconds of calls over those of the measured kernels [O]; None where no call names another."""

    def seconds(call: OpCall) -> float:
        return float(model.op_seconds(model.table([call]))[0])

    device, keys = model.device, [(call.kernel, call.op.dtype) for call in calls]
    named = [(name, dtype) for name, dtype in dict.fromkeys(keys) if name]
    factors = {key: published_factor(*key, device.arch, device, seconds) for key in named}
    return np.array([factors.get(key, 1.0) for key in keys]) if factors else None


def split(
    calls: Sequence[Call],
) -> tuple[dict[int, OpCall], dict[int, CollectiveCall], dict[int, GivenSeconds]]:
    """Rows that are ops, collectives and given seconds, each by its place."""
    return (
        {at: call for at, call in enumerate(calls) if isinstance(call, OpCall)},
        {at: call for at, call in enumerate(calls) if isinstance(call, CollectiveCall)},
        {at: call for at, call in enumerate(calls) if isinstance(call, GivenSeconds)},
    )


def step_durations(table: StepTable, platform: Platform) -> Array:
    """Seconds of each row [U] on one platform."""
    table, platform = fresh_views((table, platform))
    op_s = durations(table.ops, platform)
    parts = [op_s if table.slower is None else op_s * jnp.asarray(table.slower, op_s.dtype)]
    if table.place is None:
        return parts[0]
    if table.collectives is not None:
        assert platform.links is not None  # `fabric_of` has refused a model without
        parts.append(collective_seconds(table.collectives, platform.links))
    if table.given_s is not None:
        parts.append(table.given_s)
    seconds = jnp.concatenate([jnp.asarray(part, parts[0].dtype) for part in parts])[table.place]
    if table.parts is None:
        return seconds
    chain, part, times = table.parts.T
    return seconds.at[chain].add(seconds[part] * times)


def chained(table: StepTable, seconds: np.ndarray) -> np.ndarray:
    """Seconds of all rows [U, ...] by those of rows that are no chains."""
    if table.parts is None:
        return seconds
    chain, part, times = table.parts.T
    found = seconds.copy()
    found[chain] = 0.0
    np.add.at(found, chain, (found[part].T * times).T)
    return found


def batched_step_durations(table: StepTable, platform: Platform, axes: Platform) -> Array:
    """Durations [U, B]: leaves of `platform` with an axis in `axes` carry B along it."""
    return jax.vmap(step_durations, in_axes=(None, axes), out_axes=-1)(table, platform)


def row_seconds(model: PerfModel, table: StepTable) -> np.ndarray:
    """Seconds of each row [U]."""
    op_s = model.op_seconds(table.ops)
    op_s = op_s if table.slower is None else op_s * table.slower
    return _placed(table, op_s, model.platform().links)


def row_roofline_seconds(model: PerfModel, table: StepTable, calls: Sequence[Call]) -> np.ndarray:
    """Seconds of each row [U] by datasheets alone: device and links."""
    op_s = model.roofline_seconds(table.ops)
    if table.collectives is None:
        return _placed(table, op_s, None)
    assert model.collectives is not None
    bare = CollectiveModel.datasheet(model.collectives.system)
    rows = _collective_rows(bare, list(split(calls)[1].values()))
    return _placed(dataclasses.replace(table, collectives=rows), op_s, bare.links())


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
        seconds = _collective_seconds(canonical(table.collectives), canonical(links))
        parts.append(np.asarray(seconds, np.float64))
    if table.given_s is not None:
        parts.append(np.asarray(table.given_s, np.float64))
    return chained(table, np.concatenate(parts)[table.place])


_collective_seconds = jax.jit(collective_seconds)


def _collective_rows(model: CollectiveModel, calls: Sequence[CollectiveCall]) -> CollectiveTable:
    """[C]; equal sizes by one table, unequal ones each by what keeps the busiest link as busy."""
    order = [at for at, call in enumerate(calls) if call.pair_bytes is None]
    tables = [model.table(collective_frame([calls[at] for at in order]))] if order else []
    scales: dict[tuple[Any, ...], AllToAll] = {}
    for at, call in enumerate(calls):
        if call.pair_bytes is not None:
            key = call.ranks, call.nodes, call.words
            if key not in scales:
                per_node = call.ranks // call.nodes
                scales[key] = AllToAll.of(model, call.ranks, per_node, **dict(call.words))
            tables.append(scales[key].table(np.array(call.pair_bytes)))
            order.append(at)
    back = np.argsort(order)
    return jax.tree.map(
        lambda *leaves: np.concatenate([np.asarray(leaf, np.float64) for leaf in leaves])[back],
        *tables,
    )
