"""One split and family of ops: a prior of the other devices, adapted to rows of the judged ones,
and baselines given the same rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.hardware import load_device
from hybridperf.io import InputError
from hybridperf.learning.prior import Adapted, FamilyPrior, adapt, train_family
from hybridperf.learning.prior.shipped import Prior, load_prior
from hybridperf.learning.prior.trunk import TrainingRecipe
from hybridperf.model.families import architectures_of, references_of
from hybridperf.model.published.ops import DeviceRows
from hybridperf.validate import device_baselines
from hybridperf.validate.device_scores import (
    LEAST_TESTED,
    DrawPredictions,
    device_scores,
    repeat_noise,
)
from hybridperf.validate.device_splits import LINES, Line, Split, goal, has_goal, rows_of_size

LEAST_PRIOR_ROWS = 300  # of a device, to be part of a prior
MOST_TESTED = 2000
_DRAWS = {"20": 2, "50": 2}  # few rows: which ones matters


@dataclasses.dataclass(frozen=True)
class DeviceEffort:
    """How much is computed."""

    sizes: tuple[str, ...] | None = None  # None: those of each line
    most_tested: int = MOST_TESTED
    prior_rows: int | None = None  # of each other device
    prior_devices: int | None = None
    baselines: tuple[str, ...] = device_baselines.NAMES
    everything: bool = False  # fit on all rows also where that takes minutes
    steps: int | None = None  # of the trunk's training
    goals_only: bool = False  # lines that have goals, at the sizes that have one


_QUICK_BASELINES = ("roofline", "floor_and_rates", "trees", "process")
QUICK = DeviceEffort(("0", "50"), 400, 600, 2, _QUICK_BASELINES, steps=500)


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is the same for all that is judged."""

    split: Split
    effort: DeviceEffort
    seed: int
    priors: Path | None = None  # where trained priors are kept
    version: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what they depend on


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """What the other devices' rows of a family taught."""

    prior: FamilyPrior
    rows: Sequence[device_baselines.TimedRows]
    baselines: Mapping[str, device_baselines.Predicts]  # without a row of the new device


def judge_family(devices: Mapping[str, DeviceRows], family: str, setup: Setup) -> dict[str, Any]:
    """{"prior": how it was trained, or None where no device is judged; "results": a dict per line,
    rows fitted on and kind of shape}.
    """
    split, effort = setup.split, setup.effort
    lines = [
        line
        for line in LINES
        if line.family == family and (has_goal(line.name, split.kind) or not effort.goals_only)
    ]
    judged = [
        (device, line)
        for device in split.judged
        for line in lines
        if device in devices
        and len(_test_and_pool(devices[device], line, split)[0]) >= LEAST_TESTED
    ]
    others = prior_rows(devices, split, effort, setup.seed)
    if not judged or not others:
        return {"prior": None, "results": []}
    prior, trained = kept_prior(others, family, setup)
    pooled = [(rows.rows, rows.time_s) for rows in others.values()]
    without_rows = device_baselines.fit_all(pooled, None, setup.seed, effort.baselines)
    results = []
    for device, line in judged:
        # the prior as the device takes it: of its architecture, where there are any
        references = references_of(load_device(device), prior.population.devices)
        elsewhere = Elsewhere(prior.with_references(references), pooled, without_rows)
        about = {"split": split.name, "kind": split.kind, "family": family, "device": device}
        found = judge_line(elsewhere, devices[device], device, line, setup)
        results += [{**about, **result} for result in found]
    return {"prior": trained, "results": results}


def kept_prior(
    others: Mapping[str, DeviceRows], family: str, setup: Setup
) -> tuple[FamilyPrior, dict[str, Any]]:
    """(the prior of these rows, how it was trained); from its file where that is still valid."""
    counts, version = {name: len(rows) for name, rows in others.items()}, dict(setup.version)
    made: dict[str, Any] = {"split": setup.split.name, "family": family, "rows": counts}
    folder = setup.priors / f"{setup.split.name}_{family}" if setup.priors else None
    if folder:
        with contextlib.suppress(InputError):  # none yet, or a damaged one
            before = load_prior(folder)
            before_made = before.provenance["made"]
            if before.provenance.get("version") == version and before_made["rows"] == counts:
                return before.families[family], before_made
    begun = time.monotonic()
    recipe = (
        TrainingRecipe() if setup.effort.steps is None else TrainingRecipe(steps=setup.effort.steps)
    )
    timed = {name: (rows.rows, rows.time_s) for name, rows in others.items()}
    prior = train_family(timed, setup.seed, recipe, architectures_of(others))
    made["seconds"] = time.monotonic() - begun
    if folder:
        Prior({family: prior}, {"version": version, "made": made}).save(folder)
    return prior, made


def prior_rows(
    devices: Mapping[str, DeviceRows], split: Split, effort: DeviceEffort, seed: int
) -> dict[str, DeviceRows]:
    """Pool rows of the devices that a split keeps."""
    out = {}
    for name, rows in devices.items():
        if name in split.left_out:
            continue
        pool = ~rows.about["test"].to_numpy(bool)
        if split.kind == "large":
            pool &= (rows.about["split"] != "test").to_numpy()
        if pool.sum() >= LEAST_PRIOR_ROWS:
            kept = np.flatnonzero(pool)
            if effort.prior_rows is not None:
                kept = np.sort(np.random.default_rng(seed).permutation(kept)[: effort.prior_rows])
            out[name] = rows.some(kept)
    return dict(list(out.items())[: effort.prior_devices])


def fitted(devices: Mapping[str, DeviceRows], device: str, family: str, setup: Setup) -> Any:
    """A model of a family fitted on a device's rows of NeuSight's training tables, from a prior of
    the other devices; None where either is missing.
    """
    others = prior_rows(devices, setup.split, setup.effort, setup.seed)
    if device not in devices or not others:
        return None
    prior, _ = kept_prior(others, family, setup)
    own = devices[device].some((devices[device].about["split"] == "train").to_numpy())
    references = references_of(load_device(device), prior.population.devices)
    return adapt(prior, own.rows, own.time_s, references=references)


def _test_and_pool(rows: DeviceRows, line: Line, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a line's test rows and of its pool rows."""
    chosen, test = line.chosen(rows), rows.about["test"].to_numpy(bool)
    if split.kind == "large":
        test = (rows.about["split"] == "test").to_numpy()
    return np.flatnonzero(chosen & test), np.flatnonzero(chosen & ~test)


def judge_line(
    elsewhere: Elsewhere, rows: DeviceRows, device: str, line: Line, setup: Setup
) -> list[dict[str, Any]]:
    """A dict per number of rows fitted on, view and kind of shape."""
    split, effort, seed = setup.split, setup.effort, setup.seed
    random = np.random.default_rng([seed, zlib.crc32(f"{device} {line.name}".encode())])
    test, pool = _test_and_pool(rows, line, split)
    test, pool = random.permutation(test)[: effort.most_tested], random.permutation(pool)
    seen = pool[-min(effort.most_tested, len(pool) // 2) :]
    shapes = {"unseen": rows.some(test), "seen": rows.some(seen)}
    noise = repeat_noise(rows.some(np.flatnonzero(line.chosen(rows))))
    results = []
    for size in line.sizes:
        count = rows_of_size(size, len(pool), effort.everything)
        if count is None or (effort.sizes is not None and size not in effort.sizes):
            continue
        draws = []
        for draw in range(_DRAWS.get(size, 1)):
            key = [seed, zlib.crc32(f"{device} {line.name} {size}".encode()), draw]
            at = np.random.default_rng(key).permutation(pool)[:count]
            draws.append(_draw(elsewhere, rows.some(at), shapes, setup, np.isin(seen, at)))
        effortful: dict[str, Any] = {
            "adapt_s": float(np.mean([draw["adapt_s"] for draw in draws])),
            "held_out": float(np.mean([draw["held_out"] for draw in draws])) if count else None,
        }
        for kind, some in shapes.items():
            views = {"": np.ones(len(some), bool)}
            views |= {name: view(some) for name, view in line.views.items()}
            for view, mask in views.items():
                found = device_scores([draw[kind] for draw in draws], some.time_s, mask)
                if found is None:
                    continue
                name = f"{line.name}: {view}" if view else line.name
                wanted = goal(name, split.kind, size) if kind == "unseen" else None
                met = None if wanted is None else bool(found["median"] <= wanted)
                about = {"line": name, "size": size, "fitted": count, "shapes": kind}
                goals = {"noise": noise, "goal": wanted, "met": met}
                results.append({**about, **found, **goals, **effortful})
    return results


def _draw(
    elsewhere: Elsewhere,
    own: DeviceRows,
    shapes: Mapping[str, DeviceRows],
    setup: Setup,
    fitted_on: np.ndarray,
) -> dict[str, Any]:
    """Predictions for one draw of own rows; `fitted_on`: which of the seen shapes are in it."""
    begun, timed, prior = time.monotonic(), (own.rows, own.time_s), elsewhere.prior
    adapted: Adapted = adapt(prior, *timed) if len(own) else adapt(prior)
    seconds = time.monotonic() - begun
    baselines, held_out = elsewhere.baselines, np.nan
    if len(own):
        names = setup.effort.baselines
        baselines = device_baselines.fit_all(elsewhere.rows, timed, setup.seed, names)
        held_out = float(np.median(np.abs(np.expm1(adapted.held_out))))
    out: dict[str, Any] = {"adapt_s": seconds, "held_out": held_out}
    for kind, some in shapes.items():
        counts = ~fitted_on if kind == "seen" else np.ones(len(some), bool)
        others = {name: predicts(some.rows) for name, predicts in baselines.items()}
        out[kind] = DrawPredictions(adapted.predict(some.rows), others, counts)
    return out
