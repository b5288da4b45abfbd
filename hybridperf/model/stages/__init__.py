"""The price of an op, as a list of stages.

    log seconds = log roofline + sum over stages of log factor

Each stage is a small function (batch of ops alike, machine, log seconds so far, NumPy or JAX) ->
what it adds, how wide that is, by what it knows it (`step.Step`). The first one says what an op
takes by itself: its own rows, another device's, the datasheet, whoever in the order of `who.Who`
knows such ops. The others change what another kernel, its operands or varied knobs change; one that
does not apply adds nothing. Rows of tables, calls of a graph and traced functions go through this
list alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridperf.model.batch import Batch
from hybridperf.model.stages.borrowed import by_others, by_stand_in
from hybridperf.model.stages.closed import (
    OWN,
    by_bandwidth,
    by_varied_knobs,
    floors,
    rooflines,
)
from hybridperf.model.stages.family import by_usual, told_of
from hybridperf.model.stages.kernel import (
    by_attention_kernel,
    by_operands,
    by_streaming,
    by_variant,
)
from hybridperf.model.stages.step import NOTHING_S, Machine, Priced, Stage, Step
from hybridperf.model.stages.who import Who, as_measured, who

SAYS: Mapping[Who, Stage] = {
    **OWN, Who.FUSED: by_bandwidth, Who.STAND_IN: by_stand_in,
    Who.USUAL: by_usual, Who.BORROWED: by_others,
}  # fmt: skip
CHANGES: tuple[Stage, ...] = (
    by_attention_kernel, by_variant, by_streaming, by_operands, by_varied_knobs,
)  # fmt: skip


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
        priced = Priced(log_s, log_s)
        for stage in (SAYS[who(batch, machine.model)], *CHANGES):
            priced = priced.after(stage(batch, machine, priced.log_s, xp))
        found.append(priced)
    return found


__all__ = [
    "CHANGES", "NOTHING_S", "SAYS", "Machine", "Priced", "Step", "Who", "as_measured",
    "floors", "price_batch", "price_batches", "who",
]  # fmt: skip
