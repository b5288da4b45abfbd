"""What single calls of a step cost on one device and its links: each unique call priced once, all
new ones together.

Products and attention go by the op model. Everything else moves bytes and computes next to nothing:
its seconds are its bytes at the datasheet's bandwidth, and one knob (`memory`) says what share of
that loops reach. Collectives go by the links' model.

A device that another one's calibration stands for (an H100 limited to 500 W) multiplies at its own
clock: power limits it, and power goes with the cube of the clock (frequency x voltage^2, voltage ~
frequency), so time with (power / power)^(1/3).
"""

from __future__ import annotations

import dataclasses
import functools
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
from hybridperf.ops import BatchedGemm, EncoderAttention, Gemm, OpCall, PrefillAttention
from hybridperf.ops.attention_kernels import published_factor
from hybridperf.training.steps.knobs import NAMES
from hybridperf.training.steps.reference_device import (
    ATTENTION_WIDTH,
    PER_POWER,
    PRODUCTS_WIDTH,
    as_measured,
    is_measured,
    reference_device,
)
from hybridperf.training.steps.reference_device import seconds as believed_seconds

# whose part inside a node is the same collective of the node's own ranks, with as many bytes
# (`collectives/traffic.py`)
_COMPOSED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_BY_MODEL = (Gemm, BatchedGemm, PrefillAttention, EncoderAttention)
Priced = OpCall | CollectiveCall


@dataclasses.dataclass(frozen=True)
class Doubts:
    """Of what was not measured on a machine."""

    widths: np.ndarray  # [K] in logs, beside the width of each knob
    said: tuple[str, ...]


@dataclasses.dataclass(eq=False)
class Prices:
    """Seconds of calls, kept."""

    model: PerfModel
    links: CollectiveModel
    device: DeviceSpec  # whose bandwidth counts; the model may be of its neighbour
    references: Callable[[], Sequence[PerfModel]] | None = (
        None  # calibrations by which ops are priced that the model has not; None: its roofline
    )
    known: dict[Priced, float] = dataclasses.field(default_factory=dict)
    cells: dict[Any, Any] = dataclasses.field(
        default_factory=dict
    )  # sums over the passes of a cell (`features.py`)
    kept: dict[Any, Any] = dataclasses.field(
        default_factory=dict
    )  # passes of cells, which take longer to build than to price
    once: dict[Any, Any] = dataclasses.field(
        default_factory=dict
    )  # the same of what happens once a step
    sure: dict[Any, Doubts] = dataclasses.field(
        default_factory=dict
    )  # of rows, by what they depend on
    _doubts: dict[Priced, tuple[float, str]] = dataclasses.field(default_factory=dict)
    _factors: dict[tuple[str, str], float] = dataclasses.field(
        default_factory=dict
    )  # of attention, by kernel and dtype

    def on(
        self,
        links: CollectiveModel,
        device: DeviceSpec | None = None,
        model: PerfModel | None = None,
    ) -> Prices:
        """By the same kin on other links, or another device: nothing that was priced before is
        kept.
        """
        return Prices(model or self.model, links, device or self.device, self.references)

    def learn(self, calls: Iterable[Priced]) -> None:
        """Price those that are new."""
        new = [call for call in dict.fromkeys(calls) if call not in self.known]
        by_model = [
            call for call in new if isinstance(call, OpCall) and isinstance(call.op, _BY_MODEL)
        ]
        messages = [call for call in new if isinstance(call, CollectiveCall)]
        if by_model:
            # device time alone: launching is the host's, whose knobs stand beside it
            self.known.update(
                zip(
                    by_model,
                    self._ops_s(
                        [dataclasses.replace(call, issued_apart=True) for call in by_model]
                    ),
                    strict=True,
                )
            )
        if messages:
            self.known.update(zip(messages, self._messages_s(messages).tolist(), strict=True))
        for call in new:
            if isinstance(call, OpCall) and call not in self.known:
                self.known[call] = (
                    call.times * float(call.op.work().bytes) / self.device.memory_bytes_per_s
                )

    def _ops_s(self, calls: list[OpCall]) -> list[float]:
        """Seconds of ops: measured ones by the model, others as large a share of the roofline as
        kin reach.
        """
        calls = [dataclasses.replace(call, op=as_measured(self.model, call.op)) for call in calls]
        known = np.array(
            [self.references is None or is_measured(self.model, call.op) for call in calls], bool
        )
        found = np.empty(len(calls))
        for here, price in ((known, self._measured_s), (~known, self._believed_s)):
            if here.any():
                found[here] = price([call for call, one in zip(calls, here, strict=True) if one])
        return [float(one) for one in found]

    def _measured_s(self, calls: list[OpCall]) -> np.ndarray:
        return self._slower * self.model.op_seconds(self.model.table(calls))

    def _believed_s(self, calls: list[OpCall]) -> np.ndarray:
        assert self.references is not None
        return believed_seconds(self.model, self.device, calls, self.references())

    def _unlimited_s(self, call: OpCall) -> float:
        """Seconds of an op with as much power as devices have that shares of the peak are published
        of.
        """
        call = dataclasses.replace(call, op=as_measured(self.model, call.op))
        if self.references is None or is_measured(self.model, call.op):
            return float(self.model.op_seconds(self.model.table([call]))[0])
        return float(
            believed_seconds(
                self.model,
                self.device.model_copy(update={"tdp_w": None}),
                [call],
                self.references(),
            )[0]
        )

    @functools.cached_property
    def _slower(self) -> float:
        """Seconds of the device over those of the one that its model is of; what more power gains
        nobody measured.
        """
        measured_w, own_w = self.model.device.tdp_w, self.device.tdp_w
        return (
            1.0
            if measured_w is None or own_w is None
            else max((measured_w / own_w) ** PER_POWER, 1.0)
        )

    def attention_factor(self, kernel: str, dtype: str) -> float:
        """Seconds of a generation of fused attention, forward and backward, over those of the op
        model; 1 where nothing is published.
        """
        if (kernel, dtype) not in self._factors:
            self._factors[kernel, dtype] = published_factor(
                kernel, dtype, self.device.arch, self.model.device, self._unlimited_s
            )
        return self._factors[kernel, dtype]

    def doubts(self, probes: Sequence[tuple[str, Priced]]) -> Doubts:
        """How sure the prices of some calls are, each standing for what a knob multiplies, and what
        is to be said of that.
        """
        widths: dict[str, float] = {}
        said: dict[str, None] = {}
        for knob, call in probes:
            if call not in self._doubts:
                self._doubts[call] = (
                    self._message_doubt(call)
                    if isinstance(call, CollectiveCall)
                    else self._op_doubt(call)
                )
            width, why = self._doubts[call]
            widths[knob] = max(widths.get(knob, 0.0), width)
            if why:
                said[why] = None
        return Doubts(np.array([widths.get(name, 0.0) for name in NAMES]), tuple(said))

    def _op_doubt(self, call: OpCall) -> tuple[float, str]:
        """(width in logs, sentence) of an op; nothing of a measured one."""
        op = as_measured(self.model, call.op)
        if self.references is None or is_measured(self.model, op):
            return 0.0, ""
        found = reference_device(self.device, op, self.references())
        what = "attention" if isinstance(op, PrefillAttention | EncoderAttention) else "products"
        whose = "that devices usually reach" if found is None else f"that {found.device.id} reaches"
        numbers = (
            op.arithmetic_dtype(op.dtype, {"quant": op.quant}) if isinstance(op, Gemm) else op.dtype
        )
        why = (
            f"no {what} in {numbers} of {self.device.id} were measured: the share of the peak"
            f" {whose} is believed"
        )
        return (PRODUCTS_WIDTH if what == "products" else ATTENTION_WIDTH), why

    def _message_doubt(self, call: CollectiveCall) -> tuple[float, str]:
        """(width in logs, sentence) of a collective of a fabric of which nothing was measured;
        nothing of others.
        """
        if self.links.adapted is None or self.links.adapted.rows:
            return 0.0, ""
        said = self.links.predict(collective_frame([call])).iloc[0]
        width = float(np.log(said["high_s"] / said["low_s"])) / 2 / NINE_OF_TEN
        return width, f"collectives by the prior alone: none of {self.links.system.id} was measured"

    def __getitem__(self, call: Priced) -> float:
        return self.known[call]

    def _messages_s(self, calls: list[CollectiveCall]) -> np.ndarray:
        """Seconds of collectives. Where only links inside a node were measured, no collective over
        nodes is faster than its part there.
        """
        seconds, parts = (
            self._said_s(calls),
            {at: part for at, call in enumerate(calls) if (part := self._inside(call)) is not None},
        )
        if parts:
            at = list(parts)
            seconds[at] = np.maximum(seconds[at], self._said_s(list(parts.values())))
        return seconds

    def _inside(self, call: CollectiveCall) -> CollectiveCall | None:
        """The part of a collective over nodes that each node does by itself; None where it has none
        or the network was measured too.
        """
        each = call.ranks_per_node
        placements = {
            one.nodes > 1
            for one in self.links.measured
            if CollectiveImplementation.parse(one.group).collective == call.collective
        }
        if (
            call.nodes == 1
            or each == 1
            or call.collective not in _COMPOSED
            or placements != {False}
        ):
            return None
        return dataclasses.replace(call, ranks=each, nodes=1)

    def _said_s(self, calls: list[CollectiveCall]) -> np.ndarray:
        said = self.links.predict(collective_frame(calls))
        seconds = np.array(said["predicted_s"], float)
        if not np.isfinite(seconds).all():
            at = int(np.flatnonzero(~np.isfinite(seconds))[0])
            raise InputError(
                f"cannot price {calls[at].collective} over {calls[at].ranks} ranks:"
                f" {said['note'].iloc[at]}"
            )
        return seconds
