"""Rows of a parsed table as calls, one each."""

import dataclasses

import numpy as np

from hybridperf.ops import OpCall
from hybridperf.ops.table import OpRows


def calls_of(part: OpRows) -> list[OpCall]:
    """[R] calls of the rows of a part, in its order."""
    sizes, rows = part.op.dimensions(), len(part.rows)
    columns = {name: np.broadcast_to(getattr(part.op, name), (rows,)) for name in sizes}
    reuse = np.broadcast_to(part.work.reuse_bytes, (rows,))
    framework = part.labels.get("framework", np.full(rows, "", object))
    return [
        OpCall(
            dataclasses.replace(part.op, **{name: float(columns[name][at]) for name in sizes}),
            reuse_bytes=float(reuse[at]),
            framework=str(framework[at]),
        )
        for at in range(rows)
    ]
