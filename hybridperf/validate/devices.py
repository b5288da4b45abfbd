"""Ops on GPUs nobody measured yet: a prior of the other devices, a few rows of the new one, errors
on shapes that no fit has seen.

For each split (which devices are left out) and family of ops a prior is trained on the other
devices' pool rows. For each line of the table it is adapted to 0, 20, 50, 200 rows, 10 % and
sometimes all rows of the new device's pool, and predicts

    unseen    test shapes: no device's rows of them were ever fitted on
    seen      pool shapes that other devices' rows in the prior may hold, and this device's rows
              fitted on do not

Next to each stand the baselines given the same rows, the knobs alone, the noise between repeats,
how many measurements lie inside their 90 % interval, and the goal. A finished (split, family) is
kept in OUT/parts and not computed again while program, data and seed are the same.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hybridperf.io import InputError, write_json, write_table
from hybridperf.model.published.ops import (
    FILES,
    PublishedRows,
    read_families,
    require_data,
    table_path,
)
from hybridperf.report import plots
from hybridperf.validate import device_models, harness
from hybridperf.validate.device_judge import QUICK, DeviceEffort, Setup, fitted, judge_family
from hybridperf.validate.device_splits import FAMILIES, GOAL_SIZES, SPLITS, Split
from hybridperf.validate.device_tables import met, tables
from hybridperf.validate.parts import Parts, TimeLeft, left_out_text, program_digest

SCHEMA_VERSION = 1
_QUICK_SPLITS, _QUICK_FAMILIES = ("t4",), ("softmax", "norm")
_DEPENDS_ON = (  # what a result depends on, besides the tables
    *("learning/prior", "ops", "model/families.py", "model/published/ops.py"),
    *("validate/baselines.py", "validate/scores.py"),
    *(f"validate/device_{name}.py" for name in ("baselines", "judge", "scores", "splits")),
)


def run(
    data: Path,
    out: Path,
    *,
    quick: bool = False,
    families: Sequence[str] = FAMILIES,
    splits: Sequence[str] | None = None,
    everything: bool = False,
    goals_only: bool = False,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Mapping[str, Any]:
    """Judge; leaves `gpu_ops.json`, `gpu_ops.csv` (a line per split, device, line, rows and kind of
    shape), `results.json` and plots in `out`.

    Args:
        data: folder of measured data.
        out: folder for the results; finished parts in it are not computed again.
        quick: a small part of one split, a minute.
        families: families of ops to judge.
        splits: names of `SPLITS`, which devices are left out; all if not given.
        everything: fit on all rows also where that takes minutes.
        goals_only: only lines that have goals, at the sizes that have one.
        seed: of every draw.
        say: takes what is printed.

    Raises:
        InputError: an unknown split or family, or no data.
    """
    data, out = Path(data), Path(out)
    sizes = GOAL_SIZES if goals_only else None
    effort = DeviceEffort(sizes, everything=everything, goals_only=goals_only)
    names = list(splits or [split.name for split in SPLITS])
    if quick:
        effort, names, families = QUICK, list(_QUICK_SPLITS), _QUICK_FAMILIES
    if unknown := sorted({*names} - {split.name for split in SPLITS} | {*families} - {*FAMILIES}):
        raise InputError(
            f"unknown split or family {unknown[0]!r}; splits are"
            f" {', '.join(s.name for s in SPLITS)}, families {', '.join(FAMILIES)}"
        )
    require_data(data)
    chosen = [split for split in SPLITS if split.name in names]
    parts = Parts(out / "parts", "validate-gpu-part", version_of(data, seed, effort))
    setups = [Setup(split, effort, seed, out / "priors", parts.version) for split in chosen]
    done = _judged(data, families, setups, parts, say)
    left_out = {name: reasons for part in done for name, reasons in part["left_out"].items()}
    results = pd.DataFrame([result for part in done for result in part["results"]])
    if results.empty:
        raise InputError(
            f"no rows to judge under {data}; expected the tables {', '.join(sorted(FILES))} in"
            f" {data / 'compute'}"
        )
    wants_models = not quick and set(device_models.FAMILIES) <= set(families)
    models = _whole_models(data, setups, parts, say) if wants_models else []
    summary = {
        "version": parts.version, "left_out": left_out,
        "priors": [part["prior"] for part in done if part["prior"]],
        "results": list(results.astype(object).where(results.notna(), None).to_dict("records")),
        "met": met(results), "models": models,
    }  # fmt: skip
    write_json(out / "gpu_ops.json", "validate-gpu-ops", SCHEMA_VERSION, summary)
    write_table(results, out / "gpu_ops.csv")
    harness.write_results(out, "devices", [_line(one) for one in summary["results"]])
    for family, rows in results.groupby("family", sort=False):
        plots.learning_curves(rows, out / f"learning_curve_{family}.png")
    say("\n" + tables(results) + ("\n\n" + device_models.table(models) if models else ""))
    say("\n" + left_out_text(left_out) + f"\n\ngpu_ops.json, gpu_ops.csv and plots are in {out}")
    return summary


def version_of(data: Path, seed: int, effort: DeviceEffort) -> dict[str, Any]:
    """What a result depends on: program, tables, seed and effort."""
    paths = {name: table_path(data, name) for name in FILES}
    sizes = sorted((name, path.stat().st_size) for name, path in paths.items() if path.is_file())
    tables_digest = hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]
    program = program_digest(_DEPENDS_ON)
    return {"program": program, "tables": tables_digest, "seed": seed, "effort": repr(effort)}


def _judged(
    data: Path,
    families: Sequence[str],
    setups: Sequence[Setup],
    parts: Parts,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A part per family and split."""
    found, time_left = [], TimeLeft(len(families) * len(setups), say)
    for family in families:
        measured: PublishedRows | None = None
        for setup in setups:
            name = f"{setup.split.name}_{family}"
            part = parts.kept(name)
            if part is None:
                measured = measured or read_families(data, [family])
                judged = judge_family(measured.families.get(family, {}), family, setup)
                part = parts.keep(name, {"left_out": measured.left_out, **judged})
                time_left.computed(f"{setup.split.name} {family}: {len(part['results'])} results")
            time_left.passed()
            found.append(part)
    return found


def _whole_models(
    data: Path, setups: Sequence[Setup], parts: Parts, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Sums over the ops of whole models, for the devices that the chosen splits leave out."""
    if not device_models.there(data):
        table = device_models.MODEL_OPS
        say(f"no table {table} in {data / 'compute'}: sums over models are not judged")
        return []
    read = functools.cache(lambda family: read_families(data, [family]).families.get(family, {}))
    models = []
    for setup in setups:
        for device in _devices_of(setup.split):
            part = parts.kept(f"model_ops_{device}")
            if part is None:
                adapted = functools.cache(
                    lambda family, device=device, setup=setup: (
                        fitted(read(family), device, family, setup)
                        if family in device_models.FAMILIES
                        else None
                    )
                )
                found, _ = device_models.judge(data, device, adapted)
                part = parts.keep(f"model_ops_{device}", {"models": found})
                say(f"{device}: sums over {len(part['models'])} models")
            models += part["models"]
    return models


def _devices_of(split: Split) -> list[str]:
    return [device for device, name in device_models.DEVICES.items() if name == split.name]


def _line(result: Mapping[str, Any]) -> harness.ResultLine:
    about = f"{result['line']}, {result['device']} ({result['split']})"
    fitted_on = f"{result['size']} rows, {result['shapes']} shapes"
    return harness.ResultLine(
        name=f"{about}, {fitted_on}",
        ours=result["median"],
        n=result["tested"],
        goal=result["goal"],
        baselines=harness.baselines_in(result),
        measure="median error",
        pearson=result["pearson_logs"],
        coverage=result["covered"],
        half_width=result["half_width"],
    )
