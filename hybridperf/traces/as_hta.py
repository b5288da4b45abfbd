"""A rank's time as HolisticTraceAnalysis (Meta, github.com/facebookresearch/HolisticTraceAnalysis)
breaks it down, to set beside its figures: `get_temporal_breakdown` of version 0.5.

    kernel time     first start to last end of all that names a stream
    computation     kernels that are neither `nccl...Kernel...`, copy, fill, `dma...` nor a `Sync`
    idle            none of them runs
    no computation  the rest

Its rules differ from ours (`summary.py`). All steps count as one span, but the last, whose kernels
may not have been recorded to the end; kernels without a recorded launch are left out, both only
where there are several steps. Where times are fractions of microseconds, starts are rounded up and
ends down, so an event within a microsecond has a length of -1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.traces.readers.files import trace_files
from hybridperf.traces.readers.kineto import rank_and_world
from hybridperf.traces.readers.kineto_json import (
    Args,
    Document,
    as_number,
    as_text,
    as_whole,
    decoded,
)

_NO_COMPUTATION = re.compile(r"nccl.*Kernel|dma|Memset|.*(?:Memcpy|Sync)")
_DEVICE_SYNC = ("Event Sync", "Context Sync")  # of the device, although on no stream
_STEP = "ProfilerStep"


def temporal_breakdown(paths: Sequence[str | os.PathLike]) -> pd.DataFrame:
    """A row per rank, in HTA's own columns: microseconds, and percent of the kernel time.

    Raises: InputError: a file that is no trace, or has no device events.
    """
    frames: dict[int, pd.DataFrame] = {}
    for file in trace_files(paths):
        document = decoded(file.text, file.source)
        rank, _ = rank_and_world(document, file.source)
        found = _events(document)
        if not (found["stream"] != -1).any():
            expected = f"expected events that name a stream in {file.source}"
            raise InputError(f"{expected}, found none; HTA breaks down nothing else")
        frames[len(frames) if rank is None else rank] = found
    names = {name for frame in frames.values() for name in frame["name"] if _STEP in name}
    first_us = min(frame["ts"].min() for frame in frames.values())
    rows = {}
    for rank, frame in sorted(frames.items()):
        frame["ts"] -= first_us
        kept = _of_whole_steps(frame, names) if len(names) > 1 else frame
        device = kept[kept["stream"] != -1]
        if not len(device):
            expected = (
                f"expected kernels whose launch is recorded in a step but the last of rank {rank}"
            )
            raise InputError(f"{expected}, found none; HTA leaves out all others")
        rows[rank] = _row(device)
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("rank").reset_index()
    for part in ("idle", "compute", "non_compute"):
        share = table[f"{part}_time(us)"] / table["kernel_time(us)"]
        table[f"{part}_time_pctg"] = (100 * share).round(2)
    return table


def _events(document: Document) -> pd.DataFrame:
    """`name, ts, dur, stream, correlation` of all events that last, µs; -1 where not stated."""
    events = document.traceEvents or []
    fractions = any(not isinstance(event.ts, int) for event in events)
    rows = []
    for event in events:
        start_us, length_us = as_number(event.ts), as_number(event.dur)
        if start_us is None or length_us is None or event.cat in (None, "Trace"):
            continue
        if fractions:
            end_us = start_us + length_us
            start_us = np.ceil(start_us)
            length_us = np.floor(end_us) - start_us
        args = event.args or Args()
        stream, correlation = as_whole(args.stream), as_whole(args.correlation)
        stated = (-1 if number is None else number for number in (stream, correlation))
        rows.append((as_text(event.name), start_us, length_us, *stated))
    return pd.DataFrame(rows, columns=["name", "ts", "dur", "stream", "correlation"])


def _of_whole_steps(frame: pd.DataFrame, steps: set[str]) -> pd.DataFrame:
    """What the host did before the last step, and what that launched."""
    launched = (frame["stream"] >= 0) & (frame["correlation"] >= 0)
    launched |= frame["name"].isin(_DEVICE_SYNC)
    marks = ~launched & frame["name"].isin(steps)
    host = ~launched & (frame["ts"] < frame["ts"][marks].max())
    return frame[host | (launched & frame["correlation"].isin(frame["correlation"][host]))]


def _row(device: pd.DataFrame) -> dict[str, float]:
    start_us, end_us = _merged(device)
    computes = ~device["name"].map(lambda name: _NO_COMPUTATION.match(name) is not None)
    begin_us, until_us = _merged(device[computes.astype(bool)])
    kernel_us = float(end_us[-1] - start_us[0])
    idle_us = kernel_us - float(end_us.sum() - start_us.sum())
    compute_us = float(until_us.sum() - begin_us.sum())
    return {
        "idle_time(us)": idle_us,
        "compute_time(us)": compute_us,
        "non_compute_time(us)": kernel_us - compute_us - idle_us,
        "kernel_time(us)": kernel_us,
    }


def _merged(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the union; an event of negative length on its own keeps its own."""
    ordered = frame.sort_values("ts")
    start_us, end_us = ordered["ts"].to_numpy(), (ordered["ts"] + ordered["dur"]).to_numpy()
    if not len(ordered):
        return start_us, end_us
    reach_us = np.maximum.accumulate(end_us)
    first = np.append(True, start_us[1:] > reach_us[:-1])
    at = np.flatnonzero(first)
    return start_us[at], np.maximum.reduceat(end_us, at)
