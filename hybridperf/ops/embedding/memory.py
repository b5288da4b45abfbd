"""Memory that embedding tables take: their rows, and what an optimizer keeps
of them in fp32.
"""

from __future__ import annotations

from collections.abc import Callable

from hybridperf.hardware import DTYPE_BYTES
from hybridperf.ops.embedding.table import Table

STATE_BYTES: dict[str, Callable[[Table], float]] = {  # of an optimizer
    "sgd": lambda table: 0.0,
    "adagrad": lambda table: 4.0 * table.rows * table.dim,
    "rowwise_adagrad": lambda table: 4.0 * table.rows,
}


def table_bytes(table: Table, optimizer: str) -> float:
    """Memory that a table takes, with the optimizer's state."""
    return float(table.rows * table.dim * DTYPE_BYTES[table.dtype] + STATE_BYTES[optimizer](table))
