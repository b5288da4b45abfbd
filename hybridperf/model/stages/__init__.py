"""The price of an op, as a list of stages.

    log seconds = log roofline + sum over stages of log factor

Each stage is a small function (batch of ops alike, machine, log seconds so far, NumPy or JAX) ->
what it adds, how wide that is, by what it knows it (`step.Step`); one that does not apply adds
nothing. Rows of tables, calls of a graph and traced functions go through this list alone. Which
stage says what an op takes by itself (its own rows, another device's, the datasheet) is the order
of `who.Who`; the others change what another kernel, its operands or varied knobs change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridperf.io.namespace import Array
from hybridperf.model.batch import Batch, traced
from hybridperf.model.platform import Platform
from hybridperf.model.stages.borrowed import by_others, by_stand_in
from hybridperf.model.stages.closed import (
    by_knobs,
    by_varied_knobs,
    closed_log_s,
    roofline_log_s,
    rooflines,
)
from hybridperf.model.stages.family import by_family, told_of
from hybridperf.model.stages.fused import by_datasheet
from hybridperf.model.stages.images import by_form
from hybridperf.model.stages.kernel import by_attention_kernel, by_operands
from hybridperf.model.stages.step import Machine, Priced, Stage, Step, sources_of
from hybridperf.model.stages.who import Who, as_measured, who
from hybridperf.ops import GROUPS, Op
from hybridperf.ops.table import OpRows

STAGES: tuple[Stage, ...] = (
    by_datasheet,
    by_knobs,
    by_form,
    by_family,
    by_stand_in,
    by_others,
    by_attention_kernel,
    by_operands,
    by_varied_knobs,
)


def price_batch(batch: Batch, machine: Machine, xp: Any = np) -> Priced:
    """What the stages say of a batch [R], in the format that was measured (`as_measured`); in JAX
    where sizes or the machine are traced.
    """
    return price_batches([batch], machine, xp)[0]


def price_batches(batches: Sequence[Batch], machine: Machine, xp: Any = np) -> list[Priced]:
    """`price_batch` of each; the roofline is calculated, and each family asked, once for all."""
    if not batches:
        return []
    known = [one for one in batches if xp is np or who(one, machine.model) is Who.FAMILY]
    machine, found = machine._replace(told=told_of(known, machine)), list[Priced]()
    for batch, log_s in zip(batches, rooflines(batches, machine, xp), strict=True):
        priced = Priced(log_s)
        for stage in STAGES:
            priced = priced.after(stage(batch, machine, priced.log_s, xp))
        found.append(priced)
    return found


def traced_seconds(part: OpRows, op: Op, model: Any, numbers: Platform) -> Array:
    """Seconds of one op [] whose sizes may be traced, on a machine whose numbers may be."""
    machine = Machine(model, numbers)
    batches = traced(part, op)
    known = [as_measured(model, batch) for batch in batches]
    seconds = [price_batch(batch, machine, jnp).seconds(jnp)[0] for batch in known]
    found, which = seconds[0], op.group_index()
    for batch, other in zip(batches[1:], seconds[1:], strict=True):
        found = jnp.where(which == GROUPS.index(batch.group), other, found)
    return found


__all__ = [
    "STAGES", "Machine", "Priced", "Step", "as_measured", "closed_log_s", "price_batch",
    "price_batches", "roofline_log_s", "sources_of", "traced_seconds",
]  # fmt: skip
