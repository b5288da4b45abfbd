"""A calibrated device: prices ops, one table of unique ops at a time.

The learned correction of an op is a property of the op on the calibrated machine: it is computed
once per unique op (`table`) and stays fixed when knobs are varied, so that a knob keeps the meaning
that the closed form gives it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import DeviceSpec, Host
from hybridperf.io import replacing_in, write_arrays, write_json
from hybridperf.io.later import pd
from hybridperf.learning.prior import Adapted as AdaptedPrior
from hybridperf.model.adapted_steps import STEPS_FILE, Adaptation, Adapted, Group
from hybridperf.model.document import MODEL_SCHEMA_VERSION, WEIGHTS_FILE, to_document, weights_of
from hybridperf.model.explain import Waterfall, waterfalls
from hybridperf.model.group_report import GroupReport
from hybridperf.model.platform import OpTable, Platform, neutral_knobs, seconds
from hybridperf.model.priced_ops import PricedOps, predict_ops
from hybridperf.model.step_effects import vector
from hybridperf.ops import OpCall
from hybridperf.ops.roofline import RooflineKnobs


@dataclasses.dataclass(frozen=True)
class PerfModel:
    """A machine that prices ops: its datasheet, fitted knobs and learned corrections.

    Without calibration it is exactly the datasheet roofline (Williams et al., CACM 2009).
    """

    device: DeviceSpec  # published facts
    knobs: RooflineKnobs  # fitted efficiencies, latencies and bandwidths
    # by group of ops: measured range, held-out errors, learned correction
    groups: Mapping[str, GroupReport] = dataclasses.field(default_factory=dict)
    # where the measurements come from, dates, versions
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # priors adapted to this GPU: they price the ops they know
    families: Mapping[str, AdaptedPrior] = dataclasses.field(default_factory=dict)
    # evenly spaced quantiles of the log slowness that all ops shared for a while; empty: not
    # recorded
    drift: tuple[float, ...] = ()
    # of the system that the device stands in; saved by themselves
    collectives: CollectiveModel | None = None
    host: Host | None = None  # what launching costs; None: not learned
    # step effects fitted to measured training steps; None: what is believed without
    steps: Adaptation | None = None
    # calibrations by which ops are priced that were not measured here; None: the roofline
    references: Callable[[], Sequence[PerfModel]] | None = dataclasses.field(
        default=None, compare=False
    )
    # families of ops that no relative measured, by what all devices show of them; None: by
    # `references` alone
    usual: Callable[[], Mapping[str, AdaptedPrior]] | None = dataclasses.field(
        default=None, compare=False
    )
    # whose measurements stand for this device's own; None: it has its own, or none
    stand_in: PerfModel | None = None

    def __repr__(self) -> str:
        families, rows = ", ".join(self.families), self.provenance.get("rows")
        parts = ["datasheet roofline, nothing measured"]
        if self.families and rows == 0:
            parts = [f"priors alone, nothing measured ({families})"]
        elif self.groups:
            measured = f" to {rows:,} measured rows" if type(rows) is int else ""
            parts = [f"{len(self.groups)} op groups fitted{measured}"]
            parts += [f"priors for {families}"] if self.families else []
        if self.collectives is not None:
            parts.append(f"collectives of {self.collectives.system.id}")
        if self.host is not None:
            parts.append("launch overheads of its host")
        return f"<PerfModel: {self.device.id}: {'; '.join(parts)}>"

    @staticmethod
    def datasheet(device: DeviceSpec) -> PerfModel:
        """A model of a device without measurements: the textbook roofline."""
        return PerfModel(device, neutral_knobs())

    def platform(self, framework: str = "") -> Platform:
        """The machine's numbers, float64; step effects are those of a framework on it."""
        links = None if self.collectives is None else self.collectives.links()
        effects = vector(self.adapted(framework).effects)
        return dataclasses.replace(self.numbers, links=links, effects=effects)

    @functools.cached_property
    def numbers(self) -> Platform:
        """The device's numbers: all that ops depend on."""
        return Platform.of(self.device, self.knobs)

    def adapted(self, framework: str = "") -> Adapted:
        """What is known of a framework's step effects on this device with its host."""
        return self._known_steps.of(Group.of(framework, self.device.arch))[0]

    def steps_note(self, framework: str) -> str:
        """Whose measured steps a framework's effects come from; "" where from its own."""
        return self._known_steps.note_of(Group.of(framework, self.device.arch))

    @property
    def _known_steps(self) -> Adaptation:
        return self.steps or Adaptation({}, host=self.host)

    @property
    def measured(self) -> PerfModel:
        """Whose measurements count: its own, or those of the device that stands for it."""
        return self.stand_in or self

    @property
    def refers(self) -> bool:
        """Whether other devices' calibrations say anything of it: the shipped ones are GPUs'."""
        return self.references is not None and self.device.kind == "gpu"

    def by_prior(self) -> Mapping[str, AdaptedPrior]:
        """Families that a prior prices: its own, and those that no relative of it measured."""
        return {**(self.usual() if self.usual else {}), **self.families}

    @functools.cached_property
    def alone(self) -> PerfModel:
        """The machine by its own rows and datasheet."""
        return dataclasses.replace(self, references=None, stand_in=None)

    def on(self, device: DeviceSpec) -> PerfModel:
        """The model of a device that this calibration stands for."""
        if device.id == self.device.id:
            return self
        made = PerfModel.datasheet(device)
        return dataclasses.replace(
            made, stand_in=self, references=self.references, collectives=self.collectives,
            host=self.host, steps=self.steps,
        )  # fmt: skip

    def with_collectives(self, collectives: CollectiveModel) -> PerfModel:
        """The same device in a system, whose links price the collectives of its steps."""
        return dataclasses.replace(self, collectives=collectives)

    def table(self, calls: Sequence[OpCall]) -> OpTable:
        """Ops as arrays for this device; `InputError` for a dtype without a peak on it."""
        return self.priced(calls)[0]

    def priced(self, calls: Sequence[OpCall]) -> tuple[OpTable, PricedOps]:
        """Ops as arrays for this device, and what the stages of their price say (`stages/`)."""
        found = PricedOps.of_calls(self, calls)
        return found.table(np.array([call.times for call in calls])), found

    @functools.cached_property
    def attention_factors(self) -> dict[tuple[str, str], float]:
        """What `stages/kernel.py` found of a kernel and number format on this machine."""
        return {}

    def op_seconds(self, table: OpTable) -> np.ndarray:
        """Seconds of each op [U], its `times` included."""
        return seconds(table, self.numbers)

    def roofline_seconds(self, table: OpTable) -> np.ndarray:
        """The datasheet roofline's seconds of each op [U], its `times` included."""
        # the same compiled function with neutral knobs: another one may round differently (XLA
        # divides by a scalar its own way)
        bare = dataclasses.replace(table, correction=np.zeros_like(table.correction))
        return seconds(bare, dataclasses.replace(self.numbers, knobs=neutral_knobs()))

    def shortcomings(self) -> list[str]:
        """Sentences to read before any number; empty for a model that was measured."""
        if self.groups:
            return []
        name, why = self.device.id, "no calibration of it is known"
        if self.refers:
            return [f"{name} is priced by its datasheet and what other GPUs reach of theirs: {why}"]
        return [f"{name} is priced by its datasheet: {why}, and real machines are slower"]

    def explain(self, call: OpCall) -> Waterfall:
        """The price of an op, stage by stage; `InputError` for a dtype without a peak here."""
        priced = self.priced([call])[1]
        return waterfalls(*priced.batches[0], priced.machine)[0]

    def predict_ops(
        self, frame: pd.DataFrame, explain: bool = False, whole: bool = False
    ) -> pd.DataFrame:
        """The rows of a table of ops with `predicted_s, low_s, high_s, roofline_s, in_range, note`.

        With `explain` also `explained`: each price as a waterfall of its stages. With `whole` rows
        whose counts are fractions are refused.

        A row that cannot be priced keeps its place with empty numbers and the reason in `note`.
        """
        return predict_ops(self, frame, explain, whole)

    def save(self, folder: str | Path) -> None:
        """Write `model.json` (knobs in plain numbers, provenance) and `residual.npz` (weights).

        With a host, `host.json` too, and with fitted step effects `steps.json`; without them such
        files in the folder stay, as collectives do.
        """
        document = to_document(self)
        with replacing_in(folder) as new:
            write_arrays(new / WEIGHTS_FILE, weights_of(self))
            write_json(new / "model.json", "model", MODEL_SCHEMA_VERSION, document)
            if self.host is not None:
                self.host.save(new)
            if self.steps is not None:
                self.steps.save(new / STEPS_FILE)

    def fingerprint(self) -> str:
        """Short hash of knobs and weights, of the host where there is one, and of whether other
        GPUs' calibrations stand in where none was measured.
        """
        document = to_document(self)
        keys = ("device", "groups", "families", "levels", "weights_sha256")
        parts = [document[key] for key in keys]
        if self.references is not None and not self.groups:
            parts.append("other GPUs")
        if self.host is not None:
            parts.append(self.host.model_dump(exclude={"source"}))
        if self.steps is not None:
            groups = self.steps.groups.items()
            parts.append({name: one.theta.tolist() for name, one in groups})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
