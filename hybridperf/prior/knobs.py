"""Knobs of a closed form on a device: what prior devices say of them, and what a few rows of a new one add.

Over devices, knobs of a slot g scatter around mu_g with spread s. A new device has

    theta_g = mu_g + d + d_g,    d, d_g ~ N(0, s^2)

with d shared by all its slots, so rows of one implementation say something of the others. All fits are maximum a posteriori with a
pseudo-Huber loss in the log of time.

Axes: N rows, K knobs of the rows' form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from hybridperf.prior.form import Closed, Form
from hybridperf.prior.rows import Rows
from hybridperf.robust import huber_data_only

_KIN_SPREAD = 0.5  # of the spread over all devices: few rows of H200 no longer spoil what H100 says of it
_PRIOR_LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly where rows are plenty
_NEW_LOSS_SCALE = 0.25  # a new device's few rows err together: what the closed form misses is shared by neighbours
_MOST_ROWS = 6000  # five knobs need no more


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

    def closed(self, rows: Rows) -> Closed:
        """What the form says of some rows."""
        return rows.form.closed(self.of(rows.slot), rows.work())


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


def fit_each_slot(rows: Rows, time_s: np.ndarray) -> SlotKnobs:
    """Knobs of one prior device, each slot on its own: it has rows enough."""
    form, work, log_time = rows.form, rows.work(), np.log(time_s)
    slots = tuple(sorted(set(rows.slot.astype(str))))
    theta = []
    for slot in slots:
        at = np.flatnonzero(rows.slot == slot)
        at = at[_spread_out(log_time[at], _MOST_ROWS)]
        found, _ = _map_fit(form, form.start[None], np.zeros(len(at), int), work[at], log_time[at], form.start_spread, _PRIOR_LOSS_SCALE)
        theta.append(found[0])
    return SlotKnobs(slots, np.stack(theta), np.mean(theta, 0))


def population(form: Form, devices: Mapping[str, SlotKnobs]) -> Population:
    """Mean and spread over devices."""
    slots = tuple(sorted({slot for knobs in devices.values() for slot in knobs.slots}))
    mean = np.stack([np.mean([k.theta[k.slots.index(slot)] for k in devices.values() if slot in k.slots], 0) for slot in slots])
    apart = np.concatenate([k.theta - mean[[slots.index(slot) for slot in k.slots]] for k in devices.values()])
    spread = np.sqrt((apart**2).mean(0) + form.least_spread**2)
    for knob, known in form.known_spread.items():
        spread[form.knobs.index(knob)] = known
    own = np.full((len(devices), *mean.shape), np.nan)
    for i, knobs in enumerate(devices.values()):
        own[i, [slots.index(slot) for slot in knobs.slots]] = knobs.theta
    return Population(slots, mean, mean.mean(0), spread, tuple(devices), own)


def fit_new(prior: Population, rows: Rows, time_s: np.ndarray) -> SlotKnobs:
    """Knobs of a new device from a few rows: a deviation of the device and one of each slot, both pulled to zero."""
    log_time = np.log(time_s)
    keep = _spread_out(log_time, _MOST_ROWS)
    rows, log_time = rows.rows(keep), log_time[keep]
    slots = tuple(sorted({*prior.slots, *rows.slot.astype(str)}))
    mean = np.stack([prior.mean[prior.slots.index(slot)] if slot in prior.slots else prior.other for slot in slots])
    theta, device = _map_fit(
        rows.form, mean, positions(rows.slot, slots), rows.work(), log_time, prior.spread, _NEW_LOSS_SCALE, by_slot=True
    )
    return SlotKnobs(slots, theta, prior.other + device)


def _map_fit(
    form: Form, mean: np.ndarray, slot: np.ndarray, work: np.ndarray, log_time: np.ndarray, spread: np.ndarray, scale: float,
    by_slot: bool = False,
) -> Any:  # fmt: skip
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
        return np.concatenate([(form.log_s(theta_of(x)[slot], work) - log_time) / scale, x])

    def derivative(x: np.ndarray) -> np.ndarray:
        each = form.jacobian(theta_of(x)[slot], work) * spread / scale
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
