"""What more measurements would bring: the held-out error against the number of rows fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hybridperf.hardware import DeviceSpec
from hybridperf.io import InputError
from hybridperf.learning.prior import FamilyPrior
from hybridperf.learning.prior.alone import log_correction
from hybridperf.model import PerfModel
from hybridperf.model.fit.device import corrected, learn_corrections, prior_for
from hybridperf.model.fit.knobs import fit_knobs
from hybridperf.model.fit.rows import (
    FOLDS,
    MeasuredOps,
    deal_folds,
    named_device,
    noise_of,
    read_measurements,
    shuffled,
    usable_rows,
)
from hybridperf.ops import GROUPS

ALL_OPS = "all"  # stands for every op kind together


def learning_curve(
    measurements: pd.DataFrame,
    device: DeviceSpec | str,
    shares: Sequence[float] = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1),
    prior: str | None = None,
) -> pd.DataFrame:
    """Held-out error against rows fitted on: `rows, op` and, as shares, `median_ape, knobs_ape,
    roofline_ape, noise`.

    One fifth of each group is held out throughout; nested random subsets of the rest, `shares` of
    each group's, are fitted on. A line per size and op kind, and one of op `all`; `knobs_ape` is
    the error without learned corrections, `noise` the held-out rows' own. Groups of fewer than five
    rows are fitted on and not judged. `prior`: of a CPU, as `fit` takes it.
    """
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError(f"expected shares of the rows above 0 and up to 1, got {list(shares)}")
    device = named_device(device, measurements)
    data = read_measurements(usable_rows(measurements, device)[0], device)
    group = data.table.group
    held = (deal_folds(group) == 0) & (np.bincount(group)[group] >= FOLDS)
    if not held.any():
        raise InputError(
            f"expected at least {FOLDS} rows of some op kind to hold some out, got {len(group)}"
            " rows in all"
        )
    train_data, unseen = data.some(~held), data.some(held)
    known = prior_for(prior, device, measurements) if device.kind == "cpu" else None
    knobs, families = (known.knobs, known.families) if known else ({}, {})
    sizes = sorted({float(share) for share in shares}, reverse=True)
    group = train_data.table.group
    place = shuffled(group, 1) / np.bincount(group)[group]
    masks = [place < share for share in sizes]
    # the largest subset is fitted first and the smaller ones from there, so that all share its
    # compiled functions
    largest = train_data.some(masks[0])
    smaller = [~mask[masks[0]] for mask in masks[1:]]
    table = corrected(largest, families)
    first, others = fit_knobs(table, largest.measured_s, device, smaller, knobs)
    curve = [
        _judged(unseen, train_data.some(mask), PerfModel(device, found), families)
        for mask, found in zip(masks, [first, *others], strict=True)
    ]
    return pd.concat(curve[::-1], ignore_index=True)


def _judged(
    unseen: MeasuredOps,
    seen: MeasuredOps,
    closed_form: PerfModel,
    priors: Mapping[str, FamilyPrior],
) -> pd.DataFrame:
    """Errors on `unseen` of knobs, and with corrections learned from `seen`, per op and for all."""
    knobs_errors = np.log(closed_form.op_seconds(unseen.table) / unseen.measured_s)
    errors_seen = np.log(closed_form.op_seconds(seen.table) / seen.measured_s)
    # shares are chosen with knobs that saw the fold left out: a second fit for each fold would cost
    # six times as much
    without = np.broadcast_to(errors_seen, (FOLDS, len(errors_seen)))
    residuals, _ = learn_corrections(
        seen, deal_folds(seen.table.group), errors_seen, without, priors
    )
    errors = knobs_errors.copy()
    for one, residual in residuals.items():
        if one in unseen.inputs:
            errors[unseen.table.group == one] += log_correction(residual, unseen.inputs[one])
    frame = pd.DataFrame({
        "op": [GROUPS[g] for g in unseen.table.group], "median_ape": np.abs(np.expm1(errors)),
        "knobs_ape": np.abs(np.expm1(knobs_errors)),
        "roofline_ape": np.abs(closed_form.roofline_seconds(unseen.table) / unseen.measured_s - 1),
        "noise": noise_of(unseen.rows),
    })  # fmt: skip
    both = pd.concat([frame.assign(op=ALL_OPS), frame])
    out = both.groupby("op", sort=False).median().reset_index()
    groups, numbers = np.unique(seen.table.group, return_counts=True)
    counts = {GROUPS[g]: int(n) for g, n in zip(groups, numbers, strict=True)}
    counts[ALL_OPS] = len(seen.measured_s)
    out.insert(0, "rows", [counts[op] for op in out["op"]])
    return out
