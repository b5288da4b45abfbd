"""A user's program as a workload: what its kernels and messages are in a step, and which step
effects count for them.

Programs of PyTorch and of JAX go by it alike, as `transformer/in_step.py` has it for our own steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hybridperf.engine.graph import Graph
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model.calls import Call, CollectiveCall, InStep, StepPlace
from hybridperf.ops import OpCall
from hybridperf.ops.attention import Attention

Rows = dict[tuple[Call, StepPlace], int]
MESSAGE_LAUNCH = StepPlace("collective_launch")
_NAMED = 12  # unknown ops that an error lists


def role_of(call: OpCall) -> str:
    """Which step effects count for a kernel (`model/step_effects.py`)."""
    if isinstance(call.op, Attention):
        return "attention"
    return "gemm" if call.op.unit == "matrix" else "memory"


def place_of(call: CollectiveCall) -> StepPlace:
    """Of a message that whoever reads it waits for."""
    if call.collective in ("alltoall", "sendrecv"):
        return StepPlace("exchange" if call.collective == "alltoall" else "p2p")
    return StepPlace("tp") if call.nodes == 1 else StepPlace("tp_across", float(call.nodes))


def program_workload(
    name: str, graph: Graph, rows: Rows, kernels: Iterable[OpCall], framework: str, **more: Any
) -> Workload:
    """A program's graph with what it computes.

    Args:
        name: of the program.
        graph: of its step.
        rows: its calls with their places.
        kernels: all that run.
        framework: whose step effects count; "": none.
        more: further fields.
    """
    works = [(call.op.work(), call.times) for call in kernels]
    places = tuple(place for _, place in rows)
    return Workload(
        name=name, graph=graph, calls=tuple(call for call, _ in rows),
        flops=float(sum(work.flops * times for work, times in works)),
        transcendentals=float(sum(work.transcendentals * times for work, times in works)),
        in_step=InStep(places, framework, (0.0,) * 4) if framework else None, **more,
    )  # fmt: skip


def most_alive_bytes(spans: Iterable[tuple[float, int, int]], steps: int) -> float:
    """The most bytes alive at once, of (bytes, first step, last step) of each storage."""
    change = np.zeros(steps + 1)
    for size, first, last in spans:
        change[first] += size
        change[last + 1] -= size
    return float(change.cumsum().max())


def refuse_unpriced(program: str, unpriced: Mapping[str, str], otherwise: str = "") -> None:
    """`InputError` that names what has no price.

    Args:
        program: its name.
        unpriced: the line that asked for it, by kind of op.
        otherwise: what else than leaving it out can be done.
    """
    if not unpriced:
        return
    named = [kind + (f" ({where})" if where else "") for kind, where in unpriced.items()]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    raise InputError(
        f"{program}: cannot price {len(named)} kind(s) of op: {', '.join(named[:_NAMED])}{more};"
        f" leave them out with ignore=... (`--ignore` on the command line){otherwise}"
    )
