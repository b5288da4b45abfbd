"""Training steps within a recorded trace: what host and device did in each.

A step is the host's mark `ProfilerStep#N`, an interval on the host's clock that holds its start and
not its end. A host event is of the step in which it starts, whichever thread it runs on: the
backward pass has a thread of its own. A device event is of the step in which the call that launched
it starts, so kernels that run after the mark's end still belong to it. One whose call was not
recorded is of no step, since most were launched before the recording began, unless it ran between
two of one step on its stream, which runs events in the order of their launches. Only where no call
at all was recorded, or a single step, as HolisticTraceAnalysis has it, such an event is of the step
in which it itself starts. Nothing belongs to two steps, and what lies between marks belongs to
none. Without marks the whole trace is one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hybridperf.io import InputError
from hybridperf.traces.events import MARK, NONE, RankTrace

WHOLE = "whole"  # the one step of a trace without marks
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_NAMED = 3  # ranks or steps that a sentence names


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One step of one rank, seconds on its clock; `host` and `device` index events by start."""

    name: str
    start_s: float
    end_s: float  # of the step's mark on the host; the device may still be at work
    host: np.ndarray  # int [events]
    device: np.ndarray  # int [device events launched within the step]
    note: str = ""  # for people: what `typical` left aside


@dataclass(frozen=True, eq=False)
class CommonStep:
    """One step as several ranks recorded it; `steps` in the order of the traces."""

    name: str
    steps: tuple[RecordedStep, ...]
    note: str = ""  # steps that only some ranks have


def steps(trace: RankTrace) -> tuple[RecordedStep, ...]:
    """The steps of a trace in order; without any mark the whole trace is one step, "whole"."""
    host, device = trace.host, trace.device_events
    marks = np.flatnonzero((host.kind == MARK) & trace.host_named(_STEP.fullmatch))
    marks = marks[host.end_s[marks] > host.start_s[marks]]  # a mark without length holds nothing
    if not len(marks):
        end_s = float(host.end_s.max() if len(host) else device.end_s.max(initial=0.0))
        start_s = float(np.concatenate([host.start_s, device.start_s]).min(initial=end_s))
        everything = np.arange(len(host)), np.arange(len(device))
        return (RecordedStep(WHOLE, start_s, end_s, *everything),)
    by_start = len(marks) == 1 or np.isnan(trace.called_s).all()
    launched_s = trace.launched_s if by_start else trace.called_s  # NaN is in no step
    found: list[RecordedStep] = []
    of_step = np.full(len(device), NONE)
    seen: dict[str, int] = {}
    until_s = -np.inf
    for mark in marks.tolist():
        start_s, end_s = max(float(host.start_s[mark]), until_s), float(host.end_s[mark])
        if end_s <= start_s:
            continue  # within the mark before: a damaged or doubled mark
        until_s = end_s
        name = trace.host_name(mark)
        seen[name] = seen.get(name, 0) + 1
        first, last = np.searchsorted(host.start_s, [start_s, end_s])
        name = name if seen[name] == 1 else f"{name} ({seen[name]})"
        of_step[(launched_s >= start_s) & (launched_s < end_s)] = len(found)
        found.append(RecordedStep(name, start_s, end_s, np.arange(first, last), np.zeros(0, int)))
    # a stream runs events in the order of their launches
    lost = np.isnan(launched_s)
    known = pd.Series(np.where(lost, np.nan, of_step)).groupby(device.stream)
    before, after = known.ffill().to_numpy(), known.bfill().to_numpy()
    of_step = np.where(before == after, before, NONE)
    return tuple(
        replace(step, device=np.flatnonzero(of_step == at)) for at, step in enumerate(found)
    )


def periods_s(trace: RankTrace) -> dict[str, float]:
    """By name of each step, seconds from the end of the step before on the device to its own; NaN
    where that one was not recorded.
    """
    found: dict[str, float] = {}
    last, last_s = None, np.nan
    for step in steps(trace):
        number = _STEP.fullmatch(step.name)
        end_s = float(trace.device_events.end_s[step.device].max(initial=-np.inf))
        follows = number is not None and int(number[1]) - 1 == last and end_s > last_s > -np.inf
        found[step.name] = end_s - last_s if follows else np.nan
        last, last_s = int(number[1]) if number is not None else None, end_s
    return found


def typical(trace: RankTrace, steps: Sequence[RecordedStep]) -> RecordedStep:
    """One step for all that repeat: of the largest group of alike steps the one of median duration.

    Steps are alike if each stream ran the same events in the same order; if no two are, all count.
    The note tells what was left aside.
    """
    if not steps:
        raise ValueError("expected at least one step, got none")
    groups: dict[bytes, list[RecordedStep]] = {}
    for step in steps:
        device = trace.device_events
        ordered = step.device[np.argsort(device.stream[step.device], kind="stable")]
        signature = np.stack([device.stream[ordered], device.name[ordered]]).tobytes()
        groups.setdefault(signature, []).append(step)
    alike = max(groups.values(), key=len)
    if len(alike) == 1:
        alike = list(steps)
    chosen = sorted(alike, key=lambda step: step.end_s - step.start_s)[(len(alike) - 1) // 2]
    if len(steps) == 1:
        return chosen
    others = [step.name for step in steps if step not in alike]
    if len(groups) == len(steps):
        alone = f"no two of {len(steps)} steps ran the same kernels"
        return replace(chosen, note=f"{alone}; {chosen.name} is the one of median duration")
    note = f"{chosen.name} stands for {len(alike)} steps with the same kernels, the one of median"
    note += f" duration; other kernels ran in {_listed(others)}" if others else " duration"
    return replace(chosen, note=note)


def common_steps(traces: Sequence[RankTrace]) -> list[CommonStep]:
    """The steps that all ranks recorded, in order; each note names those that only some have.

    Raises: InputError: two traces of one rank, several without one, of several runs, or without a
        common step.
    """
    if not traces:
        raise InputError("expected the trace of at least one rank, got none; check the files")
    by_rank: dict[int | None, RankTrace] = {}
    for trace in traces:
        if trace.rank in by_rank:
            pair = f"{by_rank[trace.rank].source} and {trace.source}"
            which = "name no rank" if trace.rank is None else f"are both of rank {trace.rank}"
            raise InputError(f"expected one trace per rank, but {pair} {which}; give one of them")
        by_rank[trace.rank] = trace
    if len(by_rank) > 1 and None in by_rank:
        none = f"{by_rank[None].source} names none; name the file ..._rank3"
        raise InputError(f"expected the rank of each of {len(traces)} traces, {none}")
    worlds = sorted({trace.world for trace in traces if trace.world is not None})
    if len(worlds) > 1:
        got = f"got ranks of runs of {_listed(map(str, worlds))} ranks"
        raise InputError(f"expected the ranks of one run, {got}; give traces of one run")
    per_trace = [{step.name: step for step in steps(trace)} for trace in traces]
    shared = list(per_trace[0])
    for trace, found in zip(traces, per_trace, strict=True):
        so_far, shared = shared, [name for name in shared if name in found]
        if not shared:
            both = (traces[0].source, so_far), (trace.source, list(found))
            got = " and ".join(f"{_listed(names)} in {source}" for source, names in both)
            mend = "give traces of the same steps"
            raise InputError(f"expected the same steps of every rank, got {got}; {mend}")
    every = dict.fromkeys(name for found in per_trace for name in found)
    partly = [name for name in every if name not in shared]
    note = f"left out for not being in every rank: {_listed(partly)}" if partly else ""
    return [CommonStep(name, tuple(found[name] for found in per_trace), note) for name in shared]


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f", ... {names[-1]} ({len(names)} in all)" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
