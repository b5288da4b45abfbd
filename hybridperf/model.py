"""A calibrated machine: device facts, knobs per group of ops, intervals; prices ops, one table of unique ops at a time.

Axes: U unique ops, G = len(GROUPS) groups of ops that share knobs, L = len(LEVELS) memory levels, B configurations (last).

A `Platform` is everything numeric about the machine as one pytree. `durations(table, platform)` is the function that evaluation, batches
and gradients go through; any leaf of the platform may carry a trailing batch axis (see `batched_durations`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from hybridperf.hardware import DTYPE_BYTES, LEVELS, Device, DeviceSpec
from hybridperf.io import InputError, read_json, unknown, write_json
from hybridperf.ops import GROUPS, Op, OpCall
from hybridperf.ops.table import OpRows, parse_ops
from hybridperf.roofline import Knobs, Work, op_seconds

MODEL_SCHEMA_VERSION = 1
GROUP_KNOBS = (
    "floor_s",
    "compute_efficiency",
    "memory_efficiency",
    "transcendental_flops",
    "strided_factor",
    "step_s",
    "smoothing",
)
LEVEL_KNOBS = ("level_speedup", "line_s")
_WORK_FIELDS = tuple(field.name for field in dataclasses.fields(Work))
_RANGE_FIELDS = ("flops", "bytes", "strided_reads", "steps")
_RANGE_SLACK = 1.5  # a formula with the right limits may be trusted that much beyond the largest and smallest measured work


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["memory_bytes_per_s", "peak_flops_scale", "level_bytes", "knobs"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Platform:
    """The numbers of one machine."""

    memory_bytes_per_s: Any  # []
    peak_flops_scale: Any  # [] multiplies the peak of every dtype and unit
    level_bytes: Any  # [L]
    knobs: Knobs  # group knobs [G], level knobs [L]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["work", "peak_flops_per_s", "group", "times", "floors", "correction"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class OpTable:
    """Unique ops as arrays; what a duration needs of an op and nothing else."""

    work: Work  # [U] each
    peak_flops_per_s: Any  # [U]
    group: Any  # int32 [U] index into GROUPS
    times: Any  # [U] executions in a row
    floors: Any  # [U] launch floors that each execution pays: 1, or 0 where the op is compiled into a caller
    correction: Any  # [U] learned log correction, see residual.py; 0 leaves the closed form as it is


@dataclasses.dataclass(frozen=True)
class GroupReport:
    """What a model knows about its own trustworthiness for one group of ops."""

    rows: int
    half_width: float | None  # 90 % interval: predicted / (1 + w) to predicted * (1 + w); None: too few rows
    lowest: Mapping[str, float]  # least and largest work that was measured, by field of Work
    highest: Mapping[str, float]
    dtypes: tuple[str, ...] = ()  # number formats that were measured; empty: not recorded

    def measured_dtype(self, op: Op) -> bool:
        """Whether ops in this number format were measured; loops and copies care for its size only."""
        same_size = op.unit == "vector" and op.element_bytes in {DTYPE_BYTES[dtype] for dtype in self.dtypes}
        return not self.dtypes or op.dtype in self.dtypes or same_size


@dataclasses.dataclass(frozen=True)
class PerfModel:
    """A device with knobs. Without calibration it is the datasheet roofline exactly, and says so."""

    device: DeviceSpec
    knobs: Knobs
    groups: Mapping[str, GroupReport] = dataclasses.field(default_factory=dict)
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @staticmethod
    def datasheet(device: DeviceSpec) -> PerfModel:
        """The textbook roofline of a device."""
        return PerfModel(device, neutral_knobs())

    def platform(self) -> Platform:
        """The machine's numbers, float64."""
        return Platform(
            memory_bytes_per_s=np.float64(self.device.memory_bytes_per_s),
            peak_flops_scale=np.float64(1.0),
            level_bytes=self.device.level_bytes(),
            knobs=self.knobs,
        )

    def table(self, calls: Sequence[OpCall]) -> OpTable:
        """Ops as arrays for this device; `InputError` where the device has no peak for an op's dtype."""
        works = [call.op.work() for call in calls]
        reuse = [work.reuse_bytes if call.reuse_bytes is None else call.reuse_bytes for call, work in zip(calls, works, strict=True)]
        arrays = {name: np.array([float(getattr(work, name)) for work in works]) for name in _WORK_FIELDS}
        arrays["reuse_bytes"] = np.array([float(r) for r in reuse])
        return OpTable(
            work=Work(**arrays),
            peak_flops_per_s=np.array([self.device.peak(call.op.dtype, call.op.unit) for call in calls]),
            group=np.array([int(call.op.group_index()) for call in calls], np.int32),
            times=np.array([call.times for call in calls]),
            floors=np.array([0.0 if call.inlined else 1.0 for call in calls]),
            correction=np.zeros(len(calls)),
        )

    def op_seconds(self, table: OpTable) -> np.ndarray:
        """Seconds of each op [U], its `times` included."""
        return _in_bucket(_durations, table, self.platform())

    def roofline_seconds(self, table: OpTable) -> np.ndarray:
        """The datasheet roofline's seconds of each op [U], its `times` included."""
        # the same compiled function with neutral knobs: another one may round differently (XLA divides by a scalar its own way)
        bare = dataclasses.replace(table, correction=np.zeros_like(table.correction))
        return _in_bucket(_durations, bare, dataclasses.replace(self.platform(), knobs=neutral_knobs()))

    def predict_ops(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a measurement table with `predicted_s, low_s, high_s, roofline_s, in_range, note` (units: seconds).

        A row that cannot be priced keeps its place with empty numbers and the reason in `note`.
        """
        parsed = parse_ops(frame, self.device)
        out = {name: np.full(len(frame), np.nan) for name in ("predicted_s", "low_s", "high_s", "roofline_s")}
        in_range, note = np.zeros(len(frame), bool), parsed.problem
        for part in parsed.parts:
            table = op_table(part)
            seconds = self.op_seconds(table)
            out["predicted_s"][part.rows] = seconds
            out["roofline_s"][part.rows] = self.roofline_seconds(table)
            for group in np.unique(part.group):
                here = part.group == group
                rows = part.rows[here]
                report = self.groups.get(GROUPS[group])
                if report is None:
                    note[rows] = self._uncalibrated_note(GROUPS[group])
                    continue
                if not report.measured_dtype(part.op):
                    note[rows] = f"no {GROUPS[group]} in {part.op.dtype} was measured, only {', '.join(report.dtypes)}"
                    continue
                in_range[rows] = within_range(report, part.work)[here]
                if report.half_width is not None:
                    out["low_s"][rows] = seconds[here] / (1 + report.half_width)
                    out["high_s"][rows] = seconds[here] * (1 + report.half_width)
        result = frame.copy()
        for name, values in out.items():
            result[name] = values
        result["in_range"] = in_range
        result["note"] = note
        return result

    def uncalibrated(self, table: OpTable) -> list[str]:
        """Groups of a table this model has no measurements of."""
        return sorted({GROUPS[g] for g in np.unique(table.group)} - set(self.groups))

    def save(self, folder: str | Path) -> None:
        """Write `model.json` into a folder: knobs in plain numbers, provenance, what was measured."""
        write_json(Path(folder) / "model.json", "model", MODEL_SCHEMA_VERSION, _to_document(self))

    def fingerprint(self) -> str:
        """Short hash of the knobs."""
        return hashlib.sha256(repr(_to_document(self)["groups"]).encode()).hexdigest()[:12]

    def _uncalibrated_note(self, group: str) -> str:
        if not self.groups:
            return "datasheet roofline: this model has no measurements"
        return f"no {group} measurements in this model: datasheet roofline"


def op_table(part: OpRows) -> OpTable:
    """Rows of one op as arrays."""
    n = len(part.rows)
    return OpTable(part.work, np.full(n, part.peak_flops_per_s), part.group, np.ones(n), np.ones(n), np.zeros(n))


def neutral_knobs() -> Knobs:
    """Knobs of all groups that leave the roofline as it is."""
    one = Knobs.neutral()
    return dataclasses.replace(one, **{name: np.full(len(GROUPS), float(getattr(one, name))) for name in GROUP_KNOBS})


def durations(table: OpTable, platform: Platform) -> Any:
    """Seconds of each op [U] on one platform; pure, differentiable in every leaf of both."""

    def one(work: Work, peak: Any, group: Any, times: Any, floors: Any, correction: Any) -> Any:
        knobs = platform.knobs
        picked = dataclasses.replace(knobs, **{name: getattr(knobs, name)[group] for name in GROUP_KNOBS})
        picked = dataclasses.replace(picked, floor_s=floors * picked.floor_s)
        device = Device(peak * platform.peak_flops_scale, platform.memory_bytes_per_s, platform.level_bytes)
        return times * op_seconds(work, device, picked) * jnp.exp(correction)

    return jax.vmap(one)(table.work, table.peak_flops_per_s, table.group, table.times, table.floors, table.correction)


def batched_durations(table: OpTable, platform: Platform, axes: Platform) -> Any:
    """Durations [U, B]: leaves of `platform` whose entry in `axes` is not None carry B along that axis."""
    return jax.vmap(durations, in_axes=(None, axes), out_axes=-1)(table, platform)


def within_range(report: GroupReport, work: Work) -> np.ndarray:
    """Whether each op's work lies between the least and the largest that was measured, some slack allowed."""
    inside = np.ones(np.shape(work.bytes), bool)
    for name in _RANGE_FIELDS:
        value = np.asarray(getattr(work, name))
        inside &= (value >= report.lowest[name] / _RANGE_SLACK) & (value <= report.highest[name] * _RANGE_SLACK)
    return inside


def load_model(name: str | Path) -> PerfModel:
    """A model by folder, or by name among those shipped with the calibration package."""
    folder = Path(name)
    if not folder.exists() and (shipped := _shipped(str(name))) is not None:
        folder = shipped
    if folder.is_dir() and not (folder / "model.json").exists():
        raise InputError(f"{folder} holds no model.json; `hybridperf fit` or `calibrate` makes one")
    if not folder.exists():
        raise unknown("model", str(name), shipped_models(), "give a model folder or a shipped calibration's name")
    path = folder if folder.is_file() else folder / "model.json"
    document = read_json(path, "model", MODEL_SCHEMA_VERSION)
    try:
        return _from_document(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({type(error).__name__}: {str(error).splitlines()[0]}); fit the model again") from error


def shipped_models() -> list[str]:
    """Names of the calibrations installed with `hybridperf_calibration`."""
    root = _shipped_root()
    return sorted(p.parent.name for p in root.glob("*/model.json")) if root else []


def _shipped_root() -> Path | None:
    import importlib.util  # looked up, never imported: hybridperf does not depend on the calibration package

    spec = importlib.util.find_spec("hybridperf_calibration")
    return Path(next(iter(spec.submodule_search_locations))) / "hardware" if spec and spec.submodule_search_locations else None


def _shipped(name: str) -> Path | None:
    root = _shipped_root()
    return root / name if root and name in shipped_models() else None


_durations = jax.jit(durations)


def canonical(tree: Any) -> Any:
    """Float leaves as arrays of JAX' default precision: a Python float where an array was would compile again."""
    return jax.tree.map(lambda x: jnp.asarray(x, None if np.asarray(x).dtype.kind == "i" else jnp.result_type(float)), tree)


def _in_bucket(fn: Any, table: OpTable, platform: Platform) -> np.ndarray:
    """`fn(table, platform)` on a table padded to the next power of two: tables of any length share a few compiled functions."""
    length = len(table.group)
    size = max(64, 1 << (length - 1).bit_length())
    padded = jax.tree.map(lambda x: np.pad(x, (0, size - length), mode="edge"), table)
    return np.asarray(fn(canonical(padded), canonical(platform)), np.float64)[:length]


def _to_document(model: PerfModel) -> dict[str, Any]:
    groups = {}
    for at, group in enumerate(GROUPS):
        if group in model.groups:
            report = model.groups[group]
            groups[group] = {
                **{name: float(getattr(model.knobs, name)[at]) for name in GROUP_KNOBS},
                "rows": report.rows,
                "half_width": report.half_width,
                "dtypes": list(report.dtypes),
                "lowest": dict(report.lowest),
                "highest": dict(report.highest),
            }
    levels = {name: {LEVELS[i]: float(v) for i, v in enumerate(np.asarray(getattr(model.knobs, name)))} for name in LEVEL_KNOBS}
    return {
        "device": model.device.model_dump(),
        "groups": groups,
        "levels": levels,
        "provenance": dict(model.provenance),
    }


def _from_document(document: Mapping[str, Any]) -> PerfModel:
    knobs = neutral_knobs()
    arrays = {name: np.array(getattr(knobs, name)) for name in GROUP_KNOBS}
    reports = {}
    for group, entry in document["groups"].items():
        at = GROUPS.index(group)
        for name in GROUP_KNOBS:
            arrays[name][at] = float(entry[name])
        half_width = None if entry["half_width"] is None else float(entry["half_width"])
        lowest, highest = ({name: float(entry[end][name]) for name in _WORK_FIELDS} for end in ("lowest", "highest"))
        reports[group] = GroupReport(int(entry["rows"]), half_width, lowest, highest, tuple(entry.get("dtypes", ())))
    levels = {name: np.array([float(document["levels"][name][level]) for level in LEVELS]) for name in LEVEL_KNOBS}
    if not all(np.isfinite(a).all() and (a >= 0).all() for a in (*arrays.values(), *levels.values())):
        raise ValueError("a knob is not a finite number of zero or more")
    return PerfModel(DeviceSpec(**document["device"]), Knobs(**arrays, **levels), reports, dict(document["provenance"]))
