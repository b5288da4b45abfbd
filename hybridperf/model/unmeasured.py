"""What was not measured of a machine that a training step runs on, and how far off that may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from hybridperf.collectives import network
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.model.calls import CollectiveCall
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.reference_device import (
    as_measured,
    is_long_attention,
    is_measured,
    reference_device,
    width_of,
)
from hybridperf.model.step_effects import NAMES
from hybridperf.model.step_table import collective_frame
from hybridperf.ops import OpCall

Probe = tuple[str, OpCall | CollectiveCall]  # a call that stands for what a step effect multiplies


@dataclasses.dataclass(frozen=True)
class Unmeasured:
    """What was not measured on a machine."""

    widths: np.ndarray  # [K] in logs, on top of the width of each step effect
    notes: tuple[str, ...]


def unmeasured(model: PerfModel, probes: Iterable[Probe]) -> Unmeasured:
    """What of a step was not measured on a machine."""
    widths: dict[str, float] = {}
    notes: dict[str, None] = {}
    known: dict[OpCall | CollectiveCall, tuple[float, str]] = {}
    for effect, call in probes:
        if call not in known:
            known[call] = (
                _of_op(model, call) if isinstance(call, OpCall) else _of_collective(model, call)
            )
        width, why = known[call]
        widths[effect] = max(widths.get(effect, 0.0), width)
        if why:
            notes[why] = None
    return Unmeasured(np.array([widths.get(name, 0.0) for name in NAMES]), tuple(notes))


def _of_op(model: PerfModel, call: OpCall) -> tuple[float, str]:
    """(width in logs, sentence) of an op; nothing of a measured one."""
    measured, device = model.measured, model.device
    op = as_measured(measured, call.op)
    if model.references is None or is_measured(measured, op):
        return 0.0, ""
    found = reference_device(device, op, model.references())
    width, what = width_of(op), "attention" if is_long_attention(op) else "products"
    whose = "that devices usually reach" if found is None else f"that {found.device.id} reaches"
    return width, (
        f"no {what} in {op.peak_dtype} of {device.id} were measured: the share of the peak"
        f" {whose} is believed"
    )


def _of_collective(model: PerfModel, call: CollectiveCall) -> tuple[float, str]:
    """(width in logs, sentence) of a collective on a fabric, or over a network, that was not
    measured at all.
    """
    links = model.collectives
    if links is None or links.adapted is None:
        return 0.0, ""
    believed = call.nodes > 1 and not links.network_measured
    if links.adapted.rows:
        note = f"no network of {links.system.id} was measured: a share of its rate is believed"
        return (network.WIDTH, note) if believed else (0.0, "")
    width = network.WIDTH
    if not believed:
        priced = links.priced(collective_frame([call]))
        width = float(priced.log_width[0]) / 2 / NINE_OF_TEN
    return width, f"collectives by the prior alone: none of {links.system.id} was measured"
