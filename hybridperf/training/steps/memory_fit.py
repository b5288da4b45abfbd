"""Memory of many steps at once, and whether a step will run at all.

A step fails where its fullest rank needs more than the device can give, or where its layout cannot
run: fewer micro-batches than a pipeline needs to fill (m < p - 1), or a split of the layers that
leaves a stage empty. Of 858 runs that failed in the sweep this was first fitted to, memory
alone tells 89 %, both together 95 %. Such rules are a framework's own habits (`starves` in
`fields/frameworks/`): one of them ends there, others run such layouts slowly.

A framework's fitted knobs lie in `memory_knobs.toml` with what they were fitted on (by
`benchmarks/claims/memory_fit.py`). Axes: N configs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hybridperf.io import shipped_toml
from hybridperf.training.steps.plausibility import places_by
from hybridperf.training.steps.rows import ResolvedRow
from hybridperf.workloads.memory import USABLE, MemoryKnobs, chance_fits, memory_of
from hybridperf.workloads.transformer import Layouts
from hybridperf.workloads.transformer.columns import RECOMPUTE
from hybridperf.workloads.transformer.config import Configs, TransformerConfig
from hybridperf.workloads.transformer.framework import framework_habits
from hybridperf.workloads.transformer.shape import busy_stages

_LEAST_CHANCE = 0.05  # of fitting, below which a row is said not to
_NAMES = tuple(field.name for field in dataclasses.fields(MemoryKnobs))


@functools.cache
def memory_knobs(framework: str) -> MemoryKnobs:
    """A framework's fitted knobs; counts, where none were fitted."""
    fitted = shipped_toml(__package__, "memory_knobs.toml").get(framework, {})
    return MemoryKnobs(**{name: float(str(fitted[name])) for name in _NAMES if name in fitted})


def peak_bytes(
    configs: Configs | Sequence[TransformerConfig], knobs: MemoryKnobs | Sequence[str] | None = None
) -> np.ndarray:
    """Bytes on the fullest rank of each config [N]; `knobs` of all, or those of the framework that
    each is said to be of [N].
    """
    if not isinstance(configs, Configs):
        configs = Configs.of_rows(configs)
    whose = itertools.repeat(knobs) if knobs is None or isinstance(knobs, MemoryKnobs) else knobs
    out = np.empty(len(configs.of))
    for (number, one), here in places_by(zip(configs.of.tolist(), whose, strict=False)):
        layouts = Layouts(*(column[here] for column in configs.layouts))
        known = memory_knobs(one) if isinstance(one, str) else one
        out[here] = memory_of(configs.templates[number], layouts, known).peak_bytes
    return out


def fitting(rows: Sequence[ResolvedRow], mode: str, configs: Configs | None = None) -> np.ndarray:
    """Whether each row fits in its device's memory with this recompute mode (bool [N]).

    `configs`: of these rows, which can all be predicted, if they are known in columns.
    """
    known = configs or Configs.of_rows([row.config for row in rows if row.config is not None])
    recompute = np.full(len(rows), RECOMPUTE.index(mode))
    known = known._replace(layouts=known.layouts._replace(recompute=recompute))
    return peak_bytes(known, [row.framework for row in rows]) <= _usable_bytes(rows)


def _usable_bytes(rows: Sequence[ResolvedRow]) -> np.ndarray:
    """Of each row's device [N]."""
    return USABLE * np.array([row.machine.memory_bytes for row in rows if row.machine is not None])


def starved(config: TransformerConfig) -> str:
    """Why a framework that needs work on each stage ends this run; "" where it does not."""
    x, shape = config.layout, config.shape
    if x.accumulation < x.pp - 1:
        return (
            f"accumulation {x.accumulation} is less than pp - 1 = {x.pp - 1}, so stages stay empty"
        )
    busy = busy_stages(shape.depth, x.pp, config.stage_split, shape.head_layers)
    if busy < x.pp:
        return f"{shape.depth} layers and the head leave {x.pp - busy} of {x.pp} stages empty"
    return ""


def endings(frame: pd.DataFrame) -> pd.Series:
    """How each measured run of a table ended: `ok`, or its `status` in small letters [N]."""
    if "status" not in frame:
        return pd.Series("ok", frame.index)
    return frame["status"].fillna("ok").astype(str).str.strip().str.lower()


def failures(rows: Sequence[ResolvedRow], needed_bytes: np.ndarray) -> tuple[list[str], list[str]]:
    """Why each row would not run, by the bytes its fullest rank needs [N], "" where it would; and
    why that is not sure of one that is too large, "" where it is.
    """
    usable_bytes, left_open = _usable_bytes(rows), []
    why, doubts = [_ruled_out(row) for row in rows], [""] * len(rows)
    for at in np.flatnonzero(needed_bytes > usable_bytes).tolist():
        row, needed, usable = rows[at], float(needed_bytes[at]), float(usable_bytes[at])
        too_large = (
            f"does not fit: the fullest rank needs {needed / 1e9:.4g} GB, {usable / 1e9:.4g} GB of"
            f" {usable / USABLE / 1e9:.4g} GB are usable"
        )
        if why[at]:
            why[at] = f"{too_large}; {why[at]}"
            continue
        why[at] = too_large
        chance = chance_fits(needed / usable, counted=True)
        if chance >= _LEAST_CHANCE and memory_knobs(row.framework) == MemoryKnobs():
            doubts[at] = f"a chance of {chance:.0%} to fit: no peaks of {row.framework} are known"
        if row.question.recompute_open:
            left_open.append(at)
    for at in itertools.compress(left_open, fitting([rows[at] for at in left_open], "full")):
        doubts[at] = "it fits with full recomputation, and the row leaves that open"
    return why, doubts


def _ruled_out(row: ResolvedRow) -> str:
    if row.config is None or not framework_habits().get(row.framework, {}).get("starves"):
        return ""
    why = starved(row.config)
    return f"does not run under {row.framework}: {why}" if why else ""
