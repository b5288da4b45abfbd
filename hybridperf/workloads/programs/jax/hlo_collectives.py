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

import math
import re

import numpy as np

from hybridperf.io import InputError
from hybridperf.model.calls import CollectiveCall
from hybridperf.workloads.programs.jax.hlo import Instruction, Shape

_NAMES = {
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter",
    "all-to-all": "alltoall", "collective-permute": "sendrecv",
}  # fmt: skip
HALVES_DONE = frozenset(f"{name}-done" for name in _NAMES)
OPCODES = frozenset([*_NAMES, *(f"{name}-start" for name in _NAMES)])
# as `calibrate --collectives` writes them
_CPU_WORDS = (("lib", "gloo(jax)"), ("variant", "jax"), ("dtype", "float"), ("in_place", "0"))


def collective_calls(
    instruction: Instruction, operands: list[Shape], ranks: int, backend: str | None,
    per_node: int = 0,
) -> list[CollectiveCall]:  # fmt: skip
    """Calls that one instruction makes.

    Args:
        instruction: what is sent.
        operands: shapes of what it takes.
        ranks: where it names no groups, as a permutation.
        backend: kind of device.
        per_node: ranks on each node; 0: all on one.
    """
    name = _NAMES[instruction.opcode.removesuffix("-start")]
    group = _first_group(instruction)
    ranks = ranks if group is None else len(group)
    if ranks < 2:
        return []  # a collective of one rank moves nothing
    sizes = [shape.bytes for shape in operands]
    if name == "all_gather":
        sizes = [size * ranks for size in sizes]
    if name == "alltoall" or backend != "cpu":
        sizes = [sum(sizes)]
    words = _CPU_WORDS if backend == "cpu" else ()
    nodes = 1
    if per_node and group is not None:
        nodes = len({one // per_node for one in group})
    elif per_node:  # of a permutation, the pair that lies farthest apart
        text = instruction.attributes.partition("source_target_pairs=")[2]
        pairs = re.findall(r"\{(\d+),(\d+)\}", text)
        lie = ({int(a) // per_node, int(b) // per_node} for a, b in pairs)
        nodes = max(map(len, lie), default=1)
    return [CollectiveCall(name, float(max(size, 1)), ranks, nodes, words=words) for size in sizes]


def _first_group(instruction: Instruction) -> list[int] | None:
    """Ranks of the first group of `replica_groups`: of `{{0,1},{2,3}}`, of `[2,2]<=[4]` with or
    without `T(1,0)`, or, since JAX 0.12, of axes by name: `mesh['a'=2,'b'=2] {'b'}`.
    """
    text = instruction.attributes
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return [int(one) for one in listed.group(1).split(",")]
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", named.group(1))}
        axes = re.findall(r"'([^']*)'", named.group(2))
        numbered = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
        return (
            numbered[tuple(slice(None) if name in axes else 0 for name in sizes)].ravel().tolist()
        )
    cut = re.search(r"replica_groups=\[(\d+),(\d+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?)?", text)
    if cut is None:
        return None
    groups, ranks, over, order = cut.groups()
    turned = np.arange(int(groups) * int(ranks))
    if over:
        turned = turned.reshape([int(one) for one in over.split(",")])
    if order:
        turned = turned.transpose([int(one) for one in order.split(",")])
    return turned.reshape(int(groups), int(ranks))[0].tolist()


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
