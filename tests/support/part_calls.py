"""Rows of a parsed table as calls, one each, and ops as the prior of their family sees them."""

import dataclasses

import numpy as np

from hybridperf.hardware import DeviceSpec
from hybridperf.learning.prior import FamilyRows
from hybridperf.model.batch import stacked
from hybridperf.model.families import family_rows
from hybridperf.ops import Op, OpCall
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


def rows_of(op: Op, device: DeviceSpec, framework: str = "") -> FamilyRows:
    """One op of plain numbers as its family's prior sees it, by a framework's kernel."""
    (batch,) = stacked([OpCall(op, framework=framework)], device)
    labels = {"framework": np.array([framework], object)} if framework else {}
    part = dataclasses.replace(batch.part, labels=labels)
    return family_rows(part, np.ones(1, bool), device)
