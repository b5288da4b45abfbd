"""Which collective a kernel runs: by the mark around its launch, its record, or its name."""

from __future__ import annotations

import re

import numpy as np

from hybridperf.traces.events import NONE, Message, RankTrace
from hybridperf.traces.idle import op_around

MESSAGES = "messages"  # sends and receives as one kernel
# what names of collectives begin with, and names of their kernels have in them, without underscores
_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "send": "send", "recv": "recv", "barrier": "all_reduce",
}  # fmt: skip
# nccl's `SendRecv` carries an all-to-all as well as single messages
_KERNEL_KINDS = {"sendrecv": "all_to_all", "crossdevicereduce": "all_reduce", **_KINDS}
_SPOKEN, _KERNEL = re.compile("|".join(_KINDS)), re.compile("|".join(_KERNEL_KINDS))
_PAIR = re.compile(r"nccl:(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
_TOGETHER = "coalesced"  # several calls as one kernel, of which the mark says no more
_UNNAMED = "collective"  # what its kernel's name does not tell


def kind_of(trace: RankTrace, event: np.ndarray) -> list[str | None]:
    """Which collective each device event runs [N]; None where it runs none.

    The framework's mark around the launch decides, then the kernel's record, then its name.
    """
    kinds: list[str | None] = []
    for one, mark in zip(np.asarray(event).tolist(), marks(trace, event).tolist(), strict=True):
        mark_name = trace.host_name(mark).removeprefix("nccl:") if mark != NONE else ""
        recorded = (mark_name, trace.messages.get(one, Message()).kind)
        kind = next((kind for text in recorded if (kind := _spoken(text))), None)
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
    mark = np.full(len(event), NONE)
    known = (device.call[event] != NONE) & device.communicates[event]
    around = op_around(trace, device.call[event[known]])
    is_mark = [at != NONE and trace.host_name(at).startswith("nccl:") for at in around]
    mark[known] = np.where(is_mark, around, NONE)
    return mark


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _spoken(name: str) -> str | None:
    """Our word for a collective as frameworks spell it (`_allgather_base`); None for none."""
    if not name or _plain(name).startswith(_TOGETHER):
        return None
    found = _SPOKEN.match(_plain(name))
    return _KINDS[found[0]] if found else name.strip("_")
