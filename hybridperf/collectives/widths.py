"""How far off a system is of which nothing was measured: half-widths of 90 % intervals, by link.

Each system of a prior is predicted by the knobs of the others; a link's width is the least that
holds 90 % of its rows, all systems counting alike. Where a reference system has the same collective
and library, its own knobs are taken over, and systems that have such references tell how far that
carries. Where none is known, it is half of the link's width, as knobs keep within half of the
spread over systems then (`learning.prior.knobs`).

Widths are logs of seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.rows import CollectiveRows
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.family import NOMINAL
from hybridperf.learning.prior.implementation import CollectiveImplementation
from hybridperf.learning.prior.knobs import ImplementationKnobs, population

_ANYONES = ("network", "pcie")  # datasheets do not tell what these carry
_OF_REFERENCES = 0.5
_MOST_ROWS = 2000  # of a system: more say no more


def by_link(
    prior: FamilyPrior, systems: Mapping[str, tuple[CollectiveRows, np.ndarray]]
) -> dict[str, float]:
    """Half-widths by link, from the rows and seconds [N] of each of a prior's systems."""
    known, errors = own_knobs(prior), dict[str, list[np.ndarray]]()
    if len(known) < 2:
        return {}
    random = np.random.default_rng(0)
    for name, (rows, time_s) in sorted(systems.items()):
        some = np.sort(random.permutation(len(rows))[:_MOST_ROWS])
        rows, time_s = rows.rows(some), time_s[some]
        others = population(ALPHA_BETA, {one: of for one, of in known.items() if one != name})
        knobs = others.typical().including(others, rows.implementation)
        off = np.abs(knobs.closed(rows).total - np.log(time_s))
        links = links_of(rows)
        for link in np.unique(links):
            errors.setdefault(str(link), []).append(off[links == link])
    return {link: held(off) for link, off in errors.items()}


def own_knobs(prior: FamilyPrior) -> dict[str, ImplementationKnobs]:
    """Knobs of each of a prior's systems."""
    usual = prior.population
    return {
        name: ImplementationKnobs(
            tuple(np.array(usual.implementations)[there]), own[there], own[there].mean(0)
        )
        for name, own in zip(usual.devices, usual.own, strict=True)
        for there in [np.isfinite(own[:, 0])]
    }


def held(errors: Sequence[np.ndarray]) -> float:
    """The least width that holds 90 % of absolute errors, each array [any] counting alike."""
    every = np.concatenate(errors)
    weight = np.concatenate([np.full(len(one), 1 / (len(one) * len(errors))) for one in errors])
    order = np.argsort(every)
    at = int(np.searchsorted(np.cumsum(weight[order]), NOMINAL - 1e-9))
    return float(every[order][min(at, len(every) - 1)])


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
