"""Rates of kernels that no table of measured ops holds, from the recorded sequences of *other*
workloads than the one that is judged.

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

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from hybridperf.ops import Reduction
from hybridperf.ops.embedding_bag import EmbeddingBagBackward, lookup_calls
from hybridperf.validate import lin_data as lin
from hybridperf.validate.lin_kernels import BorrowedRates, KernelPrices, updated_bytes
from hybridperf.workloads.dlrm import DlrmConfig

_BATCH = 2048  # of all recorded sequences
_COPY_S = 1e-6  # least that a copy takes in them


def borrowed(data: Path, prices: KernelPrices, workload: str) -> BorrowedRates:
    """Means over the recorded sequences of all workloads but this one; of products the fastest."""
    rows = lin.read(data, "v100_dlrm_kernel_sequence.csv")
    rows = rows[rows["workload"] != workload].assign(
        op=lambda frame: frame["op"].map(lin.plain), s=lambda frame: frame["runtime_us_sum"] * 1e-6
    )
    vectors = _vectors(lin.config(workload, _BATCH))
    each = [
        _of(part, prices, lin.config(str(name), _BATCH), vectors)
        for (_, name), part in rows.groupby(["notebook_date", "workload"])
    ]
    names = [field.name for field in dataclasses.fields(BorrowedRates)]
    found = zip(names, zip(*each, strict=True), strict=True)
    return BorrowedRates(**{name: _one(of, best=name.startswith("dot")) for name, of in found})


def _one(rates: tuple[float, ...], best: bool) -> float:
    known = [rate for rate in rates if not np.isnan(rate)]
    return float(max(known) if best else np.mean(known)) if known else np.nan


def _vectors(made: DlrmConfig) -> int:
    return len(made.tables) + 1


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
    columns = _BATCH * made.bottom_mlp[-1] if _vectors(made) >= vectors else np.nan
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
