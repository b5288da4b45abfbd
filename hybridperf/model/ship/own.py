"""What we measured ourselves on a lent GPU, added to its calibration: ops of which no published
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
from pathlib import Path

import numpy as np
import pandas as pd

from hybridperf.io import read_table
from hybridperf.io.installed import installed_hardware
from hybridperf.model import GROUP_KNOBS, LEVEL_KNOBS, PerfModel
from hybridperf.model.families import groups_of
from hybridperf.model.fit.device import fit
from hybridperf.ops import GROUPS
from hybridperf.ops.table import parse_ops

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
    arrays = {name: np.array(getattr(model.knobs, name)) for name in GROUP_KNOBS}
    for name, values in arrays.items():
        values[at] = np.asarray(getattr(own.knobs, name))[at]
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
        knobs=dataclasses.replace(model.knobs, **arrays, **levels),
        families=families,
        groups={**model.groups, **groups},
        provenance={**model.provenance, "own": {**measured, "fit": {"ops": lines}}},
    )
