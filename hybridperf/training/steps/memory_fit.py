"""Memory of many steps at once, its knobs from measured peaks, and whether a step will run at all.

A step fails where its fullest rank needs more than the device can give, or where its layout cannot
run: fewer micro-batches than a pipeline needs to fill (m < p - 1), or no more layers than stages,
so that one stage has none. Of 858 runs that failed in the sweep this was first fitted to, memory
alone tells 89 %, both together 95 %. Such rules are a framework's own habits (`starves` in
`transformer/frameworks.toml`): nanotron ends there, others run such layouts slowly.

Knobs are fitted to logs of peaks: robust, and held near counts by beliefs (`MEMORY_PRIORS`). A
framework's fitted ones lie in `memory_knobs.toml` with what they were fitted on. Axes: N configs,
K knobs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from hybridperf.io import InputError, shipped_toml
from hybridperf.training.steps.rows import ResolvedRow, with_recompute
from hybridperf.workloads.memory import MEMORY_PRIORS, MemoryKnobs, memory_of
from hybridperf.workloads.transformer import Layouts
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import framework_habits

# of the bytes that a device's driver shows: what its context, communicators and gaps between blocks
# leave. By hand: failures of the sweep that this was first fitted to are told best by 0.87 to 0.89
USABLE = 0.88
# of what is usable: up to so much more it is not sure that counted bytes do not fit. Peaks of the
# one framework whose peaks are known scatter by 13 % around counts with fitted knobs
_UNSURE = 1.12
# Log error beyond which a row counts less and less. By hand; with 0.04 to 0.3 peaks of a model left
# out err within 0.4 points of the same
_SCALE = 0.08
_NAMES = tuple(field.name for field in dataclasses.fields(MemoryKnobs))
_DEFAULTS = np.array([getattr(MemoryKnobs(), name) for name in _NAMES], float)
_WIDTHS = np.array([MEMORY_PRIORS[name] for name in _NAMES], float)
_FROM_ZERO = _DEFAULTS == 0
_Alike = tuple[np.ndarray, TransformerConfig, Layouts]
_SAME = operator.attrgetter(
    "shape", "dtype", "quant", "attention", "optimizer", "gradient_bytes", "dropout", "stage_split"
)


@functools.cache
def memory_knobs(framework: str) -> MemoryKnobs:
    """A framework's fitted knobs; counts, where none were fitted."""
    fitted = shipped_toml(__package__, "memory_knobs.toml").get(framework, {})
    return MemoryKnobs(**{name: float(str(fitted[name])) for name in _NAMES if name in fitted})


def peak_bytes(
    configs: Sequence[TransformerConfig], knobs: MemoryKnobs | None = None
) -> np.ndarray:
    """Bytes on the fullest rank of each config [N]."""
    return _peak_bytes(_grouped(configs), knobs or MemoryKnobs())


def fitting(rows: Sequence[ResolvedRow], mode: str) -> np.ndarray:
    """Whether each row fits in its device's memory with this recompute mode (bool [N])."""
    out = np.zeros(len(rows), bool)
    by_framework: dict[str, list[tuple[int, TransformerConfig, float]]] = {}
    for at, row in enumerate(rows):
        if row.config is not None and row.machine is not None:
            one = (at, with_recompute(row.config, mode), row.machine.memory_bytes)
            by_framework.setdefault(row.framework, []).append(one)
    for framework, found in by_framework.items():
        places, configs, room = zip(*found, strict=True)
        needed = peak_bytes(configs, memory_knobs(framework))
        out[list(places)] = needed <= USABLE * np.array(room)
    return out


def will_fail(
    configs: Sequence[TransformerConfig], needed_bytes: np.ndarray, memory_bytes: np.ndarray | float
) -> np.ndarray:
    """Whether each config [N] starves or needs more bytes than the device has [N]."""
    return (needed_bytes > USABLE * memory_bytes) | np.array(
        [bool(starved(config)) for config in configs]
    )


def starved(config: TransformerConfig) -> str:
    """Why a framework that needs work on each stage ends this run; "" where it does not."""
    x, depth = config.layout, config.shape.depth
    if x.accumulation < x.pp - 1:
        return (
            f"accumulation {x.accumulation} is less than pp - 1 = {x.pp - 1}, so stages stay empty"
        )
    if x.pp > 1 and depth <= x.pp:
        return f"{depth} layers on pp {x.pp} leave a stage without one beside embedding and head"
    return ""


def _grouped(configs: Sequence[TransformerConfig]) -> list[_Alike]:
    """Configs by what a formula of memory takes once: their places, one of them, their layouts."""
    places: dict[tuple[object, ...], list[int]] = {}
    for at, config in enumerate(configs):
        places.setdefault(_SAME(config), []).append(at)
    return [
        (np.array(at), configs[at[0]], Layouts.of([configs[one].layout for one in at]))
        for at in places.values()
    ]


def _peak_bytes(groups: Sequence[_Alike], knobs: MemoryKnobs) -> np.ndarray:
    out = np.empty(sum(len(at) for at, _, _ in groups))
    for at, one, layouts in groups:
        out[at] = memory_of(one, layouts, knobs).peak_bytes
    return out


def fit_memory(configs: Sequence[TransformerConfig], measured_bytes: np.ndarray) -> MemoryKnobs:
    """Knobs that explain measured peaks [N]; `InputError` where there are none."""
    positive = (np.asarray(measured_bytes) > 0).all()
    if not len(configs) or len(configs) != len(measured_bytes) or not positive:
        raise InputError(
            f"expected as many peaks above zero as configs, got {len(measured_bytes)} for"
            f" {len(configs)}"
        )
    groups, target = _grouped(configs), np.log(measured_bytes)

    def residuals(moved: np.ndarray) -> np.ndarray:
        error = (np.log(_peak_bytes(groups, _moved(moved))) - target) / _SCALE
        # Cauchy's loss as a sum of squares, beliefs not among it
        robust = np.sign(error) * np.sqrt(2 * np.log1p(error**2 / 2))
        return np.concatenate([robust, moved])

    start = np.where(_FROM_ZERO, 0.1, 0.0)  # no slope at the bound itself
    lowest = np.where(_FROM_ZERO, 0.0, -np.inf)
    return _moved(
        scipy.optimize.least_squares(residuals, start, bounds=(lowest, np.inf), max_nfev=60).x
    )


def _moved(moved: np.ndarray) -> MemoryKnobs:
    """Knobs so many widths from their defaults [K]: in logs, or as they are from zero."""
    scaled = _DEFAULTS * np.exp(_WIDTHS * np.where(_FROM_ZERO, 0.0, moved))
    values = np.where(_FROM_ZERO, _WIDTHS * moved, scaled)
    return MemoryKnobs(**dict(zip(_NAMES, values.tolist(), strict=True)))


def endings(frame: pd.DataFrame) -> pd.Series:
    """How each measured run of a table ended: `ok`, or its `status` in small letters [N]."""
    if "status" not in frame:
        return pd.Series("ok", frame.index)
    return frame["status"].fillna("ok").astype(str).str.strip().str.lower()


def failures(rows: Sequence[ResolvedRow], needed_bytes: np.ndarray) -> list[str]:
    """Why each row would not run, by the bytes its fullest rank needs [N]; "" where it would."""
    return [
        "; ".join(filter(None, (_too_large(row, float(needed)), _ruled_out(row))))
        for row, needed in zip(rows, needed_bytes, strict=True)
    ]


def unsure(rows: Sequence[ResolvedRow], needed_bytes: np.ndarray) -> list[str]:
    """Why it is not sure that each row is too large for its device [N]; "" where it is sure, or the
    row is not too large, or cannot run for another reason.
    """
    found, left_open = [""] * len(rows), []
    for at, (row, needed) in enumerate(zip(rows, needed_bytes.tolist(), strict=True)):
        if row.machine is None or needed <= USABLE * row.machine.memory_bytes or _ruled_out(row):
            continue
        room, knobs = USABLE * row.machine.memory_bytes, memory_knobs(row.framework)
        if needed <= _UNSURE * room and knobs == MemoryKnobs():
            found[at] = f"no measured peaks of {row.framework}: counts of bytes may be 12 % off"
        elif row.question.recompute_open:
            left_open.append(at)
    for at in itertools.compress(left_open, fitting([rows[at] for at in left_open], "full")):
        found[at] = "it fits with full recomputation, and the row leaves that open"
    return found


def _too_large(row: ResolvedRow, needed_bytes: float) -> str:
    if row.machine is None or needed_bytes <= USABLE * row.machine.memory_bytes:
        return ""
    usable_gb = USABLE * row.machine.memory_bytes / 1e9
    return (
        f"does not fit: the fullest rank needs {needed_bytes / 1e9:.4g} GB, {usable_gb:.4g} GB of"
        f" {row.machine.memory_bytes / 1e9:.4g} GB are usable"
    )


def _ruled_out(row: ResolvedRow) -> str:
    if row.config is None or not framework_habits().get(row.framework, {}).get("starves"):
        return ""
    why = starved(row.config)
    return f"does not run under {row.framework}: {why}" if why else ""
