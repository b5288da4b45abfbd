"""PyTorch execution traces -> `RecordedGraph`.

What `torch.profiler.ExecutionTraceObserver` writes: every op with ids, shapes and types, no times.
Two layouts are known, told apart by the nodes themselves, whatever the version says:

    1.0.x   {"name", "id", "parent", "tid", "seq_id", "inputs", "input_shapes", "input_types",
            "outputs", ...}
    1.1.x   {"id", "name", "ctrl_deps": parent, "inputs": {"values", "shapes", "types"}, "outputs",
            "attrs": [{"name", "type", "value"}]}

both with or without a Chakra tag behind the version ("1.1.0-chakra.0.0.4"). Ids count up as ops
begin, so they give the order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybridperf.io import InputError
from hybridperf.traces.recorded.graph import (
    CPU,
    USER_SCOPE,
    RecordedArguments,
    RecordedGraph,
    RecordedNode,
    identity,
)
from hybridperf.workloads.programs.torch.calls import flat, is_whole

_SCHEMA = re.compile(r"1\.[01]\.\d+(-chakra\..*)?")
_TENSOR_VALUES = 5  # of a tensor, where its device is not recorded
_MOVES = "aten::_to_copy"  # recorded where something is copied, never where nothing has to be
_COMMUNICATES = ("record_param_comms", "nccl:", "rccl:", "c10d::", "gloo:", "mpi:", "ucc:")


def execution_trace(document: Mapping[str, Any], source: str) -> RecordedGraph:
    """Graph of a trace read from JSON; `InputError` for an unusable schema or node."""
    schema = document.get("schema")
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        expected = "expected a PyTorch execution trace of schema 1.0.x or 1.1.x"
        found = f"found schema {str(schema)[:60]!r}"
        raise InputError(f"{source}: {expected}, {found}; record it again")
    listed = document.get("nodes")
    if not isinstance(listed, list) or not listed:
        found = "an empty one" if listed == [] else "none"
        raise InputError(f"{source}: expected a list of nodes, found {found}; record it again")
    nodes = [_node(node, source) for node in listed]
    known = {node.id for node in nodes}
    notes, orphans = [], 0
    for at, node in enumerate(nodes):
        if node.parent is not None and (node.parent not in known or node.parent >= node.id):
            nodes[at] = dataclasses.replace(node, parent=None, control=())
            orphans += 1
    if orphans > 1:
        notes.append(f"{orphans} ops run inside ops that the trace lacks: taken as outermost")
    graph = RecordedGraph.of(_located(nodes), source, schema, notes)
    first = graph.nodes[:1000]
    if any(tensor.storage for node in first for tensor in flat(node.inputs.arguments)):
        return graph
    unsaid = "the trace does not say in which memory tensors live"
    waits = "ops wait for one another in the order recorded"
    return dataclasses.replace(graph, notes=(*notes, f"{unsaid}: {waits}"))


def _node(node: Any, source: str) -> RecordedNode:
    number, name = identity(node, source)
    if isinstance(node.get("inputs"), dict) or "ctrl_deps" in node:
        listed = [entry for entry in _listed(node.get("attrs")) if isinstance(entry, dict)]
        named = (entry for entry in listed if isinstance(entry.get("name"), str))
        attributes, parent = {e["name"]: e.get("value") for e in named}, node.get("ctrl_deps")
        keys = ("shapes", "types", "values")
        inputs, outputs = (_arguments(node.get(of), keys) for of in ("inputs", "outputs"))
    else:
        attributes, parent = node, node.get("parent")
        inputs = _arguments(node, ("input_shapes", "input_types", "inputs"))
        outputs = _arguments(node, ("output_shapes", "output_types", "outputs"))
    if isinstance(parent, list):
        parent = parent[0] if parent else None
    parent = parent if is_whole(parent) and parent != number else None
    thread, sequence = attributes.get("tid"), attributes.get("seq_id")
    return RecordedNode(
        id=number,
        name=name,
        kind=CPU,
        parent=parent,
        control=() if parent is None else (parent,),
        thread=thread if is_whole(thread) else None,
        inputs=inputs,
        outputs=outputs,
        comm_type=(kind := _collective(name, inputs, attributes)),
        group=_group(inputs, attributes) if kind else 0,
        mark=attributes.get("scope") == USER_SCOPE,
        sequence=sequence if is_whole(sequence) else None,
    )


def _collective(name: str, inputs: RecordedArguments, attributes: Mapping[str, Any]) -> str:
    """Kind of a collective; "" for anything else."""
    if not name.startswith(_COMMUNICATES):
        return ""
    kind = attributes.get("collective_name")
    if not isinstance(kind, str) and name == "record_param_comms":
        words = (value for value in inputs.values if isinstance(value, str))
        kind = next((word for word in words if word.isidentifier()), "")
    if not isinstance(kind, str):
        kind = re.split(r":+", name)[-1].rstrip("_")
    return "" if kind in ("wait", "init", "split", "barrier_wait") else kind


def _group(inputs: RecordedArguments, attributes: Mapping[str, Any]) -> int:
    """Ranks of a collective's group; 0 where neither it nor shares of each rank are recorded."""
    size = attributes.get("pg_size")
    values, types = inputs.values, inputs.types
    shares = [
        len(value)
        for value, kind in zip(values, types, strict=False)
        if isinstance(value, list) and str(kind).startswith("GenericList[Int")
    ]
    # first rank, stride and size end the arguments of newer traces
    if size is None and len(values) >= 10 and all(is_whole(one) for one in values[-2:]):
        size = values[-1]
    return size if is_whole(size, 1) else max(shares, default=0)


def _located(nodes: Sequence[RecordedNode]) -> list[RecordedNode]:
    """Nodes of a trace that does not say where tensors live, with what its ops tell of it.

    A memory that an op makes lies where it was told to (`device=`), else where what it reads lies;
    a copy that changes no format was made because its source lies elsewhere.
    """
    told_of = {node.id: _told(node.inputs) for node in nodes}
    accelerators = [device for device in told_of.values() if device not in ("", "cpu")]
    where: dict[int, str] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        told, made, given = told_of[node.id], _memories(node.outputs), _memories(node.inputs)
        if told and node.name == _MOVES and set(made.values()) == set(given.values()):
            elsewhere = accelerators[:1] if told == "cpu" else ["cpu"]
            for memory in given if elsewhere else ():
                where.setdefault(memory, elsewhere[0])
        known = sorted({where[memory] for memory in given if memory in where} - {"cpu"})
        known += ["cpu"] * any(where.get(memory) == "cpu" for memory in given)
        for memory in made if told or known else ():
            where.setdefault(memory, told or known[0])
    return [
        dataclasses.replace(node, inputs=_placed(node.inputs, where),
                            outputs=_placed(node.outputs, where))
        for node in nodes
    ]  # fmt: skip


def _told(given: RecordedArguments) -> str:
    """The device that an op is told to work for; "" for none."""
    pairs = zip(given.values, given.types, strict=False)
    named = (value for value, kind in pairs if kind == "Device" and isinstance(value, str))
    return next((value for value in named if not value.startswith("<")), "")


def _memories(given: RecordedArguments) -> dict[int, str]:
    """Type of the tensors in each memory among arguments."""
    pairs = zip(given.values, given.types, strict=False)
    return {value[1]: str(kind) for value, kind in pairs if _unplaced(value, kind)}


def _placed(given: RecordedArguments, where: Mapping[int, str]) -> RecordedArguments:
    """Arguments whose tensors say where they live, as newer traces do."""

    def placed(value: Any, kind: Any) -> Any:
        if _unplaced(value, kind):
            return [*value, where.get(value[1], "")]
        if isinstance(value, list) and str(kind).startswith("GenericList[Tensor("):
            return [placed(one, "Tensor(") for one in value]
        return value

    pairs = zip(given.values, given.types, strict=False)
    values = tuple(placed(value, kind) for value, kind in pairs)
    return RecordedArguments(given.shapes, given.types, (*values, *given.values[len(values) :]))


def _unplaced(value: Any, kind: Any) -> bool:
    whole = isinstance(value, list) and len(value) == _TENSOR_VALUES
    return whole and str(kind).startswith("Tensor(") and all(map(is_whole, value))


def _arguments(given: Any, keys: Sequence[str]) -> RecordedArguments:
    given = given if isinstance(given, dict) else {}
    return RecordedArguments(*(tuple(_listed(given.get(key))) for key in keys))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
