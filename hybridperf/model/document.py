"""What a model's folder holds: knobs as numbers in `model.json`, weights in `residual.npz`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.hardware import LEVELS, DeviceSpec, device_id, load_device
from hybridperf.io import hash_of, read_arrays
from hybridperf.io.arrays import flat, nested
from hybridperf.learning.inputs import Box
from hybridperf.learning.prior import Adapted
from hybridperf.learning.prior.alone import read_version_5
from hybridperf.model.families import groups_of
from hybridperf.model.group_report import GroupReport
from hybridperf.model.platform import GROUP_KNOBS, LEVEL_KNOBS, neutral_knobs
from hybridperf.ops import GROUPS
from hybridperf.ops.roofline import RooflineKnobs, Work

MODEL_SCHEMA_VERSION = 6  # 6: groups learn as families do; 5: checksums
_SHARES = 5  # the last version whose groups had corrections of another kind than families
UNCHECKED = 4  # the last version without checksums
WEIGHTS_FILE = "residual.npz"
_FAMILY = "family"
# models from before it had rows of one distance only: zero, wherever they were measured
_LATER_FIELDS = frozenset({"reuse_spread", "instructions"})


def to_document(model: Any) -> dict[str, Any]:
    """All of a `PerfModel` that `model.json` holds: everything but arrays."""
    knobs, entries = model.knobs, {}
    for at, group in enumerate(GROUPS):
        if (report := model.groups.get(group)) is not None:
            entries[group] = {
                **{name: float(getattr(knobs, name)[at]) for name in GROUP_KNOBS},
                "rows": report.rows, "half_width": report.half_width, "dtypes": list(report.dtypes),
                "lowest": dict(report.lowest), "highest": dict(report.highest),
                "errors": list(report.errors),
                "residual": None if report.residual is None else report.residual.document(),
            }  # fmt: skip
    levels = {
        name: dict(zip(LEVELS, np.asarray(getattr(knobs, name)).tolist(), strict=True))
        for name in LEVEL_KNOBS
    }
    return {
        "device": model.device.model_dump(), "groups": entries, "levels": levels,
        "families": {family: adapted.document() for family, adapted in model.families.items()},
        "drift": list(model.drift), "weights_sha256": hash_of(weights_of(model)),
        "provenance": dict(model.provenance),
    }  # fmt: skip


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """What groups learned as `group/...`, adapted priors as `family/name/...`."""
    learned = {group: one.residual.arrays() for group, one in model.groups.items() if one.residual}
    families = {family: adapted.arrays() for family, adapted in model.families.items()}
    return flat({**learned, _FAMILY: families})


def from_document(document: Mapping[str, Any], weights: Path) -> dict[str, Any]:
    """Fields of a `PerfModel` by name; `ValueError`, `KeyError` and their like where it is damaged.

    `weights`: the file of its arrays.
    """
    stored = nested(read_arrays(weights, str(document["weights_sha256"])))
    neutral = neutral_knobs()
    knobs = {name: np.array(getattr(neutral, name)) for name in GROUP_KNOBS}
    reports = {}
    by_prior = {group for family in document["families"] for group in groups_of(family)}
    for group, entry in document["groups"].items():
        own = _numbers((entry[name] for name in GROUP_KNOBS), f"a knob of {group}", 0.0)
        for name, value in zip(GROUP_KNOBS, own, strict=True):
            knobs[name][GROUPS.index(group)] = value
        names = list(entry["lowest"])
        missing = {field.name for field in dataclasses.fields(Work)} - _LATER_FIELDS - set(names)
        if missing and (names or group not in by_prior):  # no names: its family keeps the range
            raise ValueError(f"the range of {group} lacks {min(missing)}")
        lowest, highest = (
            dict(zip(names, _numbers(map(entry[end].get, names), end), strict=True))
            for end in ("lowest", "highest")
        )
        half_width, learned = entry["half_width"], entry["residual"]
        if half_width is not None:
            (half_width,) = _numbers([half_width], "an interval")
        if learned is not None:
            if document["schema_version"] > _SHARES:
                learned = Adapted.read(stored[group], learned)
            else:
                learned = read_version_5(Box.between(lowest, highest), learned, stored[group])
        errors = tuple(_numbers(entry["errors"], "an error"))
        dtypes = tuple(entry["dtypes"])
        reports[group] = GroupReport(
            int(entry["rows"]), half_width, lowest, highest, dtypes, errors, learned
        )
    for name, of_level in ((name, document["levels"][name]) for name in LEVEL_KNOBS):
        knobs[name] = np.array(_numbers((of_level[level] for level in LEVELS), name, 0.0))
    return {
        "device": _device(document["device"]), "knobs": RooflineKnobs(**knobs), "groups": reports,
        "families": {
            family: Adapted.read(stored[_FAMILY][family], entry)
            for family, entry in document["families"].items()
        },
        "drift": tuple(_numbers(document["drift"], "the drift")),
        "provenance": dict(document["provenance"]),
    }  # fmt: skip


def _numbers(values: Iterable[Any], what: str, least: float = -np.inf) -> list[float]:
    found = np.array([float(value) for value in values])
    if not (np.isfinite(found) & (found >= least)).all():
        raise ValueError(f"{what} is not a finite number{' of zero or more' if least == 0 else ''}")
    return found.tolist()


def _device(saved: Mapping[str, Any]) -> DeviceSpec:
    """The device as it was saved; facts that the file's version did not have are today's."""
    if device_id(str(saved["id"])) != saved["id"]:
        return DeviceSpec(**saved)
    newer = {name for name, one in DeviceSpec.model_fields.items() if not one.is_required()}
    return DeviceSpec(**{**load_device(saved["id"]).model_dump(include=newer), **saved})
