"""Which collective an HLO instruction is.

    all-reduce            all_reduce       of every array that is reduced
    all-gather            all_gather       of every output
    reduce-scatter        reduce_scatter   of every input
    all-to-all            alltoall         of all inputs together: one rank's send buffer
    collective-permute    sendrecv         of the message

A combined all-reduce (a tuple of arrays) is one call for each array on a CPU, whose library (gloo)
is called once for each; elsewhere they are one. An instruction in two halves (`-start`, `-done`) is
taken where it starts. How many ranks take part is in the instruction's groups.
"""

from __future__ import annotations

import re

from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall
from hybridperf.workloads.jax.hlo import Instruction, Shape

_NAMES = {
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter",
    "all-to-all": "alltoall", "collective-permute": "sendrecv",
}  # fmt: skip
HALVES_DONE = frozenset(f"{name}-done" for name in _NAMES)
OPCODES = frozenset([*_NAMES, *(f"{name}-start" for name in _NAMES)])
# as `calibrate --collectives` writes them
_CPU_WORDS = (("lib", "gloo(jax)"), ("variant", "jax"), ("dtype", "float"), ("in_place", "0"))


def collective_calls(
    instruction: Instruction, operands: list[Shape], ranks: int, backend: str | None
) -> list[CollectiveCall]:
    """Calls that one instruction makes; `ranks` where it names no groups, as a permutation."""
    name = _NAMES[instruction.opcode.removesuffix("-start")]
    ranks = group_size(instruction) or ranks
    if ranks < 2:
        return []  # a collective of one rank moves nothing
    sizes = [shape.bytes for shape in operands]
    if name == "all_gather":
        sizes = [size * ranks for size in sizes]
    if name == "alltoall" or backend != "cpu":
        sizes = [sum(sizes)]
    words = _CPU_WORDS if backend == "cpu" else ()
    return [CollectiveCall(name, float(max(size, 1)), ranks, words=words) for size in sizes]


def group_size(instruction: Instruction) -> int | None:
    """Ranks of a group: 2 of `replica_groups={{0,1},{2,3}}` and of `[2,2]<=[4]`; or None."""
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", instruction.attributes)
    if listed:
        return len(listed.group(1).split(","))
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]", instruction.attributes)
    return int(counted.group(2)) if counted else None


def partitions(text: str) -> int:
    """Devices that a module was compiled for."""
    header = text.split("\n", 1)[0]
    counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header)
    return max(map(int, counts), default=1)


def matched(of_ranks: list[list[CollectiveCall]], names: list[str]) -> list[CollectiveCall]:
    """The calls that all ranks make; `InputError` where they differ or leave a rank out."""
    for name, calls in zip(names, of_ranks, strict=True):
        if len(calls) != len(of_ranks[0]):
            raise InputError(
                f"{names[0]} has {len(of_ranks[0])} collectives and {name} has {len(calls)}; give"
                " programs of one step"
            )
        for number, (first, call) in enumerate(zip(of_ranks[0], calls, strict=True), start=1):
            if (first.collective, first.bytes) != (call.collective, call.bytes):
                raise InputError(
                    f"collective {number} is {first.collective} of {first.bytes:g} bytes in"
                    f" {names[0]} and {call.collective} of {call.bytes:g} in {name}: such ranks"
                    " would wait for ever; give programs of one step"
                )
            if call.ranks != len(of_ranks):
                raise InputError(
                    f"collective {number} of {name} is between {call.ranks} ranks and there are"
                    f" {len(of_ranks)} programs"
                )
    return of_ranks[0]
