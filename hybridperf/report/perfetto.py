"""A predicted step as a timeline that https://ui.perfetto.dev and chrome://tracing open (Trace Event Format, JSON).

Ranks are processes, streams are threads, each op is a complete event (`ph: X`, times in microseconds). The critical path is marked in
`args` and by its own category.
"""

from __future__ import annotations

import json
import os

from hybridperf.io import replacing
from hybridperf.prediction import Prediction

_MICROSECONDS = 1e6


def write_timeline(prediction: Prediction, path: str | os.PathLike) -> None:
    """Write the timeline of one predicted step."""
    graph, times = prediction.workload.graph, prediction.timeline
    groups = prediction.ops()
    events: list[dict] = []
    for rank in sorted(set(graph.rank.tolist())):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for thread, name in enumerate(graph.stream_names):
            events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": name}})
    for node, label in enumerate(graph.labels):
        group, critical = groups["group"].iloc[node], bool(prediction.on_critical_path[node])
        dims = {k: v for k, v in groups.iloc[node, 6:].to_dict().items() if v == v and v not in (0.0, None)}
        events.append({
            "ph": "X", "name": label or group, "cat": f"{group},critical" if critical else group,
            "pid": int(graph.rank[node]), "tid": int(graph.stream[node]),
            "ts": times.start_s[node] * _MICROSECONDS, "dur": (times.end_s[node] - times.start_s[node]) * _MICROSECONDS,
            "args": {"group": group, "critical": critical, "roofline_us": groups["roofline_s"].iloc[node] * _MICROSECONDS, **dims},
        })  # fmt: skip
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "workload": prediction.workload.name,
            "device": prediction.model.device.name,
            "seconds": prediction.time_s,
        },
    }
    with replacing(path) as handle:
        json.dump(document, handle, default=float, allow_nan=False)
