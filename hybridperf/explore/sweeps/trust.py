"""How far to trust a step's seconds at each point of a sweep.

Ops can lie outside the measured range. A knob moved away from the measured machine is a what-if:
nothing measured supports its result, so such points are not in range, their note says how far away
they are, and they have no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.collectives.model import CollectiveModel
from hybridperf.engine.batches import knob_names
from hybridperf.engine.step_function import LINK_KNOBS
from hybridperf.explore.sweeps.step_ops import StepOp
from hybridperf.hardware import LEVELS
from hybridperf.model import PerfModel
from hybridperf.ops import GROUPS

_SAME = 0.01  # nearer than that a knob is the measured machine's
_ANSWERS = {"predicted_s": float, "low_s": float, "high_s": float, "in_range": bool, "note": object}


def of_platform(
    model: PerfModel, system: CollectiveModel | None, columns: Mapping[str, Any], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each point's machine is the measured one, bool [rows], and notes where not [rows]."""
    same, notes = np.ones(rows, bool), []
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
        rounds = np.isfinite(scale) & np.isfinite(ratio)
        short = np.where(rounds, np.round(ratio * scale) / scale, ratio)
        values, which = np.unique(np.where(near, 1.0, short), return_inverse=True)
        notes.append(np.array([_ratio_note(name, value) for value in values], object)[which])
    return same, joined(notes, rows)


def _ratio_note(name: str, ratio: float) -> str:
    if ratio == 1:
        return ""
    if not np.isfinite(ratio):
        return f"{name} is 0 where calibrated"
    return f"{name} is {ratio:.3g} of the calibrated"


def distinct(
    columns: Mapping[str, np.ndarray], rows: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Points that differ in some columns, and which of these each of all points is [rows]."""
    varied = [values for values in columns.values() if not (values == values[0]).all()]
    if not varied:
        return {name: values[:1] for name, values in columns.items()}, np.zeros(rows, int)
    stacked = np.stack(varied, 1)
    _, first, which = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
    return {name: values[first] for name, values in columns.items()}, np.ravel(which)


def of_ops(
    ops: Sequence[StepOp], model: PerfModel, system: CollectiveModel | None,
    columns: Mapping[str, Any], rows: int,
) -> dict[str, np.ndarray]:  # fmt: skip
    """What the model predicts of each op alone at each point; equal ops are priced once.

    `predicted_s, low_s, high_s, in_range` [points, ops], and one `note` [points]. Sizes are rounded
    to whole numbers.
    """
    shape = (rows, len(ops))
    out = {name: np.empty(shape, kind) for name, kind in _ANSWERS.items()}
    for at, op in enumerate(ops):
        sizes = {name: np.rint(formula(columns, rows)) for name, formula in op.sizes.items()}
        different, which = distinct(sizes, rows)
        frame = pd.DataFrame(different).assign(**op.words)
        price = system.predict if op.is_collective and system is not None else model.predict_ops
        answer = price(frame)
        for name in _ANSWERS:
            out[name][:, at] = answer[name].to_numpy()[which]
    return {**out, "note": notes_of(ops, out["note"])}


def notes_of(ops: Sequence[StepOp], note: np.ndarray) -> np.ndarray:
    """One note per point from those of its ops [points, ops]; equal notes share a sentence."""
    words, code = np.unique(note.astype(str), return_inverse=True)
    combinations, which = np.unique(code.reshape(note.shape), axis=0, return_inverse=True)
    notes = []
    for combination in combinations:
        alike: dict[str, list[str]] = {}
        for op, at in zip(ops, combination, strict=True):
            for text in filter(None, str(words[at]).split("; ")):
                alike.setdefault(text, []).append(op.name)
        by_ops: dict[str, list[str]] = {}
        for text, names in alike.items():
            by_ops.setdefault(", ".join(names), []).append(text)
        notes.append("; ".join(f"{names}: {'; '.join(texts)}" for names, texts in by_ops.items()))
    return np.array(notes, object)[np.ravel(which)]


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
        given = {} if system is None else vars(system.links())
        return float(given[name]) if given else None
    if name == "memory_bytes_per_s":
        return float(platform.memory_bytes_per_s)
    group, _, knob = name.rpartition("__")
    if group in LEVELS:
        of = platform if knob == "level_bytes" else platform.knobs
        return float(np.asarray(getattr(of, knob))[LEVELS.index(group)])
    return float(np.asarray(getattr(platform.knobs, knob))[GROUPS.index(group)]) if group else 1.0
