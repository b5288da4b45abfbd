"""What all layouts of a plan share: the model, the cluster, how a framework runs it, and its step
effects.

A framework's habits (kernels, attention, bytes of gradients, what overlaps) are those that rows of
measured steps are understood by (`fields/frameworks/`); its memory knobs, where some were
fitted, come with it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hybridperf.hardware import DeviceSpec, canonical_dtype, device_of, load_system
from hybridperf.hardware.machines import Machine, machine
from hybridperf.io import InputError, unknown
from hybridperf.model.adapted_steps import Adaptation, Adapted, Group
from hybridperf.training.plans.space import PLANNED_SCHEDULES, PartialLayouts, partial_layouts
from hybridperf.training.steps.batch import PriceCache, shared_price_cache
from hybridperf.training.steps.cells import Prices
from hybridperf.training.steps.full_row import full_row, model_columns
from hybridperf.training.steps.memory_fit import memory_knobs
from hybridperf.training.steps.row_layout import layout_columns
from hybridperf.workloads.memory import USABLE, MemoryKnobs
from hybridperf.workloads.transformer import Layout, TransformerShape, load_shape
from hybridperf.workloads.transformer.config import TransformerConfig, config_fields
from hybridperf.workloads.transformer.framework import (
    assumed_framework,
    defaults,
    framework_habits,
    implied_words,
)
from hybridperf.workloads.transformer.zoo import HABITS


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """A model on a cluster, with everything but its layout."""

    shape: TransformerShape
    machine: Machine
    device: DeviceSpec
    framework: str
    release: str  # of the framework, that is assumed; "": none is told apart
    strict: bool  # heads must divide by tp
    template: TransformerConfig  # layouts are put into it
    prices: Prices  # seconds of calls
    adapted: Adapted  # knobs of a step
    memory_knobs: MemoryKnobs
    capacity_bytes: float  # of one device that a step may use
    notes: tuple[str, ...] = ()

    @property
    def gpus_per_node(self) -> int:
        return self.machine.gpus_per_node

    @property
    def mfu_format(self) -> str:
        """Number format in which products of layers multiply, whose peak MFU is a share of."""
        return self.template.product_dtype

    @property
    def mfu_flops_per_s(self) -> float:
        """Peak rate of a device that MFU is measured against."""
        return self.device.peak(self.mfu_format, "matrix")

    @property
    def schedules(self) -> tuple[str, ...]:
        """Pipeline schedules that the framework has."""
        return (*PLANNED_SCHEDULES, *framework_habits()[self.framework].get("schedules", ()))

    @property
    def memory_terms(self) -> dict[str, Any]:
        """What `memory` counts a layout by, besides the shape."""
        one = self.template
        return {
            "dtype": one.dtype, "grad_bytes": one.gradient_bytes, "optimizer": one.optimizer,
            "attention": one.attention, "dropout": one.dropout, "split": one.stage_split,
            "knobs": self.memory_knobs,
        }  # fmt: skip

    def for_gpus(self, gpus: int) -> TrainingSetup:
        """The setup for so many devices: of racks as few as hold them, with whole trays each."""
        taken = self.machine.for_gpus(gpus)
        if taken is self.machine:
            return self
        prices = self.prices
        if taken.gpus_per_node != self.gpus_per_node:
            links = dataclasses.replace(prices.links, system=taken.system)
            prices = Prices(prices.model.with_collectives(links))
        note = taken.notes[-1]
        return dataclasses.replace(self, machine=taken, prices=prices, notes=(*self.notes, note))

    def partial(
        self, gpus: int, batch: int, only: Mapping[str, Sequence[Any]] | None
    ) -> PartialLayouts:
        """Its partial layouts on so many devices, as `partial_layouts`: where a framework's
        attention is unfused, which is not modelled in parts of sequences, with whole ones.
        """
        if self.template.attention == "unfused":
            only = {**(only or {}), "cp": [one for one in (only or {}).get("cp", [1]) if one == 1]}
        return partial_layouts(
            self.shape, gpus, self.gpus_per_node, batch, only, self.strict, self.schedules
        )

    def config(self, layout: Layout) -> TransformerConfig:
        """The training step as it runs in a layout."""
        template = self.template
        padded = self._vocab_multiples[layout.tp > 1]
        if padded != template.vocab_multiple:
            template = template.replace(vocab_multiple=padded)
        return template.with_layout(layout, min(self.gpus_per_node, layout.ranks))

    def as_row(self, config: TransformerConfig) -> dict[str, Any]:
        """A step of it in columns of `steps`, all of them."""
        node = min(self.machine.whole or self.gpus_per_node, config.layout.ranks)
        said = full_row(config, self.machine.system.id, node, self.release)
        return model_columns(self.shape) | {"gpu": self.device.id} | said

    @functools.cached_property
    def shared_columns(self) -> dict[str, Any]:
        """What all its layouts have in common, in columns of `steps`."""
        every, own = self.as_row(self.template), layout_columns(self.template.layout)
        whole = self.machine.whole or self.gpus_per_node
        shared = {name: one for name, one in every.items() if name not in own and one is not None}
        return shared | {"gpus_per_node": whole}

    @functools.cached_property
    def _vocab_multiples(self) -> tuple[int, int]:
        """Of whole vocabularies, and of those that ranks divide."""
        asked = (defaults(self.framework, layout=Layout(tp=tp)) for tp in (1, 2))
        whole, divided = (int(habits["vocab_multiple"]) for habits in asked)
        return whole, divided


def training_setup(
    model: str | TransformerShape, system: str, *, seq: int | None = None,
    device: str | None = None, framework: str = "", dtype: str | None = None, quant: str = "",
    memory_bytes: float | None = None, adapted: Adaptation | Adapted | None = None,
    cache: PriceCache | None = None,
) -> TrainingSetup:  # fmt: skip
    """The setup of a model on a system; arguments as those of `plan`.

    Raises:
        InputError: for a system without a known device, or a framework nobody knows.
    """
    shape = model if isinstance(model, TransformerShape) else load_shape(model)
    shape = shape if seq is None else dataclasses.replace(shape, seq=seq)
    known, assumed = framework_habits(), not framework
    if framework and framework not in known:
        raise unknown("framework", framework, known, f"known are {', '.join(known)}")
    framework = framework or assumed_framework()
    release = known[framework].get("release", "")
    fabric = load_system(system)
    found = machine("", "", device_of(fabric, device), system)
    habits = defaults(framework, device=found.spec, dtype=dtype, quant=quant, shape=shape)
    template = TransformerConfig(shape, **config_fields(habits))
    cache = cache or shared_price_cache()
    capacity = found.memory_bytes if memory_bytes is None else memory_bytes
    if not 0 < capacity < math.inf:
        raise InputError(f"expected --memory-bytes above zero, such as 80e9, got {capacity:g}")
    # `for_gpus` notes how racks are taken
    notes = [note for note in found.notes if "count as a node" not in note]
    notes.append(
        f"of {capacity / 1e9:.1f} GB a GPU layouts may use {USABLE * capacity / 1e9:.1f}:"
        f" {100 * (1 - USABLE):.0f} % are left to the driver, its context and gaps between blocks"
    )
    if habits["precision"]:
        notes.append(f"precision {habits['precision']} assumed, give --dtype or --quant")
    if canonical_dtype(template.dtype) == "fp16":
        notes.append(
            "fp16 is priced as it was measured: its products come from other kernels than those of"
            " bf16 and may be slower"
        )
    group = Group.of(framework, found.spec.arch)
    if not isinstance(adapted, Adapted):
        fitted = adapted or Adaptation({})
        adapted, _ = fitted.of(group)
        notes += filter(None, (fitted.note_of(group),))
    if assumed:
        notes.append(
            f"{framework} defaults assumed, the quickest ({implied_words()}): other frameworks may"
            " take 10 to 30 % longer; name yours by --framework"
        )
    if release:
        notes.append(f"release {release} of {framework} assumed")
    notes += [note for note in (shape.note,) if note.startswith(HABITS)]
    made = TrainingSetup(
        shape, found, found.spec, framework, release, not habits.get("ragged_heads", False),
        template, cache.prices(found), adapted, memory_knobs(framework), USABLE * capacity,
    )  # fmt: skip
    notes.append(
        f"MFU is of the {made.mfu_format} peak of {made.device.id},"
        f" {made.mfu_flops_per_s / 1e12:,.0f} TFLOP/s a GPU; model FLOPs are three forward passes"
        " with attention counted in full, its causal half too, and nothing computed twice"
    )
    return dataclasses.replace(made, notes=tuple(notes))
