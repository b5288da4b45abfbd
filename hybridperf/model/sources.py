"""Where a price comes from: a code on every stage, and the words that are made of codes, once.

A stage of the price (`stages/`) that says something of an op says by what it knows it. Nobody
edits another's sentence: what a table's `note`, a prediction's notes and `explain` print is
`sentence(source)`.
"""

from __future__ import annotations

import dataclasses
import enum


class Code(enum.Enum):
    """By what a stage knows what it says."""

    DATASHEET = "datasheet"  # published peaks and bandwidths
    OWN_ROWS = "own rows"  # measured on this device
    PRIOR = "family prior"  # what other devices' rows say of a family, none of this device's
    STAND_IN = "stand-in"  # another device's rows, which stand for this one's
    BORROWED = "borrowed"  # the share of the roofline that another device reaches
    FORM = "form"  # a closed form at this device's numbers, with another's knobs, or believed ones
    LAW = "measured law"  # of a kernel that this project measured
    PUBLISHED = "published"  # a factor from a publication
    BELIEF = "belief"  # a share that devices usually reach
    KNOBS = "knobs"  # what moved of the machine's numbers


@dataclasses.dataclass(frozen=True)
class Source:
    """By what a stage knows what it says of some ops."""

    code: Code
    what: str = ""  # group or family of ops
    device: str = ""  # whose rows, where they are another's
    rows: int = 0  # that were measured
    # formats that were measured where those of the op were not
    only: tuple[str, ...] = ()
    assumed: str = ""  # words on what was taken for granted
    unknown_kernel: bool = False  # no such kernel was measured


DATASHEET = Source(Code.DATASHEET)
FUSED = Source(Code.DATASHEET, what="fused")


def how(source: Source) -> str:
    """By what an op without measurements of its own is priced; empty for measured ones."""
    by = {
        Code.DATASHEET: "datasheet roofline",
        Code.STAND_IN: f"as {source.device} measured",
        Code.BORROWED: f"the share of the roofline that {source.device} reaches",
        Code.BELIEF: "the share of the roofline that devices usually reach",
    }
    if source.code is Code.FORM and source.what == "lookups":
        if source.device:
            return f"lookups of {source.device}"
        return "bandwidths of memory and L2 that other GPUs show (a wide belief)"
    if source.code is Code.FORM and source.what == "images":
        return "a closed form of such kernels at this device's numbers"
    if source.code is Code.FORM:
        knobs = f"the knobs of {source.device}" if source.device else "believed knobs"
        return f"the form of {source.what} at this device's bandwidth and cache, with {knobs}"
    return by.get(source.code, "")


def not_measured(source: Source, group: str, dtype: str) -> str:
    """That a number format was not measured; empty where it was, or the group was not at all."""
    only = ", ".join(source.only)
    return f"no {group} in {dtype} was measured, only {only}" if only else ""


def said_by(source: Source, device: str) -> str:
    """By what a stage of a price on `device` knows what it says, in a few words."""
    if source.code is Code.OWN_ROWS:
        return f"{source.rows:,} rows of {device}" if source.rows else f"rows of {device}"
    if source.code is Code.PRIOR:
        return f"what other devices show of {source.what}, no row of {device}"
    if source.code is Code.DATASHEET:
        return "datasheet"
    if source.code is Code.LAW:
        return f"a kernel's law, measured on {source.device}"
    if source.code is Code.PUBLISHED:
        return f"the share of the peak that the authors of {source.what} publish"
    if source.code is Code.KNOBS:
        return "varied knobs"
    if source.code is Code.BELIEF and source.assumed:
        return source.assumed
    return how(source) or source.assumed
