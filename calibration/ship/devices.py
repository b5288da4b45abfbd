"""Makes the shipped prior over all measured GPUs and a calibration of each, from the data folder.

    hybridperf calibrations --data DIR --folder calibration/hardware

`OUT/prior` is trained family by family, and what an earlier run finished is kept; `OUT/DEVICE` is
the prior adapted to all rows of a device, next to families that were not asked for. Families of
fewer than `LEAST_ROWS` rows of a device are left out: `hybridperf fit --device` without rows
predicts them by the prior.

What we measured ourselves on a lent GPU, added to its calibration: ops of which no published
table has rows.

    calibration/measured/DEVICE/ops.csv.gz

Those of `OWN_GROUPS` are fitted by themselves, as `hybridperf fit` does with rows of no known
family; `OWN_FAMILIES` are adapted from what other GPUs show. The table has others, too, whose fits
held for sizes that were measured and misled beyond (scattered sums, sorts, copies: a serial step
that small ops show) or whose interval was twofold (reductions): they stay with what stands for
them. Convolutions are those of images whose channels lie together; PyTorch ran those of single
precision in TF32.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.hardware import load_device
from hybridperf.io import InputError, read_table, replacing_in, unknown, write_json
from hybridperf.io.installed import installed_hardware
from hybridperf.learning.prior import train_family
from hybridperf.learning.prior.form import LAWS
from hybridperf.learning.prior.shipped import DEFAULT_PRIOR, Prior, load_prior
from hybridperf.model import LEVEL_KNOBS, PerfModel
from hybridperf.model.families import FAMILIES, architectures_of, groups_of
from hybridperf.model.files import load_model
from hybridperf.model.fit import families as family_fit
from hybridperf.model.fit.device import REPORT_SCHEMA_VERSION, fit, model_of_families
from hybridperf.model.machine_facts import machine_of, machines_of
from hybridperf.model.platform import with_group_knobs
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops
from hybridperf_calibration.published import ops as sources
from hybridperf_calibration.published.ops import DeviceRows, PublishedRows

DEVICES = sources.CALIBRATED
LEAST_ROWS = 200  # of a device, to adapt the prior to
LEAST_PRIOR_ROWS = 300  # of a device, to be part of the prior


def run(
    data: Path, out: Path, *, families: Sequence[str] = FAMILIES, devices: Sequence[str] = DEVICES,
    say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Train the prior, then adapt it to each device; other devices in `out` stay, and so do other
    families of these.
    """
    for family in families:
        if family not in FAMILIES:
            raise unknown("family", family, FAMILIES, f"known are {', '.join(FAMILIES)}")
    sources.require_data(data)
    for device in devices:
        load_device(device)
    measured = sources.read_families(data, families)
    if not measured.families:
        raise InputError(
            f"no row of {', '.join(families)} in {data / 'compute'}; expected the tables"
            f" {', '.join(sorted(sources.FILES))}"
        )
    prior = _train_prior(measured, out / DEFAULT_PRIOR, say)
    for device in devices:
        start_s = time.perf_counter()
        model = adapt_device(prior, measured, device)
        if model is None:
            say(f"{device}: fewer than {LEAST_ROWS} rows of every family, left to the prior")
            continue
        if (out / device / "model.json").exists():
            model = _with_families_of(load_model(out / device), model)
        model = with_own(model)
        with replacing_in(out / device) as new:
            model.save(new)
            # not a report's `save`, whose held-out rows hold measured times
            summary = model.provenance["fit"]
            write_json(new / "report.json", "fit-report", REPORT_SCHEMA_VERSION, summary)
        rows = model.provenance["rows"]
        say(f"{device}: {rows} rows, {time.perf_counter() - start_s:.0f} s")


def _train_prior(measured: PublishedRows, folder: Path, say: Callable[[str], None]) -> Prior:
    """The prior of every family, saved after each; families already in `folder` are kept, unless
    their closed form is an older one.
    """
    before = load_prior(folder) if (folder / "prior.json").exists() else Prior({}, {})
    known, rows = dict(before.families), dict(before.provenance.get("measured", {}))
    for family, devices in measured.families.items():
        form = next(iter(devices.values())).rows.form.name
        if family in known and (form not in LAWS or known[family].population.form == form):
            say(f"prior of {family}: kept")
            continue
        start_s = time.perf_counter()
        plenty = {device: seen for device, seen in devices.items() if len(seen) >= LEAST_PRIOR_ROWS}
        if not plenty:
            say(f"prior of {family}: no device has {LEAST_PRIOR_ROWS} rows")
            continue
        parts = {device: (seen.rows, seen.time_s) for device, seen in plenty.items()}
        facts = machines_of(plenty, family)
        arches = architectures_of(plenty)
        known[family] = train_family(
            parts, architectures=arches, machines=facts, width_by_implementation=True
        )
        rows[family] = {device: _rows_by_table(seen) for device, seen in plenty.items()}
        Prior(known, {**_provenance(), "measured": rows}).save(folder)
        count, spent_s = sum(map(len, plenty.values())), time.perf_counter() - start_s
        say(f"prior of {family}: {count} rows of {len(plenty)} devices, {spent_s:.0f} s")
    if not known:
        raise InputError(
            f"no GPU has {LEAST_PRIOR_ROWS} rows of {' or '.join(measured.families)}; nothing to"
            " train a prior on"
        )
    return load_prior(folder)


def adapt_device(prior: Prior, measured: PublishedRows, device: str) -> PerfModel | None:
    """The prior adapted to all rows of one device, no row kept; None where there are too few."""
    spec = load_device(device)
    found = {
        family: devices[device]
        for family, devices in measured.families.items()
        if device in devices and len(devices[device]) >= LEAST_ROWS and family in prior.families
    }
    if not found:
        return None
    fits = {}
    for family, seen in found.items():
        known = prior.families[family]
        facts = machine_of(spec, family)
        fits[family] = family_fit.adapt_rows(
            known, seen.rows, seen.time_s, spec, facts, keep_rows=False
        )
    model, report = model_of_families(spec, fits)
    provenance = {
        **_provenance(),
        "measured": {family: _rows_by_table(seen) for family, seen in found.items()},
        "rows": sum(map(len, found.values())),
        "prior": {"date": prior.provenance.get("date")},
        "fit": report.summary(),
    }
    return dataclasses.replace(model, provenance=provenance)


def _with_families_of(before: PerfModel, model: PerfModel) -> PerfModel:
    """A device's model with the families of an earlier one that it has no fit of its own of."""
    own = before.provenance.get("own", {"fit": {"ops": []}})  # fitted again by `with_own`
    again = {*model.families, *(line["op"] for line in own["fit"]["ops"])}
    kept = {name: one for name, one in before.families.items() if name not in again}
    served = {group for family in kept for group in groups_of(family)}
    groups = [  # two families may serve a group: the one with more rows stands for it
        group
        for group, one in before.groups.items()
        if group not in model.groups or (group in served and one.rows > model.groups[group].rows)
    ]
    at = [GROUPS.index(group) for group in groups]
    new, old = model.provenance, before.provenance
    rows = {name: counts for name, counts in old["measured"].items() if name in kept}
    records = [one for one in old["fit"]["ops"] if one["op"] in kept] + new["fit"]["ops"]
    count = new["rows"] + sum(sum(counts.values()) for counts in rows.values())
    fit = {**new["fit"], "rows": count, "ops": sorted(records, key=lambda one: str(one["op"]))}
    return dataclasses.replace(
        model,
        knobs=with_group_knobs(model.knobs, before.knobs, at),
        groups={**model.groups, **{group: before.groups[group] for group in groups}},
        families={**kept, **model.families},
        provenance={**new, "measured": {**rows, **new["measured"]}, "rows": count, "fit": fit},
    )


def _provenance() -> dict[str, object]:
    return sources.provenance(one.source for one in sources.FILES.values())


def _rows_by_table(seen: DeviceRows) -> dict[str, int]:
    counts = seen.about["file"].value_counts(sort=False)
    return {str(file): int(count) for file, count in counts.items()}


OWN_GROUPS = ("embedding_bag", "softmax")
OWN_FAMILIES = ("convolution",)
LEAST_OWN_ROWS = 24
TABLE = "ops.csv.gz"


def own_table(device: str) -> Path | None:
    """Where our rows of a device are; None: there are none."""
    hardware = installed_hardware()
    path = hardware and hardware.parent / "measured" / device / TABLE
    return path if path and path.exists() else None


def with_own(model: PerfModel) -> PerfModel:
    """A calibration by published tables, with our own rows of its device."""
    path = own_table(model.device.id)
    if path is None:
        return model
    rows = read_table(path)
    # images in another order are turned first, which is counted apart
    turned = (rows["op"] == "conv") & (rows.get("order") != "channels last")
    rows = rows[~turned].reset_index(drop=True)
    group = np.zeros(len(rows), int)
    for part in parse_ops(rows, model.device).parts:
        group[part.rows] = part.group
    taught = {name for family in model.families for name in groups_of(family)}
    wanted = [
        name
        for name in OWN_GROUPS
        if name not in taught and (group == GROUPS.index(name)).sum() >= LEAST_OWN_ROWS
    ]
    at = [GROUPS.index(name) for name in wanted]
    alone = rows[np.isin(group, at)]
    own, report = fit(alone, model.device, prior="none")
    levels = {name: getattr(own.knobs, name) for name in LEVEL_KNOBS}
    families, groups, lines = dict(model.families), dict(own.groups), report.summary()["ops"]
    for family in OWN_FAMILIES:
        names = groups_of(family)
        mine = rows[np.isin(group, [GROUPS.index(name) for name in names])]
        if family in families or len(mine) < LEAST_OWN_ROWS:
            continue
        adapted, report = fit(mine, model.device)
        alone = pd.concat([alone, mine])
        families[family] = adapted.families[family]
        groups |= {name: adapted.groups[name] for name in names if name in adapted.groups}
        lines += report.summary()["ops"]
    counts = {str(name): int(n) for name, n in alone["op"].value_counts().items()}
    measured = {"table": f"calibration/measured/{model.device.id}/{TABLE}", "rows": counts}
    return dataclasses.replace(
        model,
        knobs=with_group_knobs(model.knobs, own.knobs, at, **levels),
        families=families,
        groups={**model.groups, **groups},
        provenance={**model.provenance, "own": {**measured, "fit": {"ops": lines}}},
    )
