"""A recorded graph -> `Workload`: its ops as ours, in the order recorded, on the streams they ran
on.

Every node is asked for the work of its own kernels (`recorded_ops`); what goes by its parts is left
to them. Nothing unknown costs zero: an op nobody knows, a collective, a copy between host and
device are errors that name them, unless the caller lists them in `ignore`:

    the op's name      "aten::svd"
    "collectives"      all of them: priced by the links of a system, where one is given
    "host copies"      all copies between host and device, reading a single number included; by the
                       link of a system, where one is given

What somebody marked (`record_function`, modules) is structure: the ops inside it do its work. Of a
trace without shapes kernels keep the seconds that they took where they were recorded. Ops on the
host's tensors cost the device nothing; a note counts them. Of repeated iterations
(`ProfilerStep#N`) one is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.workload import Workload
from hybridperf.hardware import SystemSpec
from hybridperf.io import InputError
from hybridperf.model.calls import Call, CollectiveCall, GivenSeconds
from hybridperf.ops import OpCall
from hybridperf.traces.recorded.graph import (
    COMM,
    CPU,
    GPU,
    RecordedGraph,
    RecordedNode,
    read,
    recorded_op,
    written,
)
from hybridperf.traces.recorded.messages import collective_call, host_copy, usual_group
from hybridperf.workloads.programs.torch.calls import flat
from hybridperf.workloads.programs.torch.ops import by_parts
from hybridperf.workloads.programs.torch.tables import lookup_update

COLLECTIVES, HOST_COPIES = "collectives", "host copies"
_STEP_MARK = "ProfilerStep#"
_COMMUNICATES = (
    "c10d::", "record_param_comms", "nccl:", "rccl:", "gloo:", "mpi:", "ucc:", "c10d_functional::",
    "_c10d_functional::",
)  # fmt: skip
_LOOKUP_GRADIENT = "torch::autograd::CppNode<SplitLookupFunction"
_OWN_NODE = "torch::autograd::CppNode<"
_NAMED = 12  # unknown ops that an error lists
_LABEL = 80  # characters of a kernel's name


@dataclass
class _PricedNodes:
    """What the nodes of a graph come to. Ids are of nodes."""

    graph: RecordedGraph
    ignore: frozenset[str]
    system: SystemSpec | None = None  # whose links carry collectives and copies
    ranks: int = 0  # of groups whose size is not recorded
    ops: dict[int, tuple[Call, ...]] = field(default_factory=dict)  # with at least one kernel
    looked_up: set[int] = field(default_factory=set)  # lookups whose gradient has been seen
    unknown: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    on_host: int = 0
    # with tensors, taken for what the ops inside them do
    marks: Counter[str] = field(default_factory=Counter)
    # a mark with tensors, or a gradient somebody wrote: do the ops inside it say what it does?
    suspects: list[RecordedNode] = field(default_factory=list)


def workload_from(
    graph: RecordedGraph, ignore: Collection[str] = (), *,
    system: SystemSpec | None = None, ranks: int = 0,
) -> Workload:  # fmt: skip
    """Workload of one recorded step.

    Args:
        graph: the ops of one rank.
        ignore: ops to leave out, by name or class (see the head of this file).
        system: whose links collectives and copies from the host go by; None: these are refused.
        ranks: of collectives whose group the trace does not say; 0: `collective_call`.

    Raises: InputError: no shapes and no seconds, no kernels, or ops that nobody knows, all named.
    """
    listed = frozenset([ignore] if isinstance(ignore, str) else ignore)
    if not any(tensor.shape for node in graph.nodes for tensor in flat(node.inputs.arguments)):
        return _as_recorded(graph)
    found = recorded_work(graph, listed, system, ranks)
    if found.unknown:
        named = ", ".join(f"{what} ({times}x)" for what, times in found.unknown.most_common(_NAMED))
        count = len(found.unknown)
        named += f" and {count - _NAMED} more" if count > _NAMED else ""
        links = {COLLECTIVES, HOST_COPIES} & set(found.unknown) and system is None
        mend = "say whose links carry what is sent (`--system`), or " if links else ""
        mend += "leave them out with ignore=... (`--ignore` on the command line)"
        raise InputError(f"{graph.source}: cannot price {count} kind(s) of op: {named}; {mend}")
    kept, notes = _one_step(graph, found)
    if not kept:
        none = f"{graph.source}: no op in it launches a kernel that can be priced"
        raise InputError(f"{none}; expected a trace of a step on one device")
    notes += [f"ignored {what}, {times} of them" for what, times in found.ignored.items()]
    if found.on_host:
        notes.append(f"{found.on_host} ops on the host's tensors are left to the host")
    if found.marks:
        marks = ", ".join(list(found.marks)[:_NAMED])
        notes.append(f"taken for what the ops inside them do: {marks}")
    notes += _of_messages(found)
    builder, calls = GraphBuilder(), list[Call]()
    rows: dict[Call, int] = {}
    streams = _streams(graph)
    usual = Counter(streams.values()).most_common(1)[0][0] if streams else "compute"
    # storage: the graph's node that wrote it last, and its stream
    writer: dict[int, tuple[int, str]] = {}
    last_of: dict[int, tuple[int, str]] = {}  # recorded node: the last graph node placed for it
    last = dict[str, int]()  # graph node of each stream
    apart = any(tensor.storage for node in kept for tensor in flat(node.inputs.arguments))
    for node in kept:
        stream = streams.get(node.id, usual)
        if apart and any(isinstance(call, CollectiveCall) for call in found.ops[node.id]):
            stream = COMM
        waits = [writer[storage] for storage in read(node) if storage in writer]
        waits += [last_of[one] for one in node.data if one in last_of]
        # a stream's own order says the rest
        if stream == COMM and usual in last:  # it follows what was computed when it was issued
            waits.append((last[usual], usual))
        after = sorted({placed for placed, other in waits if other != stream})
        placed = -1
        for call in found.ops[node.id]:
            if call not in rows:
                rows[call] = len(rows) + 1
                calls.append(call)
            placed = builder.op(rows[call], label=node.name, stream=stream, after=after)
            after = []
        last_of[node.id], last[stream] = (placed, stream), placed
        writer |= dict.fromkeys(written(node), (placed, stream))
    each = [call for node in kept for call in found.ops[node.id]]
    works = [call.op.work() for call in each if isinstance(call, OpCall)]
    return Workload(
        name=graph.source.rsplit("/", 1)[-1],
        graph=builder.build(),
        calls=tuple(calls),
        backend="gpu" if _accelerated(graph) else None,
        flops=float(sum(work.flops for work in works)),
        transcendentals=float(sum(work.transcendentals for work in works)),
        notes=(*graph.notes, *notes),
    )


def _as_recorded(graph: RecordedGraph) -> Workload:
    """A step whose ops have no shapes: its kernels in their order, each with its own seconds."""
    every = [node for node in graph.nodes if node.kind != CPU]
    kernels = [node for node in every if node.seconds is not None]
    if not kernels:
        none = "records no shapes, so its ops cannot be priced"
        raise InputError(f"{graph.source} {none}; expected a trace recorded with shapes")
    builder, calls = GraphBuilder(), tuple(
        GivenSeconds(node.seconds or 0.0, "recorded kernels") for node in kernels
    )  # fmt: skip
    placed: dict[int, int] = {}
    last = dict[str, int]()
    for row, node in enumerate(kernels, 1):
        behind = [placed[one] for one in node.data if one in placed]
        behind += [last[GPU]] if node.kind == COMM and GPU in last else []
        at = builder.op(row, label=node.name[:_LABEL], stream=node.kind, after=sorted(set(behind)))
        placed[node.id] = last[node.kind] = at
    kept = f"{len(kernels)} kernels keep the seconds that they took where they were recorded"
    lost = len(every) - len(kernels)
    kept += f"; {lost} of {len(every)} kernels have none, and take none here" if lost else ""
    return Workload(
        name=graph.source.rsplit("/", 1)[-1], graph=builder.build(), calls=calls, backend="gpu",
        flops=0.0, transcendentals=0.0, notes=(*graph.notes, kept),
    )  # fmt: skip


def _of_messages(found: _PricedNodes) -> list[str]:
    """What was assumed of collectives that are priced."""
    sent = [c for calls in found.ops.values() for c in calls if isinstance(c, CollectiveCall)]
    if not sent:
        return []
    arrive = f"{len(sent)} collectives as if all ranks arrived together"
    if usual_group(found.graph) or found.ranks:
        return [arrive]
    return [f"{arrive}; how many they are is not recorded: {sent[0].ranks} of a node (`--gpus`)"]


def recorded_work(
    graph: RecordedGraph, ignore: frozenset[str] = frozenset(),
    system: SystemSpec | None = None, ranks: int = 0,
) -> _PricedNodes:  # fmt: skip
    """Every node's own kernels as ours, what is unknown, and what was ignored."""
    found = _PricedNodes(graph, ignore, system, ranks)
    accelerated = _accelerated(graph)
    within: set[int] = set()  # nodes inside a collective
    parts: set[tuple[str, int]] = set()  # Chakra's ops already seen by their first part
    for node in graph.nodes:
        if node.kind != CPU:  # kernels and copies: the ops that launched them are asked
            continue
        if node.parent in within:
            within.add(node.id)
            continue
        if node.part_of is not None:
            if (node.name, node.part_of) in parts:
                continue
            parts.add((node.name, node.part_of))
        if node.name.startswith(_COMMUNICATES):
            within.add(node.id)
            whole = [node, *_below(graph, node)]
            if any(one.comm_type for one in whole):
                sent = collective_call(whole, graph, system, ranks) if system else None
                _price(found, COLLECTIVES, node, sent)
            continue
        _ask(found, node, accelerated)
    for node in found.suspects:
        below = list(_below(graph, node))
        if node.name in ignore:
            found.ignored[node.name] += 1
        elif any(one.id in found.ops or one.name.startswith(_COMMUNICATES) for one in below):
            found.marks[node.name] += 1
        elif below or node.outputs.types:
            found.unknown[node.name] += 1
    _drop_doubles(found)
    return found


def _ask(found: _PricedNodes, node: RecordedNode, accelerated: bool) -> None:
    """File what one node's own kernels come to."""
    tensors = flat(node.inputs.arguments) + flat(node.outputs.arguments)
    devices = {tensor.device.split(":")[0] for tensor in tensors if tensor.device}
    if accelerated and devices == {"cpu"}:
        found.on_host += node.is_op and not by_parts(node.name)
        return
    if node.name.startswith(_LOOKUP_GRADIENT) and (update := _lookup_gradient(found, node)):
        found.ops[node.id] = update
        return
    if node.name.startswith(_OWN_NODE):
        _file(found, node.name, node.name)
        return
    if by_parts(node.name) and any(inner.is_op for inner in found.graph.inside.get(node.id, ())):
        return
    reads_number = node.name == "aten::_local_scalar_dense"
    if accelerated and (reads_number or (node.name == "aten::copy_" and "cpu" in devices)):
        copied = host_copy(node, found.system) if found.system else None
        _price(found, HOST_COPIES, node, copied)
        return
    if reads_number:
        return  # from where it already is
    if not node.is_op and not tensors and (node.mark or "::" not in node.name):
        return  # a mark, a thread
    ops = None if node.mark else recorded_op(node.name, node.inputs, node.outputs)
    if ops is None and not node.is_op:
        found.suspects.append(node)
    elif ops is None:
        _file(found, node.name, node.name)
    elif ops:
        found.ops[node.id] = ops


def _price(found: _PricedNodes, what: str, node: RecordedNode, call: Call | None) -> None:
    """A collective or copy as its call, unless it is ignored or there is none."""
    if call is None or {what, node.name} & found.ignore:
        _file(found, what, node.name)
    else:
        found.ops[node.id] = (call,)


def _file(found: _PricedNodes, what: str, name: str) -> None:
    """Ignored or unknown, under its own name or that of its class."""
    (found.ignored if {what, name} & found.ignore else found.unknown)[what] += 1


def _drop_doubles(found: _PricedNodes) -> None:
    """Drops ops whose inner op does their work: `mul(x, 2)` calls `mul(x, tensor of 2)`."""
    graph = found.graph
    whole = {
        at: tuple(call for call in calls if isinstance(call, OpCall))
        for at, calls in found.ops.items()
    }
    for identity, calls in whole.items():
        if len(calls) == 1 and identity in graph.inside:
            own, below = calls[0].op, _below(graph, graph.by_id[identity])
            inner = (call.op for one in below for call in whole.get(one.id, ()))
            alike = (op for op in inner if type(op) is type(own))
            if any(op.work().bytes >= 0.9 * own.work().bytes for op in alike):
                del found.ops[identity]


def _lookup_gradient(found: _PricedNodes, node: RecordedNode) -> tuple[OpCall, ...]:
    """Of a pooled lookup in many tables: the rows that it read updated; () if not found.

    The engine's node has the number that ops before the lookup saw as the next one, and its
    result's shape. Without numbers: of the lookups before it with that result the last one whose
    gradient has not been seen.
    """
    if not node.inputs.shapes:
        return ()
    nodes = found.graph.nodes
    lookups = [
        one for one in nodes
        if one.id < node.id and "codegen_lookup" in one.name and one.id not in found.looked_up
        and one.outputs.shapes[:1] == node.inputs.shapes[:1]
    ][::-1]  # fmt: skip
    if node.sequence is not None:
        alike = [one for one in nodes if one.sequence == node.sequence and one.is_op]
        seen = [one.id for one in alike if one.id < node.id]
        lookups = [one for one in lookups[::-1] if seen and one.id > seen[-1]]
    for one in lookups:
        if update := lookup_update(one.name, recorded_op(one.name, one.inputs, one.outputs)):
            found.looked_up.add(one.id)
            return update
    return ()


def _below(graph: RecordedGraph, node: RecordedNode) -> Iterable[RecordedNode]:
    """Everything inside a node, at any depth."""
    waiting = list(graph.inside.get(node.id, ()))
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting.extend(graph.inside.get(inner.id, ()))


def _accelerated(graph: RecordedGraph) -> bool:
    """Any tensor lives on a device other than the host, or any kernel was recorded."""
    if any(node.kind != CPU for node in graph.nodes):
        return True
    tensors = (tensor for node in graph.nodes for tensor in flat(node.inputs.arguments))
    return any(tensor.device and not tensor.device.startswith("cpu") for tensor in tensors)


def _streams(graph: RecordedGraph) -> dict[int, str]:
    """Stream of the kernels that an op (its first part) launched, by the op's id."""
    streams: dict[int, str] = {}
    first: dict[tuple[str, int | None], int] = {}
    for node in graph.nodes:
        if node.kind == CPU and node.part_of is not None:
            first.setdefault((node.name, node.part_of), node.id)
        elif node.kind == GPU and node.thread is not None:
            launched = [graph.by_id[one] for one in node.data if graph.by_id[one].kind == CPU]
            for op in launched[:1]:
                part = op.name, op.part_of
                at = op.id if op.part_of is None else first.get(part, op.id)
                streams.setdefault(at, f"stream {node.thread}")
    return streams


def _one_step(graph: RecordedGraph, found: _PricedNodes) -> tuple[list[RecordedNode], list[str]]:
    """The nodes to place: all of them, or of iterations the first of those most alike."""
    nodes = [node for node in graph.nodes if node.id in found.ops]
    marks = [node for node in graph.nodes if node.name.startswith(_STEP_MARK)]
    if len(marks) < 2:
        return nodes, []
    ends: Sequence[float] = [*(mark.id for mark in marks[1:]), float("inf")]
    spans = [(mark.id, end) for mark, end in zip(marks, ends, strict=True)]
    steps = [[node for node in nodes if begin < node.id < end] for begin, end in spans]
    did = [tuple(found.ops[node.id] for node in step) for step in steps]
    alike = Counter(filter(None, did))
    if not alike:
        return nodes, []
    most, times = alike.most_common(1)[0]
    at = did.index(most)
    of = f"{len(marks)} steps, {times} of which have the same ops"
    return steps[at], [f"kept {marks[at].name} of {of}"]
