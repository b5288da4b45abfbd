"""What all layouts of a plan share: the model, the cluster, how a framework runs it, what is believed of its efficiencies.

A framework's habits (kernels, attention, bytes of gradients, what overlaps) are those that rows of measured steps are understood by
(`presets/step_rows.toml`); its memory knobs, where some were fitted, come with it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hybridperf.hardware import DeviceSpec, load_device, load_system
from hybridperf.io import InputError, unknown
from hybridperf.memory import MemoryKnobs
from hybridperf.steps.adapt import Adapted
from hybridperf.steps.batch import Bank
from hybridperf.steps.memory_fit import USABLE, memory_knobs
from hybridperf.steps.names import Machine, aliases, machine
from hybridperf.steps.peaks import arithmetic
from hybridperf.steps.prices import Prices
from hybridperf.steps.rows import config_habits
from hybridperf.workloads.transformer import Layout, TransformerShape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.zoo import HABITS

FRAMEWORK = "megatron_core"
_FIELDS = {field.name for field in dataclasses.fields(TransformerConfig)}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model on a cluster, with everything but its layout."""

    shape: TransformerShape
    machine: Machine
    device: DeviceSpec
    framework: str
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
        return arithmetic(self.template.dtype, self.template.quant)

    @property
    def mfu_flops_per_s(self) -> float:
        """That peak, of one device."""
        return self.device.peak(self.mfu_format, "matrix")

    def config(self, layout: Layout) -> TransformerConfig:
        """The step with a layout."""
        padded = int(config_habits(aliases()["framework"][self.framework], layout.tp).get("vocab_multiple", self.template.vocab_multiple))
        return self.template.replace(layout=layout, gpus_per_node=min(self.gpus_per_node, layout.ranks), vocab_multiple=padded)


def setting(
    shape: TransformerShape, system: str, *, device: str | None = None, framework: str = FRAMEWORK, dtype: str = "bf16", quant: str = "",
    memory_bytes: float | None = None, adapted: Adapted | None = None, bank: Bank | None = None,
) -> Setting:  # fmt: skip
    """`InputError` for a system without a known device, or a framework nobody knows."""
    known = aliases()["framework"]
    if framework not in known:
        raise unknown("framework", framework, known, f"known are {', '.join(known)}")
    fabric = load_system(system)
    if device is None and fabric.device is None:
        raise InputError(
            f"expected a system whose accelerators are a known device, got {system} of {fabric.accelerator}; name it by --device"
        )
    named = device or fabric.device
    assert named is not None
    found = machine(named, "", named, system)
    habits: dict[str, Any] = dict(known[framework])
    fields = {name: value for name, value in habits.items() if name in _FIELDS}
    template = TransformerConfig(shape=shape, dtype=dtype, quant=quant, **fields)
    if template.stage_split != "even":
        template = template.replace(head_layers=shape.vocab * shape.hidden / shape.layer_parameters)
    bank = bank or Bank()
    capacity = found.memory_bytes if memory_bytes is None else memory_bytes
    notes = list(found.notes)
    if adapted is None:
        adapted = Adapted.before()
        notes.append("no measured steps: efficiencies of a step are believed, not measured")
    notes += [note for note in (shape.note,) if note.startswith(HABITS)]
    made = Setting(
        shape, found, load_device(found.device), framework, not habits.get("ragged_heads", False), template, bank.prices(found), adapted,
        memory_knobs(framework), USABLE * capacity,
    )  # fmt: skip
    notes.append(
        f"MFU is of the {made.mfu_format} peak of {made.device.id}, {made.mfu_flops_per_s / 1e12:,.0f} TFLOP/s a GPU; model FLOPs are three"
        " forward passes with attention counted in full, its causal half too, and nothing computed twice"
    )
    return dataclasses.replace(made, notes=tuple(notes))
