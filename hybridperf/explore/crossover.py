"""From which density on a sparse matrix is multiplied faster as a dense one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from hybridperf.engine.graph import GraphBuilder
from hybridperf.engine.prediction import Prediction, predict
from hybridperf.engine.workload import Workload
from hybridperf.hardware import canonical_dtype
from hybridperf.io import InputError
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model import PerfModel, model_or_datasheet
from hybridperf.model.stages.borrowed import GATHERS_WIDTH, PRODUCTS_WIDTH
from hybridperf.ops import SDDMM, Gemm, Op, OpCall, SpMM
from hybridperf.ops.table import LARGEST_SIZE

_DENSITIES = np.geomspace(1e-4, 1.0, 41)


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Where sparse and dense take as long.

    density: share of nonzeros below which the sparse product is faster; 0 where it never is, 1
        where it always is.
    low, high: its 90 % interval, by those of both products as independent errors; of a product
        that a GPU has no measurements of, as wide as such beliefs were found to be.
    sparse_s, dense_s: seconds there.
    notes: what the price of either says.
    """

    density: float
    low: float | None
    high: float | None
    sparse_s: float
    dense_s: float
    notes: tuple[str, ...] = ()

    @property
    def sparsity(self) -> float:
        """Share of zeros from which on sparse pays, as papers state it."""
        return 1.0 - self.density


def sparse_crossover(
    model: PerfModel | str | Path, rows: float, cols: float, n: float, *, dtype: str = "fp32",
    sparse_dtype: str = "", op: str = "spmm", block: float = 1.0, kernel: str = "",
    cv_degree: float = 0.0,
) -> Crossover:  # fmt: skip
    """The density at which a sparse product takes as long as the dense one of its sizes.

    Args:
        model: a machine; or its name or folder, which is then loaded.
        rows: of the sparse matrix.
        cols: of it, rows of the dense one.
        n: columns of the dense one; of "sddmm" the numbers of each dot product.
        dtype: number format of the dense product.
        sparse_dtype: of the sparse one, where another.
        op: "spmm" or "sddmm".
        block: rows of the sparse matrix that share an index (V of Vx1 vector-sparse).
        kernel: of the sparse product, as tables name it; empty: the platform's library.
        cv_degree: spread of its rows' nonzeros.

    Raises:
        InputError: for another op, or sizes that cannot be priced.
    """
    if op not in ("spmm", "sddmm"):
        raise InputError(f"expected op as spmm or sddmm, got {op!r}")
    for name, value in {"rows": rows, "cols": cols, "n": n, "block": block}.items():
        if isinstance(value, str) or not 0 < value < LARGEST_SIZE:
            raise InputError(f"expected {name} as a number above zero, got {value!r}")
    if isinstance(cv_degree, str) or not 0 <= cv_degree < LARGEST_SIZE:
        raise InputError(f"expected cv_degree as a number of zero or more, got {cv_degree!r}")
    dtype = canonical_dtype(dtype)
    sparse_dtype = canonical_dtype(sparse_dtype or dtype)
    if isinstance(model, str | Path):
        model = model_or_datasheet(model)
    kind = SpMM if op == "spmm" else SDDMM
    m, k, out = (rows, cols, n) if op == "spmm" else (rows, n, cols)
    to = _alone(model, Gemm(dtype, float(m), float(out), float(k)))
    of = [
        _alone(model, kind(
            sparse_dtype, float(rows), float(cols), density * rows * cols, float(n),
            cv_degree, block=block, kernel=kernel,
        ))
        for density in _DENSITIES.tolist()
    ]  # fmt: skip
    log_ratio = np.log([one.time_s / to.time_s for one in of])
    at = _where(log_ratio)
    low = high = None
    half = np.hypot([_half(one, GATHERS_WIDTH) for one in of], _half(to, PRODUCTS_WIDTH))
    if model.device.kind == "gpu":
        low, high = _where(log_ratio + half), _where(log_ratio - half)
    near = of[int(np.argmin(np.abs(_DENSITIES - at)))]
    notes = tuple(dict.fromkeys((*near.notes, *to.notes)))
    return Crossover(at, low, high, near.time_s, to.time_s, notes)


def _alone(model: PerfModel, op: Op) -> Prediction:
    """An op as a step of its own."""
    graph = GraphBuilder()
    graph.op(1, label="op")
    return predict(model, Workload("one op", graph.build(), (OpCall(op),)))


def _half(one: Prediction, believed: float) -> float:
    """Half-width of a 90 % interval in logs; where nothing was measured, as wide as is believed."""
    return NINE_OF_TEN * believed if one.high_s is None else float(np.log(one.high_s / one.time_s))


def _where(log_ratio: np.ndarray) -> float:
    """The largest density up to which the sparse product is faster, between points of the grid."""
    slower = np.flatnonzero(log_ratio > 0)
    if not len(slower):
        return 1.0
    first = int(slower[0])
    if first == 0:
        return 0.0
    a, b = log_ratio[first - 1], log_ratio[first]
    logs = np.log(_DENSITIES[first - 1 : first + 1])
    return float(np.exp(logs[0] + (logs[1] - logs[0]) * (-a / (b - a))))
