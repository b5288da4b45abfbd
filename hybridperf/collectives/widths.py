"""How far off a system is of which nothing was measured: half-widths of 90 % intervals, by link.

Each system of a prior is predicted by the knobs of the others; a link's width is the least that
holds 90 % of its rows, all systems counting alike. Where a reference system has the same collective
and library, its own knobs are taken over, and systems that have such references tell how far that
carries. Where none is known, it is half of the link's width, as knobs keep within half of the
spread over systems then (`learning.prior.knobs`).

Widths are logs of seconds.
"""

from __future__ import annotations

import numpy as np

from hybridperf.collectives.rows import CollectiveRows
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.implementation import CollectiveImplementation

_ANYONES = ("network", "pcie")  # datasheets do not tell what these carry
_OF_REFERENCES = 0.5


def unmeasured(prior: FamilyPrior, rows: CollectiveRows) -> np.ndarray:
    """[N] half-widths for rows of a system of which nothing like them was measured."""
    usual = of_links(prior, rows)
    if not prior.log_widths or not prior.population.references:
        return usual
    shared = prior.reference_log_width
    theirs = usual * _OF_REFERENCES if shared is None else np.minimum(usual, shared)
    return np.where(referred(prior, rows), theirs, usual)


def of_links(prior: FamilyPrior, rows: CollectiveRows) -> np.ndarray:
    """[N] half-widths that the rows' links have on systems of which nothing was measured."""
    if not prior.log_widths:  # of an older file
        return np.full(len(rows), prior.log_width)
    widest = max(prior.log_widths.values())
    return np.array([prior.log_widths.get(link, widest) for link in links_of(rows)])


def referred(prior: FamilyPrior, rows: CollectiveRows) -> np.ndarray:
    """Whether a reference of the prior vouches for each row [N]: it has knobs for it, and the link
    is none whose host or network decides what it carries.
    """
    usual = prior.population
    own = usual.own[[usual.devices.index(name) for name in usual.references]]
    there = np.isfinite(own[..., 0]).any(0)
    has = rows.among(np.array(usual.implementations, object)[there])
    return has & ~np.isin(links_of(rows), _ANYONES)


def links_of(rows: CollectiveRows) -> np.ndarray:
    """[N] the link of each row, as words."""
    return np.array([CollectiveImplementation.parse(group).link for group in rows.group], object)
