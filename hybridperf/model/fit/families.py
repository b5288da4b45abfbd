"""Measured rows of a GPU, by family: each family's prior adapted to its rows, none to 100,000.

Rows of ops that no family knows are handed back; `fit.device` fits those by themselves. What the
graph of a step needs of a family besides its times (typical knobs of the closed form, how far
predictions err) is given per group of ops, as for any other group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
import scipy

from hybridperf.hardware import DTYPE_BYTES, DeviceSpec
from hybridperf.learning.gaussian_process import NINE_OF_TEN
from hybridperf.learning.inputs import Box, inputs_of
from hybridperf.learning.inputs import concatenate as join_inputs
from hybridperf.learning.prior import (
    Adapted,
    FamilyPrior,
    FamilyRows,
    adapt,
    concatenate,
    uninformed,
)
from hybridperf.learning.prior.adapted import LEAST_CALIBRATING
from hybridperf.learning.prior.form import WAVE_ROOFLINE
from hybridperf.learning.prior.machine import Machine
from hybridperf.learning.prior.shipped import Prior
from hybridperf.model import GroupReport
from hybridperf.model.families import (
    FAMILIES,
    by_family,
    family_of,
    family_rows,
    groups_of,
    references_of,
    with_defaults,
)
from hybridperf.model.machine_facts import machine_of
from hybridperf.ops import GROUPS
from hybridperf.ops.sparse import Sparse
from hybridperf.ops.table import OpRows, ParsedOps


@dataclasses.dataclass(frozen=True)
class FamilyFit:
    """What became of the rows of one family."""

    adapted: Adapted
    rows: FamilyRows | None  # those fitted on; None: the prior alone
    time_s: np.ndarray  # [N]
    parts: tuple[tuple[OpRows, np.ndarray], ...] = ()  # parts of a table they are from, and masks


def adapt_families(
    prior: Prior, parsed: ParsedOps | None, time_s: np.ndarray, device: DeviceSpec
) -> tuple[dict[str, FamilyFit], np.ndarray]:
    """(fit by family, positions of rows that belong to none); `time_s` [rows of the table]."""
    members: dict[str, list[tuple[OpRows, np.ndarray]]] = {}
    rest: list[np.ndarray] = [np.zeros(0, int)]
    for part in parsed.parts if parsed else ():
        for family, keep in by_family(part):
            if family in prior.families or (family and isinstance(part.op, Sparse)):
                members.setdefault(family, []).append((part, keep))
            else:
                rest.append(part.rows[keep])
    fits = {}
    for family in (*prior.families, *(one for one in members if one not in prior.families)):
        if family not in members:
            known = prior.families[family]
            references = references_of(device, known.population.devices)
            facts = machine_of(device, family)
            alone = adapt(known, references=references, machine=facts)
            fits[family] = FamilyFit(alone, None, np.zeros(0))
            continue
        rows = concatenate([family_rows(part, keep, device) for part, keep in members[family]])
        seconds = np.concatenate([time_s[part.rows[keep]] for part, keep in members[family]])
        # ops that gather have a form of their own, whose beliefs serve where no device taught
        known = prior.families.get(family) or uninformed(rows)
        fitted = adapt_rows(known, rows, seconds, device, machine_of(device, family))
        fits[family] = dataclasses.replace(fitted, parts=tuple(members[family]))
    return fits, np.sort(np.concatenate(rest))


def adapt_rows(
    known: FamilyPrior, rows: FamilyRows, time_s: np.ndarray, device: DeviceSpec,
    machine: Machine, keep_rows: bool = True,
) -> FamilyFit:  # fmt: skip
    """One family's prior after rows of a device; `keep_rows` as in `prior.adapt`."""
    rows, _ = with_defaults(rows, known.population.implementations)
    references = references_of(device, known.population.devices)
    adapted = adapt(
        known, rows, time_s, keep_rows=keep_rows, references=references, machine=machine
    )
    return FamilyFit(adapted, rows, time_s)


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
        adapted = fitted.adapted
        log_width = adapted.typical_log_width
        errors = adapted.held_out
        if len(errors) < LEAST_CALIBRATING:  # as if normal, 90 % of them within that width
            errors = scipy.special.ndtri((np.arange(21) + 0.5) / 21) * log_width / NINE_OF_TEN
        reports[group] = GroupReport.of(
            len(fitted.time_s), log_width, _box(fitted, group), _dtypes(fits, group), errors
        )
    return reports


def _by_group(fits: Mapping[str, FamilyFit]) -> dict[str, FamilyFit]:
    """The family that stands for each group: the one with more rows, where formats make two."""
    out: dict[str, FamilyFit] = {}
    for family, fitted in fits.items():
        for group in groups_of(family):
            if group not in out or len(fitted.time_s) > len(out[group].time_s):
                out[group] = fitted
    return out


def _dtypes(fits: Mapping[str, FamilyFit], group: str) -> tuple[str, ...]:
    """Number formats of a group that the families here price; empty: all of them."""
    priced = tuple(dtype for dtype in DTYPE_BYTES if family_of(group, dtype) in fits)
    return () if len(priced) == len(DTYPE_BYTES) else priced


def _box(fitted: FamilyFit, group: str) -> Box:
    inputs = []
    for part, keep in fitted.parts:
        mine = keep & (part.group == GROUPS.index(group))
        if mine.any():
            inputs.append(inputs_of(part.op, part.work, len(part.rows)).rows(mine))
    return Box.of(join_inputs(inputs)) if inputs else Box((), np.zeros(0), np.zeros(0))


def held_out(fits: Mapping[str, FamilyFit]) -> pd.DataFrame:
    """Each row that was predicted without itself, in the columns of `FitReport.held_out`.

    `op` is the family, `fold` -1, `noise` not known.
    """
    frames = []
    for family in FAMILIES:
        fitted = fits.get(family)
        if fitted is None or fitted.rows is None or not len(fitted.adapted.held_out):
            continue
        adapted, at = fitted.adapted, fitted.adapted.held_out_at
        measured_s, log_width = fitted.time_s[at], adapted.held_out_log_width
        predicted_s = measured_s * np.exp(adapted.held_out)
        rows = fitted.rows.rows(at)
        frames.append(pd.DataFrame({
            "op": family, "fold": -1, "measured_s": measured_s, "predicted_s": predicted_s,
            "knobs_s": np.exp(adapted.knobs.closed(rows).total),
            "roofline_s": np.exp(rows.log_roofline_s()),
            "low_s": predicted_s * np.exp(-log_width), "high_s": predicted_s * np.exp(log_width),
            "noise": np.nan,
        }))  # fmt: skip
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
