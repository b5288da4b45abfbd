"""One task on one system: a prior of the other systems, adapted to the rows the task gives, and
null models, on the rows it asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
from hybridperf.validate import collective_nulls
from hybridperf.validate.collective_groups import GROUP
from hybridperf.validate.collective_tasks import TASKS, eligible

_QUICK_RECIPE, _QUICK_SYSTEMS = TrainingRecipe(steps=200), 3
_MEASURED = ["time_s", "time_min_s", "time_mean_s", "time_std_s", "busbw_log"]
_PRIOR_DEPENDS_ON: tuple[str, ...] = ("collectives", "learning", "hardware")
_DEPENDS_ON = (
    *_PRIOR_DEPENDS_ON,
    *(f"validate/collective_{name}.py" for name in ("judge", "groups", "nulls", "tasks")),
)

Says = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is computed."""

    systems: int | None = None  # judged: those of the fewest rows
    draws: int | None = None  # at most
    prior_rows: int | None = (
        None  # of each of three other systems; then the prior is trained shortly
    )
    nulls: tuple[str, ...] = collective_nulls.NAMES


QUICK = Effort(systems=2, draws=1, prior_rows=300)


@dataclasses.dataclass
class Elsewhere:
    """Rows of the sweeps' systems and the priors of them, trained when first asked for and kept in
    a folder.
    """

    sweeps: pd.DataFrame
    effort: Effort
    seed: int
    folder: Path
    judged: set[str]
    say: Says
    _priors: dict[str, FamilyPrior] = dataclasses.field(default_factory=dict)

    def rows(self, system: str) -> pd.DataFrame:
        """All that a fit of `system` may know of other systems."""
        if self.effort.prior_rows is None:
            return self.sweeps[self.sweeps["system"] != system]
        others = self.sweeps[~self.sweeps["system"].isin(self.judged | {system})].sample(
            frac=1, random_state=self.seed
        )
        largest = others["system"].value_counts().index[:_QUICK_SYSTEMS]
        few = others["system"].isin(largest) & (
            others.groupby("system").cumcount() < self.effort.prior_rows
        )
        return others[few].sort_index()

    def prior(self, system: str) -> FamilyPrior:
        """The prior of those rows."""
        if system not in self._priors:
            rows = self.rows(system)
            key = self._key(rows)
            self._priors[system] = self._loaded(key) or self._trained(key, rows)
        return self._priors[system]

    def _key(self, rows: pd.DataFrame) -> str:
        digest = hashlib.sha256(
            pd.util.hash_pandas_object(rows.astype(str), index=False).to_numpy().tobytes()
        )
        digest.update(
            f"{hybridperf.__version__} {_digest(_PRIOR_DEPENDS_ON)} {self.effort} {self.seed}".encode()
        )
        return digest.hexdigest()[:16]

    def _loaded(self, key: str) -> FamilyPrior | None:
        with contextlib.suppress(InputError):  # none yet, or a damaged one
            return load_prior(self.folder / key).families[FAMILY]
        return None

    def _trained(self, key: str, rows: pd.DataFrame) -> FamilyPrior:
        begun = time.monotonic()
        systems = {str(name): part.reset_index(drop=True) for name, part in rows.groupby("system")}
        prior = (
            _short_prior(systems, self.seed)
            if self.effort.prior_rows
            else train_prior(systems, self.seed)
        )
        counts = {name: len(part) for name, part in systems.items()}
        Prior(
            {FAMILY: prior}, {"rows": counts, "seed": self.seed, "version": hybridperf.__version__}
        ).save(self.folder / key)
        self.say(f"prior of {len(systems)} systems: {time.monotonic() - begun:.0f} s")
        return prior


def _short_prior(systems: Mapping[str, pd.DataFrame], seed: int) -> FamilyPrior:
    return train_family(
        {name: priced_rows(rows, load_system(name)) for name, rows in systems.items()},
        seed,
        _QUICK_RECIPE,
    )


# --- one task on one system -----------------------------------------------------------------------


def judge(
    rows: pd.DataFrame, name: str, elsewhere: Elsewhere, plots: Sequence[tuple[str, Path]] = ()
) -> list[dict[str, Any]]:
    """A dict per group of one system's rows: errors of ours and of the null models, coverage and
    width of intervals, means over draws.
    """
    task, system = TASKS[name], str(rows["system"].iloc[0])
    draws = []
    for draw in range(elsewhere.effort.draws or task.draws_of(len(rows))):
        random = np.random.default_rng(
            [elsewhere.seed, zlib.crc32(f"{name} {system}".encode()), draw]
        )
        fit, test = task.deal(rows, random)
        test = test[eligible(rows, task)[test]]
        given, asked = rows.iloc[fit].reset_index(drop=True), rows.iloc[test].reset_index(drop=True)
        model = fitted(given, system, elsewhere)
        draws.append(_errors(model, given, asked, elsewhere).assign(draw=draw))
        if draw == 0:
            for kind, path in plots:
                at = (rows["collective"] == kind).to_numpy() & np.isin(np.arange(len(rows)), test)
                bus_bandwidth_plot(
                    model,
                    rows[at],
                    path,
                    title=f"{kind} on {system}: rows not fitted on, and a fit on the others",
                )
    return [
        {
            "task": name,
            **dict(zip(GROUP, key, strict=True)),
            **scores(part),
            "fitted": len(fit),
            "rows": _size(rows, key),
        }
        for key, part in pd.concat(draws, ignore_index=True).groupby(list(GROUP), sort=True)
    ]


def fitted(given: pd.DataFrame, system: str, elsewhere: Elsewhere) -> CollectiveModel:
    """The prior of the other systems adapted to the given rows of one."""
    model, _ = fit_collectives(
        given if len(given) else None, system, Prior({FAMILY: elsewhere.prior(system)}, {})
    )
    return model


def _errors(
    model: CollectiveModel, given: pd.DataFrame, asked: pd.DataFrame, elsewhere: Elsewhere
) -> pd.DataFrame:
    """Per asked row: its group, whether it is in range and in its interval, half the interval's
    width, and the error of each model.
    """
    unknown = asked.drop(columns=[column for column in _MEASURED if column in asked])
    time_s = asked["time_s"].to_numpy()
    said = model.predict(unknown)
    others, system = elsewhere.rows(model.system.id), model.system
    references = references_of(system, others["system"].unique())
    nulls = collective_nulls.fit_all(
        given, others, references, elsewhere.seed, elsewhere.effort.nulls
    )
    columns = {
        f"null_{null}": np.abs(np.exp(predicts(unknown)) / time_s - 1)
        for null, predicts in nulls.items()
    }
    return asked[list(GROUP)].assign(
        ours=np.abs(said["predicted_s"].to_numpy() / time_s - 1),
        inside=(said["low_s"].to_numpy() <= time_s) & (time_s <= said["high_s"].to_numpy()),
        in_range=said["in_range"].to_numpy(bool),
        half_width=np.sqrt(said["high_s"].to_numpy() / said["low_s"].to_numpy()) - 1,
        **columns,
    )


def scores(part: pd.DataFrame) -> dict[str, Any]:
    """One group over all draws. An error is None where a model could not answer for every row."""
    errors = [column for column in part if column == "ours" or str(column).startswith("null_")]
    per_draw = part.groupby("draw")
    near = part[part["in_range"]]
    draws = part["draw"].nunique()
    return {
        **{
            str(column): _number(
                per_draw[column].apply(lambda values: values.mean(skipna=False)).mean(skipna=False)
            )
            for column in errors
        },
        "draws": draws,
        "tested": len(part) / draws,
        "inside": int(part["inside"].sum()) / draws,
        "in_range": len(near) / draws,
        "inside_in_range": int(near["inside"].sum()) / draws,
        "half_width": _number(part["half_width"].median()),
    }


def _size(rows: pd.DataFrame, key: tuple[Any, ...]) -> int:
    return int((rows[list(GROUP)] == list(key)).all(axis=1).sum())


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def program() -> str:
    """Digest of the files that a result depends on."""
    return _digest(_DEPENDS_ON)


@functools.cache
def _digest(names: tuple[str, ...]) -> str:
    """Digest of program files, read once: what runs does not change when they do."""
    library, digest = Path(hybridperf.__file__).parent, hashlib.sha256()
    for name in names:
        for path in (
            sorted((library / name).rglob("*.*")) if (library / name).is_dir() else [library / name]
        ):
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
