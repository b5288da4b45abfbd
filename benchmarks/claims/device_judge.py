"""One split and family of ops: a prior of the other devices, adapted to rows of the judged ones,
and baselines given the same rows.

Which splits, lines and goals there are stands in `device_splits.toml`. A split leaves some devices
out of every prior and judges one or more of them. Its kind says how far the rest are: `near` has a
sibling of the same chip in the prior, `new` has none of its generation, `single` are the
single-precision tables, `large` fits on small shapes and is judged on large ones. A line is a set
of rows with its own draws of rows to fit on; a view looks at some of a line's test rows.

`median`, `mean` and `geomean` are of |predicted / measured - 1|, averaged over draws of rows fitted
on; `excess` is our median minus that of the best baseline, with its bootstrap 95 % interval over
rows; coverage is apart for rows inside and outside the sizes that were fitted on.
"""

import dataclasses
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims import device_baselines
from benchmarks.claims.harness import facts, kept_prior
from benchmarks.claims.scores import COLUMN, SEED, best, coverage_band, excess, pearson_of_logs
from hybridperf.hardware import load_device
from hybridperf.learning.prior import Adapted, FamilyPrior, Predicted, adapt, train_family
from hybridperf.learning.prior.shipped import Prior
from hybridperf.learning.training import TrainingRecipe
from hybridperf.model.families import architectures_of, references_of
from hybridperf.model.machine_facts import machine_of, machines_of
from hybridperf_calibration.published.ops import DeviceRows

Chooses = Callable[[DeviceRows], np.ndarray]  # mask [N]

SIZES: tuple[str, ...] = ("0", "20", "50", "200", "10%", "all")  # rows of the new device to fit on
FEW_SIZES = ("0", "50", "200")  # of lines without a goal, and what is computed unless more is asked
_ALL_IS_CHEAP = 3000  # rows


@dataclasses.dataclass(frozen=True)
class Split:
    """Devices no prior may see, and those of them that are judged."""

    name: str
    left_out: Sequence[str]
    judged: Sequence[str]
    kind: str


@dataclasses.dataclass(frozen=True)
class Line:
    """A set of rows that is judged by itself."""

    name: str
    family: str
    chosen: Chooses
    sizes: Sequence[str]
    views: Mapping[str, Chooses]


def _where(columns: Mapping[str, str | list[str]]) -> Chooses:
    """Rows whose `about` columns hold one of these words."""
    wanted = {name: [one] if isinstance(one, str) else one for name, one in columns.items()}
    return lambda rows: rows.about[list(wanted)].isin(wanted).all(axis=1).to_numpy()


def _above_floor(rows: DeviceRows) -> np.ndarray:
    """Rows above twice what the quickest of a device take, whatever they compute."""
    return np.asarray(rows.time_s > 2 * float(np.quantile(rows.time_s, 0.01)))


def _line(name: str, said: Mapping[str, Any]) -> Line:
    views = {
        word: _where({column: word})
        for column, words in said.get("views", {}).items()
        for word in words
    }
    if said.get("above_floor"):
        views["above twice the floor"] = _above_floor
    return Line(name, said["family"], _where(said["where"]), said.get("sizes", FEW_SIZES), views)


_CLAIM = facts("device_splits.toml")
SPLITS = tuple(Split(name, **said) for name, said in _CLAIM["splits"].items())
LINES = tuple(_line(name, said) for name, said in _CLAIM["lines"].items())
FAMILIES = tuple(dict.fromkeys(line.family for line in LINES))
# by line (and view) and kind of split, then by rows fitted on
GOALS: Mapping[tuple[str, str], Mapping[str, float]] = {
    (name, kind): goals for name, kinds in _CLAIM["goals"].items() for kind, goals in kinds.items()
}


def rows_of_size(size: str, pool: int) -> int | None:
    """How many of a pool's rows a size means; None where they are too few, or too many to fit."""
    if size == "all":
        return pool if pool <= _ALL_IS_CHEAP else None
    count = round(0.1 * pool) if size == "10%" else int(size)
    return count if count <= pool else None


LEAST_PRIOR_ROWS = 300  # of a device, to be part of a prior
LEAST_TESTED = 30  # rows, below which a median means nothing
MOST_TESTED = 2000
RESAMPLES = 400
_LEAST_REPEATS = 20
_RECIPE, _QUICK_RECIPE = TrainingRecipe(), TrainingRecipe(steps=500)
_DRAWS = {"20": 2, "50": 2}  # few rows: which ones matters


@dataclasses.dataclass(frozen=True)
class DeviceEffort:
    """How much is computed."""

    sizes: tuple[str, ...] = FEW_SIZES  # of those that a line has
    most_tested: int = MOST_TESTED
    prior_rows: int | None = None  # of each other device
    prior_devices: int | None = None
    baselines: tuple[str, ...] = device_baselines.NAMES
    recipe: TrainingRecipe = _RECIPE


_QUICK_BASELINES = ("roofline", "floor_and_rates", "trees", "process")
QUICK = DeviceEffort(("0", "50"), 400, 600, 2, _QUICK_BASELINES, _QUICK_RECIPE)


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is the same for all that is judged."""

    split: Split
    effort: DeviceEffort
    priors: Path  # where trained priors are kept
    version: Mapping[str, Any]  # what they depend on

    def prior_rows(self, devices: Mapping[str, DeviceRows]) -> dict[str, DeviceRows]:
        """Pool rows of the devices that a split keeps."""
        out, most = {}, self.effort.prior_rows
        for name, rows in devices.items():
            if name in self.split.left_out:
                continue
            pool = ~rows.about["test"].to_numpy(bool)
            if self.split.kind == "large":
                pool &= (rows.about["split"] != "test").to_numpy()
            if pool.sum() >= LEAST_PRIOR_ROWS:
                kept = np.flatnonzero(pool)
                if most is not None:
                    kept = np.sort(np.random.default_rng(SEED).permutation(kept)[:most])
                out[name] = rows.some(kept)
        return dict(list(out.items())[: self.effort.prior_devices])

    def prior(self, others: Mapping[str, DeviceRows], family: str) -> Prior:
        """The prior of these rows; from its file where that is still valid."""
        timed = {name: (rows.rows, rows.time_s) for name, rows in others.items()}
        counts = {name: len(rows) for name, rows in others.items()}
        about = {"split": self.split.name, "family": family, "rows": counts}
        return kept_prior(
            self.priors / f"{self.split.name}_{family}",
            family,
            {**about, "version": dict(self.version)},
            lambda: train_family(
                timed,
                SEED,
                self.effort.recipe,
                architectures_of(others),
                machines=machines_of(others, family),
                width_by_implementation=True,
            ),
        )

    def test_and_pool(self, rows: DeviceRows, line: Line) -> tuple[np.ndarray, np.ndarray]:
        """Positions of a line's test rows and of its pool rows."""
        chosen, test = line.chosen(rows), rows.about["test"].to_numpy(bool)
        if self.split.kind == "large":
            test = (rows.about["split"] == "test").to_numpy()
        return np.flatnonzero(chosen & test), np.flatnonzero(chosen & ~test)


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """What the other devices' rows of a family taught."""

    setup: Setup
    prior: FamilyPrior
    rows: Sequence[device_baselines.TimedRows]
    baselines: Mapping[str, device_baselines.Predicts]  # without a row of the new device
    rates: np.ndarray  # usual numbers of `floor_and_rates`


def judge_family(devices: Mapping[str, DeviceRows], family: str, setup: Setup) -> dict[str, Any]:
    """{"prior": how it was trained, or None where no device is judged; "results": a dict per line,
    rows fitted on and kind of shape}.
    """
    split, effort = setup.split, setup.effort
    judged = [
        (device, line)
        for device in split.judged
        for line in LINES
        if line.family == family
        and device in devices
        and len(setup.test_and_pool(devices[device], line)[0]) >= LEAST_TESTED
    ]
    others = setup.prior_rows(devices)
    if not judged or not others:
        return {"prior": None, "results": []}
    trained = setup.prior(others, family)
    prior, pooled = trained.families[family], [(rows.rows, rows.time_s) for rows in others.values()]
    rates = device_baselines.usual_rates(pooled)
    without_rows = device_baselines.fit_all(pooled, None, effort.baselines, rates)
    results = []
    for device, line in judged:
        # the prior as the device takes it: of its architecture, where there are any
        references = references_of(load_device(device), prior.population.devices)
        known = prior.with_references(references).on(machine_of(load_device(device), family))
        elsewhere = Elsewhere(setup, known, pooled, without_rows, rates)
        about = {"split": split.name, "kind": split.kind, "family": family, "device": device}
        found = judge_line(elsewhere, devices[device], device, line)
        results += [{**about, **result} for result in found]
    made = {name: trained.provenance["made_by"][name] for name in ("split", "family", "rows")}
    return {"prior": {**made, "seconds": trained.provenance["seconds"]}, "results": results}


def fitted(
    devices: Mapping[str, DeviceRows], device: str, family: str, setup: Setup
) -> Adapted | None:
    """A model of a family fitted on a device's rows of NeuSight's training tables, from a prior of
    the other devices; None where either is missing.
    """
    others = setup.prior_rows(devices)
    if device not in devices or not others:
        return None
    prior = setup.prior(others, family).families[family]
    own = devices[device].some((devices[device].about["split"] == "train").to_numpy())
    references = references_of(load_device(device), prior.population.devices)
    prior = prior.with_references(references).on(machine_of(load_device(device), family))
    return adapt(prior, own.rows, own.time_s)


def judge_line(
    elsewhere: Elsewhere, rows: DeviceRows, device: str, line: Line
) -> list[dict[str, Any]]:
    """A dict per number of rows fitted on, view and kind of shape."""
    setup, effort = elsewhere.setup, elsewhere.setup.effort
    random = np.random.default_rng([SEED, zlib.crc32(f"{device} {line.name}".encode())])
    test, pool = setup.test_and_pool(rows, line)
    test, pool = random.permutation(test)[: effort.most_tested], random.permutation(pool)
    seen = pool[-min(effort.most_tested, len(pool) // 2) :]
    shapes = {"unseen": rows.some(test), "seen": rows.some(seen)}
    noise = repeat_noise(rows.some(np.flatnonzero(line.chosen(rows))))
    results = []
    for size in line.sizes:
        count = rows_of_size(size, len(pool))
        if count is None or size not in effort.sizes:
            continue
        draws = []
        for draw in range(_DRAWS.get(size, 1)):
            key = [SEED, zlib.crc32(f"{device} {line.name} {size}".encode()), draw]
            at = np.random.default_rng(key).permutation(pool)[:count]
            draws.append(_draw(elsewhere, rows.some(at), shapes, np.isin(seen, at)))
        adapt_s, held_out = (
            float(np.mean([draw[name] for draw in draws])) for name in ("adapt_s", "held_out")
        )
        effortful = {"adapt_s": adapt_s, "held_out": held_out if count else None}
        for kind, some in shapes.items():
            views = {"": np.ones(len(some), bool)}
            views |= {f": {name}": view(some) for name, view in line.views.items()}
            for view, mask in views.items():
                found = device_scores([draw[kind] for draw in draws], some.time_s, mask)
                if found is None:
                    continue
                name, goals = line.name + view, GOALS.get((line.name + view, setup.split.kind), {})
                wanted = goals.get(size) if kind == "unseen" else None
                met = None if wanted is None else bool(found["median"] <= wanted)
                about = {"line": name, "size": size, "fitted": count, "shapes": kind}
                judged = {"noise": noise, "goal": wanted, "met": met}
                results.append({**about, **found, **judged, **effortful})
    return results


@dataclasses.dataclass(frozen=True)
class DrawPredictions:
    """Predictions of some rows by ours and the baselines, for one draw of rows fitted on."""

    ours: Predicted
    baselines: Mapping[str, np.ndarray]  # logs of seconds [N]
    counts: np.ndarray  # [N] rows that were not fitted on

    def errors(self, time_s: np.ndarray, mask: np.ndarray) -> pd.DataFrame:
        """Of rows that count: errors of all models, by name, and where the measurement lies."""
        keep, ours = mask & self.counts, self.ours
        log_time = np.log(time_s)[keep]
        log_s = {"ours": ours.log_s, "knobs": ours.closed_log_s}
        log_s |= {f"{COLUMN}{name}": value for name, value in self.baselines.items()}
        low, high = ours.low_log_s[keep], ours.high_log_s[keep]
        return pd.DataFrame({
            **{name: np.abs(np.expm1(value[keep] - log_time)) for name, value in log_s.items()},
            "inside": (low <= log_time) & (log_time <= high),
            "half_width": np.expm1((high - low) / 2), "far": ours.outside[keep] > 0,
            "predicted_s": np.exp(ours.log_s[keep]), "measured_s": time_s[keep],
        })  # fmt: skip


def _draw(
    elsewhere: Elsewhere, own: DeviceRows, shapes: Mapping[str, DeviceRows], fitted_on: np.ndarray
) -> dict[str, Any]:
    """Predictions for one draw of own rows; `fitted_on`: which of the seen shapes are in it."""
    begun_s, timed, setup = time.monotonic(), (own.rows, own.time_s), elsewhere.setup
    adapted: Adapted = adapt(elsewhere.prior, *(timed if len(own) else ()))
    out: dict[str, Any] = {"adapt_s": time.monotonic() - begun_s, "held_out": np.nan}
    baselines = elsewhere.baselines
    if len(own):
        names = setup.effort.baselines
        baselines = device_baselines.fit_all(elsewhere.rows, timed, names, elsewhere.rates)
        out["held_out"] = float(np.median(np.abs(np.expm1(adapted.held_out))))
    for kind, some in shapes.items():
        counts = ~fitted_on if kind == "seen" else np.ones(len(some), bool)
        others = {name: predicts(some.rows) for name, predicts in baselines.items()}
        out[kind] = DrawPredictions(adapted.predict(some.rows), others, counts)
    return out


def device_scores(
    draws: Sequence[DrawPredictions], time_s: np.ndarray, mask: np.ndarray
) -> dict[str, Any] | None:
    """Errors of ours, knobs alone and baselines, means over draws; None of too few rows."""
    each = [draw.errors(time_s, mask) for draw in draws]
    if min(map(len, each)) < LEAST_TESTED:
        return None

    def mean(figure: Callable[[pd.DataFrame], Any]) -> float:
        return float(np.mean([figure(part) for part in each]))

    def median(name: str) -> float:
        return mean(lambda part: np.median(part[name]))

    whole = pd.concat(each, ignore_index=True)
    far, near = whole[whole["far"]], whole[~whole["far"]]
    names = [f"{COLUMN}{name}" for name in device_baselines.NAMES]
    medians = {name: median(name) for name in whole if str(name).startswith(COLUMN)}
    best_name = best(medians)
    ours, others = ([part[name].to_numpy() for part in each] for name in ("ours", best_name))
    low, high = excess(ours, others, np.random.default_rng(0), RESAMPLES)
    band = coverage_band(len(near)) if len(near) else (None, None)
    pearson = [np.corrcoef(part["predicted_s"], part["measured_s"])[0, 1] for part in each]
    both = [part[["measured_s", "predicted_s"]].to_numpy().T for part in each]
    of_logs = [pearson_of_logs(*one) for one in both]
    return {
        "tested": int(mean(len)),
        "median": median("ours"),
        "mean": float(np.mean([one.mean() for one in ours])),
        "geomean": float(np.mean([np.exp(np.log(np.maximum(one, 1e-4)).mean()) for one in ours])),
        "pearson": float(np.mean(pearson)),
        "pearson_logs": float(np.mean(of_logs)),
        "knobs": median("knobs"),
        **{name: medians.get(name) for name in names},
        "best_null": best_name.removeprefix(COLUMN),
        "excess": median("ours") - medians[best_name],
        "excess_low": low,
        "excess_high": high,
        "in_range": len(near),
        "covered_in_range": _share(near["inside"]),
        "band_low": band[0],
        "band_high": band[1],
        "out_of_range": len(far),
        "covered_out_of_range": _share(far["inside"]),
        "covered": float(whole["inside"].mean()),
        "half_width": mean(lambda part: np.mean(part["half_width"].to_numpy())),
        "median_out_of_range": _pooled_median(far["ours"]),
        "knobs_out_of_range": _pooled_median(far["knobs"]),
        "roofline_out_of_range": _pooled_median(far[f"{COLUMN}roofline"]),
    }


def _share(hits: pd.Series) -> float | None:
    return float(hits.mean()) if len(hits) else None


def _pooled_median(errors: pd.Series) -> float | None:
    return float(np.median(errors)) if len(errors) >= LEAST_TESTED else None


def repeat_noise(rows: DeviceRows) -> float | None:
    """Median |log ratio| of two measurements of one op; None where hardly any were repeated."""
    shape = rows.about["shape"].to_numpy(np.uint64)
    key = pd.util.hash_array(rows.rows.implementation.astype(str)) ^ shape
    inputs = pd.DataFrame(rows.rows.inputs.values)
    values = pd.util.hash_pandas_object(inputs, index=False).to_numpy()
    times = pd.Series(np.log(rows.time_s)).groupby(key ^ values)
    spread = (times.max() - times.min())[times.size() > 1]
    return float(spread.median()) if len(spread) >= _LEAST_REPEATS else None
