"""A small network for each type of link on the trunk that all share: what NVLink, PCIe, bridged
pairs and networks between nodes each do that the common network does not know.

    f_link(x) = f(x) + g_link(x),    g_link learned from what f leaves on systems it did not see

Staged, so that it cannot take from the trunk: a trunk for each system of the prior left out says
what it misses there (r - f), and g is learned from that. It is on for a link where systems left out
of g, too, are predicted better with it, each counting alike, and off elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hybridperf.collectives.rows import CollectiveRows
from hybridperf.collectives.widths import links_of
from hybridperf.learning.ensemble import BOUND, evaluate, outputs
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.family import MEMBERS, unbounded
from hybridperf.learning.training import TrainingRecipe, train
from hybridperf_calibration.ship.link_prior import own_knobs

_ROWS = 2000  # of a system
_TRUNK = TrainingRecipe(steps=1500, batch=512)
_LINK = TrainingRecipe(steps=600, batch=256, width=8)
_LEAST_GAIN = 0.02  # of the error: less is chance
_LEAST_SYSTEMS = 2  # of a link: one leaves none to be left out


class LinkChoice(NamedTuple):
    """What a link's network brings on systems left out of it and of the trunk."""

    link: str
    systems: int
    without: float  # mean over systems of the mean |r - f|
    with_own: float  # the same of |r - f - g|
    is_on: bool


@dataclasses.dataclass(frozen=True)
class LinkedPrior(FamilyPrior):
    """A prior whose types of links have networks of their own."""

    links: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def trunk(self, rows: Any, on: Any, params: Any = None) -> tuple[Any, Any, Any]:
        """As the common one, and what the row's link adds."""
        x, output, apart = super().trunk(rows, on, params)
        output, link, fade = np.array(output), links_of(rows), self.sizes.fade(rows.inputs)
        for name, own in self.links.items():
            at = link == name
            if at.any():
                output[at] += fade[at] * unbounded(evaluate(own, [x[at]])[0])
        return x, output, apart


def with_link_networks(
    prior: FamilyPrior, systems: Mapping[str, tuple[CollectiveRows, np.ndarray]], seed: int = 0,
    every: bool = False,
) -> tuple[FamilyPrior, list[LinkChoice]]:  # fmt: skip
    """A prior with networks of links that earn one, and what each brings on systems left out.

    Args:
        prior: of the `systems`.
        systems: rows and seconds [N] of each.
        seed: of rows and training.
        every: whether networks that do not earn it count, too.
    """
    random, x, target, links = np.random.default_rng(seed), [], [], []
    knobs = own_knobs(prior)
    for name, (rows, time_s) in sorted(systems.items()):
        some = np.sort(random.permutation(len(rows))[:_ROWS])
        part = rows.rows(some)
        on = knobs[name].including(prior.population, part.implementation).closed(part)
        x.append(prior.standard.inputs(part, on))
        target.append(np.log(time_s[some]) - on.total)
        links.append(links_of(part))
    others = ~np.eye(len(x), dtype=bool)
    inner = train(list(zip(x, target, strict=True)), others, _TRUNK, seed)
    said = [outputs(inner, one, BOUND)[at] for at, one in enumerate(x)]
    left = [wanted - f for wanted, f in zip(target, said, strict=True)]
    choices, own = [], {}
    for link in sorted(set(np.concatenate(links))):
        at = [i for i, of in enumerate(links) if (of == link).sum() >= MEMBERS]
        if len(at) < _LEAST_SYSTEMS:
            continue
        data = [(x[i][links[i] == link], left[i][links[i] == link]) for i in at]
        params = train(data, ~np.eye(len(at), dtype=bool), _LINK, seed)
        errors = []
        for place, (inputs, rest) in enumerate(data):
            added = outputs(params, inputs, BOUND)[place]
            errors.append((np.abs(rest).mean(), np.abs(rest - added).mean()))
        without, with_own = np.mean(errors, 0)
        is_on = bool(with_own < (1 - _LEAST_GAIN) * without)
        choices.append(LinkChoice(str(link), len(at), float(without), float(with_own), is_on))
        if is_on or every:
            own[str(link)] = params
    if not own:
        return prior, choices
    fields = {field.name: getattr(prior, field.name) for field in dataclasses.fields(FamilyPrior)}
    return LinkedPrior(**fields, links=own), choices
