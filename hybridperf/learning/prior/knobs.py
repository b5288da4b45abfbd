"""Knobs of a closed form on a device: what prior devices say of them, and what a few rows of a new
one add.

Over devices, knobs of a slot g scatter around mu_g with spread s. A new device has

    theta_gv = mu_gv + d + d_g + d_gv,    d, d_g ~ N(0, s^2), d_gv ~ N(0, (s / 2)^2)

with d shared by all its slots, so rows of one implementation say something of the others. A slot is
words joined by `|`, the implementation, and perhaps `#` and a version v of it; slots without
versions have no d_gv. mu comes from what slots share (see `Population`). All fits are maximum a
posteriori with a pseudo-Huber loss in the log of time.

Axes: N rows, K knobs of the rows' form.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from hybridperf.learning.prior.form import Closed, Form
from hybridperf.learning.prior.rows import Rows
from hybridperf.learning.robust import huber_data_only

# of the spread over all devices: few rows of H200 no longer spoil what H100 says of it
_KIN_SPREAD = 0.5
_PRIOR_LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly where rows are plenty
# a new device's few rows err together: what the closed form misses is shared by neighbours
_NEW_LOSS_SCALE = 0.25
_WORD, _VERSION = "|", "#"
# of the spread over devices: versions of one library differ less than libraries do
_VERSION_SPREAD = 0.5
_LEAST_SLOT_ROWS = 8
# How far slots may differ in the log of a knob, by what they do not share; chosen once on
# collectives, where they hardly matter.
_WORD_SPREAD, _GROUP_SPREAD, _RELEASE_SPREAD, _DEVICE_SPREAD, _KNOB_NOISE = 0.7, 0.6, 0.3, 0.5, 0.4
_MOST_ROWS = 6000  # five knobs need no more


@dataclasses.dataclass(frozen=True)
class SlotKnobs:
    """Knobs of one device, by slot; `other` serves slots it does not name."""

    slots: tuple[str, ...]
    theta: np.ndarray  # [len(slots), K]
    other: np.ndarray  # [K]

    def of(self, slot: np.ndarray) -> np.ndarray:
        """[N, K] for slots [N]."""
        found, inverse = np.unique(slot.astype(str), return_inverse=True)
        return np.stack([self.theta[nearest(str(name), self.slots)].mean(0) for name in found])[
            inverse
        ]

    def including(self, usual: Population, slot: np.ndarray) -> SlotKnobs:
        """With those of `implementation` [N] that are missing: usual ones, moved as this device is."""
        new = sorted(set(map(str, slot)) - set(self.slots))
        if not new:
            return self
        moved = (self.theta - usual.mean_of(self.slots)).mean(0)
        return SlotKnobs(
            (*self.slots, *new),
            np.concatenate([self.theta, usual.mean_of(new) + moved]),
            self.other,
        )

    def closed(self, rows: Rows) -> Closed:
        """What the form says of some rows."""
        return rows.form.closed(self.of(rows.slot), rows.work())


def nearest(slot: str, slots: Sequence[str]) -> list[int]:
    """Positions of `name` in `known`; else of those that share the most words with it."""
    if slot in slots:
        return [slots.index(slot)]
    words = group_of(slot).split(_WORD)
    shared = [sum(map(operator.eq, words, group_of(other).split(_WORD))) for other in slots]
    return [at for at, number in enumerate(shared) if number == max(shared)]


def group_of(slot: str) -> str:
    """A slot without its version."""
    return slot.partition(_VERSION)[0]


def _terms(slot: str) -> list[tuple[str, float]]:
    """What an implementation's knobs share with others, and how much each may matter."""
    group, _, version = slot.partition(_VERSION)
    shared = [
        (f"{at}{_WORD}{word}", _WORD_SPREAD) for at, word in enumerate(group.split(_WORD))
    ] + [(group, _GROUP_SPREAD)]
    return shared + (
        [(f"{_VERSION}{version}", _RELEASE_SPREAD), (slot, _RELEASE_SPREAD)] if version else []
    )


@dataclasses.dataclass(frozen=True)
class Population:
    """What knobs of a family usually are, slot by slot, and how devices scatter around that. D
    devices.

    Few devices are measured, and not in the same slots, so their knobs are taken apart (a mixed
    model, solved by ridge regression):

        theta_ds = mean + words of s + group of s + version of s + u_d + noise

    A device of which nothing is known has u_d = 0; one with kin has theirs.
    """

    slots: tuple[str, ...]
    spread: np.ndarray  # [K]
    devices: tuple[str, ...]
    # [D, len(slots), K] knobs of each device; not a number where it was not measured
    own: np.ndarray
    references: tuple[str, ...] = ()

    def among(self, references: Sequence[str]) -> Population:
        """For a device that starts from the references' knobs, and keeps nearer to them."""
        return dataclasses.replace(self, references=tuple(references)) if references else self

    @functools.cached_property
    def _effects(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(mean [K], effect [K] of each term)."""
        at = np.argwhere(np.isfinite(self.own[..., 0]))
        terms = [_terms(slot) for slot in self.slots]
        spread = {name: sd for slot in terms for name, sd in slot} | {
            f"device{_WORD}{name}": _DEVICE_SPREAD for name in self.devices
        }
        column = {name: i for i, name in enumerate(spread)}
        design = np.zeros((len(at), len(spread)))
        for row, (device, slot) in enumerate(at):
            for name, _ in terms[slot]:
                design[row, column[name]] = 1.0
            design[row, column[f"device{_WORD}{self.devices[device]}"]] = 1.0
        # The mean is free: it is what is left when every effect is zero, by generalised least
        # squares.
        scaled = design * np.array(list(spread.values()))
        covariance = scaled @ scaled.T + _KNOB_NOISE**2 * np.eye(len(at))
        theta = self.own[tuple(at.T)]
        weight = np.linalg.solve(covariance, np.ones(len(at)))
        mean = weight @ theta / weight.sum()
        found = (scaled * np.array(list(spread.values()))).T @ np.linalg.solve(
            covariance, theta - mean
        )
        return mean, dict(zip(spread, found, strict=True))

    def mean_of(self, slots: Sequence[str]) -> np.ndarray:
        """[len(slots), K] what a device starts from."""
        mean = self._without_kin(slots)
        for at, slot in enumerate(slots):
            known = self._met_by_kin.get(group_of(slot), {})
            if slot in known:
                mean[at] = known[slot]
            elif (
                known
            ):  # another version of what they have: as far from theirs as versions usually are
                mean[at] += np.mean(list(known.values()), 0) - self._without_kin(list(known)).mean(
                    0
                )
        return mean

    def spread_of(self, slots: Sequence[str]) -> np.ndarray:
        """[len(slots), K] how far from there it may be."""
        return np.stack(
            [
                (_KIN_SPREAD if group_of(slot) in self._met_by_kin else 1.0) * self.spread
                for slot in slots
            ]
        )

    @functools.cached_property
    def _met_by_kin(self) -> dict[str, dict[str, np.ndarray]]:
        """Mean knobs [K] of the kin by slot, by group of slots."""
        of_references = self.own[[self.devices.index(name) for name in self.references]]
        out: dict[str, dict[str, np.ndarray]] = {}
        for at in np.flatnonzero(np.isfinite(of_references[..., 0]).any(0)):
            out.setdefault(group_of(self.slots[at]), {})[self.slots[at]] = np.nanmean(
                of_references[:, at], 0
            )
        return out

    def _without_kin(self, slots: Sequence[str]) -> np.ndarray:
        mean, effects = self._effects
        return np.stack(
            [mean + sum(effects.get(name, 0.0) for name, _ in _terms(slot)) for slot in slots]
        )

    def typical(self) -> SlotKnobs:
        """Knobs of a device of which nothing was measured."""
        theta = self.mean_of(self.slots)
        return SlotKnobs(self.slots, theta, theta.mean(0))


def fit_each_slot(rows: Rows, time_s: np.ndarray) -> SlotKnobs:
    """Knobs of one prior device, each implementation by itself; those of few rows are left out."""
    form, work, log_time = rows.form, rows.work(), np.log(time_s)
    found, counts = np.unique(rows.slot.astype(str), return_counts=True)
    slots = tuple(map(str, found[counts >= min(_LEAST_SLOT_ROWS, counts.max())]))
    theta = []
    for slot in slots:
        at = np.flatnonzero(rows.slot == slot)
        at = at[_spread_out(log_time[at], _MOST_ROWS)]
        alone = (
            np.zeros(len(at), int),
            work[at],
            log_time[at],
            form.start_spread,
            _PRIOR_LOSS_SCALE,
            np.ones((1, 1)),
        )
        theta.append(_map_fit(form, form.start[None], *alone)[0])
    return SlotKnobs(slots, np.stack(theta), np.mean(theta, 0))


def population(form: Form, devices: Mapping[str, SlotKnobs]) -> Population:
    """Mean and spread over devices."""
    slots = tuple(sorted({slot for knobs in devices.values() for slot in knobs.slots}))
    own = np.full((len(devices), len(slots), len(form.knobs)), np.nan)
    for i, knobs in enumerate(devices.values()):
        own[i, [slots.index(slot) for slot in knobs.slots]] = knobs.theta
    usual = Population(slots, np.ones(len(form.knobs)), tuple(devices), own)
    apart = (own - usual.mean_of(slots))[np.isfinite(own[..., 0])]
    spread = np.sqrt((apart**2).mean(0) + form.least_spread**2)
    for knob, known in form.known_spread.items():
        spread[form.knobs.index(knob)] = known
    return dataclasses.replace(usual, spread=spread)


def fit_new(prior: Population, rows: Rows, time_s: np.ndarray) -> SlotKnobs:
    """Knobs of a new device: deviations of the device and of each implementation, pulled to 0."""
    log_time = np.log(time_s)
    keep = _spread_out(log_time, _MOST_ROWS)
    rows, log_time = rows.rows(keep), log_time[keep]
    slots = tuple(sorted({*prior.slots, *rows.slot.astype(str)}))
    mean = prior.mean_of(slots)
    which = np.searchsorted(slots, rows.slot.astype(str))
    deviations = _deviations(slots, which, rows.form.apart)
    theta = _map_fit(
        rows.form,
        mean,
        which,
        rows.work(),
        log_time,
        prior.spread_of(slots),
        _NEW_LOSS_SCALE,
        deviations,
    )
    return SlotKnobs(slots, theta, theta.mean(0))


def _deviations(slots: Sequence[str], which: np.ndarray, apart: int | None) -> np.ndarray:
    """How implementations deviate together [implementations, deviations], in units of the spread."""
    here = {slots[at] for at in np.unique(which)}
    parts = ["" if apart is None else group_of(slot).split(_WORD)[apart] for slot in slots]
    members = (
        [(parts, 1.0, part) for part in dict.fromkeys(parts)]
        + [
            ([group_of(slot) for slot in slots], 1.0, group)
            for group in sorted({group_of(slot) for slot in here})
        ]
        + [(list(slots), _VERSION_SPREAD, slot) for slot in sorted(here) if _VERSION in slot]
    )
    return np.stack(
        [share * np.array([name == one for name in names]) for names, share, one in members], 1
    )


def _map_fit(
    form: Form, mean: np.ndarray, slot: np.ndarray, work: np.ndarray, log_time: np.ndarray,
    spread: np.ndarray, scale: float, deviations: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """theta [G, K] of rows of implementations [N]; `deviations` [G, D] in units of `spread`."""
    knobs = mean.shape[1]
    of_row = deviations[slot]

    def theta_of(x: np.ndarray) -> np.ndarray:
        return np.asarray(mean + (deviations @ x.reshape(-1, knobs)) * spread)

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([(form.log_s(theta_of(x)[slot], work) - log_time) / scale, x])

    def derivative(x: np.ndarray) -> np.ndarray:
        each = (
            form.jacobian(theta_of(x)[slot], work)
            * np.broadcast_to(spread, mean.shape)[slot]
            / scale
        )
        return np.concatenate(
            [(of_row[:, :, None] * each[:, None]).reshape(len(slot), -1), np.eye(len(x))]
        )

    start = np.zeros(deviations.shape[1] * knobs)
    return theta_of(
        least_squares(
            residuals,
            start,
            jac=derivative,
            loss=huber_data_only(len(slot)),
            max_nfev=100,
            ftol=1e-7,
            xtol=1e-6,
        ).x
    )


def _spread_out(log_time: np.ndarray, most: int) -> np.ndarray:
    """Positions of at most so many rows, evenly over their times."""
    order = np.argsort(log_time, kind="stable")
    return np.sort(
        order[np.unique(np.linspace(0, len(order) - 1, min(len(order), most)).astype(int))]
    )
