"""Versions of a library that nobody measured: each is taken for the nearest one that was; and
libraries of whose collective nobody measured anything: each is taken for the usual one.

A library changes its protocols and kernels from version to version (NCCL's constants of its switch
between them, too: NVIDIA/nccl, src/graph/tuning.cc), so knobs and networks know it. Of a version
that they never met they would know less than of any other.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hybridperf.collectives.rows import DEFAULT_IMPLEMENTATION, implementations, text
from hybridperf.collectives.traffic import link_of
from hybridperf.hardware import load_system
from hybridperf.io import shipped_toml
from hybridperf.io.later import pd
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.implementation import CollectiveImplementation, Implementation

Versions = Mapping[str, Sequence[str]]  # by a library, or one of its kernels
_COLUMN = "lib_version"
# of one version that was not met elsewhere: with so many rows it has knobs of its own
_OWN_ROWS = 100


def of_prior(prior: FamilyPrior) -> dict[str, list[str]]:
    """Versions that a prior's references were measured in; of systems without any, all there are.

    A box on PCIe stands in for the latencies of another alone, whose versions do not count.
    """
    usual, found = prior.population, dict[str, list[str]]()
    near = [name for name in usual.references if link_of(load_system(name)) != "pcie"]
    own = usual.own[[usual.devices.index(name) for name in near]] if near else usual.own
    met = np.isfinite(own[..., 0]).any(0)
    for slot in np.array(usual.implementations, object)[met]:
        _add(
            found, CollectiveImplementation.parse(slot).library, Implementation.parse(slot).version
        )
    return found


def of_rows(frame: pd.DataFrame, known: Versions) -> dict[str, list[str]]:
    """Known versions, and those that many rows of a table have."""
    found = {name: list(some) for name, some in known.items()}
    counts = Counter(zip(implementations(frame), text(frame, _COLUMN), strict=True))
    for (name, version), rows in sorted(counts.items()):
        if rows >= _OWN_ROWS or name not in known:
            _add(found, name, version)
    return found


def _add(found: dict[str, list[str]], name: str, version: str) -> None:
    if version and version not in found.setdefault(name, []):
        found[name].append(version)


def taken_for_known(frame: pd.DataFrame, known: Versions) -> pd.DataFrame:
    """A table of collectives with each unknown version replaced by the nearest known one."""
    if _COLUMN not in frame or not known:
        return frame
    pairs = list(zip(implementations(frame), text(frame, _COLUMN), strict=True))
    nearest = {pair: _nearest(pair[1], known.get(pair[0], ())) for pair in set(pairs)}
    return frame.assign(**{_COLUMN: [nearest[pair] or np.nan for pair in pairs]})


class _Library(NamedTuple):
    """What a library is taken for whose collective nobody measured (`libraries.toml`)."""

    words: tuple[str, ...]
    source: str
    inside: str = ""  # among ranks of one node; the usual one if empty or without the collective
    times: float = 1.0  # as long


def taken_for_usual(
    frame: pd.DataFrame, slots: Sequence[str], usual: str
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """(a table of known collectives, where libraries without that collective among the texts of
    implementations are one that has it; which rows these are [N]; how many times as long they take
    as what they are taken for [N]).

    It is the `usual` one if `libraries.toml` names none. Expert all-to-alls of DeepEP's low-latency
    kernels and of TensorRT-LLM are 9 to 29 % off in the median by NCCL's on the same node, nine in
    ten within a factor of 1.3 to 1.9, where two systems on NVLink of which nothing was measured are
    within 1.7 (claim `collectives --tasks experts`).
    """
    times = np.ones(len(frame))
    lib = text(frame, "lib", DEFAULT_IMPLEMENTATION)
    if set(lib) <= {usual}:
        return frame, np.zeros(len(frame), bool), times
    known = {CollectiveImplementation.parse(slot)[:2] for slot in slots}
    named = list(zip(frame["collective"], implementations(frame), strict=True))
    strange = np.array([name not in known for name in named], bool)
    strange &= np.array([(kind, usual) in known for kind, _ in named], bool)
    instead = np.full(len(frame), usual, object)
    for at in np.flatnonzero(strange):
        kind, name = named[at]
        if (like := _like(f"{name} {lib[at]}".lower())) is not None:
            times[at] = like.times
            if frame["n_nodes"].iloc[at] == 1 and (kind, like.inside) in known:
                instead[at] = like.inside
    for name, word in (("lib", instead), ("variant", np.nan), (_COLUMN, np.nan)):
        if name in frame and strange.any():
            frame = frame.assign(**{name: frame[name].astype(object).where(~strange, word)})
    return frame, strange, times


def _like(name: str) -> _Library | None:
    """By a word that begins or ends one of a name's: OpenMPI is an MPI, `compiled` is none."""
    return next(
        (
            one
            for one in _libraries()
            if any(re.search(rf"\b{word}|{word}\b", name) for word in one.words)
        ),
        None,
    )


@functools.cache
def _libraries() -> tuple[_Library, ...]:
    rows = shipped_toml(__package__, "libraries.toml")["library"]
    return tuple(_Library(**{**row, "words": tuple(row["words"])}) for row in rows)


def _nearest(version: str, known: Sequence[str]) -> str:
    """By the first number that differs, then the next; a version that has none stays."""

    def numbers(of: str) -> list[int]:
        return [int(digits) for digits in re.findall(r"\d+", of)]

    def apart(other: str) -> list[int]:
        both = itertools.zip_longest(numbers(version), numbers(other), fillvalue=0)
        return [abs(one - two) for one, two in both]

    if version in known or not known or not numbers(version):
        return version
    return min(known, key=apart)
