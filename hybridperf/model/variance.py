"""How far off the log of a time may be: components of its variance, who shares each, and the one
interval that comes of them.

    log t ~ N(log t0, V),    V = sum over components c of (a_c d_c)^2

d_c is the deviation of a component, estimated by leaving its kind out whole; a_c is how much the
log of t moves for it. A component is drawn once for all that shares it:

    op       each different op by itself: how ops of a family scatter around what is said of it
    family   a family of ops on this device, all its ops together
    class    what other devices show of ops that this one has not measured: all of these together;
             lookups, which go by other devices' caches, by themselves
    links    collectives of a kind
    given    seconds that are believed
    machine  its state, at calibration and now: all its ops
    step     step effects and blocks (`adapted_steps.py`), whose families are a step's own, and what
             rows of one source have in common

Slopes are those of the predicted step: of a graph the counts of its critical path, of the closed
form of tables and plans differences, of unlike ranks the joined graph's path. Chosen beside others:

                                     12 sources of steps      99 programs on an H100 and an H200
                                     inside     score         inside     score
    slopes here                      96 %       0.70          93 %       0.96
    with each op's own scatter (61)                           93 %       0.90
    slopes over one deviation        96 %       0.71          95 %       0.96
    the same, up and down apart      96 %       0.71          91 %       0.99
    256 draws through the graph (61)                          93 %       1.01

score: of 90 % intervals, in logs, less is better (Gneiting and Raftery 2007); sources count alike,
no row of theirs given. (61): without 38 published architectures.

Axes: U calls, C components, N steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from hybridperf.io.numbers import NINE_OF_TEN

# deviation in logs between frameworks, where a row names one that is not known and the mean over
# others is priced: twelve that published steps on clusters, each priced as a stranger (0.12), and
# the tails of hand-written ones (0.20)
FOREIGN = 0.145
LIKELY_STALL = 0.05  # share of runs from which on an interval reaches to one that stalls


@dataclasses.dataclass(frozen=True)
class Components:
    """Deviations of the logs of calls' seconds; NaN where nothing is known of a call."""

    own: np.ndarray  # [U] of each by itself
    shared: np.ndarray  # [C, U] of each by what it has in common with others; 0: nothing
    names: tuple[str, ...]  # of what is shared, "kind: which" [C]

    @staticmethod
    def of(deviation: np.ndarray, own: np.ndarray, shares: Sequence[str]) -> Components:
        """Of calls that share one component each, or none.

        Args:
            deviation: of all components together [U].
            own: of that, each call's by itself [U].
            shares: name of what each shares the rest with; "": with none, all is its own [U].
        """
        names = tuple(dict.fromkeys(filter(None, shares)))
        rest = np.sqrt(np.maximum(deviation**2 - own**2, 0.0))
        alone = np.array([not name for name in shares], bool)
        shared = np.zeros((len(names), len(deviation)))
        at = np.flatnonzero(~alone)
        shared[[names.index(shares[one]) for one in at.tolist()], at] = rest[at]
        return Components(np.where(alone, deviation, own), shared, names)

    @staticmethod
    def placed(count: int, parts: Iterable[tuple[Sequence[int], Components]]) -> Components:
        """Of so many calls, from those of some with the places that they take; others are sure."""
        own, shared = np.zeros(count), dict[str, np.ndarray]()
        for at, part in parts:
            own[list(at)] = part.own
            for name, deviations in zip(part.names, part.shared, strict=True):
                shared.setdefault(name, np.zeros(count))[list(at)] = deviations
        return Components(own, np.array([*shared.values()]).reshape(-1, count), tuple(shared))

    def but(self, kind: str) -> Components:
        """Those of one kind as they are, all others as each call's own: what calls of a family have
        in common in a training step is said by its step effects.
        """
        keep = np.array([name.partition(":")[0] == kind for name in self.names], bool)
        own = np.sqrt(self.own**2 + (self.shared[~keep] ** 2).sum(0))
        names = tuple(name for name, kept in zip(self.names, keep, strict=True) if kept)
        return Components(own, self.shared[keep], names)

    def variance(self, by_call: np.ndarray) -> float:
        """Of the log of what takes calls, by how much each call's log moves it [U]; what is not
        known counts as 0.
        """
        together = np.nan_to_num(self.shared) @ by_call
        return float((together**2).sum() + ((np.nan_to_num(self.own) * by_call) ** 2).sum())

    @property
    def deviation(self) -> np.ndarray:
        """Of the log of each call's seconds by itself [U]."""
        return np.sqrt(self.own**2 + (self.shared**2).sum(0))


def ends(
    time_s: np.ndarray, deviation: np.ndarray, longer: np.ndarray | float = 0.0,
    least_s: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Low and high seconds of a 90 % interval [N].

    Args:
        time_s: predicted seconds [N].
        deviation: of their log [N].
        longer: by how much more, in logs, they may be longer in nine of ten cases [N]: what only
            lengthens (`beyond_by_stalls`).
        least_s: seconds that nothing goes below [N].
    """
    half = NINE_OF_TEN * np.asarray(deviation)
    low_s = np.maximum(time_s * np.exp(-half), np.minimum(least_s, time_s))
    return low_s, time_s * np.exp(np.hypot(half, longer))


def beyond_by_stalls(
    stall_chance: np.ndarray | float, stalled_s: np.ndarray | float, time_s: np.ndarray,
    deviation: np.ndarray | float = 0.0,
) -> np.ndarray:  # fmt: skip
    """Log of what one step in twenty exceeds, over the expected seconds [N], where more than that
    stall, else 0: a share of 0.05 / chance of stalled steps, which are as unsure as others are.
    """
    chance = np.maximum(np.asarray(stall_chance), LIKELY_STALL)
    if (chance == LIKELY_STALL).all():
        return np.asarray(0.0 * time_s)
    from scipy.special import ndtri  # which most tables do without

    beyond = np.log1p(stalled_s / time_s)
    beyond = beyond + ndtri(1.0 - LIKELY_STALL / chance).clip(-1.0, None) * deviation
    return np.where(chance > LIKELY_STALL, np.maximum(beyond, 0.0), 0.0)
