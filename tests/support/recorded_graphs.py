"""Graphs of files that hold several."""

from __future__ import annotations

from pathlib import Path

from hybridperf.traces.readers.files import trace_files
from hybridperf.traces.readers.graphs import ENDINGS, recorded_graph
from hybridperf.traces.recorded.graph import RecordedGraph


def read_recorded(path: Path) -> list[RecordedGraph]:
    """Those of a file, archive or folder, in the order found."""
    return [recorded_graph(file) for file in trace_files(path, ENDINGS)]
