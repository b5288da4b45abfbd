"""What all measured GPUs together say of one family of ops: usual knobs, a trunk, and how far both
are off on a device left out.

`train_family` learns it. The hyper-parameters of the process and the width of intervals come from
inner leave-one-device-out: for each prior device a trunk trained without it, since a trunk's errors
on its own devices are too small. How wrong a prediction without any row may be is asked of trunks
that saw no device of its architecture either: a new architecture has none.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hybridperf.io.arrays import flat, nested
from hybridperf.io.namespace import array_module, put
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning import gaussian_process as process
from hybridperf.learning.ensemble import BOUND, evaluate
from hybridperf.learning.gaussian_process import Examples, GaussianProcess, HyperParameters
from hybridperf.learning.inputs import Box, Inputs
from hybridperf.learning.prior import knobs as knob_fits
from hybridperf.learning.prior.form import NO_FACTS, ClosedFormValues, Machine
from hybridperf.learning.prior.implementation import OpImplementation
from hybridperf.learning.prior.knobs import ImplementationKnobs, Population
from hybridperf.learning.prior.rows import CLIP, FamilyRows, PriorRows, Standardiser, standard
from hybridperf.learning.training import TrainingRecipe, train

NOMINAL = 0.9  # share of measurements that an interval is to hold
MEMBERS = 4
_ROWS_PER_DEVICE = 6000
_HYPER_ROWS = 256
_HYPER_STEPS = 100
_INNER_MEMBERS = 2
_ERROR_ROWS = 2000  # rows of each left-out device that say how wrong a prediction without rows is
_KNOB_ROWS = 100  # the rows that place a left-out device's knobs: about as many as a new device has
_WIDTH_ROWS = 50  # of an implementation, for a width of its own
_UNKNOWN_QUANTILE = 3.0  # deviations; where a single device leaves none to be left out
_UNKNOWN_LOG_WIDTH = 1.0  # the same for a device without rows: a factor of 2.7


@dataclasses.dataclass(frozen=True)
class FamilyPrior:
    """What is known of a family before a device was measured."""

    population: Population
    standard: Standardiser
    params: Any  # of BoundedNet, leaves [E, ...]; None: no network
    hyper: HyperParameters
    sizes: Box
    # deviations that hold 90 % of a new device's measurements, for the prior device where that took
    # most
    quantile: float
    # half-width of the 90 % interval of a device without rows, as devices left out needed
    log_width: float
    # both of devices that had reference devices among the others; None: no device had
    reference_quantile: float | None = None
    reference_log_width: float | None = None
    # instead of `log_width`, by a word of a family's own choice, such as an implementation or a
    # link; none: one for all
    log_widths: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # what |log correction| stays below, of a network and of the whole
    network_bound: float = BOUND
    bound: float = BOUND
    # what the rows of the prior's devices say, where they are kept, and shares of both words
    process: GaussianProcess | None = None
    network_share: float = 1.0
    process_share: float = 1.0

    def half_widths(self, implementation: np.ndarray) -> np.ndarray:
        """Log half-widths [N] of rows of implementations [N] on a device without rows."""
        by_word = self.log_widths
        if self.population.references and self.reference_log_width is not None:
            by_word = {}  # references tell of all alike
        widths = np.array([by_word.get(str(name), self.log_width) for name in implementation])
        return np.hypot(widths, NINE_OF_TEN * self.population.stranger_sd)

    def on(self, machine: Machine) -> FamilyPrior:
        """For a device of whose datasheet this is known."""
        return dataclasses.replace(self, population=self.population.on(machine))

    def with_references(self, references: Sequence[str]) -> FamilyPrior:
        """For a device of the references' architecture: their knobs, full belief in the trunk."""
        references = [name for name in references if name in self.population.devices]
        if not references:
            return self
        hyper = dataclasses.replace(self.hyper, belief=np.array(1.0))
        usual = self.population.with_references(references)
        told: Any = {"quantile": self.reference_quantile, "log_width": self.reference_log_width}
        widths = {} if None in told.values() else told
        return dataclasses.replace(self, population=usual, hyper=hyper, **widths)

    def trunk(
        self, rows: PriorRows, on: ClosedFormValues, params: Any = None
    ) -> tuple[Any, Any, Any]:
        """(inputs [N, d], faded output before the bound [N], faded deviation of members [N])."""
        parts, shared = self.standard.parts(rows, on), params is None
        x = array_module(*parts).concatenate(parts, 1)
        output = apart = array_module(x).zeros(len(x))
        if (params := self.params if shared else params) is not None:
            output, apart = evaluate(params, parts, self.network_bound)
        elif not shared or self.process is None:
            return x, output, apart
        output = unbounded(output, self.bound)
        if shared and self.process is not None:
            added = self.process.predict(x, 0 * output)[0]
            output = self.network_share * output + self.process_share * added
        fade = self.sizes.fade(rows.inputs)
        if shared:  # what others' kernels show says nothing of those that a law serves
            fade = fade * ~self.population.unmet(rows.implementation)
        return x, fade * output, fade * apart

    def in_place_of_sources(self, rows: PriorRows) -> PriorRows:
        """Rows whose flags name the framework whose kernels they may run (`Population.taking`)."""
        taking, names = self.population.taking, rows.inputs.names
        if not taking or not isinstance(rows, FamilyRows):
            return rows
        found = {str(name) for name in rows.implementation} & taking.keys()
        values = rows.inputs.values.copy()
        for name in found:
            mine = rows.implementation == name
            for slot, raised in ((name, 0.0), (taking[name], 1.0)):
                flag = f"framework={OpImplementation.parse(slot).framework}"
                if flag not in names:  # of a table that has one framework alone
                    names = (*names, flag)
                    wider = [values, np.zeros((len(values), 1))]
                    values = array_module(values).concatenate(wider, 1)
                values = put(values, (mine, names.index(flag)), raised)
        return dataclasses.replace(rows, inputs=Inputs(names, values))

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything with axes, by name, for a file."""
        usual, how, ends = self.population, self.standard, self.standard.ends
        tree = {
            "trunk": self.params or {}, "population": {"spread": usual.spread, "own": usual.own},
            "standard": {"centre": how.centre, "scale": how.scale}
            | ({} if ends is None else {"low": ends.low, "high": ends.high}),
            "hyper": vars(self.hyper), "sizes": {"low": self.sizes.low, "high": self.sizes.high},
            "process": self.process.tree() if self.process is not None else {},
        }  # fmt: skip
        return {name: np.asarray(leaf) for name, leaf in flat(tree).items()}

    def document(self) -> dict[str, Any]:
        """The rest, as plain numbers and names."""
        usual = self.population
        return {
            "slots": list(usual.implementations), **({"form": usual.form} if usual.law else {}),
            "devices": list(usual.devices), "kin": list(usual.references),
            "machines": list(map(dataclasses.asdict, usual.machines)),
            "machine": dataclasses.asdict(usual.machine),
            "inputs": list(self.standard.names), "sizes": list(self.sizes.names),
            "quantile": self.quantile, "log_width": self.log_width,
            "kin_quantile": self.reference_quantile, "kin_log_width": self.reference_log_width,
            "log_widths": dict(self.log_widths), "clip": self.standard.clip,
            "network_bound": self.network_bound,
            "network_share": self.network_share, "process_share": self.process_share,
            "bound": self.bound if np.isfinite(self.bound) else None,
        }  # fmt: skip

    @staticmethod
    def read(arrays: Mapping[str, Any], document: Mapping[str, Any]) -> FamilyPrior:
        """From what `arrays` (their names perhaps nested already) and `document` gave."""
        of, said = nested(arrays), {**_OLDER, **document}
        inputs, seen = tuple(said["inputs"]), of["standard"]
        ends = Box(inputs, seen["low"], seen["high"]) if "low" in seen else None
        usual = Population(
            tuple(said["slots"]), of["population"]["spread"], tuple(said["devices"]),
            of["population"]["own"], tuple(said["kin"]),
            tuple(Machine(**one) for one in said["machines"]), Machine(**said["machine"]),
            str(said["form"]),
        )  # fmt: skip
        return FamilyPrior(
            usual, Standardiser(inputs, seen["centre"], seen["scale"], ends, float(said["clip"])),
            of.get("trunk"), HyperParameters(**of["hyper"]),
            Box(tuple(said["sizes"]), **of["sizes"]),
            float(said["quantile"]), float(said["log_width"]),
            said["kin_quantile"], said["kin_log_width"], dict(said["log_widths"]),
            float(said["network_bound"]), float(np.inf if said["bound"] is None else said["bound"]),
            GaussianProcess.read(of["process"], len(seen["centre"])) if "process" in of else None,
            float(said["network_share"]), float(said["process_share"]),
        )  # fmt: skip


# what documents of older files lack
_OLDER: Mapping[str, Any] = {
    "form": "", "machines": (), "machine": {}, "log_widths": {}, "clip": CLIP,
    "network_bound": BOUND, "bound": BOUND, "network_share": 1.0, "process_share": 1.0,
}  # fmt: skip


def unbounded(r: Any, bound: float = BOUND) -> Any:
    """c atanh(r / c), the inverse of `bounded`; the process adds up on this side."""
    if bound == np.inf:
        return r
    return bound * r.__array_namespace__().arctanh((r / bound).clip(-0.99, 0.99))


def bounded(u: Any, bound: float = BOUND) -> Any:
    """A correction that cannot leave +-c: c tanh(u / c)."""
    return u if bound == np.inf else bound * u.__array_namespace__().tanh(u / bound)


def train_family(
    devices: Mapping[str, tuple[PriorRows, np.ndarray]], seed: int = 0,
    recipe: TrainingRecipe = TrainingRecipe(),  # noqa: B008
    architectures: Mapping[str, str] | None = None, least_rows: int = 0,
    machines: Mapping[str, Machine] | None = None, width_by_implementation: bool = False,
) -> FamilyPrior:  # fmt: skip
    """The prior of one family from rows and seconds [N] of each device. Deterministic; about half a
    minute for four devices.

    `architectures`: of each device, by which devices are references. A device of fewer than
    `least_rows` has a say on the knobs only. `machines`: what datasheets say of each device, of
    which knobs are then fitted together; none: each by itself.
    `width_by_implementation`: how wrong a prediction without rows may be is told of each, by what
    devices left out needed in the mean; else as wide as the worst needed.
    """
    if not devices or any(len(rows) == 0 for rows, _ in devices.values()):
        raise ValueError("a prior needs at least one device, and rows of each")
    random = np.random.default_rng(seed)
    measured = {}
    for name in sorted(devices):  # the order of a dict must not matter
        rows, time_s = devices[name]
        keep = np.sort(random.permutation(len(rows))[:_ROWS_PER_DEVICE])
        measured[name] = rows.rows(keep), np.asarray(time_s, np.float64)[keep]
    alone = {name: knob_fits.fit_each_implementation(*one) for name, one in measured.items()}
    own = knob_fits.fit_together(measured, alone, machines) if machines else alone
    usual = knob_fits.population(next(iter(measured.values()))[0].form, own, machines)
    if any(rows.matrix() is not None for rows, _ in measured.values()):
        # networks would remember the matrices, which devices left out were measured on, too
        recipe = dataclasses.replace(recipe, steps=0)
    enough = {name: one for name, one in measured.items() if len(one[0]) >= least_rows}
    measured = enough or measured
    on = {name: own[name].closed(rows) for name, (rows, _) in measured.items()}
    how = standard([(rows, on[name]) for name, (rows, _) in measured.items()])
    data = [
        (how.inputs(rows, on[name]), np.log(time_s) - on[name].total)
        for name, (rows, time_s) in measured.items()
    ]
    params = train(data, np.ones((MEMBERS, len(data)), bool), recipe, seed)
    box = functools.reduce(
        Box.joined, (Box.of(rows.inputs, rows.sizes) for rows, _ in measured.values())
    )
    hyper = process.start_hyper(len(how.centre))
    prior = FamilyPrior(usual, how, params, hyper, box, _UNKNOWN_QUANTILE, _UNKNOWN_LOG_WIDTH)
    if len(measured) == 1:
        return prior
    # one network per device left out adds up
    shorter = dataclasses.replace(recipe, steps=recipe.steps // 2, batch=recipe.batch // 2)
    left_out = _leave_out(
        prior, measured, alone, data, architectures or {}, shorter, seed, machines or {}
    )
    placed, colds, knowing, implementations = zip(*left_out, strict=True)
    hyper = process.fit_hyper(hyper, placed, _HYPER_STEPS)
    believing = dataclasses.replace(hyper, belief=np.array(1.0))
    cold = [_needed(hyper, rows) for rows in colds]
    known = [_needed(believing, rows) for rows in knowing if rows is not None]
    by_word: dict[str, list[float]] = {}
    for rows, names in zip(colds, implementations, strict=True):
        for name in map(str, np.unique(names.astype(str)) if width_by_implementation else ()):
            if (names == name).sum() >= _WIDTH_ROWS:
                _, width = _needed(hyper, rows.rows(names == name))
                by_word.setdefault(name, []).append(width)
    # few systems say little of the next one: as wide as the worst of them needed
    width_of = _usual_width if width_by_implementation else max
    return dataclasses.replace(
        prior, hyper=hyper, log_widths={name: width_of(each) for name, each in by_word.items()},
        quantile=max(quantile for quantile, _ in cold),
        log_width=width_of([width for _, width in cold]),
        reference_quantile=max((quantile for quantile, _ in known), default=None),
        reference_log_width=width_of([width for _, width in known]) if known else None,
    )  # fmt: skip


def _usual_width(widths: Sequence[float]) -> float:
    """Log half-width for a next device, of those that each device left out needed."""
    return float(np.sqrt(np.mean(np.square(widths))))


def uninformed(rows: PriorRows) -> FamilyPrior:
    """A prior that no device taught: usual knobs of the form, no network."""
    usual = nobody(rows)
    how = standard([(rows, usual.typical().closed(rows))])
    hyper = dataclasses.replace(process.start_hyper(len(how.centre)), belief=np.array(0.0))
    box = Box.of(rows.inputs, rows.sizes)
    return FamilyPrior(usual, how, None, hyper, box, _UNKNOWN_QUANTILE, _UNKNOWN_LOG_WIDTH)


def nobody(rows: PriorRows) -> Population:
    """Where a form's knobs begin: beliefs alone."""
    names = tuple(sorted(set(map(str, rows.implementation))))
    start = np.tile(rows.form.start, (1, len(names), 1))
    return Population(names, rows.form.start_spread, ("nobody",), start, form=rows.form.name)


def _leave_out(
    prior: FamilyPrior, measured: Mapping[str, tuple[PriorRows, np.ndarray]],
    own: Mapping[str, ImplementationKnobs], data: list[tuple[np.ndarray, np.ndarray]],
    architectures: Mapping[str, str], recipe: TrainingRecipe, seed: int,
    machines: Mapping[str, Machine],
) -> list[tuple[Examples, Examples, Examples | None, np.ndarray]]:  # fmt: skip
    """Each prior device as one that was not in the prior, by trunks that did not see it.

    Its rows by knobs found from a few of them; by knobs usual elsewhere and trunks that saw no
    device of its architecture; by its references' knobs, None where it has none; and the
    implementations of the second and third.
    """
    names = list(measured)
    folds = _folds(names, architectures)
    kept = np.array([[name not in fold for name in names] for fold in folds])
    sees = np.repeat(kept, _INNER_MEMBERS, 0)
    inner = train(data, sees, recipe, seed + 1)
    random = np.random.default_rng(seed)

    def without(fold: tuple[str, ...], name: str) -> tuple[Population, Any]:
        """(knobs, networks) of the devices outside a fold, for a device of it."""
        which = slice(folds.index(fold) * _INNER_MEMBERS, (folds.index(fold) + 1) * _INNER_MEMBERS)
        outside = {name: knobs for name, knobs in own.items() if name not in fold}
        others = knob_fits.population(next(iter(measured.values()))[0].form, outside, machines)
        facts = machines.get(name, NO_FACTS)
        return others.on(facts), jax.tree.map(lambda leaf: leaf[which], inner)

    out = []
    for name in names:
        rows, time_s = measured[name]
        alike = {one for one, arch in architectures.items() if arch == architectures.get(name)}
        references = [other for other in names if other in alike - {name}]
        others, params = without((name,), name)
        strangers, of_strangers = without([fold for fold in folds if name in fold][-1], name)
        order = random.permutation(len(rows))
        few, some, many = order[:_KNOB_ROWS], order[-_HYPER_ROWS:], order[-_ERROR_ROWS:]
        placed = knob_fits.fit_new(others, rows.rows(few), time_s[few])
        rest, seconds = rows.rows(many), time_s[many]
        near = _examples(prior, params, rows.rows(some), time_s[some], placed)
        cold = _cold_examples(prior, of_strangers, rest, seconds, strangers)
        known = others.with_references(references)
        of_references = _cold_examples(prior, params, rest, seconds, known) if references else None
        out.append((near, cold, of_references, rest.implementation))
    return out


def _folds(names: Sequence[str], architectures: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Devices to leave out at once: each alone, then all of one architecture."""
    of_architecture: dict[str, list[str]] = {}
    for name in names:
        of_architecture.setdefault(architectures.get(name, name), []).append(name)
    together = [tuple(references) for references in of_architecture.values()]
    return [(name,) for name in names] + [fold for fold in together if 1 < len(fold) < len(names)]


def _examples(
    prior: FamilyPrior, params: Any, rows: PriorRows, time_s: np.ndarray, knobs: ImplementationKnobs
) -> Examples:
    on = knobs.closed(rows)
    x, f, _ = prior.trunk(rows, on, params)
    return Examples(x, f, unbounded(np.log(time_s) - on.total))


def _cold_examples(
    prior: FamilyPrior, params: Any, rows: PriorRows, time_s: np.ndarray, usual: Population
) -> Examples:
    knobs = usual.typical().including(usual, rows.implementation)
    prior = dataclasses.replace(prior, population=usual)
    return _examples(prior, params, prior.in_place_of_sources(rows), time_s, knobs)


def _needed(hyper: HyperParameters, rows: Examples) -> tuple[float, float]:
    """(deviations, log half-width) that hold 90 % of rows predicted without any."""
    said, deviation = hyper.belief * rows.f, np.sqrt(process.variance(hyper, rows.x, rows.f))
    quantile = np.quantile(np.abs(rows.r - said) / deviation, NOMINAL)
    width = np.quantile(np.abs(bounded(rows.r) - bounded(said)), NOMINAL)
    return float(quantile), float(width)
