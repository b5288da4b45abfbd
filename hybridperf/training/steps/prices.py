"""What single calls of a step cost on one device and its links: each unique call priced once, all
new ones together.

Products and attention go by the op model. Everything else moves bytes and computes next to nothing:
its seconds are its bytes at the datasheet's bandwidth, and one step effect (`memory`) is the share
of it that loops reach. Collectives go by the links' model.

A device that another one's calibration stands for (an H100 limited to 500 W) multiplies at its own
clock: power limits it, and power goes with the cube of the clock (frequency x voltage^2, voltage ~
frequency), so time with (power / power)^(1/3).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.step_table import collective_frame
from hybridperf.engine.workload import CollectiveCall
from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.learning.prior.implementation import CollectiveImplementation
from hybridperf.model import PerfModel
from hybridperf.ops import BatchedGemm, EncoderAttention, Gemm, Op, OpCall, PrefillAttention
from hybridperf.ops.attention_kernels import published_factor
from hybridperf.training.steps.reference_device import (
    ATTENTION_WIDTH,
    PRODUCTS_WIDTH,
    as_measured,
    is_measured,
    reference_device,
    slowed,
)
from hybridperf.training.steps.reference_device import seconds as believed_seconds
from hybridperf.training.steps.step_effects import NAMES

# whose part inside a node is the same collective of the node's own ranks, with as many bytes
# (`collectives/traffic.py`)
_COMPOSED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_BY_MODEL = (Gemm, BatchedGemm, PrefillAttention, EncoderAttention)
Call = OpCall | CollectiveCall


@dataclasses.dataclass(frozen=True)
class Unmeasured:
    """What was not measured on a machine."""

    widths: np.ndarray  # [K] in logs, on top of the width of each step effect
    notes: tuple[str, ...]


@dataclasses.dataclass(eq=False)
class Prices:
    """Seconds of calls, kept."""

    model: PerfModel
    links: CollectiveModel
    device: DeviceSpec  # whose bandwidth counts; the model may be of a reference device
    # calibrations by which ops are priced that the model has not; None: its roofline
    references: Callable[[], Sequence[PerfModel]] | None = None
    known: dict[Call, float] = dataclasses.field(default_factory=dict)
    # sums over the passes of a cell (`features.py`)
    cells: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # passes of cells, which take longer to build than to price
    kept: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # sums of what happens once a step
    once: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # what was not measured, by what it depends on
    by_machine: dict[Any, Unmeasured] = dataclasses.field(default_factory=dict)
    _unmeasured: dict[Call, tuple[float, str]] = dataclasses.field(default_factory=dict)
    # of attention, by kernel and dtype
    _factors: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)

    def on(
        self, links: CollectiveModel, device: DeviceSpec | None = None,
        model: PerfModel | None = None,
    ) -> Prices:  # fmt: skip
        """Prices by the same references on other links, or another device, with nothing kept."""
        return Prices(model or self.model, links, device or self.device, self.references)

    def learn(self, calls: Iterable[Call]) -> None:
        """Price those that are new."""
        new = [call for call in dict.fromkeys(calls) if call not in self.known]
        ops = [call for call in new if isinstance(call, OpCall)]
        by_model = [call for call in ops if isinstance(call.op, _BY_MODEL)]
        messages = [call for call in new if isinstance(call, CollectiveCall)]
        if by_model:
            # device time alone: launching is the host's, which has step effects of its own
            apart = [dataclasses.replace(call, issued_apart=True) for call in by_model]
            self.known.update(zip(by_model, self._ops_s(apart), strict=True))
        if messages:
            self.known.update(zip(messages, self._messages_s(messages).tolist(), strict=True))
        for call in ops:
            if call not in self.known:
                moved = call.times * float(call.op.work().bytes)
                self.known[call] = moved / self.device.memory_bytes_per_s

    def _ops_s(self, calls: list[OpCall]) -> list[float]:
        """Seconds of ops: measured ones by the model, others by a reference device."""
        calls = [dataclasses.replace(call, op=as_measured(self.model, call.op)) for call in calls]
        known = np.array([self._is_measured(call.op) for call in calls], bool)
        found = np.empty(len(calls))
        slower = slowed(self.device, self.model.device)
        measured, others = (list(itertools.compress(calls, here)) for here in (known, ~known))
        if measured:
            found[known] = slower * self.model.op_seconds(self.model.table(measured))
        if others and self.references is not None:
            found[~known] = believed_seconds(self.model, self.device, others, self.references())
        return found.tolist()

    def _is_measured(self, op: Op) -> bool:
        return self.references is None or is_measured(self.model, op)

    def _unlimited_s(self, call: OpCall) -> float:
        """Seconds of an op with as much power as devices of published shares of the peak have."""
        call = dataclasses.replace(call, op=as_measured(self.model, call.op))
        if self.references is None or self._is_measured(call.op):
            return float(self.model.op_seconds(self.model.table([call]))[0])
        device = self.device.model_copy(update={"tdp_w": None})
        return float(believed_seconds(self.model, device, [call], self.references())[0])

    def attention_factor(self, kernel: str, dtype: str) -> float:
        """Seconds of a generation of fused attention over those of the op model; 1 if unknown."""
        if (kernel, dtype) not in self._factors:
            self._factors[kernel, dtype] = published_factor(
                kernel, dtype, self.device.arch, self.model.device, self._unlimited_s
            )
        return self._factors[kernel, dtype]

    def unmeasured(self, probes: Sequence[tuple[str, Call]]) -> Unmeasured:
        """What was not measured of calls that stand each for what a step effect multiplies."""
        widths: dict[str, float] = {}
        notes: dict[str, None] = {}
        for effect, call in probes:
            if call not in self._unmeasured:
                self._unmeasured[call] = (
                    self._unmeasured_op(call)
                    if isinstance(call, OpCall)
                    else self._unmeasured_message(call)
                )
            width, why = self._unmeasured[call]
            widths[effect] = max(widths.get(effect, 0.0), width)
            if why:
                notes[why] = None
        return Unmeasured(np.array([widths.get(name, 0.0) for name in NAMES]), tuple(notes))

    def _unmeasured_op(self, call: OpCall) -> tuple[float, str]:
        """(width in logs, sentence) of an op; nothing of a measured one."""
        op = as_measured(self.model, call.op)
        if self.references is None or self._is_measured(op):
            return 0.0, ""
        found = reference_device(self.device, op, self.references())
        attention = isinstance(op, PrefillAttention | EncoderAttention)
        what, width = ("attention", ATTENTION_WIDTH) if attention else ("products", PRODUCTS_WIDTH)
        whose = "that devices usually reach" if found is None else f"that {found.device.id} reaches"
        numbers = op.dtype
        if isinstance(op, Gemm):
            numbers = op.arithmetic_dtype(op.dtype, {"quant": op.quant})
        return width, (
            f"no {what} in {numbers} of {self.device.id} were measured: the share of the peak"
            f" {whose} is believed"
        )

    def _unmeasured_message(self, call: CollectiveCall) -> tuple[float, str]:
        """(width in logs, sentence) of a collective on a fabric that was not measured at all."""
        if self.links.adapted is None or self.links.adapted.rows:
            return 0.0, ""
        found = self.links.predict(collective_frame([call])).iloc[0]
        width = float(np.log(found["high_s"] / found["low_s"])) / 2 / NINE_OF_TEN
        return width, f"collectives by the prior alone: none of {self.links.system.id} was measured"

    def __getitem__(self, call: Call) -> float:
        return self.known[call]

    def _messages_s(self, calls: list[CollectiveCall]) -> np.ndarray:
        """Seconds of collectives; over nodes no less than their part on measured inner links."""
        seconds = self._predicted_s(calls)
        inside = [(at, part) for at, call in enumerate(calls) if (part := self._inside(call))]
        if inside:
            at = [place for place, _ in inside]
            seconds[at] = np.maximum(seconds[at], self._predicted_s([part for _, part in inside]))
        return seconds

    def _inside(self, call: CollectiveCall) -> CollectiveCall | None:
        """A node's own part of a collective over nodes; None without, or if both were measured."""
        each = call.ranks_per_node
        if call.nodes == 1 or each == 1 or call.collective not in _COMPOSED:
            return None
        measured = (
            one
            for one in self.links.measured
            if CollectiveImplementation.parse(one.group).collective == call.collective
        )
        if {one.nodes > 1 for one in measured} != {False}:
            return None
        return dataclasses.replace(call, ranks=each, nodes=1)

    def _predicted_s(self, calls: list[CollectiveCall]) -> np.ndarray:
        found = self.links.predict(collective_frame(calls))
        seconds = np.array(found["predicted_s"], float)
        unpriced = np.flatnonzero(~np.isfinite(seconds))
        if len(unpriced):
            at = int(unpriced[0])
            call, why = calls[at], found["note"].iloc[at]
            raise InputError(f"cannot price {call.collective} over {call.ranks} ranks: {why}")
        return seconds
