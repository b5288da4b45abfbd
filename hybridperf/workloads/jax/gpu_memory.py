"""The most bytes that a compiled program holds at once, by what is alive.

Arguments lie there from the beginning; a donated one is handed to the result that takes its place.
What a kernel writes is alive from there to the last kernel that reads it, in a loop to the loop's
end if it was made outside; what goes round a loop is one buffer.

XLA looks for an order of kernels that needs little; here it is the program's own, so that XLA may
need less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hybridperf.workloads.jax.dataflow import Dataflow
from hybridperf.workloads.jax.gpu_fusion import Fuser
from hybridperf.workloads.jax.gpu_recompute import Settled


class _Use(NamedTuple):
    """What one kernel does to memory."""

    reads: frozenset[int]
    writes: frozenset[int]


def peak_bytes(kernels: Sequence[Settled], flow: Dataflow, fuser: Fuser) -> float:
    """The most bytes alive at once."""
    sizes: dict[int, float] = {}
    for node, at in fuser.number.items():
        owner = fuser.owner(at)
        sizes[owner] = max(sizes.get(owner, 0.0), node.instruction.bytes)
    split = {one.taken[0].node for one in flow.nodes if one.opcode == "shard"}
    arguments = {fuser.number[one] for one in flow.parameters if one not in split}
    arguments |= {at for node, at in fuser.number.items() if node.opcode == "shard"}
    arguments = {fuser.owner(one) for one in arguments}
    given = fuser.storages(flow.outputs)
    results = {fuser.owner(one) for one in given}
    held = sum(sizes[one] for one in arguments)
    # results that take the places of donated arguments, which lie there anyway
    free = Counter(sizes[fuser.number[node]] for node in fuser.donated if node not in split)
    placed = set[int]()
    for one in sorted(results - arguments):
        if free[sizes[one]]:
            free[sizes[one]] -= 1
            placed.add(one)
    uses = [
        _Use(
            frozenset(fuser.owner(x) for x in one.read) - arguments - placed,
            frozenset(fuser.owner(x) for x in one.written) - arguments - placed,
        )
        for one in kernels
    ]  # fmt: skip
    return held + _peak(_as_in_program(uses, kernels, flow), sizes, results - arguments - placed)


def _as_in_program(
    uses: Sequence[_Use], kernels: Sequence[Settled], flow: Dataflow
) -> list[tuple[_Use, frozenset[int]]]:
    """Each kernel's use, and what nobody reads after it."""
    ends: dict[int, int] = {}  # of each loop, its last kernel
    for at, one in enumerate(kernels):
        loop = one.node.loop
        while loop:
            ends[loop] = at
            loop = flow.loop_around.get(loop, 0)
    made_in: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, (one, use) in enumerate(zip(kernels, uses, strict=True)):
        for storage in use.writes:
            made_in.setdefault(storage, one.node.loop)
            last[storage] = max(last.get(storage, 0), at)
        for storage in use.reads:
            loop, end = one.node.loop, at
            while loop and loop != made_in.get(storage, 0):
                end = ends[loop]
                loop = flow.loop_around.get(loop, 0)
            last[storage] = max(last.get(storage, 0), end)
    dead: dict[int, set[int]] = {}
    for storage, at in last.items():
        dead.setdefault(at, set()).add(storage)
    return [(use, frozenset(dead.get(at, ()))) for at, use in enumerate(uses)]


def _peak(
    order: Sequence[tuple[_Use, frozenset[int]]], sizes: dict[int, float], kept: set[int]
) -> float:
    alive, most, now = set[int](), 0.0, 0.0
    for use, dead in order:
        for one in use.writes - alive:
            alive.add(one)
            now += sizes.get(one, 0.0)
        most = max(most, now)
        for one in dead & alive - kept:
            alive.discard(one)
            now -= sizes.get(one, 0.0)
    return most
