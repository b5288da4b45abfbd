"""Collectives of several ranks, matched: what the wire took and which rank the others waited for.

A kernel of a collective starts when its own rank has come to it and ends when all ranks are done,
so its measured duration is mostly waiting. The shortest duration over the ranks is the wire time:
the last rank to arrive waits for nobody. All that compares durations, so the clocks of the ranks
need not agree. Of a single rank's collective nobody knows how much of it was waiting.

Ranks issue the collectives of a group in the same order, so the n-th of one member goes with the
n-th of the others, where both ran the same kinds in the same order. Which group a kernel is of:

    recorded ranks, or name    as PyTorch writes them from 2.4 on
    send 0->1, recv 1<-0       the two ranks, as the framework's mark names them: in the group's own
                               count where its ranks are recorded
    none recorded              a framework gives each group a stream of its own: the n-th
                               communication stream of one rank (in order of first launch) goes with
                               the n-th of the others. Groups that run the same collectives (rows of
                               a grid of ranks) cannot be told apart by that: a note says so where
                               their ends differ

Which collective a kernel runs is told by the mark around its launch, its record, or its name.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hybridperf.traces.events import NONE, Message, RankTrace
from hybridperf.traces.idle import op_around
from hybridperf.traces.steps import RecordedStep

MESSAGES = "messages"  # sends and receives as one kernel
# what names of collectives begin with, and names of their kernels have in them, without underscores
_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "send": "send", "recv": "recv", "barrier": "all_reduce",
}  # fmt: skip
# nccl's `SendRecv` carries an all-to-all as well as single messages; tokens are dispatched to
# experts and combined again by one all-to-all each
_KERNEL_KINDS = {
    "sendrecv": "all_to_all", "crossdevicereduce": "all_reduce", "dispatch": "all_to_all",
    "combine": "all_to_all", **_KINDS,
}  # fmt: skip
_SPOKEN, _KERNEL = re.compile("|".join(_KINDS)), re.compile("|".join(_KERNEL_KINDS))
_PAIR = re.compile(r"nccl:(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
_TOGETHER = "coalesced"  # several calls as one kernel, of which the mark says no more
_UNNAMED = "collective"  # what its kernel's name does not tell
_NAMED = 8  # ranks that a sentence names
_APART_S = 1e-3  # ranks of one group end a collective within microseconds of each other


@dataclass(frozen=True, eq=False)
class RecordedCollective:
    """One collective as the given ranks ran it. R ranks took part of which there are traces."""

    kind: str  # all_reduce, all_to_all, ...
    order: int  # among the collectives of its ranks, from 0
    trace: np.ndarray  # index into the traces [R]
    rank: np.ndarray  # [R]
    event: np.ndarray  # device event of each [R]
    start_s: np.ndarray  # on each rank's own clock [R]
    end_s: np.ndarray
    input_dims: str  # of the first rank, as JSON; "" where not recorded
    size: int | None = None  # ranks that took part, with a trace or without; None: not known
    group: str = ""  # for people: the group, where it is not all ranks

    @property
    def wire_s(self) -> float:
        """Seconds without waiting; with, for a single one of several ranks."""
        return float((self.end_s - self.start_s).min())

    @property
    def wait_s(self) -> np.ndarray:
        """Seconds each rank waited [R]; NaN where the trace of no other rank says it."""
        if len(self.trace) == 1 and self.size != 1:
            return np.full(1, np.nan)
        return self.end_s - self.start_s - self.wire_s

    @property
    def late_rank(self) -> int:
        """The rank that came last, for which the others waited."""
        return int(self.rank[np.argmin(self.end_s - self.start_s)])

    def __str__(self) -> str:
        return f"{self.kind} #{self.order}" + (f" of {self.group}" if self.group else "")


@dataclass(frozen=True)
class MatchedCollectives:
    """Collectives of several ranks, and what could not be matched."""

    collectives: tuple[RecordedCollective, ...]
    notes: tuple[str, ...]


class _GroupKey(NamedTuple):
    """Which group a collective belongs to; ranks whose keys are equal ran it together."""

    by: str  # "ranks", "pair", "name", "stream", or "alone": nobody knows
    ranks: tuple[int, ...] = ()  # of a pair sender and receiver, of one alone itself
    name: str = ""
    stream: int = 0  # n-th of the rank
    size: int | None = None

    @property
    def where(self) -> str:
        """The group of ranks, or the stream, as reports name it."""
        if self.by == "ranks" and (not self.name or self.name.isdecimal()):
            return _ranks(self.ranks)
        named = self.by in ("ranks", "name")
        return f"group {self.name}" if named else f"communication stream {self.stream + 1}"

    def ranks_in_all(self, world: int) -> int | None:
        """Ranks of the group, where that is known."""
        if self.by == "alone":
            return None
        return (len(self.ranks) if self.by in ("ranks", "pair") else self.size) or world or None


@dataclass(frozen=True, eq=False)
class _GroupRun:
    """What one rank ran of one group, in order of launch."""

    kinds: tuple[str, ...]
    event: np.ndarray
    place: np.ndarray  # among all that the rank ran

    @classmethod
    def joined(cls, runs: Sequence[_GroupRun]) -> _GroupRun:
        """Several as one, in order of launch."""
        place = np.concatenate([run.place for run in runs])
        order = np.argsort(place)
        kinds = [kind for run in runs for kind in run.kinds]
        events = np.concatenate([run.event for run in runs])
        return cls(tuple(kinds[at] for at in order), events[order], place[order])


def match(traces: Sequence[RankTrace], steps: Sequence[RecordedStep]) -> MatchedCollectives:
    """Collectives of one step (`steps` has each trace's) in order of launch; notes on the rest."""
    ranks = rank_numbers(traces)
    world = max((trace.world or 0 for trace in traces), default=0)
    by_key: dict[_GroupKey, dict[int, _GroupRun]] = {}
    for at, (trace, step) in enumerate(zip(traces, steps, strict=True)):
        for key, run in _runs(trace, step, int(ranks[at])).items():
            by_key.setdefault(key, {})[at] = run
    found: list[tuple[float, RecordedCollective]] = []
    notes: list[str] = []
    for key, members in _by_name_where_all_agree(by_key).items():
        size = key.ranks_in_all(world)
        group = "" if key.by not in ("ranks", "name") or size == world else key.where
        alike: dict[tuple[str | int, ...], list[int]] = {}
        ambiguous = key.by == "alone" or (size is not None and len(members) > size)
        for at, run in members.items():
            alike.setdefault((at,) if ambiguous else run.kinds, []).append(at)
        if ambiguous and len(members) > 1 and key.by != "alone":
            who = _ranks(ranks[list(members)].tolist())
            groups = f"groups of {size} ranks without saying which"
            notes.append(f"{who} ran collectives of {groups}: what they waited is not known")
        elif len(alike) > 1:
            ran = [(_ranks(ranks[at].tolist()), members[at[0]].kinds) for at in alike.values()]
            parts = [
                f"{who} ran " + ", ".join(f"{n} {kind}" for kind, n in Counter(kinds).items())
                for who, kinds in ran
            ]
            rule = "only ranks that ran the same collectives in the same order are matched"
            notes.append(f"{rule}: in {key.where} {'; '.join(parts)}")
        for those in alike.values():
            events = np.array([members[at].event for at in those])
            kinds = zip(members[those[0]].kinds, events.T, strict=True)
            matched = [
                _collective(traces, ranks, those, kind, event, size, group) for kind, event in kinds
            ]
            # how far apart the ranks end them by their clocks
            origin_us = np.array([traces[at].origin_us for at in those])
            later_s = (origin_us - origin_us[0]) * 1e-6
            apart_s = float(np.median([np.ptp(one.end_s + later_s) for _, one in matched]))
            if apart_s > _APART_S and key.by == "stream":
                ends = f"{_ranks(ranks[those].tolist())} end their collectives"
                why = "their clocks disagree, which does no harm, or they are of several groups"
                mend = "which must be given one by one"
                notes.append(f"{ends} {1e3 * apart_s:.3g} ms apart: {why}, {mend}")
            found += matched
    found.sort(key=lambda one: one[0])
    count = defaultdict[bytes, Iterator[int]](itertools.count)
    numbered = tuple(replace(one, order=next(count[one.trace.tobytes()])) for _, one in found)
    missing = _missing(traces, ranks, world, by_key, numbered)
    return MatchedCollectives(numbered, (*_silent(traces, ranks, world), *missing, *notes))


def rank_numbers(traces: Sequence[RankTrace]) -> np.ndarray:
    """Each trace's rank; its place where the trace does not say [R]."""
    ranks = [at if trace.rank is None else trace.rank for at, trace in enumerate(traces)]
    return np.array(ranks, int)


def _runs(trace: RankTrace, step: RecordedStep, rank: int) -> dict[_GroupKey, _GroupRun]:
    """What one rank ran, by group."""
    device = trace.device_events
    event = np.asarray(step.device)[device.communicates[step.device]]
    event = event[np.argsort(trace.launched_s[event], kind="stable")]
    streams: dict[int, int] = {}
    parts: dict[_GroupKey, list[tuple[str, int, int]]] = {}
    for place, (one, kind) in enumerate(zip(event.tolist(), kind_of(trace, event), strict=True)):
        message = trace.messages.get(one, Message())
        if kind in ("send", "recv", MESSAGES):
            pair = pair_of(trace, one, rank)
            key = _GroupKey("pair", pair, message.group) if pair else _GroupKey("alone", (rank,))
            kind = "send {}->{}".format(*pair) if pair else kind
        elif message.ranks:
            key = _GroupKey("ranks", tuple(sorted(message.ranks)), message.group)
        elif message.group:
            key = _GroupKey("name", name=message.group, size=message.size)
        else:
            stream = streams.setdefault(int(device.stream[one]), len(streams))
            key = _GroupKey("stream", stream=stream, size=message.size)
        parts.setdefault(key, []).append((str(kind), one, place))
    found = {}
    for key, those in parts.items():
        kinds, events, places = zip(*those, strict=True)
        found[key] = _GroupRun(kinds, np.array(events), np.array(places))
    return found


def _by_name_where_all_agree(
    by_key: dict[_GroupKey, dict[int, _GroupRun]],
) -> dict[_GroupKey, dict[int, _GroupRun]]:
    """Groups of the same ranks joined, unless all members name them alike."""
    same: dict[_GroupKey, list[_GroupKey]] = {}
    for key in by_key:
        same.setdefault(key._replace(name="") if key.ranks else key, []).append(key)
    found: dict[_GroupKey, dict[int, _GroupRun]] = {}
    for keys in same.values():
        if len(keys) == 1 or len({frozenset(by_key[key]) for key in keys}) == 1:
            found.update((key, by_key[key]) for key in keys)
            continue
        joined: dict[int, list[_GroupRun]] = {}
        for key in keys:
            for at, run in by_key[key].items():
                joined.setdefault(at, []).append(run)
        found[keys[0]] = {at: _GroupRun.joined(those) for at, those in joined.items()}
    return found


def _collective(
    traces: Sequence[RankTrace], ranks: np.ndarray, members: Sequence[int], kind: str,
    event: np.ndarray, size: int | None, group: str,
) -> tuple[float, RecordedCollective]:  # fmt: skip
    of = [traces[at] for at in members]
    events = [(trace.device_events, one) for trace, one in zip(of, event, strict=True)]
    start_s = np.array([device.start_s[one] for device, one in events])
    end_s = np.array([device.end_s[one] for device, one in events])
    mark = int(marks(of[0], event[:1])[0])
    shape = of[0].host.shapes[mark] if mark != NONE else NONE
    dims = of[0].shapes[shape] if shape != NONE else ""
    when = of[0].launched_s[event[0]]
    found = RecordedCollective(
        kind, 0, np.array(members), ranks[list(members)], event, start_s, end_s, dims, size, group
    )
    return of[0].origin_us * 1e-6 + float(when), found


def _silent(traces: Sequence[RankTrace], ranks: np.ndarray, world: int) -> list[str]:
    """Ranks of several that run kernels, none of which is known to communicate: one sentence."""
    if max(world, len(traces)) < 2:
        return []
    events = [trace.device_events for trace in traces]
    silent = [
        rank
        for rank, one in zip(ranks.tolist(), events, strict=True)
        if len(one) and not one.communicates.any()
    ]
    if not silent:
        return []
    found = (
        f"{_ranks(silent)} of {max(world, len(traces))} ran no kernel that is known to communicate"
    )
    mend = "if some do, name them by --communication PATTERN"
    return [f"{found}, and all their time counts as computation; {mend}"]


def _missing(
    traces: Sequence[RankTrace], ranks: np.ndarray, world: int, groups: Iterable[_GroupKey],
    found: Sequence[RecordedCollective],
) -> list[str]:  # fmt: skip
    """Ranks without a trace and what that means for the collectives: one sentence."""
    given = set(ranks.tolist())
    absent = set(range(min(world, 1 << 20))) - given
    for key in groups:
        absent |= set(key.ranks) - given
    if not absent or world == 1 or all(trace.rank is None for trace in traces):
        return []
    if len(traces) == 1 and not found:
        return []
    if len(traces) == 1:
        given_of = f"one rank of {world or len(absent) + 1} is given"
        return [f"{given_of}: its collectives are wire time and waiting together"]
    unknown = any(np.isnan(one.wait_s).any() for one in found)
    partly = any(1 < len(one.trace) < (one.size or 0) for one in found)
    means = ["waiting for them counts as wire time"] if partly else []
    means += ["what others waited in collectives with only them is not known"] if unknown else []
    of = f" of {world}" if world else ""
    effect = f": {', and '.join(means)}" if means else ""
    return [f"no traces of {_ranks(sorted(absent))}{of}{effect}"]


def _ranks(numbers: Sequence[int]) -> str:
    more = f", ... ({len(numbers)} in all)" if len(numbers) > _NAMED else ""
    listed = ", ".join(map(str, numbers[:_NAMED]))
    return f"rank{'s' if len(numbers) > 1 else ''} {listed}{more}"


def kind_of(trace: RankTrace, event: np.ndarray) -> list[str | None]:
    """Which collective each device event runs [N]; None where it runs none.

    The framework's mark around the launch decides, then the kernel's record, then its name.
    """
    kinds: list[str | None] = []
    for one, mark in zip(np.asarray(event).tolist(), marks(trace, event).tolist(), strict=True):
        mark_name = trace.host_name(mark).removeprefix("nccl:") if mark != NONE else ""
        recorded = (mark_name, trace.messages.get(one, Message()).kind)
        kind = next((kind for text in recorded if (kind := spoken(text))), None)
        if kind is None:
            named = _KERNEL.search(_plain(trace.device_name(one)))
            kind = _KERNEL_KINDS[named[0]] if named else _UNNAMED
            if named and named[0] == "sendrecv" and any(_TOGETHER in text for text in recorded):
                kind = MESSAGES
        kinds.append(kind if trace.device_events.communicates[one] else None)
    return kinds


def pair_of(trace: RankTrace, event: int, own: int) -> tuple[int, int] | None:
    """(sender, receiver) of a message as ranks of the run, `own` the trace's; None if unknown."""
    mark = int(marks(trace, np.array([event]))[0])
    named = _PAIR.fullmatch(trace.host_name(mark)) if mark != NONE else None
    if named is None:
        return None
    ranks = trace.messages.get(event, Message()).ranks
    mine, other = int(named[2]), int(named[3])
    if ranks:
        if max(mine, other) >= len(ranks):
            return None
        mine, other = ranks[mine], ranks[other]
    if mine != own:  # counted within a group that nobody knows
        return None
    return (mine, other) if named[1] == "send" else (other, mine)


def marks(trace: RankTrace, event: np.ndarray) -> np.ndarray:
    """The `nccl:...` mark around the launch of communicating device events [N], else NONE."""
    device = trace.device_events
    around = op_around(trace, np.where(device.communicates[event], device.call[event], NONE))
    is_mark = [at != NONE and trace.host_name(at).startswith("nccl:") for at in around]
    return np.where(is_mark, around, NONE)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def spoken(name: str) -> str | None:
    """Our word for a collective as frameworks spell it (`_allgather_base`); None for none."""
    if not name or _plain(name).startswith(_TOGETHER):
        return None
    found = _SPOKEN.match(_plain(name))
    return _KINDS[found[0]] if found else name.strip("_")
