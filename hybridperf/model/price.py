"""The one price: what calls cost on a machine, how sure that is, and what was assumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hybridperf.io.process import check_not_forked
from hybridperf.model.calls import Call, InStep
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.step_table import (
    StepTable,
    alone_seconds,
    priced_rows,
    row_roofline_seconds,
    split,
)


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices of calls, each by itself [U]."""

    seconds: np.ndarray
    # standard deviation of the log of seconds, of what was not measured as believed; NaN where
    # nothing is known of it
    spread: np.ndarray
    roofline_s: np.ndarray  # by the datasheets of device and links alone
    # octaves between each call and what was measured: 0 inside, infinite where nobody measured it
    outside: np.ndarray
    remarks: tuple[str, ...]  # what was assumed; empty where nothing
    # of the log of each op's own seconds, and what of it all ops share that go by one source; not a
    # number where nothing is known, zero of rows that are no ops
    log_variance: np.ndarray
    shared_log_variance: np.ndarray
    sources: np.ndarray  # by what each op is priced, object [U] of `sources.Source`; None: no op
    unmeasured: Mapping[int, str]  # ops whose number format nobody measured, with a note
    table: StepTable  # the calls as arrays

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
    table, known = priced_rows(model, calls, in_step)
    seconds = alone_seconds(model, table)
    of_ops, of_links, given = split(calls)
    ops, collectives = list(of_ops), list(of_links)
    outside, spread, variance, shared = np.zeros((4, len(calls)))
    sources = np.full(len(calls), None, object)
    remarks, unmeasured = np.full(len(calls), "", object), {}
    if ops:
        own = known.ops
        outside[ops], remarks[ops], sources[ops] = own.outside, own.remarks, own.sources
        variance[ops], shared[ops] = map(own.placed, ("log_variance", "shared_log_variance"))
        spread[ops] = np.sqrt(shared[ops])
        unmeasured = {ops[at]: note for at, note in own.unmeasured.items()}
    for at, one in given.items():
        spread[at] = one.log_spread
    if known.collectives is not None:
        outside[collectives] = np.where(known.collectives.in_range, 0.0, np.inf)
        spread[collectives] = np.sqrt(known.collectives.log_variance)
    roofline_s = row_roofline_seconds(model, table, calls, seconds)
    return Prices(
        seconds,
        spread,
        roofline_s,
        outside,
        tuple(remarks),
        variance,
        shared,
        sources,
        unmeasured,
        table,
    )
