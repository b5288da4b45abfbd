"""The prior over systems of links, trained; and how wide its intervals are for unmeasured ones.

Each system of a prior is predicted by the knobs of the others; a link's width is the least that
holds 90 % of its rows, all systems counting alike (`hybridperf.collectives.widths` says of which
rows, and how widths are used). Widths are logs of seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.collectives import widths
from hybridperf.collectives.fit import (
    FAMILY,
    architecture_and_link,
    fit_collectives,
    references_of,
    usable_rows,
)
from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.rows import CollectiveRows, collective_rows
from hybridperf.hardware import SystemSpec, load_system
from hybridperf.learning.prior import FamilyPrior, train_family
from hybridperf.learning.prior.family import NOMINAL
from hybridperf.learning.prior.knobs import ImplementationKnobs, population
from hybridperf.learning.prior.shipped import Prior

# that a system's own rows are pulled to where they are few; the prior's worst-off system needed
# 8.9, and six systems left out had 97 % in their intervals with that, 91 % with this
_MOST_DEVIATIONS = 3.0
_LEAST_TRAINING_ROWS = 100  # the prior learns knobs alone of systems with fewer rows
_MOST_ROWS = 2000  # of a system: more say no more


def train_prior(systems: Mapping[str, pd.DataFrame], seed: int = 0) -> FamilyPrior:
    """The prior over systems, from the measured rows of each by name."""
    specs = {name: load_system(name) for name in systems}
    parts = {name: priced_rows(systems[name], spec) for name, spec in specs.items()}
    kinds = {
        name: f"{joined} {spec.share_bytes_per_s:.3g}"
        for name, spec in specs.items()
        if (joined := architecture_and_link(spec))
    }
    prior = train_family(parts, seed, architectures=kinds, least_rows=_LEAST_TRAINING_ROWS)
    prior = dataclasses.replace(prior, quantile=min(prior.quantile, _MOST_DEVIATIONS))
    return dataclasses.replace(prior, log_widths=by_link(prior, parts))


def with_reference_width(prior: FamilyPrior, few: Mapping[str, pd.DataFrame]) -> FamilyPrior:
    """With the width of intervals for systems that have references in the prior but no rows.

    Few of the prior's own systems are references of each other, so the rows of others, by name,
    tell it: how far off they are where none of them is given.
    """
    errors = []
    for name, frame in few.items():
        system = load_system(name)
        rows, time_s = priced_rows(frame, system)
        known = prior.with_references(references_of(system, prior.population.devices))
        if known is not prior and (met := widths.referred(known, rows)).any():
            model = fit_collectives(None, system, Prior({FAMILY: prior}, {}))[0]
            said = model.predict(usable_rows(frame, system)[0])["predicted_s"].to_numpy()
            errors.append(np.abs(np.log(said / time_s))[met])
    width = held(errors) if errors else prior.reference_log_width
    return dataclasses.replace(prior, reference_log_width=width)


def priced_rows(frame: pd.DataFrame, system: SystemSpec) -> tuple[CollectiveRows, np.ndarray]:
    """(usable rows of a table as fits see them, their seconds [N])."""
    usable, _ = usable_rows(frame, system)
    return collective_rows(usable, system.racked()), usable["time_s"].to_numpy(np.float64)


def by_link(
    prior: FamilyPrior, systems: Mapping[str, tuple[CollectiveRows, np.ndarray]]
) -> dict[str, float]:
    """Half-widths by link, of links that datasheets tell in two parts (`widths`), from the rows and
    seconds [N] of each of a prior's systems. Rows of collectives and libraries that no other system
    has on that link count where it has no others.
    """
    known = own_knobs(prior)
    met, any_ = dict[str, list[np.ndarray]](), dict[str, list[np.ndarray]]()
    if len(known) < 2:
        return {}
    random = np.random.default_rng(0)
    for name, (rows, time_s) in sorted(systems.items()):
        some = np.sort(random.permutation(len(rows))[:_MOST_ROWS])
        rows, time_s = rows.rows(some), time_s[some]
        others = population(ALPHA_BETA, {one: of for one, of in known.items() if one != name})
        closed = others.typical().including(others, rows.implementation).closed(rows)
        off, links = np.abs(closed.total - np.log(time_s)), widths.links_of(rows)
        there = rows.among(others.implementations) | np.isin(links, widths.ANYONES)
        carried = closed.position[:, ALPHA_BETA.position.index("bytes_over_fixed")] > 0
        for link in map(str, np.unique(links)):
            parts = {link: carried, widths.fixed_of(link): ~carried}
            if link in widths.ANYONES:
                parts = {link: np.ones(len(rows), bool)}
            for word, mine in parts.items():
                mine = mine & (links == link)
                for errors, which in ((any_, mine), (met, mine & there)):
                    if which.any():
                        errors.setdefault(word, []).append(off[which])
    return {word: held(met.get(word, off)) for word, off in any_.items()}


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
