"""A lowered JAX program -> Workload of a GPU that is not here: kernels one after the other, each
launched by XLA's runtime, messages on a stream of their own.

Nothing here was measured on a GPU: which loops XLA fuses is taken from its sources
(`gpu_fusion.py`), step effects are believed ones. XLA launches a program's kernels in CUDA graphs
by default (`xla_gpu_enable_command_buffer`: fusions, cuBLAS, cuDNN and custom calls, not
collectives), so that a launch costs what it costs a framework with graphs.

Its memory is what is alive at once. Arguments lie there from the beginning; a donated one is handed
to the result that takes its place. What a kernel writes is alive from there to the last kernel that
reads it, in a loop to the loop's end if it was made outside; what goes round a loop is one buffer.
XLA looks for an order of kernels that needs little; here it is the program's own, so that XLA may
need less. A product of cuBLAS has a workspace besides (xla/service/gpu/matmul_utils.h; so have
fourteen of seventeen programs that XLA compiled for an H100 and an H200; the others have no cuBLAS
product).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hybridperf.engine.workload import PeakMemory, Workload
from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.model.calls import StepPlace
from hybridperf.ops.gemm import Product
from hybridperf.workloads.own import labelled
from hybridperf.workloads.programs.in_program import (
    Issued,
    Launched,
    Sent,
    lives,
    most_alive_bytes,
    on_streams,
    place_of,
    program_workload,
    refuse_unpriced,
    role_of,
)
from hybridperf.workloads.programs.jax.dataflow import Dataflow, dataflow
from hybridperf.workloads.programs.jax.gpu_fusion import MESSAGES, Fuser
from hybridperf.workloads.programs.jax.gpu_ops import kind_of
from hybridperf.workloads.programs.jax.gpu_recompute import Settled
from hybridperf.workloads.programs.jax.hlo import parse
from hybridperf.workloads.programs.jax.hlo_collectives import collective_calls
from hybridperf.workloads.programs.jax.shardings import NOTE
from hybridperf.workloads.transformer.in_step import call_in_step

FRAMEWORK = "xla"  # whose step effects count


def from_lowered(
    content: Mapping[str, Any], *, ignore: Collection[str] = (), gpus_per_node: int = 8
) -> Workload:
    """Workload of what `lower_program` made; further arguments and errors as of `from_jax`."""
    if gpus_per_node < 1:
        raise InputError(f"expected one GPU per node or more, got {gpus_per_node}")
    text, name = content["hlo"], content["name"]
    module, device = parse(text), load_device(content["device"])
    ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
    divided = bool(content.get("divided"))
    flow = dataflow(module, text, ignored, divided)
    fuser = Fuser(flow, module, device, ignored, _donated(text))
    kernels = fuser.kernels()
    _check(name, flow, fuser)
    if not any(one.calls for one in kernels):
        raise InputError(f"{name}: no op of it launches a kernel; expected a step")
    graph, rows, _ = on_streams(_issued(kernels, flow.devices, gpus_per_node))
    left_out = fuser.ignored_times.items()
    calls = (call for one in kernels for call in one.calls)
    return program_workload(
        name, graph, rows, calls, FRAMEWORK, backend="gpu",
        notes=(
            *([NOTE] if divided else []),
            *dict.fromkeys(flow.notes),
            *(f"ignored {kind}, {times} of them" for kind, times in left_out),
        ),
        peak_memory=PeakMemory(
            peak_bytes(kernels, flow, fuser), "arguments, results and what lies between of"
        ),
    )  # fmt: skip


def _donated(text: str) -> frozenset[int]:
    """Numbers of the arguments whose memory results may take."""
    head = text.split("\n", 1)[0]
    aliased = re.findall(r"\{[\d, ]*\}: \((\d+), \{[\d, ]*\}, (?:may|must)-alias\)", head)
    donors = re.findall(r"\((\d+), \{[\d, ]*\}\)", head.partition("buffer_donor=")[2])
    return frozenset(map(int, (*aliased, *donors)))


def _check(name: str, flow: Dataflow, fuser: Fuser) -> None:
    """`InputError` that names what has no price, or is not yet divided among devices."""
    refuse_unpriced(name, {**flow.unknown, **fuser.unknown})
    if flow.devices < 2:
        return
    for node in flow.nodes:
        alone = node.instruction.shapes[0].elements <= 1 if node.instruction.shapes else True
        if fuser.works(node) and not node.per_device and not alone:
            raise InputError(
                f"{node.where or name}: the compiler decides how this is divided among the"
                f" {flow.devices} devices of the mesh, which is known only when it has compiled;"
                " put the whole step into jax.shard_map, whose parts and messages are in the"
                " program"
            )


def _issued(kernels: Sequence[Settled], devices: int, gpus_per_node: int) -> Iterator[Issued]:
    """What kernels and messages issue.

    A kernel of a loop is one node for all its runs. The host launches the second and all others
    while the first runs: they are added to the launch of what comes next.
    """
    owed = 0.0
    for one in kernels:
        label = labelled(kind_of(one.node), one.node.where)
        if one.node.opcode in MESSAGES:
            sizes, what = [value.shape for value in one.node.taken], one.node.instruction
            among, times = 2 if "permute" in what.opcode else devices, round(one.node.times)
            sent = collective_calls(what, sizes, among, "gpu", gpus_per_node)
            messages = tuple(Sent(each, place_of(each), times) for each in sent)
            yield Issued(label, one.read, one.written, messages=messages)
            continue
        launched = []
        for call in one.calls:
            place, launch = StepPlace(role_of(call), call.times), StepPlace("launch", 1.0 + owed)
            launched.append(Launched(call_in_step(call), place, launch))
            owed = call.times - 1.0
        yield Issued(label, one.read, one.written, tuple(launched))


# of a product: cuBLAS' default since a compute capability and before; of other GPUs the former
_WORKSPACE_BYTES, _OLD_WORKSPACE_BYTES, _SINCE = 32 * 2.0**20, 4 * 2.0**20, (9, 0)


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
    spans = _lives(kernels, flow, fuser)
    end = len(kernels) - 1
    made = [
        (sizes.get(one, 0.0), first, end if one in results else last)
        for one, (first, last) in spans.items()
        if one not in arguments | placed
    ]
    is_old = (fuser.device.compute_capability or _SINCE) < _SINCE
    workspace = _OLD_WORKSPACE_BYTES if is_old else _WORKSPACE_BYTES
    products = [at for at, one in enumerate(kernels) if _is_product(one)]
    return held + most_alive_bytes([*made, *((workspace, at, at) for at in products)], end + 1)


def _is_product(kernel: Settled) -> bool:
    return any(isinstance(call.op, Product) for call in kernel.calls)


def _lives(kernels: Sequence[Settled], flow: Dataflow, fuser: Fuser) -> dict[int, tuple[int, int]]:
    """By storage that kernels write: the first that does, and the last that needs it."""
    ends: dict[int, int] = {}  # of each loop, its last kernel
    for at, one in enumerate(kernels):
        loop = one.node.loop
        while loop:
            ends[loop] = at
            loop = flow.loop_around.get(loop, 0)
    used = [set(map(fuser.owner, one.written)) for one in kernels]
    made = {storage: first for storage, (first, _) in lives(used).items()}
    for at, one in enumerate(kernels):
        for storage in made.keys() & map(fuser.owner, one.read):
            loop, end = one.node.loop, at
            while loop and loop != kernels[made[storage]].node.loop:
                end = ends[loop]
                loop = flow.loop_around.get(loop, 0)
            used[end].add(storage)
    return lives(used)
