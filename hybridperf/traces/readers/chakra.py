"""Chakra execution traces, in JSON or as protocol buffers -> `RecordedGraph`.

A protobuf file is a row of messages, each behind its length as a varint: one `GlobalMetadata`, then
`Node`s (mlcommons/chakra, `et_def.proto`, schema 0.0.4). The messages are described here, so that
nothing has to be generated. Text fields are read as bytes: a name that is no UTF-8 spoils no file.
What newer schemas add is skipped; of the metadata both layouts in use are read (attributes in field
1 or, behind a version, in field 2).

The JSON form is `{"workload_graph": [{"Id", "Name", "NodeType", "data_deps", "ctrlDeps" or
"ctrl_deps", "runtime", "is_cpu_op", ...}]}`. It carries no shapes. Both are flat: an op on the host
is cut where it launches a kernel ("aten::mul(0)", kernel, "aten::mul(1)").
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
    unknown_fields,
)

from hybridperf.io import InputError
from hybridperf.traces.recorded import graph
from hybridperf.traces.recorded.graph import RecordedArguments, RecordedGraph, RecordedNode
from hybridperf.workloads.programs.torch.calls import is_whole

_NUMBERS = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64"
# of an attribute: each a single value, then (but for what is odd) a list of it
_VALUES = (*_NUMBERS.split(), "bool", "bytes", "bytes")
_ONE_OF = (kind for value in _VALUES for kind in (value, f"{value}_list"))
# fields of each message, numbered from 1; `*` stands for any number of them
_MESSAGES = {
    **{f"{value}_list": (f"{value}* values",) for value in _VALUES},
    "AttributeProto": (
        "bytes name", "bytes doc_string", *(f"{kind} v{at}" for at, kind in enumerate(_ONE_OF)),
    ),
    "GlobalMetadata": ("bytes* first", "AttributeProto* attr"),
    "IOInfo": ("bytes values", "bytes shapes", "bytes types"),
    "Node": (
        "uint64 id", "bytes name", "int32 type", "uint64* ctrl_deps", "uint64* data_deps",
        "uint64 start_time_micros", "uint64 duration_micros", "IOInfo inputs", "IOInfo outputs",
        "AttributeProto* attr",
    ),
}  # fmt: skip
_VALUE_FROM = 3  # number of an attribute's first value
_OLD_FIELDS = (8, 9, 10)  # held numbers in schemas before 0.0.4, hold messages since
_COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
    "reduce_scatter", "reduce_scatter_block", "barrier",
)  # fmt: skip
_SEND, _RECEIVE, _COLLECTIVE = 5, 6, 7  # of NodeType
_TYPE_NAMES = {"COMM_SEND_NODE": _SEND, "COMM_RECV_NODE": _RECEIVE, "COMM_COLL_NODE": _COLLECTIVE}
_PART = re.compile(r"\(\d+\)$")


def chakra_json(document: Mapping[str, Any], source: str) -> RecordedGraph:
    """The graph of a Chakra trace that has been read from JSON."""
    listed = document.get("workload_graph")
    if not isinstance(listed, list) or not listed:
        expected = "expected a list of nodes in workload_graph, found none"
        raise InputError(f"{source}: {expected}; convert the trace again")
    note = "no shapes are recorded: its ops cannot be priced, only their seconds replayed"
    return _graph([_json_node(node, source) for node in listed], source, "chakra json", [note])


def chakra_protobuf(content: bytes, source: str) -> RecordedGraph:
    """The graph of a Chakra trace in protocol buffers; `InputError` for anything else."""
    schema, nodes = "", []
    for at, raw in enumerate(_messages(content, source)):
        try:
            if at == 0 and (metadata := _metadata(raw)) is not None:
                schema = metadata
                continue
            node = _CLASSES["Node"].FromString(raw)
        except message.DecodeError as error:
            mend = "the file is damaged or of another kind, copy it again"
            raise InputError(f"{source}: message {at} is no Chakra node; {mend}") from error
        skipped = {one.field_number for one in unknown_fields.UnknownFieldSet(node)}
        if at < 2 and skipped.intersection(_OLD_FIELDS):
            mend = "convert the trace again with a newer Chakra"
            raise InputError(f"{source} was written with a Chakra schema before 0.0.4; {mend}")
        nodes.append(_protobuf_node(node))
    if not nodes:
        raise InputError(f"{source}: expected Chakra nodes, found none; convert the trace again")
    return _graph(nodes, source, f"chakra protobuf {schema}".strip(), [])


def _graph(nodes: list[RecordedNode], source: str, schema: str, notes: list[str]) -> RecordedGraph:
    known = {node.id for node in nodes}
    lost = sum(len(node.data) - len(known.intersection(node.data)) for node in nodes)
    if lost:
        notes.append(f"{lost} dependencies on nodes that the trace lacks were left out")
    kept = []
    for node in nodes:
        data = tuple(one for one in node.data if one in known)
        control = tuple(one for one in node.control if one in known and one != node.id)
        kept.append(dataclasses.replace(node, data=data, control=control))
    return RecordedGraph.of(kept, source, schema, notes)


def _json_node(node: Any, source: str) -> RecordedNode:
    if isinstance(node, dict):  # Id, id; ctrlDeps, ctrl_deps
        node = {str(key).replace("_", "").lower(): value for key, value in node.items()}
    number, name = graph.identity(node, source)
    kind = node.get("nodetype", node.get("type"))
    kind = kind if is_whole(kind) else _TYPE_NAMES.get(str(kind), 0)
    return _made(
        number, name, kind, node.get("iscpuop"), control=_ids(node.get("ctrldeps")),
        data=_ids(node.get("datadeps")), comm_type=node.get("commtype"),
        micros=node.get("runtime"),
    )  # fmt: skip


def _protobuf_node(node: Any) -> RecordedNode:
    attributes = _attributes(node.attr)
    fields = (("thread", "tid"), ("sequence", "seq_id"), ("part_of", "rf_id"))
    numbers = ((field, attributes.get(named)) for field, named in fields)
    return _made(
        node.id, node.name.decode(errors="replace"), node.type, attributes.get("is_cpu_op"),
        control=tuple(node.ctrl_deps), data=tuple(node.data_deps),
        comm_type=attributes.get("comm_type"), micros=node.duration_micros,
        mark=attributes.get("scope") == graph.USER_SCOPE,
        inputs=_recorded(node.inputs), outputs=_recorded(node.outputs),
        **{field: value for field, value in numbers if is_whole(value)},
    )  # fmt: skip


def _made(
    number: int, name: str, kind: int, on_host: Any, *, control: tuple[int, ...],
    data: tuple[int, ...], comm_type: Any, micros: Any, **recorded: Any,
) -> RecordedNode:  # fmt: skip
    """A node of either form; if nothing tells where it ran, a name with `::` ran on the host."""
    communicates = kind in (_SEND, _RECEIVE, _COLLECTIVE)
    on_host = bool(re.match(r"\w+::\w", name)) if on_host is None else on_host
    collective = ""
    if communicates:
        listed = is_whole(comm_type) and comm_type < len(_COLLECTIVES)
        stated = comm_type.lower() if isinstance(comm_type, str) else ""
        stated = _COLLECTIVES[comm_type] if listed else stated
        collective = {_SEND: "send", _RECEIVE: "recv"}.get(kind) or stated or "collective"
    return RecordedNode(
        id=number,
        name=_PART.sub("", name),
        kind=graph.CPU if on_host else graph.COMM if communicates else graph.GPU,
        control=control,
        data=data,
        comm_type=collective,
        seconds=micros * 1e-6 if is_whole(micros, 1) else None,
        **recorded,
    )


def _messages(content: bytes, source: str) -> Iterator[bytes]:
    at, end = 0, len(content)
    cut_off = "is cut off, or neither JSON nor a Chakra trace; check the path or copy it again"
    while at < end:
        length, shift, goes_on = 0, 0, True
        while goes_on:
            if at >= end or shift > 63:
                raise InputError(f"{source} {cut_off}")
            goes_on = content[at] >= 0x80
            at, length, shift = at + 1, length | (content[at] & 0x7F) << shift, shift + 7
        if length > end - at:
            raise InputError(f"{source} {cut_off}")
        yield content[at : at + length]
        at += length


def _metadata(raw: bytes) -> str | None:
    """Schema that a first message names, "" if it names none; None where it is a node."""
    if raw[:1] == b"\x08":  # field 1 holds a number: a node's id
        return None
    metadata = _CLASSES["GlobalMetadata"].FromString(raw)
    attributes, version = list(metadata.attr), ""
    for first in metadata.first:
        try:
            attribute = _CLASSES["AttributeProto"].FromString(first)
        except message.DecodeError:
            attribute = None
        if attribute is not None and attribute.name:
            attributes.append(attribute)
        else:
            version = first.decode(errors="replace")
    named = _attributes(attributes)
    if not named and not version:
        return None
    schema = named.get("schema", version)
    return schema if isinstance(schema, str) else version


def _attributes(listed: Any) -> dict[str, Any]:
    """Values by name."""
    return {one.name.decode(errors="replace"): _value(one) for one in listed}


def _value(attribute: Any) -> Any:
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    if hasattr(value, "values"):
        return list(value.values)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _recorded(info: Any) -> RecordedArguments:
    return RecordedArguments(_literal(info.shapes), _literal(info.types), _literal(info.values))


@functools.lru_cache(maxsize=4096)  # the parts of an op say the same
def _literal(raw: bytes) -> tuple[Any, ...]:
    """A list as Python (or JSON) writes it; empty where it is none."""
    text = raw.decode(errors="replace")
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return tuple(value) if isinstance(value, list | tuple) else ()
    return ()


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(one for one in (value if isinstance(value, list) else [value]) if is_whole(one))


def _described() -> dict[str, Any]:
    """Message classes of the schema, made from a description at import."""
    package, proto = "hybridperf.chakra", descriptor_pb2.FieldDescriptorProto
    schema = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax="proto3")
    for name, fields in _MESSAGES.items():
        made = schema.message_type.add(name=name)
        for number, written in enumerate(fields, 1):
            kind, field_name = written.split()
            label = proto.LABEL_REPEATED if kind.endswith("*") else proto.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            field = made.field.add(name=field_name, number=number, label=label)
            if kind in _MESSAGES:
                field.type, field.type_name = proto.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(proto, f"TYPE_{kind.upper()}")
            if name == "AttributeProto" and number >= _VALUE_FROM:
                field.oneof_index = 0
    attribute = next(one for one in schema.message_type if one.name == "AttributeProto")
    attribute.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    found = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(of) for name, of in found.items()}


_CLASSES = _described()
