"""Kernels of several devices in one file, taken apart: each device becomes a rank, with the host
events of the process that launched on it.

A file has several where ranks were merged into one timeline, or where one process feeds several
devices. Never do two devices count as one: what would be idle time of one is work of the other.

A kernel's name tells whether it communicates, and copies that run as kernels. Libraries write
their own name into it, mostly as its namespace or in the types of its arguments; kernels of no
library are known by the collective that they are named after.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridperf.io import InputError
from hybridperf.traces.events import CALL, COPY, FILL, KERNEL
from hybridperf.traces.readers.kineto_json import Event, as_number, as_text, as_whole

_RANK_PROCESS = re.compile(r"rank[ _-]?(\d{1,7})", re.IGNORECASE)


@dataclass
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

    `host` and `device` are (kind, event); `events`: all that the file has, with the names of
    processes; `rank`: what the file gives as its rank.

    Raises: InputError: nothing tells which process used a device.
    """
    of_device: dict[int, list] = {}
    for kind, event in device:
        of_device.setdefault(device_number(event), []).append((kind, event))
    if len(of_device) < 2:
        return [RankEvents(host, device)]
    kernels = {at: sum(kind == KERNEL for kind, _ in those) for at, those in of_device.items()}
    used = sorted(number for number in of_device if kernels[number] or not any(kernels.values()))
    several = {number: of_device[number] for number in used if len(used) > 1}
    processes = _processes(host, several, source) if several else {}
    one_process = len(set(processes.values())) < 2
    if one_process and rank is not None:
        used = [max(used, key=lambda number: kernels[number])]
    idle = sorted(set(of_device) - set(used))
    left_out = f"{sum(len(of_device[at]) for at in idle)} events of {_devices(idle)} left out"
    if len(used) == 1:
        note = f"{left_out}: the rank is {_devices(used)}'s"
        return [RankEvents(host, of_device[used[0]], notes=[note])]
    named = _named_ranks(events)
    ranks = [named.get(as_text(of_device[number][0][1].pid), number) for number in used]
    ranks = ranks if len(set(ranks)) == len(ranks) else list(used)
    by_same = ", launched by the same host" if one_process else ""
    note = f"{len(used)} devices in one trace: each is a rank of its own here{by_same}"
    found = []
    for number, its_rank in zip(used, ranks, strict=True):
        mine = [one for one in host if one_process or as_text(one[1].pid) == processes[number]]
        found.append(RankEvents(mine, of_device[number], its_rank))
    found[0].notes += [f"{left_out}: no kernels ran there", note] if idle else [note]
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
        count: Counter[str] = Counter()
        for _, event in those:
            start, made = as_number(event.ts) or 0.0, calls.get(correlation(event) or 0, ())
            count.update({pid for pid, ts in made if ts <= start})
        votes = count.most_common(2)
        # a merged timeline may show a rank's host and device as one process
        own = as_text(those[0][1].pid)
        if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]):
            found[device] = votes[0][0]
        elif own in everyone:
            found[device] = own
        else:
            which = f"found {len(of_device)} devices and {len(everyone)} processes"
            unsaid = "nothing that says who launched on which; give one file per rank"
            raise InputError(f"expected one rank in {source}, {which} and {unsaid}")
    return found


def _named_ranks(events: Sequence[Event]) -> dict[str, int]:
    """Ranks of processes whose names say them ("rank 3")."""
    named = [event for event in events if event.ph == "M" and event.name == "process_name"]
    names = ((as_text(event.pid), as_text(event.args.name)) for event in named if event.args)
    found = ((pid, _RANK_PROCESS.search(name)) for pid, name in names)
    return {pid: int(match[1]) for pid, match in found if match is not None}


def _devices(numbers: Sequence[int]) -> str:
    return f"device{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


_LIBRARY = re.compile(
    r"nccl|rccl|oneccl|hccl|nvshmem|rocshmem|msccl|multimem_|cross_device_|userbuffers"
    # of experts (MoE): DeepEP (`dpsk::ep::internode::dispatch` in DeepSeek's own traces), HybridEP,
    # UCCL, MoRI, pplx
    r"|deep_?ep\b|\bdpsk::ep::|hybrid_?ep\b|\buccl|\bmori::|\bEp(?:Dispatch|Combine)\w*Kernel"
    r"|\bpplx|\ba2a_(?:dispatch|combine)_|\b(?:dispatch|combine)Kernel\b",
    re.I,
)
_COLLECTIVE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all", re.I)
_FUSED = re.compile(r"triton_")  # Inductor names its kernels after ops whose results they take
_OWN_NAME = re.compile(r"[^<(]*")  # without arguments, of templates either
# MTIA waits for other streams and marks where they are as events of the device's own
_NO_WORK = ("event_wait", "event_record")
_COPIES = {"__amd_rocclr_copyBuffer": COPY, "__amd_rocclr_fillBuffer": FILL, "dma_request": COPY}


@functools.lru_cache(maxsize=1 << 16)
def communicates(name: str) -> bool:
    """Whether a kernel of this name moves data between devices."""
    if _LIBRARY.search(name):
        return True
    own = _OWN_NAME.match(name.replace("(anonymous namespace)", ""))
    return bool(own and _COLLECTIVE.search(own[0]) and not _FUSED.match(name))


@functools.lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str) -> int | None:
    """KERNEL, or COPY or FILL for what a device runs as kernels of these names; None: no work."""
    if name in _NO_WORK:
        return None
    return next((kind for begin, kind in _COPIES.items() if name.startswith(begin)), KERNEL)
