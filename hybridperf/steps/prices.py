"""What single calls of a step cost on one device and its links: each unique call priced once, all new ones together.

Products, attention and experts go by the op model. Everything else moves bytes and computes next to nothing: its seconds are its bytes at
the datasheet's bandwidth, and one knob (`memory`) says what share of that loops reach. Collectives go by the links' model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from hybridperf.collectives.model import CollectiveModel
from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.ops import BatchedGemm, EncoderAttention, Gemm, Moe, OpCall, PrefillAttention
from hybridperf.step_table import collective_frame
from hybridperf.workload import CollectiveCall

# whose part inside a node is the same collective of the node's own ranks, with as many bytes (`collectives/traffic.py`)
_COMPOSED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_BY_MODEL = (Gemm, BatchedGemm, PrefillAttention, EncoderAttention, Moe)
Priced = OpCall | CollectiveCall


@dataclasses.dataclass(eq=False)
class Prices:
    """Seconds of calls, kept."""

    model: PerfModel
    links: CollectiveModel
    device: DeviceSpec  # whose bandwidth counts; the model may be of its neighbour
    known: dict[Priced, float] = dataclasses.field(default_factory=dict)
    cells: dict[Any, Any] = dataclasses.field(default_factory=dict)  # sums over the passes of a cell (`features.py`)
    kept: dict[Any, Any] = dataclasses.field(default_factory=dict)  # passes of cells, which take longer to build than to price
    once: dict[Any, Any] = dataclasses.field(default_factory=dict)  # the same of what happens once a step

    def learn(self, calls: Iterable[Priced]) -> None:
        """Price those that are new."""
        new = [call for call in dict.fromkeys(calls) if call not in self.known]
        by_model = [call for call in new if isinstance(call, OpCall) and isinstance(call.op, _BY_MODEL)]
        messages = [call for call in new if isinstance(call, CollectiveCall)]
        if by_model:
            # device time alone: launching is the host's, whose knobs stand beside it
            table = self.model.table([dataclasses.replace(call, issued_apart=True) for call in by_model])
            self.known.update(zip(by_model, self.model.op_seconds(table).tolist(), strict=True))
        if messages:
            self.known.update(zip(messages, self._messages_s(messages).tolist(), strict=True))
        for call in new:
            if isinstance(call, OpCall) and call not in self.known:
                self.known[call] = call.times * float(call.op.work().bytes) / self.device.memory_bytes_per_s

    def __getitem__(self, call: Priced) -> float:
        return self.known[call]

    def _messages_s(self, calls: list[CollectiveCall]) -> np.ndarray:
        """Seconds of collectives. Where only links inside a node were measured, no collective over nodes is faster than its part there."""
        seconds, parts = self._said_s(calls), {at: part for at, call in enumerate(calls) if (part := self._inside(call)) is not None}
        if parts:
            at = list(parts)
            seconds[at] = np.maximum(seconds[at], self._said_s(list(parts.values())))
        return seconds

    def _inside(self, call: CollectiveCall) -> CollectiveCall | None:
        """The part of a collective over nodes that each node does by itself; None where it has none or the network was measured too."""
        each = call.ranks // call.nodes
        placements = {one.nodes > 1 for one in self.links.measured if one.group.split("|")[0] == call.collective}
        if call.nodes == 1 or each == 1 or call.collective not in _COMPOSED or placements != {False}:
            return None
        return dataclasses.replace(call, ranks=each, nodes=1)

    def _said_s(self, calls: list[CollectiveCall]) -> np.ndarray:
        said = self.links.predict(collective_frame(calls))
        seconds = np.array(said["predicted_s"], float)
        if not np.isfinite(seconds).all():
            at = int(np.flatnonzero(~np.isfinite(seconds))[0])
            raise InputError(f"cannot price {calls[at].collective} over {calls[at].ranks} ranks: {said['note'].iloc[at]}")
        return seconds
