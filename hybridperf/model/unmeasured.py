"""What was not measured of a machine that a training step runs on, and how far off that may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hybridperf.collectives import network
from hybridperf.collectives.price import price
from hybridperf.model.calls import CollectiveCall
from hybridperf.model.perf_model import PerfModel
from hybridperf.model.sources import Code
from hybridperf.model.stages.borrowed import ATTENTION_WIDTH, PRODUCTS_WIDTH
from hybridperf.model.step_effects import NAMES
from hybridperf.model.step_table import collective_frame
from hybridperf.ops import OpCall

Probe = tuple[str, OpCall | CollectiveCall]  # a call that stands for what a step effect multiplies

Told = tuple[float, str]  # width in logs, sentence


@dataclasses.dataclass(frozen=True)
class Unmeasured:
    """What was not measured on a machine."""

    widths: np.ndarray  # [K] in logs, on top of the width of each step effect
    notes: tuple[str, ...]


def unmeasured(
    model: PerfModel, probes: Iterable[Probe],
    known: dict[OpCall | CollectiveCall, Told] | None = None,
) -> Unmeasured:  # fmt: skip
    """What of a step was not measured on a machine; `known`: of calls asked before, filled."""
    known = {} if known is None else known
    widths: dict[str, float] = {}
    notes: dict[str, None] = {}
    for effect, call in probes:
        if call not in known:
            known[call] = _WIDTH_OF[type(call)](model, call)
        width, why = known[call]
        widths[effect] = max(widths.get(effect, 0.0), width)
        if why:
            notes[why] = None
    return Unmeasured(np.array([widths.get(name, 0.0) for name in NAMES]), tuple(notes))


def _of_op(model: PerfModel, call: OpCall) -> tuple[float, str]:
    """(width in logs, sentence) of an op; nothing of a measured one."""
    ((_, priced),) = model.priced([call])[1].batches
    source = priced.owner.sources()[0]
    if source.code not in (Code.BORROWED, Code.BELIEF, Code.PRIOR):
        return 0.0, ""
    attention = source.what.endswith("attention")
    width = float(np.sqrt(np.ravel(priced.shared_log_variance)[0]))
    whose = f"that {source.device} reaches" if source.device else "that devices usually reach"
    believed = f"the share of the peak {whose} is believed"
    if source.code is Code.PRIOR:  # single ops are less sure than the large ones of a step
        usual, of = ATTENTION_WIDTH if attention else PRODUCTS_WIDTH, model.by_prior()[source.what]
        width = min(width, float(np.hypot(usual, of.prior.population.stranger_sd)))
        believed = "what other devices show of them is believed"
    what = f"{'attention' if attention else 'products'} in {call.op.peak_dtype}"
    return width, f"no {what} of {model.device.id} were measured: {believed}"


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
        priced = price(links.table(collective_frame([call])), links.links())
        width = float(np.sqrt(priced.log_variance[0]))
    return width, f"collectives by the prior alone: none of {links.system.id} was measured"


_WIDTH_OF: Mapping[type, Callable[[PerfModel, Any], tuple[float, str]]] = {
    OpCall: _of_op, CollectiveCall: _of_collective,
}  # fmt: skip
