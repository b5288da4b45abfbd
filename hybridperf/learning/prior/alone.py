"""A family that one device alone tells of, whose closed form is given: a group of ops on this CPU.

    log t = log t0 + c tanh( (s f(x) + q p(x)) / c )

t0 is fitted before (the roofline with the group's knobs); f are networks trained on the rows alone,
p is a process over them. Both see the inputs clipped to the box of the rows, and fade outside of
it. The shares s and q, together at most one, are how much of either word held-out rows advise to
take: none of both is the closed form as it is, so rows never make it worse there.

Small data (16 to some hundred rows) decides the recipe: two layers of 16, a group lasso so that
useless inputs go silent, noise on the inputs.

Axes: N rows, K folds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hybridperf.io.namespace import array_module
from hybridperf.learning import gaussian_process
from hybridperf.learning.gaussian_process import Examples, GaussianProcess
from hybridperf.learning.inputs import Box, Inputs
from hybridperf.learning.prior.adapted import Adapted, left_out
from hybridperf.learning.prior.family import FamilyPrior, bounded, unbounded, uninformed
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
    some = np.random.default_rng(0).permutation(len(rows))[:_HYPER_ROWS]
    start = gaussian_process.start_hyper(rows.x.shape[1])
    hyper = gaussian_process.fit_hyper(start, [rows.rows(some)], _HYPER_STEPS)
    return gaussian_process.learn(hyper, rows)[0]


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
