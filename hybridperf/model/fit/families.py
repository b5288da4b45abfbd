"""Measured rows of a GPU, by family: each family's prior adapted to its rows, none to 100,000.

Rows of ops that no family knows are handed back; `fit.device` fits those by themselves. What the
graph of a step needs of a family besides its times (typical knobs of the closed form, how far
predictions err) is given per group of ops, as for any other group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.learning import prior as learner
from hybridperf.learning.inputs import Box, inputs_of
from hybridperf.learning.inputs import concatenate as join_inputs
from hybridperf.learning.prior.adapted import LEAST_CALIBRATING
from hybridperf.learning.prior.form import WAVE_ROOFLINE, Machine
from hybridperf.learning.prior.shipped import Prior
from hybridperf.model import GroupReport
from hybridperf.model import families as kinds
from hybridperf.model.fit.rows import held_out_rows
from hybridperf.model.machine_facts import machine_of
from hybridperf.ops import GROUPS
from hybridperf.ops.table import OpRows, ParsedOps


@dataclasses.dataclass(frozen=True)
class FamilyFit:
    """What became of the rows of one family."""

    adapted: learner.Adapted
    rows: learner.FamilyRows | None  # those fitted on; None: the prior alone
    time_s: np.ndarray  # [N]
    parts: tuple[tuple[OpRows, np.ndarray], ...] = ()  # parts of a table they are from, and masks


def adapt_families(
    prior: Prior, parsed: ParsedOps | None, time_s: np.ndarray, device: DeviceSpec
) -> tuple[dict[str, FamilyFit], np.ndarray]:
    """(fit by family, positions of rows that belong to none); `time_s` [rows of the table]."""
    members: dict[str, list[tuple[OpRows, np.ndarray]]] = {}
    rest: list[np.ndarray] = [np.zeros(0, int)]
    for part in parsed.parts if parsed else ():
        for family, keep in kinds.by_family(part):
            if family in prior.families or family == kinds.GATHERED:
                members.setdefault(family, []).append((part, keep))
            else:
                rest.append(part.rows[keep])
    fits = {}
    for family in dict.fromkeys((*prior.families, *members)):
        parts = members.get(family, [])
        every = [kinds.family_rows(part, keep, device) for part, keep in parts]
        rows: Any = learner.concatenate(every) if parts else None
        seconds = np.concatenate([time_s[:0], *(time_s[part.rows[keep]] for part, keep in parts)])
        # ops that gather have a form of their own, whose beliefs serve where no device taught
        known = prior.families.get(family) or learner.uninformed(rows)
        fitted = adapt_rows(known, rows, seconds, device, machine_of(device, family))
        fits[family] = dataclasses.replace(fitted, parts=tuple(parts))
    return fits, np.sort(np.concatenate(rest))


def adapt_rows(
    known: learner.FamilyPrior, rows: learner.FamilyRows | None, time_s: np.ndarray,
    device: DeviceSpec, machine: Machine, keep_rows: bool = True,
) -> FamilyFit:  # fmt: skip
    """One family's prior after rows of a device, none if None; `keep_rows` as in `prior.adapt`."""
    if rows is not None:
        rows, _ = kinds.with_defaults(rows, known.population.implementations)
    references = kinds.references_of(device, known.population.devices)
    known = known.with_references(references).on(machine)
    return FamilyFit(learner.adapt(known, rows, time_s, keep_rows), rows, time_s)


def group_knobs(fits: Mapping[str, FamilyFit]) -> dict[str, dict[str, float]]:
    """The closed form's knobs by group, for ops in a graph; waves are left to the correction."""
    out = {}
    for group, fitted in _by_group(fits).items():
        # every form has a floor and shares of the peaks first
        other = fitted.adapted.knobs.other
        floor_s, compute, memory = map(float, np.exp(other[:3]))
        sharpness = float(np.exp(other[3])) if len(other) <= len(WAVE_ROOFLINE.knobs) else 1.0
        out[group] = {
            "floor_s": floor_s, "compute_efficiency": compute, "memory_efficiency": memory,
            "smoothing": 1.0 / (1.0 + sharpness),
        }  # fmt: skip
    return out


def group_reports(fits: Mapping[str, FamilyFit]) -> dict[str, GroupReport]:
    """How far a graph's prediction may trust each group of the families."""
    reports = {}
    for group, fitted in _by_group(fits).items():
        log_width, errors = fitted.adapted.typical_log_width, fitted.adapted.held_out
        if len(errors) < LEAST_CALIBRATING:  # as if normal, 90 % of them within that width
            errors = scipy.special.ndtri((np.arange(21) + 0.5) / 21) * log_width / NINE_OF_TEN
        priced = [dtype for dtype in DTYPE_BYTES if kinds.family_of(group, dtype) in fits]
        dtypes = priced if len(priced) < len(DTYPE_BYTES) else ()  # empty: all of them
        inputs = [
            inputs_of(
                part.op, part.work, len(part.rows), keep & (part.group == GROUPS.index(group))
            )
            for part, keep in fitted.parts
        ]
        inputs = [one for one in inputs if len(one.values)]
        box = Box.of(join_inputs(inputs)) if inputs else Box((), np.zeros(0), np.zeros(0))
        reports[group] = GroupReport.of(len(fitted.time_s), log_width, box, dtypes, errors)
    return reports


def _by_group(fits: Mapping[str, FamilyFit]) -> dict[str, FamilyFit]:
    """The family that stands for each group: the one with more rows, where formats make two."""
    out: dict[str, FamilyFit] = {}
    for family, fitted in fits.items():
        for group in kinds.groups_of(family):
            if group not in out or len(fitted.time_s) > len(out[group].time_s):
                out[group] = fitted
    return out


def held_out(fits: Mapping[str, FamilyFit]) -> list[pd.DataFrame]:
    """Rows that were predicted without themselves, as `FitReport.held_out` of each family: `op` is
    the family, `fold` -1, `noise` not known.
    """
    frames = []
    for family in kinds.FAMILIES:
        fitted = fits.get(family)
        if fitted is None or fitted.rows is None or not len(fitted.adapted.held_out):
            continue
        adapted, at = fitted.adapted, fitted.adapted.held_out_at
        rows = fitted.rows.rows(at)
        frames.append(held_out_rows(
            family, -1, fitted.time_s[at], adapted.held_out, adapted.held_out_log_width,
            knobs_s=np.exp(adapted.knobs.closed(rows).total),
            roofline_s=np.exp(rows.log_roofline_s()),
        ))  # fmt: skip
    return frames
