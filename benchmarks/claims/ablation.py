"""What each part of a price brings: the datasheet's roofline, the closed form with fitted knobs,
the process over the device's rows, the networks of other devices.

    datasheet     max(F / P, B / BW)
    closed form   the family's form: usual knobs, moved by the device's rows
    process       that, and the Gaussian process over at most 2,500 of the rows
    network       all of it: networks of the other devices too, trained on from 2,500 rows on

Devices are left out whole, with their siblings, as the split of `device_splits.toml` says that
judges them; errors are |predicted / measured - 1| of shapes that no fit has seen, by number of rows
of the device fitted on. A (family, device) is kept in OUT/parts and its prior in OUT/priors, and
not computed again while program and data are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.claims import device_baselines, harness
from benchmarks.claims.device_judge import (
    FAMILIES,
    LEAST_TESTED,
    SPLITS,
    DeviceEffort,
    Line,
    Setup,
)
from benchmarks.claims.devices import DEPENDS_ON
from benchmarks.claims.scores import SEED
from hybridperf.hardware import load_device
from hybridperf.io import InputError, unknown, write_table
from hybridperf.learning.prior import Adapted, FamilyPrior, adapt
from hybridperf.learning.prior.adapted import MOST_KEPT_ROWS
from hybridperf.model.families import references_of
from hybridperf.model.machine_facts import machine_of
from hybridperf.report import text
from hybridperf_calibration.published.ops import (
    FILES,
    DeviceRows,
    read_families,
    require_data,
    table_path,
)

ROWS = (0, 50, 200, 4000)
STAGES = ("datasheet", "closed form", "process", "network")
JUDGED: Mapping[str, str] = {
    device: split.name for split in reversed(SPLITS) for device in split.judged
}
_DRAWS = {50: 2}  # few rows: which ones matters


def run(
    data: Path, out: Path, *, families: Sequence[str] = FAMILIES, devices: Sequence[str] = (),
    rows: Sequence[int] = ROWS, say: Callable[[str], None] = print,
) -> pd.DataFrame:  # fmt: skip
    """Judge each stage; leaves `ablation.csv` and `results.json` in `out`.

    Args:
        data: folder of measured tables.
        out: where parts, priors and results are kept.
        families: of ops.
        devices: to leave out, each with its siblings; all that a split judges if not given.
        rows: numbers of rows of the device to fit on.
        say: what progress and tables are told.

    Raises:
        InputError: where a family or device is unknown, or no row can be judged.
    """
    for name, given, known in (("family", families, FAMILIES), ("device", devices, JUDGED)):
        if strange := sorted({*given} - {*known}):
            raise unknown(name, strange[0], known, f"known are {', '.join(known)}")
    require_data(data)
    paths = {name: table_path(data, name) for name in FILES}
    tables = sorted((name, path.stat().st_size) for name, path in paths.items() if path.is_file())
    made_by = {"seed": SEED, "rows": list(rows)}
    depends_on = (*DEPENDS_ON, "benchmarks/claims/ablation.py")
    parts = harness.Parts.of(out, "validate-ablation", depends_on, repr(tables).encode(), **made_by)
    read = functools.lru_cache(1)(lambda family: read_families(data, [family]).families)
    version = {name: parts.version[name] for name in ("program", "tables", "seed")}

    def judge(family: str, device: str) -> dict[str, Any]:
        split = next(split for split in SPLITS if split.name == JUDGED[device])
        setup = Setup(split, DeviceEffort(), out / "priors", version)
        return {"results": ablated(read(family).get(family, {}), family, device, setup, rows)}

    jobs = {
        (family, device): functools.partial(judge, family, device)
        for family in families
        for device in devices or JUDGED
    }
    found = [line for part in parts.results(jobs, "results", say) for line in part["results"]]
    if not found:
        raise InputError(f"no rows to judge under {data} for these families and devices")
    frame = pd.DataFrame(found)
    write_table(frame, out / "ablation.csv")
    harness.write_results(out, "ablation", [_line(line) for line in found])
    say(
        "\nmedian / mean error on unseen shapes, devices left out\n"
        + text.frame_table(table(frame))
        + f"\n\nablation.csv is in {out}"
    )
    return frame


def ablated(
    devices: Mapping[str, DeviceRows], family: str, device: str, setup: Setup, rows: Sequence[int]
) -> list[dict[str, Any]]:
    """A dict per number of rows: `family, device, rows, n`, `median` and `mean` of each stage."""
    others = setup.prior_rows(devices)
    if device not in devices or not others:
        return []
    own = devices[device]
    line = Line("all", family, lambda rows: np.ones(len(rows), bool), (), {})
    test, pool = setup.test_and_pool(own, line)
    if len(test) < LEAST_TESTED:
        return []
    random = np.random.default_rng([SEED, zlib.crc32(f"{device} {family}".encode())])
    judged = own.some(random.permutation(test)[: setup.effort.most_tested])
    spec, known = load_device(device), setup.prior(others, family).families[family]
    references = references_of(spec, known.population.devices)
    prior = known.with_references(references).on(machine_of(spec, family))
    out = []
    for count in rows:
        if count > len(pool):
            continue
        draws = [
            _errors(prior, own.some(random.permutation(pool)[:count]), judged)
            for _ in range(_DRAWS.get(count, 1))
        ]
        errors = {stage: np.concatenate([draw[stage] for draw in draws]) for stage in STAGES}
        figures = {
            f"{stage} {name}": float(figure(errors[stage]))
            for stage in STAGES
            for name, figure in (("median", np.median), ("mean", np.mean))
        }
        about = {"family": family, "device": device, "rows": count, "n": len(judged)}
        out.append({**about, **figures})
    return out


def _errors(prior: FamilyPrior, own: DeviceRows, judged: DeviceRows) -> dict[str, np.ndarray]:
    """|predicted / measured - 1| [n] by stage, after a device's own rows."""

    def after(prior: FamilyPrior, most: int) -> Adapted:
        given = own.some(np.arange(min(len(own), most)))
        return adapt(prior, *((given.rows, given.time_s) if len(given) else ()))

    silent = dataclasses.replace(
        prior, params=None, hyper=dataclasses.replace(prior.hyper, belief=np.array(0.0))
    )
    whole = after(prior, len(own)).predict(judged.rows)
    log_s = {
        "datasheet": device_baselines.log_roofline(judged.rows),
        "closed form": whole.closed_log_s,
        "process": after(silent, MOST_KEPT_ROWS).predict(judged.rows).log_s,
        "network": whole.log_s,
    }
    log_time = np.log(judged.time_s)
    return {stage: np.abs(np.expm1(seconds - log_time)) for stage, seconds in log_s.items()}


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """A line per family, device and number of rows, then per family over its devices."""
    every = frame.groupby(["family", "rows"], sort=False)
    over = every.mean(numeric_only=True).assign(n=every["n"].sum()).reset_index()
    over = over.assign(device=[f"mean of {count}" for count in every.size()])
    both = pd.concat([frame, over[every.size().to_numpy() > 1]], ignore_index=True)
    shown = both[["family", "device", "rows", "n"]].astype({"n": int})
    for stage in STAGES:
        pairs = zip(both[f"{stage} median"], both[f"{stage} mean"], strict=True)
        shown[stage] = [f"{text.percent(one)} / {text.percent(other)}" for one, other in pairs]
    return shown


def _line(found: Mapping[str, Any]) -> harness.ResultLine:
    name = f"{found['family']}, {found['device']}, {found['rows']} rows"
    others = {stage.replace(" ", "_"): found[f"{stage} median"] for stage in STAGES[:-1]}
    return harness.ResultLine(
        name, found["network median"], found["n"], None, others, "median error"
    )
