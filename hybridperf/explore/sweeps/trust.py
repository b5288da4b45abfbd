"""How far to believe a step's seconds at each point: which ops lie outside what was measured, which
knobs are not the measured machine's.

A knob that is moved away from the machine that was measured is a what-if: its result may be right
and nothing that was measured says so. Such points are not in range, their note says how far away
they are, and they have no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.batches import knob_names
from hybridperf.explore.sweeps.platforms import LINK_KNOBS
from hybridperf.explore.sweeps.step_ops import StepOp
from hybridperf.model import PerfModel
from hybridperf.ops import GROUPS

_SAME = 0.01  # nearer than that a knob is the measured machine's
_ANSWERS = ("predicted_s", "low_s", "high_s", "in_range", "note")


def of_platform(
    model: PerfModel, system: CollectiveModel | None, columns: Mapping[str, Any], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each point's machine is the measured one, bool [rows], and notes where not [rows]."""
    same, said = np.ones(rows, bool), []
    for name in sorted({*knob_names(), *LINK_KNOBS} & set(columns)):
        base = _measured(model, system, name)
        if base is None:
            continue
        with np.errstate(all="ignore"):
            ratio = np.broadcast_to(np.asarray(columns[name], np.float64) / base, (rows,))
        near = np.abs(ratio - 1) <= _SAME
        if near.all():
            continue
        same &= near
        with np.errstate(all="ignore"):
            scale = 10.0 ** (2 - np.floor(np.log10(ratio)))
        short = np.where(
            np.isfinite(scale) & np.isfinite(ratio), np.round(ratio * scale) / scale, ratio
        )
        values, which = np.unique(np.where(near, 1.0, short), return_inverse=True)
        words = [
            ""
            if value == 1
            else f"{name} is {value:.3g} of the calibrated"
            if np.isfinite(value)
            else f"{name} is 0 where calibrated"
            for value in values
        ]
        said.append(np.array(words, object)[which])
    return same, joined(said, rows)


def distinct(
    columns: Mapping[str, np.ndarray], rows: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Points that differ in some columns, and which of these each of all points is [rows]."""
    varied = {name: values for name, values in columns.items() if not (values == values[0]).all()}
    if not varied:
        return {name: values[:1] for name, values in columns.items()}, np.zeros(rows, int)
    _, first, which = np.unique(
        np.stack(list(varied.values()), 1), axis=0, return_index=True, return_inverse=True
    )
    return {name: values[first] for name, values in columns.items()}, np.ravel(which)


def of_ops(
    ops: Sequence[StepOp],
    model: PerfModel,
    system: CollectiveModel | None,
    columns: Mapping[str, Any],
    rows: int,
) -> dict[str, np.ndarray]:
    """What the model predicts of each op alone at each point; equal ops are priced once.

    `predicted_s, low_s, high_s, in_range` [points, ops], and one `note` [points]. Sizes are rounded
    to whole numbers.
    """
    out = {
        name: np.empty(
            (rows, len(ops)), object if name == "note" else bool if name == "in_range" else float
        )
        for name in _ANSWERS
    }
    for at, op in enumerate(ops):
        sizes = np.stack([np.rint(formula(columns, rows)) for formula in op.sizes.values()], 1)
        distinct, which = (
            (sizes[:1], np.zeros(rows, int))
            if (sizes == sizes[0]).all()
            else np.unique(sizes, axis=0, return_inverse=True)
        )
        frame = pd.DataFrame(dict(zip(op.sizes, distinct.T, strict=True))).assign(**op.words)
        asked = system.predict if op.is_collective and system is not None else model.predict_ops
        answer = asked(frame)
        for name in _ANSWERS:
            out[name][:, at] = answer[name].to_numpy()[np.ravel(which)]
    return {**out, "note": notes_of(ops, out["note"])}


def notes_of(ops: Sequence[StepOp], note: np.ndarray) -> np.ndarray:
    """One note per point from those of its ops [points, ops]; equal notes share a sentence."""
    words, code = np.unique(note.astype(str), return_inverse=True)
    combinations, which = np.unique(code.reshape(note.shape), axis=0, return_inverse=True)
    told = []
    for combination in combinations:
        alike: dict[str, list[str]] = {}
        for op, at in zip(ops, combination, strict=True):
            for text in filter(None, str(words[at]).split("; ")):
                alike.setdefault(text, []).append(op.name)
        by_ops: dict[str, list[str]] = {}
        for text, names in alike.items():
            by_ops.setdefault(", ".join(names), []).append(text)
        told.append("; ".join(f"{names}: {'; '.join(texts)}" for names, texts in by_ops.items()))
    return np.array(told, object)[np.ravel(which)]


def joined(parts: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Words [rows] one after the other, empty ones left out."""
    whole = np.full(rows, "", object)
    for part in parts:
        both = (whole != "") & (part != "")
        whole = whole + np.where(both, "; ", "").astype(object) + part
    return whole


def _measured(model: PerfModel, system: CollectiveModel | None, name: str) -> float | None:
    """A knob of the machine that was measured; of factors, one."""
    platform = model.platform()
    if name in LINK_KNOBS:
        return None if system is None else float(getattr(system.links(), name))
    if name == "memory_bytes_per_s":
        return float(platform.memory_bytes_per_s)
    group, _, knob = name.rpartition("__")
    return float(np.asarray(getattr(platform.knobs, knob))[GROUPS.index(group)]) if group else 1.0
