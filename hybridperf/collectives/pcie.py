"""A box on PCIe that nobody measured: latencies of a measured one, bandwidths of nobody's.

What a library waits for on PCIe (launches, flags, hops) is its own and the bus's: another box tells
it. What the links carry is the host's doing (switches, sockets, host memory), so efficiency and its
decay with ranks stay what is usual over all systems.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hybridperf.collectives.form import ALPHA_BETA
from hybridperf.collectives.traffic import link_of
from hybridperf.hardware import SystemSpec, load_system
from hybridperf.learning.prior import FamilyPrior

_CARRIED = ("intra_efficiency", "inter_efficiency", "rank_decay")
_LINK = "pcie"


def with_latencies(prior: FamilyPrior, system: SystemSpec) -> tuple[FamilyPrior, list[str]]:
    """(a prior whose measured box keeps its latencies alone, the names of such boxes: one or none).

    Of the prior's boxes on PCIe the one that was measured in most ways counts. The prior as it is
    for a system on another link.
    """
    usual = prior.population
    if link_of(system) != _LINK:
        return prior, []
    boxes = [at for at, name in enumerate(usual.devices) if link_of(load_system(name)) == _LINK]
    if not boxes:
        return prior, []
    ways = [np.isfinite(usual.own[at, :, 0]).sum() for at in boxes]
    box, own = boxes[int(np.argmax(ways))], usual.own.copy()
    carried = [ALPHA_BETA.knobs.index(name) for name in _CARRIED]
    own[box][:, carried] = np.where(
        np.isfinite(own[box][:, carried]), usual.mean_of(usual.implementations)[:, carried], np.nan
    )
    population = dataclasses.replace(usual, own=own)
    return dataclasses.replace(prior, population=population), [usual.devices[box]]
