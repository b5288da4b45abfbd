"""The one price: what calls cost on a machine, how sure that is, and what was assumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hybridperf.io.process import check_not_forked
from hybridperf.model import step_table
from hybridperf.model.calls import Call, InStep
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.variance import Components


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices of calls, each by itself [U]."""

    seconds: np.ndarray
    components: Components  # of the variance of their logs; of what was not measured as believed
    roofline_s: np.ndarray  # by the datasheets of device and links alone
    # octaves between each call and what was measured: 0 inside, infinite where nobody measured it
    outside: np.ndarray
    remarks: tuple[str, ...]  # what was assumed; empty where nothing
    sources: np.ndarray  # by what each op is priced, object [U] of `sources.Source`; None: no op
    unmeasured: Mapping[int, str]  # ops whose number format nobody measured, with a note
    table: step_table.StepTable  # the calls as arrays

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of the log of seconds; NaN where nothing is known of it [U]."""
        return self.components.deviation

    @property
    def in_range(self) -> np.ndarray:
        """Whether each call lies inside what was measured [U]."""
        return self.outside == 0


def price(model: PerfModel, calls: Sequence[Call], in_step: InStep | None = None) -> Prices:
    """What calls cost on a machine, each by itself.

    Args:
        model: the machine, with collectives where there are some among the calls.
        calls: ops, collectives, given seconds.
        in_step: where they stand in a training step, for `table`.

    Raises:
        InputError: when the machine cannot price one of them; the message names it.
    """
    check_not_forked()
    table, known = step_table.priced_rows(model, calls, in_step)
    seconds = step_table.alone_seconds(model, table)
    op_calls, messages, given = step_table.split(calls)
    ops, collectives = list(op_calls), list(messages)
    outside, remarks, unmeasured = np.zeros(len(calls)), np.full(len(calls), "", object), {}
    sources = np.full(len(calls), None, object)
    parts: list[tuple[Sequence[int], Components]] = []
    if ops:
        own = known.ops
        outside[ops], remarks[ops] = own.outside, own.remarks
        sources[ops] = own.sources
        parts.append((ops, own.components(model.drift)))
        unmeasured = {ops[at]: note for at, note in own.unmeasured.items()}
    if given:
        believed = np.array([one.log_spread for one in given.values()])
        parts.append((list(given), Components.of(believed, 0 * believed, ["given"] * len(given))))
    if known.collectives is not None:
        outside[collectives] = np.where(known.near, 0.0, np.inf)
        width = np.sqrt(known.collectives.log_variance)
        names = [f"links: {one.collective}" for one in messages.values()]
        parts.append((collectives, Components.of(width, 0 * width, names)))
    components = Components.placed(len(calls), parts)
    roofline_s = step_table.chained(table, step_table.alone_seconds(model, table, bare=True))
    return Prices(
        seconds, components, roofline_s, outside, tuple(remarks), sources, unmeasured, table
    )
