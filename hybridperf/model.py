"""A calibrated machine: device facts, knobs per group of ops, intervals; prices ops, one table of unique ops at a time.

Axes: U unique ops, G = len(GROUPS) groups of ops that share knobs, L = len(LEVELS) memory levels, B configurations (last).

The learned correction of an op is a property of the op on the calibrated machine: it is worked out once per unique op (`table`) and stays
where it is when knobs are varied, so a knob means what the closed form says it means.

A `Platform` is everything numeric about the machine as one pytree. `durations(table, platform)` is the function that evaluation, batches
and gradients go through; any leaf of the platform may carry a trailing batch axis (see `batched_durations`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from hybridperf.collectives.links import Links
from hybridperf.collectives.model import DOCUMENT as COLLECTIVES_FILE
from hybridperf.collectives.model import CollectiveModel, load_collectives
from hybridperf.either import anew
from hybridperf.families import by_family, family_rows, framework_of, groups_of, with_defaults
from hybridperf.hardware import DTYPE_BYTES, HOST_FILE, LEVELS, Device, DeviceSpec, Host, device_id, load_device, load_host
from hybridperf.io import InputError, closest, hash_of, installed_hardware, read_arrays, read_json, unknown, write_arrays, write_json
from hybridperf.ops import GROUPS, Elementwise, Op, OpCall
from hybridperf.ops.table import OpRows, parse_ops
from hybridperf.prior import Adapted, FamilyRows
from hybridperf.prior import concatenate as join_rows
from hybridperf.residual import Box, Inputs, Residual, concatenate, inputs_of, log_correction
from hybridperf.roofline import Knobs, Work, op_seconds

MODEL_SCHEMA_VERSION = 4  # 3: drift of the machine; 2: learned corrections, ranges of every input
GROUP_KNOBS = (
    "floor_s",
    "compute_efficiency",
    "memory_efficiency",
    "transcendental_flops",
    "strided_factor",
    "step_s",
    "smoothing",
)
LEVEL_KNOBS = ("level_speedup", "line_s", "level_capacity")
WEIGHTS_FILE = "residual.npz"
_FAMILY = "family/"
_LOOPS = "elementwise"  # the family of loops
_UNKNOWN_SLOT_OCTAVES = 1.0  # an implementation never met counts as so far outside what was measured
_WIDEST_OCTAVES = 3.0
KERNEL_S = 2.2e-6  # least that a GPU's kernel takes: median of a V100's short elementwise kernels in HolisticTraceAnalysis' test traces
LONG_LOOP = 2.0**27  # elements: milliseconds, far above what a launch costs, and no more than was measured
_WORK_FIELDS = tuple(field.name for field in dataclasses.fields(Work))
_LATER_FIELDS = frozenset({"reuse_spread"})  # models from before it had rows of one distance only: zero, wherever they were measured


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["memory_bytes_per_s", "peak_flops_scale", "level_bytes", "knobs", "links"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Platform:
    """The numbers of one machine."""

    memory_bytes_per_s: Any  # []
    peak_flops_scale: Any  # [] multiplies the peak of every dtype and unit
    level_bytes: Any  # [L]
    knobs: Knobs  # group knobs [G], level knobs [L]
    links: Links | None = None  # of the system that the device stands in; None: no collectives are known


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
    floors: Any  # [U] launch floors that each execution pays: 1, 0 where the op is compiled into a caller, a part where it is issued apart
    correction: Any  # [U] learned log correction, see residual.py; 0 leaves the closed form as it is


@dataclasses.dataclass(frozen=True)
class GroupReport:
    """What a model knows about its own trustworthiness for one group of ops."""

    rows: int
    half_width: float | None  # 90 % interval: predicted / (1 + w) to predicted * (1 + w); None: too few rows
    lowest: Mapping[str, float]  # ends of what was measured, by input of the residual: log2 of work counts and sizes, flags
    highest: Mapping[str, float]
    dtypes: tuple[str, ...] = ()  # number formats that were measured; empty: not recorded
    errors: tuple[float, ...] = ()  # evenly spaced quantiles of held-out log(predicted / measured), least to largest
    residual: Residual | None = None  # None: the closed form as it is

    def outside(self, inputs: Inputs) -> np.ndarray:
        """How far ops lie outside what was measured, in octaves [N]; 0 inside."""
        return Box.between(self.lowest, self.highest).outside(inputs)

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
    families: Mapping[str, Adapted] = dataclasses.field(default_factory=dict)  # priors adapted to this GPU: they price the ops they know
    drift: tuple[float, ...] = ()  # evenly spaced quantiles of the log slowness that all ops shared for a while; empty: not recorded
    collectives: CollectiveModel | None = None  # of the system that the device stands in; saved by themselves
    host: Host | None = None  # what launching costs; None: not learned

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
            links=None if self.collectives is None else self.collectives.links(),
        )

    def with_collectives(self, collectives: CollectiveModel) -> PerfModel:
        """The same device in a system, whose links price the collectives of its steps."""
        return dataclasses.replace(self, collectives=collectives)

    def table(self, calls: Sequence[OpCall]) -> OpTable:
        """Ops as arrays for this device; `InputError` where the device has no peak for an op's dtype."""
        works = [self._work_in_place(call) for call in calls]
        arrays = {name: np.array([float(getattr(work, name)) for work in works]) for name in _WORK_FIELDS}
        table = OpTable(
            work=Work(**arrays),
            peak_flops_per_s=np.array([self.device.peak(call.op.peak_dtype, call.op.unit) for call in calls]),
            group=np.array([int(call.op.group_index()) for call in calls], np.int32),
            times=np.array([call.times for call in calls]),
            floors=self._floors(calls),
            correction=self._by_group(calls, _correction, 0.0),
        )
        for family, (at, rows, _) in self._by_family(calls).items():
            if family != _LOOPS:
                table.floors[at] = 1.0  # as they are, see `_kernels_alone`
            # a correction to the closed form as it stands here, so that knobs keep their meaning
            bare = jax.tree.map(lambda leaf, at=at: leaf[at], dataclasses.replace(table, times=np.ones(len(calls))))
            log_s = self.families[family].predict(rows).log_s
            if family == _LOOPS:
                log_s = self._kernels_alone([calls[i] for i in at], log_s)
            table.correction[at] = log_s - np.log(self.op_seconds(bare))
        return table

    def _floors(self, calls: Sequence[OpCall]) -> np.ndarray:
        """Share of its group's floor that each op pays [U]: a kernel issued apart at most the least that a kernel takes."""
        floor_s = np.asarray(self.knobs.floor_s)[[int(call.op.group_index()) for call in calls]]
        alone = np.array([call.issued_apart and self.device.kind == "gpu" for call in calls], bool)
        share = np.where(alone, KERNEL_S / np.maximum(floor_s, KERNEL_S), 1.0)
        return np.where([call.inlined for call in calls], 0.0, share)

    def _kernels_alone(self, calls: Sequence[OpCall], log_s: np.ndarray) -> np.ndarray:
        """Log seconds of loops [N] without the launch that tables of one op at a time show, where it is issued apart.

        Loops alone show it: on the V100 of NeuSight's tables none takes less than 28 us, where a profiler sees 2 us. They cost the least
        that a kernel takes and what each element costs in a long loop. Products take longer than their launch and stay as they are.
        """
        loops = {at: call.op for at, call in enumerate(calls) if call.issued_apart and isinstance(call.op, Elementwise)}
        if not loops or self.device.kind != "gpu":
            return log_s
        long = [OpCall(dataclasses.replace(op, rows=LONG_LOOP / 1024.0, cols=1024.0)) for op in loops.values()]
        _, rows, _ = self._by_family(long)[_LOOPS]
        element_s = np.exp(self.families[_LOOPS].predict(rows).log_s) / LONG_LOOP
        elements = np.array([float(op.rows) * float(op.cols) for op in loops.values()])
        apart = list(loops)
        alone = np.array(log_s)
        alone[apart] = np.minimum(alone[apart], np.log(KERNEL_S + element_s * elements))
        return alone

    def outside(self, calls: Sequence[OpCall]) -> np.ndarray:
        """How far each op lies outside what was measured, in octaves [U]: 0 inside, infinite where its group was not measured."""
        said = self._by_group(calls, GroupReport.outside, np.inf)
        for family, (at, rows, _) in self._by_family(calls).items():
            said[at] = self.families[family].predict(rows).outside + np.where(self._known(family, rows), 0.0, _UNKNOWN_SLOT_OCTAVES)
        return said

    def _work_in_place(self, call: OpCall) -> Work:
        """The op's work, with the reuse distance that its data has where the op stands in a program."""
        work = call.op.work()
        return work if call.reuse_bytes is None else dataclasses.replace(work, reuse_bytes=call.reuse_bytes)

    def _by_group(self, calls: Sequence[OpCall], ask: Callable[[GroupReport, Inputs], np.ndarray], unmeasured: float) -> np.ndarray:
        """What each op's group says of it [U]."""
        said = np.full(len(calls), unmeasured)
        members: dict[str, list[int]] = {}
        for at, call in enumerate(calls):
            members.setdefault(GROUPS[int(call.op.group_index())], []).append(at)
        for group, positions in members.items():
            if group in self.groups:
                each = [inputs_of(calls[i].op, self._work_in_place(calls[i]), 1) for i in positions]
                said[positions] = ask(self.groups[group], concatenate(each))
        return said

    def remarks(self, calls: Sequence[OpCall]) -> list[str]:
        """What an adapted prior has to say of each op besides its time [U], empty where nothing: what it assumed, what it never met."""
        said = np.full(len(calls), "", object)
        for family, (at, rows, assumed) in self._by_family(calls).items():
            said[at] = self._remarks(family, rows, assumed)
        return list(said)

    def _by_family(self, calls: Sequence[OpCall]) -> dict[str, tuple[np.ndarray, FamilyRows, np.ndarray]]:
        """Ops that an adapted prior prices: by family, which they are, how the prior sees them, and what was assumed of each."""
        found: dict[str, list[tuple[int, FamilyRows]]] = {}
        for at, call in enumerate(calls) if self.families else ():
            for family, keep in by_family(part := self._part_of(call)):
                if family in self.families and not call.inlined:
                    found.setdefault(family, []).append((at, family_rows(part, keep, self.device)))
        out = {}
        for family, members in found.items():
            rows, assumed = with_defaults(join_rows([rows for _, rows in members]), self.families[family].prior.population.slots)
            out[family] = np.array([at for at, _ in members]), rows, assumed
        return out

    def _remarks(self, family: str, rows: FamilyRows, assumed: np.ndarray) -> list[str]:
        adapted = self.families[family]
        alone = "" if adapted.rows else f"prior alone: no {family} of {self.device.id} was measured"
        known = self._known(family, rows)
        unknown_slot = np.full(len(rows.slot), "", object)
        for slot in dict.fromkeys(rows.slot[~known]):
            meant = _closest_framework(str(slot), adapted.knobs.slots)
            unknown_slot[rows.slot == slot] = f"no such {family} was measured{meant}: usual knobs of the family"
        return ["; ".join(filter(None, (alone, *said))) for said in zip(assumed, unknown_slot, strict=True)]

    def _known(self, family: str, rows: FamilyRows) -> np.ndarray:
        """Whether each row is of an implementation that was met, here or by the prior [N]."""
        return np.isin(rows.slot, self.families[family].knobs.slots)

    def _part_of(self, call: OpCall) -> OpRows:
        """One op as a part of a table."""
        group = np.array([int(call.op.group_index())], np.int32)
        return OpRows(np.zeros(1, int), call.op, call.op.work(), group, self.device.peak(call.op.peak_dtype, call.op.unit))

    def op_seconds(self, table: OpTable) -> np.ndarray:
        """Seconds of each op [U], its `times` included."""
        return _in_bucket(_durations, table, self.platform())

    def roofline_seconds(self, table: OpTable) -> np.ndarray:
        """The datasheet roofline's seconds of each op [U], its `times` included."""
        # the same compiled function with neutral knobs: another one may round differently (XLA divides by a scalar its own way)
        bare = dataclasses.replace(table, correction=np.zeros_like(table.correction))
        return _in_bucket(_durations, bare, dataclasses.replace(self.platform(), knobs=neutral_knobs()))

    def shortcomings(self) -> list[str]:
        """What is to be known before any number is read, in sentences; empty for a model that was measured."""
        if self.groups:
            return []
        return [f"{self.device.id} is priced by its datasheet: no calibration of it is known, and real machines are slower"]

    def predict_ops(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a measurement table with `predicted_s, low_s, high_s, roofline_s, in_range, note` (units: seconds).

        A row that cannot be priced keeps its place with empty numbers and the reason in `note`.
        """
        parsed = parse_ops(frame, self.device)
        out = {name: np.full(len(frame), np.nan) for name in ("predicted_s", "low_s", "high_s", "roofline_s")}
        in_range, note = np.zeros(len(frame), bool), parsed.problem
        for part in parsed.parts:
            table = op_table(part)
            inputs = inputs_of(part.op, part.work, len(part.rows))
            for group in np.unique(part.group):
                if GROUPS[group] in self.groups:
                    here = part.group == group
                    table.correction[here] = _correction(self.groups[GROUPS[group]], inputs.rows(here))
            seconds = self.op_seconds(table)
            out["predicted_s"][part.rows] = seconds
            out["roofline_s"][part.rows] = self.roofline_seconds(table)
            in_family = np.zeros(len(part.rows), bool)
            for family, here in by_family(part) if self.families else ():
                if family in self.families:
                    in_family |= here
                    self._predict_family(family, part, here, out, in_range, note)
            for group in np.unique(part.group[~in_family]):
                here = (part.group == group) & ~in_family
                rows = part.rows[here]
                report = self.groups.get(GROUPS[group])
                if report is None:
                    note[rows] = self._uncalibrated_note(GROUPS[group])
                    continue
                if not report.measured_dtype(part.op):
                    note[rows] = f"no {GROUPS[group]} in {part.op.dtype} was measured, only {', '.join(report.dtypes)}"
                    continue
                outside = report.outside(inputs.rows(here))
                in_range[rows] = outside == 0
                note[rows] = np.where(outside > 0, f"outside the measured range of {GROUPS[group]}", note[rows])
                if report.half_width is not None:
                    width = widened(report.half_width, outside)
                    out["low_s"][rows] = seconds[here] / (1 + width)
                    out["high_s"][rows] = seconds[here] * (1 + width)
        result = frame.copy()
        for name, values in out.items():
            result[name] = values
        result["in_range"] = in_range
        result["note"] = note
        return result

    def _predict_family(
        self, family: str, part: OpRows, here: np.ndarray, out: Mapping[str, np.ndarray], in_range: np.ndarray, note: np.ndarray
    ) -> None:
        """Fill in the rows `here` (a mask) of a part by an adapted prior."""
        adapted, at = self.families[family], part.rows[here]
        rows, assumed = with_defaults(family_rows(part, here, self.device), adapted.prior.population.slots)
        said = adapted.predict(rows)
        for name, log_s in (("predicted_s", said.log_s), ("low_s", said.low_log_s), ("high_s", said.high_log_s)):
            out[name][at] = np.exp(log_s)
        in_range[at] = (said.outside == 0) & self._known(family, rows)
        far = np.where(said.outside > 0, f"outside the measured range of {family}", "")
        remarks = zip(self._remarks(family, rows, assumed), far, strict=True)
        note[at] = ["; ".join(filter(None, both)) for both in remarks]

    def predict_collectives(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table of collectives, priced as by `CollectiveModel.predict`."""
        if self.collectives is None:
            raise InputError(
                f"this model of {self.device.id} knows no collectives; `hybridperf fit --system NAME --out` its folder adds them"
            )
        return self.collectives.predict(frame)

    def uncalibrated(self, table: OpTable) -> list[str]:
        """Groups of a table this model has no measurements of."""
        return sorted({GROUPS[g] for g in np.unique(table.group)} - set(self.groups))

    def save(self, folder: str | Path) -> None:
        """Write `model.json` (knobs in plain numbers, provenance, what was measured) and `residual.npz` (weights) into a folder.

        With a host, `host.json` too; without one, a `host.json` that lies there stays, as collectives do.
        """
        document = _to_document(self)
        write_arrays(Path(folder) / WEIGHTS_FILE, _weights(self))
        write_json(Path(folder) / "model.json", "model", MODEL_SCHEMA_VERSION, document)
        if self.host is not None:
            self.host.save(folder)

    def fingerprint(self) -> str:
        """Short hash of knobs and weights, and of the host where there is one."""
        document = _to_document(self)
        said = [document[key] for key in ("device", "groups", "families", "levels", "weights_sha256")]
        said += [] if self.host is None else [self.host.model_dump(exclude={"source"})]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def _uncalibrated_note(self, group: str) -> str:
        if not self.groups:
            return "datasheet roofline: this model has no measurements"
        return f"no {group} measurements in this model: datasheet roofline"


def _closest_framework(slot: str, known: Sequence[str]) -> str:
    """What the framework of an unknown implementation may be misspelt for; other words are checked where tables are read."""
    frameworks = {framework_of(other) for other in known} - {""}
    given = framework_of(slot)
    return "" if not given or given in frameworks else closest(given, frameworks)


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
    table, platform = jax.tree.map(jnp.asarray, anew((table, platform)))  # traced groups pick from knobs

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


def widening(outside: np.ndarray) -> np.ndarray:
    """How much wider an interval is at a distance from what was measured [N]: each octave adds the log width once more, up to three.

    Farther out the closed form alone speaks, whose error does not go on growing with distance.
    """
    return 1.0 + np.minimum(outside, _WIDEST_OCTAVES)


def widened(half_width: float, outside: np.ndarray) -> np.ndarray:
    """Half-width of intervals [N] at a distance from what was measured."""
    return np.expm1(np.log1p(half_width) * widening(outside))


def _correction(report: GroupReport, inputs: Inputs) -> np.ndarray:
    return np.zeros(len(inputs.values)) if report.residual is None else log_correction(report.residual, inputs)


def load_model(name: str | Path) -> PerfModel:
    """A model by folder, or by name (any name of the device) among those shipped with the calibration package, with the collectives and
    host that lie in its folder.

    A folder with collectives alone is a model of the system's device by its datasheet. `here` is this machine by its datasheet: what
    measuring it made lies in the folder that was given then.
    """
    folder = Path(name)
    if str(name) == "here" and not folder.exists():
        return PerfModel.datasheet(load_device("here"))
    if not folder.exists() and (shipped := _shipped(str(name))) is not None:
        folder = shipped
    fabric = load_collectives(folder) if (folder / COLLECTIVES_FILE).exists() else None
    if fabric is not None and fabric.system.device and not (folder / "model.json").exists():
        return dataclasses.replace(PerfModel.datasheet(load_device(fabric.system.device)), collectives=fabric)
    if folder.is_dir() and not (folder / "model.json").exists():
        raise InputError(f"{folder} holds no model.json; `hybridperf fit` or `calibrate` makes one")
    if not folder.exists():
        raise unknown("model", str(name), shipped_models(), "give a model folder or a shipped calibration's name")
    path = folder if folder.is_file() else folder / "model.json"
    host = load_host(path.parent) if (path.parent / HOST_FILE).exists() else None
    document = read_json(path, "model", MODEL_SCHEMA_VERSION)
    if document["schema_version"] < MODEL_SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {document['schema_version']}, from an earlier hybridperf, and this one reads"
            f" {MODEL_SCHEMA_VERSION}; fit the model again (the same `hybridperf fit` or `calibrate` keeps what was measured)"
        )
    try:
        return dataclasses.replace(_from_document(document, path.parent / WEIGHTS_FILE), collectives=fabric, host=host)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({type(error).__name__}: {str(error).splitlines()[0]}); fit the model again") from error


def model_or_datasheet(name: str | Path) -> PerfModel:
    """A model by folder or name; a device's name means its datasheet roofline, which the prediction says."""
    check_folder(name)
    try:
        return load_model(name)
    except InputError as no_model:
        if Path(name).exists():
            raise
        try:
            return PerfModel.datasheet(load_device(name))
        except InputError:
            raise no_model from None


def check_folder(name: str | Path) -> None:
    """The demo writes its model one folder further down than people look."""
    inner = Path(name) / "model"
    if (inner / "model.json").exists() and not (Path(name) / "model.json").exists():
        raise InputError(f"{name} holds no model.json; did you mean {inner}?")


def is_shipped(name: str) -> bool:
    """Whether a calibration of a device of this name (any of its names) is shipped."""
    return _shipped(name) is not None


def shipped_models() -> list[str]:
    """Names of the calibrations installed with `hybridperf_calibration`."""
    root = installed_hardware()
    return sorted(p.parent.name for p in root.glob("*/model.json")) if root else []


def _shipped(name: str) -> Path | None:
    """The folder of the shipped calibration of a device by any of its names."""
    root, known = installed_hardware(), shipped_models()
    found = next((one for one in (name, device_id(name)) if one in known), None)
    return root / found if root and found else None


_durations = jax.jit(durations)


def canonical(tree: Any) -> Any:
    """Float leaves as arrays of JAX' default precision: a Python float where an array was would compile again."""
    return jax.tree.map(lambda x: jnp.asarray(x, None if np.asarray(x).dtype.kind == "i" else jnp.result_type(float)), anew(tree))


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
                "lowest": {name: float(value) for name, value in report.lowest.items()},
                "highest": {name: float(value) for name, value in report.highest.items()},
                "errors": [float(value) for value in report.errors],
                "residual": None if report.residual is None else _residual_document(report.residual),
            }
    levels = {name: {LEVELS[i]: float(v) for i, v in enumerate(np.asarray(getattr(model.knobs, name)))} for name in LEVEL_KNOBS}
    return {
        "device": model.device.model_dump(),
        "groups": groups,
        "levels": levels,
        "families": {family: adapted.document() for family, adapted in model.families.items()},
        "drift": [float(value) for value in model.drift],
        "weights_sha256": hash_of(_weights(model)),
        "provenance": dict(model.provenance),
    }


def _residual_document(residual: Residual) -> dict[str, Any]:
    per_input = {"names": residual.names, "centre": residual.centre, "scale": residual.scale}
    return {
        "share": residual.share,
        "process_share": residual.process_share,
        **{key: [v if isinstance(v, str) else float(v) for v in value] for key, value in per_input.items()},
    }


def _weights(model: PerfModel) -> dict[str, np.ndarray]:
    """Weights of all groups as `group/layer/leaf`, of adapted priors as `family/name/leaf`."""
    residuals = {group: report.residual for group, report in model.groups.items() if report.residual is not None}
    arrays = {f"{group}/{name}": leaf for group, residual in residuals.items() for name, leaf in residual.arrays().items()}
    adapted = {f"{_FAMILY}{family}/{name}": leaf for family, one in model.families.items() for name, leaf in one.arrays().items()}
    return arrays | adapted


def _from_document(document: Mapping[str, Any], weights: Path) -> PerfModel:
    stored = read_arrays(weights, str(document["weights_sha256"]))
    knobs = neutral_knobs()
    arrays = {name: np.array(getattr(knobs, name)) for name in GROUP_KNOBS}
    reports = {}
    by_prior = {group for family in document["families"] for group in groups_of(family)}
    for group, entry in document["groups"].items():
        at = GROUPS.index(group)
        for name in GROUP_KNOBS:
            arrays[name][at] = float(entry[name])
        half_width = None if entry["half_width"] is None else float(entry["half_width"])
        names = list(entry["lowest"])
        missing = set(_WORK_FIELDS) - _LATER_FIELDS - set(names)
        if missing and (names or group not in by_prior):  # no names: its family keeps the range
            raise ValueError(f"the range of {group} lacks {min(missing)}")
        lowest, highest = ({name: float(entry[end][name]) for name in names} for end in ("lowest", "highest"))
        errors = tuple(map(float, entry["errors"]))
        if not np.isfinite([*lowest.values(), *highest.values(), *errors, half_width or 0.0]).all():
            raise ValueError(f"what is said of {group} holds a number that is not finite")
        reports[group] = GroupReport(
            rows=int(entry["rows"]),
            half_width=half_width,
            lowest=lowest,
            highest=highest,
            dtypes=tuple(entry["dtypes"]),
            errors=errors,
            residual=None if entry["residual"] is None else _residual_from(entry["residual"], Box.between(lowest, highest), group, stored),
        )
    levels = {name: np.array([float(document["levels"][name][level]) for level in LEVELS]) for name in LEVEL_KNOBS}
    if not all(np.isfinite(a).all() and (a >= 0).all() for a in (*arrays.values(), *levels.values())):
        raise ValueError("a knob is not a finite number of zero or more")
    drift = tuple(map(float, document["drift"]))
    if not np.isfinite(drift).all():
        raise ValueError("the drift holds a number that is not finite")
    families = {family: Adapted.read(_under(f"{_FAMILY}{family}/", stored), said) for family, said in document["families"].items()}
    return PerfModel(DeviceSpec(**document["device"]), Knobs(**arrays, **levels), reports, dict(document["provenance"]), families, drift)


def _residual_from(entry: Mapping[str, Any], box: Box, group: str, stored: Mapping[str, np.ndarray]) -> Residual:
    arrays = _under(f"{group}/", stored)
    centre, scale = np.array(entry["centre"], float), np.array(entry["scale"], float)
    return Residual.read(box, list(entry["names"]), centre, scale, float(entry["share"]), arrays, float(entry["process_share"]))


def _under(folder: str, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(folder): leaf for name, leaf in stored.items() if name.startswith(folder)}
