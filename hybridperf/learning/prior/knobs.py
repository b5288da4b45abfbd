"""Knobs of a closed form on a device: what prior devices tell, and what a few rows of a new one
add.

Over devices, knobs of an implementation g scatter around mu_g with spread s. A new device has

    theta_gv = mu_gv + d + d_g + d_gv,    d, d_g ~ N(0, s^2), d_gv ~ N(0, (s / 2)^2)

with d shared by all its implementations, so rows of one tell something of the others; v is the
version of a library, and without versions there is no d_gv. mu comes from what implementations
share (see `Population`). All fits are maximum a posteriori with a pseudo-Huber loss in the log of
time.

Axes: N rows, K knobs of the rows' form.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy

from hybridperf.learning.prior import form as forms
from hybridperf.learning.prior.implementation import Implementation, taken_from, unversioned
from hybridperf.learning.prior.rows import PriorRows

# of the spread over all devices: few rows of H200 no longer spoil what H100 tells of it
_REFERENCE_SPREAD = 0.5
_PRIOR_LOSS_SCALE = 0.1  # log errors beyond 10 % count linearly where rows are plenty
# a new device's few rows err together: what the closed form misses is shared by neighbours
_NEW_LOSS_SCALE = 0.25
# of the spread over devices: versions of one library differ less than libraries do
_VERSION_SPREAD = 0.5
_FEW_ROWS = 8
# How far implementations may differ in the log of a knob, by what they do not share; chosen once on
# collectives, where they hardly matter.
_WORD_SPREAD, _WORDS_SPREAD, _RELEASE_SPREAD = 0.7, 0.6, 0.3
_DEVICE_SPREAD, _KNOB_NOISE = 0.5, 0.4
_MOST_ROWS = 6000  # six knobs need no more
# Knobs trade against each other, so devices that differ in nothing are fitted apart: twice again,
# pulled to what is usual with this share of the spread over devices, and at least so far free.
_PULLED_ROUNDS, _PULLED_SPREAD, _PULLED_LEAST = 2, 0.2, 0.05


@dataclasses.dataclass(frozen=True)
class ImplementationKnobs:
    """Knobs of one device, by implementation; `other` serves those that it does not name."""

    implementations: tuple[str, ...]
    theta: np.ndarray  # [len(implementations), K]
    other: np.ndarray  # [K]

    def of(self, implementation: np.ndarray) -> np.ndarray:
        """[N, K] for implementations [N]."""
        found, inverse = np.unique(implementation.astype(str), return_inverse=True)
        places = [most_alike(str(name), self.implementations) for name in found]
        return np.stack([self.theta[at].mean(0) for at in places])[inverse]

    def including(self, usual: Population, implementation: np.ndarray) -> ImplementationKnobs:
        """With those of `implementation` [N] that are missing: usual, moved as this device is."""
        new = sorted(set(map(str, implementation)) - set(self.implementations))
        if not new:
            return self
        moved = np.zeros(self.theta.shape[1])
        if usual.law is None:
            moved = (self.theta - usual.mean_of(self.implementations)).mean(0)
        theta = np.concatenate([self.theta, usual.mean_of(new) + moved])
        return ImplementationKnobs((*self.implementations, *new), theta, self.other)

    def closed(self, rows: PriorRows) -> forms.ClosedFormValues:
        """What the form predicts of some rows."""
        return rows.form.closed(self.of(rows.implementation), rows.work())


def most_alike(name: str, known: Sequence[str]) -> list[int]:
    """Positions of `name` in `known`; else of those that share the most words with it."""
    if name in known:
        return [known.index(name)]
    words = Implementation.parse(name).words
    shared = [sum(map(operator.eq, words, Implementation.parse(other).words)) for other in known]
    return [at for at, number in enumerate(shared) if number == max(shared)]


def _terms(name: str) -> dict[str, float]:
    """What an implementation's knobs share with others, and how much each may matter."""
    words, version = Implementation.parse(name)
    shared = {f"{at}|{word}": _WORD_SPREAD for at, word in enumerate(words)}
    shared[unversioned(name)] = _WORDS_SPREAD
    return shared | ({f"#{version}": _RELEASE_SPREAD, name: _RELEASE_SPREAD} if version else {})


@dataclasses.dataclass(frozen=True)
class Population:
    """Usual knobs of a family by implementation, and how devices scatter around them. D devices.

    Few devices are measured, and not in the same implementations, so their knobs are taken apart
    (a mixed model, solved by ridge regression):

        theta_ds = facts of d + mean + words of s + all words of s + version of s + u_d + noise

    Facts are what its datasheet says (`Machine`). A device of which nothing else is known
    has u_d = 0; one with reference devices has theirs.
    """

    implementations: tuple[str, ...]
    spread: np.ndarray  # [K]
    devices: tuple[str, ...]
    # [D, len(implementations), K] knobs of each device; not a number where it was not measured
    own: np.ndarray
    references: tuple[str, ...] = ()
    machines: tuple[forms.Machine, ...] = ()  # of the D devices; none: nothing is known of any
    machine: forms.Machine = forms.NO_FACTS  # whose knobs are asked for
    form: str = ""  # name of the closed form

    @property
    def law(self) -> forms.WaveRoofline | None:
        """The form whose own constants serve implementations that no device measured."""
        return forms.LAWS.get(self.form)

    @property
    def stranger_sd(self) -> float:
        """Deviation of the log of seconds that another laboratory adds on the device asked for, and
        its class where no device is of it.
        """
        asked, seen = self.machine, {one.kind for one in self.machines} | {""}
        return float(np.hypot(asked.laboratory_sd, asked.kind_sd * (asked.kind not in seen)))

    def unmet(self, implementation: np.ndarray) -> np.ndarray:
        """Which rows [N] the law serves."""
        met = np.isin(implementation.astype(str), self.implementations)
        return ~met if self.law else np.zeros(len(met), bool)

    def with_references(self, references: Sequence[str]) -> Population:
        """For a device that starts from the references' knobs, and keeps nearer to them."""
        return dataclasses.replace(self, references=tuple(references)) if references else self

    def on(self, machine: forms.Machine) -> Population:
        """For a device of whose datasheet this is known; facts that were not taken off the devices'
        knobs do not move its own.
        """
        known = machine if self.machines else forms.Machine(takes_kernels=machine.takes_kernels)
        return self if known == self.machine else dataclasses.replace(self, machine=known)

    @functools.cached_property
    def without_facts(self) -> np.ndarray:
        """[D, len(implementations), K] knobs of each device as if it were a usual machine."""
        if not self.machines:
            return self.own
        names, knobs = self.implementations, self.own.shape[2]
        return self.own - np.stack([machine.moves(names, knobs) for machine in self.machines])

    @functools.cached_property
    def _effects(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(mean [K], effect [K] of each term)."""
        at = np.argwhere(np.isfinite(self.own[..., 0]))
        terms = [_terms(name) for name in self.implementations]
        spread = {term: sd for each in terms for term, sd in each.items()}
        spread |= {f"device|{name}": _DEVICE_SPREAD for name in self.devices}
        column = {name: i for i, name in enumerate(spread)}
        design = np.zeros((len(at), len(spread)))
        for row, (device, which) in enumerate(at):
            for name in (*terms[which], f"device|{self.devices[device]}"):
                design[row, column[name]] = 1.0
        # The mean is free: it is what is left when every effect is zero, by generalised least
        # squares.
        sds = np.array(list(spread.values()))
        scaled = design * sds
        covariance = scaled @ scaled.T + _KNOB_NOISE**2 * np.eye(len(at))
        theta = self.without_facts[tuple(at.T)]
        weight = np.linalg.solve(covariance, np.ones(len(at)))
        mean = weight @ theta / weight.sum()
        effects = (scaled * sds).T @ np.linalg.solve(covariance, theta - mean)
        return mean, dict(zip(spread, effects, strict=True))

    def mean_of(self, implementations: Sequence[str]) -> np.ndarray:
        """[len(implementations), K] what a device starts from."""
        mean = self._of_strangers(implementations)
        for at, name in enumerate(implementations):
            known = self._of_references.get(unversioned(name), {})
            if name in known:
                mean[at] = known[name]
            elif known:  # of another version: as far from theirs as versions usually are
                theirs = np.mean(list(known.values()), 0)
                mean[at] += theirs - self._of_strangers(list(known)).mean(0)
            elif self.law and name not in self.implementations:
                mean[at] = self.law.start
        return mean + self.machine.moves(implementations, self.own.shape[2])

    def spread_of(self, implementations: Sequence[str]) -> np.ndarray:
        """[len(implementations), K] how far from there it may be."""
        measured = [unversioned(name) in self._of_references for name in implementations]
        spread = np.stack([(_REFERENCE_SPREAD if one else 1.0) * self.spread for one in measured])
        if self.law:
            spread[self.unmet(np.array(implementations, object))] = self.law.start_spread
        return spread

    @functools.cached_property
    def _of_references(self) -> dict[str, dict[str, np.ndarray]]:
        """Mean knobs [K] of the references by implementation, by its text without version."""
        own = self.without_facts[[self.devices.index(name) for name in self.references]]
        out: dict[str, dict[str, np.ndarray]] = {}
        for at in np.flatnonzero(np.isfinite(own[..., 0]).any(0)):
            name = self.implementations[at]
            out.setdefault(unversioned(name), {})[name] = np.nanmean(own[:, at], 0)
        return out

    def _of_strangers(self, implementations: Sequence[str]) -> np.ndarray:
        """[len(implementations), K] usual knobs without references."""
        mean, effects = self._effects
        terms = map(_terms, implementations)
        return np.stack([mean + sum(effects.get(term, 0.0) for term in each) for each in terms])

    def typical(self) -> ImplementationKnobs:
        """Knobs of a device of which nothing was measured."""
        theta = self.halfway(self.implementations, self.below_the_peak(self.implementations))
        return ImplementationKnobs(self.implementations, theta, theta.mean(0))

    @functools.cached_property
    def taking(self) -> dict[str, str]:
        """Implementations that may run another's kernels on a device whose references show neither,
        and which; none on machines for which the other's kernels are not made (tokens served by an
        RTX PRO 6000 come out 9.9 % too quick, and 15.3 with them).

        Devices left out: vLLM's decode on A100, B200, H100, H200 15.1, 38.1, 22.6, 23.1 % by its
        own knobs and 14.8, 25.7, 19.4, 20.1 by half way to TensorRT-LLM's and the other's place in
        the networks; experts 28.5, 63.0, 33.1, 32.5 and 30.2, 54.9, 30.4, 28.7 %.
        """
        met = self._of_references
        own = [name for name in self.implementations if unversioned(name) not in met]
        pairs = {name: taken_from(name) for name in own if self.machine.takes_kernels}
        return {name: source for name, source in pairs.items() if source in self.implementations}

    def halfway(
        self, names: Sequence[str], theta: np.ndarray, without: Sequence[str] | None = None
    ) -> np.ndarray:
        """Knobs [len(names), K] of which those `without` rows, all if not given, that may run
        another's kernels stand half way to the other's.
        """
        at, out = {name: place for place, name in enumerate(names)}, theta.copy()
        for name in names if without is None else without:
            if (source := self.taking.get(name)) in at:
                out[at[name]] = (theta[at[name]] + theta[at[source]]) / 2
        return out

    def below_the_peak(self, implementations: Sequence[str]) -> np.ndarray:
        """`mean_of` implementations that a device did not measure: what its references did not
        either comes no nearer to the peak than on the usual device whose power does not limit it.

        A mean over devices with and without such a limit may pass the peak.
        """
        theta = self.mean_of(implementations)
        free = [at for at, machine in enumerate(self.machines) if not machine.sustained]
        if 0 < len(free) < len(self.machines):
            reached = self.own[free, :, forms.OF_THE_PEAK]
            # of the implementation itself where such a device has it: formats differ by far more
            # than devices do
            usual = {name: np.nanmedian(reached[:, at])
                     for at, name in enumerate(self.implementations)
                     if np.isfinite(reached[:, at]).any()}  # fmt: skip
            for at, name in enumerate(implementations):
                if unversioned(name) not in self._of_references:
                    most = usual.get(name, np.nanmedian(reached))
                    theta[at, forms.OF_THE_PEAK] = min(theta[at, forms.OF_THE_PEAK], most)
        return theta


def fit_each_implementation(
    rows: PriorRows, time_s: np.ndarray, usual: Population | None = None
) -> ImplementationKnobs:
    """Knobs of one prior device, each implementation by itself; those of few rows are left out.

    `usual`: what they are pulled to; None: a form's start.
    """
    form, work, log_time = rows.form, rows.work(), np.log(time_s)
    found, counts = np.unique(rows.implementation.astype(str), return_counts=True)
    names = tuple(map(str, found[counts >= min(_FEW_ROWS, counts.max())]))
    mean, spread = np.tile(form.start, (len(names), 1)), form.start_spread
    if usual is not None:
        mean = usual.mean_of(names)
        spread = np.maximum(_PULLED_SPREAD * usual.spread, _PULLED_LEAST)
    theta, alone, scale = [], np.ones((1, 1)), _PRIOR_LOSS_SCALE
    for name, start in zip(names, mean[:, None], strict=True):
        at = np.flatnonzero(rows.implementation == name)
        at = at[_spread_out(log_time[at])]
        which = np.zeros(len(at), int)
        theta += [*_map_fit(form, start, which, work[at], log_time[at], spread, scale, alone)]
    return ImplementationKnobs(names, np.stack(theta), np.mean(theta, 0))


def fit_together(
    measured: Mapping[str, tuple[PriorRows, np.ndarray]], alone: Mapping[str, ImplementationKnobs],
    machines: Mapping[str, forms.Machine],
) -> dict[str, ImplementationKnobs]:  # fmt: skip
    """Knobs of prior devices, fitted `alone` and again, pulled to what is usual among them.

    `measured`: rows and seconds [N] of each. Empirical Bayes: their own scatter is the prior.
    """
    own = dict(alone)
    for _ in range(_PULLED_ROUNDS):
        usual = population(next(iter(measured.values()))[0].form, own, machines)
        own = {
            name: fit_each_implementation(*one, usual.on(machines.get(name, forms.NO_FACTS)))
            for name, one in measured.items()
        }
    return own


def population(
    form: forms.ClosedForm, devices: Mapping[str, ImplementationKnobs],
    machines: Mapping[str, forms.Machine] | None = None,
) -> Population:  # fmt: skip
    """Mean and spread over devices, of which `machines` tells facts."""
    names = tuple(sorted({name for knobs in devices.values() for name in knobs.implementations}))
    own = np.full((len(devices), len(names), len(form.knobs)), np.nan)
    for i, knobs in enumerate(devices.values()):
        own[i, [names.index(name) for name in knobs.implementations]] = knobs.theta
    facts = tuple(machines.get(name, forms.NO_FACTS) for name in devices) if machines else ()
    usual = Population(
        names, np.ones(len(form.knobs)), tuple(devices), own, machines=facts, form=form.name
    )
    apart = (usual.without_facts - usual.mean_of(names))[np.isfinite(own[..., 0])]
    spread = np.sqrt((apart**2).mean(0) + form.least_spread**2)
    for knob, known in form.known_spread.items():
        spread[form.knobs.index(knob)] = known
    return dataclasses.replace(usual, spread=spread)


def fit_new(prior: Population, rows: PriorRows, time_s: np.ndarray) -> ImplementationKnobs:
    """Knobs of a new device: deviations of the device (each part of what its implementations share
    by itself), and of implementations and versions that have rows, pulled to zero.
    """
    log_time = np.log(time_s)
    keep = _spread_out(log_time)
    rows, log_time = rows.rows(keep), log_time[keep]
    names = tuple(sorted({*prior.implementations, *rows.implementation.astype(str)}))
    mean, spread = prior.mean_of(names), prior.spread_of(names)
    which = np.searchsorted(names, rows.implementation.astype(str))
    here = [names[at] for at in np.unique(which)]
    if absent := [name for name in names if name not in here]:
        mean[[names.index(name) for name in absent]] = prior.below_the_peak(absent)
    parts = [rows.form.shared(Implementation.parse(name).words) for name in names]
    bare = [unversioned(name) for name in names]
    members = [(parts, 1.0, part) for part in dict.fromkeys(parts)]
    members += [(bare, 1.0, name) for name in sorted(set(map(unversioned, here)))]
    members += [([*names], _VERSION_SPREAD, name) for name in here if name != unversioned(name)]
    columns = [share * np.array([one == name for one in all_]) for all_, share, name in members]
    theta = _map_fit(
        rows.form, mean, which, rows.work(), log_time, spread, _NEW_LOSS_SCALE, np.stack(columns, 1)
    )
    theta = prior.halfway(names, theta, absent)
    return ImplementationKnobs(names, theta, theta.mean(0))


def _map_fit(
    form: forms.ClosedForm, mean: np.ndarray, which: np.ndarray, work: np.ndarray,
    log_time: np.ndarray, spread: np.ndarray, scale: float, deviations: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """theta [G, K] of rows of implementations `which` [N]; `deviations` [G, D] in units of `spread`
    [G, K] or [K].
    """
    knobs = mean.shape[1]
    of_row = deviations[which]

    def theta_of(x: np.ndarray) -> np.ndarray:
        return np.asarray(mean + (deviations @ x.reshape(-1, knobs)) * spread)

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([(form.log_s(theta_of(x)[which], work) - log_time) / scale, x])

    def derivative(x: np.ndarray) -> np.ndarray:
        slope = forms.slopes(form, theta_of(x)[which], work)
        each = slope * np.broadcast_to(spread, mean.shape)[which] / scale
        by_row = (of_row[:, :, None] * each[:, None]).reshape(len(which), -1)
        return np.concatenate([by_row, np.eye(len(x))])

    start, loss = np.zeros(deviations.shape[1] * knobs), huber_data_only(len(which))
    found = scipy.optimize.least_squares(
        residuals, start, jac=derivative, loss=loss, max_nfev=100, ftol=1e-7, xtol=1e-6
    )
    return theta_of(found.x)


def huber_data_only(rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """SciPy loss: pseudo-Huber for the first `rows` residuals, of which a handful may be disturbed,
    plain squares for the prior's.
    """

    def loss(z: np.ndarray) -> np.ndarray:
        rho = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        root = np.sqrt(1 + z[:rows])
        rho[:, :rows] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return rho

    return loss


def _spread_out(log_time: np.ndarray) -> np.ndarray:
    """Positions of at most `_MOST_ROWS` rows, evenly over their times."""
    order = np.argsort(log_time, kind="stable")
    evenly = np.linspace(0, len(order) - 1, min(len(order), _MOST_ROWS)).astype(int)
    return np.sort(order[np.unique(evenly)])
