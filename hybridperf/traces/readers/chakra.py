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
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
    unknown_fields,
)

from hybridperf.io import InputError
from hybridperf.traces.recorded.graph import (
    COMM,
    CPU,
    GPU,
    RecordedArguments,
    RecordedGraph,
    RecordedNode,
)

_VALUES = (  # of an attribute: each a single value, then (but for what is odd) a list of it
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "bytes",
    "bytes",
)
_FIRST_VALUE = 3  # number of the first value's field
_OLD_FIELDS = (8, 9, 10)  # held numbers in schemas before 0.0.4, hold messages since
_COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter_block",
    "barrier",
)
_SEND, _RECEIVE, _COLLECTIVE = 5, 6, 7  # of NodeType
_TYPE_NAMES = {"COMM_SEND_NODE": _SEND, "COMM_RECV_NODE": _RECEIVE, "COMM_COLL_NODE": _COLLECTIVE}
_PART = re.compile(r"\(\d+\)$")
_MICROSECOND_S = 1e-6
_LONGEST_US = 1e15  # thirty years: more is no duration
_SAID = 60


def chakra_json(document: Mapping[str, Any], source: str) -> RecordedGraph:
    """The graph of a Chakra trace that has been read from JSON."""
    listed = document.get("workload_graph")
    if not isinstance(listed, list) or not listed:
        raise InputError(
            f"{source}: expected a list of nodes in workload_graph, found none; convert the trace"
            " again"
        )
    nodes = [_json_node(node, source) for node in listed]
    return _graph(
        nodes,
        source,
        "chakra json",
        ["no shapes are recorded: its ops cannot be priced, only their times replayed"],
    )


def chakra_protobuf(content: bytes, source: str) -> RecordedGraph:
    """The graph of a Chakra trace in protocol buffers; `InputError` for anything else."""
    schema, nodes = "", []
    for at, raw in enumerate(_messages(content, source)):
        try:
            if at == 0 and (metadata := _metadata(raw)) is not None:
                schema = metadata
                continue
            node = _CLASSES["Node"].FromString(raw)
            if at < 2 and any(
                one.field_number in _OLD_FIELDS for one in unknown_fields.UnknownFieldSet(node)
            ):
                raise InputError(
                    f"{source} was written with a Chakra schema before 0.0.4; convert the trace"
                    " again with a newer Chakra"
                )
            nodes.append(_protobuf_node(node))
        except message.DecodeError as error:
            raise InputError(
                f"{source}: message {at} is no Chakra node; the file is damaged or of another kind,"
                " copy it again"
            ) from error
    if not nodes:
        raise InputError(f"{source}: expected Chakra nodes, found none; convert the trace again")
    return _graph(nodes, source, f"chakra protobuf {schema}".strip(), [])


def _graph(nodes: list[RecordedNode], source: str, schema: str, notes: list[str]) -> RecordedGraph:
    nodes.sort(key=lambda node: node.id)
    known = {node.id for node in nodes}
    if len(known) < len(nodes):
        twice = next(one.id for one, other in itertools.pairwise(nodes) if one.id == other.id)
        raise InputError(
            f"{source}: two nodes have the id {twice}; the file is damaged, convert the trace again"
        )
    lost = sum(len(node.data) - len(known.intersection(node.data)) for node in nodes)
    if lost:
        notes.append(f"{lost} dependencies on nodes that the trace lacks were left out")
    kept = [
        dataclasses.replace(
            node,
            data=tuple(one for one in node.data if one in known),
            control=tuple(one for one in node.control if one in known and one != node.id),
        )
        for node in nodes
    ]
    return RecordedGraph(source, schema, tuple(kept), tuple(notes))


def _json_node(node: Any, source: str) -> RecordedNode:
    if not isinstance(node, dict):
        raise InputError(
            f"{source}: expected nodes with names, found {str(node)[:_SAID]!r}; the file is"
            " damaged, convert the trace again"
        )
    # Id, id; ctrlDeps, ctrl_deps
    given = {str(key).replace("_", "").lower(): value for key, value in node.items()}
    identity, name = given.get("id"), given.get("name")
    if not _is_count(identity) or not isinstance(name, str):
        raise InputError(
            f"{source}: a node has id {str(identity)[:_SAID]!r} and name {str(name)[:_SAID]!r}; the"
            " file is damaged"
        )
    kind = given.get("nodetype", given.get("type"))
    kind = kind if _is_count(kind) else _TYPE_NAMES.get(str(kind), 0)
    on_host = given.get("iscpuop")
    micros = given.get("runtime", given.get("durationmicros"))
    micros = micros if isinstance(micros, int | float) else 0
    return _made(
        identity, name, kind, bool(on_host) if on_host is not None else None,
        control=_ids(given.get("ctrldeps")), data=_ids(given.get("datadeps")), micros=micros,
        comm_type=given.get("commtype"), comm_bytes=given.get("commsize"),
    )  # fmt: skip


def _protobuf_node(node: Any) -> RecordedNode:
    attributes = {
        attribute.name.decode(errors="replace"): _value(attribute) for attribute in node.attr
    }
    on_host = attributes.get("is_cpu_op")
    return _made(
        node.id, node.name.decode(errors="replace"), node.type,
        bool(on_host) if on_host is not None else None, control=tuple(node.ctrl_deps),
        data=tuple(node.data_deps), micros=node.duration_micros,
        comm_type=attributes.get("comm_type"), comm_bytes=attributes.get("comm_size"),
        thread=attributes.get("tid"), sequence=attributes.get("seq_id"),
        part_of=attributes.get("rf_id"), inputs=_recorded(node.inputs),
        outputs=_recorded(node.outputs),
    )  # fmt: skip


def _made(
    identity: int, name: str, kind: int, on_host: bool | None, *, control: tuple[int, ...],
    data: tuple[int, ...], micros: float, comm_type: Any, comm_bytes: Any, thread: Any = None,
    sequence: Any = None, part_of: Any = None, inputs: RecordedArguments | None = None,
    outputs: RecordedArguments | None = None,
) -> RecordedNode:  # fmt: skip
    """A node of either form; if nothing tells where it ran, a name with `::` ran on the host."""
    communicates = kind in (_SEND, _RECEIVE, _COLLECTIVE)
    on_host = bool(re.match(r"\w+::\w", name)) if on_host is None else on_host
    collective = ""
    if communicates:
        collective = {_SEND: "send", _RECEIVE: "recv"}.get(kind, "")
        if _is_count(comm_type) and comm_type < len(_COLLECTIVES):
            collective = collective or _COLLECTIVES[comm_type]
        collective = collective or (
            comm_type.lower() if isinstance(comm_type, str) and comm_type else "collective"
        )
    return RecordedNode(
        id=identity,
        name=_PART.sub("", name),
        kind=CPU if on_host else COMM if communicates else GPU,
        control=control,
        data=data,
        thread=thread if _is_count(thread) else None,
        inputs=inputs or RecordedArguments(),
        outputs=outputs or RecordedArguments(),
        comm_type=collective,
        comm_bytes=float(comm_bytes) if _is_count(comm_bytes) else None,
        runtime_s=micros * _MICROSECOND_S if 0 < micros < _LONGEST_US else None,
        sequence=sequence if _is_count(sequence) else None,
        part_of=part_of if _is_count(part_of) else None,
    )


def _messages(content: bytes, source: str) -> Iterator[bytes]:
    at, end = 0, len(content)
    while at < end:
        length, shift = 0, 0
        while True:
            if at >= end or shift > 63:
                raise InputError(
                    f"{source} is cut off, or neither JSON nor a Chakra trace; check the path or"
                    " copy it again"
                )
            byte = content[at]
            at, length, shift = at + 1, length | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        if length > end - at:
            raise InputError(
                f"{source} is cut off, or neither JSON nor a Chakra trace; check the path or copy"
                " it again"
            )
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
    named = {attribute.name.decode(errors="replace"): _value(attribute) for attribute in attributes}
    if not named and not version:
        return None
    schema = named.get("schema", version)
    return schema if isinstance(schema, str) else version


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
    listed = value if isinstance(value, list) else [value]
    return tuple(one for one in listed if _is_count(one))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _described() -> dict[str, Any]:
    """Message classes of the schema, made from a description at import."""
    proto = descriptor_pb2.FieldDescriptorProto
    types = {name: getattr(proto, f"TYPE_{name.upper()}") for name in {*_VALUES, "message"}}
    schema = descriptor_pb2.FileDescriptorProto(
        name="hybridperf/chakra.proto", package="hybridperf.chakra", syntax="proto3"
    )

    def fields(name: str, *listed: tuple[str, int, str, bool]) -> Any:
        made = schema.message_type.add(name=name)
        for field, number, kind, repeated in listed:
            label = proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL
            if kind in types:
                made.field.add(name=field, number=number, type=types[kind], label=label)
            else:
                made.field.add(
                    name=field,
                    number=number,
                    type=types["message"],
                    type_name=f".hybridperf.chakra.{kind}",
                    label=label,
                )
        return made

    for kind in dict.fromkeys(_VALUES):
        fields(f"{kind}_list", ("values", 1, kind, True))
    attribute = fields(
        "AttributeProto", ("name", 1, "bytes", False), ("doc_string", 2, "bytes", False)
    )
    attribute.oneof_decl.add(name="value")
    for place, kind in enumerate(_VALUES):
        number = _FIRST_VALUE + 2 * place
        for field, at, type_name in (
            (f"v{number}", number, None),
            (f"v{number + 1}", number + 1, f".hybridperf.chakra.{kind}_list"),
        ):
            attribute.field.add(
                name=field, number=at, type=types["message" if type_name else kind],
                type_name=type_name, label=proto.LABEL_OPTIONAL, oneof_index=0,
            )  # fmt: skip
    fields("GlobalMetadata", ("first", 1, "bytes", True), ("attr", 2, "AttributeProto", True))
    fields(
        "IOInfo",
        *(
            (name, at, "bytes", False)
            for at, name in enumerate(("values", "shapes", "types"), start=1)
        ),
    )
    fields(
        "Node", ("id", 1, "uint64", False), ("name", 2, "bytes", False),
        ("type", 3, "int32", False), ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True), ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False), ("inputs", 8, "IOInfo", False),
        ("outputs", 9, "IOInfo", False), ("attr", 10, "AttributeProto", True),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"hybridperf.chakra.{name}")
        )
        for name in ("AttributeProto", "GlobalMetadata", "Node")
    }


_CLASSES = _described()
