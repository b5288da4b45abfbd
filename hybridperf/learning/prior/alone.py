"""A family whose closed form is given: a group of ops on this CPU.

    log t = log t0 + c tanh( (s f(x) + q p(x)) / c )

t0 is fitted before (the roofline with the group's knobs); f are networks, p is a process over the
rows. Both see the inputs clipped to the box of what they learned from, and fade outside of it. The
shares s and q are how much of either word held-out rows advise to take: none of both is the closed
form as it is, so rows never make it worse there.

With what other CPUs showed (`prior_of`), f is what networks and a process say that learned from
their rows, and p is what the own rows say besides: a few are enough. Where no CPU showed anything
of the group, f are networks trained on the own rows alone (`learn_alone`), from 16 of them on, and
s and q are together at most one. Small data (to some hundred rows) decides the recipe: two layers
of 16, a group lasso so that useless inputs go silent, noise on the inputs.

Axes: N rows, K folds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.io.namespace import array_module
from hybridperf.learning import gaussian_process
from hybridperf.learning.gaussian_process import Examples, GaussianProcess
from hybridperf.learning.inputs import Box, Inputs, concatenate
from hybridperf.learning.prior.adapted import Adapted, left_out
from hybridperf.learning.prior.family import NOMINAL, FamilyPrior, bounded, unbounded, uninformed
from hybridperf.learning.prior.form import ClosedForm, ClosedFormValues
from hybridperf.learning.prior.knobs import Population
from hybridperf.learning.prior.rows import Standardiser
from hybridperf.learning.training import TrainingRecipe, train

LEAST_ROWS = 16  # fewer rows of a group teach nothing but themselves
_RECIPE = TrainingRecipe(
    steps=250, learning_rate=2e-2, batch=256, width=16, decay=0.0, input_noise=0.15, lasso=0.03
)
_FOLD_MEMBERS, _FINAL_MEMBERS = 2, 4
_INPUTS = 32  # networks have a multiple of so many: nearly all groups share what is compiled
_PROCESS_ROWS = 1000  # of a group: the process costs their cube
_HYPER_ROWS, _HYPER_STEPS = 300, 60
_WORTH_IT = 0.05
_FOLDS = 5
_LEAST_CHOOSING = 8
# shares of networks and process after a prior: what is taken unless rows held out say otherwise
_AFTER = ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0))
_OWN_HYPER_ROWS = 120  # from so many on the rows say themselves how smooth they are


class GivenForm(ClosedForm):
    """Seconds that are given, of which only the correction is asked for; `work` [N, 1] is zero."""

    name = "given"
    knobs = ("scale",)
    position = ()
    start = np.zeros(1)
    start_spread = np.ones(1)
    least_spread = np.ones(1)

    def closed(self, theta: np.ndarray, work: Any) -> ClosedFormValues:
        return ClosedFormValues(work[..., 0] + theta[..., 0], work[:, :0])


@dataclasses.dataclass(frozen=True)
class GivenRows:
    """Some ops of a group whose closed form is given."""

    inputs: Inputs  # [N, f]

    form = GivenForm()

    def __len__(self) -> int:
        return len(self.inputs.values)

    @property
    def implementation(self) -> np.ndarray:
        return np.full(len(self), "", object)

    @property
    def sizes(self) -> tuple[str, ...]:
        """All: `Box` knows which measure no distance."""
        return self.inputs.names

    def work(self) -> Any:
        return array_module(self.inputs.values).zeros((len(self), 1))

    def rows(self, keep: np.ndarray) -> GivenRows:
        return GivenRows(self.inputs.rows(keep))

    def matrix(self) -> None:
        return None


def log_correction(adapted: Adapted, inputs: Inputs) -> Any:
    """What to add to the log of the closed form's seconds [N]; differentiable in the inputs."""
    return adapted.predict(GivenRows(inputs)).log_s


def learn_alone(
    inputs: Inputs, target: np.ndarray, without: np.ndarray, fold: np.ndarray
) -> tuple[Adapted, np.ndarray]:
    """What corrects a closed form, and held-out log corrections [N].

    Args:
        inputs: of the rows.
        target: log(measured / closed form) [N].
        without: the same by closed forms that did not see a fold [K, N].
        fold: of each row [N]. What a row's held-out correction is made of, shares included, did not
            see its fold.
    """
    folds, place = range(len(without)), np.arange(len(fold))
    seen = [*(fold != k for k in folds), place >= 0]
    parts = [
        _nothing_learned(inputs.rows(keep), log_error[keep])
        for keep, log_error in zip(seen, [*without, target], strict=True)
    ]
    members = [*(_FOLD_MEMBERS for _ in folds), _FINAL_MEMBERS]
    sees = np.repeat(np.eye(len(parts), dtype=bool), members, 0)
    params = train([(_padded(rows.x), bounded(rows.r)) for _, rows in parts], sees, _RECIPE, seed=0)

    def learned(which: int, networks: bool, process: bool) -> Adapted:
        (blank, rows), mine = parts[which], sees[:, which]
        own = jax.tree.map(lambda leaf: leaf[mine], params) if networks else None
        return dataclasses.replace(blank, params=own, process=_process(rows) if process else None)

    asked = GivenRows(inputs), np.ones(len(fold)), fold
    networks, _ = left_out(*asked, lambda k: learned(k, True, False))
    process, _ = left_out(*asked, lambda k: learned(k, False, True))
    wanted, corrections = without[fold, place], np.zeros(len(fold))
    for others in seen[:-1]:
        shares = best_shares(wanted[others], networks[others], process[others])
        corrections[~others] = shares[0] * networks[~others] + shares[1] * process[~others]
    share, process_share = best_shares(wanted, networks, process)
    found = learned(-1, share > 0, process_share > 0)
    return dataclasses.replace(found, trunk_share=share, process_share=process_share), corrections


def prior_of(machines: Sequence[tuple[Inputs, np.ndarray]]) -> FamilyPrior:
    """What known machines say of a group of ops on one that nobody measured yet: networks and a
    process of all their rows, and how far these err on rows that they did not see: of machines left
    out, or where there is one alone, of a fold of its rows.

    Args:
        machines: of each the inputs of its rows, and log(measured / closed form) [N].
    """
    inputs, target = (
        concatenate([of for of, _ in machines]),
        np.concatenate([r for _, r in machines]),
    )
    machine = np.repeat(np.arange(len(machines)), [len(of) for _, of in machines])
    fold = machine
    if len(machines) == 1:
        fold = np.random.default_rng(0).permutation(len(target)) % _FOLDS
    found, unseen = learn_alone(inputs, target, np.tile(target, (int(fold.max()) + 1, 1)), fold)
    x = found.prior.standard.inputs(GivenRows(inputs), found.knobs.closed(GivenRows(inputs)))
    each = [
        _some(Examples(x[mine], unseen[mine], unbounded(target[mine])))
        for mine in (machine == one for one in np.unique(machine))
    ]
    start = gaussian_process.start_hyper(x.shape[1])
    start = dataclasses.replace(start, belief=np.array(1.0))
    hyper = gaussian_process.fit_hyper(start, each, _HYPER_STEPS)
    width = float(np.quantile(np.abs(target - unseen), NOMINAL))
    return dataclasses.replace(
        found.prior, params=found.params, process=found.process and found.process.unsure(),
        network_share=found.trunk_share, process_share=found.process_share,
        hyper=dataclasses.replace(hyper, belief=np.array(1.0)), quantile=1.0, log_width=width,
    )  # fmt: skip


def told(prior: FamilyPrior, inputs: Inputs) -> np.ndarray:
    """What other machines showed of ops, to add to the log of the closed form's seconds [N]."""
    rows = GivenRows(inputs)
    on = prior.population.typical().closed(rows)
    return np.asarray(bounded(prior.trunk(rows, on)[1], prior.bound))


def learn_after(
    prior: FamilyPrior, inputs: Inputs, target: np.ndarray, without: np.ndarray, fold: np.ndarray
) -> tuple[Adapted, np.ndarray]:
    """As `learn_alone`, by rows of any number after what other machines showed."""
    rows, place = GivenRows(inputs), np.arange(len(fold))
    typical = prior.population.typical()
    x, f, _ = prior.trunk(rows, typical.closed(rows))
    blank = Adapted(prior, typical, len(rows), Box.of(inputs, prior.sizes.names), prior.log_width)

    def learned(shares: tuple[float, float], log_error: np.ndarray, keep: np.ndarray) -> Adapted:
        share, process_share = shares
        found = dataclasses.replace(blank, trunk_share=share, process_share=process_share)
        if not process_share or not keep.any():
            return found
        examples = Examples(x[keep], share * f[keep], unbounded(log_error[keep], prior.bound))
        hyper = prior.hyper
        if len(examples) >= _OWN_HYPER_ROWS:
            hyper = gaussian_process.fit_hyper(hyper, [_some(examples)], _HYPER_STEPS)
        return dataclasses.replace(found, process=gaussian_process.learn(hyper, examples)[0])

    def without_fold(shares: tuple[float, float]) -> np.ndarray:
        parts = functools.partial(learned, shares)
        asked = rows, np.ones(len(fold)), fold
        return left_out(*asked, lambda k: parts(without[k], fold != k))[0]

    wanted = without[fold, place]
    unseen = {shares: without_fold(shares) for shares in _AFTER}
    corrections = np.zeros(len(fold))
    for k in np.unique(fold):
        others = fold != k
        best = _better({one: wanted[others] - c[others] for one, c in unseen.items()})
        corrections[~others] = unseen[best][~others]
    best = _better({one: wanted - c for one, c in unseen.items()})
    return learned(best, target, place >= 0), corrections


def _better(errors: Mapping[tuple[float, float], np.ndarray]) -> tuple[float, float]:
    """The shares whose errors are smallest; the first, unless the gain over it is above the
    standard error of its mean, and of rows enough.
    """
    first = next(iter(errors))
    if len(errors[first]) < _LEAST_CHOOSING:
        return first
    best = min(errors, key=lambda one: float(np.abs(errors[one]).mean()))
    gain = np.abs(errors[first]) - np.abs(errors[best])
    return best if gain.mean() > gain.std() / np.sqrt(len(gain)) else first


def _nothing_learned(inputs: Inputs, target: np.ndarray) -> tuple[Adapted, Examples]:
    """(what says nothing yet of the inputs of some rows, these rows to learn from)."""
    rows = GivenRows(inputs)
    prior = uninformed(rows)
    ends = Box.of(inputs, prior.standard.names)
    prior = dataclasses.replace(prior, standard=dataclasses.replace(prior.standard, ends=ends))
    blank = Adapted(prior, prior.population.typical(), len(rows), prior.sizes, prior.log_width)
    x = prior.standard.inputs(rows, blank.knobs.closed(rows))
    return blank, Examples(x, np.zeros(len(x)), unbounded(target))


def _padded(x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, -x.shape[1] % _INPUTS)))


def _process(rows: Examples) -> GaussianProcess:
    keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _PROCESS_ROWS)).astype(int))
    rows = rows.rows(keep)
    start = gaussian_process.start_hyper(rows.x.shape[1])
    hyper = gaussian_process.fit_hyper(start, [_some(rows)], _HYPER_STEPS)
    return gaussian_process.learn(hyper, rows)[0]


def _some(rows: Examples) -> Examples:
    """As many as tell of hyper-parameters."""
    return rows.rows(np.random.default_rng(0).permutation(len(rows))[:_HYPER_ROWS])


def best_shares(
    target: np.ndarray, networks: np.ndarray, process: np.ndarray
) -> tuple[float, float]:
    """How much of either correction to take: the shares, together at most one, that leave held-out
    `target` [N] the smallest mean absolute error.

    The process takes part only where that helps by more than `_WORTH_IT`: the networks are smoother
    between the rows and beyond them. Nothing is taken where the gain over the closed form is below
    the standard error of its mean (Breiman et al., Classification and Regression Trees, 3.4.3).
    """
    quarters = np.linspace(0.0, 1.0, 5)
    pairs = [(one, other) for one in quarters for other in quarters if one + other <= 1]

    def error(pair: tuple[float, float]) -> float:
        return float(np.abs(target - pair[0] * networks - pair[1] * process).mean())

    alone = min((pair for pair in pairs if pair[1] == 0), key=error)
    both = min(pairs, key=error)
    one, other = both if error(both) < (1 - _WORTH_IT) * error(alone) else alone
    gain = np.abs(target) - np.abs(target - one * networks - other * process)
    if gain.mean() <= gain.std() / np.sqrt(len(gain)):
        return 0.0, 0.0
    return float(one), float(other)


def read_version_5(box: Box, document: Mapping[str, Any], tree: Mapping[str, Any]) -> Adapted:
    """A group's correction of model files of version 5: shares of networks and process, whose sum
    had no bound of its own.
    """
    names = tuple(document["names"])
    centre, scale = (np.array(document[name], float) for name in ("centre", "scale"))
    at = [box.names.index(name) for name in names]
    ends = Box(names, box.low[at], box.high[at])
    weights = {**tree}
    seen = weights.pop("process", None)
    nobody = Population(("",), np.ones(1), ("nobody",), np.zeros((1, 1, 1)))
    prior = FamilyPrior(
        nobody, Standardiser(names, centre, scale, ends, clip=3.0), None,
        gaussian_process.start_hyper(len(names)), box, quantile=1.0, log_width=1.0,
        network_bound=2.0, bound=np.inf,
    )  # fmt: skip
    found = Adapted(
        prior, nobody.typical(), 0, box, 1.0,
        process=GaussianProcess.read(seen, len(names)) if seen else None,
        params=weights, trunk_share=float(document["share"]),
        process_share=float(document["process_share"]),
    )  # fmt: skip
    return found.checked()
