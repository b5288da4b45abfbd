"""How far off a system is of which nothing was measured: half-widths of 90 % intervals, by link.

Each system of a prior is predicted by the knobs of the others; a link's width is the least that
holds 90 % of its rows, all systems counting alike. On links that datasheets tell, what is fixed
(launches, steps) is less known than what bytes take: each part has a width of its own, of rows in
which it is the larger one, and a row has both in proportion. Where a reference system has the same
collective and library, its own knobs are taken over, and systems that have such references tell how
far that carries; no nearer than half of the link's width, as knobs keep within half of the spread
over systems then (`learning.prior.knobs`).

Widths are logs of seconds. C kinds of collectives, G sizes; `share` [C, G] is what bytes take of
the closed form's seconds.
"""

from __future__ import annotations

import numpy as np

from hybridperf.collectives.rows import CollectiveRows
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.implementation import CollectiveImplementation

ANYONES = ("network", "pcie")  # datasheets do not tell what these carry
_OF_REFERENCES = 0.5


def unmeasured(
    prior: FamilyPrior, rows: CollectiveRows, share: np.ndarray, own_fabric: bool
) -> np.ndarray:
    """[C, G] half-widths for rows of a system of which nothing like them was measured."""
    usual = of_links(prior, rows, share, own_fabric)
    if not prior.log_widths or not prior.population.references:
        return usual
    theirs = np.maximum(usual * _OF_REFERENCES, prior.reference_log_width or 0.0)
    return np.where(referred(prior, rows)[:, None], np.minimum(usual, theirs), usual)


def of_links(
    prior: FamilyPrior, rows: CollectiveRows, share: np.ndarray, own_fabric: bool
) -> np.ndarray:
    """[C, G] half-widths that the rows' links have on systems of which nothing was measured.

    `own_fabric`: a node's links are of a kind that nobody measured, as badly known as the worst of
    those that were.
    """
    known = prior.log_widths
    if not known:  # of an older file
        return np.full(share.shape, prior.log_width)
    widest = max(known.values())
    bytes_ = np.array([known.get(link, widest) for link in links_of(rows)])
    fixed = np.array(
        [known.get(fixed_of(link), known.get(link, widest)) for link in links_of(rows)]
    )
    found = mixed(fixed[:, None], bytes_[:, None], share)
    strange = own_fabric & (links_of(rows) != "network")
    return np.where(strange[:, None], widest, found)


def fixed_of(link: str) -> str:
    """The word of a link's width for what is fixed."""
    return f"{link}, fixed"


def mixed(fixed: np.ndarray, bytes_: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Half-widths of collectives of which bytes take this share of the time."""
    return np.asarray((1 - share) * fixed + share * bytes_)


def referred(prior: FamilyPrior, rows: CollectiveRows) -> np.ndarray:
    """Whether a reference of the prior vouches for each row [N]: it has knobs for it, and the link
    is none whose host or network decides what it carries.
    """
    usual = prior.population
    own = usual.own[[usual.devices.index(name) for name in usual.references]]
    there = np.isfinite(own[..., 0]).any(0)
    has = rows.among(np.array(usual.implementations, object)[there])
    return has & ~np.isin(links_of(rows), ANYONES)


def links_of(rows: CollectiveRows) -> np.ndarray:
    """[N] the link of each row, as words."""
    return np.array([CollectiveImplementation.parse(group).link for group in rows.group], object)
