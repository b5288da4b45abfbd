"""A step as a model prices it: unique rows, and a graph whose nodes point into them.

Row u of the duration table (from 1; row 0 is always zero) belongs to `calls[u - 1]`: an op, a
collective, seconds that are given, or a chain of such rows. A step repeats the same op on the same
shapes many times, so the table is far shorter than the graph, and pricing it costs little however
deep the model is.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from hybridperf.engine.graph import Graph
from hybridperf.model import PerfModel, Platform
from hybridperf.model.calls import Call, CallChain, InStep
from hybridperf.model.step_table import StepTable, step_table


class PeakMemory(NamedTuple):
    """The most that a device must hold for a step."""

    bytes: float
    what: str  # "rank 3 holds tables, MLPs and bags of", followed by the bytes
    largest_part: str = ""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One step of work: a graph of calls on streams of ranks; what `hp.predict` prices."""

    name: str
    graph: Graph  # nodes with their rank, stream and what they wait for
    calls: tuple[Call, ...]  # different ops, collectives and given seconds, that nodes refer to
    backend: str | None = None  # kind of device it was compiled for ("cpu", "gpu"); None: any
    library: str = ""  # whose calibration of a CPU prices it ("torch"); empty: JAX' or none
    flops: float = 0.0  # arithmetic of one step, as counted from the program
    transcendentals: float = 0.0  # exp, log, tanh, ... of one step
    notes: tuple[str, ...] = ()  # what was assumed or left out
    peak_memory: PeakMemory | None = None  # None: not counted
    # of a training step: which step effects count for which call; None: calls as they are
    in_step: InStep | None = None
    # of each node the path of the module that asked for it and the pass, where they were followed
    origins: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        nodes, ranks = len(self.graph), len(np.unique(self.graph.rank))
        counts = f"nodes: {nodes:,}, ranks: {ranks:,}, different calls: {len(self.calls):,}"
        flops = f", flops: {self.flops:.4g}" if self.flops else ""
        backend = f", compiled for: {self.backend}" if self.backend else ""
        return f"<Workload: {self.name}; {counts}{flops}{backend}, notes: {len(self.notes)}>"

    def times_run(self) -> np.ndarray:
        """How often the graph runs each row [U], including runs as a part of a chain."""
        times = np.bincount(self.graph.row, minlength=len(self.calls) + 1)[1:]
        for at, call in enumerate(self.calls):
            if isinstance(call, CallChain):
                for row, often in call.parts:
                    times[row - 1] += often * times[at]
                times[at] = 0
        return times


def priced(model: PerfModel, workload: Workload) -> tuple[StepTable, Platform]:
    """A workload's rows as arrays, and the machine's numbers with the effects of its framework."""
    framework = "" if workload.in_step is None else workload.in_step.framework
    table = step_table(model, workload.calls, workload.in_step)
    return table, model.platform(framework)
