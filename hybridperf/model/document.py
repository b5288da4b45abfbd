"""What a model's folder holds: knobs as numbers in `model.json`, weights in `residual.npz`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridperf.hardware import LEVELS, DeviceSpec
from hybridperf.io import hash_of
from hybridperf.io.arrays import flat
from hybridperf.learning.prior import Adapted
from hybridperf.model.group_report import GroupReport
from hybridperf.model.platform import GROUP_KNOBS, LEVEL_KNOBS
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import RooflineKnobs

MODEL_SCHEMA_VERSION = 6  # 6: groups learn as families do; 5: checksums
UNCHECKED = 4  # the last version without them
WEIGHTS_FILE = "residual.npz"
FAMILY = "family"


def to_document(
    device: DeviceSpec, knobs: RooflineKnobs, groups: Mapping[str, GroupReport],
    families: Mapping[str, Adapted], drift: tuple[float, ...], provenance: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """All of a `PerfModel` that `model.json` holds: everything but arrays."""
    entries = {}
    for at, group in enumerate(GROUPS):
        if group in groups:
            report = groups[group]
            entries[group] = {
                **{name: float(getattr(knobs, name)[at]) for name in GROUP_KNOBS},
                "rows": report.rows, "half_width": report.half_width, "dtypes": list(report.dtypes),
                "lowest": {name: float(value) for name, value in report.lowest.items()},
                "highest": {name: float(value) for name, value in report.highest.items()},
                "errors": [float(value) for value in report.errors],
                "residual": None if report.residual is None else report.residual.document(),
            }  # fmt: skip
    levels = {
        name: {LEVELS[i]: float(v) for i, v in enumerate(np.asarray(getattr(knobs, name)))}
        for name in LEVEL_KNOBS
    }
    return {
        "device": device.model_dump(), "groups": entries, "levels": levels,
        "families": {family: adapted.document() for family, adapted in families.items()},
        "drift": [float(value) for value in drift],
        "weights_sha256": hash_of(weights_of(groups, families)), "provenance": dict(provenance),
    }  # fmt: skip


def weights_of(
    groups: Mapping[str, GroupReport], families: Mapping[str, Adapted]
) -> dict[str, np.ndarray]:
    """What groups learned as `group/...`, adapted priors as `family/name/...`."""
    learned = {group: one.residual.arrays() for group, one in groups.items() if one.residual}
    return flat({**learned, FAMILY: {name: one.arrays() for name, one in families.items()}})
