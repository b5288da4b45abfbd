"""One task on one system: a prior of the other systems, adapted to the rows the task gives, and
baselines, judged on the rows it asks for.

A task says which rows of a system a fit may see, and which it is judged on; in every task the prior
is of the other systems. Few-shot systems, of which about 20 rows per collective are there, stand in
none. Rows are those of the data folder that can be used; a group is a system, collective, link and
implementation.
"""

import dataclasses
import hashlib
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hybridperf
from benchmarks.claims import collective_baselines, harness
from benchmarks.claims.scores import COLUMN, SEED, finite, pearson_of_logs
from hybridperf.collectives import fit
from hybridperf.collectives.algorithms import COLLECTIVES
from hybridperf.collectives.model import CollectiveModel
from hybridperf.collectives.rows import checked, collective_rows, implementations
from hybridperf.hardware import load_system
from hybridperf.io import InputError, read_table, require_columns
from hybridperf.learning.prior import FamilyPrior, train_family
from hybridperf.learning.prior.shipped import Prior
from hybridperf.learning.training import TrainingRecipe
from hybridperf.report.collective_plots import bus_bandwidth_plot
from hybridperf_calibration.published.collectives import FEW_SHOT, FOLDER, MEASURED
from hybridperf_calibration.ship.link_prior import priced_rows, train_prior, with_reference_width

GROUP = ("system", "collective", "link", "implementation")
_LEAST_SECONDS = 1e-9  # where no link that is counted carries a byte


@dataclasses.dataclass(frozen=True)
class MeasuredCollectives:
    """Usable rows: the schema's columns, and

    row             the row's place in its file
    implementation  as `collectives.rows.implementations` names it
    datasheet_s     bytes at the datasheet's rates, no latency
    link_latency_s  the datasheet's
    bus_factor      bus bandwidth over bytes / seconds
    """

    sweeps: pd.DataFrame  # whole sweeps of systems
    few: pd.DataFrame  # about 20 rows per collective of further systems; the others are kept aside
    left_out: dict[str, dict[str, int]]  # [file][reason] rows

    def of(self, system: str, few: bool) -> pd.DataFrame:
        """Rows of one system, of those with about 20 rows or of the others."""
        table = self.few if few else self.sweeps
        return table[table["system"] == system].reset_index(drop=True)


def read_groups(data: Path) -> MeasuredCollectives:
    """Both tables; the second may be missing (no rows), the first may not (`InputError`)."""
    sweeps_at, few_at = (data / FOLDER / name for name in (MEASURED, FEW_SHOT))
    if not sweeps_at.is_file():
        raise InputError(
            f"expected measured collectives at {sweeps_at}, found none; give --data DIR"
        )
    sweeps, left_out = usable(read_table(sweeps_at), MEASURED)
    few, reasons = sweeps.iloc[:0], {"the table is not there": 0}
    if few_at.is_file():
        few, reasons = usable(read_table(few_at), FEW_SHOT)
    return MeasuredCollectives(sweeps, few, {MEASURED: left_out, FEW_SHOT: reasons})


def usable(frame: pd.DataFrame, name: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """(rows with the columns above, how many others by reason) of a table of several systems."""
    wanted = ["system", "link", "collective", "bytes", "n_gpus", "n_nodes", "time_s"]
    require_columns(frame, wanted, name)
    frame = frame.assign(row=np.arange(len(frame)))
    left_out: Counter[str] = Counter()
    time_s = pd.to_numeric(frame["time_s"], errors="coerce")
    timed = np.isfinite(time_s) & (time_s > 0)
    if not timed.all():
        left_out["the time is no number above zero"] += int((~timed).sum())
    frame = frame.assign(time_s=time_s)[timed]
    parts = []
    for system_id, rows in frame.groupby("system", sort=True):
        try:
            system = load_system(str(system_id))
        except InputError:
            left_out[f"no facts of the system {system_id} are known"] += len(rows)
            continue
        good, problem, _ = checked(rows, system)
        # without the values of its row and the remedy
        left_out.update(text.split(", got ")[0].split(";")[0] for text in problem if text)
        if len(good):
            seconds = collective_rows(good, system).seconds.sum(1)
            factor = [
                COLLECTIVES[kind].bus_factor(n)
                for kind, n in zip(good["collective"], good["n_gpus"], strict=True)
            ]
            good = good.assign(
                implementation=implementations(good), link_latency_s=system.latency_s
            )
            datasheet_s = np.maximum(seconds, _LEAST_SECONDS)
            parts.append(good.assign(datasheet_s=datasheet_s, bus_factor=factor))
    if not parts:
        raise InputError(
            f"no row of {name} can be used ({'; '.join(left_out) or 'it has none'}); check the file"
        )
    return pd.concat(parts, ignore_index=True), dict(left_out)


LEAST_ROWS = 40  # of a group, to be judged
LEAST_FEW_ROWS = 10  # of a group of a few-shot system
_FEW = 20
_MANY_ROWS = 1500
_QUICK_RECIPE, _QUICK_SYSTEMS = TrainingRecipe(steps=200), 3
_MEASURED = ["time_s", "time_min_s", "time_mean_s", "time_std_s", "busbw_log"]
_PRIOR_DEPENDS_ON = ("collectives", "learning", "hardware")
DEPENDS_ON = (
    *(*_PRIOR_DEPENDS_ON, "benchmarks/claims/scores.py", "benchmarks/claims/nccl_switch.py"),
    *(f"benchmarks/claims/collective_{name}.py" for name in ("judge", "baselines")),
)

Mask = Callable[[pd.DataFrame], np.ndarray]  # [N]


@dataclasses.dataclass(frozen=True)
class CollectiveTask:
    """How the rows of a system are dealt out."""

    given: Mask  # of rows in any order: which to fit on
    draws: int = 1
    few: bool = False  # of few-shot systems
    gives_rows: bool = True
    slow: bool = False  # where a system has many rows: one draw
    asked: Mask | None = None  # which are judged; all others if not given

    def deal(
        self, rows: pd.DataFrame, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the rows to fit on and of those to be judged on."""
        order = random.permutation(len(rows))
        shuffled = rows.iloc[order]
        given = self.given(shuffled)
        asked = ~given if self.asked is None else self.asked(shuffled)
        return np.sort(order[given]), np.sort(order[asked])


def _nothing(rows: pd.DataFrame) -> np.ndarray:
    return np.zeros(len(rows), bool)


def _few_of(*columns: str) -> Mask:
    return lambda rows: rows.groupby(list(columns)).cumcount().to_numpy() < _FEW


def _half(rows: pd.DataFrame) -> np.ndarray:
    return np.arange(len(rows)) < len(rows) // 2


def _ranks(fewest: int, most: int) -> Mask:
    return lambda rows: rows["n_gpus"].between(fewest, most).to_numpy()


TASKS: Mapping[str, CollectiveTask] = {
    "unseen": CollectiveTask(_nothing, gives_rows=False),
    "near": CollectiveTask(_nothing, few=True, gives_rows=False),
    "per_collective": CollectiveTask(_few_of("collective"), 3),
    "per_group": CollectiveTask(_few_of(*GROUP), 3),
    "half": CollectiveTask(_half, 3, slow=True),
    "ranks": CollectiveTask(_ranks(0, 4), asked=_ranks(8, 8)),
    "few_shot": CollectiveTask(_half, 3, few=True),
}


def eligible(rows: pd.DataFrame, task: CollectiveTask) -> np.ndarray:
    """Whether each row [N] is of a group with enough of them to be judged."""
    least = LEAST_FEW_ROWS if task.few else LEAST_ROWS
    return (rows.groupby(list(GROUP))["row"].transform("size") >= least).to_numpy()


@dataclasses.dataclass(frozen=True)
class CollectiveEffort:
    """How much is computed."""

    systems: int | None = None  # judged: those of the fewest rows
    draws: int | None = None  # at most
    # of each of three other systems; then the prior is trained shortly
    prior_rows: int | None = None


QUICK = CollectiveEffort(systems=2, draws=1, prior_rows=300)


@dataclasses.dataclass
class OtherSystems:
    """Rows of other systems, and priors of them: trained when first needed, kept in a folder.

    How far off a system without rows is that has references in the prior, the other few-shot
    systems tell where one of them is judged.
    """

    sweeps: pd.DataFrame
    few: pd.DataFrame
    effort: CollectiveEffort
    folder: Path
    judged: set[str]
    say: Callable[[str], None]
    _priors: dict[str, Prior] = dataclasses.field(default_factory=dict)

    def rows(self, system: str) -> pd.DataFrame:
        """All that a fit of `system` may know of other systems."""
        most = self.effort.prior_rows
        if most is None:
            return self.sweeps[self.sweeps["system"] != system]
        others = self.sweeps[~self.sweeps["system"].isin(self.judged | {system})]
        others = others.sample(frac=1, random_state=SEED)
        largest = others["system"].value_counts().index[:_QUICK_SYSTEMS]
        few = others["system"].isin(largest) & (others.groupby("system").cumcount() < most)
        return others[few].sort_index()

    def prior(self, system: str) -> Prior:
        """The prior of those rows."""
        if system not in self._priors:
            rows = self.rows(system)
            hashed = pd.util.hash_pandas_object(rows.astype(str), index=False).to_numpy()
            program = harness.program_digest(_PRIOR_DEPENDS_ON)
            made_by = f"{hybridperf.__version__} {program} {self.effort} {SEED}"
            key = hashlib.sha256(hashed.tobytes() + made_by.encode()).hexdigest()[:16]
            about = {"rows": {str(name): len(part) for name, part in rows.groupby("system")}}
            self._priors[system] = harness.kept_prior(
                self.folder / key, fit.FAMILY, about, lambda: self._trained(rows)
            )
            others = self.few[self.few["system"] != system]
            if len(others) < len(self.few):
                self._priors[system] = _as_wide_as(self._priors[system], others)
        return self._priors[system]

    def _trained(self, rows: pd.DataFrame) -> FamilyPrior:
        begun_s = time.monotonic()
        systems = {str(name): part.reset_index(drop=True) for name, part in rows.groupby("system")}
        if self.effort.prior_rows:
            priced = {name: priced_rows(part, load_system(name)) for name, part in systems.items()}
            prior = train_family(priced, SEED, _QUICK_RECIPE)
        else:
            prior = train_prior(systems, SEED)
        self.say(f"prior of {len(systems)} systems: {time.monotonic() - begun_s:.0f} s")
        return prior


def _as_wide_as(prior: Prior, few: pd.DataFrame) -> Prior:
    """A prior whose intervals without rows are as wide as those of some few-shot systems need."""
    by_system = {str(name): rows for name, rows in few.groupby("system")}
    known = with_reference_width(prior.families[fit.FAMILY], by_system)
    return dataclasses.replace(prior, families={fit.FAMILY: known})


def judge(
    rows: pd.DataFrame, name: str, others: OtherSystems, plots: Sequence[tuple[str, Path]] = ()
) -> dict[str, list[dict[str, Any]]]:
    """`results`: errors of ours and of the baselines for each group of one system's rows, means
    over draws.
    """
    task, system = TASKS[name], str(rows["system"].iloc[0])
    draws, slow = [], task.slow and len(rows) > _MANY_ROWS
    for draw in range(others.effort.draws or (1 if slow else task.draws)):
        key = [SEED, zlib.crc32(f"{name} {system}".encode()), draw]
        fitted, test = task.deal(rows, np.random.default_rng(key))
        test = test[eligible(rows, task)[test]]
        given, asked = (rows.iloc[at].reset_index(drop=True) for at in (fitted, test))
        model = fit.fit_collectives(given if len(given) else None, system, others.prior(system))[0]
        draws.append(_errors(model, given, asked, others).assign(draw=draw))
        for kind, path in plots if draw == 0 else ():
            at = (rows["collective"] == kind).to_numpy() & np.isin(np.arange(len(rows)), test)
            title = f"{kind} on {system}: rows not fitted on, and a fit on the others"
            bus_bandwidth_plot(model, rows[at], path, title=title)
    found = []
    for group, part in pd.concat(draws, ignore_index=True).groupby(list(GROUP), sort=True):
        size = int((rows[list(GROUP)] == list(group)).all(axis=1).sum())
        about = {"task": name, **dict(zip(GROUP, group, strict=True))}
        found.append({**about, **group_scores(part), "fitted": len(fitted), "rows": size})
    return {"results": found}


def _errors(
    model: CollectiveModel, given: pd.DataFrame, asked: pd.DataFrame, elsewhere: OtherSystems
) -> pd.DataFrame:
    """Per asked row: group, whether in range and interval, its width, errors of all models."""
    unknown, time_s = asked.drop(columns=_MEASURED, errors="ignore"), asked["time_s"].to_numpy()
    predicted = model.predict(unknown)
    ours_s, low_s, high_s = (
        predicted[name].to_numpy() for name in ("predicted_s", "low_s", "high_s")
    )
    others, system = elsewhere.rows(model.system.id), model.system
    references = fit.references_of(system, others["system"].unique())
    baselines = collective_baselines.fit_all(given, others, references)
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
    pearson = pearson_of_logs(part["measured_s"].to_numpy(), part["ours_s"].to_numpy())
    return {
        **means,
        "draws": draws,
        "tested": len(part) / draws,
        "inside": int(part["inside"].sum()) / draws,
        "in_range": len(near) / draws,
        "inside_in_range": int(near["inside"].sum()) / draws,
        "half_width": finite(part["half_width"].median()),
        "pearson": finite(pearson),
    }
