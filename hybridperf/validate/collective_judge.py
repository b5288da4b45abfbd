"""One task on one system: a prior of the other systems, adapted to the rows the task gives, and
baselines, judged on the rows it asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hybridperf
from hybridperf.collectives.fit import (
    FAMILY,
    fit_collectives,
    priced_rows,
    references_of,
    train_prior,
)
from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import load_system
from hybridperf.io import InputError
from hybridperf.learning.prior import FamilyPrior, train_family
from hybridperf.learning.prior.shipped import Prior, load_prior
from hybridperf.learning.prior.trunk import TrainingRecipe
from hybridperf.report.collective_plots import bus_bandwidth_plot
from hybridperf.validate import collective_baselines
from hybridperf.validate.baselines import COLUMN
from hybridperf.validate.collective_rows import GROUP
from hybridperf.validate.collective_tasks import TASKS, eligible
from hybridperf.validate.parts import program_digest
from hybridperf.validate.scores import finite, pearson_of_logs

_QUICK_RECIPE, _QUICK_SYSTEMS = TrainingRecipe(steps=200), 3
_MEASURED = ["time_s", "time_min_s", "time_mean_s", "time_std_s", "busbw_log"]
_PRIOR_DEPENDS_ON = ("collectives", "learning", "hardware")
DEPENDS_ON = (
    *(*_PRIOR_DEPENDS_ON, "validate/baselines.py"),
    *(f"validate/collective_{name}.py" for name in ("judge", "rows", "baselines", "tasks")),
)


@dataclasses.dataclass(frozen=True)
class CollectiveEffort:
    """How much is computed."""

    systems: int | None = None  # judged: those of the fewest rows
    draws: int | None = None  # at most
    # of each of three other systems; then the prior is trained shortly
    prior_rows: int | None = None
    baselines: tuple[str, ...] = collective_baselines.NAMES


QUICK = CollectiveEffort(systems=2, draws=1, prior_rows=300)


@dataclasses.dataclass
class OtherSystems:
    """Rows of other systems, and priors of them: trained when first needed, kept in a folder."""

    sweeps: pd.DataFrame
    effort: CollectiveEffort
    seed: int
    folder: Path
    judged: set[str]
    say: Callable[[str], None]
    _priors: dict[str, FamilyPrior] = dataclasses.field(default_factory=dict)

    def rows(self, system: str) -> pd.DataFrame:
        """All that a fit of `system` may know of other systems."""
        most = self.effort.prior_rows
        if most is None:
            return self.sweeps[self.sweeps["system"] != system]
        others = self.sweeps[~self.sweeps["system"].isin(self.judged | {system})]
        others = others.sample(frac=1, random_state=self.seed)
        largest = others["system"].value_counts().index[:_QUICK_SYSTEMS]
        few = others["system"].isin(largest) & (others.groupby("system").cumcount() < most)
        return others[few].sort_index()

    def prior(self, system: str) -> FamilyPrior:
        """The prior of those rows."""
        if system not in self._priors:
            rows = self.rows(system)
            folder = self.folder / self._key(rows)
            self._priors[system] = _loaded(folder) or self._trained(folder, rows)
        return self._priors[system]

    def _key(self, rows: pd.DataFrame) -> str:
        hashed = pd.util.hash_pandas_object(rows.astype(str), index=False).to_numpy()
        program = program_digest(_PRIOR_DEPENDS_ON)
        made_by = f"{hybridperf.__version__} {program} {self.effort} {self.seed}"
        return hashlib.sha256(hashed.tobytes() + made_by.encode()).hexdigest()[:16]

    def _trained(self, folder: Path, rows: pd.DataFrame) -> FamilyPrior:
        begun = time.monotonic()
        systems = {str(name): part.reset_index(drop=True) for name, part in rows.groupby("system")}
        train = _short_prior if self.effort.prior_rows else train_prior
        prior = train(systems, self.seed)
        counts = {name: len(part) for name, part in systems.items()}
        about = {"rows": counts, "seed": self.seed, "version": hybridperf.__version__}
        Prior({FAMILY: prior}, about).save(folder)
        self.say(f"prior of {len(systems)} systems: {time.monotonic() - begun:.0f} s")
        return prior


def _loaded(folder: Path) -> FamilyPrior | None:
    with contextlib.suppress(InputError):  # none yet, or a damaged one
        return load_prior(folder).families[FAMILY]
    return None


def _short_prior(systems: Mapping[str, pd.DataFrame], seed: int) -> FamilyPrior:
    priced = {name: priced_rows(rows, load_system(name)) for name, rows in systems.items()}
    return train_family(priced, seed, _QUICK_RECIPE)


def judge(
    rows: pd.DataFrame, name: str, others: OtherSystems, plots: Sequence[tuple[str, Path]] = ()
) -> list[dict[str, Any]]:
    """Errors of ours and of the baselines for each group of one system's rows, means over draws."""
    task, system = TASKS[name], str(rows["system"].iloc[0])
    draws = []
    for draw in range(others.effort.draws or task.draws_of(len(rows))):
        key = [others.seed, zlib.crc32(f"{name} {system}".encode()), draw]
        fit, test = task.deal(rows, np.random.default_rng(key))
        test = test[eligible(rows, task)[test]]
        given, asked = rows.iloc[fit].reset_index(drop=True), rows.iloc[test].reset_index(drop=True)
        model = fitted(given, system, others)
        draws.append(_errors(model, given, asked, others).assign(draw=draw))
        for kind, path in plots if draw == 0 else ():
            at = (rows["collective"] == kind).to_numpy() & np.isin(np.arange(len(rows)), test)
            title = f"{kind} on {system}: rows not fitted on, and a fit on the others"
            bus_bandwidth_plot(model, rows[at], path, title=title)
    found = []
    for group, part in pd.concat(draws, ignore_index=True).groupby(list(GROUP), sort=True):
        size = int((rows[list(GROUP)] == list(group)).all(axis=1).sum())
        about = {"task": name, **dict(zip(GROUP, group, strict=True))}
        found.append({**about, **group_scores(part), "fitted": len(fit), "rows": size})
    return found


def fitted(given: pd.DataFrame, system: str, others: OtherSystems) -> CollectiveModel:
    """The prior of the other systems adapted to the given rows of one."""
    prior = Prior({FAMILY: others.prior(system)}, {})
    return fit_collectives(given if len(given) else None, system, prior)[0]


def _errors(
    model: CollectiveModel, given: pd.DataFrame, asked: pd.DataFrame, elsewhere: OtherSystems
) -> pd.DataFrame:
    """Per asked row: group, whether in range and interval, its width, errors of all models."""
    unknown = asked.drop(columns=[column for column in _MEASURED if column in asked])
    time_s = asked["time_s"].to_numpy()
    predicted = model.predict(unknown)
    ours_s, low_s, high_s = (
        predicted[name].to_numpy() for name in ("predicted_s", "low_s", "high_s")
    )
    others, system = elsewhere.rows(model.system.id), model.system
    references = references_of(system, others["system"].unique())
    baselines = collective_baselines.fit_all(
        given, others, references, elsewhere.seed, elsewhere.effort.baselines
    )
    return asked[list(GROUP)].assign(
        ours=np.abs(ours_s / time_s - 1),
        inside=(low_s <= time_s) & (time_s <= high_s),
        in_range=predicted["in_range"].to_numpy(bool),
        half_width=np.sqrt(high_s / low_s) - 1,
        measured_s=time_s,
        ours_s=ours_s,
        **{
            f"{COLUMN}{name}": np.abs(np.exp(predicts(unknown)) / time_s - 1)
            for name, predicts in baselines.items()
        },
    )


def group_scores(part: pd.DataFrame) -> dict[str, Any]:
    """One group over all draws. An error is None where a model could not answer for every row."""
    names = [str(name) for name in part if name == "ours" or str(name).startswith(COLUMN)]
    near, draws, means = part[part["in_range"]], part["draw"].nunique(), {}
    for name in names:
        of_draws = part.groupby("draw")[name].apply(lambda values: values.mean(skipna=False))
        means[name] = finite(of_draws.mean(skipna=False))
    return {
        **means,
        "draws": draws,
        "tested": len(part) / draws,
        "inside": int(part["inside"].sum()) / draws,
        "in_range": len(near) / draws,
        "inside_in_range": int(near["inside"].sum()) / draws,
        "half_width": finite(part["half_width"].median()),
        "pearson": finite(
            pearson_of_logs(part["measured_s"].to_numpy(), part["ours_s"].to_numpy())
        ),
    }
