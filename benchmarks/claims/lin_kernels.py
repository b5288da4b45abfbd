"""Seconds of kernels alone, from a GPU model whose measurements held the host as well.

The tables that GPU models are calibrated on time one op in a loop: what takes the device less than
its launch shows the launch. On the V100 of NeuSight's tables no loop takes less than 31 us, where a
profiler sees kernels of 2 us. A step whose host is modelled apart must not pay that twice, so of
what a model says here counts

    loops       as a model prices kernels that are issued apart (`PerfModel.table`): seconds per
                element of a long one, and the least that a kernel takes; those never measured move
                their bytes as `add` does
    products    as they are; at the clock that the device ran at
    lookups     rows by the memory level that they are found in, at the rate of `add` from memory
    others      (reductions, copies) their bytes at that rate; all of these, and the least that a
                kernel takes

Some kernels are known to be slower than their bytes, and no table of measured ops holds them. Their
rates are borrowed from the recorded sequences of *other* workloads than the one that is judged:

    index    backward of `x[:, i, j]`: PyTorch gives a whole warp to each element, so it has a rate
             of elements
    update   of table rows that are read and written back where they lie: memory turns from reading
             to writing at random places, which it does slower than it reads such rows (the forward
             lookup) or copies long arrays
    sum      of gradients over a batch, for biases: a sum over the slow dimension is too narrow to
             fill the device
    dot      products of a sample's vectors, forward and backward: one takes no longer than one of
             as many or more vectors, for each column. (For the smallest cuBLAS has kernels that the
             tables, whose products come in another layout, do not show.)
    copy     of a batch to the device, from memory that is pinned as in the published runs

A kernel's seconds are the least that one takes and what its rate makes of it; of an update also
what it streams, gradients and indices.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

import numpy as np
import pandas as pd

from benchmarks.claims import lin_data as lin
from hybridperf.io import InputError
from hybridperf.model import PerfModel
from hybridperf.model.calls import Call, CallChain, CollectiveCall, Exposed, GivenSeconds
from hybridperf.model.lookup_prior import lookup_prior
from hybridperf.model.stages.family import LONG_LOOP
from hybridperf.ops import BatchedGemm, Elementwise, Gemm, Op, OpCall, Reduction, columns
from hybridperf.ops.embedding_bag import EmbeddingBag, EmbeddingBagBackward, lookup_calls
from hybridperf.ops.rows import KERNEL_S
from hybridperf.workloads.dlrm import DlrmConfig

_BATCH = 2048  # of all recorded sequences
_COPY_S = 1e-6  # least that a copy takes in them
_FAMILY_LOOPS = (  # measured on the V100
    "add", "addu", "mul", "mulu", "div", "divu", "relu", "pow", "powu", "gelu", "tanh"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BorrowedRates:
    """Rates that other workloads' sequences show; NaN where none does."""

    index_elements_per_s: float
    update_bytes_per_s: float
    sum_bytes_per_s: float
    dot_columns_per_s: float  # of all samples; at least
    dot_backward_columns_per_s: float
    copy_bytes_per_s: float

    def times(self, factor: float) -> Self:
        """Of a device that is so much faster; copies to it are not."""
        faster = {name: factor * rate for name, rate in dataclasses.asdict(self).items()}
        faster["copy_bytes_per_s"] = self.copy_bytes_per_s
        return dataclasses.replace(self, **faster)


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
            if isinstance(call, CallChain | Exposed):
                raise InputError("expected each kernel by itself, got what is composed of some")
            found.append(call.value if isinstance(call, GivenSeconds) else self._of(call.op))
        return np.array(found)

    def _of(self, op: Op) -> float:
        loops_known = "elementwise" in self.model.families
        measured = isinstance(op, Elementwise) and columns(op)["op"] in _FAMILY_LOOPS
        if isinstance(op, Gemm | BatchedGemm) or (measured and loops_known):
            return self._priced(op)
        if isinstance(op, EmbeddingBag) and self.model.device.l2_bytes and loops_known:
            locked = self.clock_hz or self.model.device.clock_hz
            device = self.model.device.model_copy(update={"clock_hz": locked})
            rate = self.streaming_bytes_per_s
            return self.kernel_s + lookup_prior().reading_s(device, op, rate)
        moved, slowly, rate = float(op.work().bytes), 0.0, self.streaming_bytes_per_s
        if rates := self.borrowed:
            if isinstance(op, Reduction):
                moved, slowly, rate = 0.0, moved, rates.sum_bytes_per_s
            if isinstance(op, EmbeddingBagBackward) and op.duplicates == "each":
                slowly, rate = updated_bytes(op), rates.update_bytes_per_s
                moved -= slowly
        return self.kernel_s + moved / self.streaming_bytes_per_s + slowly / rate

    @functools.cached_property
    def streaming_bytes_per_s(self) -> float:
        """What a long loop moves."""
        inputs = {"inputs": 2.0, "element_flops": 1.0, "element_transcendentals": 0.0}
        long = Elementwise("fp32", LONG_LOOP / 1024.0, 1024.0, **inputs)
        return float(long.work().bytes) / self._priced(long)

    def _priced(self, op: Op) -> float:
        table = self.model.table([OpCall(op, issued_apart=True)])
        own_hz = self.model.device.clock_hz
        scale = self.clock_hz / own_hz if self.clock_hz is not None and own_hz is not None else 1.0
        table = dataclasses.replace(table, peak_flops_per_s=table.peak_flops_per_s * scale)
        return float(self.model.op_seconds(table)[0])


def borrowed(data: Path, prices: KernelPrices, workload: str) -> BorrowedRates:
    """Means over the recorded sequences of all workloads but this one; of products the fastest."""
    rows = lin.recorded(data)
    rows = rows[rows["workload"] != workload].assign(s=rows["runtime_us_sum"] * 1e-6)
    vectors = len(lin.config(workload, _BATCH).tables) + 1
    each = [
        _of(part, prices, lin.config(str(name), _BATCH), vectors)
        for (_, name), part in rows.groupby(["notebook_date", "workload"])
    ]
    rates = {}
    for field, found in zip(
        dataclasses.fields(BorrowedRates), zip(*each, strict=True), strict=True
    ):
        known = [rate for rate in found if not np.isnan(rate)] or [np.nan]
        rates[field.name] = float(max(known) if field.name.startswith("dot") else np.mean(known))
    return BorrowedRates(**rates)


def _of(
    rows: pd.DataFrame, prices: KernelPrices, made: DlrmConfig, vectors: int
) -> tuple[float, ...]:
    """The rates of one sequence, in the order of `BorrowedRates`."""
    step_s = rows.groupby("op")["s"].sum() / lin.PER_ITERATION
    index_s = rows.loc[rows["kernel"] == "indexing_backward_kernel", "s"].mean()
    lookup = lookup_calls(made.tables, _BATCH, "backward", duplicates=made.duplicates)
    op = cast("EmbeddingBagBackward", lookup.op)
    streamed_s = (float(op.work().bytes) - updated_bytes(op)) / prices.streaming_bytes_per_s
    outputs = (*made.bottom_mlp, *made.top_mlp)
    sum_bytes = sum(float(Reduction("fp32", float(o), float(_BATCH)).work().bytes) for o in outputs)
    columns = _BATCH * made.bottom_mlp[-1] if len(made.tables) + 1 >= vectors else np.nan
    copies = rows[(rows["op"] == "aten::to") & (rows["kernel"] == "Memcpy HtoD (Pinned -> Device)")]
    copied_s = (copies["s"] - _COPY_S * copies["launch_count"]).sum() / lin.PER_ITERATION
    lookups = sum(table.pooling for table in made.tables)
    copied_bytes = _BATCH * (
        4.0 * made.dense_features + made.index_bytes * (lookups + len(made.tables)) + 4.0
    )  # and labels
    return (
        _BATCH * lin.pairs(made) / index_s,
        updated_bytes(op) / (step_s["LookupFunctionBackward"] - prices.kernel_s - streamed_s),
        sum_bytes / (step_s.get("aten::sum", np.nan) - len(outputs) * prices.kernel_s),
        columns / (step_s["aten::bmm"] - prices.kernel_s),
        2 * columns / (step_s["BmmBackward"] - 2 * prices.kernel_s),
        copied_bytes / copied_s if len(copies) else np.nan,
    )
