"""Step effects from measured rows (`--fit-on`), by group, and which recompute labels hold.

Rows share knobs within a group: one framework on one architecture of devices. A group without rows
takes those of the same framework, then of the same architecture, then stays with what is believed
without rows.

The label of recomputation is a claim like others. Where rows of a source say that they recompute,
the likelihood of all of them under no, selective and full recomputation is compared, corrections of
layers held small, so that a third more work cannot hide in them. A label falls where another mode
is much likelier, for every row that fits in memory with it.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd

from hybridperf.fields.columns import read_columns
from hybridperf.hardware import Host
from hybridperf.io import InputError
from hybridperf.model.adapted_steps import MODES, Adaptation, Adapted
from hybridperf.training.steps import adapt
from hybridperf.training.steps.batch import Batch, PriceCache, relabelled
from hybridperf.training.steps.cross_node import as_stalled, stalled
from hybridperf.training.steps.memory_fit import endings, fitting
from hybridperf.training.steps.rows import ResolvedRows

# while labels are compared, knobs stay near op data and corrections small, so that a third more
# work cannot hide in them
_WHILE_COMPARED = adapt.FitLimits(
    0.3, {"gemm": 0.05, "attention": 0.15, "memory": 0.1, "exposed_kernel_s": 0.7}
)
MUCH_LIKELIER = 3.0  # log likelihood: twenty to one
_MOST_COMPARED = 200  # rows of a source that are enough to compare by
_LEAST_ROWS = 3  # of a group, to be fitted by itself
# how far off, in logs, a row is named and no row of a machine is: of 1,850 shared ones all but some
# stalled runs of one cluster lie within a factor of 2.9, the farthest of those 58
_FAR, _NO_MACHINE = np.log(3.0), np.log(100.0)
_WRONG_UNITS = np.log(3.0)  # noise in logs that no machine explains


def adaptation(
    frame: pd.DataFrame, cache: PriceCache, host: Host | None = None, device: str | None = None,
    system: str | None = None,
) -> tuple[Adaptation, list[str]]:  # fmt: skip
    """(what measured rows teach, remarks on what was left out or preferred).

    `frame` has `step_time_s`; `cache`, `host`, `device` and `system` as in `predict_steps`.

    Raises:
        InputError: for rows that no machine explains: what is fitted to milliseconds is worse than
            what is believed without rows.
    """
    said = read_columns(frame, "steps").frame
    if "step_time_s" not in said:
        raise InputError(
            "expected a column step_time_s in the rows to fit on, found none; give measured steps"
        )
    batch = cache.understand(frame, device, system)
    why = _left_out(said, batch)
    ran = np.array([not why[at] for at in batch.at], bool)
    first = next(filter(None, why), "")
    if not ran.any():
        raise InputError(
            "expected measured steps to fit on, found none that ran and can be priced; the first,"
            f" {first}"
        )
    remarks = []
    if left := len(frame) - int(ran.sum()):
        remarks.append(f"{left} of {len(frame)} rows to fit on left out; the first, {first}")
    measured_s = said["step_time_s"].to_numpy(object)[batch.at[ran]].astype(float)
    batch = chosen(batch, ran)
    off = _off(batch, measured_s, host)
    far, wild = np.abs(off) > _FAR, np.abs(off) > _NO_MACHINE
    for what, some in (("kept", far & ~wild), ("left out", wild)):
        if some.any():
            worst = int(np.argmax(np.where(some, np.abs(off), 0.0)))
            remarks.append(
                f"{some.sum()} rows to fit on took far longer or shorter than others of their group"
                f" let expect, and are {what}; the worst, {batch.rows[worst].name}:"
                f" {np.exp(off[worst]):.3g} times; check its step_time_s"
            )
    batch, measured_s = chosen(batch, ~wild), measured_s[~wild]
    sources = doubtful(batch)
    likelihoods = {one: compared(batch, measured_s, one, cache, host) for one in sources}
    recompute = {}
    for source, likely in likelihoods.items():
        label = _labels(batch, source)[0]
        best = max(likely, key=lambda mode: likely[mode])
        if best != label and likely[best] - likely[label] > MUCH_LIKELIER:
            recompute[source] = best
        preferred = recompute.get(source, "nothing else")
        odds = ", ".join(f"{mode} {value - likely[label]:+.1f}" for mode, value in likely.items())
        remarks.append(
            f"rows of {source} are labelled recompute {label}; {preferred} is preferred (log"
            f" likelihood {odds} against the label)"
        )
    if recompute:
        relabelled_rows = tuple(relabelled(row, recompute) for row in batch.rows)
        batch = cache.priced(ResolvedRows(relabelled_rows))
    groups, few = _fit_groups(batch, measured_s, host)
    if not groups:
        most = max(few, key=lambda name: few[name])
        raise InputError(
            f"expected {_LEAST_ROWS} or more measured steps of one framework on one architecture to"
            f" fit on, got at most {few[most]}, of {most}; " + (remarks[0] if left else "give more")
        )
    provenance = {"rows": len(measured_s), "sources": sorted({row.source for row in batch.rows})}
    adapted = Adaptation(groups, recompute, likelihoods, host, provenance, few)
    for name, count in few.items():
        whose = adapted.of(name)[1]
        by = f"rows of {whose}" if whose else "default efficiencies"
        remarks.append(
            f"{_LEAST_ROWS} measured rows of {name} are needed to fit them, got {count}; such rows"
            f" are predicted by {by}"
        )
    return adapted, remarks


def _fit_groups(
    batch: Batch, measured_s: np.ndarray, host: Host | None
) -> tuple[dict[str, Adapted], dict[str, int]]:
    """(fits by group, rows of groups that have too few)."""
    groups, few, names = {}, {}, np.array(batch.groups)
    assert batch.features is not None
    marks = stalled(batch.configs, measured_s)
    for name in dict.fromkeys(names.tolist()):
        here = names == name
        if here.sum() < _LEAST_ROWS:
            few[name] = int(here.sum())
            continue
        f, cells = as_stalled(batch.features.picked(here), marks[here]), batch.cells[here]
        sources = tuple(row.source for row in itertools.compress(batch.rows, here))
        limits = adapt.FitLimits(group=name, sources=sources)
        groups[name] = adapt.fit(f, cells, measured_s[here], host, limits)
        if not groups[name].sources:
            groups[name] = dataclasses.replace(groups[name], sources={sources[0]: 0.0})
        if groups[name].noise > _WRONG_UNITS:
            raise InputError(
                f"expected step_time_s of whole steps in seconds, got {here.sum()} rows of {name}"
                f" that lie a factor of {np.exp(groups[name].noise):.3g} from what fits them best;"
                " give seconds, or leave these rows out"
            )
    return groups, few


def _left_out(frame: pd.DataFrame, batch: Batch) -> list[str]:
    """Why each row of a table cannot be fitted on; "" where it can [R]."""
    given_s = frame["step_time_s"]
    flags = given_s.map(lambda one: isinstance(one, bool | np.bool_))
    seconds = pd.to_numeric(given_s.where(~flags), "coerce")
    found = []
    columns = zip(batch.resolved, seconds, given_s, endings(frame), strict=True)
    for at, (row, value, given, ended) in enumerate(columns):
        if row.config is None or at in batch.problems:
            found.append(row.refused or f"{row.name}: {batch.problems[at]}")
        elif ended != "ok":
            found.append(f"{row.name}: its status is {ended}, not ok")
        elif not (np.isfinite(value) and value > 0):
            found.append(f"{row.name}: expected seconds above zero in step_time_s, got {given!r}")
        else:
            found.append(f"{row.name}: {row.flags[0]}" if row.flags else "")
    return found


def _off(batch: Batch, measured_s: np.ndarray, host: Host | None) -> np.ndarray:
    """Log of each row's seconds over the beliefs' prediction, less its group's median [N].

    What is fitted to rows would have followed those that are wrong.
    """
    assert batch.features is not None
    believed = adapt.predict(Adapted.before(host), batch.features, batch.cells)
    off = np.log(measured_s) - believed.log_s
    names = np.array(batch.groups)
    for name in set(names.tolist()):
        off[names == name] -= np.median(off[names == name])
    return off


def chosen(batch: Batch, rows: np.ndarray) -> Batch:
    """Some of a batch's rows (bool [N])."""
    assert batch.features is not None
    kept = tuple(row for row, keep in zip(batch.rows, rows, strict=True) if keep)
    features = batch.features.picked(rows)
    return dataclasses.replace(batch, at=batch.at[rows], rows=kept, features=features)


def doubtful(batch: Batch) -> list[str]:
    """Sources all of whose rows carry one label of recomputation, but would fit without it."""
    found = []
    for source in dict.fromkeys(row.source for row in batch.rows):
        labels = _labels(batch, source)
        rows = [row for row in batch.rows if row.source == source]
        if len(labels) == 1 and labels[0] != "none" and fitting(rows, "none").all():
            found.append(source)
    return found


def compared(
    batch: Batch, measured_s: np.ndarray, source: str, cache: PriceCache, host: Host | None
) -> dict[str, float]:
    """Log likelihood of a source's rows under each recompute mode."""
    places = np.flatnonzero([row.source == source for row in batch.rows])
    spread = np.linspace(0, len(places) - 1, min(len(places), _MOST_COMPARED))
    places = places[np.unique(spread.astype(int))]
    limits = dataclasses.replace(_WHILE_COMPARED, group=batch.groups[places[0]])
    found = {}
    for mode in MODES:
        rows = tuple(relabelled(batch.rows[at], {source: mode}) for at in places)
        other = cache.priced(ResolvedRows(rows))
        assert other.features is not None
        fitted = adapt.fit(other.features, other.cells, measured_s[places], host, limits)
        found[mode] = fitted.evidence
    return found


def _labels(batch: Batch, source: str) -> list[str]:
    configs = [row.config for row in batch.rows if row.source == source]
    return list(dict.fromkeys(one.layout.recompute for one in configs if one is not None))
