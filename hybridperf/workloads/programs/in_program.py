"""A user's program as a workload: what it issues, in order, whoever captured it.

A front (`torch/`, `jax/`) says what each op launches and sends, and which storages that reads and
writes; here it becomes a graph with its step effects, and bytes alive at once. Programs of PyTorch
and of JAX go by it alike, as `transformer/in_step.py` has it for our own steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hybridperf.engine.graph import COMM, COMPUTE, Graph, GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.io import InputError
from hybridperf.model.calls import (
    Call,
    CallChain,
    CollectiveCall,
    GivenSeconds,
    InStep,
    StepPlace,
)
from hybridperf.ops import OpCall
from hybridperf.ops.attention import Attention

Origin = tuple[str, str]  # module and pass of a program
Rows = dict[tuple[Call, StepPlace], int]
LAUNCH = GivenSeconds(0.0, "launch")
_MESSAGE_LAUNCH = StepPlace("collective_launch")
_NAMED = 12  # unknown ops that an error lists


class Launched(NamedTuple):
    """A kernel, its place in a step, and that of its launch."""

    call: Call
    place: StepPlace
    launch: StepPlace


class Sent(NamedTuple):
    """A message, its place in a step, and how often in a row it is sent."""

    call: CollectiveCall
    place: StepPlace
    times: int = 1


@dataclass(frozen=True)
class Issued:
    """What an op of a program issues on a GPU: kernels, or messages, or nothing but a wait."""

    label: str  # that people read
    read: Collection[int] = ()  # storages; 0 of what is not known
    written: Collection[int] = ()
    kernels: tuple[Launched, ...] = ()
    messages: tuple[Sent, ...] = ()
    stream: str = COMPUTE  # of its kernels
    ahead: bool = False  # messages that wait for no kernel
    origin: Origin = ("", "")


def on_streams(issued: Iterable[Issued]) -> tuple[Graph, Rows, tuple[Origin, ...]]:
    """The graph of a GPU's step, its calls, and where its nodes come from: kernels in the order
    issued; messages on a stream of their own, behind the kernels before them. What reads a
    message's result comes after it.
    """
    graph, rows, origins = GraphBuilder(), Rows(), list[Origin]()
    sent: dict[int, int] = {}  # by storage, the message that it comes from
    last = -1  # kernel of the compute stream

    def row(call: Call, place: StepPlace) -> int:
        return rows.setdefault((call, place), len(rows) + 1)

    for one in issued:
        origins += [one.origin] * (len(one.messages) + len(one.kernels))
        after = sorted({sent[storage] for storage in one.read if storage in sent})
        behind = [last] if last >= 0 and not one.ahead else []
        for message, place, times in one.messages:
            at = row(message, place)
            if times > 1:
                at = row(CallChain(((at, times),)), StepPlace())
            node = graph.collective(
                at, label=one.label, ranks=[0], stream=COMM, after=behind,
                launch_row=row(LAUNCH, _MESSAGE_LAUNCH),
            )[0]  # fmt: skip
            sent |= dict.fromkeys(one.written, node)
        if not one.messages and not one.kernels and after:  # hands on what it waits for
            sent |= dict.fromkeys(one.written, after[-1])
        for call, place, launch in one.kernels:
            node = graph.op(
                row(call, place), label=one.label, stream=one.stream, after=after,
                launch_row=row(LAUNCH, launch),
            )  # fmt: skip
            after, last = [], node if one.stream == COMPUTE else last
    return graph.build(), rows, tuple(origins)


def in_turn(calls: Iterable[tuple[str, Call]]) -> tuple[Graph, dict[Call, int]]:
    """The graph of a CPU's step, and its calls: (label, call) one after the other."""
    graph, rows = GraphBuilder(), dict[Call, int]()
    for label, call in calls:
        row = rows.setdefault(call, len(rows) + 1)
        if isinstance(call, CollectiveCall):
            graph.collective(row, label=label, ranks=[0], stream=COMPUTE)
        else:
            graph.op(row, label=label)
    return graph.build(), rows


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


def lives(uses: Iterable[Iterable[int]]) -> dict[int, tuple[int, int]]:
    """(first, last) step that uses a storage, of the storages that each step uses."""
    found: dict[int, tuple[int, int]] = {}
    for at, used in enumerate(uses):
        for one in used:
            found[one] = found.get(one, (at,))[0], at
    return found


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
