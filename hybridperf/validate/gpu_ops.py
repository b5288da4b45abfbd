"""Ops on GPUs nobody measured yet: a prior of the other devices, a few rows of the new one, errors
on shapes that no fit has seen.

For each split (which devices are left out) and family of ops a prior is trained on the other
devices' pool rows. For each line of the table it is adapted to 0, 20, 50, 200 rows, 10 % and
sometimes all rows of the new device's pool, and predicts

    unseen    test shapes: no device's rows of them were ever fitted on
    seen      pool shapes that other devices' rows in the prior may hold, and this device's rows
              fitted on do not

Beside each stand the null models given the same rows, the knobs alone, the noise between repeats,
how many measurements lie inside their 90 % interval, and the goal. A finished (split, family) is
kept in OUT/parts and not computed again while program, data and seed are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.hardware import load_device
from hybridperf.io import InputError, write_json, write_table
from hybridperf.learning.prior import Adapted, FamilyPrior, adapt, train_family
from hybridperf.learning.prior.shipped import Prior, load_prior
from hybridperf.learning.prior.trunk import TrainingRecipe
from hybridperf.model.families import architectures_of, references_of
from hybridperf.model.published.ops import (
    FILES,
    DeviceRows,
    PublishedRows,
    read_families,
    require_data,
)
from hybridperf.report import device_plots
from hybridperf.validate import model_ops, null_models
from hybridperf.validate.gpu_keep import Keep, keep_part, kept_part, version_of
from hybridperf.validate.gpu_lines import (
    FAMILIES,
    GOAL_SIZES,
    LINES,
    SPLITS,
    Line,
    Split,
    goal,
    has_goal,
    rows_of_size,
)
from hybridperf.validate.gpu_scores import LEAST_TESTED, Guesses, repeat_noise, scores
from hybridperf.validate.gpu_tables import left_out_text, met, tables

SCHEMA_VERSION = 1
LEAST_PRIOR_ROWS = 300  # of a device, to be part of a prior
MOST_TESTED = 2000
_DRAWS = {"20": 2, "50": 2}  # few rows: which ones matters

Says = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is computed."""

    sizes: tuple[str, ...] | None = None  # None: those of each line
    most_tested: int = MOST_TESTED
    prior_rows: int | None = None  # of each other device
    prior_devices: int | None = None
    nulls: tuple[str, ...] = null_models.NAMES
    everything: bool = False  # fit on all rows also where that takes minutes
    steps: int | None = None  # of the trunk's training
    goals_only: bool = False  # lines for which the issue names goals, at the sizes it names


QUICK = Effort(
    ("0", "50"), 400, 600, 2, ("roofline", "floor_and_rates", "trees", "process"), steps=500
)
_QUICK_JOBS = (("t4",), ("softmax", "norm"))


def run(
    data: Path, out: Path, *, quick: bool = False, families: Sequence[str] = FAMILIES,
    splits: Sequence[str] | None = None, everything: bool = False, goals_only: bool = False,
    seed: int = 0, say: Says = print,
) -> Mapping[str, Any]:  # fmt: skip
    """Judge; leaves `gpu_ops.json`, `gpu_ops.csv` (a line per split, device, line, rows and kind of
    shape) and plots in `out`.
    """
    data, out = Path(data), Path(out)
    effort = (
        QUICK
        if quick
        else Effort(
            GOAL_SIZES if goals_only else None, everything=everything, goals_only=goals_only
        )
    )
    names = list(splits or [split.name for split in SPLITS])
    if quick:
        names, families = list(_QUICK_JOBS[0]), _QUICK_JOBS[1]
    if unknown := sorted({*names} - {split.name for split in SPLITS} | {*families} - {*FAMILIES}):
        raise InputError(
            f"unknown split or family {unknown[0]!r}; splits are"
            f" {', '.join(s.name for s in SPLITS)}, families {', '.join(FAMILIES)}"
        )
    require_data(data)
    chosen = [split for split in SPLITS if split.name in names]
    version = version_of(data, seed, effort)
    parts: list[dict[str, Any]] = []
    left_out: dict[str, dict[str, int]] = {}
    begun, done, jobs = time.monotonic(), 0, len(families) * len(chosen)
    for family in families:
        measured: PublishedRows | None = None
        for split in chosen:
            path = out / "parts" / f"{split.name}_{family}.json"
            part = kept_part(path, version)
            if part is None:
                measured = measured or read_families(data, [family])
                part = {
                    "version": version,
                    "left_out": measured.left_out,
                    **judge_family(
                        measured.families.get(family, {}),
                        family,
                        split,
                        effort,
                        seed,
                        Keep(out / "priors", version),
                    ),
                }
                keep_part(path, part)
                left = (time.monotonic() - begun) / (done + 1) * (jobs - done - 1)
                say(
                    f"{split.name} {family}: {len(part['results'])} results; about {left / 60:.0f}"
                    " min left"
                )
            done += 1
            parts.append(part)
            left_out |= part["left_out"]
    results = pd.DataFrame([result for part in parts for result in part["results"]])
    if results.empty:
        raise InputError(
            f"no rows to judge under {data}; expected the tables {', '.join(sorted(FILES))} in"
            f" {data / 'compute'}"
        )
    wants_models = not quick and set(model_ops.FAMILIES) <= set(families)
    models = _model_ops(data, out, effort, version, seed, chosen, say) if wants_models else []
    summary = {
        "version": version, "left_out": left_out,
        "priors": [part["prior"] for part in parts if part["prior"]],
        "results": list(results.astype(object).where(results.notna(), None).to_dict("records")),
        "met": met(results), "models": models,
    }  # fmt: skip
    write_json(out / "gpu_ops.json", "validate-gpu-ops", SCHEMA_VERSION, summary)
    write_table(results, out / "gpu_ops.csv")
    for family, rows in results.groupby("family", sort=False):
        device_plots.learning_curves(rows, out / f"learning_curve_{family}.png")
    say("\n" + tables(results) + ("\n\n" + model_ops.table(models) if models else ""))
    say("\n" + left_out_text(left_out) + f"\n\ngpu_ops.json, gpu_ops.csv and plots are in {out}")
    return summary


def _model_ops(
    data: Path,
    out: Path,
    effort: Effort,
    version: Mapping[str, Any],
    seed: int,
    chosen: Sequence[Split],
    say: Says,
) -> list[dict[str, Any]]:
    """Sums over the ops of whole models, for the devices that the chosen splits leave out."""
    if not model_ops.there(data):
        say(
            f"no table {model_ops.MODEL_OPS} in {data / 'compute'}: sums over models are not judged"
        )
        return []
    measured: dict[str, PublishedRows] = {}
    models = []
    for split in chosen:
        for device in (device for device, name in model_ops.DEVICES.items() if name == split.name):
            path = out / "parts" / f"model_ops_{device}.json"
            part = kept_part(path, version)
            if part is None:
                if not measured:
                    measured = {
                        family: read_families(data, [family]) for family in model_ops.FAMILIES
                    }
                keep = Keep(out / "priors", version)
                adapted = functools.cache(
                    functools.partial(_fitted, measured, device, split, effort, seed, keep)
                )
                part = {"version": version, "models": model_ops.judge(data, device, adapted)[0]}
                keep_part(path, part)
                say(f"{device}: sums over {len(part['models'])} models")
            models += part["models"]
    return models


def _fitted(
    measured: Mapping[str, PublishedRows],
    device: str,
    split: Split,
    effort: Effort,
    seed: int,
    keep: Keep,
    family: str,
) -> Adapted | None:
    """A model of a family fitted on a device's rows of NeuSight's training tables, from a prior of
    the other devices.
    """
    devices = measured[family].families.get(family, {}) if family in measured else {}
    others = prior_rows(devices, split, effort, seed)
    if device not in devices or not others:
        return None
    prior, _ = kept_prior(others, family, split, effort, seed, keep)
    own = devices[device].some((devices[device].about["split"] == "train").to_numpy())
    return adapt(
        prior,
        own.rows,
        own.time_s,
        references=references_of(load_device(device), prior.population.devices),
    )


# --- one split and family -------------------------------------------------------------------------


def judge_family(
    devices: Mapping[str, DeviceRows],
    family: str,
    split: Split,
    effort: Effort,
    seed: int,
    keep: Keep | None = None,
) -> dict[str, Any]:
    """{"prior": how it was trained, or None where no device is judged; "results": a dict per line,
    rows fitted on and kind of shape}.
    """
    lines = [
        line
        for line in LINES
        if line.family == family and (has_goal(line.name, split.kind) or not effort.goals_only)
    ]
    judged = [(device, line) for device in split.judged if device in devices for line in lines]
    judged = [
        (device, line)
        for device, line in judged
        if len(_test_and_pool(devices[device], line, split)[0]) >= LEAST_TESTED
    ]
    others = prior_rows(devices, split, effort, seed)
    if not judged or not others:
        return {"prior": None, "results": []}
    prior, trained = kept_prior(others, family, split, effort, seed, keep)
    pooled = [(rows.rows, rows.time_s) for rows in others.values()]
    elsewhere = Elsewhere(prior, pooled, null_models.fit_all(pooled, None, seed, effort.nulls))
    results = [
        {"split": split.name, "kind": split.kind, "family": family, "device": device, **result}
        for device, line in judged
        for result in judge_line(
            _for(elsewhere, device), devices[device], device, line, split, effort, seed
        )
    ]
    return {"prior": trained, "results": results}


def _for(elsewhere: Elsewhere, device: str) -> Elsewhere:
    """With the prior as one device takes it: from those of its architecture,
    where there are any.
    """
    prior = elsewhere.prior
    return dataclasses.replace(
        elsewhere,
        prior=prior.with_references(references_of(load_device(device), prior.population.devices)),
    )


def kept_prior(
    others: Mapping[str, DeviceRows],
    family: str,
    split: Split,
    effort: Effort,
    seed: int,
    keep: Keep | None,
) -> tuple[FamilyPrior, dict[str, Any]]:
    """(the prior of these rows, how it was trained); from its file where the same program made one
    from them.
    """
    made: dict[str, Any] = {
        "split": split.name,
        "family": family,
        "rows": {name: len(rows) for name, rows in others.items()},
    }
    folder = keep.folder / f"{split.name}_{family}" if keep else None
    if keep and folder:
        with contextlib.suppress(InputError):  # none yet, or a damaged one
            before = load_prior(folder)
            if (
                before.provenance.get("version") == dict(keep.version)
                and before.provenance["made"]["rows"] == made["rows"]
            ):
                return before.families[family], before.provenance["made"]
    begun = time.monotonic()
    recipe = TrainingRecipe() if effort.steps is None else TrainingRecipe(steps=effort.steps)
    prior = train_family(
        {name: (rows.rows, rows.time_s) for name, rows in others.items()},
        seed,
        recipe,
        architectures_of(others),
    )
    made["seconds"] = time.monotonic() - begun
    if keep and folder:
        Prior({family: prior}, {"version": dict(keep.version), "made": made}).save(folder)
    return prior, made


def prior_rows(
    devices: Mapping[str, DeviceRows], split: Split, effort: Effort, seed: int
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


def _test_and_pool(rows: DeviceRows, line: Line, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a line's test rows and of its pool rows."""
    chosen, test = line.chosen(rows), rows.about["test"].to_numpy(bool)
    if split.kind == "large":
        test = (rows.about["split"] == "test").to_numpy()
    return np.flatnonzero(chosen & test), np.flatnonzero(chosen & ~test)


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """What the other devices' rows of a family taught."""

    prior: FamilyPrior
    rows: Sequence[null_models.Rows]
    nulls: Mapping[str, null_models.Predicts]  # without a row of the new device


def judge_line(
    elsewhere: Elsewhere,
    rows: DeviceRows,
    device: str,
    line: Line,
    split: Split,
    effort: Effort,
    seed: int,
) -> list[dict[str, Any]]:
    """A dict per number of rows fitted on, view and kind of shape."""
    random = np.random.default_rng([seed, zlib.crc32(f"{device} {line.name}".encode())])
    test, pool = _test_and_pool(rows, line, split)
    test, pool = random.permutation(test)[: effort.most_tested], random.permutation(pool)
    seen = pool[-min(effort.most_tested, len(pool) // 2) :]
    shapes = {"unseen": rows.some(test), "seen": rows.some(seen)}
    masks = {
        kind: {
            "": np.ones(len(some), bool),
            **{name: view(some) for name, view in line.views.items()},
        }
        for kind, some in shapes.items()
    }
    noise = repeat_noise(rows.some(np.flatnonzero(line.chosen(rows))))
    results = []
    for size in line.sizes:
        if effort.sizes is not None and size not in effort.sizes:
            continue
        count = rows_of_size(size, len(pool), effort.everything)
        if count is None:
            continue
        draws = []
        for draw in range(_DRAWS.get(size, 1)):
            at = np.random.default_rng(
                [seed, zlib.crc32(f"{device} {line.name} {size}".encode()), draw]
            ).permutation(pool)[:count]
            draws.append(
                _draw(elsewhere, rows.some(at), shapes, effort, seed, exclude=np.isin(seen, at))
            )
        for kind, some in shapes.items():
            of_kind = [draw[kind] for draw in draws]
            for view, mask in masks[kind].items():
                found = scores(of_kind, some.time_s, mask)
                if found is None:
                    continue
                name = f"{line.name}: {view}" if view else line.name
                wanted = goal(name, split.kind, size) if kind == "unseen" else None
                results.append(
                    {
                        "line": name,
                        "size": size,
                        "fitted": count,
                        "shapes": kind,
                        **found,
                        "noise": noise,
                        "goal": wanted,
                        "met": None if wanted is None else bool(found["median"] <= wanted),
                        "adapt_s": float(np.mean([draw["adapt_s"] for draw in draws])),
                        "held_out": (
                            float(np.mean([draw["held_out"] for draw in draws])) if count else None
                        ),
                    }
                )
    return results


def _draw(
    elsewhere: Elsewhere,
    own: DeviceRows,
    shapes: Mapping[str, DeviceRows],
    effort: Effort,
    seed: int,
    exclude: np.ndarray,
) -> dict[str, Any]:
    begun = time.monotonic()
    adapted: Adapted = (
        adapt(elsewhere.prior, own.rows, own.time_s) if len(own) else adapt(elsewhere.prior)
    )
    seconds = time.monotonic() - begun
    nulls = (
        null_models.fit_all(elsewhere.rows, (own.rows, own.time_s), seed, effort.nulls)
        if len(own)
        else elsewhere.nulls
    )
    out: dict[str, Any] = {
        "adapt_s": seconds,
        "held_out": float(np.median(np.abs(np.expm1(adapted.held_out)))) if len(own) else np.nan,
    }
    for kind, some in shapes.items():
        counts = ~exclude if kind == "seen" else np.ones(len(some), bool)
        out[kind] = Guesses(
            adapted.predict(some.rows),
            {name: says(some.rows) for name, says in nulls.items()},
            counts,
        )
    return out
