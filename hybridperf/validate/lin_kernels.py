"""Seconds of kernels alone, from a GPU model whose measurements held the host as well.

The tables that GPU models are calibrated on time one op in a loop: what takes the device less than
its launch shows the launch. On the V100 of NeuSight's tables no loop takes less than 31 us, where a
profiler sees kernels of 2 us. A step whose host is modelled apart must not pay that twice, so of
what a model says here counts

    loops       as a model prices kernels that are issued apart (`PerfModel.table`): seconds per
                element of a long one, and the least that a kernel takes; those never measured move
                their bytes as `add` does
    products    as they are; at the clock that the device ran at
    others      (lookups, reductions, copies) their bytes at the rate of `add`, and the least that a
                kernel takes

Some kernels are known to be slower than their bytes; `lin_borrowed` has their rates, from other
workloads than the one that is judged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from hybridperf.engine.workload import Call, CallChain, CollectiveCall, GivenSeconds
from hybridperf.io import InputError
from hybridperf.model import KERNEL_S, LONG_LOOP, PerfModel
from hybridperf.ops import BatchedGemm, Elementwise, Gemm, Op, OpCall, Reduction, columns
from hybridperf.ops.embedding_bag import EmbeddingBagBackward

_FAMILY_LOOPS = (  # measured on the V100
    "add", "addu", "mul", "mulu", "div", "divu", "relu", "pow", "powu", "gelu", "tanh"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BorrowedRates:
    """Rates that other workloads' sequences show (`lin_borrowed`); NaN where none does."""

    index_elements_per_s: float
    update_bytes_per_s: float
    sum_bytes_per_s: float
    dot_columns_per_s: float  # of all samples; at least
    dot_backward_columns_per_s: float
    copy_bytes_per_s: float

    def times(self, factor: float) -> BorrowedRates:
        """Of a device that is so much faster; copies to it are not."""
        faster = BorrowedRates(*(factor * rate for rate in dataclasses.astuple(self)))
        return dataclasses.replace(faster, copy_bytes_per_s=self.copy_bytes_per_s)


def updated_bytes(op: EmbeddingBagBackward) -> float:
    """Of rows that an update reads and writes back; its other bytes are streamed."""
    return 2.0 * float(op.lookups() * op.dim * op.element_bytes)


@dataclasses.dataclass(frozen=True)
class KernelPrices:
    """Prices of the kernels of a step."""

    model: PerfModel
    clock_hz: float | None = None  # that the device ran at; None: its own
    kernel_s: float = KERNEL_S
    borrowed: BorrowedRates | None = None  # None: all by their bytes

    def seconds(self, calls: Sequence[Call]) -> np.ndarray:
        """Of each row [U]; given seconds as they are."""
        found = []
        for call in calls:
            if isinstance(call, CollectiveCall):
                raise InputError(
                    f"expected the kernels of one rank, got an {call.collective} over {call.ranks}"
                )
            if isinstance(call, CallChain):
                raise InputError("expected each kernel by itself, got a chain of them")
            found.append(call.value if isinstance(call, GivenSeconds) else self._of(call.op))
        return np.array(found)

    def _of(self, op: Op) -> float:
        loops_known = "elementwise" in self.model.families
        measured = isinstance(op, Elementwise) and columns(op)["op"] in _FAMILY_LOOPS
        if isinstance(op, Gemm | BatchedGemm) or (measured and loops_known):
            return self._priced(op)
        moved, slowly, rate = float(op.work().bytes), 0.0, self.streaming_bytes_per_s
        if self.borrowed is not None and isinstance(op, Reduction):
            moved, slowly, rate = 0.0, moved, self.borrowed.sum_bytes_per_s
        elif (
            self.borrowed is not None
            and isinstance(op, EmbeddingBagBackward)
            and op.duplicates == "each"
        ):
            slowly, rate = updated_bytes(op), self.borrowed.update_bytes_per_s
            moved -= slowly
        return self.kernel_s + moved / self.streaming_bytes_per_s + slowly / rate

    @functools.cached_property
    def streaming_bytes_per_s(self) -> float:
        """What a long loop moves."""
        inputs = {"inputs": 2.0, "element_flops": 1.0, "element_transcendentals": 0.0}
        long = Elementwise("fp32", LONG_LOOP / 1024.0, 1024.0, **inputs)
        return float(long.work().bytes) / self._priced(long)

    def _priced(self, op: Op) -> float:
        table, own_hz = (
            self.model.table([OpCall(op, issued_apart=True)]),
            self.model.device.clock_hz,
        )
        scale = self.clock_hz / own_hz if self.clock_hz is not None and own_hz is not None else 1.0
        table = dataclasses.replace(table, peak_flops_per_s=table.peak_flops_per_s * scale)
        return float(self.model.op_seconds(table)[0])
