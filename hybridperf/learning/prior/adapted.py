"""A family's prior after the rows of one device, none to a hundred thousand: what predicts that
device's times.

    log t = log t0(knobs) + c tanh( (b f(x) + p(x)) / c )

No rows: the usual knobs and the trunk f. Up to `MOST_KEPT_ROWS`: knobs fitted to the rows, and p,
the process over them. More: knobs, and the trunk's networks trained on from where the prior left
them, p = 0; no row is kept then. A device alone (`alone.py`): networks of its own rows, and p.

Where devices of its architecture are in the prior, or the prior is of such different devices as
systems are, few rows may err more than none do: the prediction is then a mean of both in the log of
time, at the share that rows left out ask for.

Outside the sizes of its rows p fades, and the trunk speaks; outside the prior's sizes the trunk
fades, sooner where there are no rows, and the closed form is left. Intervals are the process'
standard deviation times the quantile of what rows left out needed; without rows, as wide as
prior devices left out needed, and as another laboratory and a class without rows add.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridperf.io.arrays import flat, nested
from hybridperf.io.namespace import array_module
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning import gaussian_process as process
from hybridperf.learning.ensemble import fits
from hybridperf.learning.gaussian_process import Examples, GaussianProcess
from hybridperf.learning.inputs import Box, faded
from hybridperf.learning.prior.family import MEMBERS, NOMINAL, FamilyPrior, bounded, unbounded
from hybridperf.learning.prior.knobs import ImplementationKnobs, fit_new
from hybridperf.learning.prior.rows import FamilyRows, PriorRows
from hybridperf.learning.training import TrainingRecipe, train

MOST_KEPT_ROWS = 2500
OWN_HYPER_ROWS = 200
_OWN_HYPER_MOST = 500
_OWN_HYPER_STEPS = 60
_FOLDS, _FOLDED_ROWS = 5, 400  # more rows are dealt into two
LEAST_CALIBRATING = 10  # fewer left-out errors have no 90 % quantile
_PRIOR_ROWS = 10
_LARGE_ERROR = 0.5  # a few rows far off say nothing of the rest
_WIDER_PER_OCTAVE = 0.5
_WIDEST_OCTAVES = 3.0
_COLD_FADE_OCTAVES = 0.5  # beyond the prior's sizes no row vouches for the trunk: it fades sooner
_HELD_OUT_SHARE, _MOST_HELD_OUT = 0.2, 2000
# what a device with reference devices begins with, and how many rows that counts for
_COLD_SHARE, _COLD_SHARE_ROWS = 0.6, 10
_STRANGERS_COLD_SHARE = 0.4  # of one without, where it is asked for
_ANCHOR = 1e-4
_TUNING_BATCH = 512
_LEAST_TUNING_ROWS = 500  # fewer leave networks no better than they were
_LEAST_TUNING_STEPS, _MOST_TUNING_STEPS = 1500, 6000
_TUNING_RATE = 2e-3
# numbers of a file's document, of which older ones lack some
_SHARES = ("quantile", "trunk_share", "process_share", "deviation", "cold_share")


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Logs of seconds, [N] each; traced where the rows are, and then `log_s` has a gradient."""

    log_s: Any
    low_log_s: Any  # 90 % of measurements should lie between
    high_log_s: Any
    closed_log_s: Any  # the closed form alone, with the fitted knobs
    outside: Any  # octaves beyond the sizes of the device's rows; without rows, of the prior's

    def rows(self, keep: slice) -> Predicted:
        """The prediction of a slice of the rows."""
        return Predicted(*(getattr(self, one.name)[keep] for one in dataclasses.fields(self)))

    def moved(self, by: Any) -> Predicted:
        """Seconds and interval so many logs [N] later."""
        names = ("log_s", "low_log_s", "high_log_s")
        return dataclasses.replace(self, **{name: getattr(self, name) + by for name in names})


@dataclasses.dataclass(frozen=True)
class Adapted:
    """What predicts one family's times on one device."""

    prior: FamilyPrior
    knobs: ImplementationKnobs
    rows: int  # adapted to
    sizes: Box  # of the rows; without rows the prior's
    # deviations that hold 90 %; where neither process nor tuned networks are, the log half-width
    # itself
    quantile: float
    # log(predicted / measured) of rows that the prediction did not see [H]
    held_out: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    # half-widths of their 90 % intervals [H]
    held_out_log_width: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    # int [H] where they stood among the rows; not saved
    held_out_at: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    process: GaussianProcess | None = None  # few rows
    params: Any = None  # many rows: the tuned networks; alone: those that its rows trained
    # 0 where rows left out are predicted better without the networks
    trunk_share: float = 1.0
    process_share: float = 1.0
    # many rows: of the held-out errors, to which the members' disagreement is added
    deviation: float = 0.0
    cold_share: float = 0.0  # of the prediction without rows, in the log of time

    def predict(self, rows: PriorRows, alone: Any = None) -> Predicted:
        """Times of ops on this device.

        alone: [N] seconds that an op at least takes which is issued apart; not a number: it is as
            tables time it, with its launch.
        """
        if isinstance(rows, FamilyRows) and not self.prior.population.law:
            rows = rows.in_waves()  # of a file from before its ops went row by row
        own = self._by_rows(rows, alone)
        if self.cold_share:
            without = _without_rows(self.prior)._by_rows(rows, alone)
            own = own.moved(self.cold_share * (without.log_s - own.log_s))
        if not isinstance(rows, FamilyRows) or not self.prior.population.law:
            return own
        # no less than the datasheet's seconds, and no more than plain kernels take of ops near
        # which nothing was measured
        module = array_module(own.log_s)
        least, floor = rows.log_roofline_s(), self._theta(rows, alone)[:, 0]
        most = module.logaddexp(least + module.log(rows.most), floor)
        most = module.where((own.outside == 0) & self._met(rows), np.inf, most)
        return own.moved(module.clip(own.log_s, least, most) - own.log_s)

    def by_form(self, rows: PriorRows, alone: Any = None) -> Any:
        """Logs of seconds [N] by the closed form at this device's knobs."""
        return rows.form.closed(self._theta(rows, alone), rows.work()).total

    def _met(self, rows: PriorRows) -> np.ndarray:
        """Rows [N] of kernels that were measured, here or elsewhere."""
        own = np.isin(rows.implementation.astype(str), self.knobs.implementations)
        return own | ~self.prior.population.unmet(rows.implementation)

    def _theta(self, rows: PriorRows, alone: Any = None) -> Any:
        """Knobs [N, K], the floors those that count."""
        knobs = self.knobs.including(self.prior.population, rows.implementation)
        theta = knobs.of(rows.implementation)
        if alone is None:
            return theta
        return np.concatenate([np.fmin(theta[:, :1], np.log(alone)[:, None]), theta[:, 1:]], 1)

    def _by_rows(self, rows: PriorRows, alone: Any = None) -> Predicted:
        """As if the prediction without rows had no share."""
        theta = self._theta(rows)
        on = rows.form.closed(theta, rows.work())
        seen = rows if self.rows else self.prior.in_place_of_sources(rows)
        x, f, apart = self.prior.trunk(seen, on, self.params)
        outside = self.sizes.outside(rows.inputs)
        beyond_prior = self.prior.sizes.outside(rows.inputs)
        module = array_module(outside, f)
        f, prior = self.trunk_share * f, self.prior
        if self.params is not None:
            correction, deviation = f, module.sqrt(self.deviation**2 + apart**2)
        elif self.process is not None:
            correction = self.process.hyper.belief * f
        else:
            correction = prior.hyper.belief * faded(beyond_prior, _COLD_FADE_OCTAVES) * f
            deviation = np.ones(len(f))
        if self.process is not None:
            # beside networks of its own rows it learned by itself
            added, deviation = self.process.predict(x, f if self.params is None else 0 * f)
            correction = correction + self.process_share * faded(outside) * added
        met = self._met(rows)
        learned = bounded(correction * met, prior.bound)
        log_s = on.total + learned
        if alone is not None:  # what is learned counts for what is not the floor
            beside = 1 - module.exp(theta[:, 0] - on.total)
            log_s = module.where(
                np.isnan(alone), log_s, self.by_form(rows, alone) + beside * learned
            )
        half, none = self.quantile * deviation * _wider(outside), _wider(beyond_prior)
        by_word = prior.half_widths(rows.implementation) * none
        if self.process is not None or self.params is not None:
            # rows never make less sure than none do; few cannot tell how far they err
            few = len(self.held_out) < LEAST_CALIBRATING
            half = module.minimum(half, by_word if few else prior.log_width * none)
        elif self.rows == 0:
            half = by_word
        if (law := prior.population.law) is not None and isinstance(rows, FamilyRows):
            by_law = NINE_OF_TEN * module.hypot(law.law_sd, rows.library_sd)
            half = module.where(met, half, by_law)
        return Predicted(log_s, log_s - half, log_s + half, on.total, outside)

    def judged(
        self, error: np.ndarray, deviation: np.ndarray, at: np.ndarray, without: float
    ) -> Adapted:
        """With the errors and deviations of held-out rows `at`, and so many deviations as hold 90 %
        of a next error; those `without` rows count as some rows more.
        """
        number, quantile = len(error), without
        if number >= LEAST_CALIBRATING:
            rank = min(math.ceil(NOMINAL * (number + 1)), number)
            own = float(np.sort(np.abs(error) / deviation)[rank - 1])
            more = _PRIOR_ROWS * max(own, without)
            quantile = (number * own + more) / (number + _PRIOR_ROWS)
        return dataclasses.replace(
            self, quantile=quantile, held_out=error, held_out_log_width=quantile * deviation,
            held_out_at=at,
        )  # fmt: skip

    @property
    def typical_log_width(self) -> float:
        """Half-width of the 90 % interval of an op like those measured."""
        widths = self.held_out_log_width
        return float(np.median(widths)) if len(widths) else self.quantile

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything with axes, by name, for a file; the prior's under `prior/`."""
        tree = {
            "prior": self.prior.arrays(), "trunk": self.params or {},
            "process": self.process.tree() if self.process is not None else {},
            "knobs": {"theta": self.knobs.theta, "other": self.knobs.other},
            "sizes": {"low": self.sizes.low, "high": self.sizes.high},
            "held_out": self.held_out, "held_out_log_width": self.held_out_log_width,
        }  # fmt: skip
        return {name: np.asarray(leaf) for name, leaf in flat(tree).items()}

    def document(self) -> dict[str, Any]:
        """The rest, as plain numbers and names."""
        return {
            "prior": self.prior.document(), "slots": list(self.knobs.implementations),
            "sizes": list(self.sizes.names), "rows": self.rows,
            **{name: getattr(self, name) for name in _SHARES},
        }  # fmt: skip

    @staticmethod
    def read(arrays: Mapping[str, np.ndarray], document: Mapping[str, Any]) -> Adapted:
        """From what `arrays` and `document` gave."""
        of = nested(arrays)
        prior = FamilyPrior.read(of["prior"], document["prior"])
        inputs, seen = len(prior.standard.centre), of.get("process")
        shares: Any = {name: float(document[name]) for name in _SHARES if name in document}
        return Adapted(
            prior, ImplementationKnobs(tuple(document["slots"]), **of["knobs"]),
            int(document["rows"]), Box(tuple(document["sizes"]), **of["sizes"]),
            held_out=of["held_out"], held_out_log_width=of["held_out_log_width"],
            process=GaussianProcess.read(seen, inputs) if seen else None, params=of.get("trunk"),
            **shares,
        ).checked()  # fmt: skip

    @property
    def learned(self) -> float:
        """How much of what its own rows taught is believed, 0 to 1."""
        shares = ((self.params, self.trunk_share), (self.process, self.process_share))
        return sum(share for what, share in shares if what is not None)

    def checked(self) -> Adapted:
        """Itself; `ValueError` where it cannot be what predicts."""
        standard, params = self.prior.standard, (self.params, self.prior.params)
        weights = [standard.centre, standard.scale, self.sizes.low, self.sizes.high]
        weights += [leaf for one in params for leaf in flat(one or {}).values()]
        if not all(np.isfinite(leaf).all() for leaf in weights) or not (standard.scale > 0).all():
            raise ValueError("what was learned holds a number that is not finite")
        if min(self.trunk_share, self.process_share) < 0:
            raise ValueError("what was learned has a share below 0")
        if not all(one is None or fits(one, len(standard.centre)) for one in params):
            raise ValueError("weights do not have the shape of networks of these inputs")
        return self


def _wider(outside: Any) -> Any:
    """How much wider an interval is so many octaves beyond what was measured."""
    return 1 + _WIDER_PER_OCTAVE * outside.clip(None, _WIDEST_OCTAVES)


def adapt(
    prior: FamilyPrior, rows: PriorRows | None = None, time_s: np.ndarray | None = None,
    keep_rows: bool = True, own_hyper_rows: int = OWN_HYPER_ROWS, blended: bool = False,
) -> Adapted:  # fmt: skip
    """The prior after rows of one device.

    Args:
        prior: of the rows' family, for a device of such references (`with_references`) and of such
            a datasheet (`on`).
        rows: of the device, N of them; None: the prior alone.
        time_s: their seconds [N].
        keep_rows: False: no row is kept, however few there are.
        own_hyper_rows: from so many rows on, hyper-parameters are fitted to these as well.
        blended: whether the prediction without rows has a share without references, too.
    """
    if rows is None or time_s is None or len(rows) == 0:
        return _without_rows(prior)
    if isinstance(rows, FamilyRows) and not prior.population.law:
        rows = rows.in_waves()
    time_s = np.asarray(time_s, np.float64)
    if not (np.isfinite(time_s) & (time_s > 0)).all():
        raise ValueError("measured times must be finite and above zero")
    many = len(rows) > MOST_KEPT_ROWS or (not keep_rows and len(rows) >= _LEAST_TUNING_ROWS)
    if many and rows.matrix() is None:  # tuned networks would know matrices by heart
        return _tuned(prior, rows, time_s)
    if not keep_rows:
        return _knobs_alone(prior, rows, time_s)
    at = np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST_KEPT_ROWS])
    rows, time_s = rows.rows(at), time_s[at]
    many = len(rows) >= own_hyper_rows
    found, error, deviation = _few(prior, rows, time_s, many)
    # hyper-parameters have seen the rows, too: their errors left out one by one are a tenth too
    # small
    blended = blended or bool(prior.population.references)
    blended = blended and len(rows) > 1  # a single row leaves none
    if many or blended:
        # a matrix' rows are many and the process' lengths are found from all of them: not for each
        # fold again
        matrix = rows.matrix() is not None
        known = found.process.hyper if matrix and found.process is not None else None
        fold = _dealt(rows, 1, _FOLDS if matrix or len(rows) <= _FOLDED_ROWS else 2)

        def without(k: int) -> Adapted:
            keep = fold != k
            others, *_ = _few(prior, rows.rows(keep), time_s[keep], many, known)
            # a fold's narrower range is not the point
            return dataclasses.replace(others, sizes=found.sizes)

        error, deviation = left_out(rows, time_s, fold, without)
    if blended:
        found, error = _with_cold_share(found, rows, time_s, error)
    return found.judged(error, deviation, at, prior.quantile)


def _without_rows(prior: FamilyPrior) -> Adapted:
    return Adapted(prior, prior.population.typical(), 0, prior.sizes, prior.log_width)


def _with_cold_share(
    found: Adapted, rows: PriorRows, time_s: np.ndarray, error: np.ndarray
) -> tuple[Adapted, np.ndarray]:
    """(what its rows left out predict best with, their errors then), from their errors without [N].

    The share minimises a pseudo-Huber loss of these errors next to a pull towards what is usual.
    """
    usual = _COLD_SHARE if found.prior.population.references else _STRANGERS_COLD_SHARE
    cold = _without_rows(found.prior).predict(rows).log_s - np.log(time_s)
    scale = float(np.median(np.minimum(np.abs(cold), np.abs(error)))) + 0.01
    shares = np.linspace(0.0, 1.0, 41)
    blended = shares[:, None] * cold + (1 - shares[:, None]) * error
    loss = (np.sqrt(1 + (blended / scale) ** 2) - 1).sum(1)
    at = int(np.argmin(loss + _COLD_SHARE_ROWS * (shares - usual) ** 2))
    return dataclasses.replace(found, cold_share=float(shares[at])), blended[at]


def _knobs_alone(prior: FamilyPrior, rows: PriorRows, time_s: np.ndarray) -> Adapted:
    """Knobs fitted to the rows, with the prior's trunk: for rows that are not to be kept."""
    fold, sizes = _dealt(rows, 0), Box.of(rows.inputs, rows.sizes)

    def without(k: int) -> Adapted:
        keep, knobs = fold != k, prior.population.typical()
        if keep.any():
            knobs = fit_new(prior.population, rows.rows(keep), time_s[keep])
        return Adapted(prior, knobs, len(rows), sizes, 1.0)

    errors = left_out(rows, time_s, fold, without)
    return without(-1).judged(*errors, np.arange(len(rows)), prior.log_width)


def left_out(
    rows: PriorRows, time_s: np.ndarray, fold: np.ndarray, without: Callable[[int], Adapted]
) -> tuple[np.ndarray, np.ndarray]:
    """(error, deviation) of each row [N] of a fold, predicted by what was fitted `without` it."""
    error, deviation = np.empty(len(rows)), np.empty(len(rows))
    for k in np.unique(fold):
        mine = fold == k
        predicted = without(k).predict(rows.rows(mine))
        error[mine] = predicted.log_s - np.log(time_s[mine])
        deviation[mine] = predicted.high_log_s - predicted.log_s
    return error, deviation


def _few(
    prior: FamilyPrior, rows: PriorRows, time_s: np.ndarray, many: bool,
    known: process.HyperParameters | None = None,
) -> tuple[Adapted, np.ndarray, np.ndarray]:  # fmt: skip
    """(knobs and process over the rows, errors of each row left out [N], their standard deviations
    [N]). `many`: the rows fit the hyper-parameters, too, and decide whether the trunk is used.
    `known`: hyper-parameters that were fitted before.
    """
    knobs = fit_new(prior.population, rows, time_s)
    on = knobs.closed(rows)
    x, f, _ = prior.trunk(rows, on)
    target = unbounded(np.log(time_s) - on.total)
    # Fewer rows cannot tell whether the trunk misleads: their errors left out agree to a point, and
    # the wrong choice costs three.
    learned = []
    for share in (1.0, 0.0) if many and f.any() else (1.0,):
        hyper, examples = known or prior.hyper, Examples(x, share * f, target)
        if many and known is None:
            some = np.random.default_rng(0).permutation(len(examples))[:_OWN_HYPER_MOST]
            hyper = process.fit_hyper(hyper, [examples.rows(some)], _OWN_HYPER_STEPS)
        learned.append((share, *process.learn(hyper, examples)))
    mean_errors = [np.minimum(np.abs(error), _LARGE_ERROR).mean() for _, _, error, _ in learned]
    share, seen, error, deviation = learned[int(np.argmin(mean_errors))]
    sizes = Box.of(rows.inputs, rows.sizes)
    found = Adapted(prior, knobs, len(rows), sizes, 1.0, process=seen, trunk_share=share)
    return found, bounded(target + error) - bounded(target), deviation


def _dealt(rows: PriorRows, seed: int, folds: int = _FOLDS) -> np.ndarray:
    """The fold of each row [N]; rows of one matrix err alike and stay together."""
    matrix = rows.matrix()
    apart = len(rows) if matrix is None else int(matrix.max()) + 1
    fold = np.random.default_rng(seed).permutation(apart) % min(folds, apart)
    return np.asarray(fold if matrix is None else fold[matrix])


def _tuned(prior: FamilyPrior, rows: PriorRows, time_s: np.ndarray) -> Adapted:
    """Knobs, and the trunk's networks trained on, from all rows but some that judge them."""
    order = np.random.default_rng(0).permutation(len(rows))
    aside = min(int(_HELD_OUT_SHARE * len(rows)), _MOST_HELD_OUT)
    held, learned = order[:aside], order[aside:]
    rest, part = rows.rows(held), rows.rows(learned)
    knobs = fit_new(prior.population, part, time_s[learned])
    on = knobs.closed(part)
    # few values: each is compiled
    steps = min(_LEAST_TUNING_STEPS * max(1, len(learned) // 6000), _MOST_TUNING_STEPS)
    recipe = TrainingRecipe(steps, _TUNING_RATE, _TUNING_BATCH, _ANCHOR)
    data = [(prior.standard.inputs(part, on), np.log(time_s[learned]) - on.total)]
    params = train(data, np.ones((MEMBERS, 1), bool), recipe, seed=0, start=prior.params)
    # Its rows widen the sizes where the networks may correct.
    seen = Box.of(rows.inputs, rows.sizes)
    wider = dataclasses.replace(prior, sizes=prior.sizes.joined(seen))
    out = Adapted(wider, knobs, len(rows), seen, 0.0, params=params)
    error = out.predict(rest).log_s - np.log(time_s[held])
    # of a normal distribution with that median
    deviation = float(np.median(np.abs(error)) / 0.6745)
    _, _, apart = wider.trunk(rest, knobs.closed(rest), params)
    out = out.judged(error, np.sqrt(deviation**2 + apart**2), held, prior.quantile)
    return dataclasses.replace(out, deviation=deviation)
