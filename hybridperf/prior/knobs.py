"""The closed form of a family on a GPU, and its knobs: what prior devices say of them, and what a few rows of a new one add.

    t0   = floor + body
    body = ( (F / (e_P P))^p + (B / (e_B BW))^p + (tau W)^p )^(1/p)

F, B: flops and bytes of the op; P, BW: the datasheet's peaks; W: waves, thread blocks per SM. Five knobs per device and slot, kept as
logs: floor (s), e_P and e_B (shares of the peaks), p - 1 (how sharp the roof's corner is), tau (s, one wave's latency).

Over devices, knobs of a slot g scatter around mu_g with spread s. A new device has

    theta_g = mu_g + d + d_g,    d, d_g ~ N(0, s^2)

with d shared by all its slots, so rows of one implementation say something of the others. All fits are maximum a posteriori with a
pseudo-Huber loss in the log of time. The form is monotone in F, B and W for any theta.

Axes: N rows, K = 5 knobs. NumPy with derivatives by hand: a fit takes milliseconds and nothing to compile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from hybridperf.prior.rows import FamilyRows
from hybridperf.robust import huber_data_only

KNOBS = ("floor_s", "compute_efficiency", "memory_efficiency", "sharpness", "wave_s")
_START = np.log([5e-6, 0.6, 0.7, 2.0, 0.5e-6])  # sharpness is p - 1
_START_SPREAD = np.array([1.5, 0.5, 0.5, 0.5, 1.5])
_LEAST_SPREAD = np.array([0.15, 0.1, 0.1, 0.1, 0.2])  # three devices that happen to agree do not make a law
_KIN_SPREAD = 0.5  # of the spread over all devices: few rows of H200 no longer spoil what H100 says of it
_SHARPNESS_SPREAD = 0.1  # few rows say little of the corner, and it trades against the efficiencies
_PRIOR_LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly where rows are plenty
_NEW_LOSS_SCALE = 0.25  # a new device's few rows err together: what the closed form misses is shared by neighbours
_MOST_ROWS = 6000  # five knobs need no more


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Logs of the seconds of the closed form's parts, [N] each."""

    floor: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    waves: np.ndarray
    body: np.ndarray
    total: np.ndarray


def roofline(theta: np.ndarray, log_work: np.ndarray) -> Roofline:
    """The closed form at knobs theta [N, K] (or [K]) for log_work [N, 3]."""
    terms, sharpness = _terms(theta, log_work)
    body = _log_norm(terms, sharpness)
    floor = np.broadcast_to(theta[..., 0], body.shape)
    return Roofline(floor, terms[:, 0], terms[:, 1], terms[:, 2], body, np.logaddexp(floor, body))


def _terms(theta: np.ndarray, log_work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    terms = np.stack(
        [log_work[:, 0] - theta[..., 1], log_work[:, 1] - theta[..., 2], log_work[:, 2] + theta[..., 4]], 1
    )  # fmt: skip
    return terms, np.broadcast_to(1.0 + np.exp(theta[..., 3]), terms.shape[:1])


def _log_norm(terms: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    largest = terms.max(1)
    return largest + np.log(np.exp(sharpness[:, None] * (terms - largest[:, None])).sum(1)) / sharpness


def jacobian(theta: np.ndarray, log_work: np.ndarray) -> np.ndarray:
    """d log t0 / d theta [N, K]."""
    terms, sharpness = _terms(theta, log_work)
    body = _log_norm(terms, sharpness)
    share = np.exp(sharpness[:, None] * (terms - body[:, None]))  # of each term in body^p; sums to 1
    of_body = 1.0 / (1.0 + np.exp(np.clip(theta[..., 0] - body, -700, 700)))
    corner = ((share * terms).sum(1) - body) / sharpness * (sharpness - 1.0)
    return np.stack([1.0 - of_body, -of_body * share[:, 0], -of_body * share[:, 1], of_body * corner, of_body * share[:, 2]], 1)


@dataclasses.dataclass(frozen=True)
class SlotKnobs:
    """Knobs of one device, by slot; `other` serves slots it does not name."""

    slots: tuple[str, ...]
    theta: np.ndarray  # [len(slots), K]
    other: np.ndarray  # [K]

    def of(self, slot: np.ndarray) -> np.ndarray:
        """[N, K] for slots [N]."""
        table = np.concatenate([self.theta, self.other[None]])
        return table[positions(slot, self.slots)]

    def roofline(self, rows: FamilyRows) -> Roofline:
        return roofline(self.of(rows.slot), rows.log_work())


def positions(slot: np.ndarray, slots: Sequence[str]) -> np.ndarray:
    """Where each of `slot` [N] stands in `slots`; len(slots) if nowhere."""
    at = {name: i for i, name in enumerate(slots)}
    found, inverse = np.unique(slot.astype(str), return_inverse=True)
    return np.array([at.get(str(name), len(slots)) for name in found], int)[inverse]


@dataclasses.dataclass(frozen=True)
class Population:
    """What knobs of a family usually are: a mean per slot, one for slots never seen, and how devices scatter around them. D devices."""

    slots: tuple[str, ...]
    mean: np.ndarray  # [len(slots), K]
    other: np.ndarray  # [K]
    spread: np.ndarray  # [K]
    devices: tuple[str, ...]
    own: np.ndarray  # [D, len(slots), K] knobs of each device; not a number where it was not measured

    def among(self, kin: Sequence[str]) -> Population:
        """With the means of some devices where these were measured: what a device of their kind starts from."""
        if not kin:
            return self
        of_kin = self.own[[self.devices.index(name) for name in kin]]
        met = np.isfinite(of_kin[..., 0]).any(0)
        mean = self.mean.copy()
        mean[met] = np.nanmean(of_kin[:, met], 0)
        return dataclasses.replace(self, mean=mean, other=mean[met].mean(0), spread=_KIN_SPREAD * self.spread)

    def typical(self) -> SlotKnobs:
        """Knobs of a device of which nothing was measured."""
        return SlotKnobs(self.slots, self.mean, self.other)


def fit_each_slot(rows: FamilyRows, time_s: np.ndarray) -> SlotKnobs:
    """Knobs of one prior device, each slot on its own: it has rows enough."""
    log_work, log_time = rows.log_work(), np.log(time_s)
    slots = tuple(sorted(set(rows.slot.astype(str))))
    theta = []
    for slot in slots:
        at = np.flatnonzero(rows.slot == slot)
        at = at[_spread_out(log_time[at], _MOST_ROWS)]
        found, _ = _map_fit(_START[None], np.zeros(len(at), int), log_work[at], log_time[at], _START_SPREAD, _PRIOR_LOSS_SCALE)
        theta.append(found[0])
    return SlotKnobs(slots, np.stack(theta), np.mean(theta, 0))


def population(devices: Mapping[str, SlotKnobs]) -> Population:
    """Mean and spread over devices."""
    slots = tuple(sorted({slot for knobs in devices.values() for slot in knobs.slots}))
    mean = np.stack([np.mean([k.theta[k.slots.index(slot)] for k in devices.values() if slot in k.slots], 0) for slot in slots])
    apart = np.concatenate([k.theta - mean[[slots.index(slot) for slot in k.slots]] for k in devices.values()])
    spread = np.sqrt((apart**2).mean(0) + _LEAST_SPREAD**2)
    spread[KNOBS.index("sharpness")] = _SHARPNESS_SPREAD
    own = np.full((len(devices), *mean.shape), np.nan)
    for i, knobs in enumerate(devices.values()):
        own[i, [slots.index(slot) for slot in knobs.slots]] = knobs.theta
    return Population(slots, mean, mean.mean(0), spread, tuple(devices), own)


def fit_new(prior: Population, rows: FamilyRows, time_s: np.ndarray) -> SlotKnobs:
    """Knobs of a new device from a few rows: a deviation of the device and one of each slot, both pulled to zero."""
    log_time = np.log(time_s)
    keep = _spread_out(log_time, _MOST_ROWS)
    rows, log_time = rows.rows(keep), log_time[keep]
    slots = tuple(sorted({*prior.slots, *rows.slot.astype(str)}))
    mean = np.stack([prior.mean[prior.slots.index(slot)] if slot in prior.slots else prior.other for slot in slots])
    theta, device = _map_fit(mean, positions(rows.slot, slots), rows.log_work(), log_time, prior.spread, _NEW_LOSS_SCALE, by_slot=True)
    return SlotKnobs(slots, theta, prior.other + device)


def _map_fit(
    mean: np.ndarray, slot: np.ndarray, log_work: np.ndarray, log_time: np.ndarray, spread: np.ndarray, scale: float, by_slot: bool = False
) -> Any:
    """(theta [slots, K], device deviation [K]) of rows of slots [N]; without `by_slot` theta [1, K] has the device's deviation alone."""
    slots, knobs = mean.shape
    here = np.unique(slot) if by_slot else np.zeros(0, int)  # a slot without rows has no deviation to find
    columns = np.full(slots, -1)
    columns[here] = np.arange(len(here))
    which = columns[slot]

    def theta_of(x: np.ndarray) -> np.ndarray:
        deviation = x.reshape(1 + len(here), knobs) * spread
        theta = mean + deviation[0]
        theta[here] += deviation[1:]
        return theta

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([(roofline(theta_of(x)[slot], log_work).total - log_time) / scale, x])

    def derivative(x: np.ndarray) -> np.ndarray:
        each = jacobian(theta_of(x)[slot], log_work) * spread / scale
        out = np.zeros((len(slot), 1 + len(here), knobs))
        out[:, 0] = each
        if by_slot:
            out[np.arange(len(slot)), 1 + which] = each
        return np.concatenate([out.reshape(len(slot), -1), np.eye(len(x))])

    start = np.zeros((1 + len(here)) * knobs)
    found = least_squares(residuals, start, jac=derivative, loss=huber_data_only(len(slot)), max_nfev=100, ftol=1e-7, xtol=1e-6).x
    return theta_of(found), found[:knobs] * spread


def _spread_out(log_time: np.ndarray, most: int) -> np.ndarray:
    """Positions of at most so many rows, evenly over their times."""
    order = np.argsort(log_time, kind="stable")
    return np.sort(order[np.unique(np.linspace(0, len(order) - 1, min(len(order), most)).astype(int))])
