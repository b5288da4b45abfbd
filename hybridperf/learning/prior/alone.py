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

from hybridperf.io.arrays import nested
from hybridperf.io.namespace import array_module
from hybridperf.learning import gaussian_process
from hybridperf.learning.gaussian_process import Examples, GaussianProcess, under
from hybridperf.learning.inputs import Box, Inputs
from hybridperf.learning.prior.adapted import Adapted
from hybridperf.learning.prior.family import FamilyPrior, bounded, unbounded, uninformed
from hybridperf.learning.prior.form import ClosedFormValues
from hybridperf.learning.prior.knobs import Population
from hybridperf.learning.prior.standardiser import Standardiser
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


class GivenForm:
    """Seconds that are given, times a constant; `work` [N, 1]: logs of seconds."""

    name = "given"
    knobs = ("scale",)
    position: tuple[str, ...] = ()
    start = np.zeros(1)
    start_spread = np.ones(1)
    least_spread = np.ones(1)
    known_spread: Mapping[str, float] = {}

    def shared(self, words: tuple[str, ...]) -> str:
        """Nothing: there is one implementation."""
        del words
        return ""

    def log_s(self, theta: np.ndarray, work: np.ndarray) -> np.ndarray:
        return np.asarray(work[..., 0] + theta[..., 0])

    def closed(self, theta: np.ndarray, work: Any) -> ClosedFormValues:
        return ClosedFormValues(work[..., 0] + theta[..., 0], work[:, :0])


GIVEN_FORM = GivenForm()


@dataclasses.dataclass(frozen=True)
class GivenRows:
    """Some ops of a group whose closed form is given."""

    log_s: Any  # [N] of the closed form
    inputs: Inputs  # [N, f]

    form = GIVEN_FORM

    def __len__(self) -> int:
        return len(self.log_s)

    @property
    def implementation(self) -> np.ndarray:
        return np.full(len(self), "", object)

    @property
    def sizes(self) -> tuple[str, ...]:
        """All: `Box` knows which measure no distance."""
        return self.inputs.names

    def work(self) -> Any:
        return self.log_s[:, None]

    def rows(self, keep: np.ndarray) -> GivenRows:
        return GivenRows(self.log_s[keep], self.inputs.rows(keep))

    def matrix(self) -> None:
        return None

    @staticmethod
    def bare(inputs: Inputs) -> GivenRows:
        """Where only the correction is asked for."""
        return GivenRows(array_module(inputs.values).zeros(len(inputs.values)), inputs)


def log_correction(adapted: Adapted, inputs: Inputs) -> Any:
    """What to add to the log of the closed form's seconds [N]; differentiable in the inputs."""
    return adapted.predict(GivenRows.bare(inputs)).log_s


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
    folds = range(len(without))
    seen = [*(fold != k for k in folds), np.ones(len(fold), bool)]
    blank = [_blank(inputs.rows(keep)) for keep in seen]
    data = [
        _examples(one, inputs.rows(keep), log_error[keep])
        for one, keep, log_error in zip(blank, seen, [*without, target], strict=True)
    ]
    members = [*(_FOLD_MEMBERS for _ in folds), _FINAL_MEMBERS]
    sees = np.repeat(np.eye(len(data), dtype=bool), members, 0)
    of_networks = [(_padded(rows.x), bounded(rows.r)) for rows in data]
    params = train(of_networks, sees, _RECIPE, seed=0)
    ends = np.cumsum(members)

    def trained(which: int) -> Adapted:
        mine = slice(ends[which] - members[which], ends[which])
        return dataclasses.replace(
            blank[which], params=jax.tree.map(lambda leaf: leaf[mine], params)
        )

    networks, process = np.zeros(len(fold)), np.zeros(len(fold))
    for k in folds:
        held = ~seen[k]
        networks[held] = log_correction(trained(k), inputs.rows(held))
        learned = dataclasses.replace(blank[k], process=_process(data[k]))
        process[held] = log_correction(learned, inputs.rows(held))
    wanted, corrections = without[fold, np.arange(len(fold))], np.zeros(len(fold))
    for k in folds:
        held = ~seen[k]
        share, process_share = best_shares(wanted[~held], networks[~held], process[~held])
        corrections[held] = share * networks[held] + process_share * process[held]
    share, process_share = best_shares(wanted, networks, process)
    found = trained(-1) if share > 0 else blank[-1]
    seen_rows = _process(data[-1]) if process_share > 0 else None
    found = dataclasses.replace(
        found, process=seen_rows, trunk_share=share, process_share=process_share
    )
    return found, corrections


def _blank(inputs: Inputs) -> Adapted:
    """What says nothing yet of the inputs of some rows."""
    rows = GivenRows.bare(inputs)
    prior = uninformed(rows)
    ends = Box.of(inputs, prior.standard.names)
    prior = dataclasses.replace(prior, standard=dataclasses.replace(prior.standard, ends=ends))
    return Adapted(prior, prior.population.typical(), len(rows), prior.sizes, prior.log_width)


def _examples(blank: Adapted, inputs: Inputs, target: np.ndarray) -> Examples:
    rows = GivenRows.bare(inputs)
    x = blank.prior.standard.inputs(rows, blank.knobs.closed(rows))
    return Examples(x, np.zeros(len(x)), unbounded(target))


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


def read_version_5(
    box: Box, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Adapted:
    """A group's correction of model files of version 5: shares of networks and process, whose sum
    had no bound of its own.
    """
    names = tuple(document["names"])
    centre, scale = (np.array(document[name], float) for name in ("centre", "scale"))
    at = [box.names.index(name) for name in names]
    ends = Box(names, box.low[at], box.high[at])
    seen = under(arrays, "process/")
    weights = {name: leaf for name, leaf in arrays.items() if not name.startswith("process/")}
    nobody = Population(("",), np.ones(1), ("nobody",), np.zeros((1, 1, 1)))
    prior = FamilyPrior(
        nobody, Standardiser(names, centre, scale, ends, clip=3.0), None,
        gaussian_process.start_hyper(len(names)), box, quantile=1.0, log_width=1.0,
        network_bound=2.0, bound=np.inf,
    )  # fmt: skip
    found = Adapted(
        prior, nobody.typical(), 0, box, 1.0,
        process=GaussianProcess.read(seen, len(names)) if seen else None,
        params=nested(weights), trunk_share=float(document["share"]),
        process_share=float(document["process_share"]),
    )  # fmt: skip
    return found.checked()
