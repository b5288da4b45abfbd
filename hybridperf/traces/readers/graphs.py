"""Traces that carry shapes but no times, of whatever kind: PyTorch execution traces, Chakra JSON
and protobuf.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection

from hybridperf.engine.workload import Workload
from hybridperf.hardware import SystemSpec
from hybridperf.io import InputError, parse_json
from hybridperf.traces.readers.chakra import chakra_json, chakra_protobuf
from hybridperf.traces.readers.execution_traces import execution_trace
from hybridperf.traces.readers.files import TraceFile, trace_files
from hybridperf.traces.recorded.graph import RecordedGraph
from hybridperf.traces.recorded.workload import workload_from

ENDINGS = (".json", ".json.gz", ".et", ".et.gz", ".tar", ".tar.gz", ".tgz", ".zip")
_BRACKETS = (b"{", b"[")


def recorded_step(
    path: str | os.PathLike, ignore: Collection[str] = (), *,
    system: SystemSpec | None = None, ranks: int = 0,
) -> Workload:  # fmt: skip
    """Workload of the step in a file; of several ranks in an archive, of the first one. Arguments
    as of `workload_from`.
    """
    files = trace_files(path, ENDINGS)
    graph = recorded_graph(next(files))
    workload = workload_from(graph, ignore, system=system, ranks=ranks)
    if next(files, None) is None:
        return workload
    note = f"the first of several traces: {graph.source}"
    return dataclasses.replace(workload, notes=(note, *workload.notes))


def recorded_graph(file: TraceFile) -> RecordedGraph:
    """The graph in one file, whose kind is told from its content."""
    if not file.text.lstrip().startswith(_BRACKETS):
        return chakra_protobuf(file.text, file.source)
    try:
        document = parse_json(file.text, strict=False)
    except ValueError as error:
        ends = file.text[-1:].strip() in (b"", b"}")
        what = "damaged: it is not JSON" if ends else "cut off or damaged: its JSON has no end"
        mend = "record it again or copy it again"
        raise InputError(f"{file.source} is {what}; {mend}") from error
    if not isinstance(document, dict):
        found = "found a list; is it a Kineto trace? `hybridperf trace` reads those"
        raise InputError(f"{file.source}: expected an execution trace, {found}")
    if "workload_graph" in document:
        return chakra_json(document, file.source)
    if "nodes" in document:
        return execution_trace(document, file.source)
    if "traceEvents" in document:
        reads = "which has times: `hybridperf trace` reads it; expected an execution trace"
        raise InputError(f"{file.source} is a Kineto trace, {reads}")
    expected = "expected an execution trace (a field `nodes` or `workload_graph`), found neither"
    raise InputError(f"{file.source}: {expected}; check the path")
