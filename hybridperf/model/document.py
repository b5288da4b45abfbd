"""What a model's folder holds: knobs in plain numbers as `model.json`,
weights as `residual.npz`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.hardware import LEVELS
from hybridperf.io import hash_of
from hybridperf.learning.residual import Residual
from hybridperf.model.platform import GROUP_KNOBS, LEVEL_KNOBS
from hybridperf.ops import GROUPS

if TYPE_CHECKING:
    from hybridperf.model.perf_model import PerfModel

MODEL_SCHEMA_VERSION = 4  # 3: drift of the machine; 2: learned corrections, ranges of every input
WEIGHTS_FILE = "residual.npz"
FAMILY = "family/"


def to_document(model: PerfModel) -> dict[str, Any]:
    """Everything but arrays."""
    groups = {}
    for at, group in enumerate(GROUPS):
        if group in model.groups:
            report = model.groups[group]
            groups[group] = {
                **{name: float(getattr(model.knobs, name)[at]) for name in GROUP_KNOBS},
                "rows": report.rows,
                "half_width": report.half_width,
                "dtypes": list(report.dtypes),
                "lowest": {name: float(value) for name, value in report.lowest.items()},
                "highest": {name: float(value) for name, value in report.highest.items()},
                "errors": [float(value) for value in report.errors],
                "residual": (
                    None if report.residual is None else _residual_document(report.residual)
                ),
            }
    levels = {
        name: {LEVELS[i]: float(v) for i, v in enumerate(np.asarray(getattr(model.knobs, name)))}
        for name in LEVEL_KNOBS
    }
    return {
        "device": model.device.model_dump(),
        "groups": groups,
        "levels": levels,
        "families": {family: adapted.document() for family, adapted in model.families.items()},
        "drift": [float(value) for value in model.drift],
        "weights_sha256": hash_of(weights_of(model)),
        "provenance": dict(model.provenance),
    }


def _residual_document(residual: Residual) -> dict[str, Any]:
    per_input = {"names": residual.names, "centre": residual.centre, "scale": residual.scale}
    return {
        "share": residual.share,
        "process_share": residual.process_share,
        **{
            key: [v if isinstance(v, str) else float(v) for v in value]
            for key, value in per_input.items()
        },
    }


def weights_of(model: PerfModel) -> dict[str, np.ndarray]:
    """Weights of all groups as `group/layer/leaf`, of adapted priors as `family/name/leaf`."""
    residuals = {
        group: report.residual
        for group, report in model.groups.items()
        if report.residual is not None
    }
    arrays = {
        f"{group}/{name}": leaf
        for group, residual in residuals.items()
        for name, leaf in residual.arrays().items()
    }
    adapted = {
        f"{FAMILY}{family}/{name}": leaf
        for family, one in model.families.items()
        for name, leaf in one.arrays().items()
    }
    return arrays | adapted
