"""Kernels of several devices in one file, taken apart: each device becomes a rank, with the host
events of the process that launched on it.

A file has several where ranks were merged into one timeline, or where one process feeds several
devices. Never do two devices count as one: what would be idle time of one is work of the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridperf.io import InputError
from hybridperf.traces.events import CALL, KERNEL
from hybridperf.traces.readers.kineto_json import Event, as_number, as_text, as_whole

_RANK_PROCESS = re.compile(r"rank[ _-]?(\d{1,7})", re.IGNORECASE)


@dataclass(frozen=True)
class RankEvents:
    """The events of one rank: (kind, event) of host and device."""

    host: list[tuple[int, Event]]
    device: list[tuple[int, Event]]
    rank: int | None = None  # of one of several
    notes: list[str] = field(default_factory=list)


def parts(
    host: list, device: list, events: Sequence[Event], rank: int | None, source: str
) -> list[RankEvents]:
    """Events of host and device, by device that ran kernels.

    One process whose rank is known keeps the device that it used most.

    Args:
        host: (kind, event) of all host events.
        device: (kind, event) of all device events.
        events: all that the file has, with the names of processes.
        rank: what the file gives as its rank.
        source: for messages.

    Raises: InputError: nothing tells which process used a device.
    """
    of_device: dict[int, list] = {}
    for kind, event in device:
        of_device.setdefault(device_number(event), []).append((kind, event))
    if len(of_device) < 2:
        return [RankEvents(host, device)]
    kernels = {
        number: sum(kind == KERNEL for kind, _ in those) for number, those in of_device.items()
    }
    used = sorted(number for number in of_device if kernels[number] or not any(kernels.values()))
    processes = (
        _processes(host, {number: of_device[number] for number in used}, source)
        if len(used) > 1
        else {}
    )
    one_process = len(set(processes.values())) < 2
    if one_process and rank is not None:
        used = [max(used, key=lambda number: kernels[number])]
    idle = sorted(set(of_device) - set(used))
    left_out = sum(len(of_device[number]) for number in idle)
    notes = (
        [f"{left_out} events of {_devices(idle)} left out: the rank is {_devices(used)}'s"]
        if len(used) == 1
        else []
    )
    if len(used) == 1:
        return [RankEvents(host, of_device[used[0]], notes=notes)]
    if left_out:
        notes.append(f"{left_out} events of {_devices(idle)} left out: no kernels ran there")
    named = _named_ranks(events)
    ranks = [named.get(as_text(of_device[number][0][1].pid), number) for number in used]
    ranks = ranks if len(set(ranks)) == len(ranks) else list(used)
    notes.append(
        f"{len(used)} devices in one trace: each is a rank of its own here"
        + (", launched by the same host" if one_process else "")
    )
    found = []
    for at, number in enumerate(used):
        mine = (
            host
            if one_process
            else [one for one in host if as_text(one[1].pid) == processes[number]]
        )
        found.append(RankEvents(mine, of_device[number], ranks[at], notes if at == 0 else []))
    return found


def device_number(event: Event) -> int:
    """The device an event ran on, as the trace counts them."""
    device = as_whole(event.args.device) if event.args is not None else None
    # the timeline's process is the device
    return device if device is not None else as_whole(event.pid) or 0


def correlation(event: Event) -> int | None:
    """What an event and its launching call share; None also for 0, of calls without one."""
    return as_whole(event.args.correlation) or None if event.args is not None else None


def _processes(host: list, of_device: dict[int, list], source: str) -> dict[int, str]:
    """The process that launched most of each device's events, by device."""
    calls: dict[int, list[tuple[str, float]]] = {}
    for kind, event in host:
        if kind == CALL and (number := correlation(event)) is not None:
            calls.setdefault(number, []).append((as_text(event.pid), as_number(event.ts) or 0.0))
    everyone = sorted({as_text(event.pid) for _, event in host})
    if len(everyone) < 2:
        return dict.fromkeys(of_device, everyone[0] if everyone else "")
    found = {}
    for device, those in of_device.items():
        # several processes count their correlations alike: a call after what it launched is
        # another's
        votes = Counter(
            pid
            for _, event in those
            for pid in {
                pid
                for pid, ts in calls.get(correlation(event) or 0, ())
                if ts <= (as_number(event.ts) or 0.0)
            }
        ).most_common(2)
        # a merged timeline may show a rank's host and device as one process
        own = as_text(those[0][1].pid)
        if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]):
            found[device] = votes[0][0]
        elif own in everyone:
            found[device] = own
        else:
            raise InputError(
                f"expected one rank in {source}, found {len(of_device)} devices and {len(everyone)}"
                " processes and nothing that says who launched on which; give one file per rank"
            )
    return found


def _named_ranks(events: Sequence[Event]) -> dict[str, int]:
    """Ranks of processes whose names say them ("rank 3")."""
    names = [
        (as_text(event.pid), event.args.name)
        for event in events
        if event.ph == "M" and event.name == "process_name" and event.args
    ]
    return {
        pid: int(match[1])
        for pid, name in names
        if (match := _RANK_PROCESS.search(as_text(name))) is not None
    }


def _devices(numbers: Sequence[int]) -> str:
    return f"device{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
