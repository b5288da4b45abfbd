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
import itertools
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.io import InputError
from hybridperf.traces.recorded.graph import CPU, RecordedArguments, RecordedGraph, RecordedNode
from hybridperf.traces.recorded.tensors import dtype_of, flat

_SCHEMA = re.compile(r"1\.[01]\.\d+(-chakra\..*)?")
_COMMUNICATES = ("record_param_comms", "nccl:", "rccl:", "c10d::", "gloo:", "mpi:", "ucc:")
_SAID = 60  # characters of a strange value that an error repeats


def execution_trace(document: Mapping[str, Any], source: str) -> RecordedGraph:
    """Graph of a trace read from JSON; `InputError` for an unusable schema or node."""
    schema = document.get("schema")
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise InputError(
            f"{source}: expected a PyTorch execution trace of schema 1.0.x or 1.1.x, found schema"
            f" {str(schema)[:_SAID]!r}; record it again"
        )
    listed = document.get("nodes")
    if not isinstance(listed, list) or not listed:
        raise InputError(
            f"{source}: expected a list of nodes, found"
            f" {'an empty one' if listed == [] else 'none'}; record it again"
        )
    nodes = sorted((_node(node, source) for node in listed), key=lambda node: node.id)
    for one, other in itertools.pairwise(nodes):
        if one.id == other.id:
            raise InputError(
                f"{source}: two nodes have the id {one.id}; the file is damaged, record it again"
            )
    known = {node.id for node in nodes}
    notes = []
    orphans = sum(
        node.parent is not None and (node.parent not in known or node.parent >= node.id)
        for node in nodes
    )
    if orphans:
        nodes = [
            (
                node
                if node.parent in known and node.parent < node.id
                else dataclasses.replace(node, parent=None, control=())
            )
            for node in nodes
        ]
        if orphans > 1:
            notes.append(f"{orphans} ops run inside ops that the trace lacks: taken as outermost")
    if not any(tensor.storage for node in nodes[:1000] for tensor in flat(node.inputs.arguments)):
        notes.append(
            "the trace does not say in which memory tensors live: ops wait for one another in the"
            " order recorded"
        )
    return RecordedGraph(source, schema, tuple(nodes), tuple(notes))


def _node(node: Any, source: str) -> RecordedNode:
    if not isinstance(node, dict):
        raise InputError(
            f"{source}: expected nodes with names, found {str(node)[:_SAID]!r}; the file is"
            " damaged, record it again"
        )
    identity, name = node.get("id"), node.get("name")
    if not _is_id(identity) or not isinstance(name, str):
        raise InputError(
            f"{source}: a node has id {str(identity)[:_SAID]!r} and name {str(name)[:_SAID]!r}; the"
            " file is damaged"
        )
    if isinstance(node.get("inputs"), dict) or "ctrl_deps" in node:
        attributes = {
            entry["name"]: entry.get("value")
            for entry in _listed(node.get("attrs"))
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }
        parent = node.get("ctrl_deps")
        inputs, outputs = _arguments(node.get("inputs")), _arguments(node.get("outputs"))
    else:
        attributes, parent = node, node.get("parent")
        inputs = RecordedArguments(
            *(tuple(_listed(node.get(key))) for key in ("input_shapes", "input_types", "inputs"))
        )
        outputs = RecordedArguments(
            *(tuple(_listed(node.get(key))) for key in ("output_shapes", "output_types", "outputs"))
        )
    if isinstance(parent, list):
        parent = parent[0] if parent else None
    thread, sequence = attributes.get("tid"), attributes.get("seq_id")
    kind, comm_bytes = _communication(name, inputs, attributes)
    return RecordedNode(
        id=identity,
        name=name,
        kind=CPU,
        parent=parent if _is_id(parent) and parent != identity else None,
        control=(parent,) if _is_id(parent) and parent != identity else (),
        thread=thread if _is_id(thread) else None,
        inputs=inputs,
        outputs=outputs,
        comm_type=kind,
        comm_bytes=comm_bytes,
        sequence=sequence if _is_id(sequence) else None,
    )


def _communication(
    name: str, inputs: RecordedArguments, attributes: Mapping[str, Any]
) -> tuple[str, float | None]:
    """Kind of a collective and the bytes that this rank gives; "" for anything else."""
    if not name.startswith(_COMMUNICATES):
        return "", None
    kind = attributes.get("collective_name")
    if not isinstance(kind, str) and name == "record_param_comms":
        kind = next(
            (value for value in inputs.values if isinstance(value, str) and value.isidentifier()),
            "",
        )
    if not isinstance(kind, str):
        kind = re.split(r":+", name)[-1].rstrip("_")
    if kind in ("", "wait", "init", "split", "barrier_wait"):
        return "", None
    count, dtype = attributes.get("in_msg_nelems"), dtype_of(attributes.get("dtype"))
    if _is_id(count) and dtype is not None:
        return kind, count * DTYPE_BYTES[dtype]
    tensors = flat(inputs.arguments)
    # of `all_to_all(output, input)` the last is what it gives
    return kind, (tensors[-1].bytes if tensors else None)


def _arguments(given: Any) -> RecordedArguments:
    if not isinstance(given, dict):
        return RecordedArguments()
    return RecordedArguments(
        *(tuple(_listed(given.get(key))) for key in ("shapes", "types", "values"))
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
