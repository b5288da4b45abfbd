"""Closed forms whose knobs a prior learns: the interface, and the roofline with waves, the form
of ops on a GPU.

    t0   = floor + body
    body = ( (F / (e_P P))^p + (B / (e_B BW))^p + (tau W)^p )^(1/p)

F, B: flops and bytes of the op; P, BW: the datasheet's peaks; W: waves, thread blocks per SM. Five
knobs per device and implementation, kept as logs: floor (s), e_P and e_B (shares of the peaks),
p - 1 (how sharp the roof's corner is), tau (s, one wave's latency). It is monotone in F, B and W
for any knobs.

Axes: N rows, K knobs. NumPy with derivatives by hand: a fit takes milliseconds and nothing to
compile. `closed` may be traced by JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hybridperf.io.namespace import array_module


@dataclasses.dataclass(frozen=True)
class ClosedFormValues:
    """What a closed form predicts of some rows."""

    total: Any  # [N] log of seconds
    # [N, len(form.position)] where the rows stand on it: what a network may know of their place
    position: Any


class ClosedForm(Protocol):
    """A closed form with K knobs per device and implementation, all kept as logs."""

    @property
    def knobs(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def position(self) -> tuple[str, ...]:
        """Names of what `closed` tells of a row's place."""

    @property
    def apart(self) -> int | None:
        """Which word tells implementations whose knobs move apart, such as a link; or None."""

    @property
    def start(self) -> np.ndarray:
        """[K] where a device with rows enough begins."""

    @property
    def start_spread(self) -> np.ndarray:
        """[K] and how far it may go."""

    @property
    def least_spread(self) -> np.ndarray:
        """[K] over devices, however well a few of them agree."""

    @property
    def known_spread(self) -> Mapping[str, float]:
        """Over devices, of knobs whose spread measurements do not tell."""

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        """[N] logs of seconds at knobs theta [N, K] (or [K])."""

    def jacobian(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        """d log_s / d theta [N, K]."""

    def closed(self, theta: np.ndarray, work: Any) -> ClosedFormValues:
        """Seconds and place."""


# logs of ratios of times end here: a term that is absent is not a thousand octaves away
_FAR = 12.0


class WaveRoofline:
    """The roofline with waves; `work` [N, 3]: logs of arithmetic s, traffic s and waves."""

    knobs = ("floor_s", "compute_efficiency", "memory_efficiency", "sharpness", "wave_s")
    position = (
        "compute_over_memory", "compute_bound", "body_over_floor", "compute_over_floor",
        "memory_over_floor", "total_over_floor", "above_floor", "waves_over_floor",
        "waves_over_total",
    )  # fmt: skip
    apart: int | None = None
    start = np.log([5e-6, 0.6, 0.7, 2.0, 0.5e-6])  # sharpness is p - 1
    start_spread = np.array([1.5, 0.5, 0.5, 0.5, 1.5])
    # three devices that happen to agree do not make a law
    least_spread = np.array([0.15, 0.1, 0.1, 0.1, 0.2])
    # few rows say little of the corner, and it trades against the efficiencies
    known_spread: Mapping[str, float] = {"sharpness": 0.1}

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        terms, sharpness = _terms(theta, work)
        return np.asarray(np.logaddexp(theta[..., 0], _log_norm(terms, sharpness)))

    def jacobian(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        terms, sharpness = _terms(theta, work)
        body = _log_norm(terms, sharpness)
        # of each term in body^p; sums to 1
        share = np.exp(sharpness[:, None] * (terms - body[:, None]))
        of_body = 1.0 / (1.0 + np.exp(np.clip(theta[..., 0] - body, -700, 700)))
        corner = ((share * terms).sum(1) - body) / sharpness * (sharpness - 1.0)
        compute, memory, waves = of_body * share.T
        return np.stack([1.0 - of_body, -compute, -memory, of_body * corner, waves], 1)

    def closed(self, theta: np.ndarray, work: Any) -> ClosedFormValues:
        module = array_module(work)
        terms, sharpness = _terms(theta, work)
        body = _log_norm(terms, sharpness)
        floor = np.broadcast_to(theta[..., 0], body.shape)
        total = module.logaddexp(floor, body)
        compute, memory, waves = terms.T
        over_floor = [one - floor for one in (body, compute, memory, total, waves)]
        ratios = module.stack([compute - memory, *over_floor, waves - total]).clip(-_FAR, _FAR)
        balance, above, compute, memory, high, waves, of_waves = ratios
        above_floor = 1 / (1 + module.exp(-above))
        place = [balance, module.tanh(balance), above, compute, memory, high, above_floor]
        return ClosedFormValues(total, module.stack([*place, waves, of_waves], 1))


def _terms(theta: np.ndarray, work: Any) -> tuple[Any, np.ndarray]:
    terms = array_module(work).stack(
        [work[:, 0] - theta[..., 1], work[:, 1] - theta[..., 2], work[:, 2] + theta[..., 4]], 1
    )
    return terms, np.broadcast_to(1.0 + np.exp(theta[..., 3]), terms.shape[:1])


def _log_norm(terms: Any, sharpness: np.ndarray) -> Any:
    module, largest = array_module(terms), terms.max(1)
    powers = module.exp(sharpness[:, None] * (terms - largest[:, None]))
    return largest + module.log(powers.sum(1)) / sharpness


WAVE_ROOFLINE = WaveRoofline()
